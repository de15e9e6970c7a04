//! Changes of many probes in several short stops instead of a long one.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::error::Result;
use crate::maps::Mapping;
use crate::plan::Plan;

use super::super::Jump;
use super::super::moves::Moves;
use super::super::patches::Patch;
use super::super::space::Space;

/// So many patches are written while the target is stopped once: some tenths of a millisecond.
const AT_ONCE: usize = 128;

/// Patches in the order in which they are written.
fn in_order(mut patches: Vec<Patch>, entries: &HashSet<u64>) -> Vec<Patch> {
    patches.sort_by_key(|patch| Reverse(patch.at));
    let mut last = Vec::new();
    let (mut behind, mut is_last) = (u64::MAX, false);
    for patch in &patches {
        let relies = patch.end() + patch.behind.len() as u64 > behind;
        is_last = entries.contains(&patch.at) || relies && is_last;
        behind = patch.at;
        last.push(is_last);
    }
    let mut keyed: Vec<(bool, Patch)> = last.into_iter().zip(patches).collect();
    keyed.sort_by_key(|&(is_last, _)| is_last);
    keyed.into_iter().map(|(_, patch)| patch).collect()
}

impl Jump {
    /// Makes all but the last few of the changes; returns those that are left.
    ///
    /// A function's `ret`s are patched before its entry, so that every call that is seen to begin is seen to end. A punned
    /// jump goes with what it relies on behind it, which is written before it.
    pub(in super::super) fn change_most(
        &mut self,
        space: &mut Space,
        plan: &Plan,
        remove: Vec<u64>,
        add: Vec<Patch>,
        mappings: &[Mapping],
    ) -> Result<(Vec<u64>, Vec<Patch>)> {
        if plan.counted.is_empty() || add.len() + remove.len() <= AT_ONCE {
            return Ok((remove, add));
        }
        let counted = plan.counted.iter();
        let entries: HashSet<u64> = counted
            .filter_map(|function| space.entry_patch(function.code.entry()))
            .collect();
        let mut add = in_order(add, &entries);
        let last = add.split_off(add.len() - add.len().min(AT_ONCE));
        // Code that the program writes meanwhile is left out; a round that follows tries again.
        self.change_in_rounds(space, &remove, add, mappings)?;
        Ok((Vec::new(), last))
    }

    /// Removes all but the last few probes.
    pub(super) fn remove_most(&mut self) -> Result<()> {
        let outcome = self.with_space(|engine, space| {
            // From here on nothing is counted, so that it does not matter which probe goes first.
            let _ = space.installed.set_generation(&engine.memory, 0);
            let all: Vec<u64> = space.patches.addresses().collect();
            match all.len() > AT_ONCE && !engine.is_lost() {
                true => {
                    engine.change_in_rounds(space, &all[..all.len() - AT_ONCE], Vec::new(), &[])
                }
                false => Ok(()),
            }
        });
        match outcome {
            // What is left is removed with the rest, or there is nothing any more.
            None => Ok(()),
            Some(Err(error)) if error.is_gone() => Ok(()),
            Some(outcome) => outcome,
        }
    }

    fn change_in_rounds(
        &mut self,
        space: &mut Space,
        remove: &[u64],
        add: Vec<Patch>,
        mappings: &[Mapping],
    ) -> Result<()> {
        let control = space.installed.around.control;
        for remove in remove.chunks(AT_ONCE) {
            let memory = self.memory.again()?;
            self.while_stopped(|world| {
                world.hold()?;
                space.patches.change(
                    &memory,
                    world,
                    control,
                    remove,
                    Vec::new(),
                    &Moves::default(),
                )
            })?;
        }
        for add in add.chunks(AT_ONCE) {
            let memory = self.memory.again()?;
            self.while_stopped(|world| {
                let early = Moves::of(&memory, mappings, world.threads(), add)?;
                world.hold()?;
                space
                    .patches
                    .change(&memory, world, control, &[], add.to_vec(), &early)
            })?;
        }
        Ok(())
    }
}
