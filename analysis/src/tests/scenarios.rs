//! Whole analyses of synthetic programs: what causes what is known, and the descent has to find it.

use std::collections::VecDeque;

use darc_record::{FnodeId, Op, SiteId, Ticks, Touched, Tsc};
use proptest::prelude::*;

use crate::descent::ftree::{Callee, Probe};
use crate::descent::noise::Noise;
use crate::descent::params::{Params, PeakChoice};
use crate::descent::peak_record::{PathState, Stop};
use crate::descent::resume::Stored;
use crate::descent::root_cause::{CauseKind, PeakStatus, RootCause, Status};
use crate::descent::{Analysis, Request};
use crate::profile::histogram::Resolution;
use crate::simulate::{Program, Run, Session, call};

const FUTEX: Callee = Callee::Syscall(Some(202));

fn found(path: &str) -> (String, CauseKind, Stop) {
    (path.to_owned(), CauseKind::Function, Stop::SelfTime)
}

pub(super) fn no_calls(path: &str) -> (String, CauseKind, Stop) {
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

/// Both of a peak's causes call something slow in the ops in which they are causes, and are short in the others.
#[test]
fn what_takes_the_time_of_one_cause_is_not_asked_of_ops_with_another() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            run.work(40);
            run.call(1, 1);
            run.call(2, 2);
        })
        .function(1, "append", &[(3, call(3))], |run| {
            run.work(60);
            // Two of three ops.
            if run.op % 3 != 0 {
                run.call(3, 3);
            }
        })
        .function(2, "convert", &[(4, call(4))], |run| {
            run.work(70);
            if run.op % 3 == 0 {
                run.call(4, 4);
            }
        })
        .function(3, "realloc", &[], |run| run.work(20_000))
        .function(4, "copy", &[], |run| run.work(20_000));
    let mut session = Session::new(program, Params::default());
    session.run(3_000);
    assert_eq!(
        session.causes(1),
        [no_calls("f0/append/realloc"), no_calls("f0/convert/copy")]
    );
}

/// A function that waits in two of three ops and computes in the third.
#[test]
fn ops_in_which_a_cause_was_not_called_tell_nothing_of_it() {
    let program = Program::default()
        .function(0, "f0", &[(1, FUTEX), (2, call(1))], |run| {
            run.work(40);
            match run.op % 3 {
                0 => run.call(2, 1),
                _ => run.call_for(1, FUTEX, 20_000),
            }
        })
        .function(1, "compute", &[(3, call(2))], |run| {
            run.call(3, 2);
            run.work(20_000);
        })
        .function(2, "check", &[], |run| run.work(5));
    let mut session = Session::new(program, Params::default());
    session.run(3_000);
    let causes = session.analysis.root_causes(1);
    let ftree = session.analysis.ftree();
    let f0 = ftree.fnode(FnodeId::ROOT).record(1);
    let record = |cause: &RootCause| ftree.fnode(*cause.path.last().unwrap()).record(1);
    let [futex, compute] = &causes[..] else {
        panic!("{causes:?}");
    };
    assert_eq!(futex.known_from, record(futex).stats.ops);
    assert!(futex.known_from < f0.measured_ops, "{futex:?}");
    assert_eq!(compute.known_from, record(compute).decision_ops);
    assert!(compute.known_from < record(compute).measured_ops);
}

