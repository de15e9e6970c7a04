//! What the person asked for, as plain values: nothing of the command line's parser is left in them.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use crate::listing::Query;
use darc_analysis::values::expression::Expression;
use darc_analysis::{Hz, Params, PeakChoice, Range, Resolution, Ticks};
pub use darc_report::Format;
pub use darc_report::difference::{Condition, Method};

/// The function that is analysed when none is named.
pub const DEFAULT_F0: &str = "main";

/// One invocation of darc.
#[derive(Clone, PartialEq, Debug)]
pub enum Invocation {
    /// `darc run`
    Run(RunOptions),
    /// `darc attach`
    Attach(AttachOptions),
    /// `darc resume`
    Resume(ResumeOptions),
    /// `darc profile`
    Profile(ProfileOptions),
    /// `darc watch`
    Watch(WatchOptions),
    /// `darc report`
    Report(ReportOptions),
    /// `darc compare`
    Compare(CompareOptions),
    /// `darc list`
    List(ListOptions),
    /// `darc sample`
    Sample(SampleOptions),
    /// `darc doctor`
    Doctor(DoctorOptions),
    /// `darc status`
    Status(StatusOptions),
    /// `darc cleanup`: take away what a killed darc left in this process.
    Cleanup(i32),
    /// `darc prove`
    Prove(ProveOptions),
    /// `darc demo`
    Demo(DemoOptions),
    /// The program that `darc demo` analyses.
    DemoTarget,
    /// The process that restores the target's code should darc be killed.
    Guardian(GuardianOptions),
}

impl Invocation {
    /// The file that the log is written to.
    #[must_use]
    pub fn log(&self) -> Option<&Path> {
        match self {
            Invocation::Profile(options) => options.log.as_deref(),
            _ => self.common().and_then(|common| common.log.as_deref()),
        }
    }

    /// How much is said on stderr.
    #[must_use]
    pub fn verbosity(&self) -> Verbosity {
        match self {
            Invocation::Profile(options) => options.verbosity,
            _ => self
                .common()
                .map_or(Verbosity::Normal, |common| common.verbosity),
        }
    }

    /// Whether a failure is also written to stdout, as JSON: when that format was asked for, and
    /// stdout does not belong to the target.
    #[must_use]
    pub fn failures(&self) -> FailureFormat {
        let owns_stdout = match self {
            Invocation::Run(_)
            | Invocation::Demo(_)
            | Invocation::DemoTarget
            | Invocation::Guardian(_) => false,
            Invocation::Resume(options) => matches!(options.target, ResumeTarget::Pid(_)),
            Invocation::Attach(_) | Invocation::Watch(_) | Invocation::Prove(_) => true,
            Invocation::Profile(options) => matches!(options.target, ProfileTarget::Pid(_)),
            Invocation::Report(options) => options.output.is_none(),
            Invocation::Sample(options) => {
                options.output.is_none() && !matches!(options.target, SampleTarget::Command(_))
            }
            Invocation::Compare(_)
            | Invocation::List(_)
            | Invocation::Doctor(_)
            | Invocation::Status(_)
            | Invocation::Cleanup(_) => true,
        };
        let format = match self {
            Invocation::Report(options) => options.format,
            Invocation::Profile(options) => options.format,
            Invocation::Compare(options) => options.format.into(),
            Invocation::List(options) => options.format.into(),
            Invocation::Sample(options) if options.format == SampleFormat::Json => Format::Json,
            Invocation::Doctor(options) => options.format.into(),
            Invocation::Status(options) => options.format,
            Invocation::Prove(options) => options.format.into(),
            _ => self.common().map_or(Format::Text, |common| common.format),
        };
        if owns_stdout && format == Format::Json {
            FailureFormat::LineAndJson
        } else {
            FailureFormat::Line
        }
    }

    fn common(&self) -> Option<&Common> {
        match self {
            Invocation::Run(options) => Some(&options.common),
            Invocation::Attach(options) => Some(&options.common),
            Invocation::Resume(options) => Some(&options.common),
            Invocation::Demo(options) => Some(&options.common),
            Invocation::Report(_)
            | Invocation::Watch(_)
            | Invocation::Profile(_)
            | Invocation::Compare(_)
            | Invocation::List(_)
            | Invocation::Sample(_)
            | Invocation::Doctor(_)
            | Invocation::Status(_)
            | Invocation::Cleanup(_)
            | Invocation::Prove(_)
            | Invocation::DemoTarget
            | Invocation::Guardian(_) => None,
        }
    }
}

