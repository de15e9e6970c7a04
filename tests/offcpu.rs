//! Time away from the CPU: preemption as the cause of a peak, and how a thread waited.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use darc_testprogs::{Opt, program};
use serde_json::{Value, json};

use crate::harness::{
    Miss, Target, Task, Unfinished, Verdict, Wrong, darc, execute, for_all, levels, measured,
    not_tested, run_darc,
};
use crate::report::Report;

/// Whether the kernel tells this user of every switch of the machine; a container may forbid it.
pub fn permitted() -> bool {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let tried = run_darc(&["sample", "-a", "-d", "1ms"]);
        (tried.code() != 0).then_some(tried.stderr)
    });
    REFUSED.iter().for_each(not_tested);
    REFUSED.is_none()
}

/// Whether it tells of interrupts and wakings, too.
pub fn tells_more() -> bool {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let said = run_darc(&["doctor"]).stdout;
        let tracepoints = said.lines().find(|line| line.contains("tracepoints"));
        let tells = tracepoints.is_some_and(|line| line.starts_with("ok"));
        (!tells).then(|| format!("{tracepoints:?}"))
    });
    REFUSED.iter().for_each(not_tested);
    permitted() && REFUSED.is_none()
}

/// The causes of the far peak, which takes most of the time.
fn far_causes(report: &Report) -> &[Value] {
    let peaks = report.peaks().iter();
    let far = peaks.max_by_key(|peak| peak["first_bucket"].as_u64());
    let causes = far.and_then(|peak| peak["root_causes"].as_array());
    causes.map_or(&[], Vec::as_slice)
}

/// The first of them, once all their paths have come to an end.
fn far_cause(report: &Report) -> Result<&Value, Miss> {
    let causes = far_causes(report);
    let has_ended = |cause: &Value| cause["stop"] != "still-descending";
    let first = causes.first().filter(|_| causes.iter().all(has_ended));
    first.ok_or_else(|| Unfinished(format!("no cause: {:#}", report.0)))
}

/// Two processes that never wait, pinned to one CPU.
#[test]
fn preemption_is_the_cause_of_the_far_peak_and_in_no_function() {
    if !permitted() {
        return;
    }
    for &opt in levels() {
        let task = Task::new("jump", "serve");
        task.results_are_in_the_end(&program("preempted", opt), |report| {
            preemption_is_the_cause(report)?;
            preemption_is_taken_out(report)
        });
    }
}

fn preemption_is_the_cause(report: &Report) -> Verdict {
    let cause = far_cause(report)?;
    if cause["kind"] != "preemption" {
        return Err(Wrong(format!("{:#}", report.0)));
    }
    assert_eq!(cause["path"][0], "serve");
    let others = cause["waits"]["others"].as_array().expect("a list");
    match others.first() {
        Some(other) if other["name"] == "rival" => Ok(()),
        _ => Err(Unfinished(format!("{cause:#}"))),
    }
}

/// The time of `compute` is its own in both peaks.
fn preemption_is_taken_out(report: &Report) -> Verdict {
    let children = report.at("/ftree/children").as_array().expect("a list");
    let find = |name: &str| children.iter().find(|child| child["name"] == name);
    let number = |value: &Value| value.as_u64().expect("a number");
    // The clock's interrupts strike in a second of work for certain.
    if find("(interrupt 236 local_timer)").is_none() && tells_more() {
        return Err(Unfinished(format!("{:#}", report.0)));
    }
    let (compute, away) = (find("compute"), find("(preemption)"));
    let (Some(compute), Some(away)) = (compute, away) else {
        return Err(Unfinished(format!("{:#}", report.0)));
    };
    // Far ops are dozens of times longer than the work in them.
    match number(&compute["mean"]) * 4 < number(&away["max"]) {
        true => Ok(()),
        false => Err(Unfinished(format!("{:#}", report.0))),
    }
}