/// f0 makes two calls, of which this one cannot be measured.
fn with_unmeasured(callee: Callee) -> Analysis {
    let mut analysis = Analysis::new(Params::default());
    let (known, unknown) = (SiteId(1), SiteId(2));
    for at in 0..5_000 {
        let touched = analysis
            .ftree()
            .known_child(FnodeId::ROOT, known, call(1))
            .map(|fnode| Touched {
                fnode,
                max: Ticks(50),
                max_start: Tsc(at),
                long: Ticks(0),
                sum: Ticks(50),
                count: 1,
            });
        analysis.op(&Op {
            arguments: darc_record::Arguments::default(),
            tid: 1,
            start: Tsc(at),
            end: Tsc(at),
            latency: Ticks(1_000),
            touched: touched.into_iter().collect(),
        });
        for request in analysis.requests() {
            if let Request::Expand(fnode) = request {
                analysis.add_child(fnode, known, call(1));
                analysis.add_child(fnode, unknown, callee);
                analysis.refuse(&[unknown].into());
                analysis.expanded(fnode, Tsc(at));
            }
        }
    }
    analysis
}

#[test]
fn what_could_not_be_measured_is_in_the_verdict() {
    let analysis = with_unmeasured(call(2));
    let causes = analysis.root_causes(1);
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0].stop, Stop::PartlyMeasured);
    assert!((causes[0].share - 0.95).abs() < 1e-9, "{causes:?}");
    assert!(causes[0].known_from >= 20, "{causes:?}");
    let sites = analysis.ftree().sites(FnodeId::ROOT);
    assert_eq!((sites.known, sites.unmeasured.len()), (2, 1));
    assert!(!analysis.needed_probes().any(|id| id == sites.unmeasured[0]));
    assert_eq!(analysis.peak_status(1), PeakStatus::Undecided);
    assert_eq!(analysis.status(), Status::Undecided);
}

/// `clone3` makes a system call that cannot be measured, and that calls nothing.
#[test]
fn a_system_call_that_could_not_be_measured_is_an_end() {
    let analysis = with_unmeasured(Callee::Syscall(Some(435)));
    let causes = analysis.root_causes(1);
    assert_eq!(causes[0].stop, Stop::SelfTime);
    assert_eq!(analysis.status(), Status::RootCauseFound);
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
fn a_cause_of_little_is_no_root_cause_found() {
    // f0 takes 40% itself, or 60%; the rest is spread over what `a` calls.
    let status = |body| {
        const SITES: [u32; 10] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19];
        let sites = SITES.map(|id| (id, call(id)));
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], body)
            .function(1, "a", &sites, |run| {
                for id in SITES {
                    run.call(id, id);
                }
            });
        let program = SITES.iter().fold(program, |program, &id| {
            program.function(id, "part", &[], |run| run.work(run.level))
        });
        let mut session = Session::new(program, Params::default());
        session.run(1_000);
        let ends = session
            .causes(1)
            .into_iter()
            .map(|(path, _, stop)| (path, stop));
        let (f0, a) = ("f0".to_owned(), "f0/a".to_owned());
        assert_eq!(
            ends.collect::<Vec<_>>(),
            [(f0, Stop::SelfTime), (a, Stop::Spread)]
        );
        session.analysis.peak_status(1)
    };
    let little = |run: &mut Run<'_>| {
        run.work(4_000);
        run.level = 600;
        run.call(1, 1);
    };
    assert_eq!(status(little), PeakStatus::Spread);
    let most = |run: &mut Run<'_>| {
        run.work(6_000);
        run.level = 400;
        run.call(1, 1);
    };
    assert_eq!(status(most), PeakStatus::RootCauseFound);
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

