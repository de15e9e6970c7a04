//! Functions that call themselves, or each other, once in a call, each depth with a part of the time.
//!
//! A path goes through them as through any other, for what takes the time may be at the end. Where it comes to an end with little that is
//! certain, and the functions of the recursion themselves took most of the time on the way there, a little at each depth, these are
//! the cause.

use std::collections::BTreeMap;

use crate::descent::ftree::{Callee, Ftree};
use crate::descent::peak_record::{PathState, Stop};
use crate::descent::recursion::recursion_on;
use crate::descent::root_cause::{CauseKind, HALF, RootCause, in_callees, is_open};

/// Ends the paths in such recursions at the function that took most of the time, where the causes that are known explain less than
/// half of what a recursion has.
pub(crate) fn end_in_own_time(ftree: &Ftree, peak: u32, causes: &mut [RootCause]) {
    let found: Vec<Option<(f64, usize)>> = causes
        .iter()
        .map(|cause| {
            let (first, functions) = recursion_on(ftree, &cause.path)?;
            let whole = cause.shares[first];
            let is_own = functions.contains(&ftree.fnode(*cause.path.last()?).callee);
            let is_meant = is_no_end(cause) || is_own && cause.kind == CauseKind::Function;
            let known = causes.iter().filter(|other| {
                other.path.get(first) == cause.path.get(first) && !is_no_end(other)
            });
            let is_explained = known.map(|other| other.share).sum::<f64>() >= HALF * whole;
            (is_meant && !is_explained).then(|| own_time(ftree, peak, cause))?
        })
        .collect();
    for (cause, found) in causes.iter_mut().zip(found) {
        let Some((share, end)) = found else { continue };
        cause.path.truncate(end + 1);
        cause.shares.truncate(end + 1);
        (cause.kind, cause.stop) = (CauseKind::Function, Stop::Recursion);
        (cause.share, cause.assumed) = (share, 0.0);
        (cause.share_of_ops, cause.blocked, cause.in_calls) = (0.0, None, None);
    }
}

/// Whether it is not known what takes the time at the end of a path.
fn is_no_end(cause: &RootCause) -> bool {
    matches!(cause.stop, Stop::Spread | Stop::MaxDepth) || is_open(&cause.stop)
}

/// What the functions of a recursion took themselves on a path, where that is half of its time or more, and where on the path the
/// one of them is last met that took most of that.
fn own_time(ftree: &Ftree, peak: u32, cause: &RootCause) -> Option<(f64, usize)> {
    let (first, functions) = recursion_on(ftree, &cause.path)?;
    let mut by_function: BTreeMap<Callee, (f64, usize)> = BTreeMap::new();
    let depths = cause.path.iter().zip(&cause.shares).enumerate();
    for (at, (&id, share)) in depths.skip(first) {
        let fnode = ftree.fnode(id);
        let is_decided = matches!(fnode.record(peak).state, PathState::Decided(_));
        if is_decided && functions.contains(&fnode.callee) {
            let own = share * (1.0 - in_callees(ftree, peak, id)).max(0.0);
            let known = by_function.entry(fnode.callee).or_default();
            *known = (known.0 + own, at);
        }
    }
    let all: f64 = by_function.values().map(|(own, _)| own).sum();
    let (_, end) = by_function
        .into_values()
        .max_by(|one, other| one.0.total_cmp(&other.0))?;
    (all >= HALF * cause.shares[first]).then_some((all, end))
}

#[cfg(test)]
mod tests {
    use crate::simulate::{Program, Run, Session, call};
    use crate::{CauseKind, Params, PeakStatus, Stop};

    /// f0 calls `even`, which calls `odd`, which calls `even`, for 26 levels.
    fn analysed(even: fn(&mut Run<'_>), odd: fn(&mut Run<'_>)) -> Session {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| {
                run.level = 26;
                run.call(1, 1);
            })
            .function(1, "even", &[(2, call(2)), (4, call(3))], even)
            .function(2, "odd", &[(3, call(1)), (5, call(3))], odd)
            .function(3, "leaf", &[], |run| run.work(90_000));
        let mut session = Session::new(program, Params::default());
        session.run(20_000);
        session
    }

    fn down(run: &mut Run<'_>, site: u32, function: u32) {
        if run.level > 0 {
            run.level -= 1;
            run.call(site, function);
        }
    }

    #[test]
    fn what_functions_that_call_each_other_take_at_all_depths_is_one_cause() {
        let session = analysed(
            |run| {
                run.work(3_000);
                down(run, 2, 2);
            },
            |run| {
                run.work(300);
                down(run, 3, 1);
            },
        );
        let causes = session.causes(1);
        assert_eq!(session.analysis.peak_status(1), PeakStatus::RootCauseFound);
        let is_it = |(path, _, stop): &(String, CauseKind, Stop)| {
            *stop == Stop::Recursion && path.ends_with("/even")
        };
        assert!(causes.iter().all(is_it), "{causes:?}");
        let causes = session.analysis.root_causes(1);
        let share: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!((0.95..1.01).contains(&share), "{share}");
    }

    #[test]
    fn what_is_called_at_the_greatest_depth_is_gone_to() {
        let session = analysed(
            |run| {
                run.work(300);
                match run.level {
                    0 => run.call(4, 3),
                    _ => down(run, 2, 2),
                }
            },
            |run| {
                run.work(300);
                down(run, 3, 1);
            },
        );
        let causes = session.causes(1);
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert!(causes[0].0.ends_with("/even/leaf"), "{causes:?}");
    }

    #[test]
    fn what_is_called_at_all_depths_is_not_taken_by_the_recursion() {
        let session = analysed(
            |run| {
                run.work(1_000);
                run.call(4, 3);
                down(run, 2, 2);
            },
            |run| {
                run.work(1_000);
                run.call(5, 3);
                down(run, 3, 1);
            },
        );
        let causes = session.causes(1);
        assert!(
            causes.iter().all(|cause| cause.2 != Stop::Recursion),
            "{causes:?}"
        );
    }
}
