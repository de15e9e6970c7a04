//! `darc profile`: latency profiles of many functions at once, or of system calls.

mod syscalls;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use darc_analysis::Resolution;
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_process::{Ending, Given, Interrupts as _, Level, Libraries, Limits, Process};
use darc_report::model::Target;
use darc_report::profiles::{self, ProfileSet};
use darc_report::state::{self, Fitting, fitting};
use darc_report::text::Style;
use darc_symbols::NameSpec;
use darc_tracer::engine::jump::{self, Calibration, Profiler};
use darc_tracer::launch::launch;
use nix::sys::signal::SigSet;

use crate::command::shared::answering::Answers;
use crate::command::shared::started::{self, wait_for_exit};
use crate::command::shared::style::style_of;
use crate::command::shared::target::{checked, command_line};
use crate::command::shared::target::{claim, shown, tracing_failed};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{ColorChoice, Format, ProfileOf, ProfileOptions, ProfileTarget, Verbosity};
use crate::output::print;
use crate::output::{Output, to_stdout};
use crate::session::profiling::{Measured, Onlooker, Profiling, Question, Wanted, summary};
use crate::session::summary::target;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::keys::Keys;
use crate::terminal::warning;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ProfileOptions) -> Result<ExitStatus, Failure> {
    let ProfileOf::Functions { named, callees_of } = &options.what else {
        return syscalls::execute(&options);
    };
    let question = Question {
        wanted: wanted(named, callees_of)?,
        interval: options.interval,
        resolution: options.resolution,
    };
    let mut profile = Profile::prepare(&options, question)?;
    match &options.target {
        ProfileTarget::Pid(pid) => profile.attach(*pid),
        ProfileTarget::Command(command) => profile.launch(command),
    }
}

fn wanted(named: &[String], callees_of: &[String]) -> Result<Vec<Wanted>, Failure> {
    let parse = |name: &String| NameSpec::parse(name).class(FailureKind::Usage);
    let mut wanted = Vec::new();
    for name in named {
        wanted.push(Wanted::Named(parse(name)?));
    }
    for name in callees_of {
        wanted.push(Wanted::CalleesOf(parse(name)?));
    }
    if wanted.is_empty() {
        wanted.push(Wanted::Program);
    }
    Ok(wanted)
}

/// Where and how a set of profiles is put out.
pub(super) struct Sheet<'a> {
    options: &'a ProfileOptions,
    output: Option<Output>,
}

impl<'a> Sheet<'a> {
    /// Opens the file first: nothing is measured that cannot be kept.
    pub(super) fn open(options: &'a ProfileOptions) -> Result<Sheet<'a>, Failure> {
        let output = options
            .output
            .as_ref()
            .map(|path| Output::open_keeping(path));
        let output = output.transpose().class(FailureKind::File)?;
        Ok(Sheet { options, output })
    }

    /// Tells the person something at once.
    pub(super) fn warn(&self, message: &str) {
        if self.options.verbosity != Verbosity::Quiet {
            warning::print(message);
        }
    }

    /// Writes the file, and shows the set unless that is not wanted. What cannot be written is shown in any case.
    pub(super) fn publish(&mut self, set: &ProfileSet) -> Result<(), Failure> {
        let format = self.options.format;
        let quiet = self.options.verbosity == Verbosity::Quiet;
        let Some(output) = self.output.take() else {
            return self.show(set, format);
        };
        if !quiet {
            // The file is what matters.
            let _ = self.show(set, Format::Text);
        }
        let saved = match format {
            Format::Text => fitting(set, |set| Ok::<_, Failure>(state::write_profiles(set)))?,
            _ => contents(set, format, Style::default())?,
        };
        if let Some(warning) = &saved.warning {
            self.warn(warning);
        }
        let written = output.write(saved.text.as_bytes()).class(FailureKind::File);
        if written.is_err() && quiet {
            let _ = self.show(set, Format::Text);
        }
        written
    }

    /// A started program has stdout to itself. A closed pipe is no reason to fail.
    fn show(&self, set: &ProfileSet, format: Format) -> Result<(), Failure> {
        match self.options.target {
            ProfileTarget::Pid(_) => {
                let text = self.rendered(set, format, &std::io::stdout())?;
                to_stdout(&text).class(FailureKind::File)
            }
            ProfileTarget::Command(_) => {
                let text = self.rendered(set, format, &std::io::stderr())?;
                print(std::io::stderr(), &text);
                Ok(())
            }
        }
    }

    fn rendered(
        &self,
        set: &ProfileSet,
        format: Format,
        stream: &(impl IsTerminal + AsFd),
    ) -> Result<String, Failure> {
        let style = style_of(self.options.color, stream);
        let contents = contents(set, format, style)?;
        if let Some(warning) = &contents.warning {
            self.warn(warning);
        }
        Ok(contents.text)
    }
}

/// The set in a format; what is read again fits into a file.
fn contents(set: &ProfileSet, format: Format, style: Style<'_>) -> Result<Fitting, Failure> {
    match format {
        Format::Json => fitting(set, |set| render(set, format, style)),
        _ => Ok(Fitting {
            text: render(set, format, style)?,
            warning: None,
        }),
    }
}

/// The set for the person who pressed a key.
pub(super) fn on_stderr(set: &ProfileSet, color: ColorChoice) -> String {
    let style = style_of(color, &std::io::stderr());
    // Text has room for everything.
    render(set, Format::Text, style).unwrap_or_default()
}

/// The set in a format.
///
/// # Errors
/// When the format shows paths, which profiles do not have.
pub(super) fn render(
    set: &ProfileSet,
    format: Format,
    style: Style<'_>,
) -> Result<String, Failure> {
    let rendered = profiles::render(set, format, style).ok_or_else(|| {
        Failure::message(
            FailureKind::Usage,
            format!(
                "{}: shows paths of calls, which profiles do not have; choose text, json, svg or html",
                format.name()
            ),
        )
    })?;
    rendered.class(FailureKind::Other)
}

/// A profiling that is being conducted.
struct Profile<'a> {
    sheet: Sheet<'a>,
    question: Question,
    modules: Modules,
    measured: Measured,
    mask: SigSet,
    interrupts: Interrupts,
    calibration: Calibration,
    since: Moment,
}

