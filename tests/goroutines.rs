//! Go programs: goroutines whose stacks move, that go on in other threads, panic and end, under constant garbage collection and
//! profiling. Left out, loudly, where there is no Go tool chain; `DARC_TEST_GO` names one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Unfinished, Verdict, Wrong, darc, execute, measured};

/// How often it is attached and let go.
const ROUNDS: usize = 12;

/// The versions that are known, as tool chains name themselves.
const KNOWN: [&str; 8] = ["19", "21", "22", "23", "24", "25", "26", "27"];

/// The program that most tests measure; `None` where nothing can build it, or what it was built with is not known.
fn program(folder: &Path, options: &[&str]) -> Option<PathBuf> {
    built(
        folder,
        "requests",
        include_str!("programs/requests.go"),
        options,
    )
}

/// A program, from its source.
fn built(folder: &Path, name: &str, source: &str, options: &[&str]) -> Option<PathBuf> {
    let go = std::env::var_os("DARC_TEST_GO").unwrap_or_else(|| "go".into());
    let version = Command::new(&go).arg("version").output();
    let version = version.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    if !KNOWN
        .iter()
        .any(|known| version.contains(&format!("go1.{known}.")))
    {
        eprintln!("left out: there is no Go tool chain of a known version ({version:?})");
        return None;
    }
    let (program, text) = (folder.join(name), source);
    let source = program.with_extension("go");
    std::fs::write(&source, text).expect("written");
    let mut command = Command::new(go);
    command
        .args(["build", "-o"])
        .arg(&program)
        .args(options)
        .arg(&source);
    for (variable, value) in [
        ("GOTOOLCHAIN", "local"),
        ("CGO_ENABLED", "0"),
        ("GOFLAGS", ""),
    ] {
        command.env(variable, value);
    }
    command
        .env("GOCACHE", folder.join("cache"))
        .env("GOPATH", folder.join("path"));
    let output = command.output().expect("it was there a moment ago");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(program)
}

fn start(program: &Path) -> Child {
    let mut command = Command::new(program);
    command
        .env("GOGC", "5")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("just built");
    let mut ready = [0; 6];
    let stdout = child.stdout.as_mut().expect("piped");
    stdout
        .read_exact(&mut ready)
        .expect("it says that it is ready");
    child
}

/// Ends it: all of its results were right, and its run-time found nothing strange.
fn end(mut child: Child) {
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends with its input");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("wrong 0"),
        "{output:?}"
    );
}

fn attach(child: &Child, more: &[&str]) -> String {
    attach_to(child, "main.handle", more)
}

/// The report on a function, in one line.
fn attach_to(child: &Child, f0: &str, more: &[&str]) -> String {
    let pid = child.id().to_string();
    let mut command = darc(&["attach", "--f0", f0, "-o", "/dev/null", "-p", &pid]);
    let finished = execute(command.args(more));
    assert_eq!(finished.code(), 0, "{finished:#?}");
    let words: Vec<&str> = finished.stdout.split_whitespace().collect();
    words.join(" ")
}

#[test]
fn what_goroutines_wait_for_and_compute_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    for options in [&[][..], &["-ldflags=-s -w"]] {
        let Some(program) = program(folder.path(), options) else {
            return;
        };
        let target = start(&program);
        measured(|| {
            let report = attach(&target, &["-d", "8s"]);
            names(
                &report,
                &[
                    "time.Sleep ← main.lookup ← main.handle",
                    "main.parse ← main.handle",
                    "the goroutine waited until a time (time.Sleep)",
                ],
            )
        });
        end(target);
    }
}

/// Whether a report has all of these words. One that has decided everything without them is wrong.
fn names(report: &str, causes: &[&str]) -> Verdict {
    let missing: Vec<_> = causes.iter().filter(|&it| !report.contains(it)).collect();
    match (missing.is_empty(), report.contains("not decided")) {
        (true, _) => Ok(()),
        (false, true) => Err(Unfinished(format!("{missing:?}: {report}"))),
        (false, false) => Err(Wrong(format!("{missing:?}: {report}"))),
    }
}

/// Through calls by the address of a function or a method, too.
#[test]
fn what_a_goroutine_waits_for_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/waits.go");
    let Some(program) = built(folder.path(), "waits", source, &[]) else {
        return;
    };
    let target = start(&program);
    for (f0, causes) in [
        ("main.receive", ["chanrecv", "to receive from a channel"]),
        ("main.guarded", ["lockSlow", "for a lock (sync.Mutex)"]),
        ("main.through", ["(*sleeper).wait", "until a time"]),
    ] {
        measured(|| names(&attach_to(&target, f0, &["-d", "8s"]), &causes));
    }
    end(target);
}

#[test]
fn goroutines_survive_that_probes_come_and_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let maps = format!("/proc/{}/maps", target.id());
    let mut kept = 0;
    for round in 0..ROUNDS {
        attach(
            &target,
            &["-d", if round % 2 == 0 { "100ms" } else { "400ms" }],
        );
        let maps = std::fs::read_to_string(&maps).expect("it lives");
        kept += usize::from(maps.contains("darc (deleted)"));
    }
    // A thread that another one keeps from running may be in a probe for as long as it is waited for.
    assert!(kept < ROUNDS / 2, "memory was kept {kept} times");
    end(target);
}

#[test]
fn goroutines_survive_a_darc_that_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let pid = target.id().to_string();
    for round in 0..ROUNDS as u64 {
        let mut command = darc(&[
            "attach",
            "--f0",
            "main.handle",
            "-o",
            "/dev/null",
            "-p",
            &pid,
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut killed = command.spawn().expect("darc");
        // Anywhere in it.
        std::thread::sleep(std::time::Duration::from_millis(60 + 40 * round));
        killed.kill().expect("ours");
        killed.wait().expect("ours");
    }
    attach(&target, &["-d", "300ms"]);
    end(target);
}

/// What is not known to be safe is refused by name.
#[test]
fn what_of_go_is_not_known_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let pid = target.id().to_string();
    for (options, reason) in [
        (
            &["--f0", "main.handle", "--engine", "int3"][..],
            "darc attach --f0",
        ),
        (&["--f0", "runtime.memmove"], "written in assembly"),
        (&["--f0", "main.handle", "--value", "arg1"], "--value"),
    ] {
        let mut command = darc(&["attach", "-d", "1s", "-o", "/dev/null", "-p", &pid]);
        let finished = execute(command.args(options));
        let line = finished.failure(3);
        assert!(line.contains(reason), "{options:?}: {line}");
    }
    let finished = execute(&mut darc(&["attach", "-o", "/dev/null", "-p", &pid]));
    let line = finished.failure(4);
    assert!(line.contains("darc sample -p"), "{line}");
    end(target);
}
