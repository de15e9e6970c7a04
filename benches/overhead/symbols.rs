//! How long it takes to find a function in one of the largest libraries there are: the compiler's own.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::child::{self, Ended};
use crate::darc;
use crate::latency::SETTLED;
use crate::quantile::quantile;

const RUNS: usize = 5;

/// The exit code of what was done.
const DONE: i32 = 0;
/// The exit code of an analysis without an op: f0 was found, and is never called.
const NO_OPS: i32 = 7;

/// Prints what was measured, or why it could not be.
pub fn run(folder: &Path) {
    let Some(sysroot) = sysroot() else {
        eprintln!("symbols: left out, there is no rustc");
        return;
    };
    let Some(library) = driver(&sysroot.join("lib")) else {
        eprintln!("symbols: left out, the compiler has no driver library");
        return;
    };
    let size = fs::metadata(&library).map_or(0, |data| data.len());
    println!(
        "\nStart on librustc_driver ({} MiB), {RUNS} runs\n",
        size >> 20
    );
    println!(
        "| command | wall clock, least | median | CPU time, least | peak RSS |\n|---|---|---|---|---|"
    );
    let file = library.to_string_lossy();
    row("`darc list FILE NAME`", DONE, || {
        Some(finish(&["list", &file, "main"]))
    });
    row("`darc list FILE`", DONE, || Some(finish(&["list", &file])));
    row("`darc attach --f0 NAME -d 1ms`", NO_OPS, || {
        thread::sleep(SETTLED);
        // It waits for its source on standard input: everything is loaded, nothing happens.
        let mut compiler = Command::new(sysroot.join("bin/rustc"))
            .args(["--emit=metadata", "--crate-type=lib", "-o"])
            .arg(folder.join("empty"))
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .ok()?;
        let pid = compiler.id().to_string();
        while !mapped(&pid, library.file_name()?) {
            std::hint::spin_loop();
        }
        let results = folder.join("symbols.txt");
        let f0 = "rustc_driver_impl::main";
        let ended = finish(&[
            "attach",
            "-p",
            &pid,
            "-d",
            "1ms",
            "--f0",
            f0,
            "-o",
            &results.to_string_lossy(),
        ]);
        drop(compiler.stdin.take());
        let _ = compiler.wait();
        Some(ended)
    });
}

fn row(shown: &str, code: i32, run: impl Fn() -> Option<Ended>) {
    let Some(runs) = (0..RUNS).map(|_| run()).collect::<Option<Vec<Ended>>>() else {
        eprintln!("{shown}: left out, it could not be started");
        return;
    };
    if let Some(failed) = runs.iter().find(|run| run.code != Some(code)) {
        eprintln!(
            "{shown}: left out, exit code {:?} instead of {code}",
            failed.code
        );
        return;
    }
    let seconds: Vec<f64> = runs.iter().map(|run| run.took.as_secs_f64()).collect();
    let at = |q| quantile(seconds.clone(), q).unwrap_or(f64::NAN);
    let memory = runs.iter().map(|run| run.peak_rss >> 20).max().unwrap_or(0);
    let cpu = quantile(runs.iter().map(|run| run.cpu).collect(), 0.0).unwrap_or(f64::NAN);
    println!(
        "| {shown} | {:.2} s | {:.2} s | {cpu:.2} s | {memory} MiB |",
        at(0.0),
        at(0.5)
    );
}

fn finish(arguments: &[&str]) -> Ended {
    let began = Instant::now();
    let child = darc::command(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn();
    child::wait(&child.expect("darc starts"), began).expect("it is a child")
}

fn mapped(pid: &str, library: &OsStr) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains(&*library.to_string_lossy())
}

/// The compiler's own library, if there is one.
pub fn compilers_library() -> Option<PathBuf> {
    driver(&sysroot()?.join("lib"))
}

fn sysroot() -> Option<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .ok()?;
    Some(PathBuf::from(
        String::from_utf8(output.stdout).ok()?.trim_end(),
    ))
}

fn driver(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder)
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path());
    files.into_iter().find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("librustc_driver"))
    })
}
