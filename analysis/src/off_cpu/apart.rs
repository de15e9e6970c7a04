//! Time away, taken out of the op that it struck.
//!
//! An op tells of each fnode one longest call, when that began and what all calls took together. What strikes
//! the longest calls is taken out of them; which of the other calls it strikes is not known, and each has its part by its length.

use std::collections::BTreeMap;

use darc_record::{FnodeId, Op, Ticks, Touched, Tsc};

use crate::descent::ftree::{Absence, Expansion, Ftree};
use crate::off_cpu::faults::{tell_faults, touching};
use crate::off_cpu::{Away, Interval};

/// What of an op is left when time away is taken out, and where that time went.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) op: Op,
    /// By fnode: the deepest one that was current, or the absence.
    pub(crate) waits: Vec<(FnodeId, Interval)>,
}

/// The deepest fnode whose longest call holds the interval; f0 when there is none.
pub(crate) fn current(ftree: &Ftree, op: &Op, interval: &Interval) -> FnodeId {
    let holders = op.touched.iter().filter(|touched| holds(touched, interval));
    let depth = |touched: &&Touched| ftree.get(touched.fnode).map_or(0, |fnode| fnode.depth);
    holders
        .max_by_key(depth)
        .map_or(FnodeId::ROOT, |touched| touched.fnode)
}

/// Whether the longest call of an fnode was under way. The probes' own cost is taken out of `max`, so the end is a
/// little later than it seems: what begins within counts.
fn holds(touched: &Touched, interval: &Interval) -> bool {
    touched.max_start <= interval.from
        && interval.from - touched.max_start < touched.max
        && interval.len() <= touched.max
}

/// Takes the time away out of an op: out of the calls that were struck, and into fnodes of its own. Calls of `long` or more are no
/// short ones.
pub(crate) fn apart(ftree: &mut Ftree, op: &Op, away: &[Interval], long: Ticks) -> Apart {
    let mut left = Apart {
        op: op.clone(),
        waits: Vec::new(),
    };
    let mut absent: BTreeMap<(FnodeId, Absence), (Tsc, Ticks)> = BTreeMap::new();
    let mut faults = Vec::new();
    for interval in away {
        let kind = match interval.why {
            Away::Preempted { .. } => Absence::Preempted,
            Away::Faulted { .. } => {
                faults.push((touching(ftree, op, interval), *interval));
                continue;
            }
            Away::Interrupted(kind) => kind,
            Away::Blocked { .. } => {
                let fnode = current(ftree, op, interval);
                left.waits.push((fnode, *interval));
                continue;
            }
        };
        // Where the calls were is told by the op as it was measured; their time shrinks in the copy.
        let mut struck = vec![(FnodeId::ROOT, interval.len())];
        for (before, after) in op.touched.iter().zip(&mut left.op.touched) {
            if holds(before, interval) {
                after.max = after.max.saturating_sub(interval.len());
                after.sum = after.sum.saturating_sub(interval.len());
                struck.push((before.fnode, interval.len()));
            }
        }
        let deepest = current(ftree, op, interval);
        for (at, part) in in_other_calls(ftree, op, deepest, interval.len()) {
            let time = Ticks((interval.len().0 as f64 * part) as u64);
            let after = &mut left.op.touched[at];
            after.sum = after.sum.saturating_sub(time).max(after.max);
            if interval.len() >= Touched::LONG {
                after.long = after.long.saturating_sub(time);
            }
            struck.push((after.fnode, time));
        }
        struck.retain(|(fnode, _)| *fnode == FnodeId::ROOT || is_looked_at(ftree, *fnode));
        for (fnode, time) in struck {
            let (_, sum) = absent
                .entry((fnode, kind))
                .or_insert((interval.from, Ticks(0)));
            *sum = *sum + time;
            if time == interval.len() {
                left.waits.push((ftree.absence(fnode, kind), *interval));
            }
        }
    }
    // The longest call of those that were not struck took their mean at least, which is exact for two calls.
    for (before, after) in op.touched.iter().zip(&mut left.op.touched) {
        after.long = long_without(before, after);
        let others = after.sum.saturating_sub(after.max);
        if after.max < before.max
            && let Some(mean) = others.0.checked_div(after.count.saturating_sub(1))
        {
            after.max = after.max.max(Ticks(mean));
        }
    }
    tell_faults(ftree, &mut left, &faults, op, long);
    for ((fnode, kind), (first, sum)) in absent {
        // All of it together: ten slices taken by another process are one cause.
        let sum = sum.min(op.latency);
        left.op.touched.push(Touched {
            fnode: ftree.absence(fnode, kind),
            max: sum,
            max_start: first,
            sum,
            count: 1,
            long: sum,
        });
    }
    left
}

/// The long calls of an fnode in an op, without what was taken out of the longest one.
pub(crate) fn long_without(before: &Touched, after: &Touched) -> Ticks {
    let if_long = |max: Ticks| if max >= Touched::LONG { max } else { Ticks(0) };
    let taken = if_long(before.max).saturating_sub(if_long(after.max));
    after.long.saturating_sub(taken).min(after.sum)
}

