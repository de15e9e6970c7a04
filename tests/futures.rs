//! Futures of an async function: an op is the life of one, its polls by whatever threads, and what it waited for between them.

use std::path::Path;

use darc_testprogs::{Opt, program};
use serde_json::Value;

use crate::harness::{Target, Task, Unfinished, Verdict, Wrong, darc, execute, levels, measured};
use crate::report::Report;

/// How the function is named: its futures are polled by another one.
const F0: &str = "served::handle";
/// As many futures in one run.
const FUTURES: u64 = 1600;

/// The name of what waits at a marked line of the program.
fn await_at(mark: &str) -> String {
    let source = include_str!("../testprogs/rust/futures.rs");
    format!("await futures.rs:{}", marked(source, mark))
}

/// The line, from 1 on, that ends with a mark.
pub fn marked(source: &str, mark: &str) -> usize {
    let mark = format!("// {mark}");
    let line = source.lines().position(|line| line.ends_with(&mark));
    line.expect("a marked line") + 1
}

pub fn number(report: &Report, pointer: &str) -> u64 {
    report.at(pointer).as_u64().expect("a count")
}

/// No probes change while the program runs, so that none of its polls may go unseen.
#[test]
fn every_future_is_counted_and_every_life_is_timed() {
    for &opt in levels() {
        let task = Task::new("jump", F0).options(&["--start-ops", "100000"]);
        let analysis = task.run(&program("futures", opt), &[&FUTURES.to_string()]);
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        let report = analysis.report();
        let truth: Vec<u64> = analysis
            .darc
            .stdout
            .split_whitespace()
            .map(|it| it.parse().expect("a number"))
            .collect();
        let [polls, returned, dropped, panicked, lives] = truth[..] else {
            panic!("{truth:?}");
        };
        assert_eq!(
            (returned, dropped, panicked),
            (FUTURES * 14 / 16, FUTURES / 16, FUTURES / 16)
        );
        assert_eq!(report.ops(), returned);
        let of = |what: &str| number(&report, &format!("/futures/{what}"));
        assert_eq!(of("polls"), polls - panicked);
        assert_eq!(number(&report, "/probes/ended_otherwise"), panicked);
        // The places of the last ones are not used again.
        assert_eq!(of("dropped") + of("under_way"), dropped + panicked);
        assert!(
            of("dropped") >= (dropped + panicked) / 2,
            "{:#}",
            report.at("/futures")
        );
        assert_eq!((of("begun_before"), of("lost"), of("forgotten")), (0, 0, 0));
        let hz = number(&report, "/clock/hz") as f64;
        let total = number(&report, "/profile/total") as f64 * 1e9 / hz;
        let part = total / lives as f64;
        assert!(
            (0.98..1.02).contains(&part),
            "{total} ns, and {lives} by its own clock"
        );
    }
}

/// What is the cause of a peak, as far as there is one, with its part of the time.
fn causes(peak: &Value) -> Vec<(String, f64)> {
    let causes = peak["root_causes"].as_array().expect("a list").iter();
    let named = causes.map(|cause| {
        let path = cause["path"].as_array().expect("a list");
        let last = path.last().and_then(Value::as_str).expect("a name");
        (
            last.to_owned(),
            cause["share_of_time"].as_f64().expect("a share"),
        )
    });
    named.collect()
}

/// What takes more than half of a peak's time.
pub fn cause_of(peak: &Value) -> Option<String> {
    let mut causes = causes(peak).into_iter();
    causes.find_map(|(cause, share)| (share > 0.5).then_some(cause))
}

/// What each kind of future takes its time for, and nothing else, is told.
fn kinds_are_told_apart(report: &Report) -> Verdict {
    let (first, second) = (await_at("FIRST"), await_at("SECOND"));
    told_apart(
        report,
        ["futures::prepare", &first, "futures::parse", &second],
    )
}

