//! What the engine knows about one address space of the target: mappings, tree, patches, and the
//! functions that have been looked at.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use darc_disasm::FunctionCode;

use crate::addr::TargetAddr;
use crate::engine::Refused;
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::{Ends, Plan};

use super::function::{self, Function, Part};
use super::installed::Installed;
use super::layout::counts;
use super::ops::{Calls, HandsOver, Ops, OpsOf};
use super::patches::{Patch, Patches};
use super::prepare::{Hook, Prepared, Stubs};
use super::ring::Rings;
use super::stubs::{CountedSite, Counter, Unwinding};
use super::tree::Tree;

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
    /// Everything prepared so far, by function and address of the patch.
    pub prepared: HashMap<(u64, u64), std::result::Result<Prepared, String>>,
    functions: HashMap<u64, Function>,
    /// Functions that run already, with their descriptors.
    running: HashMap<u64, u64>,
    /// Functions with sites whose calls are counted.
    counted: HashMap<u64, BTreeMap<u64, CountedSite>>,
}

impl Space {
    /// What is known right after the mappings were made.
    #[must_use]
    pub fn new(installed: Installed, rings: Rings) -> Space {
        Space {
            tree: Tree::new(installed.around.control),
            installed,
            rings,
            patches: Patches::default(),
            prepared: HashMap::new(),
            functions: HashMap::new(),
            running: HashMap::new(),
            counted: HashMap::new(),
        }
    }

