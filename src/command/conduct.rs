//! What `run`, `attach` and `resume` have in common: everything but where the process comes from.

use std::ffi::OsString;
use std::time::Instant;

use darc_analysis::Params;
use darc_report::model::{Report, Target};
use darc_report::text;
use darc_symbols::NameSpec;
use darc_tracer::engine::Engine;
use darc_tracer::launch::launch;
use nix::sys::signal::SigSet;

use super::engines::Calibrated;
use super::following;
use super::running::{Running, Start};
use super::saved;
use super::standing::Standing;
use super::started;
use crate::command::style::style_of;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{BeginOption, Common, EngineChoice, ProfileCheck, Verbosity};
use crate::output::Output;
use crate::session::claim::{Claim, Claimed};
use crate::session::clock::Moment;
use crate::session::investigation::Investigation;
use crate::session::markers::{self, Begin};
use crate::session::program;
use crate::session::serving::Serving;
use crate::session::{Ending, Libraries, Limits, Session, SessionError, summary, survey};
use crate::terminal;
use crate::terminal::interrupts::{Interrupts, Level};
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

/// An analysis that is being conducted: what it needs from start to report.
pub struct Conduct {
    /// What is asked and known.
    pub investigation: Investigation,
    /// The signal mask that darc was started with.
    pub mask: SigSet,
    /// The person's signals.
    pub interrupts: Interrupts,
    /// What is known of an f0 that runs already.
    pub(super) running: Option<Running>,
    /// What f0 hands to other threads.
    pub(super) serving: Option<Serving>,
    /// Whether the stored profile is checked before a resumed analysis goes on.
    pub(super) check: Option<ProfileCheck>,
    /// What the analysis waits for.
    begin: Option<Begin>,
    /// Tells whoever asks where it stands; has the claim on the process.
    pub(super) standing: Option<Standing>,
    pub(super) engine: Calibrated,
    pub(super) progress: Progress,
    pub(super) since: Moment,
    pub(super) deadline: Option<Instant>,
    pub(super) common: Common,
    stdout: Stdout,
    output: Option<Output>,
}

impl Conduct {
    /// Checks and prepares everything that needs no target.
    ///
    /// # Errors
    /// When the name or the parameters make no sense, or the output cannot be written.
    pub fn prepare(
        f0: &str,
        params: Params,
        common: Common,
        stdout: Stdout,
    ) -> Result<Conduct, Failure> {
        let spec = NameSpec::parse(f0).class(FailureKind::Usage)?;
        Conduct::with(Investigation::new(spec, params), common, stdout)
    }

    /// As [`Conduct::prepare`], going on with what is known already.
    ///
    /// # Errors
    /// As [`Conduct::prepare`].
    pub fn with(
        mut investigation: Investigation,
        common: Common,
        stdout: Stdout,
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
        investigation.blocks = common.blocks;
        investigation.max_sites = common.max_sites;
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
        let interrupts = Interrupts::install().class(FailureKind::Other)?;
        let output = Output::open(&common.output).class(FailureKind::File)?;
        let engine = Calibrated::now(common.engine).class(FailureKind::Target)?;
        investigation
            .warnings
            .extend(engine.doubt().map(str::to_owned));
        let screen = match stdout {
            Stdout::Ours => Screen::Own,
            Stdout::Targets => Screen::SharedWithTarget,
        };
        Ok(Conduct {
            investigation,
            mask,
            interrupts,
            begin,
            check: None,
            running: None,
            serving,
            standing: None,
            stdout,
            output: Some(output),
            engine,
            progress: Progress::new(common.verbosity, screen),
            since: Moment::now(),
            deadline: common.duration.map(|duration| Instant::now() + duration),
            common,
        })
    }

    /// Analyses a process that runs already.
    ///
    /// # Errors
    /// When it cannot be traced or instrumented; it runs on.
    pub fn attach(&mut self, pid: i32) -> Result<Ending, Failure> {
        self.stand_for(pid, &[])?;
        let earlier = self.unfinished_survey();
        let ending = self.attach_claimed(pid);
        self.keep_unfinished(earlier);
        self.standing = None;
        ending
    }

    fn attach_claimed(&mut self, pid: i32) -> Result<Ending, Failure> {
        if self.begin.is_some() {
            let engine = self.attach_engine(pid)?;
            if let Some(ending) = self.wait_for_begin(pid, engine, Libraries::Loaded)? {
                return Ok(ending);
            }
        }
        self.attach_begun(pid)
    }

