//! Requests that f0 hands to another thread, and what pointers lead to.

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{
    Target, Task, Unfinished, Wrong, darc, execute, measured, native, run_darc, wait_until,
};
use crate::report::Report;

const PATH: &str = "enqueue=enqueue:arg2;serve=serve:*(arg1+8)";

fn ops(profile: &Value, from: u64, to: u64) -> u64 {
    let buckets = profile["buckets"].as_array().expect("a list").iter();
    let resolution = profile["resolution"].as_u64().expect("a number");
    let doubling = |it: &&Value| it["bucket"].as_u64().expect("one") / resolution;
    let inside = buckets.filter(|it| (from..=to).contains(&doubling(it)));
    inside.map(|it| it["ops"].as_u64().expect("a count")).sum()
}

/// What the requests of one of f0's peaks met, on average in cycles.
struct OfPeak {
    requests: u64,
    waited: f64,
    served: f64,
}

fn by_peak(handover: &Value) -> Vec<OfPeak> {
    let mean = |table: &Value| {
        let value = |name: &str| table[name].as_f64().unwrap_or(0.0);
        value("total") / value("ops").max(1.0)
    };
    let peaks = handover["peaks"].as_array().into_iter().flatten();
    peaks
        .filter(|of| of["peak"].is_u64())
        .map(|of| OfPeak {
            requests: of["waits"]["ops"].as_u64().unwrap_or(0),
            waited: mean(&of["waits"]),
            served: mean(&of["services"]),
        })
        .collect()
}

#[test]
fn waiting_in_the_queue_and_being_served_are_told_apart() {
    let path = program("handed_over", Opt::O2);
    let native = native(&path, &["1400"]);
    measured(|| {
        let options = ["--async", PATH, "--start-ops", "200", "--decision-ops", "6"];
        let task = Task::new("jump", "submit").options(&options);
        let report = task.run_like(&native, &path, &["1400"]).report();
        let served = &report.0["focus"][0];
        let handover = &served["handover"];
        let ms = report.0["clock"]["hz"].as_f64().unwrap_or(0.0) / 1e3;
        let requests = handover["served"].as_u64().unwrap_or(0);
        // 2.5 ms is in the 22nd doubling, of one request in ten.
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
        let by_peak = by_peak(handover);
        let is_slow = |waits: bool, services: bool| {
            let such = by_peak.iter().filter(|it| it.requests > 10);
            let slow = |it: &&OfPeak| (it.waited > 1.2 * ms, it.served > 5.0 * ms);
            let such = such.filter(|it| slow(it) == (waits, services));
            such.count() == 1
        };
        let by_peak = is_slow(false, false) && is_slow(true, false) && is_slow(false, true);
        let right = by_peak
            && served["path"] == serde_json::json!(["submit", "enqueue", "serve"])
            && requests > 100
            && ops(&served["profile"], 17, 18) * 20 < requests
            && told_apart
            && elsewhere
            && served["peaks"][0]["example"]["waited"].is_u64()
            && (of("look_up"), of("seek"), of("serve_elsewhere")) == (1, 1, 0);
        match right {
            true => Ok(()),
            false if of("serve_elsewhere") > 0 => Err(Wrong(format!("{:#}", report.0))),
            false => Err(Unfinished(format!("{:#}", report.0))),
        }
    });
}

