//! The report as data: schema 1 of the JSON output. All durations are cycles unless a name says otherwise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::place::Place;

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
    /// What was analysed.
    pub target: Target,
    /// The function whose latency was analysed.
    pub f0: Function,
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
    /// Some path does not end yet.
    InProgress,
    /// The person did not choose this peak.
    NotAnalysed,
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
    /// Ops inside the peak between two decisions.
    pub decision_ops: u64,
    /// The share of the largest maxcount that makes a root cause.
    pub maxcount_percentage: f64,
    /// The longest root-cause path.
    pub max_depth: u64,
    /// The one peak to analyse; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u32>,
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

/// How a profile differs from a stored one; see [`crate::analysis::compare`].
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

/// A peak and what was found about it.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakEntry {
    /// Its number.
    pub peak: u32,
    /// The leftmost bucket.
    pub first_bucket: u32,
    /// The rightmost bucket.
    pub last_bucket: u32,
    /// How many ops.
    pub ops: u64,
    /// Their latencies together.
    pub total: u64,
    /// Their part of all ops, 0 to 1.
    pub share_of_ops: f64,
    /// Their part of the time of all ops, 0 to 1.
    pub share_of_time: f64,
    /// Where the analysis of this peak stands.
    pub status: Status,
    /// The paths to what takes the time.
    #[serde(default)]
    pub root_causes: Vec<RootCauseEntry>,
    /// One of its ops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<ExampleOp>,
    /// How much of their time its ops' threads did not work, where the kernel told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_cpu: Option<OffCpuEntry>,
}

/// How much of their time the threads of a peak's ops did not work, in cycles.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OffCpuEntry {
    /// The ops that were recorded in full while the kernel told.
    pub ops: u64,
    /// Their latencies together.
    pub time: u64,
    /// The part of it in which they waited for something.
    pub blocked: u64,
    /// In which they were woken, but did not run yet.
    pub runnable: u64,
    /// In which another thread ran instead.
    pub preempted: u64,
    /// In which interrupts were served, or their deferred work was done.
    pub interrupted: u64,
    /// In which pages were brought in or copied.
    pub page_faults: u64,
    /// Where they waited, the longest time first. What was told before a function's calls were measured
    /// stands for the function itself.
    pub waits: Vec<WaitPlace>,
}

/// Where threads waited, and how.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WaitPlace {
    /// The functions' names, f0 first.
    #[serde(default)]
    pub path: Vec<String>,
    /// How.
    #[serde(default)]
    pub waits: WaitsEntry,
}

/// One op as it was measured.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExampleOp {
    /// The thread that it ran on.
    pub tid: i32,
    /// Its latency.
    pub latency: u64,
    /// What was called in it.
    #[serde(default)]
    pub calls: Vec<ExampleCall>,
}

/// What one fnode did in one op.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExampleCall {
    /// The function.
    pub name: String,
    /// How far below f0 it is: 1 for what f0 calls.
    pub depth: u32,
    /// When its longest call began, from the op's beginning on.
    pub start: u64,
    /// How long that was.
    pub max: u64,
    /// All its calls together.
    pub sum: u64,
    /// How many there were.
    pub count: u64,
}

/// What takes the time at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The function's own code.
    Function,
    /// The function's many short calls.
    Loop,
    /// A system call.
    Syscall,
    /// The thread did not run.
    Preemption,
    /// An interrupt ran.
    Interrupt,
    /// Deferred work of interrupts ran.
    SoftInterrupt,
    /// A page was brought in.
    PageFault,
}

/// Why a path ends.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The function itself takes the time.
    #[serde(rename = "self")]
    SelfTime,
    /// It makes no calls.
    NoCalls,
    /// The path may not become longer.
    MaxDepth,
    /// Its calls cannot be measured.
    NotInstrumentable,
    /// It does not end yet.
    StillDescending,
}

