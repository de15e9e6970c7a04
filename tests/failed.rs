//! Measuring that fails in the middle: the program is not to suffer, and what was found is kept.

use std::fs;
use std::process::Stdio;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use darc_testprogs::{Opt, program};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{Target, darc, run_darc, wait_until};

/// Somebody who traces a process, so that darc cannot, until told to leave.
struct Debugger {
    leave: Sender<()>,
    thread: JoinHandle<()>,
}

impl Debugger {
    fn attach(pid: i32) -> Debugger {
        let (leave, told) = mpsc::channel();
        let (attached, here) = mpsc::channel();
        // The kernel lets a process go when the thread that traces it ends.
        let thread = thread::spawn(move || {
            let pid = Pid::from_raw(pid);
            wait_until("a moment in which darc does not trace it", || {
                ptrace::seize(pid, ptrace::Options::empty()).is_ok()
            });
            attached.send(()).expect("somebody waits");
            let _ = told.recv();
        });
        here.recv().expect("it is attached");
        Debugger { leave, thread }
    }

    fn leave(self) {
        drop(self.leave);
        self.thread.join().expect("it has ended");
    }
}

/// The child of a process that runs a program of this name.
fn child(of: i32, name: &str) -> i32 {
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).expect("it runs");
    let is_named = |pid: &&str| {
        let runs = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        runs.trim_end() == name
    };
    let found = children.split_whitespace().find(is_named);
    let pid = found.unwrap_or_else(|| panic!("no {name} among {children}"));
    pid.parse().expect("a process id")
}

/// Starts `two_peaks` with this darc command, attaches a debugger once `has_begun` says so of the status, and ends the
/// measuring: darc cannot take its probes away. The results.
fn interrupted(command: &[&str], has_begun: impl Fn(&Value) -> bool) -> Value {
    let path = program("two_peaks", Opt::O2);
    let native = Target::start_at(&path, &[]).finish();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let output = folder.path().join("out.json");
    let mut command = darc(command);
    command.args(["--format", "json", "-o"]).arg(&output);
    command.arg("--").arg(&path).arg("wait");
    let target = Target::start_command(command.stderr(Stdio::null()));
    let pid = child(target.pid(), "two_peaks");
    wait_until("something to be kept", || {
        let status = run_darc(&["status", "-p", &pid.to_string(), "--format", "json"]);
        serde_json::from_str(&status.stdout).is_ok_and(|said| has_begun(&said))
    });
    let debugger = Debugger::attach(pid);
    target.signal(Signal::SIGINT);
    let mut results = Value::Null;
    wait_until("the results", || {
        let text = fs::read_to_string(&output).unwrap_or_default();
        results = serde_json::from_str(&text).unwrap_or_default();
        !results.is_null()
    });
    debugger.leave();
    let warnings = results["warnings"].as_array().expect("a list").iter();
    let said: Vec<_> = warnings.filter_map(Value::as_str).collect();
    let ways_out = said.iter().filter(|warning| {
        assert!(!warning.contains("put back"), "{results:#}");
        warning.contains(&format!("darc cleanup -p {pid}"))
    });
    assert_eq!(ways_out.count(), 1, "{results:#}");
    let finished = target.finish();
    assert_eq!(finished.stdout, native.stdout, "it ran on: {results:#}");
    assert_eq!(finished.code(), native.code(), "{results:#}");
    let early = said
        .iter()
        .filter(|warning| warning.starts_with("measuring ended early: "));
    assert_eq!(early.count(), 1, "{results:#}");
    results
}

#[test]
fn an_analysis_that_fails_in_the_middle_leaves_the_program_alone() {
    let command = ["run", "--f0", "serve", "--decision-ops", "1000000000"];
    let has_ops = |said: &Value| said["profile"]["ops"].as_u64() > Some(200);
    let results = interrupted(&command, has_ops);
    assert!(has_ops(&results), "{results:#}");
    assert_eq!(results["status"], "undecided", "{results:#}");
}

#[test]
fn a_profiling_that_fails_in_the_middle_leaves_the_program_alone() {
    let calls = |said: &Value| {
        let profiles = said["profiles"].as_array().into_iter().flatten();
        let calls = profiles.filter_map(|profile| profile["calls"].as_u64());
        calls.sum::<u64>()
    };
    let results = interrupted(&["profile", "serve"], |said| calls(said) > 200);
    assert!(calls(&results) > 200, "{results:#}");
}
