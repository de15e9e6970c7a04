//! The report as data: schema 1 of the JSON output. All durations are cycles unless a name says otherwise.

mod causes;
mod focus;
mod ftree;
mod futures;
mod peaks;
mod probes;
mod proofs;
mod values;
mod waits;

use darc_analysis::descent::root_cause::{HALF, SMALL};
use serde::{Deserialize, Serialize};

use crate::next::quoted;
use crate::spread::of_found;

pub use causes::{
    Frame, InlinedEntry, InlinedFrame, Kind, NarrowedEntry, NarrowedStep, PartKind, RootCauseEntry,
    StopReason, UnmeasuredEntry,
};
pub use focus::{Focus, HandOver, HandedOver, Survey, TimePart, TimeTable, UNMEASURED, Whose};
pub use ftree::{CalleeKind, DecisionSums, DescentState, FnodePeak, FtreeNode, PartEntry};
pub use futures::Futures;
pub use peaks::{ExampleCall, ExampleOp, OffCpuEntry, PeakEntry, WaitPlace};
pub use probes::{Effort, Pause, ProbeCost, Probes, SkippedSite};
pub use proofs::{ComparedOps, EffectEntry, EffectOn, GainEntry, Measured, ProofEntry, Verdict};
pub use values::{PeakValues, ValueContrast, ValueShare};
pub use waits::{ArgumentEntry, DoingEntry, OtherEntry, OtherProcess, WaitsEntry};

/// The version of this schema.
pub const SCHEMA: u32 = 1;

/// What an analysis found, and all that a later run needs to go on with it.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of the program that wrote it.
    pub darc: String,
    /// How the target was instrumented.
    pub engine: Engine,
    /// Where the analysis stood.
    pub status: Status,
    /// What ended it; absent while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// What was analysed.
    pub target: Target,
    /// The function whose latency was analysed.
    pub f0: Function,
    /// Present where an op is the life of a future that f0 polls, and not a call of f0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub futures: Option<Futures>,
    /// The clock of all durations.
    pub clock: Clock,
    /// What the person chose.
    pub parameters: Parameters,
    /// The modules that places refer to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<Module>,
    /// f0's latencies.
    pub profile: ProfileTable,
    /// How this profile differs from the one that an earlier run had stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<ProfileComparison>,
    /// The numbered humps of the profile.
    #[serde(default)]
    pub peaks: Vec<PeakEntry>,
    /// Arguments of f0 that tell peaks apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<ValueContrast>,
    /// The tree of call sites below f0.
    pub ftree: FtreeNode,
    /// Where the time of an f0 went that was running already or is called once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeTable>,
    /// Functions below such an f0, each with an analysis of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub focus: Vec<Focus>,
    /// What experiments say of causes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<ProofEntry>,
    /// What experiments say of darc's own probes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<EffectEntry>,
    /// What was done to the target.
    pub probes: Probes,
    /// What the person should know.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// How the target is instrumented.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Jumps to stubs; no traps.
    Jump,
    /// Breakpoints.
    Int3,
}

/// Where the analysis, or that of one peak, stands.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Every path ends.
    RootCauseFound,
    /// Every path ends, one at least because it may not become longer.
    MaxDepthReached,
    /// It has ended, but what takes the time is not known, or not of enough of it.
    Undecided,
    /// Every path ends, and the time is spread: nothing has much of it.
    Spread,
    /// Some path does not end yet.
    InProgress,
    /// The person did not choose this peak.
    NotAnalysed,
}

/// What ended an analysis.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// Every path ends.
    Finished,
    /// The time that it was given was over.
    Duration,
    /// The person ended it.
    Interrupted,
    /// The program, or a signal to darc, ended it.
    Mark,
    /// f0's latencies were not distributed as stored.
    Changed,
    /// f0 did not return.
    Running,
    /// The target ended, or executed another program.
    Target,
    /// It failed.
    Failed,
}

impl Report {
    /// The report of an analysis that has ended: nothing is in progress any more.
    #[must_use]
    pub fn ended(mut self, ended: Ended) -> Report {
        self.ended = Some(ended);
        self.status = self.status.at_end(&mut self.peaks);
        self.focus = self.focus.into_iter().map(Focus::ended).collect();
        self
    }
}

/// As long as more than this part of the time has no cause, the root cause is not found.
const MOST_UNEXPLAINED: f64 = 0.1;

/// Whether it is known where most of a peak's time goes though a path does not end yet. The same is asked of peaks whose paths all end.
fn is_nearly_decided(peak: &PeakEntry) -> bool {
    let is_open = |cause: &RootCauseEntry| {
        use StopReason::{NotInstrumentable, PartlyMeasured, StillDescending, TooRare};
        let is_open = [StillDescending, TooRare, NotInstrumentable, PartlyMeasured];
        is_open.contains(&cause.stop) || cause.blocked.is_some_and(|part| part > HALF)
    };
    let (mut open, mut known) = (0.0, 0.0);
    for cause in &peak.root_causes {
        match is_open(cause) {
            true => open += cause.share_of_time,
            false => known += cause.share_of_time,
        }
    }
    let is_struck = peak.off_cpu.as_ref().is_some_and(|of| of.is_of_struck_ops);
    open < SMALL && known >= HALF && !is_struck && peak.kept_from_running.is_none()
}

