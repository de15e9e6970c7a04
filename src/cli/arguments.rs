//! The command line as clap sees it.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use darc_analysis::values::expression::Expression;
use darc_analysis::{PeakChoice, Resolution};

use super::choices::{
    BlocksArg, ColorArg, DelayByArg, EngineArg, FormatArg, ListingFormatArg, MethodArg, OrderArg,
    PreemptionArg, ProfileFormatArg, SampleFormatArg,
};
use super::examples;
use super::values::{
    parse_async, parse_between, parse_condition, parse_depth, parse_f0, parse_output, parse_part,
    parse_peak, parse_percentile, parse_pid, parse_profile_resolution, parse_resolution,
    parse_share, parse_sites,
};
use crate::duration;
use crate::exit::EXIT_CODES;
use crate::options::{AsyncPath, Condition, NamedRange, Part};
use crate::target_name::{ProcessName, ThreadName};

/// Headings of options that few people need.
const PROCESS: &str = "Which process";
const DECISIONS: &str = "Peaks and decisions";
const MEASURED: &str = "What else is measured";
const WHEN: &str = "When";
const SETTINGS: &str = "Messages and settings";

/// Where the help of a command leads on.
const MORE: &str = "Exit codes: see `darc --help`.";

/// Finds out why some calls of a function are slow, in a running Linux x86-64 process.
///
/// Darc measures a function's latency, shows its distribution, and descends from each peak of the
/// distribution through the calls that cause it, down to the root cause.
#[derive(Parser)]
#[command(name = "darc", version, after_help = EXIT_CODES, subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Analyse a function of a running process
    #[command(before_help = examples::ATTACH, after_help = MORE, override_usage = "darc attach PID|NAME... [--f0 FUNC] [OPTIONS]")]
    Attach {
        /// The process to analyse: its id, its program's name, or a pattern for its title, as in 'nginx: worker*'; several are
        /// analysed side by side
        #[arg(value_name = "PID|NAME", value_parser = ProcessName::parse, conflicts_with = "pid")]
        process: Vec<ProcessName>,
        /// The process, as an option
        #[arg(help_heading = PROCESS, short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: Vec<ProcessName>,
        /// Analyse all processes of that name, side by side
        #[arg(long)]
        all: bool,
        /// The process of a container, a pod or a service: by a part of its control group's path, as the container's id
        #[arg(help_heading = PROCESS, long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        cgroup: Option<String>,
        /// Analyse this one of several processes, for another darc
        #[arg(long, hide = true, value_parser = parse_part)]
        part: Option<Part>,
        /// The function to analyse: a name, LIB:NAME, 0xADDR, FILE:LINE, or a pattern that fits one
        /// function [default: what the busiest threads run]
        #[arg(short = 'f', long, visible_alias = "func", value_name = "FUNC", value_parser = parse_f0)]
        f0: Option<String>,
        /// Put the causes to the test at the end, as darc prove does
        #[arg(long)]
        prove: bool,
        #[command(flatten)]
        analysis: AnalysisArgs,
    },
    /// Start a program and analyse a function of it
    #[command(before_help = examples::RUN, after_help = MORE, override_usage = "darc run [--f0 FUNC] [OPTIONS] -- CMD [ARG]...")]
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
    /// Continue an analysis whose results are in FILE
    #[command(before_help = examples::RESUME, after_help = MORE, override_usage = "darc resume FILE [-p PID | -- CMD [ARG]...] [OPTIONS]")]
    Resume {
        /// A results file of darc
        file: PathBuf,
        /// Analyse this process; without it, without CMD and without either in --config what FILE names is analysed: the
        /// command of `darc run`, the process of `darc attach`
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true,
              conflicts_with = "command")]
        pid: Option<ProcessName>,
        #[command(flatten)]
        analysis: AnalysisArgs,
        /// Compare a fresh profile with the stored one first, and warn when it differs
        #[arg(long)]
        check_profile: bool,
        /// As --check-profile, but do not go on when it differs (exit code 8)
        #[arg(long)]
        strict: bool,
        /// Run this program with these arguments
        #[arg(value_name = "CMD", last = true)]
        command: Vec<OsString>,
    },
    /// Show the latency profiles of many functions, or of system calls
    #[command(before_help = examples::PROFILE, after_help = MORE, override_usage = "darc profile -p PID [OPTIONS] [FUNC]...\n       darc profile [OPTIONS] [FUNC]... -- CMD [ARG]...")]
    Profile {
        #[command(flatten)]
        target: ProfileArgs,
        /// Functions to profile: names, LIB:NAME, 0xADDR, FILE:LINE, patterns, LIB:* [default: all of the
        /// program itself]
        #[arg(value_name = "FUNC", value_parser = parse_f0)]
        functions: Vec<String>,
        /// Run this program with these arguments
        #[arg(value_name = "CMD", last = true)]
        command: Vec<OsString>,
    },
    /// Watch functions of a running process over time, and step into what they call
    #[command(before_help = examples::WATCH, after_help = MORE, override_usage = "darc watch -p PID [--record FILE] [-d TIME] [FUNC]...")]
    Watch {
        /// The process to watch
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: ProcessName,
        /// Functions to begin with: names, LIB:NAME, patterns
        #[arg(value_name = "FUNC", value_parser = parse_f0)]
        functions: Vec<String>,
        /// Write every sample to FILE, one JSON object a line
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
        /// End after TIME, as in 500ms, 2s, 1m
        #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
        duration: Option<Duration>,
    },
    /// Show the results that are in FILE
    #[command(before_help = examples::REPORT, after_help = MORE)]
    Report {
        /// A results file of darc
        file: PathBuf,
        /// The format to show them in [default: by the ending of FILE, else text]
        #[arg(long, value_enum)]
        format: Option<FormatArg>,
        /// Write to FILE instead of stdout
        #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(parse_output))]
        output: Option<PathBuf>,
        /// Show all calls, those with less than 1% of the time too (text and HTML)
        #[arg(long)]
        all: bool,
        /// Write a page, to out.html without -o, and show it in the browser
        #[arg(long)]
        open: bool,
        /// When to use colours
        #[arg(long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
        color: ColorArg,
    },
    /// Compare the results in B with those in A
    #[command(before_help = examples::COMPARE, after_help = MORE)]
    Compare {
        /// The earlier results
        #[arg(value_name = "A")]
        before: PathBuf,
        /// The later results
        #[arg(value_name = "B")]
        after: PathBuf,
        /// What profiles are rated by
        #[arg(long, value_enum, default_value_t = MethodArg::Emd)]
        method: MethodArg,
        /// Exit with code 8 when there is a new peak, or METHOD rates a profile at X or higher; can be
        /// given several times
        #[arg(long, value_name = "new-peak|METHOD=X", value_parser = parse_condition)]
        fail_on: Vec<Condition>,
        /// The format of the comparison
        #[arg(long, value_enum, default_value_t = ListingFormatArg::Text)]
        format: ListingFormatArg,
        /// When to use colours
        #[arg(long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
        color: ColorArg,
    },
    /// List the functions that can be chosen
    #[command(before_help = examples::LIST, after_help = MORE, override_usage = "darc list -p PID [PATTERN] [OPTIONS]\n       darc list FILE [PATTERN] [OPTIONS]")]
    List {
        /// Those of everything that this process has loaded
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: Option<ProcessName>,
        /// A program or library; with -p there is none, and the pattern takes its place
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<OsString>,
        /// A part of the name, or a pattern with * and ? for the whole name
        pattern: Option<OsString>,
        /// The order
        #[arg(long, value_enum, default_value_t = OrderArg::Name)]
        sort: OrderArg,
        /// Also list where the compiler put copies instead of calls
        #[arg(long)]
        inlined: bool,
        /// The format of the list
        #[arg(long, value_enum, default_value_t = ListingFormatArg::Text)]
        format: ListingFormatArg,
    },
    /// Show the progress of an analysis, profile or watch that another darc runs
    #[command(before_help = examples::STATUS, after_help = MORE)]
    Status {
        /// The process that is analysed [default: all that are]
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: Option<ProcessName>,
        /// The format it is shown in
        #[arg(long, value_enum, default_value_t = FormatArg::Text)]
        format: FormatArg,
        /// When to use colours
        #[arg(long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
        color: ColorArg,
    },
    /// Show where programs spend their time, by sampling the program counter
    #[command(before_help = examples::SAMPLE, after_help = MORE, override_usage = "darc sample -p PID [OPTIONS]\n       darc sample -u USER [OPTIONS]\n       darc sample -a [OPTIONS]\n       darc sample [OPTIONS] -- CMD [ARG]...")]
    Sample {
        /// A process, and those that it makes
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true,
              conflicts_with_all = ["user", "all", "command"])]
        pid: Option<ProcessName>,
        /// All processes of a user, by name or number
        #[arg(short, long, value_name = "USER", conflicts_with_all = ["all", "command"])]
        user: Option<String>,
        /// The whole system
        #[arg(short, long, conflicts_with = "command")]
        all: bool,
        /// End after TIME, as in 500ms, 2s, 1m
        #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
        duration: Option<Duration>,
        /// Samples a second of each CPU's time, 1 to 50000
        #[arg(long, value_name = "HZ", default_value = "999", value_parser = clap::value_parser!(u32).range(1..=50_000))]
        rate: u32,
        /// Count only samples that fall into ops of this peak of f0; 1 is the one with the shortest latencies
        #[arg(long, value_name = "N", requires = "f0", conflicts_with_all = ["user", "all"],
              value_parser = clap::value_parser!(u32).range(1..))]
        during_peak: Option<u32>,
        /// The function whose calls are the ops, for --during-peak
        #[arg(long, value_name = "FUNC", requires = "during_peak")]
        f0: Option<String>,
        /// The format of the result [default: by FILE's ending, else text]
        #[arg(long, value_enum)]
        format: Option<SampleFormatArg>,
        /// Write to FILE instead of stdout (stderr for a CMD)
        #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(parse_output))]
        output: Option<PathBuf>,
        /// A program to start, and its arguments
        #[arg(value_name = "CMD", last = true)]
        command: Vec<OsString>,
    },
    /// Remove what a killed darc left: its probes in a process, its tracing in the kernel
    Cleanup {
        /// The process; without one only the tracing is removed
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: Option<ProcessName>,
        /// The file that its results were to go to: what it did not put in place is looked for in that folder [default: the current one]
        #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(parse_output))]
        output: Option<PathBuf>,
    },
    /// Report what works on this machine, and how to get the rest
    #[command(before_help = examples::DOCTOR, after_help = MORE)]
    Doctor {
        /// A program or library whose symbols and calls are looked at too
        #[arg(conflicts_with = "pid")]
        file: Option<PathBuf>,
        /// A process whose calls are looked at too
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: Option<ProcessName>,
        /// The format of what is said
        #[arg(long, value_enum, default_value_t = ListingFormatArg::Text)]
        format: ListingFormatArg,
    },
    /// Write the completion script for a shell to stdout
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual page of darc, or of one of its commands, to stdout
    Man {
        /// The command
        command: Option<String>,
    },
    /// Put the causes in FILE to the test: make their calls longer now and then, and see what becomes longer
    #[command(before_help = examples::PROVE, after_help = MORE)]
    Prove {
        /// A results file of darc
        file: PathBuf,
        /// The process [default: that of the results]
        #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true)]
        pid: Option<ProcessName>,
        /// Test the causes of this peak only
        #[arg(long, value_name = "N")]
        peak: Option<NonZeroU32>,
        /// Test FUNC, wherever the results have calls of it or on other threads, instead of the causes that were found; can
        /// be given several times
        #[arg(long, value_name = "FUNC")]
        cause: Vec<String>,
        /// Test what darc's own probes do to each peak
        #[arg(long, conflicts_with_all = ["budget", "delay", "delay_by", "in_allocator"])]
        self_check: bool,
        /// The longest time to test one cause
        #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true, default_value = "10s")]
        time: Duration,
        /// Delay a call by so much at most
        #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true, default_value = "10ms")]
        delay: Duration,
        /// Let all delays together take this part of the time at most
        #[arg(long, value_name = "PERCENT", value_parser = parse_share, default_value = "2%")]
        budget: f64,
        /// What a thread does while its call is delayed
        #[arg(long, value_enum, default_value_t = DelayByArg::Spin, value_name = "HOW")]
        delay_by: DelayByArg,
        /// Delay calls also where the C library's allocator may hold a lock
        #[arg(long)]
        in_allocator: bool,
        /// The format of the answer
        #[arg(long, value_enum, default_value_t = ListingFormatArg::Text)]
        format: ListingFormatArg,
    },
    /// Analyse a program that comes with darc, to see how it works
    #[command(before_help = examples::DEMO, after_help = MORE)]
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
pub(super) struct F0Arg {
    /// The function to analyse: a name, LIB:NAME, 0xADDR, FILE:LINE, or a pattern that fits one
    /// function [default: main]
    #[arg(short = 'f', long, visible_alias = "func", value_name = "FUNC", value_parser = parse_f0)]
    pub(super) f0: Option<String>,
}

