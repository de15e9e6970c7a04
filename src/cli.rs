//! The command line: clap's types live here and nowhere else; what leaves is an [`Invocation`].

mod arguments;
mod choices;
mod examples;
mod generated;
mod values;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use arguments::{AnalysisArgs, Cli, Command, ProfileArgs};
use clap::Parser;
use clap::error::ErrorKind;
use darc_analysis::{PeakChoice, Resolution};

use crate::config::Config;
use crate::exit::Failure;
use crate::listing::{Copies, Pattern};
use crate::options::{
    AttachAllOptions, AttachOptions, BeginOption, CleanupOptions, Common, CompareOptions,
    DEFAULT_F0, DemoOptions, DoctorOptions, DuringPeak, EngineChoice, Format, GivenParams,
    GuardianOptions, Invocation, ListOptions, ListSource, NamedRange, ProfileCheck, ProfileOf,
    ProfileOptions, ProfileTarget, ProveOptions, Query, ReportOptions, ResumeOptions, ResumeTarget,
    RunOptions, SampleFormat, SampleOptions, SampleTarget, StatusOptions, Subject, Trials,
    Verbosity, WatchOptions,
};
use crate::target_name::{self, ProcessName};

/// Why a command line is no invocation.
#[derive(Debug)]
pub enum Stop {
    /// The person asked for this text (`--help`, `--version`); darc succeeded.
    Show(String),
    /// It makes no sense, or a file that it names is bad.
    Refuse(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Refuse(failure)
    }
}

/// Understands a command line; the first argument is the program's own name.
///
/// # Errors
/// When there is nothing to be done, because help was asked for or an argument makes no sense.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, Stop> {
    match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command.into_invocation(),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                Err(Stop::Show(error.render().to_string()))
            }
            _ => Err(Failure::usage(usage_line(&error.render().to_string())).into()),
        },
    }
}

/// Clap's message of several lines as one: what is wrong, then what to do.
fn usage_line(rendered: &str) -> String {
    let mut line = String::from("usage:");
    for part in rendered.lines().map(str::trim) {
        if part.starts_with("Usage:") || part.starts_with("For more information") {
            break;
        }
        let part = part.strip_prefix("error: ").unwrap_or(part);
        if let Some(tip) = part.strip_prefix("tip: ") {
            line.push_str("; ");
            line.push_str(tip);
        } else if !part.is_empty() {
            line.push(' ');
            line.push_str(part);
        }
    }
    line.push_str("; try `darc --help`");
    line
}

