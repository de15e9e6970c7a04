//! When the kernel ran other threads in place of those that goroutines ran on.
//!
//! A goroutine that runs is on a thread, and the kernel's records tell when that had no processor. They come a little later than
//! ops do, so these are held until all is known of their time.

use std::collections::{HashSet, VecDeque};

use darc_analysis::off_cpu::{Away, Interval, OtherId};
use darc_record::{Op, Tsc};
use darc_report::assemble::UNTOLD;
use darc_tracer::cgroup::CpuLimits;
use darc_tracer::effort::Pacing;
use darc_tracer::perf::off_cpu::Why;
use darc_tracer::perf::switches::Switches;
use darc_tracer::threads;

use crate::session::catalog::{Another, Catalog};
use crate::session::descent::held_back;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::timeline::{dropped, is_numbered_like_us, ran_instead};

/// From this part of all ops, or of their time, on it is told that of some nothing is known.
const MANY: f64 = 0.1;

/// A time in which a goroutine ran on one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The thread.
    pub thread: u32,
    /// Since when, and until when.
    pub from: Tsc,
    /// See above.
    pub to: Tsc,
}

/// An op that waits for the records of its time.
#[derive(Debug)]
struct Held {
    op: Op,
    /// When the goroutine did not run, by the run-time's doing, in order.
    away: Vec<Interval>,
    /// When it did, in order; nothing where that is not known.
    turns: Vec<Turn>,
}

/// A number of ops, and their time together.
#[derive(Clone, Copy, Default, Debug)]
struct Ops {
    count: u64,
    time: u64,
}

impl Ops {
    fn add(&mut self, op: &Op) {
        self.count += 1;
        self.time = self.time.saturating_add(op.latency.0);
    }
}

/// The threads of a process, as the kernel lets them run.
#[derive(Debug)]
pub struct Threads {
    switches: Switches,
    held: VecDeque<Held>,
    /// What limits of CPU time had done when the session began.
    limits: CpuLimits,
    /// Threads that the process has, or had.
    seen: HashSet<u32>,
    /// Ops that were handed on,
    ops: Ops,
    /// and those among them of which it is not known on which threads they ran.
    unknown: Ops,
    /// Those whose records are not all there.
    missed: u64,
}

impl Threads {
    /// Begins to follow.
    ///
    /// # Errors
    /// Why the kernel does not tell.
    pub fn follow(pid: i32) -> Result<Threads, String> {
        if !is_numbered_like_us(pid) {
            return Err("the process is in another pid namespace than darc".to_owned());
        }
        let switches = Switches::follow_turns(pid).map_err(|refusal| refusal.to_string())?;
        Ok(Threads {
            switches,
            held: VecDeque::new(),
            limits: CpuLimits::of(pid),
            seen: HashSet::new(),
            ops: Ops::default(),
            unknown: Ops::default(),
            missed: 0,
        })
    }

    /// The kernel's records.
    pub fn switches(&mut self) -> &mut Switches {
        &mut self.switches
    }

    /// Keeps an op with what is known of it.
    pub fn hold(&mut self, op: Op, away: Vec<Interval>, turns: Vec<Turn>) {
        self.held.push_back(Held { op, away, turns });
    }

    /// Hands on the ops of which all is known by now.
    pub fn advance(
        &mut self,
        pacing: &Pacing,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
    ) {
        self.switches.read();
        let complete = self.switches.complete();
        self.deliver(complete, pacing, catalog, investigation);
    }

    /// Hands on all others: nothing more will come.
    pub fn finish(
        &mut self,
        pacing: &Pacing,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
    ) {
        self.switches.read_rest();
        self.deliver(Tsc(u64::MAX), pacing, catalog, investigation);
        let held_back = self.limits.held_back();
        let limited = held_back::warning(held_back, &investigation.analysis);
        let warnings = &mut investigation.warnings;
        warnings.extend(limited);
        warnings.extend(dropped(self.switches.lost()));
        warnings.extend(unknown(self.unknown, self.ops));
        if self.missed > 0 {
            let (missed, all) = (self.missed, self.missed + self.ops.count);
            warnings.push(format!(
                "{missed} of {all} ops decide nothing, for the kernel's records of their time are not all there"
            ));
        }
    }

