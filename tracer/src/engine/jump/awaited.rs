//! The calls whose returns are awaited, read from the blocks of the threads that make them. What stands there the target may have
//! written: nothing is taken for granted.

use std::time::Duration;

use darc_record::Tsc;

use crate::addr::TargetAddr;
use crate::engine::Begun;
use crate::error::Result;
use crate::memory::Memory;
use crate::stacks::{self, Stack};

use super::Jump;
use super::installed::Installed;
use super::layout::{BLOCKS, block, entry, place};
use super::world;

/// In the blocks of so many threads it is looked for ops in progress: nobody waits for a look at thousands of them.
const MOST_LOOKED_AT: usize = 64;

/// A call whose return is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// Where on the stack its return address is.
    pub slot: u64,
    place: u64,
    return_to: u64,
    start: u64,
}

/// A return address of the program, and what stands in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hidden {
    /// The address of ours.
    pub hidden: u64,
    /// That of the program.
    pub return_to: u64,
}

impl Awaited {
    fn of(bytes: &[u8]) -> Awaited {
        let field = |offset: u64| {
            let bytes = &bytes[offset as usize..][..8];
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        Awaited {
            slot: field(entry::SLOT),
            place: field(entry::PLACE),
            return_to: field(entry::RETURN_TO),
            start: field(entry::START),
        }
    }
}

impl Installed {
    /// The calls that the thread of a block is in, the outermost first.
    #[must_use]
    pub fn awaited(&self, memory: &Memory, index: usize) -> Vec<Awaited> {
        self.awaited_up_to(memory, index, u64::MAX)
    }

    fn awaited_up_to(&self, memory: &Memory, index: usize, most: u64) -> Vec<Awaited> {
        let at = self.around.control + BLOCKS + index as u64 * block::SIZE;
        let mut head = [0; block::REAL_LIMIT as usize];
        if memory.read(TargetAddr(at), &mut head).is_err() {
            return Vec::new();
        }
        let inside = |field: u64| {
            let bytes = &head[field as usize..][..8];
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            word.wrapping_sub(at).min(block::SHADOW_END)
        };
        let (base, top) = (inside(block::BASE), inside(block::TOP));
        if base != block::SHADOW + entry::SIZE || top <= base {
            return Vec::new();
        }
        let bytes = (top - base).min(most.saturating_mul(entry::SIZE));
        let mut entries = vec![0; bytes as usize];
        if memory.read(TargetAddr(at + base), &mut entries).is_err() {
            return Vec::new();
        }
        let entries = entries.chunks_exact(entry::SIZE as usize);
        entries.map(Awaited::of).collect()
    }

    /// What stands in the place of a call's return address; `None` where that is never hidden.
    #[must_use]
    pub fn hidden(&self, memory: &Memory, call: &Awaited) -> Option<Hidden> {
        if !self.is_code(call.place) {
            return None;
        }
        let field = |offset| memory.read_word(TargetAddr(call.place + offset)).ok();
        let (hidden, fixed) = (field(place::HIDDEN)?, field(place::RETURN_TO)?);
        let return_to = if fixed == 0 { call.return_to } else { fixed };
        (self.is_code(hidden) && return_to != 0).then_some(Hidden { hidden, return_to })
    }

    /// When the op began that is in progress in a block; `None` when there is none.
    fn op_in_progress(&self, memory: &Memory, index: usize) -> Option<Tsc> {
        let first = self.awaited_up_to(memory, index, 1).first()?.start;
        (first > 0).then_some(Tsc(first))
    }

    /// Puts the program's return addresses back into the copy of a stack, where these calls have hidden them.
    pub(super) fn reveal_in_copy(&self, memory: &Memory, calls: &[Awaited], stack: &mut Stack) {
        // The newest first: two entries may have hidden one slot.
        for call in calls.iter().rev() {
            let word = stack.word(call.slot);
            let hidden = word.and_then(|_| self.hidden(memory, call));
            if let Some(at) = hidden.filter(|at| word == Some(at.hidden)) {
                stack.put(call.slot, at.return_to);
            }
        }
    }
}

impl Jump {
    pub(super) fn begun(&self) -> Vec<Begun> {
        let Some(space) = &self.space else {
            return Vec::new();
        };
        let (installed, rings) = (&space.installed, &space.rings);
        let used = installed.used_blocks(&self.memory).min(rings.count());
        let begun = (0..used.min(MOST_LOOKED_AT)).filter_map(|index| {
            let tid = rings.owner(index)?;
            let at = installed.op_in_progress(&self.memory, index)?;
            Some(Begun { tid, at })
        });
        begun.collect()
    }

    pub(super) fn copy_stack(&self, op: Begun) -> Result<Option<(Stack, Duration)>> {
        let Some(space) = &self.space else {
            return Ok(None);
        };
        let (installed, memory) = (&space.installed, &self.memory);
        let mut blocks = 0..space.rings.count().min(MOST_LOOKED_AT);
        // A thread that has ended may have left one of the same number.
        let is_meant = |&index: &usize| {
            let is_its = space.rings.owner(index) == Some(op.tid);
            is_its && installed.op_in_progress(memory, index) == Some(op.at)
        };
        let Some(index) = blocks.find(is_meant) else {
            return Ok(None);
        };
        let copied = world::this(self.pid, op.tid, |thread| {
            let stack = stacks::of_stopped(memory, thread)?;
            Ok((stack, installed.awaited(memory, index)))
        })?;
        Ok(copied.and_then(|((mut stack, calls), pause)| {
            // It may have ended meanwhile, and another one begun.
            let is_same = calls.first().is_some_and(|first| first.start == op.at.0);
            installed.reveal_in_copy(memory, &calls, &mut stack);
            let rip = space.ends.original(stack.rip.0);
            stack.rip = rip.map_or(stack.rip, TargetAddr);
            is_same.then_some((stack, pause))
        }))
    }
}
