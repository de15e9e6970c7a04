//! What was done to the target, and what it cost.

use serde::{Deserialize, Serialize};

use crate::place::Place;

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
    /// What measuring took of the machine; absent where no account was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
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

/// What measuring took of the machine, and what was left out to keep below a budget. Times are in seconds.
#[derive(Clone, Copy, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Effort {
    /// What it may take in the long run, of one processor: 0.01 is a hundredth.
    pub budget: f64,
    /// For how long it was measured.
    pub elapsed: f64,
    /// Processor time of darc while it read, decided and stopped the target.
    pub reading: f64,
    /// What measured calls in ops took of the target, about: their number times what one costs.
    pub calls: f64,
    /// What the latencies of ops took of the target, about. They are measured all the time: the budget does not limit this.
    pub latencies: f64,
    /// What the kernel's records took, about, of whoever they were made of: their number times what one costs.
    pub records: f64,
    /// For how long nothing but latencies was measured, to keep below the budget.
    pub rested: f64,
}

impl Effort {
    /// A time as a share of the whole.
    #[must_use]
    pub fn of(&self, seconds: f64) -> f64 {
        match self.elapsed > 0.0 {
            true => seconds / self.elapsed,
            false => 0.0,
        }
    }
}

/// A call site without a probe.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SkippedSite {
    /// Where it is.
    pub site: Place,
    /// The function that it is in.
    #[serde(default)]
    pub function: String,
    /// How many call sites that function has; zero when they were not counted.
    #[serde(default)]
    pub of_sites: u64,
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
