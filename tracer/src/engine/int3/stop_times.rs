//! When each thread ran into the breakpoint that it is stopped at.

use std::collections::HashMap;

use darc_record::{Ticks, Tsc};

use super::cpu_time::{CpuTime, Reading, TickRate, Turn};
use super::delivery::{Accuracy, Delivery, Noticed, Stretch};
use super::departure::Departed;

/// Of at most so many threads the scheduler's account is kept open: each is a descriptor.
const ACCOUNTS: usize = 256;

/// What is known of one thread.
#[derive(Debug)]
struct Watched {
    account: Option<CpuTime>,
    last: Option<Reading>,
    /// What it did between its last two stops.
    turn: Option<Turn>,
    delivery: Delivery,
}

/// The times of all threads' stops.
#[derive(Debug)]
pub struct StopTimes {
    pid: i32,
    rate: TickRate,
    threads: HashMap<i32, Watched>,
    accounts: usize,
    /// What is believed of a thread of which nothing is known yet.
    at_first: Delivery,
    accuracy: Accuracy,
}

impl StopTimes {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(pid: i32) -> StopTimes {
        StopTimes {
            pid,
            rate: TickRate::begin(),
            threads: HashMap::new(),
            accounts: 0,
            at_first: Delivery::default(),
            accuracy: Accuracy::default(),
        }
    }

    /// Believes this of threads that are new.
    pub fn begin_with(&mut self, delivery: Delivery) {
        self.at_first = delivery;
    }

    /// What has been learnt from a thread; of another tracer to begin with.
    #[must_use]
    pub fn learnt(&self, tid: i32) -> Option<Delivery> {
        Some(self.threads.get(&tid)?.delivery.clone())
    }

    /// A thread has stopped: when it had gone on after its stop before.
    pub fn stopped(&mut self, tid: i32, departed: Option<Departed>) -> Option<Tsc> {
        let watched = self.threads.entry(tid).or_insert_with(|| {
            let account = (self.accounts < ACCOUNTS)
                .then(|| CpuTime::open(self.pid, tid))
                .flatten();
            self.accounts += usize::from(account.is_some());
            Watched {
                account,
                last: None,
                turn: None,
                delivery: self.at_first.clone(),
            }
        });
        let now = watched.account.as_ref().and_then(CpuTime::read);
        let last = std::mem::replace(&mut watched.last, now);
        watched.turn = now.zip(last).and_then(|(now, last)| now.since(last));
        let waited = watched.turn.map_or(0, |turn| turn.waited);
        Some(match departed? {
            Departed::At(at) => at,
            Departed::After(resumed) => Tsc(resumed.0.saturating_add(self.rate.ticks(waited).0)),
        })
    }

    /// When a thread trapped that has just [`StopTimes::stopped`]. `departed` is what that returned, `stamp`
    /// what the thread read of the clock itself, if it did.
    pub fn trapped(
        &mut self,
        tid: i32,
        noticed: Noticed,
        departed: Option<Tsc>,
        stamp: Option<Tsc>,
    ) -> Tsc {
        let Some(watched) = self.threads.get_mut(&tid) else {
            return stamp.unwrap_or(noticed.at);
        };
        let on_processor = watched.turn.map(|turn| self.rate.ticks(turn.ran));
        let stretch = departed.map(|departed| Stretch {
            departed,
            on_processor,
        });
        let estimated = watched.delivery.trapped(noticed, stretch);
        let Some(stamp) = stamp.filter(|&stamp| stamp <= noticed.at) else {
            return estimated;
        };
        watched.delivery.observe(stamp, noticed, stretch);
        if stretch.is_some() {
            self.accuracy.observe(estimated, stamp);
        }
        stamp
    }

    /// How far off the estimates are: what three of four stay below.
    #[must_use]
    pub fn accuracy(&self) -> Option<Ticks> {
        self.accuracy.usual()
    }

    /// The thread has ended.
    pub fn forget(&mut self, tid: i32) {
        if let Some(watched) = self.threads.remove(&tid) {
            self.accounts -= usize::from(watched.account.is_some());
        }
    }
}
