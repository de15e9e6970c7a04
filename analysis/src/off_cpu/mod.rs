//! Times inside an op in which the thread did not do its work: preempted, interrupted, or blocked (DARC, SIGMETRICS
//! 2008, section 3.6). Pure.
//!
//! Preemption and interrupts strike wherever the thread happens to be. Their time is taken out of the
//! latency of every fnode that was current then, and competes at f0, as the sum of all that struck there or below.
//! Page faults strike where memory is touched: each is a callee of the one function that did.
//! Where the thread *waited*, the function that waited is the cause, and keeps the time; what is added
//! is how long it was blocked, how long it could have run and did not, and who woke it.

pub(crate) mod apart;
mod faults;
pub(crate) mod records;

use std::collections::BTreeMap;

use darc_record::{Ticks, Tsc};

pub use faults::touching;

use crate::descent::ftree::{Absence, Callee};

/// Fewer ops of a peak do not tell whether all are struck.
const FEW: u64 = 20;
/// The part of them that are, and how often they would be by their length. The others may be those that the host of a virtual
/// machine has struck, of which nothing is seen.
const HALF: f64 = 0.5;
const SELDOM: f64 = 0.1;
/// What has not been seen once may be three times as often (95%).
const RULE_OF_THREE: f64 = 3.0;

/// A thread that ran instead or woke another, as the session numbers them; opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OtherId(pub u32);

/// Why a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Away {
    /// It could have gone on, but did not run.
    Preempted {
        /// Who did, where that is known.
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
    /// Memory that it touched was brought in.
    Faulted {
        /// The part of that in which it waited for something.
        blocked: Ticks,
        /// Who ended the longest of these waits, where that is known.
        by: Option<OtherId>,
    },
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

    /// Whether it is an interrupt. Their deferred work may be the thread's own, as of what it sends.
    fn strikes(&self) -> bool {
        let Away::Interrupted(kind) = self.why else {
            return false;
        };
        matches!(kind, Absence::Interrupt(_) | Absence::LocalInterrupt(_))
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
    /// Waiting for something; of page faults that is part of what they took.
    pub blocked: Ticks,
    /// Woken, but not running yet.
    pub runnable: Ticks,
    /// Preempted or interrupted, or in page faults.
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

/// How threads were kept from running, all of them together, where it is not known when.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Kept {
    /// The part of the time in which they would have run, 0 to 1.
    pub part: f64,
    /// For how long together.
    pub time: Ticks,
    /// For how long each time that one of them was ready, on average.
    pub turn: Ticks,
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
    /// in which they were ready, but did not run,
    pub preempted: Ticks,
    /// in which their CPU served interrupts, or did their deferred work,
    pub interrupted: Ticks,
    /// in which pages were brought in,
    pub faulting: Ticks,
    /// and in which they ran the handlers of signals.
    pub handling: Ticks,
    /// The ops that were not preempted, and the time in which they did not wait: in that interrupts can come.
    pub exposed_ops: u64,
    /// See above.
    pub exposed: Ticks,
    /// How often interrupts came there,
    pub struck: u64,
    /// and in how many ops.
    pub struck_ops: u64,
}

impl OffCpu {
    /// Adds an op with the times in which its thread did not do its work.
    pub(crate) fn add_op(&mut self, latency: Ticks, away: &[Interval]) {
        self.ops += 1;
        self.time = self.time + latency;
        // With another thread's turn comes an interrupt, and what that takes is known.
        let is_preempted = |interval: &Interval| matches!(interval.why, Away::Preempted { .. });
        if !away.iter().any(is_preempted) {
            let waits = away
                .iter()
                .filter(|it| matches!(it.why, Away::Blocked { .. }));
            let waited = waits.fold(Ticks(0), |sum, wait| sum + wait.len());
            let struck = away.iter().filter(|interval| interval.strikes()).count() as u64;
            self.exposed_ops += 1;
            self.exposed = self.exposed + Ticks(latency.0.saturating_sub(waited.0));
            self.struck += struck;
            self.struck_ops += u64::from(struck > 0);
        }
        away.iter().for_each(|interval| self.add(interval));
    }

    /// Whether most of these ops were struck, and far fewer would be in `others`, did the time alone make that likely.
    pub(crate) fn is_struck_beyond(&self, others: &OffCpu) -> bool {
        let ops = self.exposed_ops.max(1) as f64;
        let part = self.struck_ops as f64 / ops;
        // So often at most they are, at a confidence of 95% where it was never seen (the rule of three: Hanley and Lippman-Hand,
        // "If nothing goes wrong, is everything all right?", 1983).
        let rate = (others.struck as f64 + RULE_OF_THREE) / (others.exposed.0 as f64).max(1.0);
        let expected = rate * self.exposed.0 as f64 / ops;
        let is_known = self.exposed_ops >= FEW && self.exposed_ops as f64 >= HALF * self.ops as f64;
        is_known && part >= HALF && expected <= SELDOM
    }

    fn add(&mut self, interval: &Interval) {
        let len = interval.len();
        let part = match interval.why {
            Away::Preempted { .. } => &mut self.preempted,
            Away::Faulted { .. } => &mut self.faulting,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(why: Away) -> Interval {
        Interval {
            from: Tsc(0),
            to: Tsc(100),
            why,
        }
    }

    #[test]
    fn ops_are_struck_beyond_what_their_length_makes_likely() {
        let timer = interval(Away::Interrupted(Absence::LocalInterrupt(236)));
        let softirq = interval(Away::Interrupted(Absence::SoftInterrupt(3)));
        let of = |ops: u64, latency, away: &[Interval]| {
            let mut all = OffCpu::default();
            (0..ops).for_each(|_| all.add_op(Ticks(latency), away));
            all
        };
        let struck = of(30, 60_000, &[timer, softirq]);
        assert_eq!((struck.struck, struck.struck_ops), (30, 30));
        assert_eq!(struck.interrupted, Ticks(6_000));
        let others = of(2_000, 2_000, &[]);
        assert!(struck.is_struck_beyond(&others));
        // Too few of them, and too little known of the others; and all that long would be struck.
        assert!(!of(19, 60_000, &[timer]).is_struck_beyond(&others));
        assert!(!struck.is_struck_beyond(&of(500, 2_000, &[])));
        assert!(!of(30, 2_000_000, &[timer]).is_struck_beyond(&others));
        assert!(!struck.is_struck_beyond(&of(1_000, 50_000, &[timer])));
        assert!(!of(30, 60_000, &[softirq]).is_struck_beyond(&others));
        let preempted = interval(Away::Preempted { by: None });
        assert!(!of(30, 60_000, &[timer, preempted]).is_struck_beyond(&others));
        // While others wait, or another thread runs, nothing strikes them.
        let waits = Interval {
            to: Tsc(4_000_000),
            ..interval(Away::Blocked {
                woken: None,
                by: None,
            })
        };
        assert!(!struck.is_struck_beyond(&of(100, 4_002_000, &[waits])));
        assert!(!struck.is_struck_beyond(&of(100, 4_000_000, &[preempted])));
    }
}
