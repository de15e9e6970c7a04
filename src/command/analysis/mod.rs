//! What `run`, `attach` and `resume` have in common: everything but where the process comes from.

mod checking;
mod choosing;
pub mod engines;
pub mod following;
mod publishing;
pub mod running;
mod standing;

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;

use darc_analysis::Params;
use darc_process::clock::Moment;
use darc_process::modules::{CodeRef, Modules};
use darc_process::{
    Ending, Given, Level, Libraries, Limits, Process, ProcessError, goroutines_of,
    is_dynamic_program, is_go_program,
};
use darc_report::model::{self, Report, Target};
use darc_report::quoted;
use darc_symbols::NameSpec;
use darc_tracer::effort::BUDGET;
use darc_tracer::engine::Engine;
use darc_tracer::launch::launch;
use darc_tracer::plan::Mark;
use nix::sys::signal::SigSet;

use choosing::Choice;
use engines::Calibrated;
pub use publishing::Show;
use running::{Running, Start};
use standing::Standing;

use crate::command::shared::style::style_of;
use crate::command::shared::target::{claim, command_line, shown, tracing_failed};
use crate::command::shared::{debuginfod, started};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{BeginOption, Blocks, Common, EngineChoice, ProfileCheck, Trials, Verbosity};
use crate::output::Output;
use crate::session::Session;
use crate::session::asynchronous::Serving;
use crate::session::catalog::Catalog;
use crate::session::descent::futures::Ops;
use crate::session::descent::investigation::Investigation;
use crate::session::markers::{self, Begin};
use crate::session::onlooker::{Onlooker, Seen};
use crate::session::summary;
use crate::terminal;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::keys::Keys;
use crate::terminal::live::{Progress, Screen};

/// Whose stdout is it?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stdout {
    /// Ours: the report goes there.
    Ours,
    /// The target's: the report goes to stderr, as perf stat does.
    Targets,
}

/// What a person should know of an analysis of a Go program.
const GOROUTINES: &str = "a Go program: goroutines are measured, and what they wait for is seen by their calls (runtime.gopark and what leads there); calls that leave no room for a probe are the function's own time";

/// What they should know who want the functions of one narrowed.
const NO_BLOCKS: &str = "--blocks is set aside: it is not for Go programs, whose functions are not narrowed to loops and lines yet";

/// An analysis that is being conducted: what it needs from start to report.
pub struct Conduct {
    /// The files whose code processes run, of all processes.
    pub modules: Modules,
    /// The places in them that have numbers.
    pub catalog: Catalog,
    /// What is asked and known.
    pub investigation: Investigation,
    /// The signal mask that darc was started with.
    pub mask: SigSet,
    /// The person's signals.
    pub interrupts: Interrupts,
    /// Whether the functions that the threads began with are looked for, since nobody has named one.
    pub chooses_f0: bool,
    /// What the threads began with whose time is divided, where darc has chosen it.
    choice: Option<Choice>,
    /// What may be divided next, the busiest first.
    next_choices: VecDeque<Choice>,
    /// What the threads began with, where that was looked for.
    began_with: HashMap<i32, CodeRef>,
    /// What is known of an f0 that runs already.
    pub running: Option<Running>,
    /// What f0 hands to other threads.
    pub serving: Option<Serving>,
    /// The results that a resumed analysis goes on with.
    pub earlier: Option<Report>,
    /// Whether the stored profile is checked before a resumed analysis goes on.
    pub check: Option<ProfileCheck>,
    /// How the causes are put to the test at the end, if they are.
    pub trials: Option<Trials>,
    /// What the analysis waits for.
    begin: Option<Begin>,
    /// Tells whoever asks where it stands; has the claim on the process.
    pub standing: Option<Standing>,
    pub engine: Calibrated,
    pub progress: Progress,
    pub since: Moment,
    /// The time that the person gave.
    pub given: Given,
    pub common: Common,
    stdout: Stdout,
    output: Option<Output>,
}

