//! Names of code that run-times make: node, CPython and Java, where they are installed.

use std::process::Command;

use crate::harness::{Finished, Target, run_darc, turn};

/// Whether a program can be run; says so when it cannot.
fn runs(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    let runs = output.is_ok_and(|output| output.status.success());
    if !runs {
        eprintln!("not tested: {program} {arguments:?} does not run here; install it");
    }
    runs
}

/// Samples a program that says "ready", and ends at the end of its input.
fn sampled(command: &mut Command) -> Option<Finished> {
    let target = Target::start_command(command);
    let pid = target.pid().to_string();
    let finished = run_darc(&["sample", "-p", &pid, "-d", "1s"]);
    if finished.code() == 3 {
        eprintln!("not tested: {}", finished.stderr);
        return None;
    }
    assert_eq!(finished.code(), 0, "{finished:#?}");
    Some(finished)
}

#[test]
fn functions_that_node_compiles_have_names() {
    let _turn = turn();
    if !runs("node", &["--version"]) {
        return;
    }
    let script = "function burn(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }
        for (let i = 0; i < 200; i++) burn(100000);
        process.stdin.on('end', () => process.exit(0)).resume();
        console.log('ready');
        (function again() { burn(3000000); setImmediate(again); })();";
    let mut node = Command::new("node");
    node.args(["--perf-basic-prof", "-e", script]);
    let Some(finished) = sampled(&mut node) else {
        return;
    };
    let named = finished
        .stdout
        .lines()
        .any(|line| line.contains("burn") && line.contains("[anonymous]"));
    assert!(named, "{}", finished.stdout);
}