/// The other calls than the longest that something so long may have struck in the longest call of an fnode: where they are in the
/// op, and how likely each is when all moments are alike.
pub(crate) fn in_other_calls(
    ftree: &Ftree,
    op: &Op,
    deepest: FnodeId,
    len: Ticks,
) -> Vec<(usize, f64)> {
    let parent = |touched: &Touched| ftree.get(touched.fnode).and_then(|fnode| fnode.parent);
    let others = |touched: &Touched| touched.sum.saturating_sub(touched.max).0 as f64;
    let whole = call_of(op, deepest).sum.0 as f64;
    let longest = op.touched.iter().filter(|at| parent(at) == Some(deepest));
    let longest: f64 = longest.map(|touched| touched.max.0 as f64).sum();
    let mut found: Vec<(usize, f64)> = Vec::new();
    let mut below = vec![(deepest, 1.0, (whole - longest).max(1.0))];
    while let Some((caller, part, time)) = below.pop() {
        let called = op.touched.iter().enumerate();
        let called = called.filter(|(_, touched)| {
            parent(touched) == Some(caller)
                && touched.max >= len
                && others(touched) >= (len.0 as f64).max(1.0)
        });
        for (at, touched) in called {
            let part = part * (others(touched) / time).min(1.0);
            found.push((at, part));
            below.push((touched.fnode, part, others(touched)));
        }
    }
    found
}

/// All calls of an fnode in an op.
pub(crate) fn call_of(op: &Op, fnode: FnodeId) -> Touched {
    let call = op.touched.iter().find(|touched| touched.fnode == fnode);
    call.copied().unwrap_or(Touched {
        fnode,
        max: op.latency,
        max_start: op.start,
        sum: op.latency,
        count: 1,
        long: op.latency,
    })
}

