//! Many threads, threads that come and go, a leader that is gone.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use darc_testprogs::{GroundTruth, Opt, ground_truth, program};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::{Target, Task, Unfinished, Wrong, engines, for_all, measured};
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

/// The threads that are named are measured, and no others.
#[test]
fn threads_of_one_name() {
    let truth = ground_truth("named_threads");
    for_all(|engine, opt| {
        for (name, peak) in [("quick", 0), ("sl*", 1)] {
            measured(|| {
                let target = Target::start("named_threads", opt, &[]);
                let task = Task::new(engine, "serve").options(&["--thread", name]);
                let analysis = task.attach(target.pid());
                assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
                let report = analysis.report();
                assert_eq!(report.at("/target/threads"), &json!([name]));
                target.finish_like_native(&program("named_threads", opt), &[]);
                // The slow ones sleep for 3 ms.
                let shortest = report.at("/profile/buckets/0/bucket").as_u64();
                if peak == 1 && shortest < Some(22) {
                    return Err(Wrong(format!("ops of other threads: {:#}", report.0)));
                }
                report.judge(&GroundTruth {
                    peaks: vec![truth.peaks[peak].clone()],
                    ..truth.clone()
                })
            });
        }
    });
}

/// Of a function that runs all the time, too, and of a thread by its id.
#[test]
fn a_thread_by_its_id() {
    measured(|| {
        let target = Target::start("named_threads", Opt::O2, &[]);
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).expect("it lives");
        let mut tasks = tasks.map(|task| task.expect("an entry").path());
        let is_slow =
            |task: &PathBuf| fs::read(task.join("comm")).is_ok_and(|name| name == b"slow\n");
        let slow = tasks.find(is_slow).expect("a thread of that name");
        let id = slow.file_name().and_then(OsStr::to_str).expect("a number");
        let task = Task::new("jump", "work").options(&["--thread", id]);
        let analysis = task.attach(target.pid());
        let report = analysis.report();
        target.finish_like_native(&program("named_threads", Opt::O2), &[]);
        let below = |name: &str| report.0["time"].to_string().contains(name);
        match (below("read_disk"), below("compute")) {
            (true, false) => Ok(()),
            (_, true) => Err(Wrong(format!("another thread's time: {:#}", report.0))),
            (false, _) => Err(Unfinished(format!("{:#}", report.0))),
        }
    });
    let target = Target::start("named_threads", Opt::O2, &[]);
    let task = Task::new("jump", "serve").options(&["--thread", "quic"]);
    let refused = task.attach(target.pid());
    let message = refused.darc.failure(4);
    assert!(message.contains("no thread quic; it has"), "{message}");
    target.finish_like_native(&program("named_threads", Opt::O2), &[]);
}

/// Attaching while threads are born and die: none is missed, none is left traced.
#[test]
fn threads_that_come_and_go() {
    for_all(|engine, opt| {
        let target = Target::start("thread_churn", opt, &["brisk"]);
        for _ in 0..3 {
            let task = Task::new(engine, "task").options(&[
                "--start-ops",
                "50",
                "--decision-ops",
                "5",
                "-d",
                "20s",
            ]);
            let analysis = task.attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            check_released(target.pid());
            check_text(target.pid());
        }
        target.finish_like_native(&program("thread_churn", opt), &["brisk"]);
    });
}

/// Threads of the kernel's, which works for io_uring, are among the process's: they make no calls in its name, and no memory stays
/// mapped for them. Which thread is stopped is a matter of luck.
#[test]
fn threads_that_work_for_the_kernel() {
    for_all(|engine, opt| {
        let path = program("kernel_workers", opt);
        if crate::harness::native(&path, &["1"]).code() == 77 {
            eprintln!("left out: there is no io_uring here");
            return;
        }
        let target = Target::start_at(&path, &[]);
        let before = ProcessState::of(target.pid());
        let task = Task::new(engine, "serve").options(&["-d", "100ms"]);
        for _ in 0..if engine == "int3" { 2 } else { 1 } {
            let analysis = task.attach(target.pid());
            // On a busy machine no call may complete in that time.
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
            before.check_unchanged(target.pid());
        }
        target.finish_like_native(&path, &[]);
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

/// The threads of such a program end one by one, and nobody says that it has ended.
#[test]
fn the_end_of_a_program_whose_leader_is_gone() {
    for_all(|engine, opt| {
        let target = Target::start("dead_leader", opt, &[]);
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let (mut darc, _output, _folder) = task.start_attach(target.pid());
        darc.wait_for_probes(target.pid());
        target.signal(Signal::SIGKILL);
        let finished = darc.finish();
        assert!([0, 6, 7].contains(&finished.code()), "{finished:#?}");
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
        let options = ["--start-ops", "100", "-d", "60s", "--budget", "50%"];
        // To stop so many takes darc more than the usual budget; int3 keeps none.
        let options = match *engine {
            "jump" => &options[..],
            _ => &options[..4],
        };
        let task = Task::new(engine, "serve").options(options);
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
