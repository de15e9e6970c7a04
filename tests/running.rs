//! An f0 that runs already or is called once: its time is divided, and the functions that take it are analysed.

use std::process::Command;

use darc_testprogs::{Opt, program};
use serde_json::Value;

use nix::sys::signal::Signal;

use crate::exit_status::compiled;
use crate::harness::{
    Analysis, Target, Task, Unfinished, Verdict, Wrong, darc, execute, levels, measured, native,
    run_darc, wait_until,
};
use crate::report::Report;

fn names(value: &Value) -> Vec<&str> {
    let list = value.as_array().expect("a list").iter();
    list.map(|name| name.as_str().expect("text")).collect()
}

/// The part of the time table with this path: whose time it is, and its share.
fn part<'a>(report: &'a Report, path: &[&str]) -> Option<(&'a str, f64)> {
    let parts = report.at("/time/parts").as_array().expect("a list");
    let part = parts
        .iter()
        .find(|part| names(&part["path"]) == path && part["calls"] != 0)?;
    Some((part["whose"].as_str()?, part["share_of_time"].as_f64()?))
}

/// The analysis of the function below f0 that has this path.
fn focus<'a>(report: &'a Report, path: &[&str]) -> Option<&'a Value> {
    let all = report.at("/focus").as_array().expect("a list");
    all.iter().find(|focus| names(&focus["path"]) == path)
}

/// Whether it was found out which functions take the time.
fn is_surveyed(report: &Report) -> bool {
    let time = &report.0["time"];
    time["windows"].as_u64() > Some(0) && time["survey"] != "unfinished"
}

/// Whether the server's loop was seen through, from `above` (the functions that do not return) down.
fn judge_event_loop(report: &Report, above: &[&str]) -> Verdict {
    let below = |name| [above, &[name]].concat();
    let all = || Unfinished(format!("in {:#}", report.0));
    let (waiting, waited) = part(report, &below("epoll_wait")).ok_or_else(all)?;
    let (callee, handled) = part(report, &below("handle")).ok_or_else(all)?;
    assert_eq!((waiting, callee), ("waiting", "callee"));
    if waited < handled {
        return Err(Unfinished(format!("waited {waited}, handled {handled}")));
    }
    assert!(focus(report, &below("epoll_wait")).is_none(), "{:?}", all());
    let handle = focus(report, &below("handle")).ok_or_else(all)?;
    if handle["status"] != "root-cause-found" {
        return Err(all());
    }
    let causes: Vec<_> = handle["peaks"]
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(Report::causes)
        .filter(|cause| cause.kind == "function")
        .map(|cause| cause.path.join(" "))
        .collect();
    let is_one = |path: &String| ["handle", "handle rebuild"].contains(&path.as_str());
    if !causes.iter().all(is_one) {
        return Err(Wrong(format!("{causes:?} in {:#}", report.0)));
    }
    match causes.iter().any(|path| path == "handle")
        && causes.iter().any(|path| path == "handle rebuild")
    {
        true => Ok(()),
        false => Err(all()),
    }
}

/// Nobody names a function, and main only waits for its threads: what they began with is divided.
#[test]
fn the_function_of_the_busiest_threads_is_divided() {
    measured(|| {
        let target = Target::start("four_threads", Opt::O2, &[]);
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let output = folder.path().join("out.json");
        let (pid, file) = (target.pid().to_string(), output.to_str().expect("text"));
        let darc = run_darc(&["attach", &pid, "-q", "--format", "json", "-o", file]);
        target.finish_like_native(&program("four_threads", Opt::O2), &[]);
        assert_eq!(darc.code(), 0, "{darc:#?}");
        let report = Report::read(&output, &darc);
        assert_eq!(report.at("/f0/name"), "work");
        let warnings = report.at("/warnings").to_string();
        assert!(warnings.contains("4 threads began with work"), "{warnings}");
        assert!(warnings.contains("1 with main"), "{warnings}");
        let all = || Unfinished(format!("in {:#}", report.0));
        let serve = focus(&report, &["work", "serve"]).ok_or_else(all)?;
        let peaks = serve["peaks"].as_array().expect("a list");
        let causes: Vec<_> = peaks.iter().flat_map(Report::causes).collect();
        let ends_in = |name: &str| {
            causes
                .iter()
                .any(|cause| cause.path.last().is_some_and(|last| last == name))
        };
        match ends_in("compute") && ends_in("clock_nanosleep") {
            true => Ok(()),
            false => Err(all()),
        }
    });
}

