//! `darc status`: where an analysis stands that another darc conducts.

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use serde_json::Value;

use crate::harness::{Running, Target, Task, darc, execute, run_darc, wait_until};
use crate::report::Report;

#[test]
fn an_analysis_that_runs_says_where_it_stands() {
    let path = program("two_peaks", Opt::O2);
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    // It shall not end before it is asked.
    let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000"]);
    let (mut analysis, output, _folder) = task.start_attach(target.pid());
    analysis.wait_for_probes(target.pid());
    let mut said = None;
    wait_until("ops in the status", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        assert_eq!(status.code(), 0, "{status:#?}");
        let report = Report::of(&status);
        let ops = report.ops();
        said = Some(report);
        ops > 200
    });
    let said = said.expect("it was asked");
    assert_eq!(said.status(), "in-progress");
    assert_eq!(said.at("/f0/name"), "serve");
    assert_eq!(said.at("/target/pid"), target.pid());
    let all = execute(&mut darc(&["status"]));
    assert!(all.stdout.contains("Latency of serve"), "{all:#?}");

    analysis.signal(Signal::SIGINT);
    let ended = analysis.finish();
    let report = Report::read(&output, &ended);
    assert!(report.ops() >= said.ops(), "it went on");
    let refused = run_darc(&["status", "-p", &pid]);
    assert!(refused.failure(3).contains("no darc measures it"));
    target.finish_like_native(&path, &[]);
}

/// A profiling says what it has counted so far, all of it and no more, and goes on.
#[test]
fn a_profiling_that_runs_says_where_it_stands() {
    let path = program("two_peaks", Opt::O2);
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let output = folder.path().join("profiles.json");
    let mut command = darc(&[
        "profile", "-p", &pid, "-i", "50ms", "--format", "json", "-q", "-o",
    ]);
    let profiling = Running::start(command.arg(&output).args(["serve", "rehash"]));
    let mut before = 0;
    wait_until("calls in the status", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        let Ok(said) = serde_json::from_str::<Value>(&status.stdout) else {
            return false;
        };
        // It may not have begun yet.
        if status.code() != 0 {
            return false;
        }
        assert_eq!(said["target"]["pid"], target.pid());
        let calls = calls_of(&said, "serve");
        assert!(calls >= before, "{said:#}");
        before = calls;
        // More than fit into one interval.
        calls > 300
    });
    let text = run_darc(&["status", "-p", &pid]);
    assert!(
        text.stdout.contains("Latency profiles of functions"),
        "{text:#?}"
    );
    run_darc(&["status", "-p", &pid, "--format", "folded"]).failure(2);

    profiling.signal(Signal::SIGINT);
    let ended = profiling.finish();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    let json = std::fs::read_to_string(&output).expect("it was written");
    let all: Value = serde_json::from_str(&json).expect("JSON");
    assert!(calls_of(&all, "serve") >= before, "it went on");
    // Asking neither adds a segment nor takes calls out of one.
    for profile in all["profiles"].as_array().expect("a list") {
        let segments = profile["segments"].as_array().expect("a list");
        let sum: u64 = segments
            .iter()
            .filter_map(|segment| segment["calls"].as_u64())
            .sum();
        assert_eq!(Some(sum), profile["calls"].as_u64(), "{profile:#}");
    }
    target.finish_like_native(&path, &[]);
}

/// A watch says what it has counted of everything that it watches.
#[test]
fn a_watch_that_runs_says_where_it_stands() {
    let path = program("two_peaks", Opt::O2);
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let watch = Running::start(&mut darc(&["watch", "-p", &pid, "serve"]));
    wait_until("calls in the status", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        serde_json::from_str::<Value>(&status.stdout)
            .is_ok_and(|said| calls_of(&said, "serve") > 50)
    });
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.finish().code(), 0);
    target.finish_like_native(&path, &[]);
}

/// Calls of a function in a set of profiles; none in what is no such set.
fn calls_of(set: &Value, name: &str) -> u64 {
    let profiles = set["profiles"].as_array();
    let found = profiles
        .into_iter()
        .flatten()
        .find(|profile| profile["function"]["name"] == name);
    found
        .and_then(|profile| profile["calls"].as_u64())
        .unwrap_or(0)
}
