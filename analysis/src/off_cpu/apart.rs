//! Time away, taken out of the op that it struck.
//!
//! An op tells of each fnode one longest call, when that began and what all calls took together. What strikes
//! the longest calls is taken out of them; what strikes other calls cannot be told from their own time.
//!
//! Page faults are no accident of a moment: the function that touches the memory makes them, whenever it runs. They stay in
//! its time and that of its callers, and are a callee of the function that they struck in.

use std::collections::BTreeMap;

use darc_record::{FnodeId, Op, Ticks, Touched, Tsc};

use crate::descent::contribute::accounted_for;
use crate::descent::ftree::{Absence, Expansion, Ftree};
use crate::descent::share::LEAST;
use crate::off_cpu::{Away, Interval};

/// What of an op is left when time away is taken out, and where that time went.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) op: Op,
    /// By fnode: the deepest one that was current, or the absence.
    pub(crate) waits: Vec<(FnodeId, Interval)>,
}

/// The deepest fnode whose longest call holds the interval; f0 when there is none.
fn current(ftree: &Ftree, op: &Op, interval: &Interval) -> FnodeId {
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

/// Takes the time away out of an op: out of the calls that were struck, and into fnodes of its own.
pub(crate) fn apart(ftree: &mut Ftree, op: &Op, away: &[Interval]) -> Apart {
    let mut left = Apart {
        op: op.clone(),
        waits: Vec::new(),
    };
    let mut absent: BTreeMap<(FnodeId, Absence), (Tsc, Ticks)> = BTreeMap::new();
    let mut faults = Vec::new();
    for interval in away {
        let kind = match interval.why {
            Away::Preempted { .. } => Absence::Preempted,
            Away::Interrupted(Absence::PageFault) => {
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
        let mut struck = vec![FnodeId::ROOT];
        for (before, after) in op.touched.iter().zip(&mut left.op.touched) {
            if holds(before, interval) {
                after.max = after.max.saturating_sub(interval.len());
                after.sum = after.sum.saturating_sub(interval.len());
                let fnode = ftree.get(before.fnode);
                if fnode.is_some_and(|fnode| matches!(fnode.expansion, Expansion::Complete(_))) {
                    struck.push(before.fnode);
                }
            }
        }
        for fnode in struck {
            let (_, sum) = absent
                .entry((fnode, kind))
                .or_insert((interval.from, Ticks(0)));
            *sum = *sum + interval.len();
            left.waits.push((ftree.absence(fnode, kind), *interval));
        }
    }
    // The longest call of those that were not struck took their mean at least, which is exact for two calls.
    for (before, after) in op.touched.iter().zip(&mut left.op.touched) {
        let others = after.sum.saturating_sub(after.max);
        if after.max < before.max
            && let Some(mean) = others.0.checked_div(after.count.saturating_sub(1))
        {
            after.max = after.max.max(Ticks(mean));
        }
    }
    tell_faults(ftree, &mut left, &faults, op);
    for ((fnode, kind), (first, sum)) in absent {
        // All of it together: ten slices taken by another process are one cause.
        let sum = sum.min(op.latency);
        left.op.touched.push(Touched {
            fnode: ftree.absence(fnode, kind),
            max: sum,
            max_start: first,
            sum,
            count: 1,
        });
    }
    left
}

/// The fnode whose function touched the memory. How long the fault took beyond its records is an estimate, half of it on
/// either side: its middle is what is known to be in the call.
fn touching(ftree: &Ftree, op: &Op, fault: &Interval) -> FnodeId {
    let middle = Tsc(fault.from.0.saturating_add(fault.len().0 / 2));
    let at = Interval {
        from: middle,
        to: middle,
        ..*fault
    };
    current(ftree, op, &at)
}

/// Makes page faults a callee of the fnodes that they struck in, as far as their time is not a callee's: short calls of a loop are the
/// caller's time, and so are the faults in them.
/// Where an fnode's own calls are not looked at they have a place as soon as they are a tenth of its longest call.
fn tell_faults(ftree: &mut Ftree, left: &mut Apart, faults: &[(FnodeId, Interval)], op: &Op) {
    let mut struck: BTreeMap<FnodeId, (Tsc, Ticks)> = BTreeMap::new();
    for (fnode, fault) in faults {
        let (_, sum) = struck.entry(*fnode).or_insert((fault.from, Ticks(0)));
        *sum = *sum + fault.len();
    }
    for (fnode, (first, sum)) in struck {
        let call = op.touched.iter().find(|touched| touched.fnode == fnode);
        let call = call.copied().unwrap_or(Touched {
            fnode,
            max: op.latency,
            max_start: op.start,
            sum: op.latency,
            count: 1,
        });
        let expansion = ftree.get(fnode).map(|fnode| &fnode.expansion);
        let is_looked_at = matches!(expansion, Some(Expansion::Complete(_)));
        let is_much = sum.0 as f64 >= LEAST * call.max.0 as f64;
        if expansion.is_none() || !(is_looked_at || is_much) {
            continue;
        }
        let is_called = |touched: &&Touched| {
            let callee = ftree.get(touched.fnode);
            callee.is_some_and(|callee| callee.parent == Some(fnode))
        };
        let called = op.touched.iter().filter(is_called);
        let called = called.fold(Ticks(0), |sum, callee| sum + accounted_for(&call, callee));
        let sum = sum.min(call.sum.saturating_sub(called));
        let absence = ftree.absence(fnode, Absence::PageFault);
        let here = faults.iter().filter(|(at, _)| *at == fnode);
        let here = here.map(|&(_, fault)| (absence, fault));
        left.waits.extend(here);
        left.op.touched.push(Touched {
            fnode: absence,
            max: sum,
            max_start: first,
            sum,
            count: 1,
        });
    }
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

    pub(crate) fn touched(fnode: FnodeId, start: u64, max: u64) -> Touched {
        Touched {
            fnode,
            max: Ticks(max),
            max_start: Tsc(start),
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

    fn tree() -> (Ftree, FnodeId, FnodeId) {
        let mut ftree = Ftree::new();
        let callee = Callee::Function(CalleeId(1));
        let g = ftree.add_child(FnodeId::ROOT, SiteId(1), callee);
        let h = ftree.add_child(g, SiteId(2), callee);
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
        let left = apart(&mut ftree, &measured, &away);
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
            let left = apart(&mut ftree, &measured, away).op;
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
            let Apart { op: left, .. } = apart(&mut analysis.ftree, &op(100, vec![again]), away);
            analysis.as_measured(&[again]);
            assert_eq!(analysis.whole(&left.touched[0]), again);
        }
        // Nothing was taken out: the longest stays what it is.
        let left = apart(&mut ftree, &measured, &[interval(1_001, 1_041, BY)]).op;
        assert_eq!(left.touched[0], twice);
    }

    /// The page fault of the function's first instruction, which seems to begin before the call and to be longer.
    #[test]
    fn a_page_fault_is_the_time_of_who_touches_the_memory() {
        let (mut ftree, g, h) = tree();
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 8_000), touched(h, 3_000, 6_000)],
        );
        let fault = interval(2_900, 9_100, Away::Interrupted(Absence::PageFault));
        let left = apart(&mut ftree, &measured, &[fault]);
        let there = ftree.known_absence(h, Absence::PageFault).expect("in h");
        assert_eq!(left.waits, [(there, fault)]);
        assert_eq!(left.op.touched[..2], measured.touched[..]);
        assert_eq!(left.op.touched[2].sum, Ticks(6_000), "no more than h took");
        for above in [FnodeId::ROOT, g] {
            assert_eq!(ftree.known_absence(above, Absence::PageFault), None);
        }
    }

    /// Faults in other calls than the longest are told of by that call's time, not once more by their caller.
    #[test]
    fn page_faults_in_a_loop_are_its_callers_and_others_are_not_told_twice() {
        let (mut ftree, g, h) = tree();
        let mut told_in_g = |calls: u64, each: u64| {
            let all = Touched {
                sum: Ticks(calls * each),
                count: calls,
                ..touched(h, 3_000, each)
            };
            let measured = op(10_000, vec![touched(g, 2_000, 8_000), all]);
            let fault = |call| {
                let at = 3_005 + each * call;
                interval(at, at + each - 10, Away::Interrupted(Absence::PageFault))
            };
            let faults: Vec<_> = (0..calls).map(fault).collect();
            let left = apart(&mut ftree, &measured, &faults);
            let in_g = ftree.known_absence(g, Absence::PageFault).expect("in g");
            let told = left.op.touched.iter().find(|told| told.fnode == in_g);
            told.map(|told| told.sum)
        };
        // All but that in the longest call of h, which is told there.
        assert_eq!(told_in_g(60, 100), Some(Ticks(59 * 90)));
        // Three long calls are h's time: of g there is the rest.
        assert_eq!(told_in_g(3, 2_000), Some(Ticks(2_000)));
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
        let left = apart(&mut ftree, &measured, &[interval(4_000, 8_000, blocked)]);
        assert_eq!(left.op, measured, "nothing is taken out");
        assert_eq!(left.waits[0].0, h);
        let early = apart(&mut ftree, &measured, &[interval(2_100, 2_200, blocked)]);
        assert_eq!(early.waits[0].0, g);
        let outside = apart(&mut ftree, &measured, &[interval(1_100, 1_200, blocked)]);
        assert_eq!(outside.waits[0].0, FnodeId::ROOT);
    }
}
