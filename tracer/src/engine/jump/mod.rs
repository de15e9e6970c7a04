//! The `jump` engine: call sites and f0's entry become jumps to stubs in memory near them. No traps.
//!
//! While it measures nobody traces the target: all threads are stopped for less than a millisecond
//! when the plan changes, and run free otherwise. What the stubs record is read from shared memory.
//! A tracer that is killed leaves a target that goes on correctly; the next one finds what was left
//! and removes it first.

mod asm;
mod awaited;
mod calibrate;
mod coverage;
mod delivery;
mod detach;
mod exits;
mod flags;
mod function;
mod installed;
mod interrupted;
mod jumps;
mod launched;
mod layout;
mod leftovers;
mod mapping;
mod moves;
mod ops;
mod owners;
mod pages;
mod patches;
mod prepare;
mod price;
mod profiler;
mod recycling;
mod removal;
mod ring;
mod runtime;
mod shared;
mod space;
mod spans;
#[cfg(test)]
mod stub_tests;
mod stubs;
mod tree;
mod unwinding;
mod watch;
pub(crate) mod world;

use std::collections::{BTreeSet, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::FunctionCode;

use crate::addr::TargetAddr;
use crate::chosen::Chosen;
use crate::effort::{Pace, Price};
use crate::engine::{Begun, Counters, Engine, EngineKind, Notice, ProbeCost, Refused, Sink};
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::limits;
use crate::maps::{self, Mapping, SharedCode};
use crate::memory::Memory;
use crate::plan::{Callees, Goroutines, Mark, Plan};
use crate::remote_call::RemoteCaller;
use crate::stacks::Stack;
use crate::stopped::Stopped;
use crate::threads::{self, SignalMasks};
use darc_record::{FnodeId, Ticks, Tsc};

pub use calibrate::{Calibration, calibrate};
pub use coverage::{Coverage, Judged};
pub use detach::{Cleared, clear_leftovers};
pub use launched::OPTIONS;
#[cfg(test)]
pub use leftovers::descriptors as left_descriptors;
pub use leftovers::heirs;
pub use profiler::{BucketCount, Counts, Profiler, calibrate_counting};

pub use asm::Delaying;
use installed::{Costs, Room};
use layout::{HEADER, header, ring as ring_layout};
use moves::Moves;
use owners::Owners;
use patches::Patch;
use price::Prices;
use recycling::Recycling;
use removal::SyscallEnds;
use ring::Rings;
use space::{Placed, Space};
use watch::{Haste, Watch};
use world::World;

/// The engine; see the module.
#[derive(Debug)]
pub struct Jump {
    pid: i32,
    memory: Memory,
    /// A program that was just started, until the first poll.
    parked: Option<Stopped>,
    space: Option<Space>,
    watch: Watch,
    notices: VecDeque<Notice>,
    /// Even while measuring, odd while the instrumentation changes.
    generation: u32,
    /// Since which all probes of the plan have been there: a library that is loaded again has lost them until the plan is applied anew.
    whole_since: u32,
    costs: Costs,
    cost: ProbeCost,
    /// What these costs are of, where probes follow goroutines.
    calibrated: Option<Goroutines>,
    filter: Vec<(u64, u64)>,
    sampling: Sampling,
    recycling: Recycling,
    /// Since the last reading.
    spent: Vec<delivery::Spent>,
    /// Those whose ops are told, where not all are.
    threads: Option<Arc<Chosen>>,
    owners: Owners,
    /// How many ops of these were told of by their latency alone.
    told: u64,
    counters: Counters,
    room: Room,
    /// What is known of the functions of a program of goroutines.
    callees: Arc<Callees>,
    /// The root of the second ftree.
    serving: Option<FnodeId>,
    /// What the stubs wrote to, after they are gone.
    past: Option<Rings>,
    /// The system calls of what has been removed.
    ends: SyscallEnds,
    pace: Pace,
    /// Whether no room was given the last time, so that no call has been measured since.
    rested: bool,
    /// Whether calls are measured where there is room, and whether they were at any time since the last time.
    has_calls: bool,
    had_calls: bool,
    /// What stubs have taken of the target, since that was asked for, and what tells.
    price: Price,
    prices: Prices,
    /// Which threads' accounts are looked at next.
    turn: usize,
}

/// Which ops are written in full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sampling {
    /// As many as there is room for.
    All,
    /// So many of each latency range that analyses have enough; the others are counted.
    Enough,
}

