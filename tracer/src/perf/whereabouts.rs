//! Where the threads of one process are, some thousand times a second of their running.
//!
//! Source: perf_event_open(2), the software event `cpu-clock`.

use super::attributes::{Attributes, Chains, Scope};
use super::clock::{self, Clock};
use super::collector::Collector;
use super::opening::watch_process;
use super::record::{Mode, Record};
use super::refusal::Refusal;
use crate::addr::TargetAddr;
use darc_record::Tsc;

/// Samples a second of a thread's time.
pub const RATE: u32 = 4_999;
/// A record may be under way on another CPU while the rings are read.
const UNDER_WAY: u64 = 1_000_000;

/// A thread was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The thread.
    pub tid: i32,
    /// When.
    pub at: Tsc,
    /// The instruction that it was to run next.
    pub ip: TargetAddr,
}

/// Follows the threads of a process.
#[derive(Debug)]
pub struct Whereabouts {
    pid: i32,
    collector: Collector,
    clock: Clock,
    complete: Tsc,
}

impl Whereabouts {
    /// Begins to follow.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow(pid: i32) -> Result<Whereabouts, Refusal> {
        let attributes = Attributes::samples(RATE, Chains::Left).scope(Scope::User);
        let collector = watch_process(attributes, pid)?;
        collector.enable();
        Ok(Whereabouts {
            pid,
            collector,
            clock: Clock::calibrate(),
            complete: Tsc(0),
        })
    }

    /// What has come, in order of time.
    pub fn read(&mut self) -> Vec<Seen> {
        let until = clock::now().saturating_sub(UNDER_WAY);
        self.clock.tick();
        let records = self.collector.read_rest().records;
        self.complete = self.clock.tsc(until);
        let seen = |record: Record| match record {
            Record::Sample(sample) if sample.stamp.pid == self.pid && sample.mode == Mode::User => {
                Some(Seen {
                    tid: sample.stamp.tid,
                    at: self.clock.tsc(sample.stamp.time),
                    ip: TargetAddr(sample.ip),
                })
            }
            _ => None,
        };
        records.into_iter().filter_map(seen).collect()
    }

    /// Until when everything is known.
    #[must_use]
    pub fn complete(&self) -> Tsc {
        self.complete
    }
}