/// Two fifths of the time are at the end of a path that may not become longer, and the rest is in parts of six hundredths.
#[test]
fn a_small_path_that_may_not_become_longer_leaves_the_rest_spread() {
    const PARTS: [u32; 10] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19];
    let sites: Vec<_> = PARTS.map(|id| (id, call(id))).into();
    let sites: Vec<_> = sites.into_iter().chain([(1, call(1))]).collect();
    let program = Program::default()
        .function(0, "f0", &sites, |run| {
            run.call(1, 1);
            PARTS.iter().for_each(|&id| run.call(id, id));
        })
        .function(1, "a", &[(2, call(2))], |run| run.call(2, 2))
        .function(2, "b", &[(3, call(3))], |run| run.call(3, 3))
        .function(3, "c", &[], |run| run.work(40_000));
    let program = PARTS.iter().fold(program, |program, &id| {
        program.function(id, "part", &[], |run| run.work(6_000))
    });
    let params = Params {
        max_depth: 3,
        ..Params::default()
    };
    let mut session = Session::new(program, params);
    session.run(10_000);
    let (path, _, stop) = session.causes(1).remove(0);
    assert_eq!((&path[..], stop), ("f0/a/b", Stop::MaxDepth));
    assert_eq!(session.analysis.peak_status(1), PeakStatus::Spread);
    assert_eq!(session.analysis.status(), Status::Spread);
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
            run.work(if run.op % 2 == 0 { 150 } else { 40 });
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
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    assert_eq!(session.causes(1), [no_calls("f0/a"), no_calls("f0/b")]);
}

#[test]
fn all_calls_of_a_function_are_one_cause() {
    // Eight sites, one of which is used in each op: none has more than an eighth.
    let sites: Vec<(u32, Callee)> = (1..=8).map(|site| (site, call(1))).collect();
    let program = Program::default()
        .function(0, "f0", &sites, |run| {
            run.call(1 + run.op as u32 % 8, 1);
        })
        .function(1, "work", &[], |run| run.work(10_000));
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    assert_eq!(session.analysis.status(), Status::RootCauseFound);
    let causes = session.analysis.root_causes(1);
    let sum = |of: fn(&RootCause) -> f64| causes.iter().map(of).sum::<f64>();
    assert!((sum(|cause| cause.share) - 1.0).abs() < 1e-6, "{causes:?}");
    let ops = sum(|cause| cause.share_of_ops);
    assert!((ops - 1.0).abs() < 1e-6, "{causes:?}");
    let paths = session.causes(1).into_iter().map(|(path, ..)| path);
    assert!(
        paths
            .collect::<Vec<_>>()
            .iter()
            .all(|path| path == "f0/work")
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

/// A slow path of four calls; fast ops take the same way, but shortly.
fn slow_and_fast() -> Program {
    Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "a", &[(2, call(2))], |run| run.call(2, 2))
        .function(2, "b", &[(3, call(3))], |run| run.call(3, 3))
        .function(3, "c", &[(4, call(4))], |run| run.call(4, 4))
        .function(4, "d", &[], |run| {
            run.work(if run.op % 25 == 0 { 1_000_000 } else { 3_000 });
        })
}

#[test]
fn fast_ops_are_measured_wherever_slow_ones_lead() {
    let params = Params {
        max_depth: 4,
        ..Params::default()
    };
    let mut session = Session::new(slow_and_fast(), params);
    session.run(400);
    // Fast ops are done at this depth; the slow ones go on further down.
    assert_eq!(session.analysis.peak_status(1), PeakStatus::MaxDepthReached);
    assert_eq!(session.analysis.peak_status(2), PeakStatus::InProgress);
    session.run(10_000);
    assert!(session.finished);
    for fnode in session
        .analysis
        .ftree()
        .fnodes()
        .filter(|fnode| fnode.depth < 4)
    {
        for peak in [1, 2] {
            let seen = fnode.record(peak).measured_ops;
            assert!(
                seen >= 20,
                "peak {peak} at depth {}: {seen} ops",
                fnode.depth
            );
        }
    }
    // They are filtered out all the same once there are enough of them.
    assert!(session.analysis.ftree().root().record(1).stats.ops < 200);
}

#[test]
fn the_filter_opens_for_contrast_and_closes_again() {
    // Peak 1 ends first; when the calls of `slow` are measured, its ops are asked for once more.
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            run.call(1, 1);
            run.call(2, 2);
        })
        .function(1, "compute", &[], |run| run.work(2_000))
        .function(2, "slow", &[(3, call(3))], |run| run.call(3, 3))
        .function(3, "seldom", &[], |run| {
            run.work(if run.op % 4 == 0 { 900_000 } else { 5 });
        });
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    let filters: Vec<usize> = session
        .log
        .iter()
        .filter_map(|request| match request {
            Request::FilterChanged(ranges) => Some(ranges.len()),
            _ => None,
        })
        .collect();
    assert_eq!(filters, [2, 1, 2, 1]);
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