impl Jump {
    /// Takes charge of a running process. Nothing is touched yet, unless an earlier tracer left
    /// something: that is removed.
    ///
    /// # Errors
    /// When the permission is lacking or the process is gone.
    pub fn attach(pid: i32) -> Result<Jump> {
        let cleared = clear_leftovers(pid)?;
        tracing::debug!(target: "tracer", pid, ?cleared, "looked for what an earlier tracer left");
        Jump::new(pid, None)
    }

    /// Takes over a program that [`crate::launch::launch`] started with [`OPTIONS`], of Go (`is_go`) or not, as long as it is
    /// wanted.
    ///
    /// # Errors
    /// When the program ends or gets no thread pointer before it does anything, or is not wanted any more.
    pub fn launched(thread: Stopped, is_go: bool, is_wanted: &dyn Fn() -> bool) -> Result<Jump> {
        let pid = thread.tid();
        let thread = launched::run_to_thread_pointer(thread, is_go, is_wanted)?;
        let mut engine = Jump::new(pid, Some(thread))?;
        // The dynamic linker has mapped what the program starts with, which it would announce twice.
        engine.notices.extend([Notice::LibrariesChanged; 2]);
        Ok(engine)
    }

    /// From now on every op is written in full, as long as there is room for it.
    pub fn record_all(&mut self) {
        self.sampling = Sampling::All;
    }

    /// Calls can be delayed ([`Engine::delay`]), at a price of some cycles a measured call. Only before the first plan.
    #[must_use]
    pub fn with_delays(mut self, how: Delaying) -> Jump {
        self.room.delays = Some(how);
        self
    }

    fn new(pid: i32, parked: Option<Stopped>) -> Result<Jump> {
        Ok(Jump {
            pid,
            memory: Memory::open(pid)?,
            watch: Watch::new(pid, parked.is_some())?,
            parked,
            space: None,
            notices: VecDeque::new(),
            generation: 0,
            whole_since: 0,
            costs: Costs::default(),
            cost: ProbeCost::default(),
            calibrated: None,
            filter: Vec::new(),
            sampling: Sampling::Enough,
            recycling: Recycling::new(pid),
            spent: Vec::new(),
            threads: None,
            owners: Owners::default(),
            told: 0,
            counters: Counters::default(),
            room: Room::default(),
            callees: Arc::default(),
            serving: None,
            past: None,
            ends: SyscallEnds::default(),
            pace: Pace::InBatches,
            rested: false,
            has_calls: false,
            had_calls: false,
            price: Price::default(),
            prices: Prices::default(),
            turn: 0,
        })
    }

    /// Sets what probes cost, as calibrated; it is taken out of every latency.
    pub fn set_cost(&mut self, calibration: &Calibration) {
        self.costs = calibration.costs;
        self.cost = calibration.cost;
        self.calibrated = calibration.goroutines;
    }

    /// Whether the target has ended, is about to, or has become another program.
    fn is_lost(&self) -> bool {
        let there = |space: &Space| space.installed.is_there(&self.memory);
        !self.watch.is_alive() || self.space.as_ref().is_some_and(|space| !there(space))
    }

    /// Does something while those threads of the target stand still that slept, and nothing runs in it after
    /// [`World::hold`].
    fn while_stopped<T: Send>(
        &mut self,
        work: impl FnOnce(&mut World) -> Result<T> + Send,
    ) -> Result<T> {
        if let Some(thread) = self.parked.take() {
            let (thread, outcome) = world::parked(thread, work);
            self.parked = Some(thread);
            return outcome.unwrap_or_else(|panic| panic::resume_unwind(panic));
        }
        let (value, pause) = world::stopped_in_turn(self.pid, work)?;
        self.counters.pauses.push(pause);
        Ok(value)
    }

    /// Has one thread of the target make system calls; the others run.
    fn with_worker<T: Send>(
        &mut self,
        caller: RemoteCaller,
        mappings: &[Mapping],
        work: impl FnOnce(&mut World) -> Result<T> + Send,
    ) -> Result<T> {
        if self.parked.is_some() {
            return self.while_stopped(work);
        }
        let suits = |thread: &Stopped| caller.suits(thread, mappings);
        let (value, pause) = world::one(self.pid, suits, work)?;
        self.counters.pauses.push(pause);
        Ok(value)
    }

