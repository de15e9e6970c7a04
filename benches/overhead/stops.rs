//! For how long busy threads stand still while darc attaches, changes 50 sites and detaches, beside threads that sleep.

use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use darc_testprogs::{Opt, program};
use nix::time::{ClockId, clock_gettime};

use crate::darc::{Done, until_found};
use crate::quantile::quantile;

const ATTACHES: usize = 50;
/// How long all attaches to one target may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many threads the target has when nothing else is asked for.
const THREADS: [usize; 4] = [2, 64, 1000, 4096];
/// Shorter gaps are interrupts, and what is left of waits for a processor. Microseconds.
const SHORTEST: f64 = 100.0;

/// A time in which a busy thread did not run.
struct Gap {
    /// Nanoseconds of CLOCK_MONOTONIC.
    began: u64,
    /// Microseconds without those in which it waited for a processor.
    stood: f64,
    /// Microseconds.
    lasted: f64,
}

/// Prints what was measured.
pub fn run(chosen: &[String], folder: &Path) {
    println!("\nStanding still: up to {ATTACHES} attaches each, 50 call sites, two busy threads\n");
    println!("Stops are longer than {SHORTEST} µs without waits for a processor; times in ms.\n");
    println!(
        "| threads | attaches | stops of a thread | p50 | p99 | longest | longest of an attach, p50 | with waits, p50 | p99 | longest | darc says p50 | longest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let numbers: Vec<usize> = chosen.iter().filter_map(|word| word.parse().ok()).collect();
    let numbers = if numbers.is_empty() {
        &THREADS[..]
    } else {
        &numbers
    };
    for &threads in numbers {
        if let Err(error) = row(threads, folder) {
            eprintln!("{threads} threads: {error}");
        }
    }
}

fn row(threads: usize, folder: &Path) -> io::Result<()> {
    let mut target = start(threads)?;
    let (mut attaches, mut said) = (Vec::new(), Vec::new());
    let since = Instant::now();
    while attaches.len() < ATTACHES && since.elapsed() < PATIENCE {
        let begun = now();
        let arguments = ["-d", "300ms", "--preemption", "counted"];
        let Done { results, .. } =
            until_found(target.id(), "many_sites", "jump", &arguments, folder)?;
        attaches.push(begun..now());
        let pauses = &results["probes"]["pause_us"];
        said.push((pauses["p50"].as_f64(), pauses["max"].as_f64()));
        thread::sleep(Duration::from_millis(50));
    }
    let gaps = end(&mut target)?;
    let of = |attach: &Range<u64>| -> Vec<&Gap> {
        let inside = gaps.iter().filter(|gap| attach.contains(&gap.began));
        inside.filter(|gap| gap.stood > SHORTEST).collect()
    };
    let stops: Vec<&Gap> = attaches.iter().flat_map(of).collect();
    let longest = attaches
        .iter()
        .map(|attach| of(attach).iter().map(|gap| gap.stood).fold(0.0, f64::max));
    let stood: Vec<f64> = stops.iter().map(|gap| gap.stood).collect();
    let lasted: Vec<f64> = stops.iter().map(|gap| gap.lasted).collect();
    let at = |values: &[f64], q| quantile(values.to_vec(), q).unwrap_or(f64::NAN) / 1e3;
    let of_attaches: Vec<f64> = longest.collect();
    let typical: Vec<f64> = said.iter().filter_map(|said| said.0).collect();
    let most: Vec<f64> = said.iter().filter_map(|said| said.1).collect();
    println!(
        "| {threads} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
        attaches.len(),
        stops.len(),
        at(&stood, 0.5),
        at(&stood, 0.99),
        at(&stood, 1.0),
        at(&of_attaches, 0.5),
        at(&lasted, 0.5),
        at(&lasted, 0.99),
        at(&lasted, 1.0),
        at(&typical, 0.5),
        at(&most, 1.0),
    );
    Ok(())
}

/// Starts the target; its other threads sleep when this returns.
fn start(threads: usize) -> io::Result<Child> {
    let mut target = Command::new(program("bench_stops", Opt::O2))
        .arg(threads.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = target.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    // Nothing comes behind that line before standard input is closed.
    BufReader::with_capacity(1, stdout).read_line(&mut String::new())?;
    thread::sleep(Duration::from_millis(200));
    Ok(target)
}

/// Ends the target, and tells when its busy threads did not run.
fn end(target: &mut Child) -> io::Result<Vec<Gap>> {
    drop(target.stdin.take());
    let mut text = String::new();
    let mut stdout = target.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    stdout.read_to_string(&mut text)?;
    let status = target.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("the target ended with {status}")));
    }
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Gap> {
    let numbers = line.strip_prefix("gap ")?.split(' ');
    let numbers: Option<Vec<u64>> = numbers.map(|number| number.parse().ok()).collect();
    let &[_, began, lasted, waited] = numbers?.as_slice() else {
        return None;
    };
    Some(Gap {
        began,
        stood: lasted.saturating_sub(waited) as f64 / 1e3,
        lasted: lasted as f64 / 1e3,
    })
}

/// Nanoseconds of the clock that the target reads.
fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
