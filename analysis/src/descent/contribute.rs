//! Who took the time of one op: the function itself or its callees (DARC, SIGMETRICS 2008, section 3).

use darc_record::{FnodeId, Ticks, Touched};

use crate::descent::share::SINGLE;

/// How the calls of an fnode in one op divide.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Shares {
    /// What no callee accounts for.
    pub own: Ticks,
    /// The part of `own` that went into repeated calls of callees, each of them short.
    pub repeated: Ticks,
    /// What each callee accounts for: its longest call in each of the caller's, and the others only where they are long on
    /// average, so that a loop over short calls is the caller's time and long calls in a loop are the callee's.
    pub callees: Vec<(FnodeId, Ticks)>,
    /// How many calls were measured within them.
    pub calls: u64,
    /// How many of these were repeated.
    pub repeated_calls: u64,
}

impl Shares {
    /// The part of `own` that is a loop's: its calls, and what measuring each of them may have left beside it.
    pub(crate) fn of_loop(&self, noise: Ticks) -> Ticks {
        let left = Ticks(noise.0.saturating_mul(self.repeated_calls));
        (self.repeated + left).min(self.own)
    }

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

/// Calls with this part of their caller's time or more are long. Ten equal ones are not, by however little the clock says that
/// they differ; nine are.
const LONG: f64 = 0.105;
/// Long calls that have this part of the time are long also where a short one may seem so,
const HALF: f64 = 0.5;
/// ... unless these seem to be this long.
const INEXACT: Ticks = Ticks(1 << 13);

/// So many calls of a function in a call of another are no loop.
pub(crate) const FEW: f64 = 4.0;

/// Divides all of an fnode's calls in an op among the function itself and the callees seen in the op. Calls that take what `long`
/// says of their fnode, or more, are no short ones, however many they are.
pub(crate) fn divide<'a>(
    call: &Touched,
    callees: impl IntoIterator<Item = &'a Touched>,
    long: impl Fn(FnodeId) -> Ticks,
) -> Shares {
    let mut shares = Shares::default();
    let mut attributed = Ticks(0);
    for callee in callees {
        // No part is longer than the whole, whatever the clocks of two CPUs say.
        let share = accounted_for(call, callee, long(callee.fnode)).min(call.sum);
        attributed = attributed + share;
        shares.repeated = shares.repeated + callee.sum.saturating_sub(share);
        shares.calls = shares.calls.saturating_add(callee.count);
        if share < callee.sum {
            shares.repeated_calls = shares.repeated_calls.saturating_add(callee.count);
        }
        shares.callees.push((callee.fnode, share));
    }
    shares.own = call.sum.saturating_sub(attributed);
    shares.repeated = shares.repeated.min(shares.own);
    shares
}

/// What a callee accounts for of its caller's time: all of it where its calls are long, by themselves or beside the caller's, or
/// few in each of these, and otherwise the longest call in each, or those that are long.
pub(crate) fn accounted_for(call: &Touched, callee: &Touched, long: Ticks) -> Ticks {
    let others = callee.sum.saturating_sub(callee.max);
    let mean = others.0 as f64 / callee.count.saturating_sub(1).max(1) as f64;
    let length = typical(call);
    let callers = (call.sum.0 as f64 / length.max(1.0)).round().max(1.0);
    // Few in each real call, of which one may have been much longer than the others.
    let fits = others <= call.sum.saturating_sub(call.max);
    let is_few = |callers: f64| callee.count as f64 <= FEW * callers;
    let is_long = mean >= long.0 as f64 || mean >= LONG * length;
    if is_long || is_few(callers) || (fits && is_few(call.count as f64)) {
        return callee.sum;
    }
    let longest = callee.max + Ticks((mean * (callers - 1.0)) as u64);
    // What takes so long may be the probes, in some calls.
    let is_exact = long <= Touched::LONG;
    let are_most = callee.long.0 as f64 >= HALF * callee.sum.0 as f64;
    match is_exact || (long <= INEXACT && are_most) {
        true => longest.max(callee.long),
        false => longest,
    }
}

