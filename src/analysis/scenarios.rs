//! Whole analyses of synthetic programs: what causes what is known, and the descent has to find it.

use super::descent::Request;
use super::ftree::{Callee, Stop};
use super::params::{Params, PeakChoice};
use super::root_cause::{CauseKind, PeakStatus, Status};
use super::simulate::{Program, Session, call};

const FUTEX: Callee = Callee::Syscall(Some(202));

fn found(path: &str) -> (String, CauseKind, Stop) {
    (path.to_owned(), CauseKind::Function, Stop::SelfTime)
}

fn no_calls(path: &str) -> (String, CauseKind, Stop) {
    (path.to_owned(), CauseKind::Function, Stop::NoCalls)
}

/// Every fourth op takes a lock that is held; the others compute.
fn two_peaks() -> Program {
    Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            run.work(40);
            run.call(1, 1);
            if run.op % 4 == 0 {
                run.call(2, 2);
            }
        })
        .function(1, "compute", &[(3, call(3))], |run| {
            run.call(3, 3);
            run.work(2_000);
        })
        .function(2, "lock", &[(4, FUTEX), (5, call(3))], |run| {
            run.call(5, 3);
            run.call_for(4, FUTEX, 900_000);
        })
        .function(3, "check", &[], |run| run.work(5))
}

#[test]
fn each_peak_has_its_own_cause() {
    let mut session = Session::new(two_peaks(), Params::default());
    session.run(10_000);
    assert!(session.finished);
    assert_eq!(session.analysis.status(), Status::RootCauseFound);
    assert_eq!(session.causes(1), [found("f0/compute")]);
    assert_eq!(
        session.causes(2),
        [(
            "f0/lock/syscall 202".to_owned(),
            CauseKind::Syscall,
            Stop::SelfTime
        )]
    );
    let ftree = session.analysis.ftree();
    let lock = ftree
        .fnodes()
        .find(|fnode| fnode.callee == call(2))
        .unwrap();
    assert_eq!((lock.record(1).maxcount, lock.record(2).maxcount), (0, 20));
    assert_eq!(lock.record(2).stats.count, lock.record(2).stats.ops);
}

#[test]
fn one_chosen_peak_leaves_the_others_alone() {
    let params = Params {
        peak: PeakChoice::One(2),
        ..Params::default()
    };
    let mut session = Session::new(two_peaks(), params);
    session.run(10_000);
    assert!(session.finished);
    assert_eq!(session.analysis.peak_status(1), PeakStatus::NotAnalysed);
    assert_eq!(session.analysis.peak_status(2), PeakStatus::RootCauseFound);
    assert_eq!(session.analysis.profile().count(), 101 + 4 * 39);
    let filter = session.log.iter().find_map(|request| match request {
        Request::FilterChanged(ranges) => Some(ranges.len()),
        _ => None,
    });
    assert_eq!(filter, Some(1));
}

#[test]
fn a_person_may_choose_later() {
    let params = Params {
        peak: PeakChoice::Later,
        ..Params::default()
    };
    let mut session = Session::new(two_peaks(), params);
    session.run(1_000);
    assert!(session.log.is_empty());
    assert_eq!(session.analysis.peaks().len(), 2);
    session.analysis.choose(PeakChoice::One(1));
    session.run(1_000);
    assert_eq!(session.causes(1), [found("f0/compute")]);
    assert!(session.causes(2).is_empty());
}

#[test]
fn a_loop_over_fast_callees_is_the_callers_time() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "walk", &[(2, call(2))], |run| {
            for _ in 0..500 {
                run.work(1);
                run.call(2, 2);
            }
        })
        .function(2, "step", &[], |run| run.work(30));
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    assert_eq!(
        session.causes(1),
        [("f0/walk".to_owned(), CauseKind::Loop, Stop::SelfTime)]
    );
}

#[test]
fn a_slow_callee_in_a_loop_is_the_callee() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "walk", &[(2, call(2))], |run| {
            for step in 0..50 {
                run.level = step;
                run.call(2, 2);
            }
        })
        .function(2, "step", &[], |run| {
            run.work(if run.level == run.op % 50 { 90_000 } else { 10 });
        });
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    assert_eq!(session.causes(1), [no_calls("f0/walk/step")]);
}

#[test]
fn recursion_is_a_path_of_its_own_fnodes() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| {
            run.level = 0;
            run.call(1, 1);
        })
        .function(1, "descend", &[(2, call(1)), (3, call(2))], |run| {
            run.level += 1;
            if run.level < 4 {
                run.call(2, 1);
            } else {
                run.call(3, 2);
            }
        })
        .function(2, "leaf", &[], |run| run.work(5_000));
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    assert_eq!(
        session.causes(1),
        [no_calls("f0/descend/descend/descend/descend/leaf")]
    );
}

