//! When each thread ran into the breakpoint that it is stopped at.

use std::collections::HashMap;

use crate::record::{Ticks, Tsc};

use super::cpu_time::{CpuTime, Reading, TickRate};
use super::delivery::{Accuracy, Delivery, Noticed, Stretch};

/// Of at most so many threads the scheduler's account is kept open: each is a descriptor.
const ACCOUNTS: usize = 256;

/// What is known of one thread.
#[derive(Debug)]
struct Watched {
    account: Option<CpuTime>,
    last: Option<Reading>,
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

    /// When a stopped thread trapped. `departed` is when it went on after its last stop, `stamp` what it read
    /// of the clock itself, if it did.
    pub fn trapped(
        &mut self,
        tid: i32,
        noticed: Noticed,
        departed: Option<Tsc>,
        stamp: Option<Tsc>,
    ) -> Tsc {
        let on_processor = self.on_processor(tid);
        let stretch = departed.map(|departed| Stretch {
            departed,
            on_processor,
        });
        let watched = self.threads.get_mut(&tid);
        let Some(watched) = watched else {
            return stamp.unwrap_or(noticed.at);
        };
        let estimated = watched.delivery.trapped(noticed, stretch);
        // A clock that does not run forward is none.
        let stamp = stamp.filter(|&stamp| stamp <= noticed.at && Some(stamp) >= departed);
        let Some(stamp) = stamp else {
            return estimated;
        };
        watched.delivery.observe(stamp, noticed, stretch);
        if stretch.is_some() {
            self.accuracy.observe(estimated, stamp);
        }
        stamp
    }

    /// A stop at which nothing was measured before; what follows will be.
    pub fn begin(&mut self, tid: i32) {
        let _ = self.on_processor(tid);
    }

    fn on_processor(&mut self, tid: i32) -> Option<Ticks> {
        let watched = self.threads.entry(tid).or_insert_with(|| {
            let account = (self.accounts < ACCOUNTS)
                .then(|| CpuTime::open(self.pid, tid))
                .flatten();
            self.accounts += usize::from(account.is_some());
            Watched {
                account,
                last: None,
                delivery: self.at_first.clone(),
            }
        });
        let now = watched.account.as_ref().and_then(CpuTime::read);
        let last = std::mem::replace(&mut watched.last, now);
        let nanos = now?.since(last?)?;
        Some(self.rate.ticks(nanos))
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