    /// Makes the mappings, and arenas near all of `near`.
    fn install(&mut self, near: &[u64]) -> Result<()> {
        let has_room = |space: &mut Space, addr| {
            let arena = space.installed.arena_near(addr, prepare::STUB_ROOM);
            arena.is_some()
        };
        let mut missing = near.to_vec();
        if let Some(space) = &mut self.space {
            missing.retain(|&addr| !has_room(space, addr));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let pid = self.pid;
        let memory = self.memory.again()?;
        let mappings = maps::read(pid)?;
        let ground = self.ground(&mappings);
        if self.space.is_none() {
            let left = leftovers::find(pid, &memory).into_iter();
            let left = left.flat_map(|it| it.installed.code).collect();
            let exits = exits::of((pid, &memory), left, &mappings)?;
            let space = self.map_space(&memory, &mappings)?;
            let space = self.space.insert(space);
            space.patches.note_ways_back(exits);
            if detach::is_anothers(&leftovers::find(pid, &memory), &memory) {
                // It looked at the same moment. Whoever comes later sees the earlier one, or both see each other.
                return Err(detach::taken(pid));
            }
        }
        let outcome = self.with_space(|engine, space| {
            let caller = space.installed.caller;
            let outcome = engine.with_worker(caller, &mappings, |world| {
                if !space.installed.is_there(&memory) {
                    // Another program runs by now, in which nothing must be mapped.
                    return Err(Error::ThreadGone { tid: pid });
                }
                for addr in missing {
                    if !has_room(space, addr) {
                        // Without it the places near `addr` are refused, each with this reason.
                        let installed = &mut space.installed;
                        installed.uncrowd(addr);
                        match installed.add_arena(pid, &memory, world, (&mappings, &ground), addr) {
                            Err(busy @ Error::Busy(_)) => return Err(busy),
                            Err(error) if !error.is_gone() => {
                                tracing::debug!(target: "tracer", %error, addr, "no arena");
                                installed.crowded.push((addr, error.to_string()));
                            }
                            _ => {}
                        }
                    }
                }
                match space.installed.is_filled() {
                    // The target could run meanwhile, but a library that comes and goes would be gone before the probes are set.
                    true => space.installed.fill(&memory),
                    false => Ok(()),
                }
            });
            // The first time nothing is awaited: nobody need stand still.
            outcome.and_then(|()| space.installed.fill(&memory))
        });
        outcome.transpose()?;
        self.write_filter()
    }

    /// Does something with what is in the target, if anything is. Whatever comes of it, a panic included: what is there must be
    /// known, to be removed.
    fn with_space<T>(&mut self, work: impl FnOnce(&mut Jump, &mut Space) -> T) -> Option<T> {
        let mut space = self.space.take()?;
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| work(self, &mut space)));
        self.space = Some(space);
        Some(outcome.unwrap_or_else(|panic| panic::resume_unwind(panic)))
    }

    /// Where memory may be mapped, with these mappings.
    fn ground(&self, mappings: &[Mapping]) -> Ground {
        match self.room.goroutines {
            Some(known) => Ground::of_goroutines(self.pid, mappings, known.calls_c),
            None => Ground::of(self.pid, mappings),
        }
    }

    /// How soon the rings are to be looked at again.
    fn haste(&self) -> Haste {
        match (self.sampling, self.pace) {
            (Sampling::All, _) => Haste::Soon,
            (Sampling::Enough, Pace::AsRecordsCome) => Haste::AsRecordsCome,
            (Sampling::Enough, Pace::InBatches) => Haste::InBatches,
            (Sampling::Enough, Pace::Rest) => Haste::None,
        }
    }

    fn write_filter(&self) -> Result<()> {
        let Some(space) = &self.space else {
            return Ok(());
        };
        let at = space.installed.around.control + HEADER + header::FILTER;
        // A stub that reads both old and new ranges writes a record too many or counts an op that it
        // need not have: both are right.
        self.memory
            .write(TargetAddr(at), &filter_bytes(&self.filter))
    }

    /// Brings the target to the plan; the process is known to have the needed mappings.
    fn instrument(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        self.with_space(|engine, space| engine.change(space, plan))
            .unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Prepares what the plan wants, with all memory that it needs; the process' mappings as they were then.
    fn prepare(&mut self, space: &mut Space, plan: &Plan) -> Result<(Placed, Vec<Mapping>)> {
        /// So often pages are asked for instead of those that could not be mapped.
        const ROUNDS: usize = 4;
        /// So many pieces of memory are mapped in one stop.
        const AT_ONCE: usize = 64;
        let memory = self.memory.again()?;
        let mut round = 0;
        loop {
            let mappings = maps::read(self.pid)?;
            let ground = self.ground(&mappings);
            let room = match round < ROUNDS {
                true => limits::for_code(self.pid, space.installed.amount()),
                false => Some(0),
            };
            let ground = match room {
                Some(room) => ground.with_most(space.jumps.pages.most_within(room)),
                None => ground,
            };
            let placed = space.prepare(&memory, plan, ground)?;
            let lacking = std::mem::take(&mut space.installed.lacking);
            if !lacking.is_empty() {
                self.add_arenas(space, &memory, &mappings, lacking)?;
                continue;
            }
            let unmapped = space.jumps.pages.unmapped();
            if unmapped.is_empty() {
                space.write_trampolines(&memory)?;
                return Ok((placed, mappings));
            }
            let caller = space.installed.caller;
            for pages in unmapped.chunks(AT_ONCE) {
                let map = |world: &mut World| space.map_pages(&memory, world, &mappings, pages);
                self.with_worker(caller, &mappings, map)?;
            }
            round += 1;
        }
    }

    /// Maps more arenas, where stubs of a plan have used up those that there are. It remembers near which code there is no room.
    fn add_arenas(
        &mut self,
        space: &mut Space,
        memory: &Memory,
        mappings: &[Mapping],
        lacking: BTreeSet<u64>,
    ) -> Result<()> {
        let (pid, caller) = (self.pid, space.installed.caller);
        let ground = self.ground(mappings);
        self.with_worker(caller, mappings, |world| {
            let installed = &mut space.installed;
            if !installed.is_there(memory) {
                // Another program runs by now, in which nothing must be mapped.
                return Err(Error::ThreadGone { tid: pid });
            }
            for addr in lacking {
                if installed.arena_near(addr, prepare::STUB_ROOM).is_some() {
                    continue;
                }
                match installed.add_arena(pid, memory, world, (mappings, &ground), addr) {
                    Ok(()) => installed.fill(memory)?,
                    Err(error) if error.is_gone() => return Err(error),
                    Err(busy @ Error::Busy(_)) => return Err(busy),
                    Err(error) => {
                        tracing::debug!(target: "tracer", %error, addr, "no arena");
                        installed.crowded.push((addr, error.to_string()));
                    }
                }
            }
            Ok(())
        })
    }

    /// Forgets the probes that a library which was loaded again has lost. Ops of this generation may have met none of them: they
    /// tell their latencies alone. Whether there were any.
    fn forget_lost_probes(&mut self, space: &mut Space) -> bool {
        let any = space.patches.forget_taken_out(&self.memory);
        if any {
            self.whole_since = self.generation + 1;
        }
        any
    }

    fn change(&mut self, space: &mut Space, plan: &Plan) -> Result<Vec<Refused>> {
        // What is kept must be there; what was lost is written again.
        self.forget_lost_probes(space);
        let ((wanted, mut refused), mappings) = self.prepare(space, plan)?;
        space.patches.forget_unmapped(&mappings);
        let shared = SharedCode::among(&mappings);
        let remove: Vec<u64> = space
            .patches
            .addresses()
            .filter(|at| wanted.get(at) != space.patches.get(*at))
            .collect();
        let remove = space.patches.with_reliant(remove);
        // As long as f0 is not entered through a stub, whatever must be left alone in it means all of it.
        let entered = |f0: &FunctionCode| {
            let mut places = space.patches.addresses();
            places.any(|at| f0.bytes_at(at, 1).is_some())
        };
        let new_f0 = plan.f0.clone().filter(|f0| !entered(f0));
        let unmeasured = refused.iter().map(|refused| refused.addr.0).collect();
        let entries = space.entries();
        let mut refuse = |at: u64, reason| {
            let f0 = new_f0.as_ref().filter(|f0| f0.bytes_at(at, 1).is_some());
            let entry = f0.map(|f0| f0.entry()).or(entries.get(&at).copied());
            let addr = TargetAddr(entry.unwrap_or(at));
            refused.push(Refused { addr, reason });
        };
        let mut add: Vec<Patch> = wanted
            .into_values()
            .filter(|patch| {
                space.patches.get(patch.at) != Some(patch) || remove.contains(&patch.at)
            })
            .collect();
        add.retain(|patch| match patch.refusal(&shared) {
            Some(reason) => {
                refuse(patch.at, reason);
                false
            }
            None => true,
        });
        tracing::debug!(
            target: "tracer",
            functions = plan.functions.len(),
            remove = remove.len(),
            add = add.len(),
            returning_to_landings = add.iter().map(|patch| patch.landings.len()).sum::<usize>(),
            "changing the probes"
        );
        self.generation |= 1;
        space
            .installed
            .set_generation(&self.memory, self.generation)?;
        let (targets, left_out) = space.tree.write(&self.memory, plan, &unmeasured)?;
        self.generation = self.generation.wrapping_add(1).max(2);
        let (memory, generation) = (self.memory.again()?, self.generation);
        let (remove, add) = self.change_most(space, plan, remove, add, &mappings)?;
        let written = self.while_stopped(|world| {
            let early = Moves::of(&memory, &mappings, world.threads(), &add)?;
            world.hold()?;
            space.tree.write_targets(&memory, &targets)?;
            let control = space.installed.around.control;
            let written = space
                .patches
                .change(&memory, world, control, &remove, add, &early)?;
            space.installed.set_generation(&memory, generation)?;
            Ok(written)
        })?;
        self.has_calls = !plan.edges.is_empty() && !plan.sites_are_away;
        self.had_calls |= self.has_calls;
        // It may have been lost while the others were prepared.
        if self.forget_lost_probes(space) {
            self.watch.was_away();
        }
        for at in written {
            match self.memory.read(TargetAddr(at), &mut [0]) {
                Ok(()) => refuse(at, REWRITTEN.to_owned()),
                // A library that is away for a moment, maybe.
                Err(_) => self.watch.was_away(),
            }
        }
        refused.extend(left_out);
        Ok(refused)
    }
}

