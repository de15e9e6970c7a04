//! The `jump` engine: call sites and f0's entry become jumps to stubs in memory near them. No traps.
//!
//! While it measures nobody traces the target: all threads are stopped for less than a millisecond
//! when the plan changes, and run free otherwise. What the stubs record is read from shared memory.
//! A tracer that is killed leaves a target that goes on correctly; the next one finds what was left
//! and removes it first.

mod asm;
mod calibrate;
mod detach;
mod installed;
mod launched;
mod layout;
mod patches;
mod prepare;
mod ring;
mod runtime;
mod spans;
#[cfg(test)]
mod stub_tests;
mod stubs;
mod tree;
mod watch;
mod world;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::FunctionCode;

use crate::addr::TargetAddr;
use crate::engine::{Counters, Engine, NewTarget, Notice, ProbeCost, Refused, Sink};
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::Plan;
use crate::record::{Op, Ticks, Touched, Tsc};
use crate::stopped::Stopped;

pub use calibrate::{Calibration, calibrate};
pub use detach::{Cleared, clear_leftovers};
pub use launched::OPTIONS;

use installed::{Costs, Installed};
use layout::{FNODES, HEADER, block, header, place, targets};
use patches::{Patch, Patches};
use prepare::{Function, Part, Prepared, Stubs};
use ring::{Record, Rings};
use stubs::Hook;
use tree::{Place, Tree};
use watch::Watch;
use world::World;

/// What lives as long as the target's address space.
#[derive(Debug)]
struct Space {
    installed: Installed,
    rings: Rings,
    tree: Tree,
    patches: Patches,
    /// Everything prepared so far, by function and address of the patch.
    prepared: HashMap<(u64, u64), std::result::Result<Prepared, String>>,
    functions: HashMap<u64, Function>,
}

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
    costs: Costs,
    cost: ProbeCost,
    filter: Vec<(u64, u64)>,
    counters: Counters,
}

impl Jump {
    /// Takes charge of a running process. Nothing is touched yet, unless an earlier tracer left
    /// something: that is removed.
    ///
    /// # Errors
    /// When the permission is lacking or the process is gone.
    pub fn attach(pid: i32) -> Result<Jump> {
        clear_leftovers(pid)?;
        Jump::new(pid, None)
    }