    /// Prepares everything the plan wants, and returns the patches by address.
    ///
    /// # Errors
    /// When the target is gone. What cannot be instrumented is told in `refused`.
    pub fn prepare(
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
        self.running = plan
            .running
            .iter()
            .filter_map(|at| Some((at.entry.0, self.tree.descriptor(at.fnode)?)))
            .collect();
        self.counted = counted_sites(plan, self.installed.room.slots);
        let path = plan.asynchronous.as_ref();
        let enqueue = path.map(|path| &path.enqueue);
        let by_itself = enqueue.filter(|enqueue| f0 == Some(enqueue.code.entry()));
        if let Some(code) = &plan.f0 {
            self.look_at(memory, code, Part::F0);
            self.notice_ends(code.entry(), plan.f0_ends);
            self.set_ops(
                code.entry(),
                Ops {
                    tree: OpsOf::F0,
                    callers: plan.callers.iter().map(|caller| caller.0).collect(),
                    chain: plan.chain.clone(),
                    calls: match plan.asynchronous {
                        Some(_) => Calls::OfAll,
                        None => Calls::OfRecorded,
                    },
                    hands_over: match by_itself {
                        Some(enqueue) => HandsOver::Itself(enqueue.chain.clone()),
                        None => HandsOver::Nothing,
                    },
                },
            );
            self.want_entry(memory, code.entry(), None, &mut wanted, &mut refuse)?;
        }
        for (noticed, tree, hook) in path.iter().flat_map(|path| {
            let serving = OpsOf::Serving(path.root);
            [
                (&path.serve, serving, None),
                (&path.enqueue, OpsOf::F0, Some(Hook::Enqueue)),
            ]
        }) {
            let entry = noticed.code.entry();
            if hook.is_some() && by_itself.is_some() {
                continue;
            }
            if f0 == Some(entry) {
                refuse(entry, "it is instrumented for another purpose".to_owned());
                continue;
            }
            let part = if hook.is_some() {
                Part::Entered
            } else {
                Part::F0
            };
            self.look_at(memory, &noticed.code, part);
            let ops = Ops {
                tree,
                callers: Vec::new(),
                chain: noticed.chain.clone(),
                calls: Calls::OfAll,
                hands_over: HandsOver::Nothing,
            };
            self.set_ops(entry, ops);
            self.want_entry(memory, entry, hook, &mut wanted, &mut refuse)?;
        }
        let unwinders = plan
            .unwinders
            .iter()
            .map(|addr| (addr.0, Hook::Unwinding(Unwinding::Begins)));
        let catchers = plan
            .catchers
            .iter()
            .map(|addr| (addr.0, Hook::Unwinding(Unwinding::Arrived)));
        let finders = plan.finders.iter().map(|addr| (addr.0, Hook::Finder));
        for (addr, hook) in unwinders.chain(catchers).chain(finders) {
            if let Entry::Vacant(vacant) = self.functions.entry(addr) {
                match function::beginning(memory, TargetAddr(addr)) {
                    Some(function) => drop(vacant.insert(function)),
                    None => continue,
                }
            }
            self.want_entry(memory, addr, Some(hook), &mut wanted, &mut refuse)?;
        }
        let hooked: HashSet<u64> = plan
            .unwinders
            .iter()
            .chain(&plan.catchers)
            .chain(&plan.finders)
            .map(|a| a.0)
            .collect();
        for function in &plan.counted {
            let entry = function.code.entry();
            if hooked.contains(&entry) {
                let reason = "it unwinds the stack, where return addresses are put back first";
                refuse(entry, reason.to_owned());
                continue;
            }
            let slots = self.installed.room.slots;
            if function.slot >= slots {
                refuse(entry, format!("there is room for {slots} functions only"));
                continue;
            }
            self.look_at(memory, &function.code, Part::F0);
            self.notice_ends(entry, function.ends);
            let hook = Hook::Counted(Counter {
                slot: function.slot,
                offset: counts::slot(function.slot, slots) as u32,
            });
            self.want_entry(memory, entry, Some(hook), &mut wanted, &mut refuse)?;
        }
        for marker in &plan.markers {
            let entry = marker.code.entry();
            if f0 == Some(entry) || hooked.contains(&entry) {
                refuse(entry, "it is instrumented for another purpose".to_owned());
                continue;
            }
            self.look_at(memory, &marker.code, Part::Entered);
            let hook = Some(Hook::Marker(marker.mark));
            self.want_entry(memory, entry, hook, &mut wanted, &mut refuse)?;
        }
        for sites in &plan.counted_sites {
            let entry = sites.code.entry();
            // Those that are entered by a probe have been looked at.
            if !plan
                .counted
                .iter()
                .any(|function| function.code.entry() == entry)
            {
                self.look_at(memory, &sites.code, Part::Callee);
            }
            for site in &sites.sites {
                let addr = site.call.addr;
                let outcome = match self.functions[&entry].group_of_site(addr) {
                    Ok(at) => self.want(memory, entry, at, None, &mut wanted)?,
                    Err(reason) => Err(reason),
                };
                if let Err(reason) = outcome {
                    refuse(addr, reason);
                }
            }
        }
        // The groups of these have room for their sites, too.
        let entered: Vec<u64> = path
            .iter()
            .flat_map(|path| [path.enqueue.code.entry(), path.serve.code.entry()])
            .chain(f0)
            .collect();
        for function in &plan.functions {
            let entry = function.code.entry();
            if !entered.contains(&entry) {
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
        let running = self.running.get(&entry).copied();
        let none = BTreeMap::new();
        let counted = self.counted.get(&entry).unwrap_or(&none);
        let same = |known: &Function| {
            known.is_of(code)
                && known.plays(part)
                && known.running() == running
                && known.counted() == counted
        };
        if known.is_some_and(same) {
            return;
        }
        self.prepared.retain(|&(function, _), _| function != entry);
        let mut function = Function::new(Arc::clone(code), part);
        if part != Part::Callee && !function.has_room() {
            let patches = &self.patches;
            let padded = function::with_padding(code, |addr, bytes| {
                let read = memory.read(TargetAddr(addr), bytes).is_ok();
                patches.hide_from(addr, bytes);
                read
            });
            if let Some(padded) = padded {
                function = Function::padded(Arc::clone(code), padded, part);
            }
        }
        function.set_running(running);
        function.set_counted(counted.clone());
        self.functions.insert(entry, function);
    }

    /// Leaves a function's `ret`s alone where that was asked for.
    fn notice_ends(&mut self, entry: u64, ends: Ends) {
        if ends == Ends::Hidden
            && let Some(function) = self.functions.get_mut(&entry)
            && function.hide_returns()
        {
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
        let mut added = Vec::new();
        for at in groups {
            let others = wanted.len();
            let Err(reason) = self.want(memory, entry, at, hook, wanted)? else {
                added.extend((wanted.len() > others).then_some(at));
                continue;
            };
            // What is there already must not be half of f0.
            for at in added {
                wanted.remove(&at);
            }
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