/// Why code is left alone that is not what it was when it was read.
const REWRITTEN: &str = "the program has written this code since it was read";

/// The ranges as the stubs read them. All of the table is written, and its last entry is always the same.
fn filter_bytes(ranges: &[(u64, u64)]) -> Vec<u8> {
    let wanted = match ranges {
        [] => &[(0, u64::MAX)],
        ranges => ranges,
    };
    let others = std::iter::repeat((0, u64::MAX, 0));
    (0..)
        .zip(wanted)
        .map(|(index, &(first, last))| (first, last, ring_layout::BUDGETS + 8 * index))
        .chain(others)
        .take(header::FILTERS)
        .flat_map(|(first, last, budget)| [first, last, budget])
        .flat_map(u64::to_le_bytes)
        .collect()
}

impl Engine for Jump {
    fn kind(&self) -> EngineKind {
        EngineKind::Jump
    }

    fn leaves_target_untraced(&self) -> bool {
        self.parked.is_none()
    }

    fn apply(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        let nothing = plan.is_empty();
        self.watch.expect_libraries(nothing);
        if self.watch.end().is_some() || (nothing && self.space.is_none()) {
            return Ok(Vec::new());
        }
        if self.space.is_none() {
            self.room.goroutines = plan.goroutines;
            self.room.field = plan.field;
        }
        let path = plan.asynchronous.as_ref();
        self.serving = path.map(|path| path.root);
        if path.is_some() || plan.field.is_some() {
            // Which op a request is of, and what an op is a part of, is known from the op's record alone.
            self.sampling = Sampling::All;
        }
        let codes = plan
            .f0
            .iter()
            .chain(path.iter().flat_map(|path| path.codes()))
            .chain(plan.counted.iter().map(|function| &function.code))
            .chain(plan.counted_sites.iter().map(|sites| &sites.code))
            .chain(plan.functions.iter().map(|function| &function.code))
            .chain(plan.markers.iter().map(|marker| &marker.code))
            .chain(&plan.statuses);
        let hooks = plan
            .unwinders
            .iter()
            .chain(&plan.catchers)
            .chain(&plan.finders)
            .map(|addr| addr.0);
        let near: Vec<u64> = codes
            .flat_map(|code| code.parts().iter().map(|part| part.start))
            .chain(hooks)
            .collect();
        let outcome = self.install(&near).and_then(|()| self.instrument(plan));
        match outcome {
            // The poll that follows says how the target ended.
            Err(error) if error.is_gone() || self.is_lost() => Ok(Vec::new()),
            outcome => outcome,
        }
    }

