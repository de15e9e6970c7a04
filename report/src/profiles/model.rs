//! A set of profiles as data: schema 1. All durations are cycles unless a name says otherwise.

use darc_analysis::{Hz, Resolution};
use serde::{Deserialize, Serialize};

use crate::model::{BucketEntry, Clock, ClockUnit, Function, ProfileTable, SCHEMA, Target};

/// Tells a set of profiles from other results.
pub const KIND: &str = "profiles";

/// Profiles of many functions, or of system calls, that were measured together.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct ProfileSet {
    /// [`super::super::model::SCHEMA`].
    pub schema: u32,
    /// [`KIND`].
    pub kind: String,
    /// The version of the program that wrote it.
    pub darc: String,
    /// What was measured.
    pub source: Source,
    /// The process.
    pub target: Target,
    /// The clock of all durations.
    pub clock: Clock,
    /// Buckets per doubling of the latency.
    pub resolution: u32,
    /// How long was measured.
    pub measured: u64,
    /// Each function's profile, the largest total latency first.
    #[serde(default)]
    pub profiles: Vec<FunctionProfile>,
    /// The pieces that the time was cut into; none when it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// Functions that fit the names and carry no probe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_profiled: Vec<NotProfiled>,
    /// Functions that were never called.
    #[serde(default)]
    pub never_called: u64,
    /// What counting an empty call reads, taken out of every latency.
    #[serde(default)]
    pub cost_inside: u64,
    /// What it takes from its caller beside that, taken out too.
    #[serde(default)]
    pub cost_outside: u64,
    /// How often, and for how long, the target was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pauses: Option<Pauses>,
    /// Bytes of the target's text that are not as before.
    #[serde(default)]
    pub bytes_differing_after_detach: u64,
    /// What the person should know.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl ProfileSet {
    /// No profiles yet, of this process; measured for `length` cycles.
    #[must_use]
    pub fn empty(
        source: Source,
        target: Target,
        hz: Hz,
        resolution: Resolution,
        length: u64,
    ) -> ProfileSet {
        ProfileSet {
            schema: SCHEMA,
            kind: KIND.to_owned(),
            darc: env!("CARGO_PKG_VERSION").to_owned(),
            source,
            target,
            clock: Clock {
                unit: ClockUnit::Cycles,
                hz: hz.get(),
            },
            resolution: resolution.get(),
            measured: length,
            profiles: Vec::new(),
            segments: Vec::new(),
            not_profiled: Vec::new(),
            never_called: 0,
            cost_inside: 0,
            cost_outside: 0,
            pauses: None,
            bytes_differing_after_detach: 0,
            warnings: Vec::new(),
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Calls of functions, by stubs in the target.
    Functions,
    /// System calls, by the kernel's tracepoints.
    SystemCalls,
}

/// One function's profile.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct FunctionProfile {
    /// The function; a system call has nothing but a name.
    pub function: Function,
    /// Calls that began.
    pub calls: u64,
    /// Calls that had not returned when measuring ended.
    #[serde(default)]
    pub unfinished: u64,
    /// Calls that ended otherwise than by returning.
    #[serde(default)]
    pub ended_otherwise: u64,
    /// Calls too deep in recursion to be followed.
    #[serde(default)]
    pub missed: u64,
    /// The longest call that returned.
    pub max: u64,
    /// The mean number of calls in progress, weighted by time.
    pub concurrency: f64,
    /// The calls that returned.
    pub profile: ProfileTable,
    /// The humps of the profile.
    #[serde(default)]
    pub peaks: Vec<PeakRange>,
    /// What happened in each segment; segments without a call are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentProfile>,
}

/// A peak of a profile.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub struct PeakRange {
    /// Its number, from the left.
    pub peak: u32,
    /// The leftmost bucket.
    pub first_bucket: u32,
    /// The rightmost bucket.
    pub last_bucket: u32,
    /// How many calls.
    pub ops: u64,
    /// Their latencies together.
    pub total: u64,
    /// Their part of all calls, 0 to 1.
    pub share_of_ops: f64,
    /// Their part of the time of all calls, 0 to 1.
    pub share_of_time: f64,
}

/// A piece of the time.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Segment {
    /// When it began, from the beginning of measuring.
    pub start: u64,
    /// How long it was.
    pub length: u64,
}

/// One function in one segment.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct SegmentProfile {
    /// Which one, from 0.
    pub segment: u64,
    /// Calls that began in it.
    pub calls: u64,
    /// The mean number of calls in progress, weighted by time.
    pub concurrency: f64,
    /// The calls that returned in it.
    #[serde(default)]
    pub buckets: Vec<BucketEntry>,
}

/// A function without a probe.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct NotProfiled {
    /// The function.
    pub name: String,
    /// Its module's path.
    pub module: String,
    /// Why.
    pub reason: String,
}

/// Stops of the target, in microseconds.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub struct Pauses {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50_us: f64,
    /// The longest.
    pub max_us: f64,
}