/// A root-cause path.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RootCauseEntry {
    /// The functions' names, f0 first.
    #[serde(default)]
    pub path: Vec<String>,
    /// What takes the time.
    pub kind: Kind,
    /// How often it was among the largest contributors.
    pub maxcount: u64,
    /// Why the path ends.
    pub stop: StopReason,
    /// Why the calls of the last function cannot be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The path again, with places.
    #[serde(default)]
    pub frames: Vec<Frame>,
    /// What the system call at the end of the path was called with, where that was seen; the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<ArgumentEntry>,
    /// How the thread waited at the end of the path, where the kernel told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitsEntry>,
    /// Where in the last function the time goes, where that was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<NarrowedEntry>,
}

/// Where in a function the time goes, by samples of the program counter in ops of the peak.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NarrowedEntry {
    /// Samples in the function's own code.
    pub samples: u64,
    /// Samples in what it calls, or what interrupted it.
    pub elsewhere: u64,
    /// From the outermost loop to the line.
    pub steps: Vec<NarrowedStep>,
}

/// A part of a function.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NarrowedStep {
    /// What kind of part.
    pub kind: PartKind,
    /// How many of the samples were in it.
    pub samples: u64,
    /// Its first instruction, by address.
    pub place: Place,
    /// The source file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The first line of the function that it is made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<u32>,
    /// The inlined functions that a line stands in, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined_from: Vec<InlinedFrame>,
}

/// A kind of part.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    /// A loop.
    Loop,
    /// A block: entered at its beginning, left at its end.
    Block,
    /// A source line.
    #[default]
    Line,
}

/// How threads waited in the longest calls of an fnode, in the ops of one peak together.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WaitsEntry {
    /// How often.
    pub count: u64,
    /// Waiting for something, in cycles.
    pub blocked: u64,
    /// Able to run, but not running, in cycles.
    pub runnable: u64,
    /// Preempted or interrupted, in cycles.
    pub preempted: u64,
    /// Who ran instead, or woke the thread; the longest time first.
    pub others: Vec<OtherEntry>,
}

/// Another thread, or several of one name; or an interrupt.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherEntry {
    /// Its name.
    pub name: String,
    /// The thread, when it is always the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<i32>,
    /// Where it was when it woke the thread, as far as that was seen; the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doing: Vec<DoingEntry>,
    /// How often.
    pub count: u64,
    /// The time of it, in cycles.
    pub time: u64,
}

/// What a system call was called with: a file, a socket, a lock.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArgumentEntry {
    /// In words.
    pub value: String,
    /// In how many calls
    pub count: u64,
    /// of so many that were looked at.
    pub of: u64,
}

/// Where a thread was.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoingEntry {
    /// The functions on its stack, the outermost first; eight at most.
    #[serde(default)]
    pub functions: Vec<String>,
    /// How often.
    pub count: u64,
}

/// One function on a root-cause path and the call that led to it.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Frame {
    /// The function's name.
    pub name: String,
    /// Its module's path; absent for system calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Where it was called; absent for f0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<Place>,
    /// The source file of the call; for f0 of its definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The inlined functions that the call stands in, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined_from: Vec<InlinedFrame>,
}

/// A function that the compiler copied into its caller.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InlinedFrame {
    /// Its name.
    pub name: String,
    /// The source file of the place where it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// What is called at a site.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CalleeKind {
    /// A function: `callee` says where it is.
    #[default]
    Function,
    /// The kernel: `syscall` says which system call, if that is known.
    Syscall,
    /// Targets of an indirect call that have no node of their own.
    Unknown,
    /// Nobody: another thread ran.
    Preemption,
    /// Nobody: a device's interrupt was served; `interrupt` says which.
    Interrupt,
    /// Nobody: an interrupt of the CPUs' own was served; `interrupt` is its vector.
    LocalInterrupt,
    /// Nobody: deferred work of interrupts was done; `interrupt` says which.
    SoftInterrupt,
    /// Nobody: a page of the program's memory was brought in or copied.
    PageFault,
}

