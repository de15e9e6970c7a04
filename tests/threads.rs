//! Many threads, threads that come and go, a leader that is gone.

use darc_testprogs::{Opt, ground_truth, program};

use crate::harness::{Target, Task, engines, for_all, measured};
use crate::untouched::{ProcessState, check_released, check_text};

#[test]
fn four_threads_at_once() {
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("four_threads", opt, &[]);
            let analysis = Task::new(engine, "serve").attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            check_released(target.pid());
            check_text(target.pid());
            let judged = analysis.report().judge(ground_truth("four_threads"));
            target.finish_like_native(&program("four_threads", opt), &[]);
            judged
        })
    });
}

/// Attaching while threads are born and die: none is missed, none is left traced.
#[test]
fn threads_that_come_and_go() {
    for_all(|engine, opt| {
        let target = Target::start("thread_churn", opt, &["brisk"]);
        for _ in 0..5 {
            let task = Task::new(engine, "task").options(&[
                "--start-ops",
                "50",
                "--decision-ops",
                "5",
                "-d",
                "5s",
            ]);
            let analysis = task.attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            check_released(target.pid());
            check_text(target.pid());
        }
        target.finish_like_native(&program("thread_churn", opt), &["brisk"]);
    });
}

#[test]
fn a_leader_that_is_gone() {
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("dead_leader", opt, &[]);
            let before = ProcessState::of(target.pid());
            let analysis = Task::new(engine, "serve").attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            before.check_unchanged(target.pid());
            let judged = analysis.report().judge(ground_truth("dead_leader"));
            target.finish_like_native(&program("dead_leader", opt), &[]);
            judged
        })
    });
}

/// Three thousand threads, one after another, none with the thread pointer of another: each is measured,
/// though there is room for some hundred at a time.
#[test]
fn short_lived_threads_leave_room_for_others() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "visit").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&program("short_threads", opt), &["3000"]);
        let report = analysis.report();
        // Far more than there are places; and if some came too fast, that is said.
        assert!(report.ops() >= 3 * 1500, "{:#}", report.0);
        let said = report
            .at("/warnings")
            .to_string()
            .contains("passed unmeasured");
        assert!(report.ops() == 3 * 3000 || said, "{:#}", report.0);
    });
}

/// Threads that the C library did not make: one that tracers are not told of, and one that shares its thread
/// pointer with the thread that made it; a process whose parent is the program's parent.
#[test]
fn threads_of_other_kinds() {
    for_all(|engine, opt| {
        for mode in ["untraced", "bare", "parent"] {
            if mode == "untraced" && engine == "int3" {
                // Nobody is there for its breakpoints: docs/limits.md.
                continue;
            }
            let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
            let analysis = task.run_like_native(&program("odd_threads", opt), &["1000", mode]);
            assert!(analysis.report().ops() > 0, "{mode}: {analysis:#?}");
        }
    });
}

/// Five thousand threads, or as many as the system allows, asleep beside the one that works.
#[test]
fn five_thousand_threads() {
    // Such a crowd takes its time, and how the program is optimised is no matter of it.
    for engine in engines() {
        let target = Target::start("odd_threads", Opt::O2, &["crowd"]);
        let before = ProcessState::of(target.pid());
        let task = Task::new(engine, "serve").options(&["--start-ops", "100", "-d", "20s"]);
        let analysis = task.attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
        before.check_unchanged(target.pid());
        let finished = target.finish();
        assert!(finished.status.success(), "{finished:#?}");
    }
}

/// Robust mutexes whose owner dies inside f0, and mutexes that pass on priority.
#[test]
fn locks_whose_owner_dies() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&program("robust_locks", opt), &["1000"]);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
    });
}
