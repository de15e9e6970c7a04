//! The program that is measured: it times itself, and prints a line for each of its slices.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use darc_testprogs::{Opt, program};

use crate::quantile::quantile;

/// The quantile of a phase's slices that is taken for what the code costs.
const LOW: f64 = 0.1;

/// One of the three copies of the op.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// Never measured.
    Bare,
    /// What tools attach to.
    Probed,
    /// Measures itself.
    Floor,
}

/// By which clock a slice is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// CPU time of the target's threads: what in-process and in-kernel probes cost.
    Cpu,
    /// Wall-clock time: a target that is stopped for each probe uses no CPU time meanwhile.
    Wall,
}

#[derive(Clone, Copy)]
struct Slice {
    copy: Copy,
    cpu: f64,
    wall: f64,
}

/// A running target.
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    slices: Arc<Mutex<Vec<Slice>>>,
}

/// The slices of some time.
pub struct Phase(Vec<Slice>);

impl Target {
    /// Starts a program of the benches.
    pub fn start(name: &str, arguments: &[&str]) -> Target {
        let mut child = Command::new(program(name, Opt::O2))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the target starts");
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let slices = Arc::<Mutex<Vec<Slice>>>::default();
        let all = Arc::clone(&slices);
        thread::spawn(move || {
            for slice in lines.map_while(Result::ok).filter_map(|line| parse(&line)) {
                lock(&all).push(slice);
            }
        });
        Target {
            child,
            stdin,
            slices,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The slices of the next `time`.
    pub fn phase(&self, time: Duration) -> Phase {
        // The slice that is running began before the phase.
        let first = lock(&self.slices).len() + 1;
        thread::sleep(time);
        Phase(lock(&self.slices).get(first..).unwrap_or_default().to_vec())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("the target ends");
        assert!(status.success(), "the target ended with {status}");
    }
}

impl Phase {
    /// A low quantile of the nanoseconds per op of one copy.
    pub fn op_ns(&self, copy: Copy, clock: Clock) -> Option<f64> {
        let of_copy = self.0.iter().filter(|slice| slice.copy == copy);
        let values = of_copy.map(|slice| match clock {
            Clock::Cpu => slice.cpu,
            Clock::Wall => slice.wall,
        });
        quantile(values.collect(), LOW)
    }
}

fn lock(slices: &Mutex<Vec<Slice>>) -> MutexGuard<'_, Vec<Slice>> {
    slices.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse(line: &str) -> Option<Slice> {
    let mut words = line.split(' ');
    let copy = match words.next()? {
        "bare" => Copy::Bare,
        "probed" => Copy::Probed,
        "floor" => Copy::Floor,
        _ => return None,
    };
    Some(Slice {
        copy,
        cpu: words.next()?.parse().ok()?,
        wall: words.next()?.parse().ok()?,
    })
}