    /// How many ops were handed on of which it is not known when the kernel ran others in place of their threads.
    pub fn unknown(&self) -> u64 {
        self.unknown.count
    }

    fn deliver(
        &mut self,
        complete: Tsc,
        pacing: &Pacing,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
    ) {
        while self.held.front().is_some_and(|it| it.op.end <= complete) {
            let Some(Held { op, away, turns }) = self.held.pop_front() else {
                break;
            };
            let is_measured = pacing.have_measured(op.start, op.end);
            let is_missed = is_measured && turns.iter().any(|turn| self.misses(*turn));
            self.missed += u64::from(is_missed);
            if is_missed || !is_measured {
                investigation.take_unseen_op(&op);
                continue;
            }
            let is_known = !turns.is_empty() && turns.iter().all(|turn| self.knows(turn.thread));
            investigation.analysis.knows_when_kept(&op, is_known);
            self.ops.add(&op);
            if !is_known {
                self.unknown.add(&op);
            }
            let mut away = away;
            for turn in turns.into_iter().filter(|_| is_known) {
                self.take_out(turn, &mut away, catalog);
            }
            away.sort_by_key(|interval| interval.from);
            investigation.take_op(&op, &away);
        }
    }

    fn misses(&mut self, Turn { thread, from, to }: Turn) -> bool {
        self.switches.misses(thread as i32, from, to)
    }

    /// Whether the process has, or had, such a thread: one that never lost its processor has no records.
    fn knows(&mut self, thread: u32) -> bool {
        let tid = thread as i32;
        let is_known = self.seen.contains(&thread)
            || self.switches.has_met(tid)
            || threads::has(self.switches.pid(), tid);
        if is_known {
            self.seen.insert(thread);
        }
        is_known
    }

    /// Adds the times in a turn at which the kernel ran others.
    fn take_out(&mut self, turn: Turn, away: &mut Vec<Interval>, catalog: &mut Catalog) {
        let Turn { thread, from, to } = turn;
        for off in self.switches.between(thread as i32, from, to) {
            let Why::Preempted(instead) = off.why else {
                continue;
            };
            let by = ran_instead(&mut self.switches, instead, catalog);
            away.push(Interval {
                from: off.from.max(from),
                to: off.to.min(to),
                why: Away::Preempted {
                    by: by.or_else(|| Some(somebody(catalog))),
                },
            });
        }
    }
}

/// A warning where it is not known of many ops, or of much of their time, on which threads they ran.
fn unknown(unknown: Ops, all: Ops) -> Option<String> {
    let is_much = |part: u64, whole: u64| part as f64 >= MANY * whole as f64;
    let is_told = is_much(unknown.count, all.count) || is_much(unknown.time, all.time);
    (unknown.count > 0 && is_told).then(|| {
        format!(
            "of {} of {} ops it is not known on which threads all of them ran: where the kernel ran others in place of these, that is a part of the functions in which they were",
            unknown.count, all.count
        )
    })
}

/// What the kernel ran where it does not tell: that it was not the run-time's doing is known.
fn somebody(catalog: &mut Catalog) -> OtherId {
    catalog.other(Another {
        name: UNTOLD.to_owned(),
        ..Another::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_whose_threads_are_not_known_are_told_of_where_they_are_many_or_long() {
        let ops = |count, time| Ops { count, time };
        let all = ops(1_000, 100_000);
        assert_eq!(unknown(ops(0, 0), all), None);
        assert_eq!(unknown(ops(0, 0), ops(0, 0)), None);
        assert_eq!(unknown(ops(99, 9_900), all), None);
        for told in [ops(100, 100), ops(1, 10_000)] {
            let said = unknown(told, all).unwrap_or_default();
            assert!(
                said.starts_with(&format!("of {} of 1000 ops", told.count)),
                "{said}"
            );
        }
    }

    #[test]
    fn a_thread_of_which_nothing_is_recorded_is_known_where_the_process_has_it() {
        let pid = nix::unistd::getpid().as_raw();
        let Ok(mut threads) = Threads::follow(pid) else {
            return;
        };
        assert!(threads.knows(pid as u32));
        assert!(!threads.knows(0));
        assert!(!threads.knows(u32::MAX - 1));
    }
}