/// One fnode and all below it.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FtreeNode {
    /// The call site; absent for f0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Place>,
    /// The name of what is called.
    pub name: String,
    /// What is called.
    #[serde(default)]
    pub kind: CalleeKind,
    /// Where the called function begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<Place>,
    /// The number of the system call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syscall: Option<u32>,
    /// The number of the interrupt, its vector, or that of its deferred work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<u32>,
    /// The source file of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// By peak: how often it was among the largest contributors of its parent.
    #[serde(default, deserialize_with = "by_peak::deserialize")]
    #[cfg_attr(test, schemars(with = "BTreeMap<u32, u64>"))]
    pub maxcount: BTreeMap<u32, u64>,
    /// By peak: how often the function itself was, against its own callees.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "by_peak::deserialize"
    )]
    pub self_maxcount: BTreeMap<u32, u64>,
    /// The peaks that have it on a root-cause path.
    #[serde(default)]
    pub root_cause_of: Vec<u32>,
    /// The longest call.
    pub max: u64,
    /// The mean call.
    pub mean: u64,
    /// How many calls were measured.
    pub count: u64,
    /// By peak: what was measured and where the descent stands.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "by_peak::deserialize"
    )]
    pub peaks: BTreeMap<u32, FnodePeak>,
    /// The calls that the function makes.
    #[serde(default)]
    pub children: Vec<FtreeNode>,
}

/// Where the descent stands at an fnode.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DescentState {
    /// On no root-cause path.
    #[default]
    NotChosen,
    /// Its calls are not measured yet.
    Waiting,
    /// Ops are collected for the decision.
    Collecting,
    /// Decided: the function itself.
    DecidedSelf,
    /// Decided: callees of it.
    DecidedCallees,
    /// Decided: both.
    DecidedBoth,
    /// The path ends here, for the reason in `stop`.
    Ended,
}

/// What an fnode knows about one peak.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FnodePeak {
    /// Where the descent stands.
    pub state: DescentState,
    /// Why the path ends here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// The reason in words, where `stop` has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Ops that count for the decision so far.
    pub decision_ops: u64,
    /// Ops in which the fnode's calls were measured.
    pub measured_ops: u64,
    /// The fnode's latency in those ops, all calls together.
    pub measured_time: u64,
    /// Ops in which it was called while all calls of its parent were measured.
    pub ops: u64,
    /// The longest call.
    pub max: u64,
    /// All calls together.
    pub sum: u64,
    /// How many calls.
    pub count: u64,
    /// The function's own time in the ops that its self-maxcount counts.
    pub self_time: u64,
    /// The part of it that went into repeated short calls.
    pub loop_time: u64,
}

/// A function below an f0 that was running already, with an analysis of its own.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Focus {
    /// The functions' names from f0 down to it.
    #[serde(default)]
    pub path: Vec<String>,
    /// The function.
    #[serde(default)]
    pub function: Function,
    /// Where the calls return to that are its ops; empty when all calls are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<Place>,
    /// Where its analysis stands.
    #[serde(default = "in_progress")]
    pub status: Status,
    /// Its part of the time of f0, 0 to 1.
    pub share_of_time: f64,
    /// How often it was called.
    pub calls: u64,
    /// Its latencies.
    pub profile: ProfileTable,
    /// The numbered humps.
    #[serde(default)]
    pub peaks: Vec<PeakEntry>,
    /// Arguments of it that tell peaks apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<ValueContrast>,
    /// The tree below it.
    pub ftree: FtreeNode,
    /// How its requests come from f0, when it runs in other threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandOver>,
}

/// How requests come from ops of f0 to the function that serves them.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandOver {
    /// The function by which an op hands a request over.
    pub enqueue: Function,
    /// What of its arguments identifies the request.
    pub enqueued_object: String,
    /// What of the serving function's arguments does.
    pub served_object: String,
    /// Requests that were handed over inside ops of f0.
    pub enqueued: u64,
    /// Those that were seen to be served.
    pub served: u64,
    /// Those that were waited for when the analysis ended.
    pub in_flight: u64,
    /// Those that were given up because nobody served them in time.
    pub expired: u64,
    /// Those that were given up because too many were in flight.
    pub crowded_out: u64,
    /// Calls of the serving function for what no op of f0 had handed over.
    pub others: u64,
    /// Calls of either function whose object could not be read.
    pub unread: u64,
    /// How long requests waited, from the call that handed them over to the call that served them.
    pub waits: ProfileTable,
}

