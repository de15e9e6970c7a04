//! When the threads of one process did not do their work, and why: from the kernel's records of context switches, and
//! from its tracepoints where they may be read.
//!
//! Where the user may watch whole CPUs, one event a CPU tells of every switch, and who got the CPU. Otherwise each
//! thread has events of its own, and the threads that it makes inherit them.
//!
//! All that costs the machine something each time, of which an account is kept ([`Switches::take_price`]).
//! Source: perf_event_open(2), `context_switch` and PERF_RECORD_SWITCH_CPU_WIDE.

mod asked;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use asked::{HandlerEnds, Yields};

use super::attributes::Attributes;
use super::clock::{self, Clock};
use super::collector::{Collector, Drained, Group};
use super::fault_cost::{self, FaultCost};
use super::off_cpu::{Away, Forgotten, Life, Runners, Thread, Wake, Waker};
use super::opening::{
    fault_events, watch_machine, watch_process, watch_threads, watch_tracepoints,
};
use super::record::{Left, Naming, Point, Record, UserStack};
use super::refusal::Refusal;
use super::services::Services;
use super::tracepoints::{Context, Event, NoTracepoints, Service, Tracepoints};
use super::wakings::Wakings;
use crate::tracefs;
use darc_record::{Ticks, Tsc};

/// How much is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Every switch of the machine, and so who runs instead.
    Machine,
    /// The process's own switches.
    Process,
}

/// Threads that are remembered after their end.
const MOST_THREADS: usize = 1 << 12;
/// For so long ops of a thread that has ended are on their way: a second or more.
const ON_THEIR_WAY: Ticks = Ticks(1 << 32);
/// A record may be under way on another CPU while the rings are read, so what is younger (in nanoseconds) is not complete. The
/// processor of a virtual machine may be taken away in the middle of writing one.
const UNDER_WAY: u64 = 5_000_000;

/// Follows the threads of a process.
#[derive(Debug)]
pub struct Switches {
    pid: i32,
    collector: Collector,
    reach: Reach,
    clock: Clock,
    threads: HashMap<i32, Thread>,
    /// Those that have ended are forgotten when there are more.
    most_threads: usize,
    /// By CPU; empty where only the process is seen.
    cpus: HashMap<u32, Runners>,
    /// Names of threads that ran instead, as far as they were asked for or told of.
    names: HashMap<i32, String>,
    tracepoints: Result<Tracepoints, NoTracepoints>,
    /// The events of page faults.
    faults: Option<Group>,
    wakings: Option<Wakings>,
    /// Those of system calls' beginnings, and how many have been told.
    calls: Option<(Group, u64)>,
    yields: Yields,
    handler_ends: HandlerEnds,
    /// What is not told any more.
    untold: Option<NoTracepoints>,
    services: Services,
    fault_records: Ticks,
    /// Of threads of the process that woke another, with a number each; the oldest go.
    stacks: VecDeque<UserStack>,
    /// How many went.
    stacks_gone: u64,
    /// Processes that run other programs, as far as that was seen: children, which the events of stacks follow.
    other_programs: HashSet<i32>,
    complete: Tsc,
    lost: u64,
    /// When records were dropped: of these times it is not known what the threads did. The oldest go.
    gaps: VecDeque<(Tsc, Tsc)>,
    /// The last record of each CPU.
    last: HashMap<u32, Tsc>,
    /// How many more readings may find that records were dropped, before fewer kinds are asked for.
    patience: u32,
    /// What records have taken, since that was asked for.
    price: Duration,
    rests: bool,
}

/// What a record takes of the thread that makes it, and one with a stack, about.
const RECORD: Duration = Duration::from_nanos(600);
const STACK: Duration = Duration::from_micros(3);

/// In so many readings records may have been dropped: a reader that waits for a processor now and then is no reason to ask for less.
const PATIENCE: u32 = 64;
/// Gaps that are remembered, longer than any op is held.
const MOST_GAPS: usize = 1 << 10;
/// Names that are remembered.
const MOST_NAMES: usize = 1 << 16;
/// Stacks of wakers that are remembered.
const MOST_STACKS: usize = 1 << 10;
/// After so many system calls no more arguments are asked for: an event each costs a quarter of a microsecond.
const ENOUGH_CALLS: u64 = 20_000;
/// With so many seen no more are asked for: each takes a few microseconds of the waker's time.
const ENOUGH_STACKS: u64 = 10_000;

impl Switches {
    /// Begins to follow.
    ///
    /// # Errors
    /// When the kernel refuses. Tracepoints may be refused alone: [`Switches::untold`].
    pub fn follow(pid: i32) -> Result<Switches, Refusal> {
        Switches::with(pid, Tracepoints::find())
    }