/// A control group, which is removed when the process in it has ended: dropped behind that.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A program that its control group holds back every tenth of a second: that is said, whoever ran meanwhile.
#[test]
fn a_limit_of_cpu_time_is_told_beside_preemption() {
    if !permitted() {
        return;
    }
    let task = Task::new("jump", "serve");
    measured(|| {
        // Behind the target, when this test fails, too.
        let groups;
        let target = Target::start("two_peaks", Opt::O2, &[]);
        groups = limited(target.pid());
        if !groups.iter().any(|(_, is_limited)| *is_limited) {
            not_tested("no control group with a limit can be made here");
            return Ok(());
        }
        let report = task.attach(target.pid()).report();
        target.finish_like_native(&program("two_peaks", Opt::O2), &[]);
        let mut causes = report.peaks().iter().flat_map(|peak| {
            let causes = peak["root_causes"].as_array();
            causes.into_iter().flatten()
        });
        let Some(cause) = causes.find(|cause| cause["kind"] == "preemption") else {
            return Err(Unfinished(format!("{:#}", report.0)));
        };
        // Beside much other work it is not for most of the time.
        let reason = cause["reason"].as_str().unwrap_or_default();
        if !reason.contains("a limit of CPU time on") {
            return Err(Unfinished(format!("{:#}", report.0)));
        }
        match report
            .at("/warnings")
            .to_string()
            .contains("a limit of CPU time on")
        {
            true => Ok(()),
            false => Err(Wrong(format!("{:#}", report.0))),
        }
    });
}

/// Puts a process into control groups with a limit: in the first version of the interface, and in the second. Says where it is
/// limited now. A folder that is no control group has no such file.
fn limited(pid: i32) -> [(Group, bool); 2] {
    let name = format!("darc-test-{pid}");
    let limits = [
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "30000"),
        ("/sys/fs/cgroup", "cpu.max", "30000 100000"),
    ];
    limits.map(|(hierarchy, limit, value)| {
        let group = Path::new(hierarchy).join(&name);
        let write = |file: &str, text: &str| {
            let file = OpenOptions::new().write(true).open(group.join(file));
            file.is_ok_and(|mut file| write!(file, "{text}").is_ok())
        };
        let is_limited = fs::create_dir(&group).is_ok()
            && write(limit, value)
            && write("cgroup.procs", &pid.to_string());
        (Group(group), is_limited)
    })
}

/// The thread that ended the waits at the end of the far peak's path, by name, and whether it was seen in a function.
fn woken_in_far_peak(report: &Report, waker: &str, function: &str) -> Verdict {
    let cause = far_cause(report)?;
    let others = cause["waits"]["others"].as_array();
    let first = others.and_then(|others| others.first());
    let is_in = |doing: &Value| {
        let mut functions = doing["functions"].as_array().into_iter().flatten();
        functions.any(|name| name == function)
    };
    let doing = first.and_then(|other| other["doing"].as_array());
    match (cause["kind"].as_str(), first) {
        // The machine's doing.
        (Some("preemption"), _) => Err(Unfinished(format!("{cause:#}"))),
        (Some("syscall"), None) => Err(Unfinished(format!("{cause:#}"))),
        (Some("syscall"), Some(other)) if other["name"] == waker => {
            let is_told = doing.is_some_and(|doing| doing.iter().any(is_in));
            match is_told && cause["waits"]["blocked"].as_u64() > Some(0) {
                true => Ok(()),
                false => Err(Unfinished(format!("{cause:#}"))),
            }
        }
        _ => Err(Wrong(format!("{cause:#}"))),
    }
}

/// Whether a path of some peak ends in system calls with an argument that begins so, or in page faults of such memory.
fn called_with(report: &Report, prefix: &str) -> Verdict {
    let values = report.peaks().iter().flat_map(|peak| {
        let causes = peak["root_causes"].as_array().into_iter().flatten();
        let arguments = causes.filter_map(|cause| cause["arguments"].as_array());
        arguments
            .flatten()
            .filter_map(|entry| entry["value"].as_str())
    });
    let values: Vec<&str> = values.collect();
    match values.iter().any(|value| value.starts_with(prefix)) {
        true => Ok(()),
        false => Err(Unfinished(format!("{values:?}: {:#}", report.0))),
    }
}

/// System calls that end a path say of which file they are.
#[test]
fn files_of_system_calls_are_told() {
    if !tells_more() {
        return;
    }
    let task = Task::new("jump", "fetch");
    task.answers_are(&program("cached_and_slow_read", Opt::O2), |report| {
        called_with(report, "fd 3, /memfd:cached")?;
        called_with(report, "fd 6, pipe:[")
    });
}

