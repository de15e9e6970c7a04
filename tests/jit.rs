//! Names of code that run-times make: node, CPython and Java, where they are installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{Finished, Target, Task, not_tested, run_darc};

/// Whether a program can be run; says so when it cannot.
fn runs(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    let runs = output.is_ok_and(|output| output.status.success());
    if !runs {
        not_tested(format!(
            "{program} {arguments:?} does not run here; install it"
        ));
    }
    runs
}

/// Samples a program that says "ready", and ends at the end of its input.
fn sampled(command: &mut Command) -> Option<Finished> {
    let target = Target::start_command(command);
    let pid = target.pid().to_string();
    let finished = run_darc(&["sample", "-p", &pid, "-d", "1s"]);
    if finished.code() == 3 {
        not_tested(&finished.stderr);
        return None;
    }
    assert_eq!(finished.code(), 0, "{finished:#?}");
    Some(finished)
}

#[test]
fn functions_that_node_compiles_have_names() {
    if !runs("node", &["--version"]) {
        return;
    }
    let script = "function burn(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }
        for (let i = 0; i < 200; i++) burn(100000);
        process.stdin.on('end', () => process.exit(0)).resume();
        console.log('ready');
        (function again() { burn(3000000); setImmediate(again); })();";
    // node leaves a log in the folder where it is started.
    let folder = tempfile::tempdir().expect("a folder");
    let mut node = Command::new("node");
    node.args(["--perf-basic-prof", "-e", script])
        .current_dir(folder.path());
    let Some(finished) = sampled(&mut node) else {
        return;
    };
    let named = finished
        .stdout
        .lines()
        .any(|line| line.contains("burn") && line.contains("[anonymous]"));
    assert!(named, "{}", finished.stdout);
}

/// The CPythons that may be here: those of pyenv, then those on PATH.
fn pythons() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let pyenv = home.map(|home| home.join(".pyenv/versions"));
    let installed = pyenv.and_then(|folder| std::fs::read_dir(folder).ok());
    let mut candidates: Vec<PathBuf> = installed
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin/python3")))
        .collect();
    candidates.sort();
    candidates.extend(["python3.14", "python3.13", "python3.12", "python3"].map(PathBuf::from));
    candidates
}

/// A CPython that gives its functions names (`-X perf`).
fn python() -> Option<PathBuf> {
    let has_names = "import sys; sys.exit(sys.version_info < (3, 12))";
    let found = pythons().into_iter().rev().find(|path| {
        let output = Command::new(path)
            .args(["-X", "perf", "-c", has_names])
            .output();
        output.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        not_tested("no CPython of 3.12 or later; install one");
    }
    found
}

/// At its own end CPython unmaps the code of its functions while `serve` may be in it, and dies of that now and then: so it ends at once.
const SERVER: &str = "
import os, sys, threading, time
def rebuild():
    time.sleep(0.003)
def handle(key):
    if key % 8 == 7:
        rebuild()
    return sum(range(300))
began = threading.Event()
def serve():
    key = 0
    while True:
        handle(key)
        began.set()
        key += 1
threading.Thread(target=serve, daemon=True).start()
# A function has a name in the map from its first call on.
began.wait()
print('ready', flush=True)
sys.stdin.read()
os._exit(0)
";

/// The interpreter gives its memory for such code back at its end, while threads run on in it: probes there are a danger.
#[test]
fn a_python_function_is_found_and_refused() {
    let Some(python) = python() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("app.py");
    std::fs::write(&script, SERVER).expect("room");
    let mut command = Command::new(&python);
    let target = Target::start_command(command.args(["-X", "perf"]).arg(&script));
    let task = Task::new("jump", "python:handle:app.py").options(&["-d", "4s"]);
    let analysis = task.attach(target.pid());
    let refusal = analysis.darc.failure(3);
    assert!(refusal.contains("has made this code"), "{refusal}");
    let finished = target.finish();
    assert!(finished.status.success(), "{finished:#?}");
}

/// Nine tenths of the CPU time are in `burn`, called by `Store.get`; `rest` waits all the time, in another thread.
const BURNING: &str = "
import sys, threading
def burn(n):
    total = 0
    for i in range(n):
        total += i * i
    return total
class Store:
    def get(self):
        burn(90000)
        total = 0
        for i in range(10000):
            total += i * i
def rest():
    sys.stdin.read()
def serve():
    while True:
        Store().get()
threading.Thread(target=serve, daemon=True).start()
print('ready', flush=True)
rest()
";

/// The CPythons whose frames darc reads, one of each version.
fn readable() -> Vec<PathBuf> {
    let version =
        "import sys; print(sys.version); sys.exit(not (3, 9) <= sys.version_info < (3, 14))";
    let runs = |path: PathBuf| {
        let output = Command::new(&path).args(["-c", version]).output().ok()?;
        output.status.success().then_some((output.stdout, path))
    };
    let found: BTreeMap<Vec<u8>, PathBuf> = pythons().into_iter().filter_map(runs).collect();
    if found.is_empty() {
        not_tested("no CPython of 3.9 to 3.13; install one");
    }
    found.into_values().collect()
}

#[test]
fn python_functions_that_run_are_told_from_those_that_wait() {
    for python in readable() {
        tells_what_runs(&python);
    }
}

fn tells_what_runs(python: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("app.py");
    std::fs::write(&script, BURNING).expect("room");
    let target = Target::start_command(Command::new(python).arg(&script));
    let pid = target.pid().to_string();
    // On a busy machine darc may have to take the processor from the program to look at it.
    let looked = (0..3).find_map(|_| {
        let finished = run_darc(&["sample", "-p", &pid, "-d", "500ms", "--format", "json"]);
        let found: Value = serde_json::from_str(&finished.stdout).expect("a document");
        let looks = found["python"]["looks"].as_u64().unwrap_or(0);
        (looks >= 10).then(|| found["python"].clone())
    });
    let Some(python) = looked else {
        return not_tested("the machine is too busy, or refuses to be sampled");
    };
    let looks = python["looks"].as_f64().expect("a number");
    let entry = |name: &str| {
        let functions = python["functions"].as_array().expect("a list");
        // Before 3.11 names are without those of classes.
        let mut named = functions
            .iter()
            .filter(|it| it["name"].as_str().is_some_and(|it| it.ends_with(name)));
        named.next().cloned()
    };
    let burn = entry("burn").expect("burn");
    assert!(
        burn["own"].as_f64().expect("a number") > 0.5 * looks,
        "{python:#}"
    );
    assert_eq!(
        (&burn["line"], &burn["file"]),
        (&3.into(), &script.to_str().into())
    );
    // Now and then it is between two calls.
    let get = entry("get").expect("get")["total"].as_f64();
    assert!(get.expect("a number") > 0.9 * looks, "{python:#}");
    assert_eq!(entry("rest"), None, "{python:#}");
    let finished = target.finish();
    assert!(finished.status.success(), "{finished:#?}");
}