impl Command {
    fn into_invocation(self) -> Result<Invocation, Stop> {
        Ok(match self {
            Command::Attach {
                process,
                pid,
                all,
                cgroup,
                part,
                f0,
                prove,
                analysis,
            } => {
                let asks = analysis.ask;
                let config = analysis.config()?;
                let f0 = f0.or_else(|| config.f0.clone());
                let mut common = analysis.into_common(&config);
                let names = [process, pid].concat();
                let pids = match part {
                    Some(part) => vec![part.pid],
                    None => attach_pids(names, all, cgroup.as_deref(), &config)?,
                };
                match pids.as_slice() {
                    &[pid] => {
                        if part.is_some() {
                            common.output = common.file_of(pid);
                        }
                        Invocation::Attach(AttachOptions {
                            pid,
                            f0,
                            prove,
                            part,
                            common,
                        })
                    }
                    _ => attach_all(pids, common, asks)?,
                }
            }
            Command::Run {
                f0,
                repeat,
                analysis,
                command,
            } => {
                let config = analysis.config()?;
                let command = if command.is_empty() {
                    config.command()?
                } else {
                    command
                };
                if command.first().is_none_or(|program| program.is_empty()) {
                    return Err(Failure::usage(
                        "run: no program was given; write it after --, as in `darc run -- CMD`",
                    )
                    .into());
                }
                Invocation::Run(RunOptions {
                    command,
                    repeat,
                    f0: f0
                        .f0
                        .or_else(|| config.f0.clone())
                        .unwrap_or_else(|| DEFAULT_F0.to_owned()),
                    common: analysis.into_common(&config),
                })
            }
            Command::Resume {
                file,
                pid,
                analysis,
                check_profile,
                strict,
                command,
            } => {
                let config = analysis.config()?;
                Invocation::Resume(ResumeOptions {
                    file,
                    target: resume_target(pid, command, &config)?,
                    f0: config.f0.clone(),
                    engine: analysis.engine(&config),
                    check: match (strict, check_profile) {
                        (true, _) => Some(ProfileCheck::Strict),
                        (false, true) => Some(ProfileCheck::Warn),
                        (false, false) => None,
                    },
                    common: analysis.into_common(&config),
                })
            }
            Command::Profile {
                target,
                functions,
                command,
            } => Invocation::Profile(target.into_options(functions, command)?),
            Command::Watch {
                pid,
                functions,
                record,
                duration,
            } => Invocation::Watch(WatchOptions {
                pid: pid.find()?,
                functions,
                record,
                duration,
            }),
            Command::Report {
                file,
                format,
                output,
                all,
                open,
                color,
            } => {
                let default = match open {
                    true => Format::Html,
                    false => Format::default(),
                };
                let format = format
                    .map(Format::from)
                    .or_else(|| output.as_deref().and_then(Format::of_file))
                    .unwrap_or(default);
                if open && format != Format::Html {
                    return Err(Failure::usage(format!(
                        "report: --open shows a page, and this would be {}; leave out one of them",
                        format.name()
                    ))
                    .into());
                }
                let page = || PathBuf::from(format.default_output());
                Invocation::Report(ReportOptions {
                    file,
                    format,
                    output: output.or_else(|| open.then(page)),
                    all,
                    open,
                    color: color.into(),
                })
            }
            Command::Compare {
                before,
                after,
                method,
                fail_on,
                format,
                color,
            } => Invocation::Compare(CompareOptions {
                before,
                after,
                method: method.into(),
                fail_on,
                format: format.into(),
                color: color.into(),
            }),
            Command::List {
                pid,
                file,
                pattern,
                sort,
                inlined,
                format,
            } => {
                let (source, pattern) = list_source(optional(pid)?, file, pattern)?;
                Invocation::List(ListOptions {
                    source,
                    query: Query {
                        pattern,
                        order: sort.into(),
                        copies: if inlined {
                            Copies::Listed
                        } else {
                            Copies::LeftOut
                        },
                    },
                    format: format.into(),
                })
            }
            Command::Status { pid, format, color } => Invocation::Status(StatusOptions {
                pid: optional(pid)?,
                format: format.into(),
                color: color.into(),
            }),
            Command::Sample {
                pid,
                user,
                all,
                duration,
                rate,
                during_peak,
                f0,
                format,
                output,
                command,
            } => Invocation::Sample(SampleOptions {
                target: sample_target(optional(pid)?, user, all, command)?,
                duration,
                rate,
                // Clap has made sure that there are both or none.
                during: during_peak
                    .zip(f0)
                    .map(|(peak, f0)| DuringPeak { f0, peak }),
                format: match format {
                    Some(format) => format.into(),
                    None => sample_format(output.as_deref())?,
                },
                output,
            }),
            Command::Cleanup { pid, output } => Invocation::Cleanup(CleanupOptions {
                pid: optional(pid)?,
                output,
            }),
            Command::Doctor { file, pid, format } => Invocation::Doctor(DoctorOptions {
                subject: match (file, optional(pid)?) {
                    (Some(file), _) => Subject::File(file),
                    (None, Some(pid)) => Subject::Process(pid),
                    (None, None) => Subject::Machine,
                },
                format: format.into(),
            }),
            Command::Completions { shell } => {
                return Err(Stop::Show(generated::completions(shell)));
            }
            Command::Man { command } => {
                return Err(Stop::Show(generated::manual(command.as_deref())?));
            }
            Command::Prove {
                file,
                pid,
                peak,
                cause,
                self_check,
                time,
                delay,
                budget,
                delay_by,
                in_allocator,
                format,
            } => Invocation::Prove(ProveOptions {
                file,
                pid: optional(pid)?,
                trials: Trials {
                    peak: peak.map(NonZeroU32::get),
                    causes: cause,
                    self_check,
                    time,
                    delay,
                    budget,
                    delay_by: delay_by.into(),
                    in_allocator,
                },
                format: format.into(),
            }),
            Command::Demo { analysis } => {
                let config = analysis.config()?;
                Invocation::Demo(DemoOptions {
                    common: analysis.into_common(&config),
                })
            }
            Command::DemoTarget => Invocation::DemoTarget,
            Command::Guardian {
                pid,
                ledger_fd,
                life_fd,
            } => Invocation::Guardian(GuardianOptions {
                pid,
                ledger_fd,
                life_fd,
            }),
        })
    }
}