/// The program is run again with what is known.
fn again(session: &Session, params: Params) -> Session {
    let analysis = Analysis::resume(params, session.stored()).unwrap();
    Session::over(session.program.clone(), analysis)
}

#[test]
fn a_short_program_is_run_as_often_as_needed() {
    let params = Params::default();
    let mut session = Session::new(two_peaks(), params);
    session.run(33);
    let mut runs = 1;
    while !session.finished {
        assert!(runs < 50);
        session = again(&session, params);
        session.run(33);
        runs += 1;
    }
    assert!(runs > 4);
    assert_eq!(session.causes(1), [found("f0/compute")]);
    assert_eq!(
        session.causes(2),
        [(
            "f0/lock/syscall 202".to_owned(),
            CauseKind::Syscall,
            Stop::SelfTime
        )]
    );
    let lock = session
        .analysis
        .ftree()
        .fnodes()
        .find(|fnode| fnode.callee == call(2));
    assert_eq!(
        lock.unwrap().record(2).maxcount,
        20,
        "ops of all runs count"
    );
    assert!(again(&session, params).finished, "nothing is left to do");
}

#[test]
fn the_peak_that_is_asked_for_is_gone_on_with_alone() {
    let params = Params::default();
    let mut session = Session::new(two_peaks(), params);
    session.run(101);
    assert!(!session.finished);
    let one = Params {
        peak: PeakChoice::One(2),
        ..params
    };
    let mut only = again(&session, one);
    only.run(10_000);
    assert!(only.finished);
    assert_eq!(only.analysis.peak_status(2), PeakStatus::RootCauseFound);
    assert_eq!(only.analysis.peak_status(1), PeakStatus::InProgress);
    let mut rest = again(&only, params);
    rest.run(10_000);
    assert_eq!(rest.causes(1), [found("f0/compute")]);
}

#[test]
fn what_other_peaks_ended_with_stands_when_one_is_asked_for() {
    let shallow = Params {
        max_depth: 2,
        ..Params::default()
    };
    let mut session = Session::new(two_peaks(), shallow);
    session.run(10_000);
    let before = session.causes(1);
    assert_eq!(before[0].2, Stop::MaxDepth);
    let one = Params {
        peak: PeakChoice::One(2),
        ..Params::default()
    };
    let mut only = again(&session, one);
    only.run(10_000);
    assert!(only.finished);
    assert_eq!(only.causes(2)[0].0, "f0/lock/syscall 202");
    assert_eq!(only.causes(1), before);
    assert_eq!(only.analysis.status(), Status::MaxDepthReached);
}

#[test]
fn the_next_process_is_told_which_ops_are_of_interest() {
    let is_filter = |request: &Request| matches!(request, Request::FilterChanged(_));
    let mut session = Session::new(two_peaks(), Params::default());
    session.run(110);
    let told: Vec<_> = session
        .log
        .iter()
        .filter(|r| is_filter(r))
        .cloned()
        .collect();
    assert!(!session.finished && !told.is_empty());
    session.analysis.next_process();
    let again = session.analysis.requests();
    assert_eq!(again.iter().find(|r| is_filter(r)), told.last());
}

#[test]
fn ops_below_what_can_be_told_are_of_interest_too() {
    let program = Program::default().function(0, "f0", &[], |run| run.work(400));
    let mut analysis = Analysis::new(Params::default());
    analysis.set_noise(Noise::new(Ticks(1_000), Ticks(0), "too short".to_owned()));
    let mut session = Session::over(program, analysis);
    session.run(5_000);
    assert!(session.finished);
}