    /// Begins to follow when threads are given processors, and nothing else.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow_turns(pid: i32) -> Result<Switches, Refusal> {
        let untold = match tracefs::numbers_are_the_machines() {
            true => NoTracepoints::NotAsked,
            false => NoTracepoints::OtherNumbers,
        };
        Switches::with(pid, Err(untold))
    }

    fn with(
        pid: i32,
        mut tracepoints: Result<Tracepoints, NoTracepoints>,
    ) -> Result<Switches, Refusal> {
        let (mut collector, reach) = match watch_machine() {
            Ok(collector) => (collector, Reach::Machine),
            Err(_) => (watch_process(Attributes::switches(), pid)?, Reach::Process),
        };
        let (mut faults, mut wakings) = (None, None);
        if let Ok(known) = &tracepoints {
            let mark = collector.mark();
            match watch_tracepoints(&mut collector, known, pid) {
                Ok(opened) => (faults, wakings) = (Some(opened.0), opened.1),
                Err(refusal) => {
                    collector.take_back(mark);
                    tracepoints = Err(NoTracepoints::Events(refusal));
                }
            }
        }
        let wakings_are_other = tracepoints.is_ok() && wakings.is_none();
        let clock = Clock::calibrate();
        let fault_cost = match &mut tracepoints {
            Ok(known) => {
                let events = fault_events(known);
                // Without it page faults seem shorter than they are, and ops with many of them are longer.
                let cost = fault_cost::measure(known, &events, &clock);
                cost.ok().flatten().unwrap_or_default()
            }
            Err(_) => FaultCost::default(),
        };
        collector.enable();
        Ok(Switches {
            pid,
            collector,
            reach,
            clock,
            threads: HashMap::new(),
            most_threads: MOST_THREADS,
            cpus: HashMap::new(),
            names: HashMap::new(),
            tracepoints,
            faults,
            wakings,
            calls: None,
            yields: Yields::default(),
            handler_ends: HandlerEnds::default(),
            untold: wakings_are_other.then_some(NoTracepoints::OtherNumbers),
            services: Services::new(fault_cost.untold),
            fault_records: fault_cost.records,
            stacks: VecDeque::new(),
            stacks_gone: 0,
            other_programs: HashSet::new(),
            complete: Tsc(0),
            lost: 0,
            gaps: VecDeque::new(),
            last: HashMap::new(),
            patience: PATIENCE,
            price: Duration::ZERO,
            rests: false,
        })
    }

    /// How much longer a page fault takes that is recorded.
    #[must_use]
    pub fn fault_records(&self) -> Ticks {
        self.fault_records
    }

    /// Why interrupts, page faults and the ends of waits are not told (any more), if they are not.
    #[must_use]
    pub fn untold(&self) -> Option<&NoTracepoints> {
        self.untold.as_ref().or(self.tracepoints.as_ref().err())
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Asks for the arguments of a system call from now on, for a while. Where that is refused there are none.
    pub fn ask_for_calls(&mut self, name: &str) {
        let Ok(tracepoints) = &mut self.tracepoints else {
            return;
        };
        let Some(event) = tracepoints.call(name) else {
            return;
        };
        // They end together with those that were asked for before.
        match self.calls {
            Some((group, _)) => self.collector.go_on_with(group),
            None => self.calls = Some((self.collector.begin_group(), 0)),
        }
        let watched = watch_threads(&mut self.collector, self.pid, &[event]).is_ok();
        if watched && !self.rests {
            self.collector.enable();
        }
    }

    /// What a system call was called with that a thread began within these bounds, as far as it was asked for.
    #[must_use]
    pub fn call(&self, tid: i32, number: u32, from: Tsc, to: Tsc) -> Option<[u64; 6]> {
        self.threads.get(&tid)?.call(number, from, to)
    }

    /// Which address a thread touched where a page fault began within these bounds; the first one.
    #[must_use]
    pub fn fault(&self, tid: i32, from: Tsc, to: Tsc) -> Option<u64> {
        self.threads.get(&tid)?.fault(from, to)
    }

    /// The name of what a CPU does beside its threads.
    #[must_use]
    pub fn service_name(&self, service: Service) -> Option<&str> {
        self.tracepoints.as_ref().ok()?.name(service)
    }

    /// Where a waker was, as long as that is remembered.
    #[must_use]
    pub fn stack(&self, number: u64) -> Option<&UserStack> {
        let at = number.checked_sub(self.stacks_gone)?;
        self.stacks.get(usize::try_from(at).ok()?)
    }

    /// How much is seen.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Whether so little came between the last two readings that they may be some five times more seldom.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.collector.has_room()
    }

    /// What the records that were read since the last time took of those whom they are of, about.
    pub fn take_price(&mut self) -> Duration {
        std::mem::take(&mut self.price)
    }

    /// Records nothing from now on.
    pub fn rest(&mut self) {
        self.collector.disable();
        // What was made since the last reading is read in the rest: of ops, too, that end before it.
        self.rests = true;
    }

    /// Records again.
    pub fn go_on(&mut self) {
        // What was made before the rest, and is not told yet, says nothing of what follows. Nobody has told who has another name
        // since.
        self.handler_ends.last = clock::now();
        self.read_all(clock::now());
        self.forget_who_is_out();
        self.names.clear();
        self.rests = false;
        if self.handler_ends.again {
            self.ask_for_handler_ends();
        }
        self.handler_ends.again = false;
        self.collector.enable();
        if let Some(wakings) = &mut self.wakings {
            wakings.look_for_threads();
        }
    }

    /// Reads what has come, for the last time.
    pub fn read_rest(&mut self) {
        self.read_all(clock::now());
    }

    /// Reads what has come, but for what is younger than what may be under way.
    pub fn read(&mut self) {
        self.read_all(clock::now().saturating_sub(UNDER_WAY));
        if let Some(wakings) = &mut self.wakings
            && !self.rests
        {
            wakings.renew(&mut self.collector);
        }
    }

    fn read_all(&mut self, until: u64) {
        self.clock.tick();
        let Drained { records, full, .. } = self.collector.read_until(until);
        let lost = self.lost;
        self.spend(&records);
        for record in records {
            self.take(record);
        }
        let now = self.clock.tsc(clock::now());
        full.into_iter().for_each(|cpu| self.add_gap(cpu, now));
        if let Some((group, told)) = self.calls
            && (told > ENOUGH_CALLS || self.lost > lost)
        {
            self.collector.close(group);
            self.calls = None;
        }
        self.close_yields(self.lost > lost);
        self.close_handler_ends(until);
        let enough = self.stacks_gone + self.stacks.len() as u64 > ENOUGH_STACKS;
        if let Some(wakings) = &mut self.wakings
            && (self.lost > lost || enough)
        {
            wakings.close_stacks(&mut self.collector);
        }
        if self.lost > lost {
            self.were_dropped();
        }
        self.complete = self.clock.tsc(until);
    }

    /// Records came faster than they could be read. Where that happens again and again there are to be fewer.
    fn were_dropped(&mut self) {
        match self.patience.checked_sub(1) {
            Some(left) => self.patience = left,
            None => self.tell_less(),
        }
        if let Some(wakings) = &mut self.wakings {
            wakings.look_for_threads();
        }
    }

    /// Asks for less.
    fn tell_less(&mut self) {
        self.patience = PATIENCE;
        if let Some(faults) = self.faults.take() {
            self.collector.close(faults);
            self.untold = Some(NoTracepoints::TooManyFaults);
        } else if self.reach == Reach::Machine {
            self.see_less();
        }
    }

    /// What these records have cost those whom they are of.
    fn spend(&mut self, records: &[Record]) {
        let with_stack =
            |record: &&Record| matches!(record, Record::Point(point) if point.program.is_some());
        let stacks = records.iter().filter(with_stack).count() as u32;
        self.price += RECORD * (records.len() as u32) + STACK * stacks;
    }

    /// The whole machine switches too often for this reader: follows the process alone from now on.
    fn see_less(&mut self) {
        if let Ok(collector) = watch_process(Attributes::switches(), self.pid) {
            if !self.rests {
                collector.enable();
            }
            let since = self.clock.tsc(self.collector.complete());
            self.gaps.push_back((since, self.clock.tsc(clock::now())));
            self.collector = collector;
            self.wakings = None;
            self.yields.group = None;
            self.handler_ends.group = None;
            self.reach = Reach::Process;
            self.untold = Some(NoTracepoints::TooMany);
            self.forget_who_is_out();
        }
    }

    /// Some may have come back without a word: better none of their absence than too much.
    fn forget_who_is_out(&mut self) {
        for thread in self.threads.values_mut() {
            thread.forget_out();
        }
        self.cpus.clear();
        self.services.forget();
    }

    fn take(&mut self, record: Record) {
        self.look_for_a_gap(&record);
        match record {
            Record::Point(point) => self.pass(point),
            Record::Out { stamp, left, next } => {
                let at = self.clock.tsc(stamp.time);
                if let Some(next) = next {
                    self.cpus.entry(stamp.cpu).or_default().runs(at, next);
                }
                if stamp.pid == self.pid {
                    let left = match left {
                        Left::Preempted => self.how_it_left(stamp.tid, at),
                        left => left,
                    };
                    let thread = self.threads.entry(stamp.tid).or_default();
                    thread.left(at, left, stamp.cpu);
                }
            }
            Record::In(stamp) if stamp.pid == self.pid => {
                let at = self.clock.tsc(stamp.time);
                let thread = self.threads.entry(stamp.tid).or_default();
                thread.returned(at, stamp.cpu, &self.cpus);
            }
            Record::Exited(task) if task.pid == self.pid => {
                let at = self.clock.tsc(task.stamp.time);
                if let Some(thread) = self.threads.get_mut(&task.tid) {
                    thread.life = Life::Ended(at);
                }
                // Its ops are on their way yet, so it is forgotten only when there are too many, and not at once.
                if self.threads.len() > self.most_threads {
                    let is_kept = |thread: &Thread| match thread.life {
                        Life::Runs => true,
                        Life::Ended(then) => at - then < ON_THEIR_WAY,
                    };
                    self.threads.retain(|_, thread| is_kept(thread));
                    self.most_threads = MOST_THREADS.max(2 * self.threads.len());
                }
            }
            Record::Named {
                pid,
                tid,
                name,
                naming,
                ..
            } => {
                if naming == Naming::Exec && pid != self.pid {
                    self.is_another_program(pid);
                }
                if self.names.len() < MOST_NAMES {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    self.names.insert(tid, name);
                }
            }
            Record::Forked(task) => {
                // A thread id that is used again has its maker's name at first.
                let name = self.names.get(&task.maker).cloned();
                match name {
                    Some(name) if self.names.len() < MOST_NAMES => {
                        self.names.insert(task.tid, name);
                    }
                    _ => {
                        self.names.remove(&task.tid);
                    }
                }
                if self.other_programs.contains(&task.parent) {
                    self.is_another_program(task.pid);
                } else {
                    // A process id that is used again.
                    self.other_programs.remove(&task.pid);
                }
                if task.pid == self.pid {
                    self.threads.remove(&task.tid);
                    self.services.forget_thread(task.tid);
                    if let Some(wakings) = &mut self.wakings {
                        wakings.thread_came(task.tid);
                    }
                }
            }
            Record::Lost(_, count) => {
                self.lost += count;
                self.forget_who_is_out();
            }
            _ => {}
        }
    }

    fn look_for_a_gap(&mut self, record: &Record) {
        let Some(cpu) = record.cpu() else { return };
        let at = self.clock.tsc(record.time());
        if matches!(record, Record::Lost(..)) {
            self.add_gap(cpu, at);
        }
        self.last.insert(cpu, at);
    }

    /// Between the last record before some were dropped and the one that tells of it nothing is known.
    fn add_gap(&mut self, cpu: u32, until: Tsc) {
        let since = self.last.get(&cpu).copied().unwrap_or_default();
        self.gaps.push_back((since, until));
        if self.gaps.len() > MOST_GAPS {
            self.gaps.pop_front();
        }
    }

    /// Whether records were dropped within these bounds, or there were more than are kept: then it is not known when the thread did not
    /// do its work.
    #[must_use]
    pub fn misses(&mut self, tid: i32, from: Tsc, to: Tsc) -> bool {
        // In no order: of a ring that was nearly full it is said before its records are handed out.
        let mut gaps = self.gaps.iter();
        if gaps.any(|&(since, until)| from <= until && since <= to) {
            return true;
        }
        let forgotten = self.threads.get_mut(&tid);
        match forgotten.map(|thread| thread.forgot(from)) {
            None | Some(Forgotten::Nothing) => false,
            Some(Forgotten::Some) => true,
            Some(Forgotten::All) => {
                // Page faults are most of it.
                if self.faults.is_some() {
                    self.tell_less();
                }
                true
            }
        }
    }

    /// The kernel passed a tracepoint.
    fn pass(&mut self, point: Point) {
        let Ok(tracepoints) = &mut self.tracepoints else {
            return;
        };
        let Some(event) = tracepoints.event(&point.raw) else {
            return;
        };
        let at = self.clock.tsc(point.stamp.time);
        let (cpu, tid) = (point.stamp.cpu, point.stamp.tid);
        let piece = match event {
            Event::Begin(service) => self.services.begin(at, cpu, tid, service),
            Event::End(service) => self.services.end(at, cpu, tid, service),
            Event::Fault { address } => {
                if point.stamp.pid == self.pid {
                    let thread = self.threads.entry(tid).or_default();
                    thread.faulted(at, address);
                }
                self.services.begin(at, cpu, tid, Service::PageFault)
            }
            Event::Waking { tid: woken, by } => {
                // Of other processes nothing is kept; own threads may not have been heard of yet.
                if !self.threads.contains_key(&woken) {
                    return;
                }
                // The modules of the process tell nothing of a child's that has become another program.
                let is_known = !self.other_programs.contains(&point.stamp.pid);
                let stack = point.program.filter(|_| is_known);
                let stack = stack.map(|stack| self.keep(stack));
                let is_its_doing = match by {
                    // The idle thread does nothing of its own.
                    _ if tid == 0 => false,
                    Context::Thread => true,
                    // What it sends to the same machine arrives at the end of its system call.
                    Context::Interrupt => {
                        let (pid, own) = (point.stamp.pid, self.pid);
                        let serves_others = pid == tid && pid != own && self.serves_others(tid);
                        self.services.delivers_own(cpu) && !serves_others
                    }
                };
                let by = match is_its_doing {
                    true => Waker::Thread {
                        pid: point.stamp.pid,
                        tid,
                        stack,
                    },
                    false => Waker::Interrupt(self.services.on(cpu)),
                };
                if let Some(thread) = self.threads.get_mut(&woken) {
                    thread.woken(Wake { at, by });
                }
                None
            }
            Event::Handler { .. } | Event::HandlerEnded if point.stamp.pid != self.pid => None,
            Event::Handler { signal, function } => {
                // A page fault that could not be served ends in a signal, and without a record.
                self.services.forget_thread(tid);
                self.handler_ends.last = point.stamp.time;
                match self.handler_ends.since {
                    None => self.ask_for_handler_ends(),
                    Some(since) if at >= since => {
                        let thread = self.threads.entry(tid).or_default();
                        thread.signalled(at, signal, function);
                    }
                    Some(_) => {}
                }
                None
            }
            Event::HandlerEnded => {
                self.handler_ends.last = point.stamp.time;
                let thread = self.threads.entry(tid).or_default();
                thread.handler_ended(at);
                None
            }
            Event::Call { number, .. } if i64::from(number) == libc::SYS_sched_yield => {
                self.yields.told += 1;
                if point.stamp.pid == self.pid {
                    self.threads.entry(tid).or_default().yields(at);
                }
                None
            }
            Event::Call { number, arguments } => {
                if let Some((_, told)) = &mut self.calls {
                    *told += 1;
                }
                if point.stamp.pid == self.pid {
                    let thread = self.threads.entry(tid).or_default();
                    thread.called(at, number, arguments);
                }
                None
            }
        };
        if let Some(piece) = piece
            && let Some(thread) = self.threads.get_mut(&piece.tid)
        {
            thread.served(piece);
        } else if let Some(piece) = piece
            && point.stamp.pid == self.pid
        {
            self.threads.entry(piece.tid).or_default().served(piece);
        }
    }

    /// Whether the kernel has a thread only to do the deferred work of interrupts that came too fast (kernel/softirq.c).
    fn serves_others(&mut self, tid: i32) -> bool {
        self.name(tid).starts_with("ksoftirqd/")
    }

    fn is_another_program(&mut self, pid: i32) {
        if self.other_programs.len() < MOST_NAMES {
            self.other_programs.insert(pid);
        }
    }

    fn keep(&mut self, stack: UserStack) -> u64 {
        if self.stacks.len() >= MOST_STACKS {
            self.stacks.pop_front();
            self.stacks_gone += 1;
        }
        self.stacks.push_back(stack);
        self.stacks_gone + self.stacks.len() as u64 - 1
    }

    /// Until when everything is known.
    #[must_use]
    pub fn complete(&self) -> Tsc {
        self.complete
    }

    /// Whether any record was of this thread of the process.
    #[must_use]
    pub fn has_met(&self, tid: i32) -> bool {
        self.threads.contains_key(&tid)
    }

    /// When the thread did not do its work, within these bounds.
    #[must_use]
    pub fn between(&self, tid: i32, from: Tsc, to: Tsc) -> Vec<Away> {
        let thread = self.threads.get(&tid);
        thread.map_or_else(Vec::new, |thread| thread.between(from, to))
    }

    /// The name of a thread, as far as it can still be told.
    pub fn name(&mut self, tid: i32) -> String {
        if let Some(name) = self.names.get(&tid) {
            return name.clone();
        }
        let comm = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
        let name = match name.is_empty() {
            true => format!("thread {tid}"),
            false => name,
        };
        if self.names.len() < MOST_NAMES {
            self.names.insert(tid, name.clone());
        }
        name
    }

    /// Records that the kernel dropped.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests;