/// Waiting for a lock, and for the consumer of a queue: which one, who ended it, and in which function.
#[test]
fn who_ends_a_wait_is_told() {
    if !tells_more() {
        return;
    }
    for (name, f0, waker, function, lock) in [
        ("mutex_contention", "update", "holder", "holder", "table "),
        ("slow_consumer", "submit", "consumer", "finish", "changed"),
        ("own_lock", "update", "holder", "unlock", "table "),
    ] {
        let task = Task::new("jump", f0);
        task.answers_are(&program(name, Opt::O2), |report| {
            woken_in_far_peak(report, waker, function)?;
            called_with(report, lock)?;
            let peaks = report.peaks().iter();
            let blocked = peaks.filter_map(|peak| peak["off_cpu"]["blocked"].as_u64());
            match blocked.sum::<u64>() {
                0 => Err(Unfinished(format!("{:#}", report.0))),
                _ => Ok(()),
            }
        });
    }
}

/// A thread that answers over a connection to the same machine is who ends the wait, and not the deferred work by which what it sent
/// arrives.
#[test]
fn who_answers_on_the_same_machine_is_told() {
    if !tells_more() {
        return;
    }
    let task = Task::new("jump", "query");
    task.answers_are(&program("asks_by_socket", Opt::O2), |report| {
        woken_in_far_peak(report, "worker", "serve")
    });
}

/// Two processes share a lock: who gives it back is another process, which its name does not say.
#[test]
fn a_waker_in_another_process_is_told_as_such() {
    if !tells_more() {
        return;
    }
    measured(|| {
        let task = Task::new("jump", "append");
        let analysis = task.run(&program("shared_log", Opt::O2), &["2"]);
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        let report = analysis.report();
        let cause = far_cause(&report)?;
        let others = cause["waits"]["others"].as_array();
        let first = others.and_then(|others| others.first());
        let Some(waker) = first.filter(|_| cause["kind"] == "syscall") else {
            return Err(Unfinished(format!("{cause:#}")));
        };
        assert_eq!(waker["name"], "shared_log", "{cause:#}");
        assert!(waker["process"]["pid"].as_i64() > Some(0), "{cause:#}");
        assert_eq!(waker["process"]["pid"], waker["tid"], "{cause:#}");
        assert_eq!(waker["process"]["command"], "shared_log", "{cause:#}");
        Ok(())
    });
}

/// Bringing in memory that is used for the first time is the time of who touches it, and no code of its own. The processor's
/// way into the kernel and back remains with the function, so that both may be causes.
#[test]
fn page_faults_are_a_cause_of_the_far_peak() {
    if !tells_more() {
        return;
    }
    for &opt in levels() {
        let task = Task::new("jump", "fill");
        task.answers_are(&program("page_faults", opt), |report| {
            let cause = far_cause(report)?;
            let path = cause["path"].as_array().expect("a path");
            let place: Vec<_> = path.iter().filter_map(|at| at.as_str()).collect();
            match place[..] {
                ["fill", "touch", "(page fault)"] => called_with(report, "anonymous memory"),
                ["fill", "touch"] => Err(Unfinished(format!("{:#}", report.0))),
                _ if cause["kind"] == "preemption" => Err(Unfinished(format!("{:#}", report.0))),
                _ => Err(Wrong(format!("{:#}", report.0))),
            }
        });
    }
}

/// A page fault that waits says for what, as other waits do.
#[test]
fn what_a_page_fault_waits_for_is_told() {
    if !tells_more() {
        return;
    }
    let task = Task::new("jump", "look_up");
    task.answers_are(&program("waits_for_page", Opt::O2), |report| {
        far_cause(report)?;
        let mut causes = far_causes(report).iter();
        let fault = causes.find(|cause| cause["kind"] == "page-fault");
        let waits = fault.map(|cause| &cause["waits"]);
        let waits = waits.ok_or_else(|| Unfinished(format!("{:#}", report.0)))?;
        let number = |field: &str| waits[field].as_u64().unwrap_or(0);
        if number("blocked") * 2 < number("preempted") {
            return Err(Wrong(format!("{waits:#}")));
        }
        let waker = &waits["others"][0];
        let doing = waker["doing"][0]["functions"].as_array();
        let is_there = doing.is_some_and(|doing| doing.contains(&json!("bring_in")));
        match waker["name"] == "pager" {
            true if is_there => Ok(()),
            true => Err(Unfinished(format!("{waits:#}"))),
            false => Err(Wrong(format!("{waits:#}"))),
        }
    });
}

