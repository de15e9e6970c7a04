//! Requests that f0 hands to another thread, and what pointers lead to.

use darc_testprogs::{Opt, program};
use serde_json::Value;

use crate::harness::{Task, measured, run_darc, turn};
use crate::report::Report;

const PATH: &str = "enqueue=enqueue:arg2;serve=serve:*(arg1+8)";

fn ops(profile: &Value, from: u64, to: u64) -> u64 {
    let buckets = profile["buckets"].as_array().expect("a list").iter();
    let inside = buckets.filter(|it| (from..=to).contains(&it["bucket"].as_u64().expect("one")));
    inside.map(|it| it["ops"].as_u64().expect("a count")).sum()
}

#[test]
fn waiting_in_the_queue_and_being_served_are_told_apart() {
    let _turn = turn();
    measured(|| {
        let options = ["--async", PATH, "--start-ops", "60", "--decision-ops", "6"];
        let task = Task::new("jump", "submit").options(&options);
        let report = task
            .run_like_native(&program("handed_over", Opt::O2), &["800"])
            .report();
        let served = &report.0["focus"][0];
        let handover = &served["handover"];
        let requests = handover["served"].as_u64().unwrap_or(0);
        // 2.5 ms is in bucket 22, of one request in ten.
        let late = ops(&handover["waits"], 22, 23);
        let causes: Vec<_> = served["peaks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(Report::causes)
            .collect();
        let of = |name: &str| {
            let path = [String::from("serve"), name.to_owned()];
            causes
                .iter()
                .filter(|it| it.iter().any(|cause| cause.path == path))
                .count()
        };
        let told_apart = late * 20 > requests && late * 5 < requests;
        // What comes from elsewhere is as frequent, and in neither profile.
        let elsewhere = handover["others"].as_u64().unwrap_or(0) * 10 > requests * 8;
        let right = served["path"] == serde_json::json!(["submit", "enqueue", "serve"])
            && requests > 100
            && ops(&served["profile"], 17, 18) * 20 < requests
            && told_apart
            && elsewhere
            && (of("look_up"), of("seek"), of("serve_elsewhere")) == (1, 1, 0);
        match right {
            true => Ok(()),
            false => Err(format!("{:#}", report.0)),
        }
    });
}

#[test]
fn a_path_to_another_thread_needs_three_functions_and_the_jump_engine() {
    let _turn = turn();
    let path = program("handed_over", Opt::O2);
    let run = |engine: &str, path_option: &str| {
        let out = tempfile::tempdir().expect("a folder");
        let file = out.path().join("out.txt");
        let file = file.to_str().expect("UTF-8");
        let program = path.to_str().expect("UTF-8");
        run_darc(&[
            "run",
            "--f0",
            "submit",
            "--engine",
            engine,
            "--async",
            path_option,
            "-o",
            file,
            "--",
            program,
            "20",
        ])
    };
    let refused = run("int3", PATH);
    assert!(refused.failure(2).contains("--engine int3"), "{refused:#?}");
    let refused = run("jump", "enqueue=submit:arg1;serve=serve:arg1");
    assert!(refused.failure(3).contains("must be three"), "{refused:#?}");
    let refused = run("jump", "enqueue=enqueue:arg2;serve=servant:arg1");
    assert!(refused.failure(4).contains("servant"), "{refused:#?}");
    let refused = run("jump", "enqueue=enqueue:rsi;serve=serve:arg1");
    assert_eq!(refused.code(), 2, "{refused:#?}");
}

#[test]
fn what_an_argument_points_to_tells_the_peaks_apart() {
    let _turn = turn();
    measured(|| {
        let options = ["--value", "*arg1", "--decision-ops", "40"];
        let task = Task::new("jump", "wait_for").options(&options);
        let report = task
            .run_like_native(&program("handed_over", Opt::O2), &["600"])
            .report();
        let values = report.0["values"].as_array().cloned().unwrap_or_default();
        let is_slow = |side: &Value| {
            let first = side["values"][0]["value"].as_u64();
            first.is_some_and(|key| [4, 9].contains(&(key % 10)) && key < 20)
        };
        let told = values.iter().any(|found| {
            found["expression"] == "*arg1"
                && found["values"]
                    .as_array()
                    .is_some_and(|both| both.iter().any(is_slow))
        });
        told.then_some(()).ok_or_else(|| format!("{:#}", report.0))
    });
}

#[test]
fn a_pointer_that_leads_nowhere_is_no_danger() {
    let _turn = turn();
    for engine in ["jump", "int3"] {
        // The argument of submit is a small number.
        let options = ["--value", "**(arg1-8)", "--start-ops", "20"];
        let task = Task::new(engine, "submit").options(&options);
        let analysis = task.run_like_native(&program("handed_over", Opt::O2), &["200", "brisk"]);
        let report = analysis.report();
        let warnings = report.0["warnings"].to_string();
        assert!(report.0["values"].is_null(), "{:#}", report.0);
        assert!(warnings.contains("could not be read"), "{:#}", report.0);
    }
}