impl Conduct {
    /// Checks and prepares everything before the target is touched: the process of this id, if it runs already.
    ///
    /// # Errors
    /// When the name or the parameters make no sense, or the output cannot be written.
    pub fn prepare(
        f0: &str,
        params: Params,
        common: Common,
        stdout: Stdout,
        pid: Option<i32>,
    ) -> Result<Conduct, Failure> {
        let spec = NameSpec::parse(f0).class(FailureKind::Usage)?;
        let investigation = Investigation {
            ops: Ops::LivesWherePossible,
            ..Investigation::new(spec, params)
        };
        let mut conduct = Conduct::with(investigation, common, stdout, pid)?;
        if let Some(range) = conduct.common.range {
            let range = range.in_ticks(conduct.since.rate());
            conduct.investigation.analysis.name_range(range);
        }
        Ok(conduct)
    }

    /// As [`Conduct::prepare`], going on with what is known already.
    ///
    /// # Errors
    /// As [`Conduct::prepare`].
    pub fn with(
        mut investigation: Investigation,
        common: Common,
        stdout: Stdout,
        pid: Option<i32>,
    ) -> Result<Conduct, Failure> {
        investigation
            .analysis
            .params()
            .validate()
            .class(FailureKind::Usage)?;
        let parse = |name: &String| NameSpec::parse(name).class(FailureKind::Usage);
        let begin = match &common.begin {
            Some(BeginOption::At(name)) => Some(Begin::At(parse(name)?)),
            Some(BeginOption::OnSignal) => Some(Begin::OnSignal),
            None => None,
        };
        investigation.preemption = common.preemption;
        investigation.budget = common.budget.unwrap_or(BUDGET);
        if common.budget.is_some() && common.engine == EngineChoice::Int3 {
            return Err(Failure::usage(
                "--budget needs the jump engine: breakpoints stop the threads at every call; leave out --engine int3",
            ));
        }
        investigation.blocks = common.blocks;
        investigation.max_sites = common.max_sites;
        investigation.looks_on = common.looks_on;
        investigation.end_at = common.end_at.as_ref().map(parse).transpose()?;
        if let Some(expression) = &common.value {
            investigation.analysis.set_expression(expression.clone());
        }
        let serving = following::asked(&common, &investigation)?;
        let functions = matches!(begin, Some(Begin::At(_))) || investigation.end_at.is_some();
        if functions && common.engine == EngineChoice::Int3 {
            return Err(Failure::usage(
                "--begin-at and --end-at need the jump engine; leave out --engine int3, or send SIGUSR1 and SIGUSR2",
            ));
        }
        let mask = darc_tracer::child_signal::block().class(FailureKind::Other)?;
        let interrupts = match stdout {
            Stdout::Ours => Interrupts::of_a_stranger(),
            Stdout::Targets => Interrupts::install(),
        };
        let interrupts = interrupts.class(FailureKind::Other)?;
        let output = Output::open_keeping(&common.output).class(FailureKind::File)?;
        let mut modules = Modules::default();
        let goroutines = pid.and_then(|pid| {
            modules.refresh(pid).ok()?;
            goroutines_of(&modules)
        });
        let engine = Calibrated::now(common.engine, goroutines).class(FailureKind::Target)?;
        investigation
            .warnings
            .extend(engine.doubt().map(str::to_owned));
        let screen = match stdout {
            Stdout::Ours => Screen::Own,
            Stdout::Targets => Screen::SharedWithTarget,
        };
        Ok(Conduct {
            modules,
            catalog: Catalog::default(),
            investigation,
            mask,
            interrupts,
            begin,
            earlier: None,
            check: None,
            trials: None,
            chooses_f0: false,
            choice: None,
            next_choices: VecDeque::new(),
            began_with: HashMap::new(),
            running: None,
            serving,
            standing: None,
            stdout,
            output: Some(output),
            engine,
            progress: Progress::new(common.verbosity, screen),
            since: Moment::now(),
            given: Given::new(common.duration),
            common,
        })
    }

    /// Analyses a process that runs already.
    ///
    /// # Errors
    /// When it cannot be traced or instrumented; it runs on.
    pub fn attach(&mut self, pid: i32) -> Result<Ending, Failure> {
        self.stand_for(pid, &[])?;
        self.choose_threads(pid, Libraries::Loaded)?;
        let earlier = self.unfinished_survey();
        let ending = self.attach_claimed(pid);
        self.keep_unfinished(earlier);
        self.standing = None;
        ending
    }

