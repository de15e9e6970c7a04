//! For how long a program stands still when `darc watch` inserts and removes probes, as a person would on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use serde_json::Value;

use crate::darc::command;
use crate::quantile::quantile;
use crate::target::Target;

/// So often a function is added and dropped again.
const CHANGES: usize = 60;
/// Between two keys.
const MOMENT: Duration = Duration::from_millis(60);

/// Prints what was measured.
pub fn run(folder: &Path) {
    println!("\nChanges of probes by darc watch: {CHANGES} times a function added and dropped\n");
    println!("| target | stops | p50 | p90 | p99 | longest | below 1 ms |");
    println!("|---|---|---|---|---|---|---|");
    for threads in ["1", "4"] {
        let target = Target::start("bench_calls", &["deep", threads]);
        thread::sleep(MOMENT * 5);
        let record = folder.join("record.jsonl");
        let pauses = match watched(target.pid(), &record) {
            Ok(pauses) => pauses,
            Err(error) => {
                eprintln!("{threads} threads: {error}");
                continue;
            }
        };
        let at = |q| quantile(pauses.clone(), q).unwrap_or(0.0);
        let short = pauses.iter().filter(|&&pause| pause < 1000.0).count();
        println!(
            "| {threads} threads that always run | {} | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} % |",
            pauses.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0),
            100.0 * short as f64 / pauses.len().max(1) as f64,
        );
    }
}

/// Watches, adds and drops; the pauses in microseconds.
fn watched(pid: u32, record: &Path) -> std::io::Result<Vec<f64>> {
    let size = Winsize {
        ws_row: 40,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None)?;
    let mut keys = File::from(pty.master);
    let mut screen = keys.try_clone()?;
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while matches!(screen.read(&mut bytes), Ok(1..)) {}
    });
    let mut darc: Command = command(&["watch", "-p", &pid.to_string(), "probed_deep"]);
    darc.arg("--record").arg(record).env("TERM", "xterm");
    let copy = || pty.slave.try_clone();
    darc.stdin(copy()?)
        .stdout(copy()?)
        .stderr(Stdio::from(copy()?));
    let mut child: Child = darc.spawn()?;
    thread::sleep(MOMENT * 10);
    for _ in 0..CHANGES {
        for key in ["a", "probed_level3", "\r", "j", "d"] {
            keys.write_all(key.as_bytes())?;
            thread::sleep(MOMENT);
        }
    }
    // The last ones are in the next sample.
    thread::sleep(Duration::from_millis(1500));
    keys.write_all(b"q")?;
    child.wait()?;
    let text = std::fs::read_to_string(record)?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    Ok(lines
        .map_while(Result::ok)
        .flat_map(|line| {
            let pauses = line["pauses_us"].as_array().cloned().unwrap_or_default();
            pauses.into_iter().filter_map(|pause| pause.as_f64())
        })
        .collect())
}