/// How a failure is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureFormat {
    /// One line on stderr.
    Line,
    /// The same, and one JSON object on stdout.
    LineAndJson,
}

/// `darc run`: start a program and analyse a function of it.
#[derive(Clone, PartialEq, Debug)]
pub struct RunOptions {
    /// The program and its arguments; never empty.
    pub command: Vec<OsString>,
    /// How often the program is run.
    pub repeat: NonZeroU32,
    /// The function, as the person named it.
    pub f0: String,
    /// What all analyses have.
    pub common: Common,
}

/// `darc attach`: analyse a function of a running process.
#[derive(Clone, PartialEq, Debug)]
pub struct AttachOptions {
    /// The process, greater than 0.
    pub pid: i32,
    /// The function, as the person named it; none for what the threads began with.
    pub f0: Option<String>,
    /// Whether the causes are put to the test at the end.
    pub prove: bool,
    /// What all analyses have.
    pub common: Common,
}

/// `darc resume`: go on with an analysis that a file holds.
#[derive(Clone, PartialEq, Debug)]
pub struct ResumeOptions {
    /// The file with the earlier results.
    pub file: PathBuf,
    /// What is analysed.
    pub target: ResumeTarget,
    /// The function that the configuration names; the one in the results is analysed.
    pub f0: Option<String>,
    /// Whether a fresh profile is compared with the stored one first.
    pub check: Option<ProfileCheck>,
    /// What all analyses have.
    pub common: Common,
}

/// What a profile that differs from the stored one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileCheck {
    /// A warning.
    Warn,
    /// A reason not to go on.
    Strict,
}

/// The target of a resumed analysis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResumeTarget {
    /// The command that the file records.
    FromFile,
    /// A running process.
    Pid(i32),
    /// This program with these arguments; never empty.
    Command(Vec<OsString>),
}

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

/// `darc report`: show results that a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportOptions {
    /// The file with the results.
    pub file: PathBuf,
    /// The format they are shown in.
    pub format: Format,
    /// Where to: stdout when `None`.
    pub output: Option<PathBuf>,
    /// Whether calls with little of the time are shown, too.
    pub all: bool,
    /// Whether colours are used.
    pub color: ColorChoice,
}

/// `darc compare`: how two results differ.
#[derive(Clone, PartialEq, Debug)]
pub struct CompareOptions {
    /// The file with the earlier results.
    pub before: PathBuf,
    /// The file with the later results.
    pub after: PathBuf,
    /// What profiles are rated by.
    pub method: Method,
    /// What makes the exit code tell.
    pub fail_on: Vec<Condition>,
    /// The format of the comparison.
    pub format: ListingFormat,
    /// Whether colours are used.
    pub color: ColorChoice,
}

/// `darc list`: the functions that can be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListOptions {
    /// Whose functions.
    pub source: ListSource,
    /// Which, and how.
    pub query: Query,
    /// The format of the list.
    pub format: ListingFormat,
}

/// Whose functions are listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListSource {
    /// Those of everything that a process has loaded.
    Pid(i32),
    /// Those of a program or library.
    File(PathBuf),
}

/// `darc status`: where an analysis stands that another darc conducts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusOptions {
    /// The process that is analysed; all when `None`.
    pub pid: Option<i32>,
    /// The format it is shown in.
    pub format: Format,
    /// Whether colours are used.
    pub color: ColorChoice,
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

/// `darc doctor`: what works on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoctorOptions {
    /// What is looked at beside the machine.
    pub subject: Subject,
    /// The format of what is said.
    pub format: ListingFormat,
}

/// What `darc doctor` looks at beside the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Nothing.
    Machine,
    /// A program or library.
    File(PathBuf),
    /// All that a process has mapped.
    Process(i32),
}

/// The format of what is not the report of an analysis.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ListingFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

impl From<ListingFormat> for Format {
    fn from(format: ListingFormat) -> Self {
        match format {
            ListingFormat::Text => Format::Text,
            ListingFormat::Json => Format::Json,
        }
    }
}

