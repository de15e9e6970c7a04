//! The `int3` engine: ptrace breakpoints at f0's entry and at call sites. Works at every site, slow.
//!
//! A call is emulated: its return address is replaced by that of a landing pad, the thread continues
//! at the callee, and the trap at the landing pad ends the measurement. Nothing is single-stepped. The
//! tracer stays attached while it measures. Signals pass through untouched.
//!
//! The thread itself reads the clock: at the landing pad just before it traps, and whenever it goes on after
//! a stop. So a call is measured from its first instruction to its return however late the tracer is, and
//! only the moment of a trap at a call site is estimated (`delivery.rs`).

mod arming;
mod calibrate;
mod calls;
mod continuations;
mod cpu_time;
mod delivery;
mod departure;
mod displaced;
mod edges;
#[cfg(test)]
mod exceptions;
mod finish;
mod inside;
#[cfg(test)]
mod killed;
mod landing;
mod points;
mod probes;
mod returns;
mod stacks;
mod stop_times;
mod stops;
mod turns;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::child_signal;
use crate::chosen::Chosen;
use crate::engine::{Counters, Engine, EngineKind, Notice, ProbeCost, Refused, Sink};
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, Spawn, decode};
use crate::ground::Ground;
use crate::guardian::Guardian;
use crate::guests;
use crate::ledger::{Debt, Ledger};
use crate::limits::{self, Amount};
use crate::maps;
use crate::memory::Memory;
use crate::plan::Plan;
use crate::preflight;
use crate::remote_call::RemoteCaller;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads;
use darc_record::{Chain, Tsc};

pub use calibrate::{Calibration, calibrate};
use calls::ThreadCalls;
use continuations::{Continuation, Continuations};
use delivery::{Attention, Noticed};
use departure::Departures;
use edges::Edges;
use landing::{LANDING, LANDING_TRAP, PASS, SYSCALL_TRAP};
use points::{Points, SyscallCopies};
use returns::Abandoned;
use stacks::Stacks;
use stop_times::StopTimes;
use turns::Turns;

/// The ptrace options under which every thread is seized.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;

/// Room for the landing pad and for copies of instructions.
const COPIES_BYTES: u64 = 64 << 10;

/// Room for those and for the lanes by which threads go on.
const ARENA_BYTES: u64 = COPIES_BYTES + departure::CODE_BYTES + departure::DATA_BYTES;

/// For how long after a stop the tracer looks for the next one without sleeping.
const SPIN: Duration = Duration::from_micros(150);

/// Whether a guardian process is to watch over the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarding {
    /// Start one.
    Guarded,
    /// The target may die with the tracer.
    Unguarded,
    /// Make one of this process.
    #[cfg(test)]
    Copied,
}

/// The engine; see the module.
#[derive(Debug)]
pub struct Int3 {
    pid: i32,
    memory: Memory,
    arena: Option<Arena>,
    caller: Option<RemoteCaller>,
    landing: TargetAddr,
    threads: HashMap<i32, ThreadCalls>,
    /// Processes that share the target's memory for a while (vfork), traced but never measured.
    borrowers: HashSet<i32>,
    /// A thread that stays stopped until the next poll: the first of a launched program, and one that has just
    /// loaded a library.
    parked: Option<Stopped>,
    /// Threads of which a stop could not be handled, and that stop: they stand still until they are let go.
    left_stopped: HashMap<i32, Event>,
    points: Points,
    /// Whether a thread may return to the arena, from a signal handler or from a long wait: it is not given back then.
    returns_to_arena: bool,
    /// The measured copies of `syscall` instructions, and where their threads go on.
    measured_syscalls: HashMap<TargetAddr, TargetAddr>,
    /// What the guardian is to do about the traps in the arena.
    arena_debts: Vec<u32>,
    syscall_copies: HashMap<TargetAddr, SyscallCopies>,
    continuations: Continuations,
    edges: Edges,
    /// Stack slots that held the landing pad when their frame was given up, and what belongs there.
    abandoned: HashMap<u64, Abandoned>,
    /// When there are so many, it is looked which of them still hold it.
    most_abandoned: usize,
    stacks: Stacks,
    generation: u64,
    /// What is read when f0 is entered.
    chain: Option<Chain>,
    /// How threads go on after a stop; there once the arena is.
    departures: Option<Departures>,
    stop_times: StopTimes,
    turns: Turns,
    /// Those whose ops are told, where not all are.
    chosen: Option<Arc<Chosen>>,
    cost: ProbeCost,
    ledger: Ledger,
    _guardian: Option<Guardian>,
    counters: Counters,
    libraries_changed: bool,
    last_stop: Instant,
    /// Threads that were passed a signal that ends their process with a core dump, and have not stopped again.
    dumps_core: HashSet<i32>,
    /// Whether the last of them has dumped its core, or has not, and the process goes on without its probes.
    probes_are_out: bool,
    /// How the thread ended that ended last.
    last_end: Option<Notice>,
    /// How the process ended, once it has.
    end: Option<Notice>,
}

