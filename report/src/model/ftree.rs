//! The calls that were measured, with what the descent knows of each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StopReason;
use crate::place::Place;

/// What is called at a site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Debug)]
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
    /// Nobody: the handler of a signal ran; `interrupt` is the signal's number.
    Signal,
    /// Nobody: the future that f0 polls waited; `interrupt` is its state meanwhile.
    Await,
}

/// One fnode and all below it.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
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
    /// The source file that defines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee_file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee_line: Option<u32>,
    /// The number of the system call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syscall: Option<u32>,
    /// The number of the interrupt, its vector, that of its deferred work, or that of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<u32>,
    /// The source file of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Whether its call site could not carry a probe, so that nothing is known of the calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmeasured: bool,
    /// In how many portions its function's calls were measured, one after the other; 0 where all were at once.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub portions: u32,
    /// In which of its caller's portions it is, from 1; 0 where all of the caller's calls were measured at once.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub portion: u32,
    /// By peak: in how many ops it was a main contributor of its parent, half of the largest one or more.
    #[serde(default, deserialize_with = "by_peak::deserialize")]
    #[cfg_attr(test, schemars(with = "BTreeMap<u32, u64>"))]
    pub maxcount: BTreeMap<u32, u64>,
    /// By peak: in how many ops the function itself was one, against its own callees.
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
    /// Decided: the time is spread.
    DecidedSpread,
    /// The path ends here, for the reason in `stop`.
    Ended,
}

/// What an fnode knows about one peak.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
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
    /// The least part of an op, in millionths, that it took when it was among the largest contributors; 0 when it
    /// never was.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub least_part: u32,
    /// The portion of its function's calls that the decision is about, from 1; 0 where all were measured at once.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub portion: u32,
    /// The part of its maxcount that is from earlier portions of its caller's calls.
    #[serde(default, skip_serializing_if = "is_none")]
    pub maxcount_before: u64,
    /// Ops that count for the decision so far.
    pub decision_ops: u64,
    /// Ops in which the fnode's calls were measured.
    pub measured_ops: u64,
    /// The fnode's latency in those ops, all calls together.
    pub measured_time: u64,
    /// Those of its caller's `measured_ops` in which it was not measured, but another portion of the caller's calls.
    #[serde(default, skip_serializing_if = "is_none")]
    pub missed_ops: u64,
    /// Ops in which it was called while all calls of its parent, or its portion of them, were measured.
    pub ops: u64,
    /// The longest call.
    pub max: u64,
    /// All calls together.
    pub sum: u64,
    /// How many calls.
    pub count: u64,
    /// The function's own time in the ops that `decision_ops` counts.
    pub self_time: u64,
    /// The part of it that went into repeated short calls, and maybe into measuring these.
    pub loop_time: u64,
    /// The part of `self_time` of which it is known how the thread waited.
    #[serde(default, skip_serializing_if = "is_none")]
    pub self_seen: u64,
    /// The part of that in which it waited for something.
    #[serde(default, skip_serializing_if = "is_none")]
    pub self_blocked: u64,
    /// More about those ops, for the intervals of shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionSums>,
    /// What it took of its caller's time, together with the caller's other calls of the same function; at the first of
    /// these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartEntry>,
}

/// Sums over the ops that count for a decision, in cycles and square cycles.
#[derive(Clone, Copy, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DecisionSums {
    /// The fnode's longest calls.
    pub time: u64,
    /// Their squares.
    pub squares: f64,
    /// The squares of the function's own time.
    pub own_squares: f64,
    /// The products of both.
    pub own_products: f64,
}

/// A part of a function's time, summed over ops.
#[derive(Clone, Copy, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PartEntry {
    /// The sum, in cycles.
    pub time: u64,
    /// The sum of the squares, in square cycles.
    pub squares: f64,
    /// The sum of the products with the function's time in the same op, in square cycles.
    pub products: f64,
}

impl FtreeNode {
    /// Whether it stands for time in which the thread did not do its work, taken out of the functions that it struck. Page faults are
    /// the time of the function that touches the memory; no function runs for a future that waits.
    pub(crate) fn is_away(&self) -> bool {
        !matches!(
            self.kind,
            CalleeKind::Function
                | CalleeKind::Syscall
                | CalleeKind::Unknown
                | CalleeKind::PageFault
                | CalleeKind::Await
        )
    }
}

impl FnodePeak {
    /// The ops of a caller in which this call was measured.
    pub(crate) fn ops_seen(&self, caller: &FnodePeak) -> u64 {
        caller.measured_ops.saturating_sub(self.missed_ops)
    }

    /// The time of all calls in the caller's `measured_ops`, had they been measured in each of these: what portions of a
    /// function's calls took can be compared then. In cycles.
    pub(crate) fn sum_in_all(&self, caller: &FnodePeak) -> u64 {
        let sum = u128::from(self.sum) * u128::from(caller.measured_ops);
        let sum = sum.checked_div(u128::from(self.ops_seen(caller)));
        sum.map_or(self.sum, |sum| u64::try_from(sum).unwrap_or(u64::MAX))
    }
}

fn is_nothing(part: &u32) -> bool {
    *part == 0
}

fn is_none(count: &u64) -> bool {
    *count == 0
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