/// With a process the first word is the pattern, not a file.
fn list_source(
    pid: Option<i32>,
    first: Option<OsString>,
    second: Option<OsString>,
) -> Result<(ListSource, Option<Pattern>), Failure> {
    let pattern = |word: OsString| Pattern::new(word.to_string_lossy());
    match (pid, first, second) {
        (Some(pid), word, None) => Ok((ListSource::Pid(pid), word.map(pattern))),
        (Some(_), _, Some(_)) => Err(Failure::usage(
            "list: a file and a process exclude each other; leave one out",
        )),
        (None, Some(file), word) if !file.is_empty() => {
            Ok((ListSource::File(file.into()), word.map(pattern)))
        }
        (None, _, _) => Err(Failure::usage(
            "list: nothing to list was named; name a process with -p PID, or a file",
        )),
    }
}

/// Clap has made sure that there is one of them at most.
fn sample_target(
    pid: Option<i32>,
    user: Option<String>,
    all: bool,
    command: Vec<OsString>,
) -> Result<SampleTarget, Failure> {
    match (pid, user, all) {
        (Some(pid), _, _) => Ok(SampleTarget::Pid(pid)),
        (None, Some(user), _) => Ok(SampleTarget::User(user)),
        (None, None, true) => Ok(SampleTarget::System),
        (None, None, false) if command.first().is_some_and(|program| !program.is_empty()) => {
            Ok(SampleTarget::Command(command))
        }
        (None, None, false) => Err(Failure::usage(
            "sample: nothing to sample was named; give -p PID, -u USER, -a, or a program after --",
        )),
    }
}

fn attach_pids(
    given: Vec<ProcessName>,
    all: bool,
    cgroup: Option<&str>,
    config: &Config,
) -> Result<Vec<i32>, Failure> {
    if let Some(group) = cgroup {
        let found = target_name::find_in_group(group, &given)?;
        return match found.len() == 1 || all {
            true => Ok(found),
            false => Err(target_name::choose(
                &format!("control group {group:?}"),
                &found,
            )),
        };
    }
    let mut pids = Vec::new();
    if given.is_empty() {
        let configured = named(None, config);
        pids.extend(configured.transpose()?);
    }
    for name in given {
        match all {
            true => pids.extend(name.find_all()?),
            false => pids.push(name.find()?),
        }
    }
    pids.sort_unstable();
    pids.dedup();
    match pids.is_empty() {
        true => Err(Failure::usage(
            "attach: no process was given; name it, as in `darc attach PID`",
        )),
        false => Ok(pids),
    }
}

/// More processes are not analysed side by side.
const MOST_PROCESSES: usize = 64;

fn attach_all(pids: Vec<i32>, common: Common, asks: bool) -> Result<Invocation, Failure> {
    let count = pids.len();
    let why = if count > MOST_PROCESSES {
        format!("{count} processes are too many at once; name {MOST_PROCESSES} at most")
    } else if asks || common.log.is_some() {
        "--ask and --log are for one process; leave them out, or name one".to_owned()
    } else if common.begin == Some(BeginOption::OnSignal) {
        "--begin-on-signal is for one process; leave it out, or name one".to_owned()
    } else if !matches!(common.format, Format::Text | Format::Json) {
        "results of several processes are text or json; darc report makes other formats of each"
            .to_owned()
    } else {
        return Ok(Invocation::AttachAll(AttachAllOptions { pids, common }));
    };
    Err(Failure::usage(format!("attach: {why}")))
}

/// The process that the command line names, or else the configuration.
fn named(given: Option<ProcessName>, config: &Config) -> Option<Result<i32, Failure>> {
    let configured = || config.program.clone().map(ProcessName::Program);
    let name = given.or_else(|| config.pid.map(ProcessName::Pid).or_else(configured))?;
    Some(name.find())
}

/// The process that an option names.
fn optional(given: Option<ProcessName>) -> Result<Option<i32>, Failure> {
    given.map(|name| name.find()).transpose()
}

/// What the command line names, else what the configuration names, else what the results name.
fn resume_target(
    pid: Option<ProcessName>,
    command: Vec<OsString>,
    config: &Config,
) -> Result<ResumeTarget, Failure> {
    if !command.is_empty() {
        return Ok(ResumeTarget::Command(command));
    }
    match named(pid, config) {
        Some(pid) => pid.map(ResumeTarget::Pid),
        None => Ok(match config.command()? {
            command if command.is_empty() => ResumeTarget::FromFile,
            command => ResumeTarget::Command(command),
        }),
    }
}

