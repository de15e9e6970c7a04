//! What lies below a function that runs all the time, or behind a hand-over: analyses of their own.

use serde::{Deserialize, Serialize};

use super::{FtreeNode, Function, PeakEntry, ProfileTable, Report, Status, ValueContrast};
use crate::place::Place;

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

impl Focus {
    /// Of an analysis that has ended: nothing is in progress any more.
    #[must_use]
    pub fn ended(mut self) -> Focus {
        self.status = self.status.at_end(&mut self.peaks);
        self
    }

    /// Its own analysis as one of its own: there the function is f0. `of` is the report that it is part of.
    #[must_use]
    pub fn as_f0(&self, of: &Report) -> Report {
        Report {
            f0: self.function.clone(),
            status: self.status,
            profile: self.profile.clone(),
            peaks: self.peaks.clone(),
            ftree: self.ftree.clone(),
            time: None,
            focus: Vec::new(),
            comparison: None,
            ..of.clone()
        }
    }
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
    /// The same by f0's peaks, in their order; what ops of no peak handed over is last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<HandedOver>,
    /// Requests that cannot be counted for an op: it had not ended, or did not end by returning, or its record was
    /// lost.
    #[serde(default)]
    pub of_unknown_ops: u64,
}

/// What became of the requests that the ops of a peak of f0 handed over.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandedOver {
    /// f0's peak; none for ops that belong to no peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u32>,
    /// Ops that handed over at least one request.
    pub ops: u64,
    /// Their requests.
    pub requests: u64,
    /// How long those waited that were seen to be served.
    pub waits: ProfileTable,
    /// How long the calls took that served them.
    pub services: ProfileTable,
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
    /// How far the division came.
    #[serde(skip_serializing_if = "Survey::is_complete")]
    pub survey: Survey,
    /// Which part of the process' CPU time its threads took that are in the windows, when darc chose them itself; nothing when a
    /// person named the function, or next to none was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_cpu: Option<f64>,
    /// In which part of the time its threads were ready and did not run, 0 to 1: that is in the times of the parts, whoever's they are.
    /// Nothing where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_running: Option<f64>,
    /// The parts, the largest first.
    pub parts: Vec<TimePart>,
}

/// How far the division of a function's time came.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Survey {
    /// The functions that take the time are known.
    #[default]
    Complete,
    /// It ended early, or goes on: which functions are to be analysed is not known yet.
    Unfinished,
}

impl Survey {
    fn is_complete(&self) -> bool {
        *self == Survey::Complete
    }
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
    /// Why nobody looked into its calls, where that was tried; of a function's own time, which of its calls may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl TimePart {
    /// Whether a function's own time may be that of calls which could not be measured.
    #[must_use]
    pub fn is_partly_measured(&self) -> bool {
        let unmeasured = |reason: &String| reason.ends_with(UNMEASURED);
        self.whose == Whose::Itself && self.reason.as_ref().is_some_and(unmeasured)
    }
}

/// How the reason ends where calls of the function could not be measured.
pub const UNMEASURED: &str = "of its calls could not be measured";

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