impl<'a> Profile<'a> {
    /// Checks and prepares everything that needs no target.
    fn prepare(options: &'a ProfileOptions, question: Question) -> Result<Profile<'a>, Failure> {
        let mask = darc_tracer::child_signal::block().class(FailureKind::Other)?;
        let interrupts = match options.target {
            ProfileTarget::Pid(_) => Interrupts::of_a_stranger(),
            _ => Interrupts::install(),
        };
        let interrupts = interrupts.class(FailureKind::Other)?;
        Ok(Profile {
            sheet: Sheet::open(options)?,
            question,
            modules: Modules::default(),
            measured: Measured::default(),
            mask,
            interrupts,
            calibration: jump::calibrate_counting().class(FailureKind::Target)?,
            since: Moment::now(),
        })
    }

    /// Claims the process.
    fn asked(&self, pid: i32, command: Vec<String>, keys: Keys) -> Result<Asked, Failure> {
        Ok(Asked {
            answers: Answers::new(claim(pid)?, keys),
            color: self.sheet.options.color,
            resolution: self.question.resolution,
            since: self.since,
            pid,
            command,
        })
    }

    fn attach(&mut self, pid: i32) -> Result<ExitStatus, Failure> {
        let pid = checked(pid, |note| {
            self.sheet.warn(&note.to_string());
            self.measured.warnings.push(note.to_string());
        })?;
        let command = command_line(pid);
        let keys = Keys::new(true);
        let asked = self.asked(pid, command.clone(), keys)?;
        let profiler = Profiler::attach(pid).map_err(|error| tracing_failed(&error, pid))?;
        let ending = match self.session(pid, profiler, Libraries::Loaded, &asked) {
            Ok(ending) => ending,
            Err(failure) => {
                match self.saw_calls() {
                    true => self.keep(&failure, pid, command),
                    false => self.warn_of_files(),
                }
                return Err(failure);
            }
        };
        self.publish(pid, command, ending.shell_status())?;
        Ok(self.exit_status(ending))
    }

    fn launch(&mut self, command: &[OsString]) -> Result<ExitStatus, Failure> {
        let thread = launch(command, &self.mask, jump::OPTIONS).class(FailureKind::Target)?;
        let pid = thread.tid();
        let asked = self
            .asked(pid, shown(command), Keys::new(false))
            .inspect_err(|_| darc_process::end(pid))?;
        let is_wanted = || self.interrupts.level() == Level::GoOn;
        let outcome = match Profiler::launched(thread, &is_wanted) {
            Ok(profiler) => self.session(pid, profiler, Libraries::NotLoadedYet, &asked),
            Err(error) => Err(started::not_taken_over(pid, error)),
        };
        let mut ending = match outcome {
            Ok(ending) => ending,
            Err(failure) => {
                match started::had_begun(&failure) {
                    true => {
                        let warning = started::ended_early(&failure);
                        self.measured.warnings.push(warning);
                        self.tell(pid, command, None);
                    }
                    false => self.warn_of_files(),
                }
                return started::ends_despite(failure, pid, &self.interrupts);
            }
        };
        // The answer is here: nobody shall have to wait for the program's end to see it.
        self.tell(pid, command, ending.shell_status());
        if ending.shell_status().is_none() {
            if let Ending::Interrupted(Level::LeaveAtOnce(signal)) = ending {
                return Ok(ExitStatus::LeftAtOnce(signal));
            }
            match wait_for_exit(pid, &self.interrupts) {
                Some(ended) => ending = ended,
                None => return Ok(self.exit_status(ending)),
            }
        }
        Ok(started::passed_on(ending).unwrap_or_else(|| self.exit_status(ending)))
    }

    fn session(
        &mut self,
        pid: i32,
        mut profiler: Profiler,
        libraries: Libraries,
        asked: &Asked,
    ) -> Result<Ending, Failure> {
        profiler.set_cost(&self.calibration);
        let given = Given::new(self.sheet.options.duration);
        let limits = Limits {
            given: Some(&given),
            deadline: None,
            interrupts: &self.interrupts,
            until: None,
        };
        let process = Process::new(pid, &mut self.modules, Box::new(profiler), libraries);
        let session = Profiling::new(process, &self.question, &mut self.measured);
        session.onlooker(asked).run(limits).map_err(Failure::from)
    }

    /// Tells of a failure in the middle, and publishes what was counted before.
    fn keep(&mut self, failure: &Failure, pid: i32, command: Vec<String>) {
        let warning = started::ended_early(failure);
        self.sheet.warn(&warning);
        if !self.saw_calls() {
            return self.warn_of_files();
        }
        self.measured.warnings.push(warning);
        if let Err(unwritten) = self.publish(pid, command, None) {
            self.sheet.warn(&unwritten.text());
        }
    }

    /// Publishes what was counted in a program that was started, whose status is passed on in any case.
    fn tell(&mut self, pid: i32, command: &[OsString], exit_status: Option<i32>) {
        if let Err(unwritten) = self.publish(pid, shown(command), exit_status) {
            self.sheet.warn(&unwritten.text());
        }
    }

    /// Tells what is wrong with files that nothing else will tell of: it may be why a function was not found.
    fn warn_of_files(&mut self) {
        for warning in self.modules.take_warnings() {
            self.sheet.warn(&warning);
        }
    }

    fn publish(
        &mut self,
        pid: i32,
        command: Vec<String>,
        exit_status: Option<i32>,
    ) -> Result<(), Failure> {
        let _reporting = self.interrupts.report();
        let problems = self.modules.take_warnings();
        self.measured.warnings.extend(problems);
        let doubts = self.since.doubts().into_iter();
        self.measured
            .warnings
            .extend(doubts.map(|doubt| doubt.to_string()));
        if !self.saw_calls() {
            let warning = "no call of these functions began while darc was watching";
            self.measured.warnings.push(warning.to_owned());
        }
        let target = Target {
            exit_status,
            ..target(&self.modules, pid, command)
        };
        let resolution = self.question.resolution;
        let set = summary::set(
            &self.modules,
            &self.measured,
            resolution,
            target,
            self.since.rate(),
        );
        self.sheet.publish(&set)
    }

    fn saw_calls(&self) -> bool {
        let begun = |member: &crate::session::profiling::Member| member.counts.begun > 0;
        self.measured.members.iter().any(begun)
    }

    fn exit_status(&self, ending: Ending) -> ExitStatus {
        match ending {
            Ending::Interrupted(Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
            _ if !self.saw_calls() => ExitStatus::NoOps,
            _ => ExitStatus::Done,
        }
    }
}

/// Tells whoever asks where it stands; has the claim on the process.
#[derive(Debug)]
struct Asked {
    answers: Answers,
    color: ColorChoice,
    resolution: Resolution,
    since: Moment,
    pid: i32,
    command: Vec<String>,
}

impl Onlooker for Asked {
    fn is_asked(&self) -> bool {
        self.answers.are_asked()
    }

    fn tell(&self, modules: &Modules, measured: &Measured) {
        let target = target(modules, self.pid, self.command.clone());
        let set = summary::set(
            modules,
            measured,
            self.resolution,
            target,
            self.since.rate(),
        );
        self.answers.tell(&set, |set| on_stderr(set, self.color));
    }
}