/// `darc prove`: put the causes that were found to the test.
#[derive(Clone, PartialEq, Debug)]
pub struct ProveOptions {
    /// The results with the causes.
    pub file: PathBuf,
    /// The process; none for that of the results.
    pub pid: Option<i32>,
    /// What is tried, and how.
    pub trials: Trials,
    /// The format of the answer.
    pub format: ListingFormat,
}

/// How causes are put to the test.
#[derive(Clone, PartialEq, Debug)]
pub struct Trials {
    /// The peak whose causes are tested; none for all.
    pub peak: Option<u32>,
    /// Functions that are tested instead of the causes that were found.
    pub causes: Vec<String>,
    /// Whether darc's own probes are tested in their place.
    pub self_check: bool,
    /// For so long each is tried at most.
    pub time: Duration,
    /// The longest delay of a call.
    pub delay: Duration,
    /// The part of the time that delays may take, 0 to 1.
    pub budget: f64,
    /// What a thread does meanwhile.
    pub delay_by: DelayBy,
    /// Whether calls are delayed where the C library's allocator may hold a lock.
    pub in_allocator: bool,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials {
            peak: None,
            causes: Vec::new(),
            self_check: false,
            time: Duration::from_secs(10),
            delay: Duration::from_millis(10),
            budget: 0.02,
            delay_by: DelayBy::Spin,
            in_allocator: false,
        }
    }
}

/// What a thread does while its call is delayed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DelayBy {
    /// It works.
    #[default]
    Spin,
    /// It sleeps.
    Sleep,
}

/// `darc demo`: analyse a program that comes with darc.
#[derive(Clone, PartialEq, Debug)]
pub struct DemoOptions {
    /// What all analyses have.
    pub common: Common,
}

/// `darc guardian`, which darc starts by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardianOptions {
    /// The target.
    pub pid: i32,
    /// The inherited descriptor of the list of patched bytes.
    pub ledger_fd: i32,
    /// The inherited descriptor that reaches its end when darc dies.
    pub life_fd: i32,
}

/// What the analysis waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BeginOption {
    /// A call of this function, or SIGUSR1.
    At(String),
    /// SIGUSR1.
    OnSignal,
}

/// A path from f0 to another thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsyncPath {
    /// Where a request is handed over.
    pub enqueue: AsyncEnd,
    /// Where it is served.
    pub serve: AsyncEnd,
}

/// One end of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsyncEnd {
    /// The function, as the person named it.
    pub function: String,
    /// What identifies the request.
    pub object: Expression,
}

/// What all analyses have.
#[derive(Clone, PartialEq, Debug)]
pub struct Common {
    /// The file that results are written to.
    pub output: PathBuf,
    /// Their format.
    pub format: Format,
    /// How calls are measured.
    pub engine: EngineChoice,
    /// The parameters that were given; the others come from a resumed file, or the defaults.
    pub params: GivenParams,
    /// The ops that are the one peak.
    pub range: Option<NamedRange>,
    /// When the analysis ends by itself; never zero.
    pub duration: Option<Duration>,
    /// What is computed from f0's arguments in the place of the arguments themselves.
    pub value: Option<Expression>,
    /// What f0 hands to other threads.
    pub asynchronous: Option<AsyncPath>,
    /// What the analysis waits for; it begins at once when `None`.
    pub begin: Option<BeginOption>,
    /// The function whose call ends it.
    pub end_at: Option<String>,
    /// How much is said on stderr.
    pub verbosity: Verbosity,
    /// The file that the log is written to, in the place of stderr.
    pub log: Option<PathBuf>,
    /// What becomes of time in which another thread ran.
    pub preemption: Preemption,
    /// What measuring may take of a processor in the long run: 0.01 is a hundredth.
    pub budget: Option<f64>,
    /// Whether functions are narrowed.
    pub blocks: Blocks,
    /// More calls of a function than this are measured block by block; greater than 0.
    pub max_sites: Option<usize>,
    /// Whether others are looked for when the first answers are there, and hold most of the time.
    pub looks_on: bool,
    /// Whether colours are used.
    pub color: ColorChoice,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            output: PathBuf::from(Format::default().default_output()),
            format: Format::default(),
            engine: EngineChoice::default(),
            params: GivenParams::default(),
            range: None,
            duration: None,
            value: None,
            asynchronous: None,
            begin: None,
            end_at: None,
            verbosity: Verbosity::default(),
            log: None,
            preemption: Preemption::default(),
            budget: None,
            blocks: Blocks::default(),
            max_sites: None,
            looks_on: true,
            color: ColorChoice::default(),
        }
    }
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
}

