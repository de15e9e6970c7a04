//! Who took the time of one op: the function itself or its callees (DARC, SIGMETRICS 2008, section 3).

use darc_record::{FnodeId, Ticks, Touched};

use crate::profile::histogram::Resolution;

/// How the longest call of an fnode in one op divides.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Shares {
    /// What no callee accounts for.
    pub own: Ticks,
    /// The part of `own` that went into further calls of callees beside their longest one.
    pub repeated: Ticks,
    /// What each callee accounts for: its longest call only, so that a loop over short calls is the
    /// caller's time and a long call in a loop is the callee's.
    pub callees: Vec<(FnodeId, Ticks)>,
    /// How many calls were measured within the longest call, on average.
    pub calls: u64,
}

impl Shares {
    /// The division if each measured call has left `noise` of its probe in what seems the function's own time.
    fn with_least_own(&self, noise: Ticks) -> Shares {
        let pure = self.own.saturating_sub(self.repeated);
        let left = Ticks(noise.0.saturating_mul(self.calls));
        Shares {
            own: self.repeated + pure.saturating_sub(left),
            ..self.clone()
        }
    }
}

/// Divides the longest of an fnode's calls among the function itself and the callees seen in the op.
///
/// A record has one longest call an fnode, over the whole op. A callee's longest call lies within the
/// parent's longest one when the parent was called once, and otherwise when it began within it. Where it
/// began in another, shorter call of the parent, taking it would charge the longest call with time that
/// was spent elsewhere (parent: 100 ticks of its own, then 90 ticks of which the callee took 85), and
/// leaving it out would hide what the callee did in the longest call as well. So it is replaced by what
/// the callee's other calls took: the mean of them, or less where there were fewer of them than other
/// calls of the parent.
pub(crate) fn divide<'a>(call: &Touched, callees: impl IntoIterator<Item = &'a Touched>) -> Shares {
    let mut shares = Shares::default();
    let mut attributed = Ticks(0);
    for callee in callees {
        let others = callee.sum.saturating_sub(callee.max);
        let share = if is_within(call, callee) {
            callee.max
        } else {
            let calls = (callee.count.saturating_sub(1)).max(call.count.saturating_sub(1));
            Ticks(others.0.checked_div(calls).unwrap_or(0))
        };
        // No part is longer than the whole, whatever the clocks of two CPUs say.
        let share = share.min(call.max);
        attributed = attributed + share;
        // `sum` covers all calls of the parent, `own` only the longest.
        shares.repeated = shares.repeated + Ticks(others.0 / call.count.max(1));
        shares.calls = shares
            .calls
            .saturating_add(callee.count / call.count.max(1));
        shares.callees.push((callee.fnode, share));
    }
    shares.own = call.max.saturating_sub(attributed);
    shares.repeated = shares.repeated.min(shares.own);
    shares
}

fn is_within(call: &Touched, callee: &Touched) -> bool {
    call.count <= 1
        || (callee.max_start >= call.max_start && callee.max_start - call.max_start <= call.max)
}

/// The main contributors of a division: whose latency is in the bucket of the largest.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Contributors {
    /// The function itself is one.
    pub own: bool,
    /// These callees are.
    pub callees: Vec<FnodeId>,
}

/// All whose bucket is that of the largest; nothing that took no time.
pub(crate) fn largest(shares: &Shares, resolution: Resolution) -> Contributors {
    let latencies = shares.callees.iter().map(|&(_, latency)| latency);
    let longest = latencies.fold(shares.own, Ticks::max);
    let counts = |latency: Ticks| {
        latency > Ticks(0) && resolution.bucket(latency) == resolution.bucket(longest)
    };
    Contributors {
        own: counts(shares.own),
        callees: shares
            .callees
            .iter()
            .filter(|&&(_, latency)| counts(latency))
            .map(|&(fnode, _)| fnode)
            .collect(),
    }
}

/// Those who are main contributors whether or not the probes' variation is in the function's own time.
/// None at all when it decides who is the largest.
pub(crate) fn certainly_largest(
    shares: &Shares,
    resolution: Resolution,
    noise: Ticks,
) -> Contributors {
    let most = largest(shares, resolution);
    let least = largest(&shares.with_least_own(noise), resolution);
    Contributors {
        own: most.own && least.own,
        callees: most
            .callees
            .into_iter()
            .filter(|callee| least.callees.contains(callee))
            .collect(),
    }
}

