//! Which tests run at the same time, and how long each of them took.
//!
//! A test whose verdict depends on latencies is [`the_one_that_measures`]: what it starts comes before all else on the machine,
//! where the kernel allows that. Everything else runs beside it, one test more than there are processors at once, for they wait much. Nobody
//! has to ask: each process that a test starts holds the test's turn ([`of_this_test`]), and
//! [`measured`](super::measured) takes the turn of the one that measures.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigHandler, Signal, signal};

use super::{listening, verdict};

/// Who has a turn now.
struct Turns {
    somebody_measures: bool,
    side_by_side: usize,
    /// How long each test had a turn, and how long it was the one that measures.
    times: Option<HashMap<String, Times>>,
}

#[derive(Clone, Copy, Default)]
struct Times {
    all: Duration,
    measuring: Duration,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns {
    somebody_measures: false,
    side_by_side: 0,
    times: None,
});
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The turn of the test that runs on this thread.
    static MINE: RefCell<Weak<Turn>> = const { RefCell::new(Weak::new()) };
}

/// A turn; it lasts until it is dropped.
pub struct Turn {
    measures: bool,
    /// Whether the test had a turn side by side with others before, which goes on afterwards.
    was_side_by_side: bool,
    test: String,
    since: Instant,
    /// Held by one measurement on this machine.
    _machine: Option<Flock<File>>,
}

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_while(
    turns: MutexGuard<'static, Turns>,
    busy: impl Fn(&Turns) -> bool,
) -> MutexGuard<'static, Turns> {
    let waited = CHANGED.wait_while(turns, |turns| busy(turns));
    waited.unwrap_or_else(PoisonError::into_inner)
}

/// The turn of the test that runs on this thread: the one that it has, or else one side by side with others.
pub fn of_this_test() -> Arc<Turn> {
    if let Some(mine) = MINE.with_borrow(Weak::upgrade) {
        return mine;
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut turns = wait_while(turns(), |turns| {
        turns.side_by_side + usize::from(turns.somebody_measures) > processors
    });
    turns.side_by_side += 1;
    drop(turns);
    Turn::begin(false, None, false)
}

/// A turn in which no other test measures, also of other runs of the tests on this machine, and in which the processes that
/// the test starts come before whatever else the machine does, where the kernel allows that.
pub fn the_one_that_measures() -> Arc<Turn> {
    let mine = MINE.with_borrow(Weak::upgrade);
    let had_one = mine.is_some();
    assert!(
        mine.is_none_or(|mine| !mine.measures),
        "one after the other"
    );
    let mut turns = turns();
    if had_one {
        turns.side_by_side -= 1;
        CHANGED.notify_all();
    }
    let mut turns = wait_while(turns, |turns| turns.somebody_measures);
    turns.somebody_measures = true;
    drop(turns);
    let machine = File::create(std::env::temp_dir().join("darc-measurement.lock")).ok();
    let machine = machine.and_then(|file| Flock::lock(file, FlockArg::LockExclusive).ok());
    schedule(libc::SCHED_RR, TARGETS);
    Turn::begin(true, machine, had_one)
}

/// The real-time priority of what is measured.
const TARGETS: i32 = 1;
/// ... and of darc: threads of the same priority would let it wait for a tenth of a second whenever it wakes up.
const DARC: i32 = TARGETS + 1;

/// Starts darc, before the targets where this test is the one that measures.
pub fn before_targets<T>(turn: &Turn, start: impl FnOnce() -> T) -> T {
    if !turn.measures {
        return start();
    }
    schedule(libc::SCHED_RR, DARC);
    let started = start();
    schedule(libc::SCHED_RR, TARGETS);
    started
}

impl Turn {
    fn begin(measures: bool, machine: Option<Flock<File>>, was_side_by_side: bool) -> Arc<Turn> {
        static PROCESS: Once = Once::new();
        PROCESS.call_once(|| {
            heed_interrupts();
            at_exit();
            listening::begin();
        });
        let turn = Arc::new(Turn {
            measures,
            was_side_by_side,
            test: this_test(),
            since: Instant::now(),
            _machine: machine,
        });
        if !was_side_by_side {
            MINE.set(Arc::downgrade(&turn));
        }
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.measures {
            schedule(libc::SCHED_OTHER, 0);
        }
        let mut turns = turns();
        match self.measures {
            true => turns.somebody_measures = false,
            false => turns.side_by_side -= 1,
        }
        turns.side_by_side += usize::from(self.was_side_by_side);
        let took = self.since.elapsed();
        let times = turns.times.get_or_insert_default();
        let mine = times.entry(self.test.clone()).or_default();
        if !self.was_side_by_side {
            mine.all += took;
        }
        if self.measures {
            mine.measuring += took;
        }
        CHANGED.notify_all();
    }
}

/// The name of the test that runs on this thread.
pub fn this_test() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

/// Has the kernel schedule this thread, and the processes that it starts from now on, under this policy (`sched(7)`). Only
/// root may choose one that comes first; without, other work on the machine disturbs what is measured.
#[allow(unsafe_code)]
fn schedule(policy: i32, priority: i32) {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads the parameters, and no thread but this one is meant.
    unsafe { libc::sched_setscheduler(0, policy, &parameters) };
}

/// Processes inherit which signals are ignored: SIGINT and SIGQUIT from a shell that runs the tests in the background, SIGHUP
/// from nohup(1). darc and its targets would rightly go on ignoring them, and the tests that send them would wait in vain.
#[allow(unsafe_code)]
fn heed_interrupts() {
    let ending = [
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGHUP,
        Signal::SIGTERM,
    ];
    for number in ending {
        // SAFETY: no handler is installed.
        unsafe { signal(number, SigHandler::SigDfl) }.expect("it has a default");
    }
}

/// Has the summary printed when all tests have run.
#[allow(unsafe_code)]
fn at_exit() {
    extern "C" fn summary() {
        eprintln!("{}{}", verdict::summary(), slowest());
    }
    // SAFETY: the function takes nothing, touches nothing that is gone at exit, and does not unwind.
    unsafe { libc::atexit(summary) };
}

/// The tests that had a turn for longest.
fn slowest() -> String {
    const MOST: usize = 12;
    let turns = turns();
    let mut times: Vec<_> = turns.times.iter().flatten().collect();
    times.sort_by_key(|(_, times)| std::cmp::Reverse(times.all));
    let sum = |part: fn(&Times) -> Duration| -> f64 {
        let parts = times.iter().map(|(_, times)| part(times));
        parts.sum::<Duration>().as_secs_f64()
    };
    let (all, measuring) = (sum(|times| times.all), sum(|times| times.measuring));
    let mut lines = format!(
        "slowest of {} tests, {all:.0} s together, in {measuring:.0} s of which one measured:",
        times.len()
    );
    for (test, times) in times.iter().take(MOST) {
        let (all, measuring) = (times.all.as_secs_f64(), times.measuring.as_secs_f64());
        lines += &format!("\n{all:7.1} s ({measuring:5.1} s)  {test}");
    }
    lines
}
