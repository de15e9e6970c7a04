//! What is kept of the ops that are seen while calls are delayed.

use darc_analysis::Ticks;
use darc_record::{FnodeId, Op, SiteId, Touched, Tsc};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{Counted, DELAYS, NewTarget, Served, Sink};

use super::elsewhere::{self, Threads};

/// So many ops are kept.
pub const MOST_OPS: usize = 400_000;

/// An op, as far as it matters here.
#[derive(Clone, Copy)]
pub struct Seen {
    pub tid: i32,
    pub start: Tsc,
    pub end: Tsc,
    pub latency: Ticks,
    pub calls: u64,
    /// The time of the cause in it, what it was delayed by included.
    pub cause: Ticks,
    /// What its calls were delayed by, as the clock tells.
    pub delays: Ticks,
}

/// What was seen of ops since something began.
#[derive(Default)]
pub struct Record {
    pub seen: Vec<Seen>,
    /// Calls of the cause on other threads.
    pub elsewhere: elsewhere::Calls,
    /// Calls of the cause in all ops, also in those that are not kept.
    pub calls: u64,
    /// What these were delayed by, as the clock tells.
    pub added: Ticks,
}

impl Record {
    /// Gives calls on other threads to the ops that they are of: whether it is known whose they are.
    pub fn settle(&mut self, threads: Threads) -> bool {
        self.elsewhere.sort();
        for op in &mut self.seen {
            let of = self.elsewhere.of(op.tid, op.start, op.end, threads);
            (op.calls, op.cause, op.delays) = (of.calls, of.time, of.delays);
        }
        let ops = self.seen.iter().map(|op| (op.tid, op.start, op.end));
        self.elsewhere.are_told_apart(ops)
    }
}

/// What calls in an op were delayed by. It is no longer than the op, whatever the target tells.
fn delays(op: &Op) -> Ticks {
    let of_delays = op.touched.iter().find(|touched| touched.fnode == DELAYS);
    of_delays.map_or(Ticks(0), |touched| touched.sum.min(op.end - op.start))
}

/// Takes the ops that began after some moment. What delays took, and how many calls there were, is counted of all.
pub struct Trying<'a> {
    pub cause: &'a [FnodeId],
    pub since: Tsc,
    pub record: &'a mut Record,
}

impl Sink for Trying<'_> {
    fn op(&mut self, op: Op) {
        let of_cause = |touched: &&Touched| self.cause.contains(&touched.fnode);
        let (mut calls, mut cause) = (0, Ticks(0));
        for touched in op.touched.iter().filter(of_cause) {
            calls = u64::saturating_add(calls, touched.count);
            cause = cause + touched.sum;
        }
        let (delays, record) = (delays(&op), &mut *self.record);
        record.calls = record.calls.saturating_add(calls);
        record.added = record.added + delays;
        // What began before it ends in this time as what ends after it began in it.
        if op.start >= self.since && record.seen.len() < MOST_OPS {
            record.seen.push(Seen {
                tid: op.tid,
                start: op.start,
                end: op.end,
                latency: op.latency,
                calls,
                cause,
                delays,
            });
        }
    }

    fn served(&mut self, served: Served) {
        let (Served::Whole(op) | Served::Partly(op)) = served;
        let delays = delays(&op);
        self.record.calls += 1;
        self.record.added = self.record.added + delays;
        if op.start >= self.since {
            self.record.elsewhere.add(&op, delays);
        }
    }

    /// It is compared with nothing, but what its calls were delayed by was taken out of the budget.
    fn partly(&mut self, op: Op) {
        self.record.added = self.record.added + delays(&op);
    }

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}
