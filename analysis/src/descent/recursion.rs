//! Functions that call themselves more than once in a call, as sorting does.
//!
//! Each depth has a part of the time, and its calls are twice as many and half as long as those above: a descent through all of
//! them would take for ever and say the same again and again. So a path ends where a function is met for the third time, and all
//! of that is one cause. A function that calls itself once (an interpreter that evaluates what another one does), and one that does next to
//! nothing of its own on the way down (a tree that is walked to its leaves), is gone through as any other, also where its calls of
//! itself become short. Where its leaves are not
//! come to, because there are too many ways down, most of its time is found to be in the recursion all the same.

use std::collections::{BTreeMap, BTreeSet};

use darc_record::{FnodeId, Ticks};

use crate::descent::depths;
use crate::descent::ftree::{Callee, Ftree};
use crate::descent::peak_record::{PathState, Stop};
use crate::descent::root_cause::{CauseKind, HALF, RootCause, is_open, part_of};

/// A path ends where a function is on it for this time.
const TIMES: usize = 3;
/// A call of a function that branches makes so many calls of itself at least.
const BRANCHES: f64 = 1.5;
/// So much of the time of such a call does not pass in calls of itself.
const OWN: f64 = 0.06;
/// The ends of a recursion that could not be followed have so much of its time at least.
const THIRD: f64 = 1.0 / 3.0;

/// Whether a path that came to an fnode goes into ever smaller parts of one recursion.
pub(crate) fn is_deep(ftree: &Ftree, peak: u32, id: FnodeId) -> bool {
    let path = ftree.path(id);
    let instances = instances(ftree, &path);
    let (Some(&above), true) = (instances.iter().rev().nth(1), instances.len() >= TIMES) else {
        return false;
    };
    let each = |at: FnodeId| calls(ftree, peak, at);
    let in_itself = path[above..]
        .windows(2)
        .map(|pair| part_of_alike(ftree, peak, pair[0], pair[1]))
        .product::<f64>();
    // All sites that call the same are branches, of which the one above was one.
    let one = ftree.fnode(path[above]).record(peak).stats;
    let one = one.count as f64 / ops(ftree, peak, path[above]);
    one > 0.0 && each(id) >= BRANCHES * one && in_itself <= 1.0 - OWN
}

/// Whether a function is on its path for the third time, whatever is known of its calls.
pub(crate) fn may_be_deep(ftree: &Ftree, id: FnodeId) -> bool {
    instances(ftree, &ftree.path(id)).len() >= TIMES
}

/// From which length on calls through an fnode are no loop of its caller's, where those of others are from `long` on. The depths of
/// a recursion are none, however many and short its calls are: what takes their time may be further down.
pub(crate) fn long(ftree: &Ftree, id: FnodeId, long: Ticks) -> Ticks {
    let fnode = ftree.fnode(id);
    let above = |at: &FnodeId| ftree.fnode(*at).parent;
    let mut above = std::iter::successors(fnode.parent, above);
    let is_met = |at: FnodeId| ftree.fnode(at).callee == fnode.callee;
    match fnode.callee {
        Callee::Function(_) if above.any(is_met) => Ticks(0),
        _ => long,
    }
}

/// Where on a path the function at its end is.
fn instances(ftree: &Ftree, path: &[FnodeId]) -> Vec<usize> {
    let callee = |id: FnodeId| ftree.fnode(id).callee;
    let last = path.last().map(|&id| callee(id));
    match last {
        Some(last @ Callee::Function(_)) => {
            let of = path.iter().enumerate();
            let of = of.filter(|&(_, &id)| callee(id) == last);
            of.map(|(at, _)| at).collect()
        }
        _ => Vec::new(),
    }
}

/// The calls of an fnode's function in its caller, from all sites, an op.
fn calls(ftree: &Ftree, peak: u32, id: FnodeId) -> f64 {
    let calls = alike(ftree, id).map(|at| ftree.fnode(at).record(peak).stats.count);
    calls.sum::<u64>() as f64 / ops(ftree, peak, id)
}

/// The ops in which calls of an fnode's caller were measured.
fn ops(ftree: &Ftree, peak: u32, id: FnodeId) -> f64 {
    let caller = ftree.fnode(id).parent.unwrap_or(id);
    ftree.fnode(caller).record(peak).measured_ops.max(1) as f64
}

