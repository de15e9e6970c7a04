//! The analysis begins and ends when the program, or a signal to darc, says so.

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use crate::harness::{Target, Task, Unfinished, engines, measured, native, run_darc, wait_until};
use crate::report::Report;

const MARKS: [&str; 4] = ["--begin-at", "darc_begin", "--end-at", "darc_end"];

fn paths(report: &Report) -> Vec<String> {
    let causes = report.peaks().iter().flat_map(Report::causes);
    causes.map(|cause| cause.path.join(" ")).collect()
}

#[test]
fn the_program_says_what_is_of_interest() {
    for opt in Opt::ALL {
        let path = program("marks", opt);
        let native = native(&path, &["2000"]);
        measured(|| {
            let task = Task::new("jump", "serve").options(&MARKS);
            let analysis = task.run_like(&native, &path, &["2000"]);
            let report = analysis.report();
            let mut names = Vec::new();
            collect(report.at("/ftree"), &mut names);
            assert!(report.ops() <= 2000, "{}", report.ops());
            for outside in ["warm_up", "wind_down"] {
                let called = names
                    .iter()
                    .any(|(name, calls)| name == outside && *calls > 0);
                assert!(!called, "{outside} in {:#}", report.0);
            }
            match paths(&report).iter().any(|path| path == "serve work") {
                true => Ok(()),
                false => Err(Unfinished(format!("{:#}", report.0))),
            }
        });
    }
}

/// The calls of the tree, each with how many were measured.
fn collect(node: &serde_json::Value, names: &mut Vec<(String, u64)>) {
    let name = node["name"].as_str().expect("text").to_owned();
    names.push((name, node["count"].as_u64().expect("a count")));
    for child in node["children"].as_array().into_iter().flatten() {
        collect(child, names);
    }
}

#[test]
fn the_end_ends_an_analysis_that_is_not_finished() {
    let path = program("marks", Opt::O2);
    let options = ["--end-at", "darc_end", "--decision-ops", "100000000"];
    let task = Task::new("jump", "serve").options(&options);
    let report = task.run_like_native(&path, &["500"]).report();
    assert_eq!(report.status(), "undecided");
    assert!(
        report.ops() >= 500,
        "what came before counts: {}",
        report.ops()
    );
}

#[test]
fn the_copy_of_a_marker_in_a_library_is_heard_too() {
    let path = program("ends_in_library", Opt::O2);
    let options = ["--end-at", "darc_end", "--decision-ops", "100000000"];
    let task = Task::new("jump", "serve").options(&options);
    let report = task.run_like_native(&path, &["500"]).report();
    assert_eq!(report.status(), "undecided");
    let ops = report.ops();
    assert!((100..=500).contains(&ops), "none after the end: {ops}");
}

#[test]
fn signals_to_darc_begin_and_end() {
    let path = program("two_peaks", Opt::O2);
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let options = ["--begin-on-signal", "--decision-ops", "1000000000"];
    let task = Task::new("jump", "serve").options(&options);
    let (darc, output, _folder) = task.start_attach(target.pid());
    let status = || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        let report = serde_json::from_str(&status.stdout).ok().map(Report);
        report.filter(|_| status.code() == 0)
    };
    wait_until("darc waits", || status().is_some());
    for _ in 0..3 {
        assert_eq!(
            status().expect("it answers").ops(),
            0,
            "it was not told to begin"
        );
    }
    darc.signal(Signal::SIGUSR1);
    wait_until("ops", || status().is_some_and(|report| report.ops() > 10));
    darc.signal(Signal::SIGUSR2);
    let ended = darc.finish();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    assert!(Report::read(&output, &ended).ops() > 10);
    target.finish_like_native(&path, &[]);
}

#[test]
fn a_marker_that_is_not_there_is_refused_before_the_program_runs() {
    let path = program("marks", Opt::O2);
    for option in ["--begin-at", "--end-at"] {
        let options = [option, "no_such_marker"];
        let analysis = Task::new("jump", "serve")
            .options(&options)
            .run(&path, &["20"]);
        let line = analysis.darc.failure(4);
        assert!(line.contains("no_such_marker"), "{line}");
        assert_eq!(analysis.darc.stdout, "", "the program has not run");
    }
    let options = ["--begin-at", "darc_begin"];
    let analysis = Task::new("int3", "serve")
        .options(&options)
        .run(&path, &["20"]);
    assert!(analysis.darc.failure(2).contains("jump"), "{analysis:#?}");
}

/// Nothing announces libraries of a program that has none: it is known from the first look what is in it.
#[test]
fn a_static_program_waits_for_the_signal() {
    let path = program("two_peaks_static", Opt::O2);
    for &engine in engines() {
        let task = Task::new(engine, "serve").options(&["--begin-on-signal"]);
        let analysis = task.run_like_native(&path, &["20", "brisk"]);
        let said = &analysis.darc.stderr;
        assert!(said.contains("waiting for the beginning"), "{analysis:#?}");
        let task = Task::new(engine, "no_such_function").options(&["--begin-on-signal"]);
        let analysis = task.run(&path, &["20", "brisk"]);
        let line = analysis.darc.failure(4);
        assert!(line.contains("no_such_function"), "{line}");
        assert_eq!(analysis.darc.stdout, "", "the program has not run");
    }
}
