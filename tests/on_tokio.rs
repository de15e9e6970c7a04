//! Futures on tokio's run-time of several threads, where tokio can be had: the program is none of this workspace's, and is built apart.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::futures::{cause_of, marked, number, of_a_run, told_apart};
use crate::harness::{Target, Task, Unfinished, Verdict, measured, not_tested, tries_all};
use crate::report::Report;

const F0: &str = "on_tokio::handle";
/// As many futures in one run.
const FUTURES: u64 = 800;
const SOURCE: &str = include_str!("../testprogs/on_tokio/on_tokio.rs");

/// The program; nothing, and why, where it cannot be built.
fn built() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = root.join("target/on_tokio");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--locked", "--quiet"]);
    build.current_dir(root.join("testprogs/on_tokio"));
    // What is set for the tests' own build is not for this one.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PROFILE") || name.starts_with("CARGO_ENCODED") {
            build.env_remove(&*name);
        }
    }
    let made = build.env("CARGO_TARGET_DIR", &target).output();
    let made = made.map_err(|error| error.to_string())?;
    match made.status.success() {
        true => Ok(target.join("release/on_tokio")),
        false => Err(String::from_utf8_lossy(&made.stderr).into_owned()),
    }
}

#[test]
fn awaits_on_a_run_time_of_several_threads_are_told() {
    if !tries_all() {
        return not_tested(
            "futures on tokio, which takes half a minute to build: set DARC_TEST_ALL=1",
        );
    }
    // Building disturbs others as much as measuring does.
    measured(|| match built() {
        Ok(program) => {
            every_future_is_counted_and_every_life_is_timed(&program);
            let target = Target::start_at(&program, &[]);
            of_a_run(target, F0, kinds_are_told_apart)
        }
        Err(why) => {
            not_tested(format!("futures on tokio, which cannot be built: {why}"));
            Ok(())
        }
    });
}

/// No probes change while the program runs, so that none of its polls may go unseen.
fn every_future_is_counted_and_every_life_is_timed(program: &Path) {
    let task = Task::new("jump", F0).options(&["--start-ops", "100000"]);
    let analysis = task.run(program, &[&FUTURES.to_string()]);
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    let report = analysis.report();
    let truth = analysis.darc.stdout.split_whitespace();
    let truth: Vec<u64> = truth.map(|it| it.parse().expect("a number")).collect();
    let [returned, dropped, lives] = truth[..] else {
        panic!("{truth:?}");
    };
    assert_eq!(
        (returned, dropped),
        (FUTURES * 15 / 16, FUTURES.div_ceil(16))
    );
    assert_eq!(report.ops(), returned);
    let of = |what: &str| number(&report, &format!("/futures/{what}"));
    assert_eq!(of("dropped") + of("under_way"), dropped);
    assert_eq!((of("begun_before"), of("lost"), of("forgotten")), (0, 0, 0));
    let hz = number(&report, "/clock/hz") as f64;
    let part = number(&report, "/profile/total") as f64 * 1e9 / hz / lives as f64;
    assert!((0.98..1.02).contains(&part), "{part} of its own clock");
}

/// What each kind takes its time for, and nothing else, is told, and of 95 of 100 futures.
fn kinds_are_told_apart(report: &Report) -> Verdict {
    let at = |mark| format!("await on_tokio.rs:{}", marked(SOURCE, mark));
    let known = [
        "on_tokio::prepare",
        &at("FIRST"),
        "on_tokio::parse",
        &at("SECOND"),
    ];
    told_apart(report, known)?;
    let ops = |peak: &serde_json::Value| peak["ops"].as_u64().expect("a count");
    let peaks = report.peaks().iter();
    let told = peaks.filter(|peak| cause_of(peak).is_some_and(|it| known.contains(&it.as_str())));
    let told: u64 = told.map(ops).sum();
    match told * 100 >= report.ops() * 95 {
        true => Ok(()),
        false => Err(Unfinished(format!(
            "{told} of {}: {:#}",
            report.ops(),
            report.0
        ))),
    }
}
