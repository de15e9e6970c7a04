//! The command line: clap's types live here and nowhere else; what leaves is an [`Invocation`].

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::analysis::{PeakChoice, Resolution};
use crate::config::Config;
use crate::exit::{EXIT_CODES, Failure};
use crate::options::{
    AttachOptions, ColorChoice, Common, DEFAULT_F0, DEFAULT_OUTPUT, DemoOptions, EngineChoice,
    Format, GivenParams, GuardianOptions, Invocation, ReportOptions, ResumeOptions, ResumeTarget,
    RunOptions, Verbosity,
};
use crate::{duration, target_name};

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
        Ok(cli) => Ok(cli.command.into_invocation()?),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Err(Stop::Show(error.render().to_string()))
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                Err(Failure::usage(
                    "usage: no command was given; try `darc --help`, or `darc demo`",
                )
                .into())
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

/// Finds out why some calls of a function are slow, in a running Linux x86-64 process.
///
/// Darc measures a function's latency, shows its distribution, and descends from each peak of the
/// distribution through the calls that cause it, down to the root cause.
#[derive(Parser)]
#[command(name = "darc", version, after_help = EXIT_CODES, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Analyse a function of a running process
    #[command(after_help = EXIT_CODES, override_usage = "darc attach -p PID [--f0 FUNC] [OPTIONS]")]
    Attach {
        /// The process to analyse
        #[arg(short, long, value_name = "PID", value_parser = parse_pid, allow_hyphen_values = true)]
        pid: Option<i32>,
        #[command(flatten)]
        f0: F0Arg,
        #[command(flatten)]
        analysis: AnalysisArgs,
    },
    /// Start a program and analyse a function of it
    #[command(after_help = EXIT_CODES, override_usage = "darc run [--f0 FUNC] [OPTIONS] -- CMD [ARG]...")]
    Run {
        #[command(flatten)]
        f0: F0Arg,
        /// Run the program N times, until the causes are found
        #[arg(long, value_name = "N", default_value = "1")]
        repeat: NonZeroU32,
        #[command(flatten)]
        analysis: AnalysisArgs,
        /// The program and its arguments
        #[arg(value_name = "CMD", trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// Go on with an analysis whose results are in FILE
    #[command(after_help = EXIT_CODES, override_usage = "darc resume FILE [-p PID | -- CMD [ARG]...] [OPTIONS]")]
    Resume {
        /// A results file of darc
        file: PathBuf,
        /// Analyse this process; without it and without CMD the command in FILE is run
        #[arg(short, long, value_name = "PID", value_parser = parse_pid, allow_hyphen_values = true,
              conflicts_with = "command")]
        pid: Option<i32>,
        #[command(flatten)]
        analysis: AnalysisArgs,
        /// Run this program with these arguments
        #[arg(value_name = "CMD", last = true)]
        command: Vec<OsString>,
    },
    /// Show the results that are in FILE
    #[command(after_help = EXIT_CODES)]
    Report {
        /// A results file of darc
        file: PathBuf,
        /// The format to show them in
        #[arg(long, value_enum, default_value_t = FormatArg::Text)]
        format: FormatArg,
        /// Write to FILE instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Use colours
        #[arg(long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
        color: ColorArg,
    },
    /// Analyse a program that comes with darc, to see how it works
    #[command(after_help = EXIT_CODES)]
    Demo {
        #[command(flatten)]
        analysis: AnalysisArgs,
    },
    #[command(hide = true)]
    DemoTarget,
    #[command(hide = true)]
    Guardian {
        #[arg(long, value_parser = parse_pid)]
        pid: i32,
        #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
        ledger_fd: i32,
        #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
        life_fd: i32,
    },
}

#[derive(Args)]
struct F0Arg {
    /// The function to analyse: a name, LIB:NAME, 0xADDR, FILE:LINE, or a pattern that fits one
    /// function [default: main]
    #[arg(long, value_name = "FUNC", value_parser = parse_f0)]
    f0: Option<String>,
}

