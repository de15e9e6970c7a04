//! Calls that a function makes in a loop.
//!
//! A loop over short calls is its function's own time, and a path ends there. Long calls are gone into however many they are; where
//! no single thing below them takes their time, it is the loop that does.

use darc_record::FnodeId;

use crate::descent::contribute::FEW;
use crate::descent::ftree::Ftree;
use crate::descent::peak_record::Stop;
use crate::descent::root_cause::{CauseKind, RootCause, part_of};
use crate::off_cpu::is_absence;

/// So many calls of a function in a call of another are a loop.
const LOOP: f64 = 10.0;
/// A function of which this part of the time is in calls that it makes in loops is explained by these.
const MOST: f64 = 0.5;

/// The loop that explains why the time at the end of a path is spread: that of its last function, or the nearest one further up.
pub(crate) fn around(ftree: &Ftree, peak: u32, spread: &RootCause) -> Option<RootCause> {
    let path = &spread.path;
    let share = *spread.shares.last()?;
    let (at, part) = match in_loops(ftree, peak, *path.last()?) {
        part if part >= MOST => (path.len(), part),
        _ => {
            let is_loop = |at: &usize| {
                is_in_loop(ftree, peak, path[at - 1], path[*at])
                    && goes_on(ftree, peak, &path[*at..])
            };
            ((1..path.len()).rev().find(is_loop)?, 1.0)
        }
    };
    let last = ftree.fnode(path[at - 1]).record(peak);
    Some(RootCause {
        path: path[..at].to_vec(),
        shares: spread.shares[..at].to_vec(),
        kind: CauseKind::Loop,
        stop: Stop::SelfTime,
        share: share * part,
        in_calls: Some(1.0),
        known_from: last.known_from(),
        ..spread.clone()
    })
}

/// Puts the loops of one function together: below one of them the time may be spread in several places.
pub(crate) fn add(causes: &mut Vec<RootCause>, found: RootCause) {
    let is_same = |known: &&mut RootCause| known.kind == found.kind && known.path == found.path;
    match causes.iter_mut().find(is_same) {
        Some(known) => {
            let all = known.share + found.share;
            let calls = known.in_calls.zip(found.in_calls);
            let calls = calls.map(|(one, other)| one * known.share + other * found.share);
            known.in_calls = calls
                .map(|calls| calls / all)
                .filter(|part| part.is_finite());
            known.share = all.min(1.0);
        }
        None => causes.push(found),
    }
}

/// The part of an fnode's time in calls that it makes in loops.
fn in_loops(ftree: &Ftree, peak: u32, id: FnodeId) -> f64 {
    let callees = ftree.fnode(id).children.iter();
    let repeated = callees.filter(|&&callee| is_in_loop(ftree, peak, id, callee));
    let parts = repeated.map(|&callee| part_of(ftree, peak, id, callee));
    parts.sum::<f64>().min(1.0)
}

/// Whether half of the calls of the first function of a path, or more, go on to its end: a loop of which one round in fifty does
/// what takes the time is not what takes it.
fn goes_on(ftree: &Ftree, peak: u32, path: &[FnodeId]) -> bool {
    let least = in_op(ftree, peak, path[0]) / 2.0;
    path.iter().all(|&id| in_op(ftree, peak, id) >= least)
}

/// Whether a callee is called many times in a call of its caller.
fn is_in_loop(ftree: &Ftree, peak: u32, caller: FnodeId, callee: FnodeId) -> bool {
    if is_absence(ftree.fnode(callee).callee) {
        return false;
    }
    in_op(ftree, peak, callee) >= LOOP * in_op(ftree, peak, caller).max(1.0)
}

/// Whether a callee is called so few times in a call of its caller that all of them are the callee's time.
pub(crate) fn is_few(ftree: &Ftree, peak: u32, caller: FnodeId, callee: FnodeId) -> bool {
    in_op(ftree, peak, callee) <= FEW * in_op(ftree, peak, caller).max(1.0)
}

/// How many calls of an fnode an op makes that makes any.
fn in_op(ftree: &Ftree, peak: u32, id: FnodeId) -> f64 {
    let stats = &ftree.fnode(id).record(peak).stats;
    stats.count as f64 / stats.ops.max(1) as f64
}

#[cfg(test)]
mod tests {
    use crate::simulate::{Program, Run, Session, call};
    use crate::{CauseKind, Params, Status};

    /// Its own code has somewhat more of the time than its loop, or somewhat less: the answer is the same.
    #[test]
    fn a_loop_beside_a_functions_own_code_is_told_with_it() {
        let bodies: [fn(&mut Run<'_>); 2] = [|run| hash(run, 470_000), |run| hash(run, 430_000)];
        for body in bodies {
            let program = Program::default()
                .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
                .function(1, "hash", &[(2, call(2)), (3, call(3))], body)
                .function(2, "compare", &[], |run| run.work(435))
                .function(3, "finish", &[], |run| run.work(130_000));
            let mut session = Session::new(program, Params::default());
            session.run(1_000);
            let causes = session.analysis.root_causes(1);
            assert_eq!(causes[0].kind, CauseKind::Loop, "{causes:?}");
            assert!((causes[0].share - 0.87).abs() < 0.02, "{causes:?}");
            assert_eq!(session.analysis.status(), Status::RootCauseFound);
        }
    }

    fn hash(run: &mut Run<'_>, own: u64) {
        run.work(own);
        for _ in 0..1_000 {
            run.call(2, 2);
        }
        run.call(3, 3);
    }

    #[test]
    fn of_a_loop_with_work_of_its_own_it_is_known_what_the_calls_have() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
            .function(1, "hash", &[(2, call(2))], |run| {
                for _ in 0..1_000 {
                    run.work(44);
                    run.call(2, 2);
                }
            })
            .function(2, "compare", &[], |run| run.work(46));
        let mut session = Session::new(program, Params::default());
        session.run(1_000);
        let causes = session.analysis.root_causes(1);
        assert_eq!(causes[0].kind, CauseKind::Loop);
        assert!(causes[0].share > 0.99);
        let in_calls = causes[0].in_calls.unwrap_or(0.0);
        assert!((in_calls - 0.51).abs() < 0.01, "{in_calls}");
    }
}