impl Int3 {
    /// Attaches to all threads of a running process. No thread is stopped.
    ///
    /// # Errors
    /// When the permission is lacking or the process is gone.
    pub fn attach(pid: i32, guarding: Guarding) -> Result<Int3> {
        let mut engine = Int3::new(pid, guarding)?;
        for tid in threads::seize_all(pid, OPTIONS)? {
            engine.threads.insert(tid, ThreadCalls::new(tid));
            engine.turns.join([tid]);
        }
        engine.seize_guests()?;
        Ok(engine)
    }

    /// Traces the guests that are there already, and theirs. Those that are made from now on are traced by themselves.
    fn seize_guests(&mut self) -> Result<()> {
        let mut makers: Vec<i32> = self.threads.keys().copied().collect();
        while !makers.is_empty() {
            let mut found = guests::of(self.pid, makers);
            found.retain(|guest| !self.borrowers.contains(guest));
            makers = Vec::new();
            for guest in found {
                match threads::seize_all(guest, OPTIONS) {
                    Ok(seized) => makers.extend(seized),
                    Err(error) if guests::is_still(self.pid, guest) => return Err(error),
                    // It has executed a program of its own meanwhile.
                    Err(_) => {}
                }
            }
            self.borrowers.extend(&makers);
            self.turns.join(makers.iter().copied());
        }
        Ok(())
    }

    /// Takes over a program that [`crate::launch::launch`] started with [`OPTIONS`].
    ///
    /// # Errors
    /// When its memory cannot be opened.
    pub fn launched(thread: Stopped, guarding: Guarding) -> Result<Int3> {
        let pid = thread.tid();
        let mut engine = Int3::new(pid, guarding)?;
        engine.threads.insert(pid, ThreadCalls::new(pid));
        engine.turns.join([pid]);
        engine.parked = Some(thread);
        Ok(engine)
    }

    fn new(pid: i32, guarding: Guarding) -> Result<Int3> {
        let ledger = Ledger::create()?;
        let memory = Memory::open(pid)?;
        let guardian = match guarding {
            Guarding::Guarded => Some(Guardian::start(pid, &memory, &ledger)?),
            Guarding::Unguarded => None,
            #[cfg(test)]
            Guarding::Copied => Some(Guardian::copied(&memory, &ledger)),
        };
        Ok(Int3 {
            pid,
            memory,
            arena: None,
            caller: None,
            landing: TargetAddr(0),
            threads: HashMap::new(),
            borrowers: HashSet::new(),
            parked: None,
            left_stopped: HashMap::new(),
            points: Points::default(),
            returns_to_arena: false,
            measured_syscalls: HashMap::new(),
            arena_debts: Vec::new(),
            syscall_copies: HashMap::new(),
            continuations: Continuations::default(),
            edges: Edges::default(),
            abandoned: HashMap::new(),
            most_abandoned: 0,
            stacks: Stacks::default(),
            generation: 0,
            chain: None,
            departures: None,
            stop_times: StopTimes::new(pid),
            turns: Turns::default(),
            chosen: None,
            cost: ProbeCost::default(),
            ledger,
            _guardian: guardian,
            counters: Counters::default(),
            libraries_changed: false,
            last_stop: Instant::now(),
            dumps_core: HashSet::new(),
            probes_are_out: false,
            last_end: None,
            end: None,
        })
    }

    /// Sets what a probe costs, as calibrated; it is taken out of every latency.
    pub fn set_cost(&mut self, calibration: &Calibration) {
        self.stop_times.begin_with(calibration.delivery.clone());
        self.cost = calibration.cost;
    }

    /// Whether the target has ended, is about to, or has become another program: what was mapped is not there any more.
    fn is_lost(&self) -> bool {
        let arena = self.arena.as_ref().map(|arena| arena.extent().0);
        arena.is_some_and(|start| self.memory.read(start, &mut [0]).is_err())
    }