    /// Takes over a program that [`crate::launch::launch`] started with [`OPTIONS`].
    ///
    /// # Errors
    /// When the program ends or gets no thread pointer before it does anything.
    pub fn launched(thread: Stopped) -> Result<Jump> {
        let pid = thread.tid();
        let thread = launched::run_to_thread_pointer(thread)?;
        let mut engine = Jump::new(pid, Some(thread))?;
        // The dynamic linker has mapped what the program starts with, which it would announce twice.
        engine.notices.extend([Notice::LibrariesChanged; 2]);
        Ok(engine)
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
            costs: Costs::default(),
            cost: ProbeCost::default(),
            filter: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Sets what probes cost, as calibrated; it is taken out of every latency.
    pub fn set_cost(&mut self, calibration: &Calibration) {
        self.costs = calibration.costs;
        self.cost = calibration.cost;
    }

    /// Whether the target has ended, is about to, or has become another program.
    fn is_lost(&self) -> bool {
        let there = |space: &Space| space.installed.is_there(&self.memory);
        !self.watch.is_alive() || self.space.as_ref().is_some_and(|space| !there(space))
    }

    /// Does something while nothing runs in the target.
    fn while_stopped<T: Send>(
        &mut self,
        work: impl FnOnce(&mut World) -> Result<T> + Send,
    ) -> Result<T> {
        if let Some(thread) = self.parked.take() {
            let (thread, outcome) = world::parked(thread, work);
            self.parked = Some(thread);
            return outcome;
        }
        let (value, pause) = world::stopped(self.pid, work)?;
        self.counters.pauses.push(pause);
        Ok(value)
    }

    /// Makes the mappings, and arenas near all of `near`.
    fn install(&mut self, near: &[u64]) -> Result<()> {
        let mut space = self.space.take();
        let missing: Vec<u64> = match &mut space {
            Some(space) => near
                .iter()
                .copied()
                .filter(|&addr| {
                    space
                        .installed
                        .arena_near(addr, prepare::STUB_ROOM)
                        .is_none()
                })
                .collect(),
            None => near.to_vec(),
        };
        if missing.is_empty() {
            self.space = space;
            return Ok(());
        }
        let memory = self.memory.again()?;
        let (pid, costs) = (self.pid, self.costs);
        let outcome = self.while_stopped(|world| {
            let mut space = match space {
                Some(space) => space,
                None => {
                    let (installed, rings) = Installed::install(pid, &memory, world, costs)?;
                    let tree = Tree::new(installed.around.control);
                    Space {
                        installed,
                        rings,
                        tree,
                        patches: Patches::default(),
                        prepared: HashMap::new(),
                        functions: HashMap::new(),
                    }
                }
            };
            for addr in missing {
                if space
                    .installed
                    .arena_near(addr, prepare::STUB_ROOM)
                    .is_none()
                {
                    // Without it the places near `addr` are refused, each with this reason.
                    if let Err(error) = space.installed.add_arena(pid, &memory, world, addr) {
                        tracing::debug!(%error, addr, "no arena");
                    }
                }
            }
            Ok(space)
        })?;
        self.space = Some(outcome);
        self.write_filter()
    }

    fn write_filter(&self) -> Result<()> {
        let Some(space) = &self.space else {
            return Ok(());
        };
        let at = space.installed.around.control + HEADER;
        let count = TargetAddr(at + header::FILTERS);
        self.memory.write(count, &0_u32.to_le_bytes())?;
        let ranges: Vec<u8> = self
            .filter
            .iter()
            .flat_map(|(first, last)| [first.to_le_bytes(), last.to_le_bytes()].concat())
            .collect();
        self.memory
            .write(TargetAddr(at + header::FILTER), &ranges)?;
        self.memory
            .write(count, &(self.filter.len() as u32).to_le_bytes())
    }

    /// Brings the target to the plan; the process is known to have the needed mappings.
    fn instrument(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        let mut refused = Vec::new();
        let Some(mut space) = self.space.take() else {
            return Ok(refused);
        };
        let outcome = self.change(&mut space, plan, &mut refused);
        self.space = Some(space);
        outcome.map(|()| refused)
    }

    fn change(&mut self, space: &mut Space, plan: &Plan, refused: &mut Vec<Refused>) -> Result<()> {
        let wanted = space.prepare(&self.memory, plan, refused)?;
        let remove: Vec<u64> = space
            .patches
            .addresses()
            .filter(|at| wanted.get(at) != space.patches.get(*at))
            .collect();
        let add: Vec<Patch> = wanted
            .into_values()
            .filter(|patch| space.patches.get(patch.at) != Some(patch))
            .collect();
        self.generation |= 1;
        space
            .installed
            .set_generation(&self.memory, self.generation)?;
        let (targets, left_out) = space.tree.write(&self.memory, plan)?;
        if left_out > 0 {
            tracing::debug!(left_out, "edges for which there is no room");
        }
        self.generation = self.generation.wrapping_add(1).max(2);
        let (memory, generation) = (self.memory.again()?, self.generation);
        self.while_stopped(|world| {
            space.tree.write_targets(&memory, &targets)?;
            let control = space.installed.around.control;
            space
                .patches
                .change(&memory, world, control, &remove, add)?;
            space.installed.set_generation(&memory, generation)
        })
    }

    fn drain(&mut self, sink: &mut dyn Sink) {
        let Some(space) = &mut self.space else { return };
        let used = space.installed.used_blocks(&self.memory);
        let Space {
            rings,
            tree,
            installed,
            ..
        } = space;
        let mut records = Vec::new();
        for index in 0..used.min(rings.count()) {
            rings.drain(index, |record| records.push(record));
            if !self.filter.is_empty() {
                rings.drain_histogram(index, |bucket, ops, total| {
                    sink.latency_only(Ticks(layout::bucket_start(bucket)), ops, Ticks(total));
                });
            }
        }
        self.counters.records += records.len() as u64;
        for record in records {
            match record {
                Record::Op { .. } => deliver(record, tree, self.generation, sink),
                Record::Target {
                    parent,
                    place,
                    callee,
                    answer,
                } => {
                    let found =
                        new_target(&self.memory, installed, tree, parent, place, callee, sink);
                    if tree.is_heap(answer) {
                        // A target that is gone is noticed elsewhere.
                        let _ = self.memory.write_word(TargetAddr(answer), found);
                    }
                }
            }
        }
    }
}

fn deliver(record: Record, tree: &Tree, generation: u32, sink: &mut dyn Sink) {
    let Record::Op {
        tid,
        start,
        end,
        latency,
        generations: (began, ended),
        tainted,
        items,
    } = record
    else {
        return;
    };
    let latency = Ticks(latency.min(end.wrapping_sub(start)));
    let touched: Option<Vec<Touched>> = items
        .iter()
        .map(|item| {
            Some(Touched {
                fnode: tree.fnode(item.index).filter(|_| item.index > 1)?,
                max: Ticks(item.max),
                max_start: Tsc(item.max_start),
                sum: Ticks(item.sum),
                count: item.count,
            })
        })
        .collect();
    let whole = began == ended && began % 2 == 0 && began <= generation && !tainted && end >= start;
    match touched.filter(|_| whole) {
        Some(touched) => sink.op(Op {
            tid,
            start: Tsc(start),
            end: Tsc(end),
            latency,
            touched,
        }),
        None => sink.latency_only(latency, 1, latency),
    }
}

/// Asks the sink what calls of a new callee are; the word that the stubs are to find.
fn new_target(
    memory: &Memory,
    installed: &Installed,
    tree: &mut Tree,
    parent: u64,
    place: u64,
    callee: u64,
    sink: &mut dyn Sink,
) -> u64 {
    if !installed.is_code(place) {
        return targets::PENDING;
    }
    let half = |offset| {
        let word = memory.read_word(TargetAddr(place + offset));
        word.unwrap_or(u64::MAX) as u32
    };
    let named = Place {
        function: half(place::FUNCTION),
        local: half(place::LOCAL),
    };
    let (Some(parent), Some(site)) = (tree.fnode_of_descriptor(parent), tree.site(named)) else {
        return targets::PENDING;
    };
    // Nothing is mapped there: it is the number of a system call.
    const LOWEST_CODE: u64 = 0x1000;
    if callee < LOWEST_CODE && prepare::returns_strangely(callee) {
        return targets::UNMEASURED;
    }
    match sink.new_target(parent, site, TargetAddr(callee)) {
        NewTarget::Fnode(fnode) => tree.descriptor(fnode).unwrap_or(targets::PENDING),
        NewTarget::AnyTarget => targets::PENDING,
        NewTarget::Unmeasured => targets::UNMEASURED,
    }
}

impl Space {
    /// Prepares everything the plan wants, and returns the patches by address.
    fn prepare(
        &mut self,
        memory: &Memory,
        plan: &Plan,
        refused: &mut Vec<Refused>,
    ) -> Result<BTreeMap<u64, Patch>> {
        let mut wanted: BTreeMap<u64, Patch> = BTreeMap::new();
        let mut refuse = |addr: u64, reason: String| {
            refused.push(Refused {
                addr: TargetAddr(addr),
                reason,
            });
        };
        let f0 = plan.f0.as_ref().map(|f0| f0.entry());
        if let Some(code) = &plan.f0 {
            self.look_at(memory, code, Part::F0);
            self.want_entry(memory, code.entry(), None, &mut wanted, &mut refuse)?;
        }
        let unwinders = plan.unwinders.iter().map(|addr| (addr.0, Hook::Unwinder));
        let catchers = plan.catchers.iter().map(|addr| (addr.0, Hook::Catcher));
        for (addr, hook) in unwinders.chain(catchers) {
            if let Entry::Vacant(vacant) = self.functions.entry(addr) {
                match prepare::beginning(memory, TargetAddr(addr)) {
                    Some(function) => drop(vacant.insert(function)),
                    None => continue,
                }
            }
            self.want_entry(memory, addr, Some(hook), &mut wanted, &mut refuse)?;
        }
        for function in &plan.functions {
            let entry = function.code.entry();
            if f0 != Some(entry) {
                self.look_at(memory, &function.code, Part::Callee);
            }
            for (_, call) in &function.sites {
                let group = self.functions[&entry].group_of_site(call.addr);
                let outcome = match group {
                    Ok(at) => self.want(memory, entry, at, None, &mut wanted)?,
                    Err(reason) => Err(reason),
                };
                if let Err(reason) = outcome {
                    refuse(call.addr, reason);
                }
            }
        }
        Ok(wanted)
    }