impl Status {
    /// What becomes of an analysis, and of its peaks, that has ended before it came to its end: where peaks with nearly all of the
    /// time have their causes, that others have none changes nothing, and so it is of paths of a peak.
    pub(crate) fn at_end(self, peaks: &mut [PeakEntry]) -> Status {
        for peak in &mut *peaks {
            if peak.status == Status::InProgress {
                let is_deep = |cause: &RootCauseEntry| cause.stop == StopReason::MaxDepth;
                peak.status = match is_nearly_decided(peak) {
                    true if peak.root_causes.iter().any(is_deep) => Status::MaxDepthReached,
                    true => Status::RootCauseFound,
                    false => Status::Undecided,
                };
                peak.status = of_found(peak);
            }
        }
        match self {
            Status::InProgress => Status::of_peaks(peaks),
            known => known,
        }
    }

    /// Where an analysis stands that has ended, by its peaks.
    pub(crate) fn of_peaks(peaks: &[PeakEntry]) -> Status {
        let time = |is_meant: &dyn Fn(Status) -> bool| -> f64 {
            let meant = peaks.iter().filter(|peak| is_meant(peak.status));
            meant.map(|peak| peak.share_of_time).sum()
        };
        // Peaks that nobody asked for need no cause.
        let whole = match time(&|status| status == Status::NotAnalysed) {
            others if others > 0.0 => time(&|status| status != Status::NotAnalysed),
            _ => 1.0,
        };
        let is_enough = |time: f64| time > 0.0 && time >= (1.0 - MOST_UNEXPLAINED) * whole;
        let deep = time(&|status| status == Status::MaxDepthReached);
        let known = deep + time(&|status| status == Status::RootCauseFound);
        let spread = time(&|status| status == Status::Spread);
        match is_enough(known) {
            true if deep > 0.0 => Status::MaxDepthReached,
            true => Status::RootCauseFound,
            false if is_enough(known + spread) => Status::Spread,
            false => Status::Undecided,
        }
    }
}

/// The process.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Target {
    /// Its id, when there was a process.
    pub pid: Option<i32>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The path of the executable.
    pub exe: String,
    /// The build-id of the executable, in hexadecimal.
    pub build_id: Option<String>,
    /// Its exit status, when it has ended: the code, or 128 plus the signal.
    pub exit_status: Option<i32>,
    /// Whether it ran already, so that the command may not be how it is started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// The ids, names or patterns of the threads whose ops were measured; all where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// Whether it is a Go program, in which goroutines are measured in place of threads.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub goroutines: bool,
}

impl Target {
    /// The name by which a process of the same program is found, for a shell; nothing where that may be taken for an id.
    #[must_use]
    pub fn program(&self) -> Option<String> {
        let name = std::path::Path::new(&self.exe).file_name()?.to_str()?;
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        quoted(name).filter(|_| !is_number)
    }
}

/// A function.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Function {
    /// The demangled name.
    pub name: String,
    /// The module's path.
    pub module: String,
    /// Where it begins in the module, in bytes.
    #[serde(with = "hex")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub offset: u64,
    /// The source file that defines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// The clock.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Clock {
    /// The unit of durations.
    pub unit: ClockUnit,
    /// How many of them a second has.
    pub hz: u64,
}

/// The unit of durations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClockUnit {
    /// Cycles of the time stamp counter.
    #[default]
    Cycles,
}

/// What the person chose.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Parameters {
    /// Ops before peaks are chosen.
    pub start_ops: u64,
    /// A decision takes so many ops inside the peak at least, and twenty times as many at most.
    pub decision_ops: u64,
    /// The longest root-cause path.
    pub max_depth: u64,
    /// The one peak to analyse; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u32>,
    /// The ops that are the one peak, where they were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeEntry>,
}

/// Ops that were named by their latencies, or by how slow they are among all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RangeEntry {
    /// The shortest latency, in cycles.
    pub from: u64,
    /// The longest one.
    pub to: u64,
    /// In their place: those above this percentile, in millionths of all ops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<u32>,
}

/// A file that code was mapped from.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Module {
    /// Its path.
    pub path: String,
    /// Its build-id, in hexadecimal.
    pub build_id: Option<String>,
}

/// A histogram.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProfileTable {
    /// Buckets per doubling of the latency.
    pub resolution: u32,
    /// How many ops; the buckets add up to it.
    pub ops: u64,
    /// Their latencies together.
    pub total: u64,
    /// The buckets that hold ops, from short latencies to long ones.
    #[serde(default)]
    pub buckets: Vec<BucketEntry>,
    /// The latencies that parts of the ops do not exceed, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentiles: Option<Percentiles>,
    /// Latencies below this, in cycles, cannot be told from one another, and share one bucket; absent where all can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_from: Option<u64>,
    /// The same ops in eight buckets per doubling; empty where that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fine: Vec<BucketEntry>,
}