#[derive(Args)]
pub(super) struct ProfileArgs {
    /// The process to profile
    #[arg(short, long, value_name = "PID|NAME", value_parser = ProcessName::parse, allow_hyphen_values = true,
          conflicts_with = "command")]
    pub(super) pid: Option<ProcessName>,
    /// Profile everything that FUNC calls; can be given several times
    #[arg(long, value_name = "FUNC", value_parser = parse_f0)]
    pub(super) callees_of: Vec<String>,
    /// Profile system calls instead of functions; needs the kernel's tracepoints
    #[arg(long, conflicts_with_all = ["functions", "callees_of"])]
    pub(super) syscalls: bool,
    /// End after TIME, as in 500ms, 2s, 1m [default: with the target, or with Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(super) duration: Option<Duration>,
    /// Begin a new profile every TIME, and show them over time
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(super) interval: Option<Duration>,
    /// Buckets per doubling of the latency, 1 to 8
    #[arg(long, value_name = "R", value_parser = parse_profile_resolution, default_value = "1")]
    pub(super) resolution: Resolution,
    /// Write the profiles to FILE
    #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(parse_output))]
    pub(super) output: Option<PathBuf>,
    /// The format of FILE, or without FILE of what is shown [default: by FILE's ending, else text]
    #[arg(long, value_enum)]
    pub(super) format: Option<ProfileFormatArg>,
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Log what darc decides (-vv: every op and stop)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// Write the log to FILE, not to stderr
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// When to use colours
    #[arg(long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
    pub(super) color: ColorArg,
}