impl ProfileArgs {
    fn into_options(
        self,
        functions: Vec<String>,
        command: Vec<OsString>,
    ) -> Result<ProfileOptions, Failure> {
        let target = match optional(self.pid)? {
            Some(pid) => ProfileTarget::Pid(pid),
            None if command.first().is_some_and(|program| !program.is_empty()) => {
                ProfileTarget::Command(command)
            }
            None => {
                return Err(Failure::usage(
                    "profile: nothing to profile was named; name a process with -p PID, or a program after --",
                ));
            }
        };
        Ok(ProfileOptions {
            target,
            what: match self.syscalls {
                true => ProfileOf::SystemCalls,
                false => ProfileOf::Functions {
                    named: functions,
                    callees_of: self.callees_of,
                },
            },
            interval: self.interval,
            duration: self.duration,
            resolution: self.resolution,
            format: match self.format {
                Some(format) => format.into(),
                None => profile_format(self.output.as_deref())?,
            },
            output: self.output,
            verbosity: verbosity(self.quiet, self.verbose),
            log: self.log,
            color: self.color.into(),
        })
    }
}

/// The format of profiles that a file's ending stands for.
fn profile_format(file: Option<&Path>) -> Result<Format, Failure> {
    match by_ending(file) {
        format @ (Format::Text | Format::Json | Format::Svg | Format::Html) => Ok(format),
        other => Err(cannot_be("profile: profiles", file, other)),
    }
}

/// The format of samples that a file's ending stands for.
fn sample_format(file: Option<&Path>) -> Result<SampleFormat, Failure> {
    match by_ending(file) {
        Format::Text => Ok(SampleFormat::Text),
        Format::Json => Ok(SampleFormat::Json),
        Format::Folded => Ok(SampleFormat::Folded),
        Format::Speedscope => Ok(SampleFormat::Speedscope),
        Format::Pprof => Ok(SampleFormat::Pprof),
        other => Err(cannot_be("sample: samples", file, other)),
    }
}

fn by_ending(file: Option<&Path>) -> Format {
    file.and_then(Format::of_file).unwrap_or_default()
}

fn cannot_be(what: &str, file: Option<&Path>, format: Format) -> Failure {
    let file = file.unwrap_or(Path::new(""));
    Failure::usage(format!(
        "{what} are not written as {}, which the name {file:?} stands for; name another file, or a --format",
        format.name()
    ))
}

fn verbosity(quiet: bool, verbose: u8) -> Verbosity {
    match (quiet, verbose) {
        (true, _) => Verbosity::Quiet,
        (false, 0) => Verbosity::Normal,
        (false, 1) => Verbosity::Verbose,
        (false, _) => Verbosity::Trace,
    }
}

impl AnalysisArgs {
    fn config(&self) -> Result<Config, Failure> {
        self.config
            .as_deref()
            .map_or_else(|| Ok(Config::default()), Config::read)
    }

    fn engine(&self, config: &Config) -> Option<EngineChoice> {
        self.engine.map(EngineChoice::from).or(config.engine)
    }

    fn into_common(self, config: &Config) -> Common {
        let slower = self.slower_than.map(|time| NamedRange::Between(time, None));
        let range = slower.or(self.above).or(self.between);
        // Whole buckets are taken, and a doubling is no answer to a latency.
        let narrow = range.and_then(|_| Resolution::new(8));
        let given = GivenParams {
            start_ops: self.start_ops,
            decision_ops: self.decision_ops,
            max_depth: self.max_depth,
            resolution: self.resolution.or(config.params.resolution).or(narrow),
            peak: if self.ask {
                Some(PeakChoice::Later)
            } else {
                self.peak
            },
        };
        let engine = self.engine(config).unwrap_or_default();
        let output = self.output.or_else(|| config.output.clone());
        let format = self
            .format
            .map(Format::from)
            .or(config.format)
            .or_else(|| output.as_deref().and_then(Format::of_file))
            .unwrap_or_default();
        Common {
            output: output.unwrap_or_else(|| PathBuf::from(format.default_output())),
            format,
            engine,
            params: given.or(config.params),
            range,
            threads: self.thread,
            duration: self.duration.or(config.duration),
            value: self.value,
            asynchronous: self.asynchronous,
            begin: match (self.begin_at, self.begin_on_signal) {
                (Some(function), _) => Some(BeginOption::At(function)),
                (None, true) => Some(BeginOption::OnSignal),
                (None, false) => None,
            },
            end_at: self.end_at,
            verbosity: verbosity(self.quiet, self.verbose),
            log: self.log,
            debuginfod: !self.no_debuginfod,
            preemption: self.preemption.into(),
            budget: self.budget,
            blocks: self.blocks.into(),
            max_sites: self.max_sites,
            looks_on: !self.end_with_answers,
            color: self.color.into(),
        }
    }
}

#[cfg(test)]
mod tests;
