//! Removing the mappings: when nothing leads to them any more, and those of a tracer that was killed.

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::remote_call::RemoteCaller;
use crate::stopped::Stopped;

use super::asm::Surroundings;
use super::installed::{
    CodeArena, Installed, MOST_BLOCKS, NAME, Room, began, control_bytes, rings_bytes,
};
use super::layout::{BLOCKS, HEADER, MAGIC, block, entry, header, place, ring};
use super::world::World;

/// How much of a stack above the stack pointer is searched for addresses of stubs.
const STACK_SEARCHED: u64 = 8 << 20;

impl Installed {
    /// What an earlier tracer left in the process, if it is recognised.
    #[must_use]
    pub fn find(pid: i32, memory: &Memory) -> Option<Installed> {
        let mappings = maps::read(pid).ok()?;
        let name = format!("/memfd:{NAME} (deleted)");
        let candidates = mappings
            .iter()
            .filter(|m| m.shared && m.name.as_os_str() == name.as_str());
        candidates
            .filter_map(|mapping| {
                let control = memory
                    .read_word(TargetAddr(mapping.start + ring::CONTROL))
                    .ok()?;
                let field = |offset| {
                    memory
                        .read_word(TargetAddr(control.checked_add(HEADER + offset)?))
                        .ok()
                };
                let known =
                    field(header::MAGIC)? == MAGIC && field(header::RINGS)? == mapping.start;
                let blocks = (field(header::NEXT_BLOCK)? >> 32) as u32;
                let ring_bytes = field(header::RING_BYTES)?;
                if !known
                    || blocks as usize > MOST_BLOCKS
                    || rings_bytes(blocks, ring_bytes) != mapping.end - mapping.start
                {
                    return None;
                }
                let count = (field(header::ARENAS)? as u32 as usize).min(header::MAX_ARENAS) as u64;
                let arenas = (0..count)
                    .map(|index| {
                        let at = header::ARENA + 16 * index;
                        let (start, len) = (field(at)?, field(at + 8)?);
                        let mapped = mappings
                            .iter()
                            .any(|m| m.start == start && m.end - m.start >= len && m.executable);
                        mapped.then(|| CodeArena::bare(Arena::found(TargetAddr(start), len)))
                    })
                    .collect::<Option<Vec<_>>>()?;
                Some(Installed {
                    around: Surroundings {
                        pid: 0,
                        control,
                        rings: mapping.start,
                        ring_bytes,
                        inside: 0,
                        outside: 0,
                        inside_f0: 0,
                        counted: (0, 0),
                        tid_offset: None,
                    },
                    blocks,
                    room: Room::default(),
                    arenas,
                    caller: RemoteCaller::find(pid, memory, &mappings).ok()?,
                })
            })
            .next()
    }

    /// The tracer that made these mappings, if it still lives and is not this one.
    #[must_use]
    pub fn owner(&self, memory: &Memory) -> Option<u64> {
        let field = |offset| {
            memory
                .read_word(TargetAddr(self.around.rings + offset))
                .ok()
        };
        let (pid, since) = (field(ring::OWNER)?, field(ring::OWNER + 8)?);
        let other = pid != u64::from(std::process::id());
        (other && began(pid) == Some(since)).then_some(pid)
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

    /// Whether the address is in one of the arenas.
    #[must_use]
    pub fn is_code(&self, addr: u64) -> bool {
        self.arenas
            .iter()
            .any(|code| code.arena.contains(TargetAddr(addr)))
    }

    /// Whether a thread is in the stubs, or in a signal handler that will return to them.
    ///
    /// No other way leads there: return addresses have been put back before this is asked.
    fn is_visited(&self, memory: &Memory, thread: &Stopped, mappings: &[Mapping]) -> bool {
        /// The code segment of 64-bit user code on Linux, which follows the flags in a signal frame
        /// (`struct sigcontext` in the kernel's uapi/asm/sigcontext.h).
        const USER_CODE: u16 = 0x33;
        let Ok(registers) = thread.registers() else {
            return false;
        };
        if self.is_code(registers.rip().0) {
            return true;
        }
        let from = registers.rsp() & !7;
        let stack = mappings.iter().find(|m| m.contains(from));
        let end = stack.map_or(from, |m| m.end.min(from + STACK_SEARCHED));
        let mut bytes = vec![0; (end - from) as usize];
        if memory.read(TargetAddr(from), &mut bytes).is_err() {
            return true;
        }
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        words
            .windows(3)
            .any(|saved| saved[2] as u16 == USER_CODE && self.is_code(saved[0]))
    }

    /// Gives all mappings back if no thread can come to them any more. True when that was done.
    ///
    /// # Errors
    /// When a mapping cannot be given back.
    pub fn unmap(&self, pid: i32, memory: &Memory, world: &mut World) -> Result<bool> {
        let mappings = maps::read(pid)?;
        if world
            .threads()
            .any(|thread| self.is_visited(memory, thread, &mappings))
        {
            return Ok(false);
        }
        let Ok(worker) = world.worker() else {
            return Ok(false);
        };
        let arenas = self
            .arenas
            .iter()
            .map(|code| code.arena.extent())
            .map(|(start, len)| (start.0, len));
        let data = [
            (self.around.control, control_bytes(self.blocks)),
            (
                self.around.rings,
                rings_bytes(self.blocks, self.around.ring_bytes),
            ),
        ];
        let unmapped = self.caller.borrow(worker, |worker| {
            for (start, len) in arenas.chain(data) {
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
