//! darc run ends as the program does, whatever becomes of the analysis.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Finished, Running, darc, engines, execute, wait_until};

/// A C program that is compiled for one test.
pub fn compiled(folder: &TempDir, source: &str, options: &[&str]) -> PathBuf {
    let (code, built) = (folder.path().join("a.c"), folder.path().join("a"));
    fs::write(&code, source).expect("there is room");
    let mut cc = Command::new("cc");
    let cc = cc.args(["-O1", "-o"]).arg(&built).arg(&code).args(options);
    assert!(cc.status().expect("a C compiler").success());
    built
}

/// Runs a program under darc: how that ended, and what the results warn of.
fn run(engine: &str, folder: &TempDir, path: &Path) -> (Finished, Vec<String>) {
    let output = folder.path().join("out.json");
    let mut command = darc(&["run", "--engine", engine, "--format", "json", "-o"]);
    let finished = execute(command.arg(&output).arg("--").arg(path));
    let results = fs::read(&output).unwrap_or_default();
    let results: Value = serde_json::from_slice(&results).unwrap_or_default();
    let warnings = results["warnings"].as_array().into_iter().flatten();
    let warnings = warnings.filter_map(|warning| Some(warning.as_str()?.to_owned()));
    (finished, warnings.collect())
}

fn mentions(warnings: &[String], words: &str) -> bool {
    warnings.iter().any(|warning| warning.contains(words))
}

#[test]
fn a_program_that_makes_no_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = compiled(&folder, "int main(void) { return 7; }", &[]);
    for &engine in engines() {
        let (finished, warnings) = run(engine, &folder, &path);
        assert_eq!(finished.code(), 7, "{engine}: {finished:#?}");
        if engine == "jump" {
            assert!(mentions(&warnings, "cannot be divided"), "{warnings:?}");
            assert!(
                finished.stderr.contains("cannot be divided"),
                "{finished:#?}"
            );
        }
    }
}

/// One that ends at once, and one that runs for longer than darc waits for a C library.
#[test]
fn a_program_without_a_c_library() {
    for calls in [0, 50_000] {
        let folder = tempfile::tempdir().expect("a folder");
        let source = format!(
            "static long call(long number, long argument) {{
                long result;
                __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number), \"D\"(argument)
                                 : \"rcx\", \"r11\", \"memory\");
                return result;
            }}
            void _start(void) {{
                for (int i = 0; i < {calls}; i++) call(39, 0);
                call(231, 77);
            }}"
        );
        let path = compiled(&folder, &source, &["-static", "-nostdlib"]);
        let (finished, warnings) = run("jump", &folder, &path);
        assert_eq!(finished.code(), 77, "{finished:#?}");
        assert!(mentions(&warnings, "no thread pointer"), "{warnings:?}");
        assert!(mentions(&warnings, "--engine int3"), "{warnings:?}");
    }
}

/// The results cannot be written: the program is none the worse for it.
#[test]
fn a_program_whose_results_are_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = compiled(&folder, "int main(void) { return 5; }", &[]);
    for command in [vec!["run"], vec!["profile", "main"], vec!["sample"]] {
        let mut command = darc(&command);
        let finished = execute(command.args(["-o", "/dev/full", "--"]).arg(&path));
        assert_eq!(finished.code(), 5, "{finished:#?}");
        assert!(finished.stderr.contains("/dev/full"), "{finished:#?}");
    }
}

/// Killed while darc is at whatever it is at: that is no failure of darc.
#[test]
fn a_program_that_ends_between_two_steps() {
    let path = program("two_peaks", Opt::O2);
    for moment in 0..8 {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = darc(&["run", "-o"]);
        command.arg(folder.path().join("out.txt")).arg("--");
        command.arg(&path).arg("wait").stdin(Stdio::piped());
        let running = Running::start(&mut command);
        let darc = running.pid();
        let children = format!("/proc/{darc}/task/{darc}/children");
        let mut target = 0;
        wait_until("the program", || {
            let pids = fs::read_to_string(&children).unwrap_or_default();
            // Of those that darc starts, the one that has begun to load its libraries.
            let is_it = |pid: &&str| {
                let exe = fs::read_link(format!("/proc/{pid}/exe"));
                let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
                let is_named = |exe: PathBuf| exe.ends_with(path.file_name().expect("a name"));
                exe.is_ok_and(is_named) && maps.contains("libc.so")
            };
            let found = pids.split_whitespace().find(is_it);
            target = found.map_or(0, |pid| pid.parse().expect("a number"));
            target != 0
        });
        std::thread::sleep(std::time::Duration::from_millis(moment * 15));
        running.signal(Signal::SIGSTOP);
        kill(Pid::from_raw(target), Signal::SIGKILL).expect("it is not reaped");
        running.signal(Signal::SIGCONT);
        let finished = running.finish();
        assert_eq!(finished.code(), 128 + 9, "{moment}: {finished:#?}");
    }
}
