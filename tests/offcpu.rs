//! Time away from the CPU: preemption as the cause of a peak, and how a thread waited.

use darc_testprogs::{Opt, program};
use serde_json::Value;

use crate::harness::{Analysis, Task, for_all, measured, run_darc, turn};
use crate::report::Report;

/// Whether the kernel tells this user of every switch of the machine; a container may forbid it.
fn permitted() -> bool {
    let tried = run_darc(&["sample", "-a", "-d", "1ms"]);
    let permitted = tried.code() == 0;
    if !permitted {
        eprintln!("not tested: {}", tried.stderr);
    }
    permitted
}

const APART: [&str; 2] = ["--preemption", "apart"];

/// The cause of the far peak, which takes most of the time.
fn far_cause(report: &Report) -> Result<&Value, String> {
    let peaks = report.peaks().iter();
    let far = peaks.max_by_key(|peak| peak["first_bucket"].as_u64());
    let causes = far.and_then(|peak| peak["root_causes"].as_array());
    causes
        .and_then(|causes| causes.first())
        .ok_or_else(|| format!("no cause: {:#}", report.0))
}

/// Two processes that never wait, pinned to one CPU.
#[test]
fn preemption_is_the_cause_of_the_far_peak() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for opt in Opt::ALL {
        measured(|| {
            let task = Task::new("jump", "serve").options(&APART);
            let analysis = task.run_like_native(&program("preempted", opt), &[]);
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            let report = analysis.report();
            let cause = far_cause(&report)?;
            if cause["kind"] != "preemption" {
                return Err(format!("{cause:#}"));
            }
            assert_eq!(cause["path"][0], "serve");
            let others = cause["waits"]["others"].as_array().expect("a list");
            match others.first() {
                Some(other) if other["name"] == "rival" => Ok(()),
                _ => Err(format!("{cause:#}")),
            }
        });
    }
}

/// What preemption took is in no function: the time of `compute` is its own in both peaks.
#[test]
fn preemption_is_taken_out_of_what_it_struck() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    measured(|| {
        let analysis = Task::new("jump", "serve")
            .options(&APART)
            .run(&program("preempted", Opt::O2), &[]);
        let report = analysis.report();
        if far_cause(&report)?["kind"] != "preemption" {
            return Err(format!("{:#}", report.0));
        }
        let children = report.at("/ftree/children").as_array().expect("a list");
        let find = |name: &str| children.iter().find(|child| child["name"] == name);
        let number = |value: &Value| value.as_u64().expect("a number");
        let (compute, away) = (find("compute"), find("(preemption)"));
        let (Some(compute), Some(away)) = (compute, away) else {
            return Err(format!("{:#}", report.0));
        };
        // Far ops are dozens of times longer than the work in them.
        match number(&compute["mean"]) * 4 < number(&away["max"]) {
            true => Ok(()),
            false => Err(format!("{:#}", report.0)),
        }
    });
}

/// A path that ends in a system call says for how long it was blocked there.
#[test]
fn a_wait_is_told() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for opt in Opt::ALL {
        measured(|| {
            let analysis: Analysis = Task::new("jump", "update")
                .options(&APART)
                .run(&program("mutex_contention", opt), &[]);
            let report = analysis.report();
            let causes = report.peaks().iter().flat_map(|peak| {
                let causes = peak["root_causes"].as_array().expect("a list").iter();
                causes.filter(|cause| cause["kind"] == "syscall")
            });
            let blocked: Vec<u64> = causes
                .filter_map(|cause| cause["waits"]["blocked"].as_u64())
                .collect();
            match blocked.iter().any(|&blocked| blocked > 0) {
                true => Ok(()),
                false => Err(format!("{:#}", report.0)),
            }
        });
    }
}

/// An analysis goes on from results that have time away in them.
#[test]
fn results_with_time_away_can_be_resumed() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let task =
        Task::new("jump", "serve").options(&["--preemption", "apart", "--decision-ops", "30"]);
    let analysis = task.run(&program("preempted", Opt::O2), &["250"]);
    let output = analysis.output.to_str().expect("text");
    let again = analysis.folder.path().join("again.json");
    let resumed = run_darc(&[
        "resume",
        output,
        "--format",
        "json",
        "-o",
        again.to_str().expect("text"),
    ]);
    assert_eq!(resumed.code(), 0, "{resumed:#?}");
    let report = Report::read(&again, &resumed);
    assert!(report.ops() > analysis.report().ops());
}

/// Nothing of the process is changed by following its switches.
#[test]
fn followed_programs_end_as_ever() {
    let _turn = turn();
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&[
            "--preemption",
            "apart",
            "--decision-ops",
            "1000000000",
        ]);
        task.run_like_native(&program("preempted", opt), &["200", "brisk"]);
    });
}