    fn follow(&mut self, goroutines: Goroutines, callees: Callees) -> Result<()> {
        self.callees = Arc::new(callees);
        if self.calibrated != Some(goroutines) {
            self.set_cost(&calibrate(Some(goroutines))?);
        }
        Ok(())
    }

    fn ops_in_progress(&self) -> Vec<Begun> {
        self.begun()
    }

    fn stack_of(&self, op: Begun) -> Result<Option<(Stack, Duration)>> {
        self.copy_stack(op)
    }

    fn marked(&self, mark: Mark) -> u64 {
        let Some(space) = &self.space else { return 0 };
        let at = space.installed.around.control + HEADER + header::mark(mark);
        self.memory.read_word(TargetAddr(at)).unwrap_or(0)
    }

    fn set_filter(&mut self, latencies: &[std::ops::RangeInclusive<Ticks>]) {
        self.filter = match latencies.len() {
            0..header::FILTERS => latencies
                .iter()
                .map(|range| (range.start().0, range.end().0))
                .collect(),
            _ => Vec::new(),
        };
        // A target that is gone needs no filter.
        let _ = self.write_filter();
    }

    fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    fn rests(&self) -> bool {
        matches!(self.sampling, Sampling::Enough)
    }

    fn take_price(&mut self) -> Price {
        std::mem::take(&mut self.price)
    }

