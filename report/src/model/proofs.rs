//! What came of putting causes to the test.

use serde::{Deserialize, Serialize};

/// The test of one cause.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProofEntry {
    /// The peak, numbered from 1.
    pub peak: u32,
    /// The functions on the path, f0 first, the cause last.
    pub path: Vec<String>,
    /// Whether the calls of the cause are those on other threads: the path is f0 and the cause alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// What follows.
    pub verdict: Verdict,
    /// Why there is no more to say, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was measured, where something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// What would be gained without the cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gain: Vec<GainEntry>,
    /// The latencies of the ops that were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latencies: Option<ComparedOps>,
}

/// What a test says.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Longer calls make the peak's ops longer, by half of that at least.
    Proven,
    /// They make them longer, but half of the delay does not do half of that.
    NotLinear,
    /// By less, certainly not by all of it.
    Partly,
    /// By nothing, or a fifth at most.
    NotOnPath,
    /// The interval does not tell.
    NotDecided,
    /// It was not tried.
    NotTested,
}

/// What delays did.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measured {
    /// What each call was delayed by, in nanoseconds; in some spans by half of it.
    pub delay_ns: f64,
    /// Whether the thread slept meanwhile; else it worked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slept: bool,
    /// The mean delay of an op that had one, in nanoseconds, as it was measured.
    pub added_ns: f64,
    /// What that was to be, in nanoseconds.
    #[serde(default)]
    pub meant_ns: f64,
    /// Whether it was so much longer than it was to be that it does not tell what a short one does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overran: bool,
    /// The part of a delay that made ops longer.
    pub slope: f64,
    /// The bounds of its interval.
    pub interval: [f64; 2],
    /// Whether half of the delay makes ops longer by half as much; missing where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear: Option<bool>,
    /// The slope for half of the delay, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_slope: Option<f64>,
    /// Ops without delay that this is known from.
    pub ops_without: u64,
    /// Ops with a delay.
    pub ops_with: u64,
    /// The part of the time that all delays took, 0 to 1.
    pub added_share: f64,
    /// For how long it was tried, in nanoseconds.
    pub time_ns: f64,
}

/// A percentile of all ops' latencies, now and without the cause.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GainEntry {
    /// The percentile, 0 to 100.
    pub percentile: f64,
    /// Now, in nanoseconds.
    pub now_ns: f64,
    /// If the cause took no time and nothing took its place, in nanoseconds.
    pub without_ns: f64,
    /// Its interval; missing in results of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_interval_ns: Option<[f64; 2]>,
}

/// How long ops without and with a delay took, in columns of one width.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparedOps {
    /// Where the first column begins, in nanoseconds.
    pub from_ns: f64,
    /// How wide each is, in nanoseconds.
    pub width_ns: f64,
    /// Ops without a delay.
    pub without: Vec<u64>,
    /// Ops with one.
    pub with: Vec<u64>,
}

/// What darc's own probes did to the ops of a peak.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EffectEntry {
    /// The peak, numbered from 1.
    pub peak: u32,
    /// The functions on the path that had probes, f0 first.
    pub path: Vec<String>,
    /// Why there is no more to say, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// By how much ops are longer with these probes than with f0's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<EffectOn>,
    /// The same of the latencies that are told, after what probes cost was taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<EffectOn>,
    /// For how long it was tried, in nanoseconds.
    #[serde(default)]
    pub time_ns: f64,
}

/// An estimate, and the bounds of its interval.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EffectOn {
    /// In nanoseconds.
    pub ns: f64,
    /// The bounds, in nanoseconds.
    pub interval_ns: [f64; 2],
}