#[test]
fn a_path_goes_on_when_it_may_become_longer() {
    let shallow = Params {
        max_depth: 2,
        ..Params::default()
    };
    let mut session = Session::new(chain(), shallow);
    session.run(1_000);
    assert_eq!(session.causes(1)[0].2, Stop::MaxDepth);
    let mut same = again(&session, shallow);
    assert_eq!(same.log, [Request::Finished]);
    same.run(10);
    assert_eq!(same.analysis.status(), Status::MaxDepthReached);
    let mut deeper = again(&session, Params::default());
    assert!(!deeper.finished);
    deeper.run(1_000);
    assert_eq!(deeper.causes(1), [no_calls("f0/a/b/c")]);
    let fresh = deeper.analysis.fresh_profile();
    assert_eq!(
        fresh.count() + session.analysis.profile().count(),
        deeper.analysis.profile().count()
    );
}

#[test]
fn another_distribution_is_noticed_after_a_resume() {
    let params = Params {
        decision_ops: 1_000,
        ..Params::default()
    };
    let mut session = Session::new(chain(), params);
    session.run(500);
    let mut same = again(&session, params);
    assert_eq!(same.analysis.comparison(), None, "no ops yet");
    same.run(200);
    assert!(!same.analysis.comparison().unwrap().is_changed());
    let mut other = again(&session, params);
    other.program.functions.get_mut(&3).unwrap().body = |run| run.work(9_000);
    other.run(200);
    assert!(other.analysis.comparison().unwrap().is_changed());
}

#[test]
fn what_contradicts_itself_is_not_gone_on_with() {
    let mut session = Session::new(chain(), Params::default());
    session.run(300);
    let stored = |peaks: &[(u32, u32)]| Stored {
        peaks: peaks.to_vec(),
        ..session.stored()
    };
    for peaks in [&[(9, 8)][..], &[(5, 8), (8, 9)], &[(5, 700)], &[]] {
        assert!(Analysis::resume(Params::default(), stored(peaks)).is_err());
    }
    let finer = Params {
        resolution: Resolution::FINE,
        ..Params::default()
    };
    assert!(Analysis::resume(finer, stored(&[(11, 11)])).is_err());
}

prop_compose! {
    fn any_op()(
        start: u64,
        latency in prop_oneof![0_u64..5_000, any::<u64>()],
        touched in prop::collection::vec((0_u32..12, any::<u64>(), any::<u64>(), any::<u64>(), 0_u64..5), 0..6),
    ) -> Op {
        Op {
arguments: darc_record::Arguments::default(),
            tid: 1,
            start: Tsc(start),
            end: Tsc(start),
            latency: Ticks(latency),
            touched: touched
                .into_iter()
                .map(|(fnode, max, max_start, sum, count)| Touched {
                    fnode: FnodeId(fnode),
                    max: Ticks(max),
                    max_start: Tsc(max_start),
                    long: Ticks(0),
                    sum: Ticks(sum),
                    count,
                })
                .collect(),
        }
    }
}

