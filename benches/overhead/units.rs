//! A program that does the same piece of work over and over, and tells what each piece took.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use darc_testprogs::{Opt, program};
use nix::time::{ClockId, clock_gettime};

/// One piece of work; times in nanoseconds of [`now`].
#[derive(Clone, Copy)]
struct Unit {
    began: u64,
    ended: u64,
    cpu: f64,
}

/// A running program.
pub struct Units {
    child: Child,
    stdin: Option<ChildStdin>,
    done: Arc<Mutex<Vec<Unit>>>,
}

/// The program's clock (`CLOCK_MONOTONIC`), in nanoseconds.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has it");
    now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs()
}

impl Units {
    /// Starts a program that knows the mode `timed`.
    pub fn start(name: &str) -> Units {
        let mut child = Command::new(program(name, Opt::O2))
            .arg("timed")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let done = Arc::<Mutex<Vec<Unit>>>::default();
        let all = Arc::clone(&done);
        thread::spawn(move || {
            for unit in lines.map_while(Result::ok).filter_map(|line| parse(&line)) {
                lock(&all).push(unit);
            }
        });
        Units { child, stdin, done }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The CPU times, in nanoseconds, of all pieces that began and ended in a period.
    pub fn within(&self, period: (u64, u64)) -> Vec<f64> {
        lock(&self.done)
            .iter()
            .filter(|unit| period.0 <= unit.began && unit.ended <= period.1)
            .map(|unit| unit.cpu)
            .collect()
    }

    /// Whether it has begun with what is measured.
    pub fn has_begun(&self) -> bool {
        !lock(&self.done).is_empty()
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("the program ends");
        assert!(status.success(), "the program ended with {status}");
    }
}

fn lock(units: &Mutex<Vec<Unit>>) -> MutexGuard<'_, Vec<Unit>> {
    units.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse(line: &str) -> Option<Unit> {
    let mut words = line.strip_prefix("unit ")?.split(' ');
    Some(Unit {
        began: words.next()?.parse().ok()?,
        ended: words.next()?.parse().ok()?,
        cpu: words.next()?.parse().ok()?,
    })
}