    fn attach_claimed(&mut self, pid: i32) -> Result<Ending, Failure> {
        self.fetch_names(pid);
        if self.begin.is_some() {
            let engine = self.attach_engine(pid)?;
            if let Some(ending) = self.wait_for_begin(pid, engine, Libraries::Loaded)? {
                return Ok(ending);
            }
        }
        self.attach_begun(pid)
    }

    /// Has debuginfod fetch the names that the files of the process lack.
    fn fetch_names(&mut self, pid: i32) {
        if !self.common.debuginfod || self.modules.refresh(pid).is_err() {
            return;
        }
        let tell = |text: &str| self.say(text);
        if let Some(why) = debuginfod::fetch(&self.modules, &self.interrupts, tell) {
            self.warn(why);
        }
    }

    /// Analyses a process that runs, from now on.
    fn attach_begun(&mut self, pid: i32) -> Result<Ending, Failure> {
        if self.chooses_f0 && self.modules.refresh(pid).is_ok() && is_go_program(&self.modules) {
            // Threads all begin with the same function of the run-time, and none begins with what its program does.
            return Err(Failure::message(
                FailureKind::Name,
                format!(
                    "process {pid} is a Go program: name one of its functions; darc sample -p {pid} tells which take its time, darc list -p {pid} 'main.*' which there are, then darc attach -p {pid} --f0 FUNCTION"
                ),
            ));
        }
        if let Some(check) = self.check.take() {
            let engine = self.attach_engine(pid)?;
            if let Some(ending) = self.check_profile(pid, engine, Libraries::Loaded, check)? {
                return Ok(ending);
            }
        }
        if self.running.is_some() {
            return self.analyse_functions(pid, None);
        }
        if self.is_main() && self.is_to_be_divided(pid)? {
            return self.survey(pid, Start::Attached);
        }
        let engine = self.attach_engine(pid)?;
        let ending = self
            .session(pid, engine, Libraries::Loaded)
            .map_err(Failure::from);
        self.unless_running(pid, ending)
    }

    fn attach_engine(&self, pid: i32) -> Result<Box<dyn Engine>, Failure> {
        self.engine
            .attach(pid, self.investigation.threads.as_ref())
            .map_err(|error| tracing_failed(&error, pid))
    }

    /// Waits until the analysis is to begin, and takes the marker's probe away. `Some` when something else
    /// ended the wait.
    fn wait_for_begin(
        &mut self,
        pid: i32,
        engine: Box<dyn Engine>,
        libraries: Libraries,
    ) -> Result<Option<Ending>, Failure> {
        let Some(begin) = &self.begin else {
            return Ok(None);
        };
        let limits = Limits {
            given: None,
            deadline: None,
            interrupts: &self.interrupts,
            until: Some(Mark::Begin),
        };
        let mut process = Process::new(pid, &mut self.modules, engine, libraries);
        let waiting = || {
            if self.common.verbosity != Verbosity::Quiet {
                self.progress
                    .print("darc: waiting for the beginning of the analysis");
            }
        };
        let looks = |modules: &Modules, investigation: &Investigation| {
            if let Some(standing) = &self.standing {
                standing.look(Seen {
                    naming: investigation.naming(modules, &self.catalog),
                    investigation,
                    serving: None,
                    totals: None,
                });
            }
        };
        let outcome = markers::wait_for_begin(
            &mut process,
            begin,
            &mut self.investigation,
            limits,
            waiting,
            looks,
        );
        self.investigation.add_counters(process.engine().counters());
        for warning in process.take_warnings() {
            self.investigation.warn(warning);
        }
        // The time that was given is the analysis', of this run as of others.
        self.given = Given::new(self.common.duration);
        Ok(outcome?)
    }

    fn check_launched(&mut self, pid: i32, engine: Box<dyn Engine>) -> Result<Ending, Failure> {
        let Some(check) = self.check.take() else {
            return self.attach_begun(pid);
        };
        match self.check_profile(pid, engine, Libraries::NotLoadedYet, check)? {
            Some(ending) => Ok(ending),
            None => self.attach_begun(pid),
        }
    }

    /// The process for a report, which has not ended.
    #[must_use]
    pub fn target(&self, pid: i32, command: Vec<String>) -> Target {
        Target {
            threads: self.named_threads(),
            ..summary::target(&self.modules, pid, command)
        }
    }