    /// Maps the memory for the landing pad and the copies, once, near the first instrumented code.
    fn prepare_arena(&mut self, near: TargetAddr) -> Result<()> {
        if self.arena.is_some() {
            return Ok(());
        }
        let mappings = maps::read(self.pid)?;
        let ground = Ground::of(self.pid, &mappings);
        let arena = Amount {
            all: ARENA_BYTES,
            data: departure::DATA_BYTES,
            promised: departure::DATA_BYTES,
        };
        limits::check(self.pid, Amount::default(), arena)?;
        preflight::check_shadow_stack(self.pid)?;
        let caller = RemoteCaller::find(self.pid, &self.memory, &mappings)?;
        let since = Instant::now();
        let (mut arena, data) = self.with_stopped_thread(|_, thread| {
            caller.borrow([thread], &mappings, |worker| {
                let at = Arena::gap_near(&ground, near, ARENA_BYTES)?;
                let mut arena = Arena::map_at(worker, at, ARENA_BYTES)?;
                match arena.make_end_writable(worker, departure::DATA_BYTES) {
                    Ok(data) => Ok((arena, data)),
                    Err(error) => {
                        arena.unmap(worker)?;
                        Err(error)
                    }
                }
            })
        })?;
        self.counters.pauses.push(since.elapsed());
        self.landing = arena.place(&self.memory, &LANDING)?;
        self.arena_debts.extend(self.ledger.enter(Debt::Text {
            addr: self.landing.0 + LANDING_TRAP,
            original: PASS,
        }));
        self.departures = Departures::new(&mut arena, data);
        self.caller = Some(caller);
        self.arena = Some(arena);
        Ok(())
    }