/// Most of the CPU time is in a thread whose stack leads nowhere: what the others do is not why the process is slow.
#[test]
fn threads_with_little_of_the_cpu_time_are_not_the_process() {
    let target = Target::start("made_code", Opt::O2, &[]);
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let output = folder.path().join("out.txt");
    let (pid, file) = (target.pid().to_string(), output.to_str().expect("text"));
    let darc = run_darc(&["attach", &pid, "-q", "-d", "3s", "-o", file]);
    target.finish_like_native(&program("made_code", Opt::O2), &[]);
    let text = std::fs::read_to_string(&output).expect("a report");
    assert!(text.contains("Latency of tick"), "{text}");
    assert!(!text.contains("status      root cause found"), "{text}");
    let share = "the threads that were looked at took";
    assert!(text.contains(share), "{text}");
    let made = "code that it makes itself";
    assert!(text.contains(made), "{text}");
    assert_eq!(darc.code(), 0, "{darc:#?}");
}

/// All threads begin with one function, which calls what each is for, and nearly all of their time is waiting.
#[test]
fn what_one_of_many_idle_threads_does_is_analysed() {
    measured(|| {
        let target = Target::start("thread_roles", Opt::O2, &[]);
        let report = attach_for(&target, "3s");
        target.finish_like_native(&program("thread_roles", Opt::O2), &[]);
        assert_eq!(report.at("/f0/name"), "begin");
        for below in report.at("/focus").as_array().expect("a list") {
            let path = names(&below["path"]);
            let waits = ["nanosleep", "pthread_cond_wait"];
            assert!(!waits.iter().any(|name| path.contains(name)), "{path:?}");
        }
        let all = || Unfinished(format!("in {:#}", report.0));
        let serve = focus(&report, &["begin", "serving", "serve"]).ok_or_else(all)?;
        match serve["peaks"].as_array().is_some_and(Vec::is_empty) {
            true => Err(all()),
            false => Ok(()),
        }
    });
}

/// What a running program is found to do when nobody names a function, until there are answers, but within so long.
fn attach_for(target: &Target, time: &str) -> Report {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let output = folder.path().join("out.json");
    let (pid, file) = (target.pid().to_string(), output.to_str().expect("text"));
    let options = ["-q", "-d", time, "--end-with-answers", "--format", "json"];
    let darc = execute(darc(&["attach", &pid, "-o", file]).args(options));
    Report::read(&output, &darc)
}

/// The functions that were analysed, by their own names without arguments, in that order.
fn analysed(report: &Report) -> Vec<String> {
    let all = report.at("/focus").as_array().expect("a list").iter();
    let name = |below: &Value| {
        let name = *names(&below["path"]).last().expect("a function");
        let name = name.split('(').next().expect("the name");
        name.rsplit("::").next().expect("the name").to_owned()
    };
    all.map(name).collect()
}

/// The library's function hands the wait on to another one by a jump, and is called as often as the handler.
#[test]
fn waiting_for_jobs_in_the_cxx_library_is_no_work() {
    measured(|| {
        let target = Target::start("pool_waits", Opt::O2, &[]);
        let report = attach_for(&target, "3s");
        target.finish_like_native(&program("pool_waits", Opt::O2), &[]);
        let all = || Unfinished(format!("in {:#}", report.0));
        if !is_surveyed(&report) {
            return Err(all());
        }
        match &analysed(&report)[..] {
            [] => Err(all()),
            [only] if only == "handle" => Ok(()),
            others => Err(Wrong(format!("{others:?} in {:#}", report.0))),
        }
    });
}

/// Who waits for the lock of a queue, which another one holds who waits for the next job, does nothing either.
#[test]
fn waiting_for_jobs_of_a_shared_channel_comes_after_work() {
    measured(|| {
        let target = Target::start("shared_receiver", Opt::O2, &[]);
        let report = attach_for(&target, "3s");
        target.finish_like_native(&program("shared_receiver", Opt::O2), &[]);
        let all = || Unfinished(format!("in {:#}", report.0));
        if !is_surveyed(&report) {
            return Err(all());
        }
        match analysed(&report).first().map(String::as_str) {
            None => Err(all()),
            Some("handle" | "parse" | "rebuild") => Ok(()),
            Some(other) => Err(Wrong(format!("{other} in {:#}", report.0))),
        }
    });
}

