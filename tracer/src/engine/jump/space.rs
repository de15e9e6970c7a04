//! What the engine knows about one address space of the target: mappings, tree, patches, and the
//! functions that have been looked at.

mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use darc_disasm::FunctionCode;

use crate::engine::Refused;
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::plan::{Callees, Ends, Plan};

use super::function::{Function, Landings, Part};
use super::installed::Installed;
use super::jumps::{Diversion, Jumps};
use super::layout::counts;
use super::ops::Ops;
use super::patches::{Patch, Patches, Unpatched};
use super::prepare::Prepared;
use super::removal::SyscallEnds;
use super::ring::Rings;
use super::stubs::{CountedSite, Counter};
use super::tree::Tree;
use super::world::World;

use wanted::Wanted;

/// The patches of a plan by their addresses, and what cannot be instrumented.
pub type Placed = (BTreeMap<u64, Patch>, Vec<Refused>);

/// What lives as long as the target's address space.
#[derive(Debug)]
pub struct Space {
    /// The mappings.
    pub installed: Installed,
    /// What the stubs write to.
    pub rings: Rings,
    /// What the stubs read.
    pub tree: Tree,
    /// What is patched.
    pub patches: Patches,
    /// The jumps that are in the patches.
    pub jumps: Jumps,
    /// Everything prepared so far, by function and address of the patch.
    pub prepared: HashMap<(u64, u64), std::result::Result<Prepared, String>>,
    /// The system calls of all stubs there have been: a thread may wait in one for long.
    pub ends: SyscallEnds,
    functions: HashMap<u64, Function>,
    /// Functions that run already, with their descriptors.
    running: HashMap<u64, u64>,
    /// Functions with sites whose calls are counted.
    counted: HashMap<u64, BTreeMap<u64, CountedSite>>,
    /// What is known of the functions of a program of goroutines.
    callees: Arc<Callees>,
}

impl Space {
    /// What is known right after the mappings were made.
    #[must_use]
    pub fn new(installed: Installed, rings: Rings, callees: Arc<Callees>) -> Space {
        Space {
            tree: Tree::new(installed.around.control),
            installed,
            rings,
            patches: Patches::default(),
            jumps: Jumps::default(),
            prepared: HashMap::new(),
            ends: SyscallEnds::default(),
            functions: HashMap::new(),
            running: HashMap::new(),
            counted: HashMap::new(),
            callees,
        }
    }