    /// Stops one thread, preferably one that is not blocked in a system call, for `work`.
    fn with_stopped_thread<T>(
        &mut self,
        work: impl FnOnce(&mut Int3, &mut Stopped) -> Result<T>,
    ) -> Result<T> {
        if let Some(mut thread) = self.parked.take() {
            let outcome = work(self, &mut thread);
            self.parked = Some(thread);
            return outcome;
        }
        let mut tids: Vec<i32> = self.threads.keys().copied().collect();
        tids.sort_by_key(|&tid| match threads::state(tid) {
            Some('R') => 0,
            Some('S') => 1,
            Some('T' | 't') => 2,
            _ => 3,
        });
        let mut none = Error::ThreadGone { tid: self.pid };
        let mut tids = VecDeque::from(tids);
        while let Some(tid) = tids.pop_front() {
            if !threads::interrupt(tid)? {
                continue;
            }
            let event = match self.wait_before_arming(tid) {
                Ok(Some(event)) => event,
                Ok(None) => {
                    self.forget_thread(tid);
                    continue;
                }
                // It reports its stop when it comes to it.
                Err(late @ Error::Busy(_)) => {
                    none = late;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut thread = match event {
                Event::Exited(_) | Event::Killed(_) => {
                    self.note_end(tid, event);
                    continue;
                }
                Event::Spawned(Spawn::Vfork) => {
                    // It goes on to wait for the child, and does nothing for us before that has gone its own way.
                    self.clean_child_of(tid)?;
                    unless_gone(Stopped::observed(tid, 0).resume())?;
                    tids.push_back(tid);
                    continue;
                }
                _ => Stopped::observed(tid, 0),
            };
            if thread.hide_interruption()?.are_of_kernel() {
                unless_gone(thread.resume())?;
                continue;
            }
            let outcome = work(self, &mut thread);
            let outcome = outcome.and_then(|done| self.clean_for_core(&thread).map(|()| done));
            // A thread that was in a group stop goes back into it: it reports that first thing, since the
            // stop that it is in now is another one.
            if matches!(event, Event::GroupStop(_)) {
                threads::interrupt(tid)?;
            }
            let resumed = thread.resume();
            unless_gone(resumed)?;
            return outcome;
        }
        Err(none)
    }

    /// How to go on behind a breakpoint at `addr`, made from the program's own bytes, which may be others than when
    /// one was there before.
    pub(super) fn continuation(&mut self, addr: TargetAddr) -> Result<Continuation> {
        let mut bytes = [0; continuations::LONGEST];
        let readable = (1..=bytes.len())
            .rev()
            .find(|&len| self.memory.read(addr, &mut bytes[..len]).is_ok())
            .unwrap_or(0);
        let bytes = &mut bytes[..readable];
        self.points.hide_from(addr, bytes);
        let arena = self
            .arena
            .as_mut()
            .expect("mapped before anything is armed");
        self.continuations.get(&self.memory, arena, addr, bytes)
    }

    fn syscall_copies(&mut self, addr: TargetAddr, next: TargetAddr) -> Result<SyscallCopies> {
        if let Some(&known) = self.syscall_copies.get(&addr) {
            return Ok(known);
        }
        let arena = self
            .arena
            .as_mut()
            .expect("mapped before anything is armed");
        let mut plain = vec![0x0f, 0x05];
        plain.extend(JMP_INDIRECT);
        plain.extend(next.0.to_le_bytes());
        let copies = SyscallCopies {
            measured: arena.place(&self.memory, &landing::syscall_copy(next.0))?,
            plain: arena.place(&self.memory, &plain)?,
        };
        // A thread that is blocked in the call when we die goes on without us.
        let debt = Debt::Text {
            addr: copies.measured.0 + SYSCALL_TRAP,
            original: PASS,
        };
        self.arena_debts.extend(self.ledger.enter(debt));
        self.measured_syscalls.insert(copies.measured, next);
        self.syscall_copies.insert(addr, copies);
        Ok(copies)
    }

    /// Finds a stop to be handled, and when it was noticed. It is left, as by [`sys::look_any`].
    fn next_stop(&mut self) -> std::result::Result<Option<(sys::WaitStatus, Tsc)>, Errno> {
        let Some(found) = sys::look_any()? else {
            return Ok(None);
        };
        let at = sys::tsc();
        let chosen = self.turns.choose(found, sys::look_now);
        let is_found = chosen.0 == found.0;
        Ok(Some((chosen, if is_found { at } else { sys::tsc() })))
    }
}

/// `jmp [rip+0]`: to the address in the eight bytes that follow, however far.
const JMP_INDIRECT: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

impl Engine for Int3 {
    fn kind(&self) -> EngineKind {
        EngineKind::Int3
    }

    fn apply(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        if !self.dumps_core.is_empty() {
            // What is armed now would be in the core dump. Should the process live, a notice says so.
            return Ok(Vec::new());
        }
        match self.bring_to(plan) {
            Ok(refused) if refused.is_empty() => Ok(refused),
            // The poll that follows says how the target ended.
            _ if self.is_lost() => Ok(Vec::new()),
            outcome => outcome,
        }
    }

    fn choose_threads(&mut self, threads: Arc<Chosen>) {
        self.chosen = Some(threads);
    }

    fn poll(&mut self, wait: Duration, sink: &mut dyn Sink) -> Result<Option<Notice>> {
        let since = Instant::now();
        if let Some(thread) = self.parked.take() {
            unless_gone(thread.resume())?;
        }
        if let Some(chosen) = &self.chosen {
            chosen.refresh();
        }
        let mut attention = Attention::Awake;
        if self.end.is_some() {
            return Ok(self.end);
        }
        loop {
            loop {
                if std::mem::take(&mut self.probes_are_out) {
                    return Ok(Some(Notice::ProbesTakenOut));
                }
                match self.next_stop() {
                    Ok(Some(((tid, status), at))) => {
                        self.last_stop = Instant::now();
                        let noticed = Noticed { at, attention };
                        attention = Attention::Awake;
                        let event = decode(status);
                        let outcome = self.stop(tid, event, noticed, sink);
                        tracing::trace!(
                            target: "tracer::stop",
                            tid,
                            ?event,
                            handled = ?self.last_stop.elapsed(),
                            "a thread stopped"
                        );
                        if let Some(notice) = outcome? {
                            return Ok(Some(notice));
                        }
                    }
                    Ok(None) | Err(Errno::ECHILD) if self.has_ended_unreported() => {
                        return Ok(self.end);
                    }
                    Ok(None) => break,
                    Err(Errno::EINTR) => return Ok(None),
                    Err(errno) => return Err(Error::ptrace("wait for", self.pid, errno)),
                }
                if since.elapsed() >= wait {
                    return Ok(None);
                }
            }
            let Some(left) = wait
                .checked_sub(since.elapsed())
                .filter(|left| !left.is_zero())
            else {
                return Ok(None);
            };
            // Sleeping and being woken costs more than most calls take, so a thread that has just
            // stopped is expected to stop again soon.
            if self.last_stop.elapsed() < SPIN {
                std::thread::yield_now();
                continue;
            }
            child_signal::wait(left);
            attention = Attention::Asleep;
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.let_go()
    }

    fn counters(&self) -> Counters {
        Counters {
            bytes_differing: self.points.bytes_differing(),
            ..self.counters.clone()
        }
    }

    fn end(&self) -> Option<Notice> {
        self.end
    }

    fn cost(&self) -> ProbeCost {
        ProbeCost {
            of_caller: self.stop_times.accuracy().unwrap_or(self.cost.of_caller),
            ..self.cost
        }
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn read_code(&self, addr: TargetAddr, buffer: &mut [u8]) -> bool {
        let readable = self.memory.read(addr, buffer).is_ok();
        self.points.hide_from(addr, buffer);
        readable
    }
}
