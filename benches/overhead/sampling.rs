//! What `darc sample` costs the program: its CPU time for the same work, sampled and not, in turns.
//!
//! One process works, one darc for each rate is attached to it, and their events are switched on and off some times
//! a second in random order. A phase counts with the median of the CPU times of its pieces of work, and is divided by
//! that of a phase without samples close to it. A second phase without samples is treated in the same way:
//! what it differs by is noise. Two others take turns with them: the interrupts of the kernel's samples without any sample, and,
//! where it is installed, `perf record`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::darc::command;
use crate::events::Events;
use crate::quantile::{Interval, quantile};
use crate::units::{self, Units};

const RATES: [u32; 3] = [99, 999, 4999];
/// The rate of `perf record`, and of the timer alone.
const RATE_OF_OTHERS: u32 = 999;
/// How many phases of each kind there are for each program.
const PAIRS: usize = 75;
/// How long a phase is at least, and at most.
const PHASE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// A phase goes on until so many pieces of work are whole.
const ENOUGH: usize = 5;
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// Until a darc has opened its events, and a program begun.
const PATIENCE: Duration = Duration::from_secs(10);

/// What samples when it is told to.
struct Sampler {
    /// None when the events are our own.
    child: Option<Child>,
    events: Events,
}

impl Sampler {
    /// `darc sample`.
    fn darc(pid: u32, rate: u32, folder: &Path) -> Sampler {
        let mut command = command(&["sample", "--format", "json", "-o"]);
        command
            .arg(folder.join(format!("samples-{rate}.json")))
            .args(["--rate", &rate.to_string(), "-p", &pid.to_string()]);
        // A ring for each CPU, then an event for each.
        Sampler::start(command, 2)
    }

    /// `perf record` with the same clock and the same callers; nothing where it is not installed.
    fn perf(pid: u32, folder: &Path) -> Option<Sampler> {
        let mut version = Command::new("perf");
        version.arg("--version").stdout(Stdio::null());
        version
            .status()
            .ok()
            .filter(std::process::ExitStatus::success)?;
        let mut command = Command::new("perf");
        command
            .args([
                "record",
                "-q",
                "-e",
                "cpu-clock",
                "--call-graph",
                "fp",
                "-F",
            ])
            .arg(RATE_OF_OTHERS.to_string())
            .args(["-p", &pid.to_string(), "-o"])
            .arg(folder.join("perf.data"));
        Some(Sampler::start(command, 1))
    }

    /// Starts it, and waits until it has so many events for each CPU.
    fn start(mut command: Command, events_a_cpu: usize) -> Sampler {
        let child = command.stdin(Stdio::null()).spawn().expect("it starts");
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let events = until(|| {
            let events = Events::of(child.id()).ok()?;
            (events.count() >= events_a_cpu * cpus).then_some(events)
        });
        // They are told to record when all are open.
        thread::sleep(10 * LOOK);
        events.record(false);
        Sampler {
            child: Some(child),
            events,
        }
    }

    /// Nothing but the interrupts that samples are taken in.
    fn timer_alone(pid: u32) -> Sampler {
        let events = Events::timer_alone(pid, RATE_OF_OTHERS);
        Sampler {
            child: None,
            events: events.expect("as darc may"),
        }
    }

    fn end(self) {
        let Some(mut child) = self.child else {
            return;
        };
        let pid = i32::try_from(child.id()).expect("a process id");
        kill(Pid::from_raw(pid), Signal::SIGINT).expect("it runs");
        // perf ends by the signal itself.
        let status = child.wait().expect("a child");
        assert!(status.success() || status.signal() == Some(Signal::SIGINT as i32));
    }
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        thread::sleep(10 * LOOK);
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "it does not begin");
    }
}

/// What is on in a phase: nothing, nothing once more, or the sampler of this number.
#[derive(Clone, Copy)]
enum Phase {
    Without,
    Control,
    Sampled(usize),
}

/// Prints what was measured.
pub fn run(folder: &Path) {
    println!(
        "\nSampling: CPU time of the program in % more than without, {PAIRS} pairs of phases: median (95 % confidence)\n"
    );
    println!(
        "| | without, once more | 99 Hz | 999 Hz | 4999 Hz | timer alone at {RATE_OF_OTHERS} Hz | `perf record` at the same |"
    );
    println!("|---|---|---|---|---|---|---|");
    for name in ["loop", "call", "btree"] {
        let columns = measured(name, folder).map(|more| {
            Interval::of_median(&more).map_or("–".to_owned(), |interval| interval.text(2))
        });
        println!("| {name} | {} |", columns.join(" | "));
    }
}

/// By how much the phases of each kind but the first are slower than their neighbours without samples, in percent.
fn measured(name: &str, folder: &Path) -> [Vec<f64>; 3 + RATES.len()] {
    let work = Units::start(name);
    until(|| work.has_begun().then_some(()));
    let mut samplers = Vec::from(RATES.map(|rate| Sampler::darc(work.pid(), rate, folder)));
    samplers.push(Sampler::timer_alone(work.pid()));
    samplers.extend(Sampler::perf(work.pid(), folder));
    let mut more: [Vec<f64>; 3 + RATES.len()] = Default::default();
    let mut order = Order(0x9e37_79b9_7f4a_7c15);
    for _ in 0..PAIRS {
        let mut phases = vec![Phase::Without, Phase::Control];
        phases.extend((0..samplers.len()).map(Phase::Sampled));
        order.shuffle(&mut phases);
        let periods = phases.iter().map(|&phase| {
            let sampler = match phase {
                Phase::Sampled(number) => Some(&samplers[number]),
                Phase::Without | Phase::Control => None,
            };
            if let Some(sampler) = sampler {
                sampler.events.record(true);
            }
            let period = phase_of(&work);
            if let Some(sampler) = sampler {
                sampler.events.record(false);
            }
            period
        });
        let took = periods.map(|period| {
            let pieces = work.within(period);
            let enough = pieces.len() >= ENOUGH;
            enough.then(|| quantile(pieces, 0.5)).flatten()
        });
        let took: Vec<Option<f64>> = took.collect();
        let without = phases
            .iter()
            .position(|phase| matches!(phase, Phase::Without));
        let Some(without) = without.and_then(|at| took[at]) else {
            continue;
        };
        for (phase, took) in phases.into_iter().zip(took) {
            let column = match phase {
                Phase::Without => continue,
                Phase::Control => 0,
                Phase::Sampled(number) => 1 + number,
            };
            more[column].extend(took.map(|took| (took / without - 1.0) * 100.0));
        }
    }
    samplers.into_iter().for_each(Sampler::end);
    more
}

/// Waits for a phase; when it was.
fn phase_of(work: &Units) -> (u64, u64) {
    let (since, began) = (Instant::now(), units::now());
    loop {
        thread::sleep(LOOK);
        let period = (began, units::now());
        let passed = since.elapsed();
        let enough = passed >= PHASE[0] && work.within(period).len() >= ENOUGH;
        if enough || passed >= PHASE[1] {
            return period;
        }
    }
}

/// Random numbers (Marsaglia's xorshift).
struct Order(u64);

impl Order {
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            items.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
    }
}
