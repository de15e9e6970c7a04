//! `darc watch`: in lines, and on a terminal.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use darc_testprogs::Opt;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Running, Target, darc, run_darc, wait_until};
use crate::terminal::Screen;
use crate::untouched::{check_released, check_text};

/// Starts a command on this terminal, which nobody else holds open then.
fn on_terminal(terminal: OwnedFd, command: &mut Command) -> Child {
    let copy = || terminal.try_clone().expect("a descriptor");
    command
        .stdin(copy())
        .stderr(copy())
        .stdout(copy())
        .env("TERM", "xterm-256color");
    let child = command.spawn().expect("darc starts");
    // The command holds this side of the terminal open.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    child
}

/// The calls of a function in all lines of a record.
fn calls_in(record: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(record).expect("a record");
    let mut calls = 0;
    for line in text.lines() {
        // The last one may be half written.
        let Ok(sample) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let functions = sample["functions"].as_array().expect("a list");
        let of = functions.iter().filter(|function| function["name"] == name);
        let of = of.map(|function| function["calls"].as_u64().expect("a number"));
        calls += of.sum::<u64>();
    }
    calls
}

/// Whenever a watch ends, its last, shorter sample is shown and written too: no call is lost.
#[test]
fn every_call_is_in_the_lines_and_in_the_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record.jsonl");
    std::fs::write(
        &record,
        r#"{"schema":1,"seconds":0.5,"inside":[],"functions":[{"of":"an earlier watch"}],"pauses_us":[]}"#,
    )
    .expect("ours");
    let mut target = Target::start("counted_calls", Opt::O2, &["4", "400"]);
    let pid = target.pid().to_string();
    let watch = |more: &[&str]| {
        let mut command = darc(&["watch", "-p", &pid, "--record"]);
        Running::start(command.arg(&record).args(more).stdin(Stdio::null()))
    };
    let mut darc = watch(&["round_trip", "inner"]);
    darc.wait_for_probes(target.pid());
    // Until it answers it may still be putting in the second function.
    wait_until("both", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        status.code() == 0
    });
    target.poke();
    assert_eq!(target.line(), "done\n");
    darc.signal(Signal::SIGINT);
    let darc = darc.finish();
    assert_eq!(darc.code(), 0, "{darc:#?}");
    assert_eq!(calls_in(&record, "round_trip"), 4 * 400, "{darc:#?}");
    assert_eq!(calls_in(&record, "inner"), 3 * 4 * 400, "{darc:#?}");
    let lines = |text: &str| text.matches("  round_trip  calls/s ").count();
    assert!(lines(&darc.stdout) >= 1, "{darc:#?}");
    // A second is one line; what was recorded before is not in the file any more.
    let darc = watch(&["-d", "1s", "round_trip"]).finish();
    // On a busy machine the second may be over before the last sample is taken.
    assert_eq!(darc.code(), 0, "{darc:#?}");
    assert!((1..=2).contains(&lines(&darc.stdout)), "{darc:#?}");
    assert_eq!(calls_in(&record, "round_trip"), 0);
    // Nothing is emptied for a watch that does not begin.
    let kept = std::fs::read(&record).expect("a record");
    assert_eq!(watch(&["no_such_function"]).finish().code(), 4);
    assert!(!kept.is_empty());
    assert_eq!(std::fs::read(&record).expect("a record"), kept);
    check_released(target.pid());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// Without a terminal there is a line a second for each function; the record says the same.
#[test]
fn lines_and_a_record_are_written_without_a_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record.jsonl");
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let mut command = darc(&["watch", "-p", &target.pid().to_string(), "-d", "3s"]);
    command
        .arg("--record")
        .arg(&record)
        .args(["serve", "lookup"]);
    let darc = Running::start(command.stdin(Stdio::null())).finish();
    assert_eq!(darc.code(), 0, "{darc:#?}");
    check_released(target.pid());
    check_text(target.pid());
    for name in ["serve", "lookup"] {
        let of = |line: &&str| line.contains(&format!("  {name}  calls/s "));
        assert!(darc.stdout.lines().filter(of).count() >= 1, "{darc:#?}");
    }
    let record = std::fs::read_to_string(&record).expect("a record");
    let mut calls = 0;
    for line in record.lines() {
        let sample: Value = serde_json::from_str(line).expect("a JSON object a line");
        assert_eq!(sample["schema"], 1);
        let functions = sample["functions"].as_array().expect("a list");
        assert_eq!(functions.len(), 2);
        calls += functions[0]["calls"].as_u64().expect("a number");
        // One thread runs serve nearly all the time.
        assert!(
            functions[0]["concurrency"].as_f64().expect("a number") <= 1.5,
            "{sample}"
        );
    }
    assert!(calls > 0, "{record}");
    assert!(target.finish().status.success());
}

/// What is no reason to refuse a process, but should be known of it, is told as by the other commands.
#[test]
fn a_threads_id_stands_for_its_process() {
    let target = Target::start("four_threads", Opt::O2, &[]);
    let tid = target.second_thread().to_string();
    let watch = run_darc(&["watch", "-p", &tid, "-d", "100ms", "serve"]);
    assert_eq!(watch.code(), 0, "{watch:#?}");
    let said = format!("thread of process {}", target.pid());
    assert!(watch.stderr.contains(&said), "{watch:#?}");
    check_released(target.pid());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// What cannot be done is told in one line, and nothing is touched.
#[test]
fn bad_wishes_are_refused() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    for (args, code, part) in [
        (&["watch"][..], 2, "--pid"),
        (&["watch", "-p", &pid], 2, "no terminal"),
        (
            &["watch", "-p", &pid, "no_such_function"],
            4,
            "no_such_function",
        ),
        (
            &[
                "watch",
                "-p",
                &pid,
                "--record",
                "/no/such/folder/x",
                "serve",
            ],
            5,
            "/no/such/folder",
        ),
    ] {
        let refused = run_darc(args);
        assert!(
            refused.failure(code).contains(part),
            "{args:?}: {refused:#?}"
        );
    }
    check_text(target.pid());
}