    /// Looks at a function's code anew when it, or the part it plays, is not what it was before.
    fn look_at(&mut self, memory: &Memory, code: &Arc<FunctionCode>, part: Part) {
        let entry = code.entry();
        let known = self.functions.get(&entry);
        if known.is_some_and(|known| known.is_of(code) && known.plays(part)) {
            return;
        }
        self.prepared.retain(|&(function, _), _| function != entry);
        let mut function = Function::new(Arc::clone(code), part);
        if part != Part::Callee && !function.has_room() {
            let patches = &self.patches;
            let padded = prepare::with_padding(code, |addr, bytes| {
                let read = memory.read(TargetAddr(addr), bytes).is_ok();
                patches.hide_from(addr, bytes);
                read
            });
            if let Some(padded) = padded {
                function = Function::padded(Arc::clone(code), padded, part);
            }
        }
        self.functions.insert(entry, function);
    }

    fn want_entry(
        &mut self,
        memory: &Memory,
        entry: u64,
        hook: Option<Hook>,
        wanted: &mut BTreeMap<u64, Patch>,
        refuse: &mut impl FnMut(u64, String),
    ) -> Result<()> {
        let groups = match self.functions[&entry].entry_groups() {
            Ok(groups) => groups,
            Err(reason) => {
                refuse(entry, reason);
                return Ok(());
            }
        };
        let others = wanted.clone();
        for at in groups {
            let Err(reason) = self.want(memory, entry, at, hook, wanted)? else {
                continue;
            };
            // What is there already must not be half of f0.
            *wanted = others;
            let function = self.functions.get_mut(&entry).expect("looked at above");
            if !function.hide_returns() {
                refuse(entry, reason);
                return Ok(());
            }
            self.prepared.retain(|&(function, _), _| function != entry);
            return self.want_entry(memory, entry, hook, wanted, refuse);
        }
        Ok(())
    }