fn part_of_alike(ftree: &Ftree, peak: u32, caller: FnodeId, callee: FnodeId) -> f64 {
    let parts = alike(ftree, callee).map(|at| part_of(ftree, peak, caller, at));
    parts.sum::<f64>().min(1.0)
}

/// The calls that an fnode's caller makes of the same function.
fn alike(ftree: &Ftree, id: FnodeId) -> impl Iterator<Item = FnodeId> {
    let first = ftree.first_alike(id);
    let siblings = ftree.fnode(id).parent.map(|at| &ftree.fnode(at).children);
    let siblings = siblings.into_iter().flatten().copied();
    siblings.filter(move |&at| ftree.first_alike(at) == first)
}

/// Where on a path the function is that is first met there and met again so often that a path may end at it; all functions
/// that are on the path several times from there on.
pub(crate) fn recursion_on(ftree: &Ftree, path: &[FnodeId]) -> Option<(usize, BTreeSet<Callee>)> {
    let mut times: BTreeMap<Callee, usize> = BTreeMap::new();
    let callee = |id: &FnodeId| ftree.fnode(*id).callee;
    for function in path.iter().map(callee) {
        if matches!(function, Callee::Function(_)) {
            *times.entry(function).or_default() += 1;
        }
    }
    let is_met = |id: &FnodeId| times.get(&callee(id)).is_some_and(|&met| met >= TIMES);
    let first = path.iter().position(is_met)?;
    // What led there is no part of it.
    for function in path[..first].iter().map(callee) {
        if let Some(met) = times.get_mut(&function) {
            *met -= 1;
        }
    }
    let met_again = times.into_iter().filter(|&(_, met)| met > 1);
    Some((first, met_again.map(|(function, _)| function).collect()))
}

/// Where paths ended undecided in the depths of a recursion that has divided its time among them, or go on there, which have much of it,
/// and no other causes have most of it: all of that is one cause.
fn end_in_the_depths(ftree: &Ftree, peak: u32, causes: &mut [RootCause]) {
    let is_decided = |id: &FnodeId| {
        let state = &ftree.fnode(*id).record(peak).state;
        matches!(state, PathState::Decided(_))
    };
    let is_open = |cause: &RootCause| match cause.stop {
        // What was begun early may be forgotten again.
        Stop::StillDescending => {
            let above = cause.path.split_last().map_or(&[][..], |(_, above)| above);
            above.iter().all(is_decided)
        }
        ref stop => is_open(stop),
    };
    let in_the_depths = |cause: &RootCause| {
        let last = ftree.fnode(*cause.path.last()?).callee;
        let (first, functions) = recursion_on(ftree, &cause.path)?;
        let is_part = cause.share <= HALF * cause.shares[first];
        (is_open(cause) && is_part && functions.contains(&last))
            .then_some((cause.path[first], cause.shares[first]))
    };
    let found: BTreeMap<FnodeId, f64> = causes.iter().filter_map(in_the_depths).collect();
    for (function, whole) in found {
        let is_other = |cause: &&RootCause| {
            cause.path.contains(&function)
                && !matches!(cause.stop, Stop::Recursion | Stop::Spread)
                && in_the_depths(cause).is_none()
        };
        let is_deep = |cause: &&RootCause| {
            let is_within = cause.path.contains(&function);
            is_within && (cause.stop == Stop::Recursion || in_the_depths(cause).is_some())
        };
        let sum = |causes: Vec<&RootCause>| causes.iter().map(|cause| cause.share).sum::<f64>();
        let others: Vec<_> = causes.iter().filter(is_other).collect();
        let deep: Vec<_> = causes.iter().filter(is_deep).collect();
        // One end alone may be a function's that does something else there.
        if deep.len() < 2 || sum(deep) < THIRD * whole || sum(others) > HALF * whole {
            continue;
        }
        for cause in causes.iter_mut() {
            if in_the_depths(cause).is_some_and(|(of, _)| of == function) {
                cause.stop = Stop::Recursion;
            }
        }
    }
}

