//! The peaks of a profile, and an op of each.

use serde::{Deserialize, Serialize};

use super::{RootCauseEntry, Status, WaitsEntry};

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
    /// Whether its first bucket is that of all latencies that cannot be told from one another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begins_untold: bool,
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
    /// Where its functions are said to take the time themselves, and much of that may be time in which the kernel kept threads of the process
    /// from running: the part of the time in which these would have run for which it did, 0 to 1. Such a peak is not decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_from_running: Option<f64>,
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
    /// In which handlers of signals ran.
    pub signal_handlers: u64,
    /// The ops in which interrupts came, and no other thread ran.
    pub struck_ops: u64,
    /// Whether that makes the peak: ops of others are hardly struck, and the kernel does not tell all that an interrupt takes.
    pub is_of_struck_ops: bool,
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
    /// How long what it serves had waited since an op of another thread had handed it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<u64>,
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