/// Whether an fnode's own calls are measured.
pub(crate) fn is_looked_at(ftree: &Ftree, fnode: FnodeId) -> bool {
    let expansion = ftree.get(fnode).map(|fnode| &fnode.expansion);
    matches!(expansion, Some(Expansion::Complete(_)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::descent::ftree::{Callee, CalleeId};
    use crate::off_cpu::OtherId;
    use crate::{Analysis, Params};
    use darc_record::SiteId;

    pub(crate) fn interval(from: u64, to: u64, why: Away) -> Interval {
        Interval {
            from: Tsc(from),
            to: Tsc(to),
            why,
        }
    }

    pub(crate) const BY: Away = Away::Preempted {
        by: Some(OtherId(7)),
    };

    pub(crate) const FAULT: Away = Away::Faulted {
        blocked: Ticks(0),
        by: None,
    };

    pub(crate) fn touched(fnode: FnodeId, start: u64, max: u64) -> Touched {
        Touched {
            fnode,
            max: Ticks(max),
            max_start: Tsc(start),
            long: Ticks(0),
            sum: Ticks(max),
            count: 1,
        }
    }

    pub(crate) fn op(latency: u64, touched: Vec<Touched>) -> Op {
        Op {
            tid: 1,
            start: Tsc(1_000),
            end: Tsc(1_000 + latency),
            latency: Ticks(latency),
            arguments: darc_record::Arguments::default(),
            touched,
        }
    }

    /// Whatever calls are long are so beside their callers.
    pub(crate) fn apart_of(ftree: &mut Ftree, op: &Op, away: &[Interval]) -> Apart {
        apart(ftree, op, away, Ticks(u64::MAX))
    }

    pub(crate) fn tree() -> (Ftree, FnodeId, FnodeId) {
        let mut ftree = Ftree::new();
        let callee = |id| Callee::Function(CalleeId(id));
        let g = ftree.add_child(FnodeId::ROOT, SiteId(1), callee(1));
        let h = ftree.add_child(g, SiteId(2), callee(2));
        (ftree, g, h)
    }

    #[test]
    fn preemption_is_taken_out_of_all_that_were_current() {
        let (mut ftree, g, h) = tree();
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 8_000), touched(h, 3_000, 6_000)],
        );
        // In h; in g after h; in f0 before both.
        let away = [
            interval(4_000, 8_000, BY),
            interval(9_500, 9_600, BY),
            interval(1_100, 1_150, BY),
        ];
        let left = apart_of(&mut ftree, &measured, &away);
        let preempted = ftree.absence(FnodeId::ROOT, Absence::Preempted);
        let of = |fnode| {
            left.op
                .touched
                .iter()
                .find(|touched| touched.fnode == fnode)
                .unwrap()
        };
        assert_eq!(of(h).max, Ticks(2_000));
        assert_eq!(of(g).max, Ticks(3_900));
        assert_eq!(of(preempted).max, Ticks(4_150));
        assert_eq!(left.op.latency, measured.latency);
        assert_eq!(ftree.fnode(preempted).parent, Some(FnodeId::ROOT));
    }

    /// Of 400 calls some were long: the longest, and others of 30,000 together.
    #[test]
    fn time_away_made_no_call_long() {
        for (from, to, left_of_longest, least, most) in [
            // In the longest call, of which enough is left to be long, or not.
            (4_000, 14_000, 10_000, 40_000, 40_000),
            (4_000, 22_000, 2_000, 30_000, 30_000),
            // In another one, or in g itself.
            (40_000, 55_000, 20_000, 35_001, 49_999),
        ] {
            let (mut ftree, g, h) = tree();
            let many = Touched {
                sum: Ticks(60_000),
                count: 400,
                long: Ticks(50_000),
                ..touched(h, 3_000, 20_000)
            };
            let measured = op(100_000, vec![touched(g, 2_000, 90_000), many]);
            let left = apart_of(&mut ftree, &measured, &[interval(from, to, BY)]);
            let of_h = left.op.touched.iter().find(|touched| touched.fnode == h);
            let of_h = of_h.expect("it was called");
            assert_eq!(of_h.max, Ticks(left_of_longest));
            assert!(
                (Ticks(least)..=Ticks(most)).contains(&of_h.long),
                "{of_h:?}"
            );
        }
    }

    #[test]
    fn another_call_is_the_longest_without_the_time_away() {
        let (mut ftree, g, _) = tree();
        // 30 µs, and 41 µs of which 40 are preempted, in one part or in two.
        let twice = Touched {
            sum: Ticks(71),
            count: 2,
            ..touched(g, 2_000, 41)
        };
        let measured = op(100, vec![twice]);
        let one = [interval(2_001, 2_041, BY)];
        let two = [interval(2_001, 2_021, BY), interval(2_021, 2_041, BY)];
        for away in [&one[..], &two[..]] {
            let left = apart_of(&mut ftree, &measured, away).op;
            assert_eq!(
                (left.touched[0].max, left.touched[0].sum),
                (Ticks(30), Ticks(31))
            );
            // What its callees compete for is the call as it was.
            let mut analysis = Analysis::new(Params::default());
            analysis.expect_absences();
            let callee = Callee::Function(CalleeId(1));
            let g = analysis.add_child(FnodeId::ROOT, SiteId(1), callee);
            analysis.add_child(g, SiteId(2), callee);
            analysis.expanded(g, Tsc(0));
            let again = Touched { fnode: g, ..twice };
            let Apart { op: left, .. } = apart_of(&mut analysis.ftree, &op(100, vec![again]), away);
            analysis.as_measured(&[again]);
            assert_eq!(analysis.whole(&left.touched[0]), again);
        }
        // Nothing was taken out of it, and the other call is too short: both stay what they are.
        let left = apart_of(&mut ftree, &measured, &[interval(1_001, 1_041, BY)]).op;
        assert_eq!(left.touched[0], twice);
    }

    /// Ten calls that take all of the time but their caller's tenth, and what strikes none of the longest. What is longer than
    /// these struck none.
    #[test]
    fn what_strikes_other_calls_is_taken_out_of_all_by_their_length() {
        let (mut ftree, g, h) = tree();
        let ten = |fnode| Touched {
            sum: Ticks(9_000),
            count: 10,
            ..touched(fnode, 2_000, 900)
        };
        let measured = op(10_000, vec![ten(g), ten(h)]);
        let left = apart_of(&mut ftree, &measured, &[interval(5_000, 5_900, BY)]).op;
        // 8,100 of the 9,100 cycles outside of the longest call.
        assert_eq!(left.touched[0].sum, Ticks(9_000 - 801));
        assert_eq!(left.touched[1].sum, Ticks(9_000 - 801));
        assert_eq!(
            (left.touched[0].max, left.touched[2].sum),
            (Ticks(900), Ticks(900))
        );
        let left = apart_of(&mut ftree, &measured, &[interval(5_000, 5_901, BY)]).op;
        assert_eq!(left.touched[..2], measured.touched[..]);
    }

    #[test]
    fn a_wait_stays_with_the_deepest_that_waited() {
        let (mut ftree, g, h) = tree();
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 8_000), touched(h, 3_000, 6_000)],
        );
        let blocked = Away::Blocked {
            woken: Some(Tsc(7_500)),
            by: Some(OtherId(3)),
        };
        let left = apart_of(&mut ftree, &measured, &[interval(4_000, 8_000, blocked)]);
        assert_eq!(left.op, measured, "nothing is taken out");
        assert_eq!(left.waits[0].0, h);
        let early = apart_of(&mut ftree, &measured, &[interval(2_100, 2_200, blocked)]);
        assert_eq!(early.waits[0].0, g);
        let outside = apart_of(&mut ftree, &measured, &[interval(1_100, 1_200, blocked)]);
        assert_eq!(outside.waits[0].0, FnodeId::ROOT);
    }
}