/// The latencies that parts of the ops do not exceed, in cycles. Exact to some 10%.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Percentiles {
    /// Of half of them.
    pub p50: u64,
    /// Of 90%.
    pub p90: u64,
    /// Of 99%.
    pub p99: u64,
    /// Of 99.9%.
    pub p99_9: u64,
    /// Of all.
    pub max: u64,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BucketEntry {
    /// `floor(resolution · log2(latency))`.
    pub bucket: u32,
    /// How many ops.
    pub ops: u64,
    /// Their latencies together.
    pub total: u64,
}

/// How a profile differs from a stored one.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProfileComparison {
    /// The Earth Mover's Distance; absent when one of the profiles is empty.
    pub earth_movers_distance: Option<f64>,
    /// Chi-square distance, 0 to 1.
    pub chi_square: f64,
    /// Normalised difference of the numbers of ops, 0 to 1.
    pub ops: f64,
    /// Normalised difference of the mean latencies, 0 to 1.
    pub mean_latency: f64,
    /// Normalised difference of the total latencies, 0 to 1.
    pub total_latency: f64,
    /// Whether the distribution is another one.
    pub changed: bool,
    /// Peaks that appeared, vanished or moved, in words.
    #[serde(default)]
    pub peaks: Vec<String>,
}

/// Offsets are written `0x1f`.
mod hex {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(offset: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{offset:#x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        text.strip_prefix("0x")
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or_else(|| D::Error::custom("an offset is written 0x..."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// A path with a tenth of the time, of a cause in few of the ops, takes longer than the person had.
    #[test]
    fn a_peak_whose_open_paths_have_little_of_its_time_has_its_answer() {
        let stopped_of = |stop, known: f64, open: f64, blocked, kept| {
            let mut report = fixture::report(1_000);
            report.peaks.truncate(1);
            let peak = &mut report.peaks[0];
            peak.kept_from_running = kept;
            peak.status = Status::InProgress;
            peak.off_cpu = None;
            let one = peak.root_causes[0].clone();
            let cause = |stop, share_of_time| RootCauseEntry {
                stop,
                share_of_time,
                blocked,
                ..one.clone()
            };
            peak.root_causes = vec![cause(stop, known), cause(StopReason::StillDescending, open)];
            report.ended(Ended::Duration).peaks[0].status
        };
        let stopped = |stop, known, open, blocked| stopped_of(stop, known, open, blocked, None);
        let kept = |part| stopped_of(StopReason::SelfTime, 0.9, 0.1, None, part);
        let ended = |known, open, blocked| stopped(StopReason::SelfTime, known, open, blocked);
        assert_eq!(ended(0.9, 0.1, None), Status::RootCauseFound);
        assert_eq!(ended(0.7, 0.25, None), Status::Undecided);
        assert_eq!(ended(0.4, 0.1, None), Status::Undecided);
        assert_eq!(ended(0.9, 0.1, Some(0.8)), Status::Undecided);
        let deep = stopped(StopReason::MaxDepth, 0.9, 0.1, None);
        assert_eq!(deep, Status::MaxDepthReached);
        assert_eq!(kept(None), Status::RootCauseFound);
        assert_eq!(kept(Some(0.5)), Status::Undecided);
    }

    #[test]
    fn an_analysis_that_was_ended_has_the_answer_that_its_large_peaks_have() {
        let ended = |peaks: &[(Status, f64)]| {
            let mut report = fixture::report(1_000);
            let mut one = report.peaks[0].clone();
            one.root_causes.clear();
            let peak = |&(status, share_of_time): &(Status, f64)| PeakEntry {
                status,
                share_of_time,
                ..one.clone()
            };
            report.peaks = peaks.iter().map(peak).collect();
            report.status = Status::InProgress;
            let mut report = report.ended(Ended::Duration);
            (report.status, report.peaks.pop().map(|peak| peak.status))
        };
        let found = Status::RootCauseFound;
        let is = |status| (status, Some(Status::Undecided));
        let open = |share| (Status::InProgress, share);
        assert_eq!(ended(&[(found, 0.96), open(0.005)]), is(found));
        assert_eq!(ended(&[(found, 0.7), open(0.3)]), is(Status::Undecided));
        let spread = ended(&[(found, 0.7), (Status::Spread, 0.25), open(0.05)]);
        assert_eq!(spread, is(Status::Spread));
        let asked_for = ended(&[(found, 0.3), (Status::NotAnalysed, 0.69), open(0.01)]);
        assert_eq!(asked_for, is(found));
        assert_eq!(ended(&[]), (Status::Undecided, None));
    }
}