/// How long the call is in which a moment of an fnode's time falls on average. Calls of which only one is long count as
/// hardly more than that one.
fn typical(call: &Touched) -> f64 {
    let (max, sum) = (call.max.0 as f64, call.sum.0 as f64);
    let others = (sum - max).max(0.0);
    let squares = max * max + others * others / call.count.saturating_sub(1).max(1) as f64;
    squares / sum.max(1.0)
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

    /// Whatever is long is so beside its caller.
    fn by_length<'a>(call: &Touched, callees: impl IntoIterator<Item = &'a Touched>) -> Shares {
        divide(call, callees, |_| Ticks(u64::MAX))
    }

    fn touched(fnode: u32, start: u64, max: u64, sum: u64, count: u64) -> Touched {
        Touched {
            fnode: FnodeId(fnode),
            max: Ticks(max),
            max_start: Tsc(start),
            sum: Ticks(sum),
            count,
            long: Ticks(0),
        }
    }

    #[test]
    fn a_slow_call_in_a_loop_is_the_callees_time_and_the_loop_is_the_callers() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let shares = by_length(&call, &[touched(2, 10, 700, 900, 21)]);
        assert_eq!(shares.own, Ticks(300));
        assert_eq!(shares.repeated, Ticks(200));
        let main = main_contributors(&shares, call.max);
        assert_eq!((main.own, main.callees), (false, vec![FnodeId(2)]));
    }

    #[test]
    fn a_few_long_calls_are_no_loop() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let shares = by_length(&call, &[touched(2, 0, 500, 1_000, 2)]);
        assert_eq!((shares.own, shares.callees[0].1), (Ticks(0), Ticks(1_000)));
        assert_eq!(shares.repeated, Ticks(0));
        // The same in two calls of the parent.
        let twice = touched(1, 0, 1_000, 1_996, 2);
        let shares = by_length(&twice, &[touched(2, 0, 499, 1_996, 4)]);
        assert_eq!((shares.own, shares.repeated), (Ticks(0), Ticks(0)));
        let looping = by_length(&call, &[touched(2, 0, 50, 1_000, 20)]);
        assert_eq!((looping.own, looping.repeated), (Ticks(950), Ticks(950)));
        // 550 ticks beside the calls of a loop, which may be what measuring them has left.
        let looping = by_length(
            &call,
            &[touched(2, 0, 20, 400, 20), touched(3, 0, 50, 50, 1)],
        );
        let of_loop = |noise| looping.of_loop(Ticks(noise));
        assert_eq!(of_loop(0), Ticks(380));
        assert_eq!(
            of_loop(10),
            Ticks(580),
            "of twenty calls, not of the other one"
        );
        assert_eq!(of_loop(50), looping.own);
    }

    #[test]
    fn own_time_that_may_be_the_probes_decides_nothing() {
        // 300 ticks seem to be the function's own, beside 20 calls, the longest of 200 ticks.
        let call = touched(1, 0, 600, 600, 1);
        let callees = [touched(2, 0, 200, 200, 1), touched(3, 200, 6, 100, 19)];
        let shares = by_length(&call, &callees);
        let certain = |noise| certainly(shares.clone(), call.max, Ticks(noise));
        assert!(certain(0).unwrap().1.own);
        assert_eq!(certain(20), None, "either may be the largest");
        // A loop's repeated calls were measured themselves: they are no doubt the loop's.
        let call = touched(1, 0, 1_000, 1_000, 1);
        let looping = by_length(&call, &[touched(2, 0, 40, 900, 23)]);
        assert!(certainly(looping, call.max, Ticks(100)).unwrap().1.own);
    }

    #[test]
    fn half_of_the_largest_contributes() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let callees = [touched(2, 0, 250, 250, 1), touched(3, 300, 500, 500, 1)];
        let main = main_contributors(&by_length(&call, &callees), call.max);
        assert!(main.own);
        assert_eq!(main.callees, [FnodeId(2), FnodeId(3)]);
        let callees = [touched(2, 0, 249, 249, 1), touched(3, 300, 500, 500, 1)];
        let main = main_contributors(&by_length(&call, &callees), call.max);
        assert_eq!(main.callees, [FnodeId(3)]);
    }

    #[test]
    fn nobody_contributes_to_a_time_that_is_spread() {
        let call = touched(1, 0, 1_000, 1_000, 1);
        let callees: Vec<Touched> = (0..4)
            .map(|at| touched(2 + at, u64::from(at) * 200, 200, 200, 1))
            .collect();
        let main = main_contributors(&by_length(&call, &callees), call.max);
        assert_eq!(main, Contributors::default());
    }

    #[test]
    fn all_calls_of_a_function_are_divided() {
        // 100 ticks of its own; then 90 ticks, of which the callee took 85.
        let parent = touched(2, 0, 100, 190, 2);
        let shares = by_length(&parent, &[touched(3, 202, 85, 85, 1)]);
        assert_eq!(shares.own, Ticks(105));
        // A hundred calls of 10 ticks, in each of which the callee takes 9, and one of 50 that another one takes.
        let parent = touched(2, 0, 50, 1_040, 100);
        let callees = [touched(3, 5, 9, 891, 99), touched(4, 900, 49, 49, 1)];
        let shares = by_length(&parent, &callees);
        assert_eq!((shares.own, shares.repeated), (Ticks(100), Ticks(0)));
        let main = main_contributors(&shares, parent.sum);
        assert_eq!((main.own, main.callees), (false, vec![FnodeId(3)]));
    }

    #[test]
    fn one_long_call_among_many_makes_no_loop_of_the_others() {
        // The callee takes nine tenths of every call.
        for (calls, each, long) in [
            (1_000, 1_000, 100_000),
            (100, 1_000, 50_000),
            (10_000, 1_000, 400_000),
            (1_000, 1_000, 50_000),
        ] {
            let sum = (calls - 1) * each + long;
            let parent = touched(2, 0, long, sum, calls);
            let callee = touched(3, 0, long / 10 * 9, sum / 10 * 9, calls);
            let shares = by_length(&parent, &[callee]);
            assert!(shares.own.0 <= sum / 9, "{calls} {long}: {shares:?}");
        }
    }

    #[test]
    fn ten_equal_calls_are_a_loop_whatever_the_clock_says() {
        for difference in [-20, 0, 20, 500] {
            let longest = 100_000_u64;
            let sum = 10 * longest - 9 * 10;
            let call = touched(1, 0, 0, sum.saturating_add_signed(difference), 1);
            let call = Touched {
                max: call.sum,
                ..call
            };
            let shares = by_length(&call, &[touched(2, 0, longest, sum, 10)]);
            assert!(shares.repeated.0 > sum / 2, "{difference}: {shares:?}");
            let nine = sum - longest;
            let call = touched(1, 0, nine, nine.saturating_add_signed(difference), 1);
            let shares = by_length(&call, &[touched(2, 0, longest, nine, 9)]);
            assert_eq!(shares.repeated, Ticks(0), "{difference}");
        }
    }

    #[test]
    fn long_calls_are_the_callees_time_however_many_they_are() {
        let call = touched(1, 0, 100_000, 100_000, 1);
        let callees = [
            touched(2, 0, 3_100, 60_000, 20),
            touched(3, 0, 100, 40_000, 400),
        ];
        let shares = divide(&call, &callees, |_| Ticks(2_048));
        assert_eq!(
            shares.callees,
            [(FnodeId(2), Ticks(60_000)), (FnodeId(3), Ticks(100))]
        );
        assert_eq!(shares.repeated, Ticks(39_900));
    }

    #[test]
    fn long_calls_among_many_short_ones_are_the_callees_time() {
        // So many calls of 300 ticks, so many of that length, and work of the caller's own.
        for (short, count, length) in [(4_975, 25, 240_000), (5_000, 2, 7_500_000)] {
            let (sum, long) = (300 * short + count * length, count * length);
            let call = touched(1, 0, sum + 100_000, sum + 100_000, 1);
            let callee = Touched {
                long: Ticks(long),
                ..touched(2, 0, length, sum, short + count)
            };
            let shares = divide(&call, &[callee], |_| Ticks(2_048));
            assert_eq!(shares.callees[0].1, Ticks(long));
            assert_eq!(shares.repeated, Ticks(300 * short));
        }
    }

    #[test]
    fn a_loop_in_one_of_many_calls_is_a_loop() {
        // Of a hundred calls one took 1,000 of 1,099 ticks, in twenty calls of 50.
        let parent = touched(2, 0, 1_000, 1_099, 100);
        let shares = by_length(&parent, &[touched(3, 0, 50, 1_000, 20)]);
        assert_eq!(shares.callees[0].1, Ticks(50));
        assert_eq!((shares.own, shares.repeated), (Ticks(1_049), Ticks(950)));
        // In each of ten calls a loop over a hundred: the longest in each is the callee's.
        let parent = touched(2, 0, 100, 1_000, 10);
        let shares = by_length(&parent, &[touched(3, 0, 1, 1_000, 1_000)]);
        let ends = shares.callees[0].1;
        assert!(
            ends < Ticks(11) && shares.repeated > Ticks(980),
            "{shares:?}"
        );
    }

    #[test]
    fn more_time_in_callees_than_in_the_call_leaves_nothing() {
        let call = touched(1, 0, 100, 100, 1);
        let callees = [touched(2, 0, 80, 80, 1), touched(3, 0, 300, 300, 1)];
        let shares = by_length(&call, &callees);
        assert_eq!(shares.own, Ticks(0));
        assert_eq!(shares.callees[1].1, Ticks(100));
        let nothing = by_length(&touched(1, 0, 0, 0, 1), &[touched(2, 0, 0, 0, 1)]);
        assert_eq!(
            main_contributors(&nothing, Ticks(0)),
            Contributors::default()
        );
    }
}
