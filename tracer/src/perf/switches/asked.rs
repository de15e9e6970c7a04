//! What is asked of the kernel for a while only, as each system call of the machine takes longer meanwhile: who lets others run, and when
//! handlers of signals end.

use darc_record::Tsc;

use super::{ENOUGH_CALLS, Switches};
use crate::perf::collector::Group;
use crate::perf::off_cpu::Thread;
use crate::perf::opening::watch_threads;
use crate::perf::record::Left;
use crate::threads;

/// After so many switches it is known whether they are by threads that let others run.
const ENOUGH_SWITCHES: u64 = 200;
/// With more threads times processors it is not asked who lets others run.
const MOST_YIELDING: usize = 1 << 10;
/// When no handler has run for so long (in nanoseconds) their ends are not recorded until there is one: the events make each system call of
/// the machine some 40 ns longer, also while they are disabled.
const QUIET: u64 = 10_000_000_000;

/// Whether is asked who lets others run.
#[derive(Debug, Default)]
pub(super) struct Yields {
    pub(super) is_asked: bool,
    /// The events, while they are open.
    pub(super) group: Option<Group>,
    /// How many calls were told,
    pub(super) told: u64,
    /// and how many switches of threads that could have gone on were looked at.
    pub(super) switches: u64,
}

impl Yields {
    /// Whether there were many, or there are none to speak of: while it is asked, all system calls of the machine take a little longer.
    fn are_known(&self) -> bool {
        self.told > ENOUGH_CALLS
            || (self.switches > ENOUGH_SWITCHES && self.told < self.switches / 10)
    }
}

/// The ends of signals' handlers.
#[derive(Debug, Default)]
pub(super) struct HandlerEnds {
    /// From when on they are recorded, if they were asked for. Of handlers from before none is told.
    pub(super) since: Option<Tsc>,
    /// The events, while they are open.
    pub(super) group: Option<Group>,
    /// When a handler began or ended last (in nanoseconds).
    pub(super) last: u64,
    /// Whether they are to be asked for again when records are made again.
    pub(super) again: bool,
    /// Whether they were closed already: handlers that come again, however seldom, are told from then on.
    pub(super) was_closed: bool,
}

impl Switches {
    /// Asks which threads let others run by sched_yield(2), once, for a while: to the kernel's records of switches they look as if
    /// another had taken their place. Where that is refused they go on to do so.
    pub fn ask_for_yields(&mut self) {
        if std::mem::replace(&mut self.yields.is_asked, true) {
            return;
        }
        let Ok(tracepoints) = &mut self.tracepoints else {
            return;
        };
        let Some(event) = tracepoints.call("sched_yield") else {
            return;
        };
        // While they are opened nothing is read.
        let threads = threads::list(self.pid).unwrap_or_default().len();
        if threads * self.collector.cpus() > MOST_YIELDING {
            return;
        }
        let mark = self.collector.mark();
        let group = self.collector.begin_group();
        if watch_threads(&mut self.collector, self.pid, &[event]).is_err() {
            self.collector.take_back(mark);
            return;
        }
        self.yields.group = Some(group);
        if !self.rests {
            self.collector.enable();
        }
    }

    /// How a thread left its CPU that could have gone on.
    pub(super) fn how_it_left(&mut self, tid: i32, at: Tsc) -> Left {
        let thread = self.threads.entry(tid).or_default();
        self.yields.switches += 1;
        let is_own = match (self.yields.group, thread.left_at(at)) {
            // Of a thread that was made while events were opened there may be two records.
            (_, Some(left)) => left == Left::Yielded,
            (Some(_), None) => thread.is_yielding(at),
            (None, None) => thread.has_yielded(),
        };
        match is_own {
            true => Left::Yielded,
            false => Left::Preempted,
        }
    }

    /// Asks for the ends of signals' handlers, once there are some. Where that is refused no handler is told of.
    pub(super) fn ask_for_handler_ends(&mut self) {
        self.handler_ends.since = Some(Tsc(u64::MAX));
        let Ok(tracepoints) = &mut self.tracepoints else {
            return;
        };
        let Some(event) = tracepoints.handler_end() else {
            return;
        };
        let mark = self.collector.mark();
        let group = self.collector.begin_group();
        if self.collector.add_system_event(event).is_err() {
            self.collector.take_back(mark);
            return;
        }
        if !self.rests {
            self.collector.enable();
        }
        self.handler_ends.group = Some(group);
        self.handler_ends.since = Some(crate::tsc());
    }

    /// Ends the asking who lets others run where that is known, or records are dropped.
    pub(super) fn close_yields(&mut self, loses: bool) {
        if let Some(group) = self.yields.group
            && (self.yields.are_known() || loses)
        {
            self.collector.close(group);
            self.yields.group = None;
        }
    }

    /// Ends the recording of handlers' ends where none has run for long.
    pub(super) fn close_handler_ends(&mut self, now: u64) {
        let Some(group) = self
            .handler_ends
            .group
            .filter(|_| !self.handler_ends.was_closed)
        else {
            return;
        };
        let is_quiet = now.saturating_sub(self.handler_ends.last) >= QUIET;
        let mut threads = self.threads.values();
        if is_quiet && !threads.any(Thread::is_in_handler) {
            self.collector.close(group);
            self.handler_ends = HandlerEnds {
                again: self.rests,
                was_closed: true,
                ..HandlerEnds::default()
            };
        }
    }
}