    /// Analyses a process that runs, from now on.
    fn attach_begun(&mut self, pid: i32) -> Result<Ending, Failure> {
        if let Some(check) = self.check.take() {
            let engine = self.attach_engine(pid)?;
            if let Some(ending) = self.check_profile(pid, engine, Libraries::Loaded, check)? {
                return Ok(ending);
            }
        }
        if self.running.is_some() {
            return self.analyse_functions(pid, None);
        }
        if self.is_main() && self.runs_already(pid) {
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
            .attach(pid)
            .map_err(|error| tracing_failed(&error, pid))
    }

    /// Waits until the analysis is to begin, and takes the marker's probe away. `Some` when something else
    /// ended the wait.
    fn wait_for_begin(
        &mut self,
        pid: i32,
        mut engine: Box<dyn Engine>,
        libraries: Libraries,
    ) -> Result<Option<Ending>, Failure> {
        let Some(begin) = self.begin.take() else {
            return Ok(None);
        };
        let limits = Limits {
            deadline: None,
            interrupts: &self.interrupts,
            onlooker: self.standing.as_ref().map(|standing| standing as _),
            enough: None,
        };
        let outcome = markers::wait_for_begin(
            pid,
            &begin,
            &mut self.investigation,
            engine.as_mut(),
            libraries,
            limits,
            || {
                if self.common.verbosity != Verbosity::Quiet {
                    self.progress
                        .print("darc: waiting for the beginning of the analysis");
                }
            },
        );
        self.begin = Some(begin);
        // The time that was given is the analysis'.
        self.deadline = self.common.duration.map(|time| Instant::now() + time);
        let restored = engine.finish();
        self.investigation.add_counters(engine.counters());
        let ending = outcome?;
        match restored {
            Err(error) if !error.is_gone() => Err(tracing_failed(&error, pid)),
            _ => Ok(ending),
        }
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

    /// Claims the process, and answers for it from now on.
    fn stand_for(&mut self, pid: i32, command: &[OsString]) -> Result<(), Failure> {
        let target = Target {
            pid: Some(pid),
            command: match command {
                [] => super::attach::command_line(pid),
                command => shown(command),
            },
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

    /// Whether f0 is the function that is called once, and an engine measures that can look into it. Of one that cannot
    /// that is said.
    fn is_main(&mut self) -> bool {
        if !following::names_main(&self.investigation.spec) {
            return false;
        }
        match self.engine.model() {
            darc_report::model::Engine::Jump => true,
            darc_report::model::Engine::Int3 => {
                self.warn(
                    "main is called once, and --engine int3 does not divide a call that runs; name a function that is called often with --f0, or leave out --engine int3"
                        .to_owned(),
                );
                false
            }
        }
    }

    fn runs_already(&mut self, pid: i32) -> bool {
        let known =
            self.investigation.modules.refresh(pid).is_ok() && self.investigation.find_f0().is_ok();
        known && !survey::calls_in_progress(pid, &self.investigation).is_empty()
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
            .inspect_err(|_| program::end(pid))?;
        let earlier = self.unfinished_survey();
        let outcome = match self.engine.launched(thread) {
            Ok(engine) if self.begin.is_some() => {
                match self.wait_for_begin(pid, engine, Libraries::NotLoadedYet) {
                    Ok(Some(ending)) => Ok(ending),
                    Ok(None) => self.attach_begun(pid),
                    Err(failure) => Err(failure),
                }
            }
            Ok(engine) if self.check.is_some() => self.check_launched(pid, engine),
            Ok(engine) if self.running.is_some() => self.analyse_functions(pid, Some(engine)),
            Ok(engine) if self.is_main() => self.survey(pid, Start::Launched(engine)),
            Ok(engine) => {
                let ending = self
                    .session(pid, engine, Libraries::NotLoadedYet)
                    .map_err(Failure::from);
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
    ) -> Result<Ending, SessionError> {
        let limits = Limits {
            deadline: self.deadline,
            interrupts: &self.interrupts,
            onlooker: self.standing.as_ref().map(|standing| standing as _),
            enough: None,
        };
        Session::new(
            pid,
            &mut self.investigation,
            engine,
            libraries,
            &mut self.progress,
        )
        .and_serving(self.serving.as_mut())
        .run(limits)
    }

    /// Writes the results to the file, and shows them unless that is not wanted.
    ///
    /// # Errors
    /// When the file cannot be written; the report was shown all the same.
    pub fn publish(&mut self, target: Target, show: Show) -> Result<(), Failure> {
        let _reporting = self.interrupts.report();
        self.progress.clear();
        let warnings = self.investigation.modules.take_warnings();
        self.investigation.warnings.extend(warnings);
        let functions: Vec<_> = self
            .running
            .iter()
            .flat_map(|running| &running.functions)
            .map(|below| (&below.arrival, &below.investigation))
            .collect();
        let unread = self.investigation.analysis.unread_values();
        let unread = (unread > 0)
            .then(|| format!("in {unread} ops of peaks what --value points to could not be read"));
        let doubts = self
            .since
            .doubts()
            .into_iter()
            .map(|doubt| doubt.to_string());
        let caveats = self.serving.as_ref().map(Serving::caveats);
        let caveats = unread
            .into_iter()
            .chain(doubts)
            .chain(caveats.into_iter().flatten());
        for caveat in caveats {
            if !self.investigation.warnings.contains(&caveat) {
                self.investigation.warnings.push(caveat);
            }
        }
        let found = self.running.as_ref().map(|running| summary::Found {
            time: &running.time,
            functions: &functions,
        });
        let report = summary::report(
            &self.investigation,
            found,
            self.serving.as_ref(),
            self.engine.model(),
            target,
            self.since.rate(),
        );
        if show == Show::Report && self.common.verbosity != Verbosity::Quiet {
            self.show(&report);
        }
        let saved = saved::contents(&report, self.common.format)?;
        // Opened again for a second version of the same results.
        let output = match self.output.take() {
            Some(output) => output,
            None => Output::open(&self.common.output).class(FailureKind::File)?,
        };
        output.write(saved.as_bytes()).class(FailureKind::File)?;
        if let Some(caveat) = saved::caveat(self.common.format).filter(|_| show == Show::Report) {
            self.say(&caveat);
        }
        Ok(())
    }

    fn show(&self, report: &Report) {
        // A closed pipe is no reason to fail: the file has the results.
        match self.stdout {
            Stdout::Ours => {
                let stream = std::io::stdout();
                let style = style_of(self.common.color, &stream);
                print(stream, &text::render(report, style));
            }
            Stdout::Targets => {
                let stream = std::io::stderr();
                let style = style_of(self.common.color, &stream);
                print(stream, &text::render(report, style));
            }
        }
    }

    /// Where the results go, as the person named it.
    #[must_use]
    pub fn output_path(&self) -> String {
        self.common.output.display().to_string()
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
        if !self.investigation.warnings.contains(&warning) {
            self.investigation.warnings.push(warning);
        }
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

    /// Tells of a failure in mid-analysis. What was found since there was `before` of evidence is published.
    pub fn keep_results(&mut self, failure: &Failure, before: u64, target: Target) {
        self.warn(started::ended_early(failure));
        if self.evidence() == before {
            return;
        }
        if let Err(unwritten) = self.publish(target, Show::Report) {
            self.warn(unwritten.text());
        }
    }

    fn below(&self) -> impl Iterator<Item = &Investigation> {
        let functions = self.running.iter().flat_map(|running| &running.functions);
        functions.map(|below| &below.investigation)
    }

    /// Whether every path has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let in_progress = |investigation: &Investigation| {
            investigation.analysis.status() == darc_analysis::Status::InProgress
        };
        match &self.running {
            Some(running) => running.is_complete() && !self.below().any(in_progress),
            None => {
                let serving = self.serving.iter();
                let mut both = serving
                    .map(|serving| &serving.investigation)
                    .chain([&self.investigation]);
                !both.any(in_progress)
            }
        }
    }

    /// How darc itself ends after a session in which the target lives on.
    #[must_use]
    pub fn exit_status(&self, ending: Ending) -> ExitStatus {
        match ending {
            Ending::Interrupted(Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
            Ending::Changed => ExitStatus::Differs,
            _ if !self.saw_ops() => ExitStatus::NoOps,
            _ => ExitStatus::Done,
        }
    }
}

/// Whether results are shown to the person, beside being saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    /// The report.
    Report,
    /// Nothing: it was shown before.
    Nothing,
}

pub(super) fn print(mut stream: impl std::io::Write, text: &str) {
    let _ = stream
        .write_all(text.as_bytes())
        .and_then(|()| stream.flush());
}

/// Makes sure that no other darc measures the process.
pub fn claim(pid: i32) -> Result<Claim, Failure> {
    let claimed = Claim::on(pid).map_err(|error| match error.is_gone() {
        true => tracing_failed(&error, pid),
        false => Failure::new(FailureKind::Other, error),
    })?;
    let owner = match claimed {
        Claimed::Ours(claim) => return Ok(claim),
        Claimed::Taken(Some(owner)) => format!("process {owner}, another darc"),
        Claimed::Taken(None) => "another darc".to_owned(),
    };
    Err(Failure::message(
        FailureKind::Target,
        format!("process {pid}: already measured by {owner}; wait until that has ended"),
    ))
}

/// A failed attach, with the reason that the kernel's bare number does not tell.
pub(super) fn tracing_failed(error: &darc_tracer::Error, pid: i32) -> Failure {
    if error.is_gone() {
        return Failure::message(
            FailureKind::Lost,
            format!("process {pid} ended while darc attached to it"),
        );
    }
    match error {
        darc_tracer::Error::Ptrace {
            source: nix::errno::Errno::EPERM,
            ..
        } => Failure::message(
            FailureKind::Target,
            darc_tracer::preflight::explain_eperm(pid),
        ),
        _ => Failure::message(FailureKind::Target, error),
    }
}

/// A path or argument as it is shown.
#[must_use]
pub fn shown(command: &[OsString]) -> Vec<String> {
    command
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect()
}