/// The CPU time of a thread that has ended is that of nobody who is there.
#[test]
fn what_short_lived_threads_run_is_measured() {
    measured(|| {
        let target = Target::start("thread_churn", Opt::O2, &[]);
        let report = attach_for(&target, "2500ms");
        target.finish_like_native(&program("thread_churn", Opt::O2), &[]);
        let all = || Unfinished(format!("in {:#}", report.0));
        let warnings = report.at("/warnings").to_string();
        // Whom nobody has seen before its end has a name that is not known.
        if warnings.contains("of threads that have ended") {
            return Err(all());
        }
        assert_eq!(report.at("/f0/name"), "task", "{:#}", report.0);
        assert_eq!(report.0.get("time"), None, "{:#}", report.0);
        match report.ops() {
            0 => Err(all()),
            _ => Ok(()),
        }
    });
}

/// Where a thread began is far below the part of its stack that is copied at first.
#[test]
fn a_loop_far_down_a_stack_is_found() {
    measured(|| {
        let target = Target::start("deep_stack", Opt::O2, &[]);
        let report = attach_for(&target, "2500ms");
        target.finish_like_native(&program("deep_stack", Opt::O2), &[]);
        assert_eq!(report.at("/f0/name"), "main");
        match analysed(&report).first().map(String::as_str) {
            Some("serve") => Ok(()),
            _ => Err(Unfinished(format!("in {:#}", report.0))),
        }
    });
}

/// No call of main will ever be seen, and it is not known what else there is.
#[test]
fn a_stack_that_is_too_deep_is_said_to_be() {
    let path = program("deep_stack", Opt::O2);
    let target = Target::start_command(Command::new(path).arg("wait").env("DEPTH", "20000"));
    let darc = run_darc(&["attach", &target.pid().to_string(), "-q", "-o", "/dev/null"]);
    assert!(target.finish().status.success());
    let failure = darc.failure(4);
    assert!(failure.contains("too deep"), "{failure}");
    assert!(failure.contains("darc sample -p"), "{failure}");
}

