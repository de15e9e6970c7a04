//! `darc prove`: an experiment tells causes from what only looks like one.

use std::path::Path;

use darc_testprogs::Opt;
use serde_json::Value;

use crate::harness::{
    Running, Target, Task, Unfinished, Verdict, Wrong, darc, execute, measured, run_darc,
};
use crate::untouched::ProcessState;

/// Analyses the program, so that there is something to prove.
fn analysed(pid: i32) -> crate::harness::Analysis {
    let analysis = Task::new("jump", "serve").attach(pid);
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    analysis
}

/// The number of the peak that has ops of so many microseconds of the counter that programs spin by.
fn peak_with(report: &Value, us: f64) -> Option<u64> {
    let resolution = report["profile"]["resolution"].as_f64().unwrap();
    let bucket = (us * 2300.0).log2() * resolution;
    let bucket = bucket.floor() as u64;
    let mut peaks = report["peaks"].as_array().unwrap().iter();
    let peak = peaks.find(|peak| {
        let of = |key: &str| peak[key].as_u64().unwrap();
        (of("first_bucket")..=of("last_bucket")).contains(&bucket)
    })?;
    peak["peak"].as_u64()
}

/// What an experiment says of a function of a peak.
fn proof(results: &Path, peak: u64, cause: &str) -> Value {
    let peak = peak.to_string();
    let arguments = ["--peak", &peak, "--cause", cause, "--budget", "20%"];
    let mut command = darc(&["prove"]);
    let command = command.arg(results).args(arguments);
    let proven = execute(command.args(["--format", "json"]));
    assert_eq!(proven.code(), 0, "{proven:#?}");
    let proofs: Value = serde_json::from_str(&proven.stdout).unwrap();
    let cause = proofs["causes"][0].clone();
    assert_ne!(cause, Value::Null, "{proofs:#}");
    cause
}

/// The ops of so many microseconds become longer with a function, or do not.
fn judge(results: &Path, report: &Value, us: f64, cause: &str, expected: &str) -> Verdict {
    let Some(peak) = peak_with(report, us) else {
        return Err(Unfinished(format!("no peak at {us} µs: {report:#}")));
    };
    let said = proof(results, peak, cause);
    let verdict = said["verdict"].as_str().unwrap();
    match verdict {
        _ if verdict == expected => Ok(()),
        "not_decided" | "not_tested" => Err(Unfinished(format!("{cause}: {said:#}"))),
        _ => Err(Wrong(format!("{cause}: {said:#}"))),
    }
}

#[test]
fn causes_are_told_from_what_only_looks_like_one() {
    measured(|| {
        let target = Target::start("proven", Opt::O2, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = analysed(target.pid());
        let report = &analysis.report().0;
        for (us, cause, expected) in [
            (45.0, "parse", "proven"),
            (440.0, "step", "proven"),
            (2400.0, "first", "proven"),
            (6100.0, "encode", "not_on_path"),
            (6100.0, "pace", "not_on_path"),
        ] {
            judge(&analysis.output, report, us, cause, expected)?;
        }
        before.check_unchanged(target.pid());
        let path = darc_testprogs::program("proven", Opt::O2);
        target.finish_like_native(&path, &[]);
        Ok(())
    });
}

#[test]
fn darc_is_killed_while_it_delays_calls() {
    let target = Target::start("proven", Opt::O2, &[]);
    let analysis = analysed(target.pid());
    for _ in 0..3 {
        let mut command = darc(&["prove", "--time", "100s", "--budget", "50%"]);
        let command = command.args(["--cause", "first"]).arg(&analysis.output);
        let mut proving = Running::start(command);
        proving.wait_for_probes(target.pid());
        proving.signal(nix::sys::signal::Signal::SIGKILL);
        proving.finish();
        let cleaned = run_darc(&["cleanup", "-p", &target.pid().to_string()]);
        assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
    }
    let path = darc_testprogs::program("proven", Opt::O2);
    target.finish_like_native(&path, &[]);
}

#[test]
fn what_cannot_be_tested_is_refused_in_one_line() {
    let target = Target::start("proven", Opt::O2, &[]);
    let analysis = analysed(target.pid());
    let file = analysis.output.to_str().unwrap();
    for (options, said) in [
        (
            vec!["--cause", "no_such_function"],
            "no function of that name",
        ),
        (vec!["--peak", "99"], "no such peak"),
        (vec!["--budget", "0%"], "percentage"),
        (vec!["-p", "1", "--cause", "parse"], "darc: "),
    ] {
        let mut arguments = vec!["prove", file];
        arguments.extend(options);
        let refused = run_darc(&arguments);
        assert_ne!(refused.code(), 0, "{refused:#?}");
        assert!(refused.stderr.contains(said), "{refused:#?}");
    }
    let path = darc_testprogs::program("proven", Opt::O2);
    target.finish_like_native(&path, &[]);
    let gone = run_darc(&["prove", file]);
    assert!(
        gone.stderr.contains("is not any more what they are of"),
        "{gone:#?}"
    );
}
