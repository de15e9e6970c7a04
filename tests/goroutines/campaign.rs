//! What a Go program takes, and what darc says of it, many times over: minutes each, so only when asked for (docs/go.md).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use super::{built_of, end, start_with};
use crate::harness::{
    Finished, Task, Unfinished, Verdict, Wrong, darc, execute, measured, run_darc, under,
};
use crate::report::Report;

/// With symbols and without.
const BUILDS: [&[&str]; 2] = [&[], &["-ldflags=-s -w"]];

/// Why a request is slow, and which functions the cause's path must have, in this order.
const REASONS: [(&str, &[&str]); 6] = [
    ("park", &["main.pause", "time.Sleep", "runtime.gopark"]),
    ("cpu", &["main.parse", "main.scramble"]),
    ("stack", &["main.grow", "runtime.morestack_noctxt"]),
    (
        "channel",
        &["main.ask", "runtime.chanrecv1", "runtime.gopark"],
    ),
    (
        "mutex",
        &["main.guard", "runtime.semacquire1", "runtime.gopark"],
    ),
    (
        "gc",
        &["main.build", "runtime.mallocgc", "runtime.gcAssistAlloc"],
    ),
];

/// Darc's exit status where no op was completed.
const NO_OPS: i32 = 7;

fn program(folder: &Path, options: &[&str]) -> Option<PathBuf> {
    let files = [
        (
            "campaign.go",
            include_str!("../programs/campaign/campaign.go"),
        ),
        (
            "cycles_amd64.s",
            include_str!("../programs/campaign/cycles_amd64.s"),
        ),
    ];
    built_of(folder, "campaign", &files, options)
}

fn attach_for(pid: u32, duration: &str, more: &[&str]) -> Finished {
    let pid = pid.to_string();
    let mut command = darc(&["attach", "--f0", "main.handle", "-o", "/dev/null"]);
    let finished = execute(command.args(["-d", duration, "-p", &pid]).args(more));
    // On a busy machine nothing may end in so short a time.
    assert!(matches!(finished.code(), 0 | NO_OPS), "{finished:#?}");
    finished
}

#[test]
#[ignore = "takes some minutes: docs/go.md"]
fn campaign_two_hundred_rounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start_with(&program, &["all"]);
    let begin = Instant::now();
    let empty = (0..200).filter(|_| attach_for(target.id(), "50ms", &[]).code() == NO_OPS);
    let empty = empty.count();
    let taken = begin.elapsed().as_secs_f64();
    eprintln!("200 rounds in {taken:.0} s, {empty} of them without an op");
    end(target);
}

#[test]
#[ignore = "takes some minutes: docs/go.md"]
fn campaign_a_hundred_kills() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start_with(&program, &["all"]);
    let pid = target.id().to_string();
    let maps = format!("/proc/{pid}/maps");
    let begin = Instant::now();
    attach_for(target.id(), "300ms", &[]);
    let whole = begin.elapsed();
    let mut found = 0;
    for round in 0..100_u64 {
        let mut command = darc(&[
            "attach",
            "--f0",
            "main.handle",
            "-o",
            "/dev/null",
            "-p",
            &pid,
        ]);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut killed = command.spawn().expect("darc");
        // Anywhere in it, spread evenly.
        std::thread::sleep(whole * 2 * (round * 7919 % 100) as u32 / 100);
        killed.kill().expect("ours");
        killed.wait().expect("ours");
        let maps = std::fs::read_to_string(&maps).expect("it lives");
        found += usize::from(maps.contains("darc (deleted)"));
        if round % 2 == 0 {
            let cleaned = run_darc(&["cleanup", "-p", &pid]);
            assert_eq!(cleaned.code(), 0, "round {round}: {cleaned:#?}");
        }
    }
    attach_for(target.id(), "300ms", &[]);
    eprintln!("100 kills, {found} of them with probes in place");
    end(target);
}

