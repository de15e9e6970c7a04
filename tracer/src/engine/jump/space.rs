//! What the engine knows about one address space of the target: mappings, tree, patches, and the
//! functions that have been looked at.

mod wanted;

use std::collections::{BTreeMap, HashMap};
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
use super::ops::Ops;
use super::patches::{Patch, Patches};
use super::prepare::Prepared;
use super::ring::Rings;
use super::stubs::{CountedSite, Counter};
use super::tree::Tree;

use wanted::Wanted;

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
        self.running = plan
            .running
            .iter()
            .filter_map(|at| Some((at.entry.0, self.tree.descriptor(at.fnode)?)))
            .collect();
        self.counted = counted_sites(plan, self.installed.room.slots);
        let mut wanted = Wanted {
            memory,
            patches: BTreeMap::new(),
            refused,
        };
        self.want_f0(plan, &mut wanted)?;
        self.want_path(plan, &mut wanted)?;
        self.want_hooks(plan, &mut wanted)?;
        self.want_counted(plan, &mut wanted)?;
        self.want_markers(plan, &mut wanted)?;
        self.want_counted_sites(plan, &mut wanted)?;
        self.want_sites(plan, &mut wanted)?;
        Ok(wanted.patches)
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
