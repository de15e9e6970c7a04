//! Go programs with C code, and Go's code in programs in C.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ROUNDS, answers, attach, attached, built_with, end, names, run, start, start_with};
use crate::harness::{darc, execute, measured};

/// How programs with C code are linked: by Go's linker, by another one, to lie anywhere, without symbols.
const LINKED: [&[&str]; 3] = [
    &[],
    &["-ldflags=-linkmode=external"],
    &["-buildmode=pie", "-ldflags=-linkmode=external -s -w"],
];

/// A program of goroutines that call C code and are called by it.
fn program_with_c(folder: &Path, options: &[&str]) -> Option<PathBuf> {
    let source = include_str!("../programs/cgo.go");
    built_with("1", folder, "cgo", &[("main.go", source)], options)
}

#[test]
fn what_c_code_takes_is_that_of_the_call_which_leads_there() {
    let folder = tempfile::tempdir().expect("a folder");
    for (what, options) in ["sleep", "compute", "sleep"].iter().zip(LINKED) {
        let Some(program) = program_with_c(folder.path(), options) else {
            return;
        };
        measured(|| {
            let target = start_with(&program, &[what]);
            let report = answers(&target, "main.handle", "8s");
            end(target);
            let path = match *what {
                "sleep" => "← main.sleep ← main.handle",
                _ => "← main.compute ← main.handle",
            };
            names(&report, &["runtime.cgocall ←", path, "C code ran (cgo)"])
        });
    }
}

/// Threads that C code has made call Go's, too, and callbacks panic; names are looked up by the C library, and programs started.
#[test]
fn goroutines_that_run_c_code_survive_that_probes_come_and_go() {
    let folder = tempfile::tempdir().expect("a folder");
    for options in LINKED {
        let Some(program) = program_with_c(folder.path(), options) else {
            return;
        };
        let target = start(&program);
        let mut seen = 0;
        for f0 in ["main.handle", "main.serve"].repeat(ROUNDS / 4) {
            let finished = attached(&target, f0, &["-d", "100ms"]);
            assert!(matches!(finished.code(), 0 | 7), "{finished:#?}");
            seen += usize::from(finished.code() == 0);
            // Anywhere in it.
            let pid = target.id().to_string();
            let mut command = darc(&["attach", "--f0", f0, "-o", "/dev/null", "-p", &pid]);
            command.stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut killed = command.spawn().expect("darc");
            std::thread::sleep(std::time::Duration::from_millis(150 + 20 * seen as u64));
            killed.kill().expect("ours");
            killed.wait().expect("ours");
        }
        attach(&target, &["-d", "300ms"]);
        assert_ne!(seen, 0, "no call was seen");
        end(target);
    }
}

/// The dynamic linker sets it up.
#[test]
fn a_program_with_c_code_that_is_started_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program_with_c(folder.path(), LINKED[2]) else {
        return;
    };
    measured(|| {
        let report = run(&program, "main.handle", &["--end-with-answers"], &["sleep"]);
        names(&report, &["runtime.cgocall ← main._Cfunc_pause_for"])
    });
}

/// C code, and Go's in programs in C.
#[test]
fn c_code_and_gos_code_below_it_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program_with_c(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    for f0 in ["x_cgo_thread_start", "libc.so.6:malloc"] {
        let finished = attached(&target, f0, &["-d", "1s"]);
        let line = finished.failure(3);
        assert!(line.contains("it is C code"), "{f0}: {line}");
    }
    end(target);
    let source = [("main.go", include_str!("../programs/library.go"))];
    for (mode, reason) in [
        ("c-archive", "a library of Go's for programs in C"),
        ("c-shared", "a library of Go's"),
    ] {
        let mode = format!("-buildmode={mode}");
        let Some(library) = built_with("1", folder.path(), "library.so", &source, &[&mode]) else {
            return;
        };
        let host = folder.path().join("host");
        let mut command = Command::new("cc");
        command.args(["-O1", "-o"]).arg(&host);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/library.c"));
        command
            .arg(&library)
            .args(["-lpthread", "-Wl,-rpath"])
            .arg(folder.path());
        let made = execute(&mut command);
        assert!(made.status.success(), "{made:#?}");
        let target = start(&host);
        for f0 in ["main.work", "call"] {
            let finished = attached(&target, f0, &["-d", "1s"]);
            let line = finished.failure(3);
            assert!(line.contains(reason), "{mode} {f0}: {line}");
        }
        end(target);
    }
}