proptest! {
    #[test]
    fn no_record_breaks_the_analysis(
        ops in prop::collection::vec(any_op(), 1..300),
        calls in 0_u32..4,
        peak in 0_u32..3,
    ) {
        let params = Params {
            start_ops: 10,
            decision_ops: 3,
            max_depth: 4,
            peak: if peak == 0 { PeakChoice::All } else { PeakChoice::One(peak) },
            ..Params::default()
        };
        let mut analysis = Analysis::new(params);
        let mut finished = 0;
        for op in &ops {
            analysis.op(op);
            let mut requests = VecDeque::from(analysis.requests());
            while let Some(request) = requests.pop_front() {
                match request {
                    Request::Expand(fnode) if fnode.0 % 5 == 4 => {
                        analysis.cannot_expand(fnode, Stop::NotInstrumentable("no".to_owned()));
                    }
                    Request::Expand(fnode) => {
                        for site in 0..calls {
                            analysis.add_child(fnode, SiteId(site), call(site));
                        }
                        analysis.expanded(fnode, Tsc(0));
                    }
                    Request::Retire(fnodes) => prop_assert!(!fnodes.contains(&FnodeId::ROOT)),
                    Request::FilterChanged(ranges) => prop_assert!(!ranges.is_empty()),
                    Request::Finished => finished += 1,
                }
                requests.extend(analysis.requests());
            }
        }
        prop_assert_eq!(analysis.profile().verify(), Ok(()));
        prop_assert_eq!(analysis.profile().count(), ops.len() as u64);
        prop_assert!(finished <= 1);
        prop_assert_eq!(finished == 1, analysis.status() != Status::InProgress);
        for peak in analysis.peaks() {
            for cause in analysis.root_causes(peak.number) {
                prop_assert_eq!(cause.path[0], FnodeId::ROOT);
                prop_assert!(cause.path.len() <= 4);
                prop_assert!(finished == 0 || cause.stop != Stop::StillDescending);
            }
        }
    }
}

#[test]
fn ops_from_before_a_callee_was_told_apart_do_not_decide() {
    use darc_record::{Arguments, Op, Touched, Tsc};
    const SITE: SiteId = SiteId(1);
    let mut analysis = Analysis::new(Params {
        start_ops: 1,
        decision_ops: 5,
        ..Params::default()
    });
    let op = |at: u64, fnode: FnodeId| Op {
        arguments: Arguments::default(),
        tid: 1,
        start: Tsc(at),
        end: Tsc(at + 1_000),
        latency: Ticks(1_000),
        touched: vec![Touched {
            fnode,
            max: Ticks(900),
            max_start: Tsc(at),
            long: Ticks(0),
            sum: Ticks(900),
            count: 1,
        }],
    };
    for at in 0..10 {
        analysis.op(&op(at * 1_000, FnodeId(99)));
    }
    assert!(
        analysis
            .requests()
            .contains(&Request::Expand(FnodeId::ROOT))
    );
    let any = analysis.add_child(FnodeId::ROOT, SITE, Callee::Unknown);
    analysis.expanded(FnodeId::ROOT, Tsc(10_000));
    // The reader is late: what it reads first is who was called, and then ops that do not know it.
    let known = analysis.add_child(FnodeId::ROOT, SITE, call(7));
    analysis.told_apart(FnodeId::ROOT, Tsc(50_000));
    for at in 10..50 {
        analysis.op(&op(at * 1_000, any));
    }
    assert_eq!(analysis.ftree().fnode(any).record(1).maxcount, 0);
    for at in 50..70 {
        analysis.op(&op(at * 1_000, known));
    }
    let maxcount = |fnode| analysis.ftree().fnode(fnode).record(1).maxcount;
    assert_eq!(maxcount(any), 0);
    assert!(maxcount(known) >= 5);
}

#[test]
fn targets_of_indirect_calls_are_measured_again() {
    let mut analysis = Analysis::new(Params::default());
    let root = analysis.ftree.fnode_mut(FnodeId::ROOT);
    root.record_mut(2).state = PathState::Collecting;
    let any = analysis.add_child(FnodeId::ROOT, SiteId(1), Callee::Unknown);
    let target = analysis.add_child(FnodeId::ROOT, SiteId(1), call(1));
    analysis.expanded(FnodeId::ROOT, Tsc(0));
    for fnode in [any, target] {
        analysis.ftree.fnode_mut(fnode).probe = Probe::Retired;
    }
    // As a session does that is asked to expand once more.
    analysis.add_child(FnodeId::ROOT, SiteId(1), Callee::Unknown);
    analysis.expanded(FnodeId::ROOT, Tsc(9));
    assert_eq!(analysis.needed_probes().collect::<Vec<_>>(), [any, target]);
}
