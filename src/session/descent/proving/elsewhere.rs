//! Calls of a function on other threads, which the ops of f0 may wait for: what they are is not known from the ftree, so all of
//! them are measured, and one belongs to an op that it begins in.

use std::collections::BTreeMap;
use std::sync::Arc;

use darc_analysis::Ticks;
use darc_process::modules::CodeRef;
use darc_process::{Process, entry_points, return_address};
use darc_record::{FnodeId, Op, Tsc};
use darc_tracer::plan::{Asynchronous, Noticed};

/// The root of the ftree of such calls.
pub const ROOT: FnodeId = FnodeId(1 << 30);
/// So many calls are kept.
const MOST: usize = 400_000;
/// With more ops than this at a time for a call, on average, it is not known whose a call is.
const AT_A_TIME: f64 = 1.1;

/// How the calls of a function are measured for their own sake. Why they cannot be, for people.
pub fn measured(at: CodeRef, process: &Process<'_>) -> Result<Asynchronous, String> {
    let modules = process.modules();
    let addr = modules
        .locate(at)
        .ok_or("it is not loaded in this process")?;
    if let Some(used) = return_address::is_used(modules, at) {
        return Err(used.why);
    }
    entry_points::takes_a_probe(modules, at)?;
    let code = Arc::clone(&process.scan(addr)?.code);
    Ok(Asynchronous {
        enqueue: None,
        serve: Noticed { code, chain: None },
        root: ROOT,
    })
}

/// A call.
#[derive(Clone, Copy)]
struct Call {
    start: Tsc,
    end: Tsc,
    tid: i32,
    delays: Ticks,
}

/// Which of the calls count that several threads make in an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// Those of the thread that was delayed most: what others do goes on meanwhile.
    One,
    /// Those of all threads: they come after each other.
    All,
}

/// The calls that belong to an op. Of several threads that with the largest has most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Of {
    /// What they were delayed by until the end of it.
    pub delays: Ticks,
    /// Their time until the end of it.
    pub time: Ticks,
    /// How many.
    pub calls: u64,
}

/// The calls that were seen.
#[derive(Default)]
pub struct Calls {
    kept: Vec<Call>,
    left_out: u64,
}

impl Calls {
    pub fn add(&mut self, op: &Op, delays: Ticks) {
        match self.has_room() {
            false => self.left_out += 1,
            true => self.kept.push(Call {
                start: op.start,
                end: op.end,
                tid: op.tid,
                delays,
            }),
        }
    }

    /// Whether more are kept.
    pub fn has_room(&self) -> bool {
        self.kept.len() < MOST
    }

    /// How many came when there was no room for them any more.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Threads are looked at one after the other.
    pub fn sort(&mut self) {
        self.kept.sort_unstable_by_key(|call| call.start);
    }

    /// Those that began on another thread in an op. They are sorted.
    fn begun(&self, tid: i32, start: Tsc, end: Tsc) -> impl Iterator<Item = &Call> {
        let first = self.kept.partition_point(|call| call.start < start);
        let begun = self.kept[first..].iter();
        begun
            .take_while(move |call| call.start <= end)
            .filter(move |call| call.tid != tid)
    }

    /// What counts of those that began on other threads in an op. They are sorted.
    pub fn of(&self, tid: i32, start: Tsc, end: Tsc, threads: Threads) -> Of {
        let mut each: BTreeMap<i32, Of> = BTreeMap::new();
        for call in self.begun(tid, start, end) {
            let of = each.entry(match threads {
                Threads::One => call.tid,
                Threads::All => 0,
            });
            let of = of.or_default();
            of.calls += 1;
            let time = call.end.min(end) - call.start;
            of.time = of.time + time;
            // A delay comes first: what the op does not last for cannot have reached it.
            of.delays = of.delays + call.delays.min(time);
        }
        each.into_values().max().unwrap_or_default()
    }

    /// Whether it is known of which op a call is, given the ops with their threads. They are sorted.
    pub fn are_told_apart(&self, ops: impl Iterator<Item = (i32, Tsc, Tsc)> + Clone) -> bool {
        let of = |(tid, start, end)| self.begun(tid, start, end).count() as u64;
        let pairs: u64 = ops.clone().map(of).sum();
        let mut spans: Vec<(Tsc, Tsc)> = ops.map(|(_, start, end)| (start, end)).collect();
        spans.sort_unstable();
        let mut latest = Tsc(0);
        let mut open = Vec::new();
        for (start, end) in spans {
            if end > latest {
                open.push((start.max(latest), end));
                latest = end;
            }
        }
        let inside = self.kept.iter().filter(|call| {
            let at = open.partition_point(|&(_, end)| end < call.start);
            open.get(at).is_some_and(|&(start, _)| start <= call.start)
        });
        pairs as f64 <= AT_A_TIME * inside.count() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(of: &[(u64, u64, i32)]) -> Calls {
        let call = |&(start, end, tid): &(u64, u64, i32)| Call {
            start: Tsc(start),
            end: Tsc(end),
            tid,
            delays: Ticks(7),
        };
        Calls {
            kept: of.iter().map(call).collect(),
            left_out: 0,
        }
    }

    #[test]
    fn a_call_belongs_to_the_op_that_it_begins_in() {
        let calls = calls(&[(5, 30, 2), (15, 25, 2), (18, 19, 1), (28, 60, 3)]);
        // The first had begun before, the third is of the op's own thread.
        let of = |calls, time, delays| Of {
            delays: Ticks(delays),
            time: Ticks(time),
            calls,
        };
        let within = |start, end| {
            [Threads::One, Threads::All].map(|threads| calls.of(1, Tsc(start), Tsc(end), threads))
        };
        assert_eq!(within(10, 40), [of(1, 12, 7), of(2, 22, 14)]);
        assert_eq!(within(70, 80), [Of::default(); 2]);
        // Of the last call's delay the op has seen but little.
        assert_eq!(within(27, 30), [of(1, 2, 2); 2]);
    }

    #[test]
    fn what_threads_do_side_by_side_counts_once() {
        let calls = calls(&[(10, 15, 2), (11, 17, 3), (12, 30, 4), (16, 20, 2)]);
        let of = calls.of(1, Tsc(10), Tsc(40), Threads::One);
        assert_eq!((of.calls, of.delays, of.time), (2, Ticks(9), Ticks(9)));
    }

    #[test]
    fn with_several_ops_at_a_time_nobody_knows_whose_a_call_is() {
        let calls = calls(&[(12, 14, 9), (32, 34, 9)]);
        let told = |ops: &[(u64, u64)]| {
            let ops = ops.iter().map(|&(start, end)| (1, Tsc(start), Tsc(end)));
            calls.are_told_apart(ops)
        };
        assert!(told(&[(10, 20), (30, 40)]));
        assert!(!told(&[(10, 20), (11, 21), (30, 40), (29, 41)]));
    }
}