/// When a program's requests began and ended by its own clock, by their numbers.
fn own_clock(log: &Path) -> HashMap<u64, (u64, u64)> {
    let text = std::fs::read_to_string(log).expect("it was written");
    let numbers = |line: &str| {
        let mut words = line.split(' ').map(|word| word.parse().expect("a number"));
        std::array::from_fn::<u64, 3, _>(|_| words.next().expect("three"))
    };
    let lines = text.lines().map(numbers);
    lines.map(|[id, begin, end]| (id, (begin, end))).collect()
}

/// The ops of a log: their first argument, when they began, and how long they took.
fn logged_ops(log: &Path) -> Vec<(u64, u64, u64)> {
    let text = std::fs::read_to_string(log).expect("it was written");
    let op = |line: &str| {
        let value = |key: &str| {
            let (_, rest) = line.split_once(&format!(" {key}="))?;
            rest.split(' ').next()?.parse().ok()
        };
        Some((value("arg1")?, value("start")?, value("latency")?))
    };
    let lines = text.lines().filter(|line| line.contains("op (cycles)"));
    lines.filter_map(op).collect()
}

/// Darc's latencies and those of the program's own clock, request by request.
#[test]
#[ignore = "takes some minutes: docs/go.md"]
fn campaign_latencies() {
    /// Two microseconds, by any clock of two gigahertz or more.
    const NEAR: u64 = 4000;
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let [own, log] = ["own", "log"].map(|name| folder.path().join(name));
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let target = start_with(&program, &["all", &path(&own)]);
    let finished = attach_for(target.id(), "10s", &["-vv", "--log", &path(&log)]);
    end(target);
    let own = own_clock(&own);
    let (mut compared, mut off) = (0, Vec::new());
    for (id, start, latency) in logged_ops(&log) {
        let Some(&(begin, end)) = own.get(&id) else {
            continue;
        };
        // It reads its clock behind the beginning of the op, and before its end.
        assert!(start <= begin && begin < end, "{id}: {begin}, {start}");
        compared += 1;
        if (end - begin).abs_diff(latency) > NEAR.max((end - begin) / 50) {
            off.push((id, end - begin, latency));
        }
    }
    eprintln!("{compared} ops compared, {} off: {off:?}", off.len());
    assert!(compared > 1000, "{finished:#?}");
    assert!(off.len() * 1000 <= compared, "{off:?}");
}

/// What a report says of the peak that takes most of the time.
fn verdict(report: &Report, wanted: &[&str]) -> Verdict {
    let time = |peak: &&serde_json::Value| peak["total"].as_u64();
    let slow = report.peaks().iter().max_by_key(time);
    let Some(slow) = slow else {
        return Err(Unfinished("no peak".to_owned()));
    };
    let causes = slow["root_causes"].as_array().expect("a list");
    let share = |cause: &&serde_json::Value| cause["share_of_time"].as_f64().unwrap_or(0.0);
    let is_wanted = |cause: &&serde_json::Value| {
        let path = cause["path"].as_array().expect("a list");
        let mut names = path.iter().filter_map(|name| name.as_str());
        let has =
            |wanted: &&str| names.any(|name| name.strip_suffix(".abi0").unwrap_or(name) == *wanted);
        wanted.iter().all(has)
    };
    let right: f64 = causes
        .iter()
        .filter(is_wanted)
        .map(|cause| share(&cause))
        .sum();
    let said = format!("{right:.2} of {}: {causes:#?}", slow["status"]);
    match right >= 0.5 {
        true => Ok(()),
        false if slow["status"] == "root-cause-found" => Err(Wrong(said)),
        false => Err(Unfinished(said)),
    }
}

/// With `DARC_REPEAT=10`: how often each is right.
#[test]
#[ignore = "takes some minutes: docs/go.md"]
fn campaign_causes() {
    let folder = tempfile::tempdir().expect("a folder");
    for options in BUILDS {
        let Some(program) = program(folder.path(), options) else {
            return;
        };
        for (reason, wanted) in REASONS {
            let target = start_with(&program, &[reason]);
            let pid = i32::try_from(target.id()).expect("a process id");
            under(format!("{reason} {options:?}"), || {
                measured(|| {
                    let task = Task::new("jump", "main.handle").options(&["-d", "15s"]);
                    verdict(&task.attach(pid).report(), wanted)
                });
            });
            end(target);
        }
    }
}
