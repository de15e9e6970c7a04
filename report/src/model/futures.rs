//! What became of the futures that f0 polls, or the coroutines that it resumes.

use serde::{Deserialize, Serialize};

/// Where ops are lives of futures: what was seen of those that are no ops.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Futures {
    /// They are coroutines of C++, and polls are resumes.
    pub coroutines: bool,
    /// Polls of all of them, ops or not.
    pub polls: u64,
    /// Gone when another one began at their place in memory: dropped while they waited (cancelled), or left by a panic.
    pub dropped: u64,
    /// Whose first poll was not seen: they were polled before, or within the poll of another one, or had been forgotten.
    pub begun_before: u64,
    /// Of which polls may have gone unseen, or make no sense.
    pub lost: u64,
    /// Forgotten, because too many waited at the same time.
    pub forgotten: u64,
    /// Of which neither the end nor a successor was seen.
    pub under_way: u64,
}