    fn named_threads(&self) -> Vec<String> {
        let named = self.common.threads.iter();
        named.map(ToString::to_string).collect()
    }

    /// Claims the process, and answers for it from now on.
    fn stand_for(&mut self, pid: i32, command: &[OsString]) -> Result<(), Failure> {
        let target = Target {
            pid: Some(pid),
            command: match command {
                [] => command_line(pid),
                command => shown(command),
            },
            threads: self.named_threads(),
            ..Target::default()
        };
        let stderr = std::io::stderr();
        let style = style_of(self.common.color, &stderr);
        // Of a program that was started stdin is its own, and a question is waiting for an answer there.
        let asks = self.investigation.analysis.params().peak == darc_analysis::PeakChoice::Later;
        self.standing = Some(Standing::new(
            claim(pid)?,
            self.engine.model(),
            target,
            self.since,
            Keys::new(self.stdout == Stdout::Ours && !asks),
            self.progress.printer(),
            style,
        ));
        Ok(())
    }

    /// Goes on with a survey when f0 turned out not to return.
    fn unless_running(
        &mut self,
        pid: i32,
        ending: Result<Ending, Failure>,
    ) -> Result<Ending, Failure> {
        match ending {
            Ok(Ending::Running) => self.survey(pid, Start::Attached),
            other => other,
        }
    }

    /// Starts a program and analyses it: its pid, and how that went.
    ///
    /// # Errors
    /// When it cannot be started. When f0 is not in it, it has not run at all.
    pub fn launch(
        &mut self,
        command: &[OsString],
    ) -> Result<(i32, Result<Ending, Failure>), Failure> {
        let thread =
            launch(command, &self.mask, self.engine.options()).class(FailureKind::Target)?;
        let pid = thread.tid();
        self.stand_for(pid, command)
            .inspect_err(|_| darc_process::end(pid))?;
        self.fetch_names(pid);
        let earlier = self.unfinished_survey();
        let is_go = self.modules.refresh(pid).is_ok() && is_go_program(&self.modules);
        let is_dynamic = is_dynamic_program(&self.modules);
        let follows = is_go && goroutines_of(&self.modules).is_some();
        let libraries = match (self.engine.model(), follows) {
            // Such a program has all of its code from the beginning.
            (model::Engine::Jump, true) => Libraries::Loaded,
            _ => Libraries::NotLoadedYet,
        };
        self.choose_threads(pid, Libraries::NotLoadedYet)
            .inspect_err(|_| darc_process::end(pid))?;
        let outcome = match self.engine.launched(
            thread,
            is_go && !is_dynamic,
            &self.interrupts,
            self.investigation.threads.as_ref(),
        ) {
            Ok(engine) if self.begin.is_some() => {
                match self.wait_for_begin(pid, engine, libraries) {
                    Ok(Some(ending)) => Ok(ending),
                    Ok(None) => self.attach_begun(pid),
                    Err(failure) => Err(failure),
                }
            }
            Ok(engine) if self.check.is_some() => self.check_launched(pid, engine),
            Ok(engine) if self.running.is_some() => self.analyse_functions(pid, Some(engine)),
            Ok(engine) if self.is_main() => self.survey(pid, Start::Launched(engine)),
            Ok(engine) => {
                let ending = self.session(pid, engine, libraries).map_err(Failure::from);
                self.unless_running(pid, ending)
            }
            Err(error) => Err(started::not_taken_over(pid, error)),
        };
        self.keep_unfinished(earlier);
        self.standing = None;
        Ok((pid, outcome))
    }

    fn session(
        &mut self,
        pid: i32,
        engine: Box<dyn Engine>,
        libraries: Libraries,
    ) -> Result<Ending, ProcessError> {
        let limits = Limits {
            given: Some(&self.given),
            deadline: None,
            interrupts: &self.interrupts,
            until: Some(Mark::End),
        };
        self.investigation.ops.next_process();
        let mut process = Process::new(pid, &mut self.modules, engine, libraries);
        if libraries == Libraries::Loaded && process.admit_goroutines()? {
            if self.common.value.is_some() {
                let reason = "--value is not for Go programs, which pass arguments otherwise";
                return Err(ProcessError::Unsuitable(reason.to_owned()));
            }
            self.investigation.looks_on = false;
            if self.investigation.blocks != Blocks::Left {
                self.investigation.blocks = Blocks::Left;
                self.investigation.warn(NO_BLOCKS.to_owned());
            }
            self.investigation.warn(GOROUTINES.to_owned());
        }
        Session::new(
            process,
            &mut self.catalog,
            &mut self.investigation,
            &mut self.progress,
        )
        .and_serving(self.serving.as_mut())
        .seen_by(onlooker(self.standing.as_ref()))
        .run(limits)
    }