/// That these take the time of each kind, the last one that of the slowest.
pub fn told_apart(report: &Report, known: [&str; 4]) -> Verdict {
    let second = known[3];
    let hz = number(report, "/clock/hz") as f64;
    let mut seen = Vec::new();
    for peak in report.peaks() {
        let count = |of: &str| peak[of].as_u64().expect("a count") as f64;
        let mean = count("total") / count("ops") / hz;
        for (cause, share) in causes(peak) {
            // A function that reads the clock is a part of who calls it.
            let is_known = known.contains(&cause.as_str());
            let is_far = mean > 0.02;
            if share > 0.1
                && (!is_known || is_far && cause != second || mean < 0.0001 && cause == second)
            {
                return Err(Wrong(format!(
                    "{cause} has {share} of a peak of {mean} s: {:#}",
                    report.0
                )));
            }
            if share > 0.5 {
                seen.push(cause);
            }
        }
    }
    match known
        .iter()
        .find(|known| !seen.iter().any(|seen| seen == *known))
    {
        Some(missing) => Err(Unfinished(format!("{missing} of {seen:?}: {:#}", report.0))),
        None => Ok(()),
    }
}

#[test]
fn the_awaits_and_functions_that_take_the_time_are_told() {
    for &opt in levels() {
        measured(|| {
            let target = Target::start("futures", opt, &[]);
            of_a_run(target, F0, kinds_are_told_apart)
        });
    }
}

/// The verdict on the report of a program to which was attached, and which ends well.
pub fn of_a_run(target: Target, f0: &str, judge: impl Fn(&Report) -> Verdict) -> Verdict {
    let task = Task::new("jump", f0).options(&["-d", "20s"]);
    let analysis = task.attach(target.pid());
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    let verdict = judge(&analysis.report());
    let ended = target.finish();
    assert_eq!(ended.code(), 0, "{ended:#?}");
    verdict
}

/// The report of a run, with this f0.
fn ran(f0: &str, engine: &str, program: &Path) -> Report {
    let task = Task::new(engine, f0).options(&["--start-ops", "100000"]);
    let analysis = task.run(program, &["160"]);
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    analysis.report()
}

#[test]
fn where_lives_cannot_be_put_together_an_op_is_a_poll_and_that_is_said() {
    let poll = "futures::served::handle::{{closure}}";
    let without = program("futures_without_debug", Opt::O2);
    for (engine, program, why) in [
        ("jump", &without, "only debugging information tells"),
        (
            "int3",
            &program("futures", Opt::O2),
            "leave out --engine int3",
        ),
    ] {
        let report = ran(poll, engine, program);
        assert_eq!(report.0.get("futures"), None);
        let warnings = report.at("/warnings").as_array().expect("a list");
        let said = |text: &Value| {
            let text = text.as_str().expect("text");
            text.starts_with("an op is one poll of a future") && text.contains(why)
        };
        assert!(warnings.iter().any(said), "{engine}: {warnings:?}");
        // Most are polled once, those of five kinds more often.
        assert!(report.ops() > 160, "{}", report.ops());
    }
}

/// A block has no name: by that of the function around it the function is meant.
#[test]
fn the_name_of_a_function_means_that_function() {
    for &opt in levels() {
        let name = "futures::has_a_block";
        let task = Task::new("jump", name).options(&["--start-ops", "100000"]);
        let report = task.run(&program("futures", opt), &["16"]).report();
        assert_eq!(report.at("/f0/name"), name);
        assert_eq!(report.0.get("futures"), None);
    }
}

#[test]
fn results_of_lives_are_not_gone_on_with() {
    let target = Target::start("futures", Opt::O2, &[]);
    let task = Task::new("jump", F0).options(&["--start-ops", "100000", "-d", "300ms"]);
    let analysis = task.attach(target.pid());
    let results = analysis.output.to_str().expect("text");
    let pid = target.pid().to_string();
    for subcommand in ["resume", "prove"] {
        let tried = execute(&mut darc(&[subcommand, results, "-p", &pid]));
        assert_ne!(tried.code(), 0, "{tried:#?}");
        assert!(tried.stderr.contains("its ops are lives"), "{tried:#?}");
    }
    assert_eq!(target.finish().code(), 0);
}