/// The smallest maxcount that makes a root cause, when the largest is `largest`.
pub(crate) fn threshold(largest: u64, percentage: f64) -> u64 {
    // Rounding up keeps `maxcount >= percentage * largest` for whole numbers; zero is never a cause.
    // The small term takes back what the product of an inexact percentage may be too large by.
    let threshold = (percentage * largest as f64 - 1e-9).ceil();
    (threshold as u64).clamp(1, largest.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use darc_record::Tsc;

    fn touched(fnode: u32, start: u64, max: u64, sum: u64, count: u64) -> Touched {
        Touched {
            fnode: FnodeId(fnode),
            max: Ticks(max),
            max_start: Tsc(start),
            sum: Ticks(sum),
            count,
        }
    }

    #[test]
    fn a_slow_call_in_a_loop_is_the_callees_time_and_the_loop_is_the_callers() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let shares = divide(&call, &[touched(2, 10, 700, 900, 21)]);
        assert_eq!(shares.own, Ticks(300));
        assert_eq!(shares.repeated, Ticks(200));
        let largest = largest(&shares, Resolution::default());
        assert_eq!((largest.own, largest.callees), (false, vec![FnodeId(2)]));
    }

    #[test]
    fn own_time_that_may_be_the_probes_decides_nothing() {
        // 300 ticks seem to be the function's own, beside 20 calls, the longest of 200 ticks.
        let call = touched(1, 0, 600, 600, 1);
        let callees = [touched(2, 0, 200, 200, 1), touched(3, 200, 6, 100, 19)];
        let shares = divide(&call, &callees);
        let certain = |noise| certainly_largest(&shares, Resolution::default(), Ticks(noise));
        assert!(certain(0).own);
        assert_eq!(
            certain(20),
            Contributors::default(),
            "either may be the largest"
        );
        // A loop's repeated calls were measured themselves: they are no doubt the loop's.
        let call = touched(1, 0, 1_000, 1_000, 1);
        let looping = divide(&call, &[touched(2, 0, 40, 900, 23)]);
        assert!(certainly_largest(&looping, Resolution::default(), Ticks(100)).own);
    }

    #[test]
    fn all_in_the_bucket_of_the_largest_contribute() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let callees = [touched(2, 0, 300, 300, 1), touched(3, 300, 400, 400, 1)];
        let largest = largest(&divide(&call, &callees), Resolution::default());
        assert!(largest.own, "300 ticks are in the bucket of 400");
        assert_eq!(largest.callees, [FnodeId(2), FnodeId(3)]);
    }

    #[test]
    fn a_callee_of_another_call_of_the_parent_is_not_charged_to_the_longest() {
        // 100 ticks of its own at 0; then 90 ticks at 200, of which the callee took 85.
        let parent = touched(2, 0, 100, 190, 2);
        let shares = divide(&parent, &[touched(3, 202, 85, 85, 1)]);
        assert_eq!(shares.own, Ticks(100));
        // The same, but the callee took 40 within the longest call too.
        let shares = divide(&parent, &[touched(3, 202, 85, 125, 2)]);
        assert_eq!(shares.own, Ticks(60));
        // Within the longest call it counts with its own longest.
        let shares = divide(&parent, &[touched(3, 50, 45, 45, 1)]);
        assert_eq!(shares.own, Ticks(55));
    }

    #[test]
    fn more_time_in_callees_than_in_the_call_leaves_nothing() {
        let call = touched(1, 0, 100, 100, 1);
        let callees = [touched(2, 0, 80, 80, 1), touched(3, 0, 300, 300, 1)];
        let shares = divide(&call, &callees);
        assert_eq!(shares.own, Ticks(0));
        assert_eq!(shares.callees[1].1, Ticks(100));
        let nothing = divide(&touched(1, 0, 0, 0, 1), &[touched(2, 0, 0, 0, 1)]);
        assert_eq!(
            largest(&nothing, Resolution::default()),
            Contributors::default()
        );
    }

    #[test]
    fn the_threshold_is_a_part_of_the_largest_maxcount() {
        assert_eq!(threshold(20, 0.9), 18);
        assert_eq!(threshold(20, 1.0), 20);
        assert_eq!(threshold(19, 0.9), 18);
        assert_eq!(threshold(20, 0.0), 1);
        assert_eq!(threshold(0, 0.5), 1);
    }
}