#[test]
fn a_shared_callee_is_slow_on_one_path_only() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            run.level = 1;
            run.call(1, 1);
            run.level = 2;
            run.call(2, 2);
        })
        .function(1, "left", &[(3, call(3))], |run| run.call(3, 3))
        .function(2, "right", &[(4, call(3))], |run| run.call(4, 3))
        .function(3, "shared", &[], |run| {
            run.work(if run.level == 1 { 20 } else { 70_000 });
        });
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    assert_eq!(session.causes(1), [no_calls("f0/right/shared")]);
}

/// A chain of calls, all the time at its end.
fn chain() -> Program {
    Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "a", &[(2, call(2))], |run| run.call(2, 2))
        .function(2, "b", &[(3, call(3))], |run| run.call(3, 3))
        .function(3, "c", &[], |run| run.work(3_000))
}

#[test]
fn the_path_ends_at_the_greatest_depth() {
    for (max_depth, path, status) in [
        (1, "f0", Status::MaxDepthReached),
        (3, "f0/a/b", Status::MaxDepthReached),
        (4, "f0/a/b/c", Status::MaxDepthReached),
        (5, "f0/a/b/c", Status::RootCauseFound),
    ] {
        let params = Params {
            max_depth,
            ..Params::default()
        };
        let mut session = Session::new(chain(), params);
        session.run(10_000);
        assert_eq!(session.analysis.status(), status, "depth {max_depth}");
        assert_eq!(session.causes(1)[0].0, path);
    }
}

#[test]
fn a_rare_peak_that_appears_late_gets_the_next_number() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            run.call(1, 1);
            // Every ninth op; none when peaks are first looked for.
            if run.op > 200 && run.op % 9 == 0 {
                run.call(2, 2);
            }
        })
        .function(1, "usual", &[(4, call(4))], |run| {
            run.work(if run.op % 2 == 0 { 700 } else { 40 });
            run.call(4, 4);
        })
        .function(2, "rare", &[(3, call(3))], |run| run.call(3, 3))
        .function(3, "sleep", &[], |run| run.work(80_000_000))
        .function(4, "cheap", &[], |run| run.work(300));
    // Peak 1 needs many ops, so that the analysis runs still when the rare ops come.
    let params = Params {
        decision_ops: 700,
        ..Params::default()
    };
    let mut session = Session::new(program, params);
    session.run(20_000);
    assert!(session.finished);
    assert_eq!(session.analysis.peaks().len(), 2);
    assert_eq!(session.analysis.peaks()[1].number, 2);
    assert_eq!(session.causes(2), [no_calls("f0/rare/sleep")]);
    assert_eq!(session.analysis.peak_status(1), PeakStatus::RootCauseFound);
}

#[test]
fn several_causes_are_followed_side_by_side() {
    // Two callees of nearly the same latency: the slower one alternates.
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            run.call(1, 1);
            run.call(2, 2);
        })
        .function(1, "a", &[], |run| run.work(5_000))
        .function(2, "b", &[], |run| {
            run.work(if run.op % 10 == 0 { 3_000 } else { 5_500 })
        });
    let all = |percentage| {
        let params = Params {
            maxcount_percentage: percentage,
            ..Params::default()
        };
        let mut session = Session::new(program_of(&program), params);
        session.run(10_000);
        session.causes(1)
    };
    assert_eq!(all(0.9), [no_calls("f0/a"), no_calls("f0/b")]);
    assert_eq!(all(1.0), [no_calls("f0/a")], "only the winner");
}

/// The same program again.
fn program_of(program: &Program) -> Program {
    let mut copy = Program::default();
    for (&id, function) in &program.functions {
        let sites: Vec<_> = function
            .sites
            .iter()
            .map(|&(site, callee)| (site.0, callee))
            .collect();
        copy = copy.function(id, function.name, &sites, function.body);
    }
    copy
}

#[test]
fn ties_are_kept_at_a_percentage_of_one() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(1))], |run| {
            run.call(1, 1);
            run.call(2, 1);
            run.work(1_000);
        })
        .function(1, "twice", &[], |run| run.work(1_000));
    let params = Params {
        maxcount_percentage: 1.0,
        ..Params::default()
    };
    let mut session = Session::new(program, params);
    session.run(10_000);
    assert_eq!(
        session.causes(1),
        [found("f0"), no_calls("f0/twice"), no_calls("f0/twice")]
    );
}

#[test]
fn probes_that_no_peak_needs_are_retired() {
    let mut session = Session::new(two_peaks(), Params::default());
    session.run(10_000);
    let retired: Vec<_> = session
        .log
        .iter()
        .filter_map(|request| match request {
            Request::Retire(fnodes) => Some(fnodes.clone()),
            _ => None,
        })
        .collect();
    assert!(!retired.is_empty());
    assert_eq!(session.log.last(), Some(&Request::Finished));
    let finished = session
        .log
        .iter()
        .filter(|request| **request == Request::Finished);
    assert_eq!(finished.count(), 1);
}

#[test]
fn an_op_without_time_ends_at_the_function() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "nothing", &[], |_| {});
    let mut session = Session::new(program, Params::default());
    session.run(1_000);
    assert_eq!(session.causes(1), [found("f0")]);
}