/// What was computed from f0's arguments, and is different in two peaks.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ValueContrast {
    /// The expression: `arg1` is the first integer argument register of the System V ABI.
    pub expression: String,
    /// The part of the ops that it tells apart, 0 to 1.
    pub share: f64,
    /// What it was in the one peak and in the other.
    pub values: [PeakValues; 2],
}

/// The values in the ops of one peak.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakValues {
    /// The peak's number.
    pub peak: u32,
    /// The most frequent values, five at most; empty when there are too many different ones.
    pub values: Vec<ValueShare>,
    /// Nearly all values lie between this one
    pub lowest: u64,
    /// and this one.
    pub highest: u64,
}

/// A value and the part of the ops that had it.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ValueShare {
    /// The value.
    pub value: u64,
    /// Its part of the peak's ops, 0 to 1.
    pub share: f64,
}

fn in_progress() -> Status {
    Status::InProgress
}

/// Where the time of a function went, in windows of the threads that run it.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TimeTable {
    /// How many windows were looked at.
    pub windows: u64,
    /// How long they were together, over all threads.
    pub total: u64,
    /// The parts, the largest first.
    pub parts: Vec<TimePart>,
}

/// One part of the time.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TimePart {
    /// The functions' names from f0 down to it.
    pub path: Vec<String>,
    /// Whose time it is.
    pub whose: Whose,
    /// Its part of the whole, 0 to 1.
    pub share_of_time: f64,
    /// All of it.
    pub time: u64,
    /// How many calls; zero for a function's own time.
    pub calls: u64,
    /// The longest call.
    pub max: u64,
    /// Why nobody looked into its calls, where that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whose time a part of the time is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The last function's own code, and those of its calls that are not measured.
    Itself,
    /// The last function's, with everything that it calls.
    Callee,
    /// As `Callee`, of a function that waits.
    Waiting,
}

/// What was done to the target, and what it cost.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Probes {
    /// How many call sites were instrumented, at most at one time.
    pub sites: u64,
    /// The call sites that were not, each with the reason.
    pub skipped: Vec<SkippedSite>,
    /// What one probe adds.
    pub cost_cycles: ProbeCost,
    /// Ops that were recorded.
    pub records: u64,
    /// Ops that were to be recorded and could not: of these the profile knows the latency only.
    pub dropped: u64,
    /// Ops of which the profile knows the latency only because enough like them had been recorded.
    pub sampled: u64,
    /// Calls of f0 that did not end by returning (an exception, longjmp, the end of a thread, another stack):
    /// they are in no profile.
    pub ended_otherwise: u64,
    /// How long the target was stopped, in microseconds.
    pub pause_us: Pause,
    /// How many bytes of code were compared after the probes were taken away: of every module that had some.
    pub bytes_compared_after_detach: u64,
    /// How many bytes of code differed from the files after the probes were taken away.
    pub bytes_differing_after_detach: u64,
}

/// A call site without a probe.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SkippedSite {
    /// Where it is.
    pub site: Place,
    /// Why.
    pub reason: String,
}

/// What one probe adds, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProbeCost {
    /// To the latency that it reports; taken out of all figures.
    pub inside: u64,
    /// To its surroundings, beside that.
    pub outside: u64,
}

/// How long the target was stopped, in microseconds.
#[derive(Clone, Copy, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Pause {
    /// The median stop.
    pub p50: f64,
    /// The longest stop.
    pub max: f64,
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

/// Reads a map by peak; a peak that is there twice is refused.
mod by_peak {
    use std::collections::BTreeMap;
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::{Error as _, MapAccess, Visitor};
    use serde::{Deserialize, Deserializer};

    pub(super) fn deserialize<'de, D, T>(from: D) -> Result<BTreeMap<u32, T>, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de>,
    {
        from.deserialize_map(ByPeak(PhantomData))
    }

    struct ByPeak<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ByPeak<T> {
        type Value = BTreeMap<u32, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("values by the number of a peak")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut by_peak = BTreeMap::new();
            while let Some((peak, value)) = map.next_entry()? {
                if by_peak.insert(peak, value).is_some() {
                    return Err(A::Error::custom(format_args!("peak {peak} is there twice")));
                }
            }
            Ok(by_peak)
        }
    }
}
