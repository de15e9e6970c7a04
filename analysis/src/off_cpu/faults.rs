//! Page faults: which function they are of.
//!
//! They are no accident of a moment: the function that touches the memory makes them, whenever it runs. They stay in its time and
//! that of its callers, and are a callee of the function that they struck in.

use std::collections::BTreeMap;

use darc_record::{FnodeId, Op, Ticks, Touched, Tsc};

use crate::descent::contribute::accounted_for;
use crate::descent::ftree::{Absence, Ftree};
use crate::descent::recursion;
use crate::descent::share::LEAST;
use crate::off_cpu::Interval;
use crate::off_cpu::apart::{Apart, call_of, current, is_looked_at};

/// The fnode whose function touched the memory. How long the fault took beyond its records is an estimate, half of it on
/// either side: its middle is what is known to be in the call.
#[must_use]
pub fn touching(ftree: &Ftree, op: &Op, fault: &Interval) -> FnodeId {
    let middle = Tsc(fault.from.0.saturating_add(fault.len().0 / 2));
    let at = Interval {
        from: middle,
        to: middle,
        ..*fault
    };
    current(ftree, op, &at)
}

/// By fnode: when the first page fault struck there, and the time of all.
type Struck = BTreeMap<FnodeId, (Tsc, Ticks)>;

/// Takes page faults that seem a function's own, but struck in other calls of its callees than the longest, to these: as many as
/// there are in the longest, for its length. The deepest first, so that what strikes further down is there already.
fn spread_over_calls(ftree: &Ftree, op: &Op, struck: &mut Struck, long: Ticks) {
    let depth = |fnode: &FnodeId| ftree.get(*fnode).map_or(0, |fnode| fnode.depth);
    let mut callers: Vec<FnodeId> = struck.keys().copied().collect();
    callers.sort_by_key(|fnode| std::cmp::Reverse(depth(fnode)));
    for caller in callers {
        let call = call_of(op, caller);
        let seen = struck.clone();
        let callees = called_in(ftree, op, caller).map(|callee| {
            let long = recursion::long(ftree, callee.fnode, long);
            let others = accounted_for(&call, callee, long).saturating_sub(callee.max);
            let below = seen
                .iter()
                .filter(|(at, _)| is_below(ftree, **at, callee.fnode));
            let inside = below.fold(Ticks(0), |sum, (_, (_, time))| sum + *time);
            let times = others.0 as f64 / callee.max.0.max(1) as f64;
            (callee.fnode, inside.0 as f64 * times, times)
        });
        let callees: Vec<(FnodeId, f64, f64)> = callees.filter(|it| it.1 > 0.0).collect();
        let expected: f64 = callees.iter().map(|it| it.1).sum();
        let own = seen.get(&caller).map_or(0, |(_, time)| time.0) as f64;
        let part = (own / expected.max(1.0)).min(1.0);
        for (callee, _, times) in &callees {
            let below = struck.iter_mut();
            let below = below.filter(|(at, _)| is_below(ftree, **at, *callee));
            below.for_each(|(_, (_, time))| {
                *time = *time + Ticks((time.0 as f64 * times * part) as u64);
            });
        }
        if let Some((_, time)) = struck.get_mut(&caller) {
            *time = time.saturating_sub(Ticks((expected * part) as u64));
        }
    }
}

/// What an fnode called in an op.
fn called_in<'a>(
    ftree: &'a Ftree,
    op: &'a Op,
    caller: FnodeId,
) -> impl Iterator<Item = &'a Touched> {
    op.touched.iter().filter(move |touched| {
        let callee = ftree.get(touched.fnode);
        callee.is_some_and(|callee| callee.parent == Some(caller))
    })
}

/// Whether an fnode is another one, or below it.
fn is_below(ftree: &Ftree, fnode: FnodeId, above: FnodeId) -> bool {
    let parent = |at: &FnodeId| ftree.get(*at).and_then(|fnode| fnode.parent);
    std::iter::successors(Some(fnode), parent).any(|at| at == above)
}

/// Makes page faults a callee of the fnodes that they struck in, as far as their time is not a callee's: short calls of a loop are the
/// caller's time, and so are the faults in them.
/// Where an fnode's own calls are not looked at they have a place as soon as they are a tenth of its longest call.
pub(crate) fn tell_faults(
    ftree: &mut Ftree,
    left: &mut Apart,
    faults: &[(FnodeId, Interval)],
    op: &Op,
    long: Ticks,
) {
    let mut struck = Struck::new();
    for (fnode, fault) in faults {
        let (_, sum) = struck.entry(*fnode).or_insert((fault.from, Ticks(0)));
        *sum = *sum + fault.len();
    }
    spread_over_calls(ftree, &left.op, &mut struck, long);
    struck.retain(|_, (_, sum)| *sum > Ticks(0));
    for (fnode, (first, sum)) in struck {
        let call = call_of(op, fnode);
        let is_much = sum.0 as f64 >= LEAST * call.max.0 as f64;
        if ftree.get(fnode).is_none() || !(is_looked_at(ftree, fnode) || is_much) {
            continue;
        }
        let called = called_in(ftree, op, fnode);
        let long = |at| recursion::long(ftree, at, long);
        let called = called.map(|callee| accounted_for(&call, callee, long(callee.fnode)));
        let called = called.fold(Ticks(0), |sum, time| sum + time);
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
            long: sum,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::off_cpu::apart::tests::{FAULT, apart_of, interval, op, touched, tree};

    /// The page fault of the function's first instruction, which seems to begin before the call and to be longer.
    #[test]
    fn a_page_fault_is_the_time_of_who_touches_the_memory() {
        let (mut ftree, g, h) = tree();
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 8_000), touched(h, 3_000, 6_000)],
        );
        let fault = interval(2_900, 9_100, FAULT);
        let left = apart_of(&mut ftree, &measured, &[fault]);
        let there = ftree.known_absence(h, Absence::PageFault).expect("in h");
        assert_eq!(left.waits, [(there, fault)]);
        assert_eq!(left.op.touched[..2], measured.touched[..]);
        assert_eq!(left.op.touched[2].sum, Ticks(6_000), "no more than h took");
        for above in [FnodeId::ROOT, g] {
            assert_eq!(ftree.known_absence(above, Absence::PageFault), None);
        }
    }

    /// Faults in other calls than the longest are as many as in that, as far as they seem to be the caller's.
    #[test]
    fn page_faults_in_a_loop_over_short_calls_are_its_callers_and_others_are_the_calls() {
        let (mut ftree, g, h) = tree();
        let mut told = |calls: u64, each: u64| {
            let all = Touched {
                sum: Ticks(calls * each),
                count: calls,
                ..touched(h, 3_000, each)
            };
            let measured = op(10_000, vec![touched(g, 2_000, 8_000), all]);
            let fault = |call| {
                let at = 3_005 + each * call;
                interval(at, at + each - 10, FAULT)
            };
            let faults: Vec<_> = (0..calls).map(fault).collect();
            let left = apart_of(&mut ftree, &measured, &faults);
            let told = |at| {
                let absence = ftree.known_absence(at, Absence::PageFault);
                let told = left
                    .op
                    .touched
                    .iter()
                    .find(|told| Some(told.fnode) == absence);
                told.map_or(0, |told| told.sum.0)
            };
            (told(g), told(h))
        };
        // All but that in the longest call of h, which is told there.
        assert_eq!(told(60, 100), (59 * 90, 90));
        // Three long calls, or five, are h's time.
        assert_eq!(told(3, 2_000), (0, 3 * 1_990));
        assert_eq!(told(5, 1_500), (0, 5 * 1_490));
    }
}