#[derive(Args)]
struct AnalysisArgs {
    /// Write the results to FILE [default: out.txt]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The format of FILE [default: text]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// How calls are measured [default: int3]
    #[arg(long, value_enum)]
    engine: Option<EngineArg>,
    /// Analyse peak N only, or all [default: all]
    #[arg(long, value_name = "N|all", value_parser = parse_peak)]
    peak: Option<PeakChoice>,
    /// Show the peaks and ask which one to analyse
    #[arg(long, conflicts_with = "peak")]
    ask: bool,
    /// Ops collected before peaks are looked for [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    start_ops: Option<u64>,
    /// Ops inside a peak between two decisions [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    decision_ops: Option<u64>,
    /// A callee is a root cause from this part of the largest maxcount on, 0 to 1 [default: 0.9]
    #[arg(long, value_name = "X", value_parser = parse_fraction, allow_hyphen_values = true)]
    maxcount_percentage: Option<f64>,
    /// The longest root-cause path, f0 included [default: 16]
    #[arg(long, value_name = "N", value_parser = parse_depth)]
    max_depth: Option<usize>,
    /// Buckets per doubling of the latency, 1 to 16 [default: 1]
    #[arg(long, value_name = "R", value_parser = parse_resolution)]
    resolution: Option<Resolution>,
    /// End the analysis after TIME, as in 500ms, 2s, 1m
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    duration: Option<Duration>,
    /// Read options from FILE (TOML); the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(short, long, conflicts_with_all = ["verbose", "ask"])]
    quiet: bool,
    /// Say what is done; twice: every event
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Use colours
    #[arg(long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
    color: ColorArg,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatArg {
    Text,
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
enum EngineArg {
    /// Breakpoints: works everywhere, slow
    Int3,
    /// Jumps to stubs in the target: fast
    Jump,
}

#[derive(Clone, Copy, ValueEnum)]
enum ColorArg {
    Auto,
    Always,
    Never,
}

impl Command {
    fn into_invocation(self) -> Result<Invocation, Failure> {
        Ok(match self {
            Command::Attach { pid, f0, analysis } => {
                let config = analysis.config()?;
                Invocation::Attach(AttachOptions {
                    pid: attach_pid(pid, &config)?,
                    f0: f0
                        .f0
                        .or_else(|| config.f0.clone())
                        .unwrap_or_else(|| DEFAULT_F0.to_owned()),
                    common: analysis.into_common(&config),
                })
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
                    ));
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
                command,
            } => {
                let config = analysis.config()?;
                let target = match pid {
                    Some(pid) => ResumeTarget::Pid(pid),
                    None if command.is_empty() => ResumeTarget::FromFile,
                    None => ResumeTarget::Command(command),
                };
                Invocation::Resume(ResumeOptions {
                    file,
                    target,
                    common: analysis.into_common(&config),
                })
            }
            Command::Report {
                file,
                format,
                output,
                color,
            } => Invocation::Report(ReportOptions {
                file,
                format: format.into(),
                output,
                color: color.into(),
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

fn attach_pid(given: Option<i32>, config: &Config) -> Result<i32, Failure> {
    match (given.or(config.pid), &config.program) {
        (Some(pid), _) => Ok(pid),
        (None, Some(program)) => target_name::find(program),
        (None, None) => Err(Failure::usage(
            "attach: no process was given; name it with -p PID",
        )),
    }
}

impl AnalysisArgs {
    fn config(&self) -> Result<Config, Failure> {
        self.config
            .as_deref()
            .map_or_else(|| Ok(Config::default()), Config::read)
    }

    fn into_common(self, config: &Config) -> Common {
        let given = GivenParams {
            start_ops: self.start_ops,
            decision_ops: self.decision_ops,
            maxcount_percentage: self.maxcount_percentage,
            max_depth: self.max_depth,
            resolution: self.resolution,
            peak: if self.ask {
                Some(PeakChoice::Later)
            } else {
                self.peak
            },
        };
        Common {
            output: self
                .output
                .or_else(|| config.output.clone())
                .unwrap_or_else(|| PathBuf::from(DEFAULT_OUTPUT)),
            format: self
                .format
                .map(Format::from)
                .or(config.format)
                .unwrap_or_default(),
            engine: self
                .engine
                .map(EngineChoice::from)
                .or(config.engine)
                .unwrap_or_default(),
            params: given.or(config.params),
            duration: self.duration.or(config.duration),
            verbosity: match (self.quiet, self.verbose) {
                (true, _) => Verbosity::Quiet,
                (false, 0) => Verbosity::Normal,
                (false, 1) => Verbosity::Verbose,
                (false, _) => Verbosity::Trace,
            },
            color: self.color.into(),
        }
    }
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Text => Format::Text,
            FormatArg::Json => Format::Json,
        }
    }
}

impl From<EngineArg> for EngineChoice {
    fn from(engine: EngineArg) -> Self {
        match engine {
            EngineArg::Int3 => EngineChoice::Int3,
            EngineArg::Jump => EngineChoice::Jump,
        }
    }
}

impl From<ColorArg> for ColorChoice {
    fn from(color: ColorArg) -> Self {
        match color {
            ColorArg::Auto => ColorChoice::Auto,
            ColorArg::Always => ColorChoice::Always,
            ColorArg::Never => ColorChoice::Never,
        }
    }
}

fn parse_pid(text: &str) -> Result<i32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(pid @ 1..) if digits => Ok(pid),
        _ => Err("not a process id, which is a whole number from 1 on".to_owned()),
    }
}

fn parse_f0(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("not a function's name".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

fn parse_peak(text: &str) -> Result<PeakChoice, String> {
    match text.parse() {
        _ if text == "all" => Ok(PeakChoice::All),
        Ok(number @ 1..) => Ok(PeakChoice::One(number)),
        _ => Err("neither a peak's number, from 1 on, nor `all`".to_owned()),
    }
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("not a number between 0 and 1".to_owned()),
    }
}

fn parse_depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(depth @ 1..) => Ok(depth),
        _ => Err("not a whole number from 1 on".to_owned()),
    }
}

fn parse_resolution(text: &str) -> Result<Resolution, String> {
    let resolution = text.parse().ok().and_then(Resolution::new);
    resolution.ok_or_else(|| format!("not a whole number between 1 and {}", Resolution::MAX))
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
