//! Times inside an op in which the thread did not do its work: preempted, interrupted, or blocked (DARC, SIGMETRICS
//! 2008, section 3.6). Pure.
//!
//! Preemption and interrupts strike wherever the thread happens to be. Their time is taken out of the
//! latency of every fnode that was current then, and competes at each fnode that is investigated, as the sum of all
//! that struck there or below: first as a callee of f0, and, when the descent goes on in a callee all the same, there
//! once more with what struck in it. What is a cause of the peak further up does not compete again below.
//! Page faults strike where memory is touched: each is a callee of the one function that did.
//! Where the thread *waited*, the function that waited is the cause, and keeps the time; what is added
//! is how long it was blocked, how long it could have run and did not, and who woke it.

pub(crate) mod apart;
mod faults;

use std::collections::BTreeMap;

use darc_record::{Ticks, Tsc};

use crate::descent::ftree::{Absence, Callee};

/// A thread that ran instead or woke another, as the session numbers them; opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OtherId(pub u32);

/// Why a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Away {
    /// It could have gone on, but another one ran.
    Preempted {
        /// Who, where that is known.
        by: Option<OtherId>,
    },
    /// It waited.
    Blocked {
        /// From when on it could have run again, where that is known.
        woken: Option<Tsc>,
        /// Who woke it, where that is known.
        by: Option<OtherId>,
    },
    /// Its CPU served an interrupt, or it ran the handler of a signal.
    Interrupted(Absence),
}

/// A time in which a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// When it stopped.
    pub from: Tsc,
    /// When it went on.
    pub to: Tsc,
    /// Why.
    pub why: Away,
}

impl Interval {
    pub(crate) fn len(&self) -> Ticks {
        self.to - self.from
    }

    /// Of a wait: until it was over, and from then on.
    pub(crate) fn halves(&self) -> (Ticks, Ticks) {
        let woken = match self.why {
            Away::Blocked { woken, .. } => woken.unwrap_or(self.to),
            _ => self.to,
        };
        let woken = woken.max(self.from).min(self.to);
        (woken - self.from, self.to - woken)
    }
}

/// How an fnode's ops of one peak waited.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Waits {
    /// How often it waited, or was struck.
    pub count: u64,
    /// Waiting for something.
    pub blocked: Ticks,
    /// Woken, but not running yet.
    pub runnable: Ticks,
    /// Preempted or interrupted.
    pub preempted: Ticks,
    /// Who ran instead (for an absence) or woke the thread: how often, and the time of it.
    pub others: BTreeMap<OtherId, (u64, Ticks)>,
}

impl Waits {
    pub(crate) fn met(&mut self, other: Option<OtherId>, time: Ticks) {
        if let Some(other) = other {
            let (count, sum) = self.others.entry(other).or_default();
            *count += 1;
            *sum = *sum + time;
        }
    }
}

/// Where the threads of all ops of one peak were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OffCpu {
    /// The ops that the kernel's records were there for.
    pub ops: u64,
    /// Their latencies together.
    pub time: Ticks,
    /// The part of it in which they waited for something,
    pub blocked: Ticks,
    /// in which they could have gone on after that, but did not run,
    pub runnable: Ticks,
    /// in which another thread ran instead,
    pub preempted: Ticks,
    /// in which their CPU served interrupts, or did their deferred work,
    pub interrupted: Ticks,
    /// in which pages were brought in,
    pub faulting: Ticks,
    /// and in which they ran the handlers of signals.
    pub handling: Ticks,
}

impl OffCpu {
    pub(crate) fn add(&mut self, interval: &Interval) {
        let len = interval.len();
        let part = match interval.why {
            Away::Preempted { .. } => &mut self.preempted,
            Away::Interrupted(Absence::PageFault) => &mut self.faulting,
            Away::Interrupted(Absence::Signal(_)) => &mut self.handling,
            Away::Interrupted(_) => &mut self.interrupted,
            Away::Blocked { .. } => {
                let (blocked, runnable) = interval.halves();
                self.runnable = self.runnable + runnable;
                self.blocked = self.blocked + blocked;
                return;
            }
        };
        *part = *part + len;
    }
}

/// Whether an fnode stands for time away.
#[must_use]
pub fn is_absence(callee: Callee) -> bool {
    matches!(callee, Callee::Absence(_))
}
