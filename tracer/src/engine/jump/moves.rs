//! Threads, and signal handlers, that would go on in the middle of what is replaced: they go on in its copy.
//!
//! Finding them takes some microseconds for each thread. For threads that stand still early it is done while others run.

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::stopped::Stopped;

use super::interrupted;
use super::patches::Patch;
use super::world::{Resumption, World};

/// Who is to be moved, and because of the patch at which address.
#[derive(Clone, Default, Debug)]
pub struct Moves<'a> {
    /// The target's mappings, as far as they are known.
    mappings: &'a [Mapping],
    threads: Vec<Move>,
    handlers: Vec<Move>,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    /// The thread's number, or where on a stack the address is by which a handler returns.
    who: u64,
    /// The instruction's address.
    from: u64,
    /// Where the instruction has been copied to.
    to: u64,
    /// The patch that replaces it.
    patch: u64,
}

impl<'m> Moves<'m> {
    /// Finds them among stopped threads. `mappings` are the target's of a moment ago.
    ///
    /// # Errors
    /// When a thread is in the middle of an instruction that is replaced.
    pub fn of<'a>(
        memory: &Memory,
        mappings: &'m [Mapping],
        threads: impl Iterator<Item = &'a Stopped>,
        patches: &[Patch],
    ) -> Result<Moves<'m>> {
        let mut moves = Moves {
            mappings,
            ..Moves::default()
        };
        if patches.is_empty() {
            return Ok(moves);
        }
        let mut sorted: Vec<&Patch> = patches.iter().collect();
        sorted.sort_unstable_by_key(|patch| patch.at);
        for thread in threads {
            let Some(at) = unless_gone(Resumption::of_stopped(thread))? else {
                continue;
            };
            if let Some(patch) = around(at.pc, &sorted) {
                let to = copied(at.pc, patch).ok_or_else(|| in_the_middle(thread, at.pc))?;
                moves.threads.push(Move {
                    who: thread.tid() as u64,
                    from: at.pc,
                    to,
                    patch: patch.at,
                });
            }
            moves.note_handlers_among(memory, at.sp, &sorted);
        }
        Ok(moves)
    }

    /// Takes in the signal handlers on one more stack.
    pub fn note_handlers(&mut self, memory: &Memory, stack_pointer: u64, patches: &[Patch]) {
        let mut sorted: Vec<&Patch> = patches.iter().collect();
        sorted.sort_unstable_by_key(|patch| patch.at);
        self.note_handlers_among(memory, stack_pointer, &sorted);
    }

    fn note_handlers_among(&mut self, memory: &Memory, stack_pointer: u64, sorted: &[&Patch]) {
        // Between single instructions nobody is led on.
        if sorted.iter().all(|patch| patch.moved.len() < 2) {
            return;
        }
        for found in interrupted::near(memory, stack_pointer, self.mappings) {
            if let Some(patch) = around(found.pc, sorted)
                && let Some(to) = copied(found.pc, patch)
            {
                self.handlers.push(Move {
                    who: found.at,
                    from: found.pc,
                    to,
                    patch: patch.at,
                });
            }
        }
    }

    /// The mappings by which they were found.
    #[must_use]
    pub fn mappings(&self) -> &'m [Mapping] {
        self.mappings
    }

    /// Takes in others.
    pub fn extend(&mut self, others: &Moves<'_>) {
        self.threads.extend(&others.threads);
        self.handlers.extend(&others.handlers);
    }

    /// Moves those that are in one of these patches.
    ///
    /// # Errors
    /// When the target cannot be written.
    pub fn make(&self, memory: &Memory, world: &World, patches: &[Patch]) -> Result<()> {
        let is_made = |step: &&Move| patches.iter().any(|patch| patch.at == step.patch);
        for step in self.threads.iter().filter(is_made) {
            let mut threads = world.threads();
            if let Some(thread) = threads.find(|thread| thread.tid() as u64 == step.who) {
                unless_gone(go_on_at(thread, step.to))?;
            }
        }
        self.lead_handlers(memory, patches)
    }

    /// Has the handlers return to the copies.
    pub(super) fn lead_handlers(&self, memory: &Memory, patches: &[Patch]) -> Result<()> {
        let is_made = |step: &&Move| patches.iter().any(|patch| patch.at == step.patch);
        for step in self.handlers.iter().filter(is_made) {
            let slot = TargetAddr(step.who);
            // Whoever ran since may have written there.
            if memory.read_word(slot).is_ok_and(|word| word == step.from) {
                unless_gone(memory.write_word(slot, step.to))?;
            }
        }
        Ok(())
    }
}

/// The patch in the middle of which an address is.
fn around<'a>(pc: u64, sorted: &[&'a Patch]) -> Option<&'a Patch> {
    let before = sorted.partition_point(|patch| patch.at < pc);
    let patch = sorted.get(before.checked_sub(1)?)?;
    (pc < patch.end()).then_some(patch)
}

/// Where an instruction in the middle of a patch is copied to.
fn copied(pc: u64, patch: &Patch) -> Option<u64> {
    let copy = patch.moved.iter().find(|(original, _)| *original == pc);
    copy.map(|&(_, copy)| copy)
}

fn in_the_middle(thread: &Stopped, pc: u64) -> Error {
    Error::Busy(format!(
        "thread {} is at {}, in the middle of an instruction to be replaced",
        thread.tid(),
        TargetAddr(pc),
    ))
}

fn go_on_at(thread: &Stopped, pc: u64) -> Result<()> {
    let mut registers = thread.registers()?;
    registers.set_rip(TargetAddr(pc));
    thread.set_registers(&registers)
}
