//! What all analyses have.

use std::path::PathBuf;
use std::time::Duration;

use darc_analysis::values::expression::Expression;
use darc_analysis::{Hz, Params, PeakChoice, Range, Resolution, Ticks};

use super::Format;
use crate::target_name::ThreadName;

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
    /// The threads whose ops are measured; all where there are none.
    pub threads: Vec<ThreadName>,
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
    /// Whether debuginfod may be asked for names.
    pub debuginfod: bool,
    /// Where the time counts in which another thread ran.
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

impl Common {
    /// Where the results of one of several processes go: `out-42.txt` in the place of `out.txt`.
    #[must_use]
    pub fn file_of(&self, pid: i32) -> PathBuf {
        let stem = self.output.file_stem().unwrap_or_default();
        let mut name = stem.to_owned();
        name.push(format!("-{pid}"));
        if let Some(ending) = self.output.extension() {
            name.push(".");
            name.push(ending);
        }
        self.output.with_file_name(name)
    }
}

impl Default for Common {
    fn default() -> Self {
        Self {
            output: PathBuf::from(Format::default().default_output()),
            format: Format::default(),
            engine: EngineChoice::default(),
            params: GivenParams::default(),
            range: None,
            threads: Vec::new(),
            duration: None,
            value: None,
            asynchronous: None,
            begin: None,
            end_at: None,
            verbosity: Verbosity::default(),
            log: None,
            debuginfod: true,
            preemption: Preemption::default(),
            budget: None,
            blocks: Blocks::default(),
            max_sites: None,
            looks_on: true,
            color: ColorChoice::default(),
        }
    }
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

/// Where the time counts in which a thread was ready but another one ran.
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
