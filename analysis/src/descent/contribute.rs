//! Who took the time of one op: the function itself or its callees (DARC, SIGMETRICS 2008, section 3).

use darc_record::{FnodeId, Ticks, Touched};

use crate::descent::share::{LEAST, SINGLE};

/// How the longest call of an fnode in one op divides.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Shares {
    /// What no callee accounts for.
    pub own: Ticks,
    /// The part of `own` that went into further calls of callees beside their longest one.
    pub repeated: Ticks,
    /// What each callee accounts for: its longest call, and the others only where they are long on average, so that a
    /// loop over short calls is the caller's time and a long call in a loop is the callee's.
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
        let longest = if is_within(call, callee) {
            callee.max
        } else {
            let calls = (callee.count.saturating_sub(1)).max(call.count.saturating_sub(1));
            Ticks(others.0.checked_div(calls).unwrap_or(0))
        };
        let further = further(call, callee);
        // No part is longer than the whole, whatever the clocks of two CPUs say.
        let share = (longest + further.unwrap_or(Ticks(0))).min(call.max);
        attributed = attributed + share;
        // `sum` covers all calls of the parent, `own` only the longest.
        if further.is_none() {
            shares.repeated = shares.repeated + Ticks(others.0 / call.count.max(1));
        }
        shares.calls = shares
            .calls
            .saturating_add(callee.count / call.count.max(1));
        shares.callees.push((callee.fnode, share));
    }
    shares.own = call.max.saturating_sub(attributed);
    shares.repeated = shares.repeated.min(shares.own);
    shares
}

/// What a callee's calls beside its longest one took of the parent's longest call; nothing where they are short, as in a
/// loop.
fn further(call: &Touched, callee: &Touched) -> Option<Ticks> {
    let within = (callee.count / call.count.max(1)).saturating_sub(1);
    let others = callee.sum.saturating_sub(callee.max);
    let mean = others.0.checked_div(callee.count.saturating_sub(1))?;
    let is_long = mean as f64 >= LEAST * call.max.0 as f64;
    is_long.then(|| Ticks(mean.saturating_mul(within)))
}

fn is_within(call: &Touched, callee: &Touched) -> bool {
    call.count <= 1
        || (callee.max_start >= call.max_start && callee.max_start - call.max_start <= call.max)
}

/// The main contributors of a division: who took half of the largest part or more.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Contributors {
    /// The function itself is one.
    pub own: bool,
    /// These callees are.
    pub callees: Vec<FnodeId>,
}

/// Those with half of the largest part or more; nobody where the largest is no single cause of the time.
pub(crate) fn main_contributors(shares: &Shares, whole: Ticks) -> Contributors {
    let latencies = shares.callees.iter().map(|&(_, latency)| latency);
    let longest = latencies.fold(shares.own, Ticks::max);
    let is_spread = (longest.0 as f64) < SINGLE * whole.0 as f64;
    let counts = |latency: Ticks| {
        latency > Ticks(0) && !is_spread && latency.0 >= longest.0.saturating_sub(latency.0)
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

/// The division and its main contributors as far as they are certain: the variation of the probes is in what seems the
/// function's own time. Nothing when that decides who is the largest.
pub(crate) fn certainly(
    shares: Shares,
    whole: Ticks,
    noise: Ticks,
) -> Option<(Shares, Contributors)> {
    let most = main_contributors(&shares, whole);
    let least_own = shares.with_least_own(noise);
    let least = main_contributors(&least_own, whole);
    let callees = shares.callees.iter().map(|&(_, latency)| latency);
    let longest = callees.fold(Ticks(0), Ticks::max);
    if (shares.own > longest) != (least_own.own > longest) {
        return None;
    }
    Some(match most.own == least.own {
        true => (shares, most),
        false => (least_own, least),
    })
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
        let main = main_contributors(&shares, call.max);
        assert_eq!((main.own, main.callees), (false, vec![FnodeId(2)]));
    }

    #[test]
    fn a_few_long_calls_are_no_loop() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let shares = divide(&call, &[touched(2, 0, 500, 1_000, 2)]);
        assert_eq!((shares.own, shares.callees[0].1), (Ticks(0), Ticks(1_000)));
        assert_eq!(shares.repeated, Ticks(0));
        // The same twice, whichever of the parent's calls held the callee's longest.
        for start in [0, 2_000] {
            let call = touched(1, 0, 1_000, 1_996, 2);
            let shares = divide(&call, &[touched(2, start, 499, 1_996, 4)]);
            assert_eq!(shares.repeated, Ticks(0));
            assert!(shares.own < Ticks(5));
        }
        let looping = divide(&call, &[touched(2, 0, 50, 1_000, 20)]);
        assert_eq!((looping.own, looping.repeated), (Ticks(950), Ticks(950)));
    }

    #[test]
    fn own_time_that_may_be_the_probes_decides_nothing() {
        // 300 ticks seem to be the function's own, beside 20 calls, the longest of 200 ticks.
        let call = touched(1, 0, 600, 600, 1);
        let callees = [touched(2, 0, 200, 200, 1), touched(3, 200, 6, 100, 19)];
        let shares = divide(&call, &callees);
        let certain = |noise| certainly(shares.clone(), call.max, Ticks(noise));
        assert!(certain(0).unwrap().1.own);
        assert_eq!(certain(20), None, "either may be the largest");
        // A loop's repeated calls were measured themselves: they are no doubt the loop's.
        let call = touched(1, 0, 1_000, 1_000, 1);
        let looping = divide(&call, &[touched(2, 0, 40, 900, 23)]);
        assert!(certainly(looping, call.max, Ticks(100)).unwrap().1.own);
    }

    #[test]
    fn half_of_the_largest_contributes() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let callees = [touched(2, 0, 250, 250, 1), touched(3, 300, 500, 500, 1)];
        let main = main_contributors(&divide(&call, &callees), call.max);
        assert!(main.own);
        assert_eq!(main.callees, [FnodeId(2), FnodeId(3)]);
        let callees = [touched(2, 0, 249, 249, 1), touched(3, 300, 500, 500, 1)];
        let main = main_contributors(&divide(&call, &callees), call.max);
        assert_eq!(main.callees, [FnodeId(3)]);
    }

    #[test]
    fn nobody_contributes_to_a_time_that_is_spread() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let callees: Vec<Touched> = (0..4)
            .map(|at| touched(2 + at, u64::from(at) * 200, 200, 200, 1))
            .collect();
        let main = main_contributors(&divide(&call, &callees), call.max);
        assert_eq!(main, Contributors::default());
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
            main_contributors(&nothing, Ticks(0)),
            Contributors::default()
        );
    }
}