    fn poll(&mut self, wait: Duration, sink: &mut dyn Sink) -> Result<Option<Notice>> {
        if let Some(notice) = self.notices.pop_front() {
            return Ok(Some(notice));
        }
        if let Some(thread) = self.parked.take() {
            crate::error::unless_gone(thread.detach())?;
        }
        let since = Instant::now();
        loop {
            let before = self.counters.records;
            self.drain(sink);
            let notice = self.watch.look(&self.memory, self.space.as_ref());
            match notice {
                Some(Notice::Exec) => {
                    // It ran on between the last reading and the look.
                    self.drain(sink);
                    self.past = self.space.take().map(|space| space.rings);
                    self.prices = Prices::default();
                    if let Some(rings) = &self.past {
                        rings.add_to(&mut self.counters);
                    }
                    match Memory::open(self.pid) {
                        Ok(memory) => self.memory = memory,
                        // It has ended at once; the next look says how.
                        Err(_) => continue,
                    }
                }
                Some(Notice::Exited(_) | Notice::Killed(_) | Notice::Ended) => self.drain(sink),
                Some(Notice::ProbesTakenOut | Notice::LibrariesChanged) => {
                    self.with_space(Jump::forget_lost_probes);
                }
                _ => {}
            }
            let left = wait.saturating_sub(since.elapsed());
            if notice.is_some() || left.is_zero() {
                return Ok(notice);
            }
            let haste = self.haste();
            let records = self.counters.records - before;
            self.watch.sleep(left, records, haste);
        }
    }

    fn choose_threads(&mut self, threads: Arc<Chosen>) {
        self.threads = Some(threads);
    }

    fn delay(&mut self, fnode: FnodeId, by: Ticks, until: Tsc) -> Result<()> {
        let Some(space) = self.space.as_mut().filter(|_| self.room.delays.is_some()) else {
            return Ok(());
        };
        // Of who cannot be asked all signals count as handled.
        let masks = threads::living(self.pid).and_then(SignalMasks::of);
        let handled = masks.map_or(u64::MAX, |masks| masks.caught);
        let at = TargetAddr(space.installed.around.control + HEADER + header::HANDLED);
        let told = self.memory.write_word(at, handled);
        match told.and_then(|()| space.tree.delay(&self.memory, fnode, by, until)) {
            // The poll that follows says how the target ended.
            Err(error) if error.is_gone() || self.is_lost() => Ok(()),
            outcome => outcome,
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.let_go()
    }

    fn end(&self) -> Option<Notice> {
        self.watch.end()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters.clone();
        if let Some(space) = &self.space {
            space.rings.add_to(&mut counters);
        }
        if self.threads.is_some() {
            counters.sampled = self.told;
        }
        counters
    }

    fn cost(&self) -> ProbeCost {
        self.cost
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn read_code(&self, addr: TargetAddr, buffer: &mut [u8]) -> bool {
        if self.memory.read(addr, buffer).is_err() {
            return false;
        }
        if let Some(space) = &self.space {
            space.patches.hide_from(addr.0, buffer);
        }
        true
    }

    fn own_code(&self, pc: TargetAddr) -> TargetAddr {
        let ends = self.space.as_ref().map_or(&self.ends, |space| &space.ends);
        ends.original(pc.0).map_or(pc, TargetAddr)
    }
}