/// A function that is stopped by a signal takes no time meanwhile, and is not said to.
#[test]
fn a_function_that_is_stopped_does_not_take_the_time() {
    if !permitted() {
        return;
    }
    let task = Task::new("jump", "serve");
    task.answers_are(&program("is_stopped", Opt::O2), |report| {
        let cause = far_cause(report)?;
        let is_serve = cause["kind"] == "function" && cause["path"] == json!(["serve"]);
        match cause["blocked"].as_f64() {
            Some(blocked) if is_serve && blocked > 0.5 => match report.status() {
                "root-cause-found" => Err(Wrong(format!("{cause:#}"))),
                _ => Ok(()),
            },
            _ if is_serve => Err(Wrong(format!("{cause:#}"))),
            _ => Err(Unfinished(format!("{cause:#}"))),
        }
    });
}

/// A write that raises a signal ends in its handler, and not when memory is touched that is new, much later: what runs in between is
/// the program.
#[test]
fn a_fault_that_raises_a_signal_takes_no_time_of_what_follows() {
    if !tells_more() {
        return;
    }
    let task = Task::new("jump", "collect");
    task.answers_are(&program("write_barrier", Opt::O2), |report| {
        far_cause(report)?;
        let causes = far_causes(report);
        if causes.iter().any(|cause| cause["kind"] == "page-fault") {
            return Err(Wrong(format!("{:#}", report.0)));
        }
        let is_right = |cause: &Value| cause["path"] == json!(["collect", "compute"]);
        match causes.iter().any(is_right) {
            true => Ok(()),
            false => Err(Unfinished(format!("{:#}", report.0))),
        }
    });
}

/// A signal's handler is no work of the function that it interrupts.
#[test]
fn a_signal_handler_is_the_cause_of_the_far_peak() {
    if !tells_more() {
        return;
    }
    for &opt in levels() {
        let task = Task::new("jump", "serve");
        task.answers_are(&program("signal_handler", opt), |report| {
            far_cause(report)?;
            let mut causes = far_causes(report).iter();
            let is_handler = |cause: &&Value| {
                cause["kind"] == "signal" && cause["path"] == json!(["serve", "(SIGALRM: tick)"])
            };
            // Where other programs run, the two peaks may be one, and have both causes.
            let least = if report.peaks().len() == 1 { 0.1 } else { 0.5 };
            let share = |cause: &Value| cause["share_of_time"].as_f64().unwrap_or(0.0);
            match causes.clone().find(is_handler) {
                Some(handler) if share(handler) >= least => Ok(()),
                None if causes.all(|cause| cause["kind"] == "preemption") => {
                    Err(Unfinished(format!("{:#}", report.0)))
                }
                _ => Err(Wrong(format!("{:#}", report.0))),
            }
        });
    }
}

/// An analysis goes on from results that have time away in them.
#[test]
fn results_with_time_away_can_be_resumed() {
    if !permitted() {
        return;
    }
    let task = Task::new("jump", "serve").options(&["--decision-ops", "200"]);
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
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        task.run_like_native(&program("preempted", opt), &["200", "brisk"]);
    });
}

/// What breakpoints cannot tell is said, not left out in silence.
#[test]
fn breakpoints_say_what_they_do_not_tell() {
    let run = |f0: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = darc(&["run", "--engine", "int3", "-o"]);
        command.arg(folder.path().join("out.txt")).args(f0);
        execute(
            command
                .arg("--")
                .arg(program("two_peaks", Opt::O2))
                .arg("20"),
        )
    };
    let of_serve = run(&["--f0", "serve"]);
    assert!(
        of_serve.stderr.contains("who ended waits are not told"),
        "{of_serve:#?}"
    );
    assert!(
        !of_serve.stderr.contains("main is called once"),
        "{of_serve:#?}"
    );
    let asked_for_nothing = run(&["--f0", "serve", "--preemption", "counted"]);
    assert!(
        !asked_for_nothing.stderr.contains("not told"),
        "{asked_for_nothing:#?}"
    );
    let of_main = run(&[]);
    assert!(
        of_main.stderr.contains("main is called once"),
        "{of_main:#?}"
    );
}