#[derive(Args)]
pub(super) struct AnalysisArgs {
    /// Write the results to FILE [default: out.txt; by format: out.html, out.svg, …]
    #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(parse_output))]
    pub(super) output: Option<PathBuf>,
    /// Analyse peak N only, or all [default: all]
    #[arg(help_heading = DECISIONS, long, value_name = "N|all", value_parser = parse_peak)]
    pub(super) peak: Option<PeakChoice>,
    /// Analyse the calls that take longer, as in 1ms
    #[arg(long, value_name = "TIME", value_parser = duration::parse, group = "range", conflicts_with_all = ["peak", "ask"])]
    pub(super) slower_than: Option<Duration>,
    /// Analyse the slowest ops, as in p99 or p99.9
    #[arg(help_heading = DECISIONS, long, value_name = "pN", value_parser = parse_percentile, group = "range", conflicts_with_all = ["peak", "ask"])]
    pub(super) above: Option<NamedRange>,
    /// Analyse the ops between two latencies, as in 1ms..5ms
    #[arg(help_heading = DECISIONS, long, value_name = "A..B", value_parser = parse_between, group = "range", conflicts_with_all = ["peak", "ask"])]
    pub(super) between: Option<NamedRange>,
    /// Show the peaks and ask which one to analyse
    #[arg(help_heading = DECISIONS, long, conflicts_with = "peak")]
    pub(super) ask: bool,
    /// Ops collected before peaks are looked for [default: 100]
    #[arg(help_heading = DECISIONS, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) start_ops: Option<u64>,
    /// The fewest ops of a peak that decide; at most 20 times as many are waited for [default: 20]
    #[arg(help_heading = DECISIONS, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) decision_ops: Option<u64>,
    /// The longest root-cause path, f0 included [default: 32]
    #[arg(help_heading = DECISIONS, long, value_name = "N", value_parser = parse_depth)]
    pub(super) max_depth: Option<usize>,
    /// Buckets per doubling of the latency, 1 to 16 [default: 2]
    #[arg(help_heading = DECISIONS, long, value_name = "R", value_parser = parse_resolution)]
    pub(super) resolution: Option<Resolution>,
    /// End the analysis after TIME, as in 500ms, 2s, 1m, counted from the first probe
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(super) duration: Option<Duration>,
    /// How calls are measured [default: jump]
    #[arg(help_heading = MEASURED, long, value_enum)]
    pub(super) engine: Option<EngineArg>,
    /// Measure the calls of these threads only: by id, by name, or by a pattern such as 'worker*'; can be given several times
    #[arg(help_heading = MEASURED, long, value_name = "NAME|TID", value_parser = ThreadName::parse)]
    pub(super) thread: Vec<ThreadName>,
    /// Correlate the peaks with arg1 to arg6, or arg2&0xff, arg1>>12, arg3%64, *(arg1+8) [default: all six]
    #[arg(help_heading = MEASURED, long, value_name = "EXPR", value_parser = Expression::parse)]
    pub(super) value: Option<Expression>,
    /// Follow requests from f0 to the thread that serves them: 'enqueue=FUNC:EXPR;serve=FUNC:EXPR'
    #[arg(help_heading = MEASURED, long = "async", value_name = "PATH", value_parser = parse_async)]
    pub(super) asynchronous: Option<AsyncPath>,
    /// Begin when the program calls FUNC, or SIGUSR1 reaches darc
    #[arg(help_heading = WHEN, long, value_name = "FUNC", value_parser = parse_f0)]
    pub(super) begin_at: Option<String>,
    /// Begin when SIGUSR1 reaches darc
    #[arg(help_heading = WHEN, long, conflicts_with = "begin_at")]
    pub(super) begin_on_signal: bool,
    /// End when the program calls FUNC, or SIGUSR2 reaches darc
    #[arg(help_heading = WHEN, long, value_name = "FUNC", value_parser = parse_f0)]
    pub(super) end_at: Option<String>,
    /// The format of FILE [default: by its ending, else text]
    #[arg(help_heading = SETTINGS, long, value_enum)]
    pub(super) format: Option<FormatArg>,
    /// Read options from FILE (TOML); the command line wins
    #[arg(help_heading = SETTINGS, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(help_heading = SETTINGS, short, long, conflicts_with_all = ["verbose", "ask"])]
    pub(super) quiet: bool,
    /// Log what darc decides (-vv: every op and stop)
    #[arg(help_heading = SETTINGS, short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// Write the log to FILE, not to stderr
    #[arg(help_heading = SETTINGS, long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Ask no server of DEBUGINFOD_URLS for the symbols of stripped files
    #[arg(help_heading = SETTINGS, long)]
    pub(super) no_debuginfod: bool,
    /// How far to narrow down the function at a path's end
    #[arg(help_heading = MEASURED, long, value_enum, default_value_t = BlocksArg::Left, value_name = "WHEN")]
    pub(super) blocks: BlocksArg,
    /// Measure the calls of a function with more than N block by block, at most N at once for a peak
    #[arg(help_heading = MEASURED, long, value_name = "N", value_parser = parse_sites)]
    pub(super) max_sites: Option<usize>,
    /// End with the answers of the first ops, and look for no others
    #[arg(long, hide = true)]
    pub(super) end_with_answers: bool,
    /// Where to count the time in which a thread was ready but another one ran
    #[arg(help_heading = DECISIONS, long, value_enum, default_value_t = PreemptionArg::Apart, value_name = "WHERE")]
    pub(super) preemption: PreemptionArg,
    /// The largest share of a processor that measuring may take in the long run, as in 1%; beyond it fewer ops are measured [default: 3%]
    #[arg(help_heading = MEASURED, long, value_name = "PERCENT", value_parser = parse_share)]
    pub(super) budget: Option<f64>,
    /// When to use colours
    #[arg(help_heading = SETTINGS, long, value_enum, default_value_t = ColorArg::Auto, value_name = "WHEN")]
    pub(super) color: ColorArg,
}
