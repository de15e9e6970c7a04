//! `darc demo`: the analysis of a small program whose causes of latency are known.
//!
//! The program is darc itself, started with a hidden subcommand, so that there is nothing to install.
//! Its ground truth: `answer` is f0 and has two peaks. Most ops are short, and their cause is
//! `answer` → `look_up`. Every 8th op is about ten times longer, and its cause is
//! `answer` → `refresh` → `write_log` → … → the system call `clock_nanosleep`.

use std::ffi::OsString;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use darc_symbols::Image;
use darc_tracer::addr::TargetAddr;

use crate::command::run;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{DemoOptions, RunOptions};
use darc_process::modules::Modules;

/// How many ops the program performs: enough for every decision, and over in seconds.
const OPS: u64 = 6_000;

/// How large the table is: looking something up takes some tenths of a millisecond.
const ENTRIES: u64 = if cfg!(debug_assertions) {
    40_000
} else {
    400_000
};

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
        f0: f0()?,
        common: options.common,
    })
}

/// The function that is analysed, by its place in this program's file: the file may have no symbols.
fn f0() -> Result<String, Failure> {
    let own = i32::try_from(std::process::id()).class(FailureKind::Other)?;
    let mut modules = Modules::default();
    modules.refresh(own).class(FailureKind::Other)?;
    let addr = answer as fn(&mut [u64], u64) -> u64 as usize as u64;
    let place = modules.place(TargetAddr(addr));
    let image = place.and_then(|place| modules.get(place.module).image.as_ref());
    match (place, image.map(Image::module)) {
        (Some(place), Some(module)) => Ok(format!("{module}+{}", place.addr)),
        _ => Err(Failure::message(
            FailureKind::Other,
            "darc cannot read its own program file; install it again",
        )),
    }
}

/// The demo program itself.
#[must_use]
pub fn target() -> ExitStatus {
    let mut table: Vec<u64> = (0..ENTRIES).collect();
    for request in 0..OPS {
        black_box(answer(&mut table, black_box(request)));
    }
    ExitStatus::Done
}

/// Answers one request.
#[inline(never)]
fn answer(table: &mut [u64], request: u64) -> u64 {
    if request % 8 == 7 {
        refresh(table, request);
    }
    look_up(table, request)
}

/// Finds the request's entry the slow way: it reads the whole table.
#[inline(never)]
fn look_up(table: &[u64], request: u64) -> u64 {
    // A plain loop: in a build without optimisation an iterator's every step is a call of its own.
    let mut best = 0;
    let mut at = 0;
    while at < table.len() {
        if table[at] <= request && table[at] > best {
            best = table[at];
        }
        at += 1;
    }
    best
}

/// Changes the table a little and writes that down.
#[inline(never)]
fn refresh(table: &mut [u64], request: u64) {
    let mut at = 0;
    while at < table.len() {
        table[at] ^= request;
        at += 64;
    }
    write_log();
}

/// Waits, as for a disk.
#[inline(never)]
fn write_log() {
    std::thread::sleep(Duration::from_millis(2));
}