/// The states of all fnodes of an ftree for all peaks that are decided, with their maxcounts.
fn decisions(ftree: &Value) -> Vec<String> {
    let mut nodes = vec![(String::new(), ftree)];
    let mut found = Vec::new();
    while let Some((path, node)) = nodes.pop() {
        let path = format!("{path}/{}{}", node["name"], node["site"]);
        let below = node["children"].as_array().into_iter().flatten();
        nodes.extend(below.map(|child| (path.clone(), child)));
        for (peak, record) in node["peaks"].as_object().into_iter().flatten() {
            let state = record["state"].as_str().unwrap_or("");
            if state.starts_with("decided") || state == "ended" {
                found.push(format!("{path} peak {peak}: {state}"));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_stored_analysis_follows_requests_on_and_repeats_no_decision() {
    measured(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("out.txt");
        let path = program("handed_over", Opt::O2);
        let run = |first: &[&str], rest: &[&str]| {
            let mut command = darc(first);
            command.args(["-o"]).arg(&file);
            let finished = execute(command.args(rest).arg("--").arg(&path).arg("500"));
            assert_eq!(finished.code(), 0, "{finished:#?}");
            let text = std::fs::read_to_string(&file).expect("it was written");
            assert!(text.contains("Handed over by enqueue (arg2)"), "{text}");
            let json = execute(darc(&["report", "--format", "json"]).arg(&file));
            Report(serde_json::from_str(&json.stdout).expect("one document"))
        };
        let options = ["--start-ops", "60", "--decision-ops", "10"];
        let first = run(&["run", "--f0", "submit", "--async", PATH], &options);
        let stored = file.to_str().expect("UTF-8");
        let second = run(&["resume", stored], &[]);
        let count = |report: &Report, what: &str| {
            let handover = &report.0["focus"][0]["handover"];
            handover[what].as_u64().expect("a count")
        };
        // It ends when what was left open is decided.
        const LEAST: u64 = 50;
        for what in ["enqueued", "served"] {
            let counts = (count(&first, what), count(&second, what));
            assert!(counts.1 > counts.0 + LEAST, "{what} {counts:?}");
        }
        let by_peak = |report: &Report| {
            let peaks = by_peak(&report.0["focus"][0]["handover"]);
            peaks.iter().map(|of| of.requests).sum::<u64>()
        };
        assert!(by_peak(&second) > by_peak(&first) + LEAST, "{:#}", second.0);
        let (before, after) = (
            decisions(&first.0["focus"][0]["ftree"]),
            decisions(&second.0["focus"][0]["ftree"]),
        );
        assert!(!before.is_empty(), "{:#}", first.0);
        let taken_back = before.iter().filter(|it| !after.contains(it));
        assert_eq!(taken_back.collect::<Vec<_>>(), [""; 0], "{:#}", second.0);

        let mut other = darc(&["resume", stored, "--async"]);
        other
            .arg("enqueue=enqueue:arg1;serve=serve:arg1")
            .arg("--")
            .arg(&path);
        let refused = execute(&mut other);
        assert!(refused.failure(2).contains("another path"), "{refused:#?}");
        Ok(())
    });
}

#[test]
fn requests_are_told_while_the_analysis_runs() {
    let target = Target::start("handed_over", Opt::O2, &[]);
    let options = ["--async", PATH, "--decision-ops", "1000000000"];
    let task = Task::new("jump", "submit").options(&options);
    let (mut analysis, output, _folder) = task.start_attach(target.pid());
    analysis.wait_for_probes(target.pid());
    let pid = target.pid().to_string();
    let mut served = 0;
    wait_until("requests in the status", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        let said: Value = serde_json::from_str(&status.stdout).expect("one document");
        served = said["focus"][0]["handover"]["served"].as_u64().unwrap_or(0);
        served > 150 && !by_peak(&said["focus"][0]["handover"]).is_empty()
    });
    let text = run_darc(&["status", "-p", &pid]);
    assert!(text.stdout.contains("Handed over by enqueue"), "{text:#?}");
    analysis.signal(Signal::SIGINT);
    let report = Report::read(&output, &analysis.finish());
    let handover = &report.0["focus"][0]["handover"];
    assert!(handover["served"].as_u64() >= Some(served), "{handover:#}");
    target.finish_like_native(&program("handed_over", Opt::O2), &[]);
}

#[test]
fn f0_may_be_the_function_that_enqueues() {
    let program = program("slow_consumer", Opt::O2);
    let native = native(&program, &["800"]);
    measured(|| {
        let path = "enqueue=submit:arg1;serve=digest:arg1";
        let options = ["--async", path, "--start-ops", "60", "--decision-ops", "6"];
        let task = Task::new("jump", "submit").options(&options);
        let report = task.run_like(&native, &program, &["800"]).report();
        let ms = report.0["clock"]["hz"].as_f64().unwrap_or(0.0) / 1e3;
        let served = &report.0["focus"][0];
        let handover = &served["handover"];
        let count = |what: &str| handover[what].as_u64().unwrap_or(u64::MAX);
        let by_peak = by_peak(handover);
        let of_service = |least: f64, most: f64| {
            let such = |it: &&OfPeak| it.requests > 10 && (least..most).contains(&it.served);
            by_peak.iter().filter(such).count()
        };
        let right = served["path"] == serde_json::json!(["submit", "digest"])
            && count("served") > 50
            && count("enqueued") - count("served") <= 1
            && count("others") <= 1
            && (of_service(0.0, 2.0 * ms), of_service(2.5 * ms, 30.0 * ms)) == (1, 1);
        match right {
            true => Ok(()),
            false => Err(Unfinished(format!("{:#}", report.0))),
        }
    });
}

#[test]
fn a_path_to_another_thread_needs_another_function_that_serves_and_the_jump_engine() {
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
    for path in [
        "enqueue=enqueue:arg2;serve=submit:arg1",
        "enqueue=enqueue:arg2;serve=enqueue:arg2",
    ] {
        let refused = run("jump", path);
        assert!(
            refused.failure(3).contains("must be another"),
            "{refused:#?}"
        );
    }
    let mut of_main = darc(&["run", "--async", PATH, "--"]);
    let refused = execute(of_main.arg(&path));
    assert!(
        refused.failure(2).contains("an f0 that returns"),
        "{refused:#?}"
    );
    let refused = run("jump", "enqueue=enqueue:arg2;serve=servant:arg1");
    assert!(refused.failure(4).contains("servant"), "{refused:#?}");
    let refused = run("jump", "enqueue=enqueue:rsi;serve=serve:arg1");
    assert_eq!(refused.code(), 2, "{refused:#?}");
}

#[test]
fn what_an_argument_points_to_tells_the_peaks_apart() {
    let path = program("handed_over", Opt::O2);
    let native = native(&path, &["600"]);
    measured(|| {
        let options = ["--value", "*arg1", "--decision-ops", "40"];
        let task = Task::new("jump", "wait_for").options(&options);
        let report = task.run_like(&native, &path, &["600"]).report();
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
        match told {
            true => Ok(()),
            false if values.is_empty() => Err(Unfinished(format!("{:#}", report.0))),
            false => Err(Wrong(format!("{:#}", report.0))),
        }
    });
}

#[test]
fn a_pointer_that_leads_nowhere_is_no_danger() {
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
