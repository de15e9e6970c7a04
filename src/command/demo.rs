//! `darc demo`: the analysis of a small program whose causes of latency are known.
//!
//! The program is darc itself, started with a hidden subcommand, so that there is nothing to install.
//! Its ground truth: `answer` is f0 and has two peaks. Most ops are short, and their cause is
//! `answer` → `look_up`. Every 16th op is about a thousand times longer, and its cause is
//! `answer` → `refresh` → `write_log` → the system call `clock_nanosleep`.

use std::ffi::OsString;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::command::run;
use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::{DemoOptions, RunOptions};

/// The function that is analysed.
const F0: &str = "darc::command::demo::answer";

/// How many ops the program performs: enough for every decision, and over in seconds.
const OPS: u64 = 20_000;

/// Analyses the demo program.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: DemoOptions) -> Result<ExitStatus, Failure> {
    let darc = std::env::current_exe().map_err(|error| Failure::new(FailureKind::Other, error))?;
    let command = vec![OsString::from(darc), OsString::from("demo-target")];
    run::execute(RunOptions {
        command,
        repeat: NonZeroU32::MIN,
        f0: F0.to_owned(),
        common: options.common,
    })
}

/// The demo program itself.
#[must_use]
pub fn target() -> ExitStatus {
    let mut table: Vec<u64> = (0..1024).collect();
    for request in 0..OPS {
        black_box(answer(&mut table, black_box(request)));
    }
    ExitStatus::Done
}

/// Answers one request.
#[inline(never)]
fn answer(table: &mut [u64], request: u64) -> u64 {
    if request % 16 == 15 {
        refresh(table, request);
    }
    look_up(table, request)
}

/// Finds the request's entry the slow way: some microseconds of reading.
#[inline(never)]
fn look_up(table: &[u64], request: u64) -> u64 {
    table
        .iter()
        .filter(|&&entry| black_box(entry) <= request)
        .max()
        .copied()
        .unwrap_or(0)
}

/// Changes the table a little and writes that down.
#[inline(never)]
fn refresh(table: &mut [u64], request: u64) {
    for entry in table.iter_mut().step_by(64) {
        *entry = black_box(*entry ^ request);
    }
    write_log();
}

/// Waits, as for a disk.
#[inline(never)]
fn write_log() {
    std::thread::sleep(Duration::from_millis(2));
}