/// What a recursion's function takes itself at the depths that were gone through is of the same cause as what is deeper, and so is
/// what is below it and has no cause of its own.
pub(crate) fn gather(ftree: &Ftree, peak: u32, causes: &mut [RootCause]) {
    end_in_the_depths(ftree, peak, causes);
    depths::end_in_own_time(ftree, peak, causes);
    // A function that is met so often is a recursion of its own, whatever other one it is in.
    let first = |cause: &RootCause| {
        let of_last = instances(ftree, &cause.path);
        match recursion_on(ftree, &cause.path) {
            Some((first, functions)) if of_last.len() < TIMES => {
                let last = ftree.fnode(*cause.path.last()?).callee;
                functions.contains(&last).then_some(first)
            }
            _ => of_last.first().copied(),
        }
    };
    let deep = causes.iter().filter(|cause| cause.stop == Stop::Recursion);
    let deep = deep.filter_map(|cause| {
        let at = first(cause)?;
        Some((cause.path[at], (at, cause.shares[at])))
    });
    let deep: BTreeMap<FnodeId, (usize, f64)> = deep.collect();
    // Those within others first: what is told there is not told again.
    for (function, (at, whole)) in deep.into_iter().rev() {
        let is_within = |cause: &RootCause| cause.path.get(at) == Some(&function);
        for cause in causes.iter_mut().filter(|cause| is_within(cause)) {
            let is_own = matches!(cause.kind, CauseKind::Function | CauseKind::Loop);
            let is_end = matches!(cause.stop, Stop::SelfTime | Stop::NoCalls | Stop::Spread);
            if is_own && is_end && first(cause) == Some(at) {
                (cause.kind, cause.stop) = (CauseKind::Function, Stop::Recursion);
                (cause.blocked, cause.in_calls) = (None, None);
            }
        }
        // What is spread over others than the recursion's functions is not the recursion's.
        let known = |cause: &RootCause| match cause.stop {
            Stop::Spread => cause.shares.last().copied().unwrap_or(0.0),
            _ => cause.share,
        };
        let within = causes.iter().filter(|cause| is_within(cause));
        let named: f64 = within.map(known).sum();
        // Each may have been measured in other ops.
        if named > whole {
            let within = causes.iter_mut().filter(|cause| is_within(cause));
            within.for_each(|cause| {
                cause.share *= whole / named;
                cause.assumed *= whole / named;
            });
        }
        let mut deep = causes.iter_mut().filter(|cause| is_within(cause));
        if let Some(cause) = deep.find(|cause| cause.stop == Stop::Recursion) {
            cause.share += (whole - named).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::simulate::{Program, Run, Session, call};
    use crate::{CauseKind, Params, PeakStatus, Stop};

    fn after(sort: fn(&mut Run<'_>)) -> Session {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| {
                run.level = 0;
                run.call(1, 1);
            })
            .function(
                1,
                "sort",
                &[(2, call(1)), (3, call(1)), (4, call(2)), (5, call(3))],
                sort,
            )
            .function(2, "read", &[], |run| run.work(90_000))
            .function(3, "parse", &[], |run| run.work(100));
        let mut session = Session::new(program, Params::default());
        session.run(20_000);
        session
    }

    /// Calls itself twice, down to so many levels.
    fn halves(run: &mut Run<'_>, levels: u64, own: u64) {
        run.work((own >> run.level) + 10);
        run.level += 1;
        if run.level < levels {
            run.call(2, 1);
            run.call(3, 1);
        }
        run.level -= 1;
    }

    #[test]
    fn a_recursion_that_branches_is_one_cause() {
        let session = after(|run| halves(run, 8, 40_000));
        let causes = session.analysis.root_causes(1);
        assert_eq!(session.analysis.peak_status(1), PeakStatus::RootCauseFound);
        let is_it = |cause: &crate::RootCause| {
            (cause.kind, &cause.stop) == (CauseKind::Function, &Stop::Recursion)
        };
        assert!(causes.iter().all(is_it), "{causes:?}");
        let share: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!(share > 0.9, "{share}");
        let depth = causes.iter().map(|cause| cause.path.len()).max();
        assert_eq!(depth, Some(4), "f0, and the function three times");
    }

    /// Two functions that call each other; every other level branches, and none takes much itself.
    fn deep() -> Session {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| {
                run.level = 0;
                run.call(1, 1);
            })
            .function(1, "match", &[(2, call(2))], |run| {
                run.work(20);
                run.call(2, 2);
            })
            .function(2, "again", &[(3, call(1)), (4, call(1))], |run| {
                run.work(20);
                run.level += 1;
                if run.level < 14 {
                    run.call(3, 1);
                    if run.level % 2 == 0 {
                        run.call(4, 1);
                    }
                }
                run.level -= 1;
            });
        let params = Params {
            max_depth: 40,
            ..Params::default()
        };
        Session::new(program, params)
    }

    #[test]
    fn a_recursion_that_is_too_deep_to_be_followed_is_one_cause() {
        let mut session = deep();
        session.deepest = 16;
        session.run(30_000);
        let causes = session.analysis.root_causes(1);
        assert_eq!(session.analysis.peak_status(1), PeakStatus::RootCauseFound);
        assert!(
            causes.iter().all(|cause| cause.stop == Stop::Recursion),
            "{causes:?}"
        );
        let share: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!((0.9..1.02).contains(&share), "{share}");
    }

    /// The same when the time is over before all of its depths were gone through.
    #[test]
    fn a_recursion_that_is_still_gone_through_is_one_cause() {
        let mut session = deep();
        session.run(100);
        let goes_on = |session: &Session| {
            let found = session.analysis.root_causes(1).into_iter();
            found
                .filter(|cause| cause.stop == Stop::StillDescending)
                .count()
        };
        assert_eq!(session.analysis.peak_status(1), PeakStatus::InProgress);
        let depth = |session: &Session| {
            let found = session.analysis.root_causes(1).into_iter();
            found.map(|cause| cause.path.len()).max().unwrap_or(0)
        };
        while depth(&session) < 12 {
            session.run(20);
        }
        assert_eq!(goes_on(&session), 0);
        assert_eq!(session.analysis.peak_status(1), PeakStatus::RootCauseFound);
    }

    /// The calls of itself are ten in each, and short from the third level on.
    #[test]
    fn what_the_leaves_of_a_tree_of_many_short_calls_do_is_gone_to() {
        let session = after(|run| {
            run.work(2);
            run.level += 1;
            for _ in 0..10 {
                if run.level < 4 {
                    run.call(2, 1);
                }
            }
            if run.level == 4 {
                run.call(5, 3);
            }
            run.level -= 1;
        });
        let found = session.causes(1);
        let leaf = "f0/sort/sort/sort/sort/parse".to_owned();
        assert_eq!(found, [(leaf, CauseKind::Function, Stop::NoCalls)]);
        let share = session.analysis.root_causes(1)[0].share;
        assert!((0.9..1.0).contains(&share), "{share}");
    }

    /// A call takes a seventh of its time itself, twice as much in two calls of itself, and the rest in what it calls besides, where it is
    /// spread.
    #[test]
    fn what_is_spread_beside_a_recursion_is_none_of_it() {
        const SITES: [u32; 12] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];
        let sites = SITES.map(|id| (id, call(id)));
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| {
                run.level = 10_000_000;
                run.call(1, 1);
            })
            .function(
                1,
                "eval",
                &[(2, call(1)), (3, call(1)), (4, call(2))],
                |run| {
                    let all = run.level;
                    run.work(all * 3 / 20);
                    run.level = all * 3 / 20;
                    if all >= 10_000 {
                        run.call(2, 1);
                        run.call(3, 1);
                    }
                    run.level = all * 11 / 240;
                    run.call(4, 2);
                    run.level = all;
                },
            )
            .function(2, "sort", &sites, |run| {
                for id in SITES {
                    run.call(id, id);
                }
            });
        let program = SITES.iter().fold(program, |program, &id| {
            program.function(id, "part", &[], |run| run.work(run.level))
        });
        let mut session = Session::new(program, Params::default());
        session.run(20_000);
        let causes = session.analysis.root_causes(1);
        let explained: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!((0.1..0.4).contains(&explained), "{causes:?}");
        assert_eq!(session.analysis.peak_status(1), PeakStatus::Spread);
    }

    #[test]
    fn what_the_leaves_of_a_tree_do_is_gone_to() {
        let session = after(|run| {
            halves(run, 5, 0);
            if run.level == 4 {
                run.call(4, 2);
            }
        });
        let causes = session.analysis.root_causes(1);
        assert!(!causes.is_empty());
        assert!(
            causes.iter().all(|cause| cause.stop != Stop::Recursion),
            "{causes:?}"
        );
    }
}