    /// Prepares the group of a function at an address, unless that was done before.
    fn want(
        &mut self,
        memory: &Memory,
        entry: u64,
        at: u64,
        hook: Option<Hook>,
        wanted: &mut BTreeMap<u64, Patch>,
    ) -> Result<std::result::Result<(), String>> {
        let Space {
            installed,
            tree,
            functions,
            prepared,
            ..
        } = self;
        let outcome = match prepared.entry((entry, at)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let mut stubs = Stubs {
                    installed,
                    memory,
                    tree,
                };
                vacant.insert(stubs.group(&functions[&entry], at, hook)?)
            }
        };
        Ok(match &*outcome {
            Err(reason) => Err(reason.clone()),
            Ok(prepared) => {
                let patch = &prepared.patch;
                let before = wanted.range(..patch.end()).next_back();
                match before {
                    Some((_, other)) if other == patch => Ok(()),
                    Some((_, other)) if other.end() > patch.at => {
                        Err("its bytes are needed for another probe".to_owned())
                    }
                    _ => {
                        wanted.insert(patch.at, patch.clone());
                        Ok(())
                    }
                }
            }
        })
    }
}

impl Engine for Jump {
    fn name(&self) -> &'static str {
        "jump"
    }

    fn apply(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        self.watch.expect_libraries(plan.f0.is_none());
        if self.watch.end().is_some() || (plan.f0.is_none() && self.space.is_none()) {
            return Ok(Vec::new());
        }
        let codes = plan
            .f0
            .iter()
            .chain(plan.functions.iter().map(|function| &function.code));
        let hooks = plan
            .unwinders
            .iter()
            .chain(&plan.catchers)
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

    fn set_filter(&mut self, latencies: &[std::ops::RangeInclusive<Ticks>]) {
        self.filter = match latencies.len() {
            0..=header::MAX_FILTERS => latencies
                .iter()
                .map(|range| (range.start().0, range.end().0))
                .collect(),
            _ => Vec::new(),
        };
        // A target that is gone needs no filter.
        let _ = self.write_filter();
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
            let installed = self.space.as_ref().map(|space| &space.installed);
            let notice = self.watch.look(&self.memory, installed);
            match notice {
                Some(Notice::Exec) => {
                    self.space = None;
                    match Memory::open(self.pid) {
                        Ok(memory) => self.memory = memory,
                        // It has ended at once; the next look says how.
                        Err(_) => continue,
                    }
                }
                Some(Notice::Exited(_) | Notice::Killed(_)) => self.drain(sink),
                _ => {}
            }
            let left = wait.saturating_sub(since.elapsed());
            if notice.is_some() || left.is_zero() {
                return Ok(notice);
            }
            self.watch.sleep(left, self.counters.records - before);
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
            counters.dropped += space.installed.sum(&self.memory, block::DROPPED);
            counters.ended_otherwise += space.installed.sum(&self.memory, block::ENDED_OTHERWISE);
            counters.bytes_differing += space.patches.bytes_differing();
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
}

const _: () = assert!(FNODES <= u32::MAX as u64);
