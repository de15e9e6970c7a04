//! What the subcommands are told that measure many functions, or none.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use darc_analysis::Resolution;

use super::{ColorChoice, Format, Verbosity};

/// `darc profile`: latency profiles of many functions, or of system calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileOptions {
    /// What is measured.
    pub target: ProfileTarget,
    /// Whose calls.
    pub what: ProfileOf,
    /// How often a profile of its own begins.
    pub interval: Option<Duration>,
    /// How long to measure; never zero.
    pub duration: Option<Duration>,
    /// Buckets per doubling of the latency.
    pub resolution: Resolution,
    /// The file that results are written to.
    pub output: Option<PathBuf>,
    /// Their format.
    pub format: Format,
    /// How much is said on stderr.
    pub verbosity: Verbosity,
    /// The file that the log is written to, in the place of stderr.
    pub log: Option<PathBuf>,
    /// Whether colours are used.
    pub color: ColorChoice,
}

/// `darc watch`: functions over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchOptions {
    /// The process, greater than 0.
    pub pid: i32,
    /// The functions to begin with, as the person named them.
    pub functions: Vec<String>,
    /// The file that samples are written to.
    pub record: Option<PathBuf>,
    /// How long to watch; never zero.
    pub duration: Option<Duration>,
}

/// The process that is profiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProfileTarget {
    /// A running one.
    Pid(i32),
    /// This program with these arguments; never empty.
    Command(Vec<OsString>),
}

/// Whose calls are profiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProfileOf {
    /// Functions.
    Functions {
        /// Names and patterns, as the person typed them.
        named: Vec<String>,
        /// Functions all of whose callees are meant.
        callees_of: Vec<String>,
    },
    /// System calls.
    SystemCalls,
}

/// `darc sample`: where programs spend their time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SampleOptions {
    /// What is sampled.
    pub target: SampleTarget,
    /// When it ends by itself; never zero.
    pub duration: Option<Duration>,
    /// Samples a second of a CPU's time; never zero.
    pub rate: u32,
    /// Whether only samples in ops of one peak count.
    pub during: Option<DuringPeak>,
    /// The format of the result.
    pub format: SampleFormat,
    /// Where to: stdout when `None`, or stderr where stdout belongs to the target.
    pub output: Option<PathBuf>,
}

/// Which ops samples must fall into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DuringPeak {
    /// The function whose calls are the ops, as the person named it.
    pub f0: String,
    /// The peak of its latencies, from 1 on.
    pub peak: u32,
}

/// What is sampled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SampleTarget {
    /// A process, and those that it makes.
    Pid(i32),
    /// All processes of a user, by name or number.
    User(String),
    /// Everything.
    System,
    /// This program with these arguments, and the processes that it makes; never empty.
    Command(Vec<OsString>),
}

/// How the samples of `darc sample` are shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SampleFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// Folded stacks, for flame graphs.
    Folded,
    /// For speedscope.
    Speedscope,
    /// For pprof.
    Pprof,
}

impl SampleFormat {
    /// Whether functions that an interpreter runs are told beside the program's own.
    #[must_use]
    pub fn tells_interpreted(self) -> bool {
        matches!(self, SampleFormat::Text | SampleFormat::Json)
    }
}
