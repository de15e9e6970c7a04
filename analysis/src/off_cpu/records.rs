//! What the kernel's records of page faults took, cut out of the op in which they were made.
//!
//! A page that is new is there within a microsecond or two, and the two records of it take as long. An op that touches many pages would
//! weigh twice as much in a decision as it does without darc. So the time of the records is cut out of the op's time line: what is behind
//! them comes so much earlier. The op is of a peak by the latency that it had, for of those that are only counted nothing else is known.

use std::collections::BTreeMap;

use darc_record::{FnodeId, Op, Ticks, Touched, Tsc};

use crate::descent::ftree::Ftree;
use crate::off_cpu::apart::{in_other_calls, long_without};
use crate::off_cpu::faults::touching;
use crate::off_cpu::{Away, Interval};

/// An op as it would have been without the records of its page faults, and when its thread did not do its work.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    pub(crate) op: Op,
    pub(crate) away: Vec<Interval>,
}

/// What is cut out of a time line: from when on, how much, and how much was cut out before that.
struct Cut(Vec<(Tsc, Ticks, Ticks)>);

impl Cut {
    fn of<'a>(faults: impl Iterator<Item = &'a Interval>, each: Ticks) -> Cut {
        let mut before = Ticks(0);
        let pieces = faults.map(|fault| {
            let piece = (fault.from, each.min(fault.len()), before);
            before = before + piece.1;
            piece
        });
        Cut(pieces.collect())
    }

    /// How much is cut out until then.
    fn until(&self, at: Tsc) -> Ticks {
        let pieces = self.0.partition_point(|(from, _, _)| *from < at);
        let last = pieces.checked_sub(1).map(|last| self.0[last]);
        last.map_or(Ticks(0), |(from, len, before)| before + len.min(at - from))
    }

    fn within(&self, from: Tsc, len: Ticks) -> Ticks {
        let to = Tsc(from.0.saturating_add(len.0));
        self.until(to).saturating_sub(self.until(from))
    }

    fn moved(&self, at: Tsc) -> Tsc {
        Tsc(at.0.saturating_sub(self.until(at).0))
    }
}

/// Cuts the records of its page faults out of an op, those of each fault at most so long; `away` is in the order of time. None where
/// there is nothing to cut out.
pub(crate) fn without_records(
    ftree: &Ftree,
    op: &Op,
    away: &[Interval],
    each: Ticks,
) -> Option<Unrecorded> {
    let is_fault = |it: &&Interval| matches!(it.why, Away::Faulted { .. });
    let cut = Cut::of(away.iter().filter(is_fault), each);
    if each == Ticks(0) || cut.0.is_empty() {
        return None;
    }
    // What the clock says of a call is not told: its probes were taken out of it, as were all of the op's.
    let within = Ticks(op.end.0.saturating_sub(op.start.0));
    let by_clock = within.0 as f64 / op.latency.0.max(1) as f64;
    let mut left = op.clone();
    let calls = op.touched.iter().zip(&mut left.touched);
    for (before, after) in calls {
        let window = Ticks((before.max.0 as f64 * by_clock.max(1.0)) as u64);
        let taken = cut.within(before.max_start, window);
        after.max = before.max.saturating_sub(taken);
        after.sum = before.sum.saturating_sub(taken);
        after.max_start = cut.moved(before.max_start);
    }
    let mut struck: BTreeMap<FnodeId, u64> = BTreeMap::new();
    for fault in away.iter().filter(is_fault) {
        *struck.entry(touching(ftree, op, fault)).or_default() += 1;
    }
    for (function, times) in struck {
        for (at, part) in in_other_calls(ftree, op, function, each) {
            let after: &mut Touched = &mut left.touched[at];
            let taken = each.0 as f64 * part * times as f64;
            after.sum = after.sum.saturating_sub(Ticks(taken as u64)).max(after.max);
        }
    }
    for (before, after) in op.touched.iter().zip(&mut left.touched) {
        after.long = long_without(before, after);
        // Others than the longest were long by their records alone.
        if mean_of_others(before) >= Touched::LONG && mean_of_others(after) < Touched::LONG {
            after.long = after.long.min(after.max);
        }
    }
    left.latency = op.latency.saturating_sub(cut.within(op.start, within));
    left.start = cut.moved(op.start);
    left.end = cut.moved(op.end);
    let moved = |interval: &Interval| Interval {
        from: cut.moved(interval.from),
        to: cut.moved(interval.to),
        why: match interval.why {
            Away::Blocked { woken, by } => Away::Blocked {
                woken: woken.map(|at| cut.moved(at)),
                by,
            },
            why => why,
        },
    };
    Some(Unrecorded {
        op: left,
        away: away.iter().map(moved).collect(),
    })
}

fn mean_of_others(call: &Touched) -> Ticks {
    let others = call.sum.saturating_sub(call.max);
    Ticks(others.0 / call.count.saturating_sub(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::off_cpu::apart::tests::{BY, FAULT, interval, op, touched, tree};

    #[test]
    fn an_op_is_as_long_as_without_the_records_of_its_faults() {
        let (ftree, g, h) = tree();
        // In g until 9,000, and in h below it from 3,000 until 7,000.
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 7_000), touched(h, 3_000, 4_000)],
        );
        let away = [
            interval(1_100, 1_300, FAULT),
            interval(3_500, 3_700, FAULT),
            interval(4_000, 4_050, FAULT),
            interval(5_000, 5_500, BY),
            interval(8_000, 8_200, FAULT),
        ];
        let left = without_records(&ftree, &measured, &away, Ticks(100)).expect("faults");
        // What is shorter than its records is cut out as a whole.
        assert_eq!(left.op.latency, Ticks(10_000 - 350));
        assert_eq!((left.op.start, left.op.end), (Tsc(1_000), Tsc(10_650)));
        let calls = left.op.touched.iter();
        let calls: Vec<_> = calls
            .map(|at| (at.max_start.0, at.max.0, at.sum.0))
            .collect();
        assert_eq!(calls, [(1_900, 6_750, 6_750), (2_900, 3_850, 3_850)]);
        let lengths: Vec<u64> = left.away.iter().map(|it| it.len().0).collect();
        assert_eq!(lengths, [100, 100, 0, 500, 100]);
        assert_eq!(left.away[3].from, Tsc(4_750));
        // All that struck in a call still does.
        for (before, after) in away.iter().zip(&left.away) {
            let function = touching(&ftree, &measured, before);
            assert_eq!(touching(&ftree, &left.op, after), function);
        }
    }

    #[test]
    fn what_struck_none_of_the_longest_calls_is_cut_out_of_all_by_their_length() {
        let (ftree, g, _) = tree();
        let ten = Touched {
            sum: Ticks(9_000),
            count: 10,
            ..touched(g, 2_000, 900)
        };
        let measured = op(10_000, vec![ten]);
        let away = [interval(5_000, 5_200, FAULT), interval(6_000, 6_200, FAULT)];
        let left = without_records(&ftree, &measured, &away, Ticks(100));
        let left = left.expect("faults").op;
        // 8,100 of the 9,100 cycles outside of the longest call.
        assert_eq!(left.touched[0].sum, Ticks(9_000 - 178));
        assert_eq!(left.touched[0].max, Ticks(900));
        assert_eq!(left.latency, Ticks(9_800));
    }

    #[test]
    fn nothing_is_cut_out_where_nothing_faults() {
        let (ftree, g, _) = tree();
        let measured = op(10_000, vec![touched(g, 2_000, 7_000)]);
        let away = [interval(3_000, 4_000, BY)];
        assert!(without_records(&ftree, &measured, &away, Ticks(100)).is_none());
    }
}