    /// Prepares everything the plan wants. The jumps may need pages that are still to be mapped, on the `ground` that there is.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn prepare(&mut self, memory: &Memory, plan: &Plan, ground: Ground) -> Result<Placed> {
        self.jumps.pages.set_ground(ground);
        let mut unplaced = BTreeSet::new();
        loop {
            let mut refused = Vec::new();
            let Some(wanted) = self.want_all(memory, plan, &unplaced, &mut refused)? else {
                continue;
            };
            let text = Unpatched {
                memory,
                patches: &self.patches,
            };
            let outcome = self.jumps.place(&wanted, &text);
            // What cannot be placed may be a part of something that then is not wanted either.
            let before = unplaced.len();
            unplaced.extend(outcome.refused);
            if unplaced.len() == before {
                return Ok((outcome.patches, refused));
            }
        }
    }

    /// From where control is to be diverted, by address, for everything the plan wants. None when a function was divided
    /// anew meanwhile.
    fn want_all(
        &mut self,
        memory: &Memory,
        plan: &Plan,
        unplaced: &BTreeSet<u64>,
        refused: &mut Vec<Refused>,
    ) -> Result<Option<BTreeMap<u64, Diversion>>> {
        self.running = plan
            .running
            .iter()
            .filter_map(|at| Some((at.entry.0, self.tree.descriptor(at.fnode)?)))
            .collect();
        self.counted = counted_sites(plan, self.installed.room.slots);
        let mut wanted = Wanted {
            memory,
            diversions: BTreeMap::new(),
            unplaced,
            refused,
            is_outdated: false,
            shown: wanted::shown(plan),
        };
        // Whether there are hooks says what may be hidden.
        self.want_hooks(plan, &mut wanted)?;
        self.want_f0(plan, &mut wanted)?;
        self.want_path(plan, &mut wanted)?;
        self.want_statuses(plan, &mut wanted)?;
        self.want_counted(plan, &mut wanted)?;
        self.want_markers(plan, &mut wanted)?;
        self.want_counted_sites(plan, &mut wanted)?;
        self.want_sites(plan, &mut wanted)?;
        Ok((!wanted.is_outdated).then_some(wanted.diversions))
    }

    /// The functions that are entered by probes, by where the patches of their entries begin.
    pub fn entries(&self) -> BTreeMap<u64, u64> {
        let entered = self.functions.iter();
        let entered = entered.filter(|(_, function)| !function.plays(Part::Callee));
        entered
            .filter_map(|(&entry, _)| Some((self.entry_patch(entry)?, entry)))
            .collect()
    }

    /// Where the patch begins that diverts control at a function's entry.
    pub fn entry_patch(&self, entry: u64) -> Option<u64> {
        let groups = self.functions.get(&entry)?.entry_groups().ok()?;
        groups.last().copied()
    }

    /// Maps pages for trampolines. Those that cannot be had are not asked for again.
    ///
    /// # Errors
    /// When the target is gone, or no thread of it can map memory.
    pub fn map_pages(
        &mut self,
        memory: &Memory,
        world: &mut World,
        mappings: &[Mapping],
        pages: &[Range<u64>],
    ) -> Result<()> {
        if !self.installed.is_there(memory) {
            // Another program runs by now, in which nothing must be mapped.
            return Err(Error::ThreadGone {
                tid: self.installed.around.pid,
            });
        }
        let Space {
            installed, jumps, ..
        } = self;
        let caller = installed.caller;
        let outcome = caller.borrow(world.workers()?, mappings, |worker| {
            for range in pages {
                let start = range.start;
                match installed.add_pages(memory, worker, range.clone()) {
                    Ok(()) => jumps.pages.set_mapped(start),
                    Err(error) if error.is_gone() => return Err(error),
                    Err(error) => {
                        tracing::debug!(%error, start, "no pages for trampolines");
                        jumps.give_up(start);
                    }
                }
            }
            Ok(())
        });
        match outcome {
            // The program has forbidden itself such calls since: what needs the pages is left alone, each with its reason.
            Err(Error::Unsuitable(reason)) => {
                tracing::debug!(reason, "no pages for trampolines");
                for range in pages {
                    jumps.give_up(range.start);
                }
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Writes the trampolines that are new. Nothing leads to them yet.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn write_trampolines(&mut self, memory: &Memory) -> Result<()> {
        for trampoline in self.jumps.new_trampolines() {
            self.installed.write_trampoline(memory, &trampoline)?;
        }
        Ok(())
    }

    /// Looks at a function's code anew when it, or the part it plays, is not what it was before.
    fn look_at(
        &mut self,
        memory: &Memory,
        code: &Arc<FunctionCode>,
        part: Part,
        landings: Landings,
    ) {
        let entry = code.entry();
        let known = self.functions.get(&entry);
        let running = self.running.get(&entry).copied();
        let none = BTreeMap::new();
        let counted = self.counted.get(&entry).unwrap_or(&none);
        // Counted calls return to their stubs.
        let landings = match counted.is_empty() {
            true => landings,
            false => Landings::Left,
        };
        let landings = match self.installed.around.goroutines {
            Some(known) => Landings::OfGoroutines {
                is_compiled: self.callees.compiled.binary_search(&entry).is_ok(),
                kept: known.kept,
            },
            None => landings,
        };
        let same = |known: &Function| {
            known.is_of(code)
                && known.plays(part)
                && known.running() == running
                && known.counted() == counted
                && known.notices(landings)
        };
        if known.is_some_and(same) {
            return;
        }
        self.prepared.retain(|&(function, _), _| function != entry);
        let text = Unpatched {
            memory,
            patches: &self.patches,
        };
        let mut function = Function::new(Arc::clone(code), part, landings, &text);
        function.set_running(running);
        function.set_counted(counted.clone());
        self.functions.insert(entry, function);
    }

    /// Leaves a function's `ret`s alone where that was asked for, or takes its jumps away for others.
    fn notice_ends(&mut self, entry: u64, ends: Ends) {
        let Some(function) = self.functions.get_mut(&entry) else {
            return;
        };
        let has_changed = match ends {
            Ends::ByReturns => false,
            Ends::Hidden => function.hide_returns(),
            Ends::ByLeaving => function.end_by_leaving(),
        };
        if has_changed {
            self.prepared.retain(|&(function, _), _| function != entry);
        }
    }

    fn set_ops(&mut self, entry: u64, ops: Ops) {
        if let Some(function) = self.functions.get_mut(&entry)
            && *function.ops() != ops
        {
            function.set_ops(ops);
            // Its stubs were made for other ops.
            self.prepared.retain(|&(function, _), _| function != entry);
        }
    }
}

/// Where the calls of which sites are counted, by function. Slots for which there is no room are left out.
fn counted_sites(plan: &Plan, slots: u32) -> HashMap<u64, BTreeMap<u64, CountedSite>> {
    let mut counted: HashMap<u64, BTreeMap<u64, CountedSite>> = HashMap::new();
    for sites in &plan.counted_sites {
        let of = counted.entry(sites.code.entry()).or_default();
        for site in sites.sites.iter().filter(|site| site.slot < slots) {
            let counter = Counter {
                slot: site.slot,
                offset: counts::slot(site.slot, slots) as u32,
            };
            let parent = sites.parent;
            of.insert(site.call.addr, CountedSite { counter, parent });
        }
    }
    counted
}

#[cfg(test)]
mod tests;