/// Functions are added, stepped into, and left again, while the program runs.
#[test]
fn functions_are_chosen_on_a_terminal() {
    for opt in Opt::ALL {
        let target = Target::start("two_peaks", opt, &[]);
        let (mut screen, terminal) = Screen::new();
        let mut child = on_terminal(
            terminal,
            &mut darc(&["watch", "-p", &target.pid().to_string()]),
        );
        screen.wait_for("the view", &["nothing", "watched"]);
        screen.press("a");
        screen.wait_for("the question", &["Tab", "chooses"]);
        screen.press("serv");
        screen.wait_for("the names", &["serve"]);
        screen.press("\t\r");
        screen.wait_for("the function", &["probes", "changed"]);
        screen.press("\r");
        // With the first sample figures take the place of dashes.
        screen.wait_for("its callees", &["inside", "lookup", "rebuild", "µs"]);
        screen.press("\x1b[B");
        screen.press("\x7f");
        screen.wait_for("the way out", &["serve"]);
        screen.press("q");
        wait_until("the end", || child.try_wait().expect("our child").is_some());
        assert!(child.wait().expect("our child").success());
        check_released(target.pid());
        check_text(target.pid());
        target.signal(Signal::SIGCONT);
        assert!(target.finish().status.success());
    }
}

/// What was counted before a key that changes the probes is in the record too, and so is what is counted while they change.
#[test]
fn calls_before_each_key_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record.jsonl");
    let mut target = Target::start("counted_calls", Opt::O2, &["4", "400"]);
    let (mut screen, terminal) = Screen::new();
    let mut child = on_terminal(
        terminal,
        darc(&["watch", "-p", &target.pid().to_string(), "--record"])
            .arg(&record)
            .arg("round_trip"),
    );
    screen.wait_for("the view", &["round_trip"]);
    let mut burst = || {
        target.poke();
        assert_eq!(target.line(), "done\n");
    };
    burst();
    screen.press("alast\r");
    screen.wait_for("a second function", &["probes", "changed"]);
    burst();
    screen.press("\x1b[B");
    screen.press("d");
    screen.wait_for("the first alone", &["round_trip"]);
    burst();
    screen.press("q");
    wait_until("the end", || child.try_wait().expect("our child").is_some());
    assert!(child.wait().expect("our child").success());
    assert_eq!(calls_in(&record, "round_trip"), 3 * 4 * 400);
    check_released(target.pid());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// The callees of a function are counted again when its library has been loaded at another address, and when it has been loaded
/// again at the same one.
#[test]
fn callees_are_found_again_where_a_library_is_loaded_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record.jsonl");
    let mut target = Target::start("plugin_host", Opt::O2, &["moves"]);
    let (mut screen, terminal) = Screen::new();
    let mut child = on_terminal(
        terminal,
        darc(&["watch", "-p", &target.pid().to_string(), "--record"])
            .arg(&record)
            .arg("libserve.so:library_serve"),
    );
    screen.wait_for("the view", &["library_serve"]);
    screen.press("\r");
    screen.wait_for("its callees", &["inside", "lookup"]);
    for byte in *b"xmr" {
        target.poke_with(byte);
        assert_eq!(target.line(), "done\n");
        // Of a library that was just loaded the first calls may be missed.
        let before = calls_in(&record, "library_lookup");
        wait_until("calls of the callee", || {
            target.poke();
            assert_eq!(target.line(), "done\n");
            calls_in(&record, "library_lookup") >= before + 20
        });
    }
    screen.press("q");
    wait_until("the end", || child.try_wait().expect("our child").is_some());
    assert!(child.wait().expect("our child").success());
    check_released(target.pid());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// A terminal that is closed ends the watch, and the program runs as before.
#[test]
fn a_closed_terminal_ends_the_watch() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let (screen, terminal) = Screen::new();
    let mut child = on_terminal(
        terminal,
        &mut darc(&["watch", "-p", &target.pid().to_string(), "serve"]),
    );
    screen.wait_for("the view", &["serve"]);
    screen.close();
    wait_until("the end", || child.try_wait().expect("our child").is_some());
    check_released(target.pid());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// A function of a library that is not there yet is waited for, and found again wherever the library is loaded next.
#[test]
fn functions_of_libraries_that_are_loaded_later() {
    for opt in Opt::ALL {
        let mut target = Target::start("plugin_host", opt, &["800"]);
        let pid = target.pid().to_string();
        let watch = Running::start(&mut darc(&[
            "watch",
            "-p",
            &pid,
            "libserve.so:library_serve",
        ]));
        let calls = || -> u64 {
            let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
            let said: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
            said["profiles"][0]["calls"].as_u64().unwrap_or(0)
        };
        wait_until("the watch", || {
            run_darc(&["status", "-p", &pid]).code() == 0
        });
        target.poke();
        wait_until("calls of the library", || calls() > 50);
        watch.signal(Signal::SIGINT);
        let watch = watch.finish();
        assert_eq!(watch.code(), 0, "{watch:#?}");
        assert!(
            watch.stderr.contains("waiting for it to be loaded"),
            "{watch:#?}"
        );
        check_released(target.pid());
        check_text(target.pid());
        assert!(target.finish().status.success());
    }
}