    /// How to go on, behind what has ended the analysis too early; nothing where the results cannot be read again, or are of futures.
    /// What darc had attached to, and not started, is to run again by then.
    #[must_use]
    pub fn going_on(&self, target: &Target) -> String {
        let is_stored = self.common.format.is_complete() && self.investigation.polls().is_none();
        let file = self.common.output.to_str().filter(|_| is_stored);
        let again = match target.attached {
            true => target
                .program()
                .map(|program| format!(" -p {program}, when it runs again")),
            false => Some(String::new()),
        };
        let file = file.and_then(quoted).zip(again);
        file.map_or_else(String::new, |(file, again)| {
            format!("; go on with: darc resume {file}{again}")
        })
    }

    /// Tells the person what is being done.
    pub fn say(&self, line: &str) {
        if self.common.verbosity != Verbosity::Quiet {
            self.progress
                .print(&format!("darc: {}", terminal::warning::one_line(line)));
        }
    }

    /// Tells the person something, now and in the report.
    pub fn warn(&mut self, warning: String) {
        self.progress.warn(&warning);
        self.investigation.warn(warning);
    }

    /// Tells the person in short what the report has at length.
    fn note(&mut self, short: &str, warning: String) {
        self.say(short);
        self.progress.was_told(&warning);
        self.investigation.warn(warning);
    }

    /// Whether any op completed.
    #[must_use]
    pub fn saw_ops(&self) -> bool {
        self.evidence() > 0
    }

    /// On how many ops and windows the results rest.
    #[must_use]
    pub fn evidence(&self) -> u64 {
        let analyses = std::iter::once(&self.investigation).chain(self.below());
        let ops = analyses.map(|investigation| investigation.analysis.profile().count());
        let windows = self.running.as_ref().map(|running| running.time.windows);
        ops.chain(windows).fold(0, u64::saturating_add)
    }

    /// Tells what is wrong with files that nothing else will tell of: it may be why a function was not found.
    pub fn warn_of_files(&mut self) {
        for warning in self.modules.take_warnings() {
            self.warn(warning);
        }
    }

    fn below(&self) -> impl Iterator<Item = &Investigation> {
        let functions = self.running.iter().flat_map(|running| &running.functions);
        functions.map(|below| &below.investigation)
    }

    /// Whether every path has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let serving = self.serving.as_ref();
        is_finished(&self.investigation, self.running.as_ref(), serving)
    }

    /// How darc itself ends after a session in a target that it has not started, or that lives on.
    #[must_use]
    pub fn exit_status(&self, ending: Ending) -> ExitStatus {
        match ending {
            Ending::Interrupted(Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
            Ending::Changed => ExitStatus::Differs,
            Ending::Killed(_) if !self.is_finished() => ExitStatus::Lost,
            _ if !self.saw_ops() => ExitStatus::NoOps,
            _ => ExitStatus::Done,
        }
    }
}

/// Whether every path of an analysis has ended: of f0, or of the functions below it, and of the one that serves its
/// requests.
#[must_use]
pub fn is_finished(
    investigation: &Investigation,
    running: Option<&Running>,
    serving: Option<&Serving>,
) -> bool {
    let has_ended = |investigation: &Investigation| investigation.analysis.is_finished();
    match running {
        Some(running) => {
            let mut below = running.functions.iter().map(|below| &below.investigation);
            running.is_complete() && below.all(has_ended)
        }
        None => {
            let serving = serving.map(|serving| &serving.investigation);
            serving.into_iter().chain([investigation]).all(has_ended)
        }
    }
}

/// Who looks at a session, where somebody answers for it.
pub fn onlooker(standing: Option<&Standing>) -> Option<&dyn Onlooker> {
    standing.map(|standing| standing as _)
}