/// As of a stripped static server that waits: main is called where nobody sees it, and no call of it will ever begin.
#[test]
fn a_stack_without_unwind_tables_is_said_to_be_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <stdio.h>
        __attribute__((noinline)) static int waits(void) {
            char room[200];
            if (!fgets(room, sizeof room, stdin)) return 0;
            return room[0];
        }
        int main(void) { puts(\"ready\"); fflush(stdout); int sum = 0; while (!feof(stdin)) sum += waits(); return sum & 0; }";
    let options = ["-fomit-frame-pointer", "-fno-asynchronous-unwind-tables"];
    let path = compiled(&folder, source, &options);
    let target = Target::start_command(&mut Command::new(path));
    let darc = run_darc(&[
        "attach",
        &target.pid().to_string(),
        "-d",
        "5s",
        "-o",
        "/dev/null",
    ]);
    assert!(target.finish().status.success());
    let failure = darc.failure(4);
    assert!(failure.contains("unwind tables"), "{failure}");
    assert!(failure.contains("darc sample -p"), "{failure}");
}

/// What the busiest thread began with makes no calls. Another one has CPU time of its own, and began with a function that is called as
/// one of a C library's.
#[test]
fn the_next_is_divided_where_the_busiest_makes_no_calls() {
    measured(|| {
        let target = Target::start("hot_beside", Opt::O2, &[]);
        let report = attach_for(&target, "3s");
        target.finish_like_native(&program("hot_beside", Opt::O2), &[]);
        let warnings = report.at("/warnings").to_string();
        let all = || Unfinished(format!("in {:#}", report.0));
        if !warnings.contains("began with hot") {
            return Err(all());
        }
        assert!(warnings.contains("of the CPU time itself"), "{warnings}");
        assert!(warnings.contains("darc sample -p"), "{warnings}");
        assert_eq!(report.at("/f0/name"), "start", "{warnings}");
        match analysed(&report).first().map(String::as_str) {
            Some("serve") => Ok(()),
            _ => Err(all()),
        }
    });
}

/// Each change of what is loaded was the begin of a new round.
#[test]
fn a_program_that_loads_libraries_all_the_time_is_divided() {
    measured(|| {
        let target = Target::start("loads_again", Opt::O2, &[]);
        let report = attach_for(&target, "3s");
        target.finish_like_native(&program("loads_again", Opt::O2), &[]);
        match is_surveyed(&report) {
            true => Ok(()),
            false => Err(Unfinished(format!("in {:#}", report.0))),
        }
    });
}

/// The next call of a loop has the same stack pointer as the one that was under way.
#[test]
fn a_function_whose_calls_are_long_is_not_taken_for_one_that_runs() {
    let target = Target::start("long_calls", Opt::O2, &[]);
    let task = Task::new("jump", "serve").options(&["-d", "4s"]);
    let analysis = task.attach(target.pid());
    target.finish_like_native(&program("long_calls", Opt::O2), &[]);
    let report = analysis.report();
    assert_eq!(report.0.get("time"), None, "{:#}", report.0);
    assert!(report.ops() > 0, "{:#}", report.0);
}

/// Threads with short calls complete a round before one long call of others has returned.
#[test]
fn long_calls_count_beside_other_threads_short_ones() {
    measured(|| {
        let target = Target::start("long_calls_beside", Opt::O2, &[]);
        let task = Task::new("jump", "begin").options(&["-d", "3s"]);
        let analysis = task.attach(target.pid());
        target.finish_like_native(&program("long_calls_beside", Opt::O2), &[]);
        let report = analysis.report();
        let all = || Unfinished(format!("in {:#}", report.0));
        if !is_surveyed(&report) {
            return Err(all());
        }
        // Where few calls are seen it is gone into.
        let parts = report.at("/time/parts").as_array().expect("a list").iter();
        let waits = parts.filter(|part| names(&part["path"]).contains(&"lock_row"));
        let share = waits.filter_map(|part| part["share_of_time"].as_f64());
        match share.sum::<f64>() >= 0.2 {
            true => Ok(()),
            false => Err(Wrong(format!("in {:#}", report.0))),
        }
    });
}

/// What another thread does in the same calls is nothing of what the busiest one began with.
#[test]
fn what_other_threads_do_in_the_same_calls_is_left_out() {
    measured(|| {
        let target = Target::start("shared_evaluation", Opt::O2, &[]);
        let report = attach_for(&target, "3s");
        target.finish_like_native(&program("shared_evaluation", Opt::O2), &[]);
        assert_eq!(report.at("/f0/name"), "calculate");
        let all = || Unfinished(format!("in {:#}", report.0));
        let step = focus(&report, &["calculate", "evaluate", "step"]).ok_or_else(all)?;
        let peaks = step["peaks"].as_array().expect("a list");
        let causes: Vec<_> = peaks.iter().flat_map(Report::causes).collect();
        for cause in &causes {
            let is_others = |name: &String| ["store", "nanosleep"].contains(&name.as_str());
            assert!(!cause.path.iter().any(is_others), "{:?}", cause.path);
        }
        let ends_in_spin = |path: &[String]| path.last().is_some_and(|last| last == "spin");
        match causes.iter().any(|cause| ends_in_spin(&cause.path)) {
            true => Ok(()),
            false => Err(all()),
        }
    });
}

#[test]
fn an_event_loop_that_is_started() {
    for &opt in levels() {
        let path = program("event_loop", opt);
        let native = native(&path, &["20"]);
        measured(|| {
            let analysis = Task::new("jump", "main").run(&path, &["3000"]);
            assert_eq!(analysis.darc.stdout, native.stdout, "{analysis:#?}");
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            judge_event_loop(&analysis.report(), &["main", "serve"])
        });
    }
}

/// As CPython's main: it is on no stack.
#[test]
fn an_event_loop_that_main_jumps_to() {
    let path = program("event_loop_jumped_to", Opt::O2);
    measured(|| {
        let analysis = Task::new("jump", "main").run(&path, &["6000"]);
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        judge_event_loop(&analysis.report(), &["run_loop", "serve"])
    });
}

/// Attaches to the running event loop with this f0.
fn attach(opt: Opt, f0: &str) -> Analysis {
    let path = program("event_loop", opt);
    let target = Target::start("event_loop", opt, &[]);
    let untouched = crate::untouched::ProcessState::of(target.pid());
    let analysis = Task::new("jump", f0).attach(target.pid());
    untouched.check_unchanged_but_for_memory(target.pid());
    target.finish_like_native(&path, &[]);
    analysis
}

#[test]
fn an_event_loop_that_runs() {
    for &opt in levels() {
        measured(|| {
            let analysis = attach(opt, "main");
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            judge_event_loop(&analysis.report(), &["main", "serve"])
        });
    }
}

#[test]
fn a_function_that_does_not_return_is_noticed() {
    for &opt in levels() {
        measured(|| {
            let analysis = attach(opt, "serve");
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            judge_event_loop(&analysis.report(), &["serve"])
        });
    }
}

#[test]
fn where_the_time_of_btree_goes() {
    for &opt in levels() {
        let path = program("btree", opt);
        let native = native(&path, &["12000000"]);
        measured(|| {
            let analysis = Task::new("jump", "main").run_like(&native, &path, &["12000000"]);
            let report = analysis.report();
            for name in ["insert", "lookup"] {
                let all = || Unfinished(format!("{name} in {:#}", report.0));
                let path = ["main", "build", name];
                part(&report, &path).ok_or_else(all)?;
                let focus = focus(&report, &path).ok_or_else(all)?;
                let peaks = focus["peaks"].as_array().expect("a list");
                let found = peaks
                    .iter()
                    .any(|peak| peak["status"] == "root-cause-found");
                if !found {
                    return Err(all());
                }
            }
            Ok(())
        });
    }
}

#[test]
fn what_is_missing_is_found_when_the_program_runs_again() {
    let path = program("event_loop", Opt::O2);
    measured(|| {
        // Long enough for a look at where the time goes, too short for the analyses.
        let first = Task::new("jump", "main").run(&path, &["400"]);
        let before = first.report();
        if before.status() != "undecided" || !is_surveyed(&before) {
            return Err(Unfinished(format!("not in between: {:#}", before.0)));
        }
        let output = first.folder.path().join("second.json");
        let second = crate::harness::execute(
            crate::harness::darc(&["resume", "--format", "json"])
                .arg(&first.output)
                .arg("-o")
                .arg(&output)
                .arg("--")
                .arg(&path)
                .arg("4000"),
        );
        assert_eq!(second.code(), 0, "{second:#?}");
        let after = Report::read(&output, &second);
        assert_eq!(after.at("/time"), before.at("/time"), "it was known");
        judge_event_loop(&after, &["main", "serve"])
    });
}

/// Who interrupts it before it has found out which functions take the time is not told that all is answered.
#[test]
fn a_survey_that_is_interrupted_is_made_anew() {
    measured(|| {
        let target = Target::start("event_loop", Opt::O2, &[]);
        let pid = target.pid().to_string();
        let (mut darc, output, folder) = Task::new("jump", "main").start_attach(target.pid());
        darc.wait_for_probes(target.pid());
        wait_until("windows in the status, or the end", || {
            let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
            let said: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
            let divided = said["time"]["windows"].as_u64() > Some(0);
            assert!(!divided || said["status"] == "in-progress", "{said:#}");
            divided || status.code() != 0
        });
        darc.signal(Signal::SIGINT);
        let ended = darc.finish();
        assert_eq!(ended.code(), 0, "{ended:#?}");
        let before = Report::read(&output, &ended);
        if is_surveyed(&before) || before.0["time"].is_null() {
            return Err(Unfinished(format!("not in between: {:#}", before.0)));
        }
        assert_eq!(before.status(), "undecided", "{:#}", before.0);
        let again = folder.path().join("again.json");
        let resumed = crate::harness::execute(
            crate::harness::darc(&["resume", "--format", "json"])
                .args(["-p", &pid, "-o"])
                .arg(&again)
                .arg(&output),
        );
        assert_eq!(resumed.code(), 0, "{resumed:#?}");
        let after = Report::read(&again, &resumed);
        assert!(is_surveyed(&after), "{:#}", after.0);
        target.finish_like_native(&program("event_loop", Opt::O2), &[]);
        judge_event_loop(&after, &["main", "serve"])
    });
}
