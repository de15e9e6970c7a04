//! Removing the mappings: when nothing leads to them any more, and those of a tracer that was killed.

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads;

use super::guests;
use super::installed::Installed;
use super::interrupted;
use super::layout::{BLOCKS, block, entry, place, ring};
use super::world::{Resumption, World};

/// How much of a stack above the stack pointer is searched for addresses of stubs.
const STACK_SEARCHED: u64 = 8 << 20;

impl Installed {
    /// Whether another tracer has made these mappings that lives.
    #[must_use]
    pub fn belongs_to_another(&self, memory: &Memory) -> bool {
        let field = |offset| {
            let at = TargetAddr(self.around.rings + offset);
            memory.read_word(at).unwrap_or(0)
        };
        sys::is_present(field(ring::OWNER)) && field(ring::OWNER + 8) != sys::own_number()
    }

    /// Puts back the return addresses that are hidden on the stacks of all threads.
    pub fn reveal(&self, memory: &Memory) {
        for index in 0..self.used_blocks(memory) as u64 {
            let at = self.around.control + BLOCKS + index * block::SIZE;
            let mut bytes = vec![0; block::NODES as usize];
            if memory.read(TargetAddr(at), &mut bytes).is_err() {
                continue;
            }
            let word = |offset: u64| {
                let offset = offset as usize;
                let bytes = bytes.get(offset..offset + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            let base = word(block::BASE).unwrap_or(0).wrapping_sub(at);
            let top = word(block::TOP)
                .unwrap_or(0)
                .wrapping_sub(at)
                .min(block::SHADOW_END);
            if base != block::SHADOW + entry::SIZE {
                continue;
            }
            // The newest first: two entries may have hidden one slot.
            for offset in (base..top)
                .step_by(entry::SIZE as usize)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
            {
                let field = |field| word(offset + field).unwrap_or(0);
                self.reveal_entry(
                    memory,
                    field(entry::SLOT),
                    field(entry::PLACE),
                    field(entry::RETURN_TO),
                );
            }
        }
    }

    fn reveal_entry(&self, memory: &Memory, slot: u64, place: u64, own: u64) {
        if !self.is_code(place) {
            return;
        }
        let field = |offset| memory.read_word(TargetAddr(place + offset)).unwrap_or(0);
        let (hidden, fixed) = (field(place::HIDDEN), field(place::RETURN_TO));
        let return_to = if fixed == 0 { own } else { fixed };
        let stands = memory
            .read_word(TargetAddr(slot))
            .is_ok_and(|word| word == hidden);
        if self.is_code(hidden) && return_to != 0 && stands {
            let _ = memory.write_word(TargetAddr(slot), return_to);
        }
    }

    /// Whether the address is in code of ours.
    #[must_use]
    pub fn is_code(&self, addr: u64) -> bool {
        self.code.iter().any(|code| code.contains(&addr))
    }

    /// Whether a thread is in the stubs, or in a signal handler that will return to them.
    ///
    /// No other way leads there: return addresses have been put back before this is asked.
    fn is_visited(&self, memory: &Memory, at: Resumption, mappings: &[Mapping]) -> bool {
        if self.is_code(at.pc) {
            return true;
        }
        let from = at.sp & !7;
        let stack = mappings.iter().find(|m| m.contains(from));
        let end = stack.map_or(from, |m| m.end.min(from + STACK_SEARCHED));
        let mut bytes = vec![0; (end - from) as usize];
        if memory.read(TargetAddr(from), &mut bytes).is_err() {
            return true;
        }
        interrupted::among(from, &bytes).any(|found| self.is_code(found.pc))
    }

    /// Gives all mappings back if no thread can come to them any more. True when that was done.
    ///
    /// # Errors
    /// When a mapping cannot be given back.
    pub fn unmap(&self, pid: i32, memory: &Memory, world: &mut World) -> Result<bool> {
        let mappings = maps::read(pid)?;
        let visits = |at| self.is_visited(memory, at, &mappings);
        // A thread that is gone returns to nothing, of one that cannot be stopped anything may be.
        let stopped = world.threads().filter_map(resumption);
        let asleep = world.sleepers().map(|(_, at)| at);
        if stopped
            .map(Some)
            .chain(asleep)
            .any(|at| at.is_none_or(visits))
            || has_guests(pid)
        {
            return Ok(false);
        }
        let Ok(workers) = world.workers() else {
            return Ok(false);
        };
        let code = self.code.iter();
        let code = code.map(|piece| (piece.start, piece.end - piece.start));
        // At once: with the rings goes what tells of the rest.
        let data = (self.around.rings, self.data_bytes());
        let unmapped = self.caller.borrow(workers, &mappings, |worker| {
            for (start, len) in code.chain([data]) {
                worker.call("munmap", libc::SYS_munmap, [start, len, 0, 0, 0, 0])?;
            }
            Ok(())
        });
        match unmapped {
            Ok(()) | Err(Error::ThreadGone { .. }) => Ok(true),
            // The program has forbidden itself such calls since.
            Err(Error::Unsuitable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn resumption(thread: &Stopped) -> Option<Resumption> {
    let registers = thread.registers().ok()?;
    Some(Resumption {
        pc: registers.rip().0,
        sp: registers.rsp(),
    })
}

/// Whether another process runs in the memory of this one.
fn has_guests(pid: i32) -> bool {
    !guests::of(pid, threads::list(pid).unwrap_or_default()).is_empty()
}

#[cfg(test)]
mod tests {
    use crate::remote_call::RemoteCaller;

    use super::super::asm::Surroundings;
    use super::super::installed::Room;
    use super::*;

    /// A child that waits in the kernel, and darc's memory where it will go on.
    #[test]
    fn a_thread_that_cannot_be_stopped_keeps_what_it_returns_to() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let at = loop {
            match Resumption::of(pid) {
                Some(at) if threads::state(pid) == Some('S') => break at,
                _ => std::thread::yield_now(),
            }
        };
        let memory = Memory::open(pid).unwrap();
        let mappings = maps::read(pid).unwrap();
        let around = Surroundings {
            pid,
            control: 0,
            rings: 0,
            ring_bytes: 0,
            inside: 0,
            outside: 0,
            inside_f0: 0,
            counted: (0, 0),
            tid_offset: None,
        };
        let caller = RemoteCaller::find(pid, &memory, &mappings).unwrap();
        let with_code = |start: u64| Installed {
            code: std::iter::once(start..start + 4096).collect(),
            ..Installed::new(around, 0, Room::default(), caller)
        };
        assert!(with_code(at.pc & !4095).is_visited(&memory, at, &mappings));
        assert!(!with_code(4096).is_visited(&memory, at, &mappings));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
