//! `darc profile`: latency profiles of many functions at once, or of system calls.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use darc_analysis::Resolution;
use darc_report::model::Target;
use darc_report::profiles::{self, ProfileSet};
use darc_report::state::{self, Fitting, fitting};
use darc_report::text::Style;
use darc_symbols::NameSpec;
use darc_tracer::engine::jump::{self, Calibration, Profiler};
use darc_tracer::launch::launch;
use nix::sys::signal::SigSet;

use super::answering::Answers;
use super::attach::{checked, command_line};
use super::conduct::{claim, print, shown, tracing_failed};
use super::started::{self, wait_for_exit};
use crate::command::style::style_of;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{ColorChoice, Format, ProfileOf, ProfileOptions, ProfileTarget, Verbosity};
use crate::output::{Output, to_stdout};
use crate::session::clock::Moment;
use crate::session::profiling::{Measured, Onlooker, Profiling, Question, Wanted, summary};
use crate::session::program;
use crate::session::{Ending, Libraries, Limits};
use crate::terminal::interrupts::{Interrupts, Level};
use crate::terminal::keys::Keys;
use crate::terminal::warning;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ProfileOptions) -> Result<ExitStatus, Failure> {
    let ProfileOf::Functions { named, callees_of } = &options.what else {
        return super::syscalls::execute(&options);
    };
    let question = Question {
        wanted: wanted(named, callees_of)?,
        interval: options.interval,
        duration: options.duration,
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
        let output = options.output.as_ref().map(|path| Output::open(path));
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
fn contents(set: &ProfileSet, format: Format, style: Style) -> Result<Fitting, Failure> {
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
pub(super) fn render(set: &ProfileSet, format: Format, style: Style) -> Result<String, Failure> {
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
        let interrupts = Interrupts::install().class(FailureKind::Other)?;
        Ok(Profile {
            sheet: Sheet::open(options)?,
            question,
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
                if self.saw_calls() {
                    self.keep(&failure, pid, command);
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
            .inspect_err(|_| program::end(pid))?;
        let outcome = match Profiler::launched(thread) {
            Ok(profiler) => self.session(pid, profiler, Libraries::NotLoadedYet, &asked),
            Err(error) => Err(started::not_taken_over(pid, error)),
        };
        let mut ending = match outcome {
            Ok(ending) => ending,
            Err(failure) => {
                if started::had_begun(&failure) {
                    self.keep(&failure, pid, shown(command));
                }
                let _ = wait_for_exit(pid, &self.interrupts);
                return Err(failure);
            }
        };
        let exit_status = ending.shell_status();
        // The answer is here: nobody shall have to wait for the program's end to see it.
        self.publish(pid, shown(command), exit_status)
            .map_err(|failure| match exit_status {
                Some(_) => failure,
                None => started::wait_after(failure, pid, &self.interrupts),
            })?;
        if exit_status.is_none() {
            if let Ending::Interrupted(Level::LeaveAtOnce(signal)) = ending {
                return Ok(ExitStatus::LeftAtOnce(signal));
            }
            match wait_for_exit(pid, &self.interrupts) {
                Some(ended) => ending = ended,
                None => return Ok(self.exit_status(ending)),
            }
        }
        Ok(ending
            .exit_status()
            .unwrap_or_else(|| self.exit_status(ending)))
    }

    fn session(
        &mut self,
        pid: i32,
        mut profiler: Profiler,
        libraries: Libraries,
        asked: &Asked,
    ) -> Result<Ending, Failure> {
        profiler.set_cost(&self.calibration);
        let limits = Limits {
            deadline: None,
            interrupts: &self.interrupts,
            onlooker: None,
            enough: None,
        };
        let session = Profiling::new(pid, &self.question, profiler, libraries, &mut self.measured);
        session.onlooker(asked).run(limits).map_err(Failure::from)
    }

    /// Tells of a failure in the middle, and publishes what was counted before.
    fn keep(&mut self, failure: &Failure, pid: i32, command: Vec<String>) {
        let warning = started::ended_early(failure);
        self.sheet.warn(&warning);
        if !self.saw_calls() {
            return;
        }
        self.measured.warnings.push(warning);
        if let Err(unwritten) = self.publish(pid, command, None) {
            self.sheet.warn(&unwritten.text());
        }
    }

    fn publish(
        &mut self,
        pid: i32,
        command: Vec<String>,
        exit_status: Option<i32>,
    ) -> Result<(), Failure> {
        let _reporting = self.interrupts.report();
        let problems = self.measured.modules.take_warnings();
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
            ..self.measured.modules.target(pid, command)
        };
        let resolution = self.question.resolution;
        let set = summary::set(&self.measured, resolution, target, self.since.rate());
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

    fn tell(&self, measured: &Measured) {
        let target = measured.modules.target(self.pid, self.command.clone());
        let set = summary::set(measured, self.resolution, target, self.since.rate());
        self.answers.tell(&set, |set| on_stderr(set, self.color));
    }
}
