//! Calls that are made again and again: whose time they are.

use super::scenarios::no_calls;
use crate::descent::noise::Noise;
use crate::simulate::{Program, Run, Session, call};
use crate::{Analysis, Callee, CauseKind, Params, Status, Stop};
use darc_record::{SiteId, Ticks};

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

const FSYNC: Callee = Callee::Syscall(Some(74));

#[test]
fn long_calls_in_a_loop_are_gone_into() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "save", &[(2, call(2))], |run| {
            for _ in 0..16 {
                run.work(40);
                run.call(2, 2);
            }
        })
        .function(2, "write_page", &[(3, FSYNC)], |run| {
            run.call_for(3, FSYNC, 15_000);
        });
    let mut session = Session::new(program, Params::default());
    session.run(1_000);
    assert_eq!(session.analysis.status(), Status::RootCauseFound);
    let found = explained(&session);
    assert_eq!(found.len(), 1, "{found:?}");
    let (path, kind, share) = &found[0];
    assert_eq!(
        (&path[..], *kind),
        ("f0/save/write_page/syscall 74", CauseKind::Syscall)
    );
    assert!(*share > 0.99, "{share}");
}

#[test]
fn of_two_callees_in_a_loop_both_are_causes() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
            for _ in 0..40 {
                run.call(1, 1);
                run.call(2, 2);
            }
        })
        .function(1, "read_row", &[], |run| run.work(4_000))
        .function(2, "keep_row", &[(3, call(3))], |run| run.call(3, 3))
        .function(3, "store", &[], |run| run.work(6_000));
    let mut session = Session::new(program, Params::default());
    session.run(1_000);
    let found = explained(&session).into_iter();
    let found: Vec<(String, f64)> = found
        .map(|(path, _, share)| (path, (share * 10.0).round() / 10.0))
        .collect();
    assert_eq!(
        found,
        [
            ("f0/read_row".to_owned(), 0.4),
            ("f0/keep_row/store".to_owned(), 0.6)
        ]
    );
}

#[test]
fn a_loop_whose_time_is_spread_below_is_the_cause() {
    const PARTS: [u32; 12] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];
    let each_once = |run: &mut Run<'_>| {
        for id in PARTS {
            run.call(id, id);
        }
    };
    let fifty_times = |run: &mut Run<'_>| {
        for _ in 0..50 {
            run.call(2, 2);
        }
    };
    let repeating = |run: &mut Run<'_>| {
        for _ in 0..50 {
            for id in PARTS {
                run.call(id, id);
            }
        }
    };
    let found = |walk: fn(&mut Run<'_>), step: fn(&mut Run<'_>)| {
        let sites = PARTS.map(|id| (id, call(id)));
        let all: Vec<_> = sites.into_iter().chain([(2, call(2))]).collect();
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
            .function(1, "walk", &all, walk)
            .function(2, "step", &sites, step);
        let program = PARTS.iter().fold(program, |program, &id| {
            program.function(id, "part", &[], |run| run.work(3_000))
        });
        let mut session = Session::new(program, Params::default());
        session.run(2_000);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        explained(&session)
    };
    let of_walk = [("f0/walk".to_owned(), CauseKind::Loop, 1.0)];
    assert_eq!(found(fifty_times, each_once), of_walk);
    assert_eq!(found(repeating, |_| ()), of_walk);
}

/// One of fifty steps does something long, which is spread in itself: it is not that there are fifty.
#[test]
fn a_loop_of_which_one_round_takes_the_time_is_not_the_cause() {
    const PARTS: [u32; 12] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "walk", &[(2, call(2))], |run| {
            for step in 0..50 {
                run.level = step;
                run.call(2, 2);
            }
        })
        .function(2, "step", &[(3, call(3))], |run| {
            run.work(10);
            if run.level == run.op % 50 {
                run.call(3, 3);
            }
        })
        .function(3, "rehash", &PARTS.map(|id| (id, call(id))), |run| {
            for id in PARTS {
                run.call(id, id);
            }
        });
    let program = PARTS.iter().fold(program, |program, &id| {
        program.function(id, "part", &[], |run| run.work(30_000))
    });
    let mut session = Session::new(program, Params::default());
    session.run(10_000);
    let causes = session.causes(1);
    let ends: Vec<&str> = causes.iter().map(|(path, ..)| &path[..]).collect();
    assert_eq!(ends, ["f0/walk/step/rehash"]);
    assert!(causes.iter().all(|(_, kind, _)| *kind != CauseKind::Loop));
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

/// The parts of the time that the causes of the first peak explain.
fn explained(session: &Session) -> Vec<(String, CauseKind, f64)> {
    let causes = session.causes(1).into_iter();
    let shares = session.analysis.root_causes(1);
    let both = causes.zip(shares);
    both.map(|((path, kind, _), cause)| (path, kind, cause.share))
        .collect()
}