/// How calls are measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum EngineChoice {
    /// Breakpoints: works at every site, slow.
    Int3,
    /// Jumps to stubs in the target: no traps.
    #[default]
    Jump,
}

/// What becomes of time in which a thread was ready and another one ran.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Preemption {
    /// It is taken out of functions and is a contributor of its own.
    #[default]
    Apart,
    /// It counts as time of the function that it struck.
    Counted,
}

/// Whether the functions at the paths' ends are narrowed to loops, blocks and lines.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Blocks {
    /// They are the answer.
    #[default]
    Left,
    /// When all paths have ended.
    After,
    /// So they are, and the calls of each function are measured block by block.
    First,
}

/// How much is said on stderr.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Verbosity {
    /// Nothing but errors.
    Quiet,
    /// Progress and warnings.
    #[default]
    Normal,
    /// What darc does, too.
    Verbose,
    /// Every event.
    Trace,
}

/// Whether colours are used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ColorChoice {
    /// On a terminal that understands them.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Ops that the person names by their latencies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamedRange {
    /// From the one latency to the other; to the longest where there is none.
    Between(Duration, Option<Duration>),
    /// The slowest: those above this percentile, in millionths of all ops.
    Above(u32),
}

impl NamedRange {
    /// The same in cycles of a counter of this rate.
    #[must_use]
    pub fn in_ticks(self, hz: Hz) -> Range {
        let ticks = |time: Duration| Ticks((time.as_secs_f64() * hz.get() as f64) as u64);
        match self {
            NamedRange::Between(from, to) => {
                Range::Between(ticks(from), to.map_or(Ticks(u64::MAX), ticks))
            }
            NamedRange::Above(percentile) => Range::Above(percentile),
        }
    }
}

/// The parameters of the analysis that the person gave.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GivenParams {
    /// See [`Params::start_ops`].
    pub start_ops: Option<u64>,
    /// See [`Params::decision_ops`].
    pub decision_ops: Option<u64>,
    /// See [`Params::max_depth`].
    pub max_depth: Option<usize>,
    /// See [`Params::resolution`].
    pub resolution: Option<Resolution>,
    /// See [`Params::peak`]; `--ask` is [`PeakChoice::Later`].
    pub peak: Option<PeakChoice>,
}

impl GivenParams {
    /// `base`, with what was given in its place.
    #[must_use]
    pub fn over(&self, base: Params) -> Params {
        Params {
            start_ops: self.start_ops.unwrap_or(base.start_ops),
            decision_ops: self.decision_ops.unwrap_or(base.decision_ops),
            max_depth: self.max_depth.unwrap_or(base.max_depth),
            resolution: self.resolution.unwrap_or(base.resolution),
            peak: self.peak.unwrap_or(base.peak),
            range: base.range,
        }
    }

    /// These, and `other`'s where these give none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            start_ops: self.start_ops.or(other.start_ops),
            decision_ops: self.decision_ops.or(other.decision_ops),
            max_depth: self.max_depth.or(other.max_depth),
            resolution: self.resolution.or(other.resolution),
            peak: self.peak.or(other.peak),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_failures_go_to_stdout_only_where_it_is_ours() {
        let common = Common {
            format: Format::Json,
            ..Common::default()
        };
        let attach = AttachOptions {
            pid: 1,
            f0: Some("f".into()),
            prove: false,
            common: common.clone(),
        };
        assert_eq!(
            Invocation::Attach(attach).failures(),
            FailureFormat::LineAndJson
        );
        let run = RunOptions {
            command: vec!["ls".into()],
            repeat: NonZeroU32::MIN,
            f0: "f".into(),
            common,
        };
        assert_eq!(Invocation::Run(run).failures(), FailureFormat::Line);
    }

    #[test]
    fn what_is_given_wins_and_the_rest_stays() {
        let given = GivenParams {
            start_ops: Some(7),
            ..GivenParams::default()
        };
        let file = GivenParams {
            start_ops: Some(1),
            max_depth: Some(3),
            ..GivenParams::default()
        };
        let params = given.or(file).over(Params {
            decision_ops: 9,
            ..Params::default()
        });
        assert_eq!(
            (params.start_ops, params.max_depth, params.decision_ops),
            (7, 3, 9)
        );
    }
}
