//! What the ops of a peak waited for: who ended the wait, and with which arguments they waited.

use serde::{Deserialize, Serialize};

/// How threads waited in the longest calls of an fnode, in the ops of one peak together.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WaitsEntry {
    /// How often.
    pub count: u64,
    /// Waiting for something, in cycles; of page faults that is part of `preempted`.
    pub blocked: u64,
    /// Able to run, but not running, in cycles.
    pub runnable: u64,
    /// Preempted or interrupted, or in page faults, in cycles.
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
    /// The process that it is of, when that is another one than the target, and always the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<OtherProcess>,
    /// Where it was when it woke the thread, as far as that was seen; the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doing: Vec<DoingEntry>,
    /// How often.
    pub count: u64,
    /// The time of it, in cycles.
    pub time: u64,
}

/// A process that is not the target.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherProcess {
    /// Which.
    pub pid: i32,
    /// The name of its program, as ps(1) shows it.
    pub command: String,
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