#[test]
fn repeated_calls_are_told_once() {
    let twice = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| {
            run.call(1, 1);
            run.call(1, 1);
        })
        .function(1, "g", &[], |run| run.work(5_000));
    let mut session = Session::new(twice, Params::default());
    session.run(1_000);
    assert_eq!(
        explained(&session),
        [("f0/g".to_owned(), CauseKind::Function, 1.0)]
    );
    // One long call, and a loop of short ones of the same function.
    let both = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| {
            for step in 0..21 {
                run.level = if step == 0 { 4_000 } else { 300 };
                run.call(1, 1);
            }
        })
        .function(1, "g", &[], |run| run.work(run.level));
    let mut session = Session::new(both, Params::default());
    session.run(1_000);
    let found = explained(&session);
    assert_eq!(
        found.iter().map(|at| (&at.0[..], at.1)).collect::<Vec<_>>(),
        [("f0", CauseKind::Loop), ("f0/g", CauseKind::Function)]
    );
    assert!((found[0].2 - 0.6).abs() < 0.01 && (found[1].2 - 0.4).abs() < 0.01);
}

/// A loop over short calls at one site, and one long call of the same function at another one.
#[test]
fn a_long_call_beside_a_loop_of_the_same_function_has_its_own_share() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1)), (2, call(1))], |run| {
            run.work(30_000);
            run.level = 120;
            for _ in 0..2_000 {
                run.call(1, 1);
            }
            run.level = 1_000;
            run.call(2, 1);
        })
        .function(1, "append", &[(3, call(2))], |run| match run.level {
            120 => run.work(120),
            _ => run.call(3, 2),
        })
        .function(2, "copy", &[], |run| run.work(180_000));
    let mut session = Session::new(program, Params::default());
    session.run(1_000);
    let found = explained(&session);
    let of = |path: &str| {
        let found = found.iter().filter(|cause| cause.0 == path);
        found.map(|cause| cause.2).sum::<f64>()
    };
    let all = 30_000.0 + 2_000.0 * 120.0 + 180_000.0;
    assert!((of("f0") - 270_000.0 / all).abs() < 0.02, "{found:?}");
    assert!(
        (of("f0/append/copy") - 180_000.0 / all).abs() < 0.02,
        "{found:?}"
    );
    assert!(of("f0/append") < 0.02, "{found:?}");
}

/// 5,000 calls an op, of which 25 take nearly all of the time, in what they alone call.
#[test]
fn some_long_calls_among_thousands_are_gone_into() {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| {
            run.work(100_000);
            for step in 0..5_000 {
                run.level = u64::from(step % 200 == 7);
                run.call(1, 1);
            }
        })
        .function(1, "get_page", &[(2, call(2))], |run| {
            run.work(180);
            if run.level == 1 {
                run.call(2, 2);
            }
        })
        .function(2, "load", &[], |run| run.work(240_000));
    let mut session = Session::new(program, Params::default());
    session.run(1_000);
    let found = explained(&session);
    assert_eq!(found[0].0, "f0/get_page/load", "{found:?}");
    let all = 25.0 * 240_000.0 + 5_000.0 * 180.0 + 100_000.0;
    assert!(
        (found[0].2 - 25.0 * 240_000.0 / all).abs() < 0.02,
        "{found:?}"
    );
    assert_eq!(session.analysis.status(), Status::RootCauseFound);
}

/// In a call of `hash` 200 calls that are measured, and one more that is not, which takes so much.
fn with_one_unmeasured(refused: fn(&mut Run<'_>), noise: u64) -> Session {
    let program = Program::default()
        .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
        .function(1, "hash", &[(2, call(2)), (3, call(3))], |run| {
            for _ in 0..200 {
                run.work(2);
                run.call(2, 2);
            }
            run.call(3, 3);
        })
        .function(2, "sum", &[], |run| run.work(250))
        .function(3, "allocate", &[], refused);
    let mut analysis = Analysis::new(Params::default());
    analysis.set_noise(Noise::new(Ticks(0), Ticks(noise), String::new()));
    let mut session = Session::over(program, analysis);
    session.refused.insert(SiteId(3));
    session.run(1_000);
    session
}

#[test]
fn a_call_that_was_not_measured_beside_a_loop_that_has_all_the_time_leaves_nothing_open() {
    let of = |refused: fn(&mut Run<'_>), noise| {
        let session = with_one_unmeasured(refused, noise);
        let causes = session.causes(1);
        assert_eq!(causes.len(), 1, "{causes:?}");
        let (_, kind, stop) = causes[0].clone();
        assert_eq!(kind, CauseKind::Loop);
        (stop, session.analysis.status())
    };
    let decided = (Stop::SelfTime, Status::RootCauseFound);
    let open = (Stop::PartlyMeasured, Status::Undecided);
    // 2,000 of 52,400 ticks; then a quarter; then what measuring the calls may hide.
    assert_eq!(of(|run| run.work(2_000), 0), decided);
    assert_eq!(of(|run| run.work(17_000), 0), open);
    assert_eq!(of(|run| run.work(2_000), 25), open);
}
