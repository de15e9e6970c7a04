//! When the kernel ran other threads in place of those that goroutines ran on.
//!
//! A goroutine that runs is on a thread, and the kernel's records tell when that had no processor. They come a little later than
//! ops do, so these are held until all is known of their time.

use std::collections::VecDeque;

use darc_analysis::off_cpu::{Away, Interval, OtherId};
use darc_record::{Op, Tsc};
use darc_tracer::cgroup::CpuLimits;
use darc_tracer::effort::Pacing;
use darc_tracer::perf::off_cpu::Why;
use darc_tracer::perf::switches::Switches;

use crate::session::catalog::{Another, Catalog};
use crate::session::descent::investigation::Investigation;
use crate::session::descent::timeline::{dropped, is_numbered_like_us, limited, ran_instead};

/// From this part of all ops on it is told that of some nothing is known.
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

/// The threads of a process, as the kernel lets them run.
#[derive(Debug)]
pub struct Threads {
    switches: Switches,
    held: VecDeque<Held>,
    /// What limits of CPU time had done when the session began.
    limits: CpuLimits,
    /// Ops that were handed on,
    ops: u64,
    /// and those among them of which it is not known on which threads they ran.
    unknown: u64,
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
            ops: 0,
            unknown: 0,
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
        let limited = limited(held_back, &investigation.analysis);
        let warnings = &mut investigation.warnings;
        warnings.extend(limited);
        warnings.extend(dropped(self.switches.lost()));
        if self.unknown as f64 >= MANY * self.ops.max(1) as f64 && self.unknown > 0 {
            warnings.push(format!(
                "of {} of {} ops it is not known on which threads all of them ran: where the kernel ran others in place of these, that is a part of the functions in which they were",
                self.unknown, self.ops
            ));
        }
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
            let mut all = turns.iter();
            let is_seen =
                pacing.have_measured(op.start, op.end) && !all.any(|turn| self.misses(*turn));
            if !is_seen {
                investigation.take_unseen_op(&op);
                continue;
            }
            self.ops += 1;
            self.unknown += u64::from(turns.is_empty());
            let mut away = away;
            for turn in turns {
                self.take_out(turn, &mut away, catalog);
            }
            away.sort_by_key(|interval| interval.from);
            investigation.take_op(&op, &away);
        }
    }

    fn misses(&mut self, Turn { thread, from, to }: Turn) -> bool {
        self.switches.misses(thread as i32, from, to)
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

/// What the kernel ran where it does not tell: that it was not the run-time's doing is known.
fn somebody(catalog: &mut Catalog) -> OtherId {
    catalog.other(Another {
        name: "another thread".to_owned(),
        ..Another::default()
    })
}
