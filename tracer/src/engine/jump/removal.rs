//! Removing the mappings: when nothing leads to them any more, and those of a tracer that was killed.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::remote_call::{Handler, handler_on_alternate_stack};
use crate::stopped::Stopped;
use crate::sys;
use crate::threads;
use darc_disasm::Registers as _;

use super::awaited::{Awaited, Hidden};
use super::installed::Installed;
use super::interrupted::{self, Interrupted};
use super::layout::ring;
use super::world::{Resumption, World};
use crate::guests;

/// How much of a stack above the stack pointer is searched for addresses of stubs.
const STACK_SEARCHED: u64 = 8 << 20;
/// So many stacks are searched for one thread: handlers that have interrupted others on other stacks are few.
const MOST_STACKS: usize = 8;

/// The name of the kernel's mapping to which functions with a return probe return.
const RETURN_PROBES: &str = "[uprobes]";

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

    /// Puts back the return addresses that are hidden on the stacks of all threads. Whether one of them is kept by somebody's return
    /// probe: the kernel knows where it leads, has put an address of its own in its place, and will return there.
    pub fn reveal(&self, memory: &Memory, mappings: &[Mapping]) -> bool {
        let is_of_probes = |mapping: &&Mapping| mapping.name.as_os_str() == RETURN_PROBES;
        let probes = mappings.iter().find(is_of_probes);
        let mut is_kept = false;
        for index in 0..self.used_blocks(memory) {
            // The newest first: two entries may have hidden one slot.
            for call in self.awaited(memory, index).iter().rev() {
                let stays = self.reveal_call(memory, call);
                is_kept |= stays.is_some_and(|word| probes.is_some_and(|it| it.contains(word)));
            }
        }
        is_kept
    }

    /// Returns what is in the slot, if it is not the address of ours that was put there.
    fn reveal_call(&self, memory: &Memory, call: &Awaited) -> Option<u64> {
        let Hidden { hidden, return_to } = self.hidden(memory, call)?;
        let word = memory.read_word(TargetAddr(call.slot)).ok()?;
        if word == hidden {
            let _ = memory.write_word(TargetAddr(call.slot), return_to);
        }
        (word != hidden).then_some(word)
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
        if self.code.is_empty() {
            return false;
        }
        if self.is_code(at.pc) {
            return true;
        }
        if at == Resumption::NOWHERE {
            return false;
        }
        if let Some(known) = self.around.goroutines {
            return self.is_awaited_by_handler(memory, at.sp)
                || known.calls_c && self.is_awaited_on_stack(memory, at.sp, mappings);
        }
        // The thread's stack first, then those that handlers on another one have interrupted.
        let mut open = vec![at.sp];
        let mut seen = HashSet::new();
        while let Some(sp) = open.pop() {
            let Some((stack, found)) = handlers_on(memory, sp, mappings) else {
                // The thread's was mapped after the mappings had been read; of another one it is no stack pointer.
                if seen.is_empty() {
                    return true;
                }
                continue;
            };
            if found.iter().any(|found| self.is_code(found.pc)) {
                return true;
            }
            seen.insert(sp);
            for found in found.iter().filter(|found| !stack.contains(&found.sp)) {
                if seen.len() + open.len() < MOST_STACKS && !seen.contains(&found.sp) {
                    open.push(found.sp);
                }
            }
        }
        false
    }

    /// Whether signal handlers may have been left that still return to the stubs: a handler that switches to another context
    /// leaves its frame on a stack that is no thread's until it is switched back to. `pid` is the process's number here.
    pub fn may_be_suspended<'a>(
        &self,
        pid: i32,
        memory: &Memory,
        threads: impl Iterator<Item = &'a Stopped>,
        mappings: &[Mapping],
    ) -> bool {
        /// The signals that C libraries keep to themselves.
        const INTERNAL: u64 = 0b111 << 31;
        if self.around.goroutines.is_some() || self.code.is_empty() {
            return false;
        }
        let caught = threads::status_field(pid, "SigCgt");
        let caught = caught.and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        if caught.is_some_and(|mask| mask & !INTERNAL == 0) {
            return false;
        }
        let switched = (0..self.used_blocks(memory) as u64).any(|index| {
            let at = self.around.rings + index * self.around.ring_bytes + ring::SWITCHED;
            memory
                .read_word(TargetAddr(at))
                .is_ok_and(|count| count > 0)
        });
        let mut threads = threads;
        switched || threads.any(|thread| is_on_foreign_stack(thread, mappings))
    }

    /// Whether a thread of goroutines is in a signal handler that will return to the stubs, or in one that has interrupted
    /// such a one. Handlers of such programs have stacks of their own, one beside the other and beside those of goroutines:
    /// what is found beyond the thread's is of others, or of handlers that have returned long since. One of C code that has none is on the
    /// stub's stack.
    fn is_awaited_by_handler(&self, memory: &Memory, sp: u64) -> bool {
        /// More are not one in the other.
        const MOST_HANDLERS: usize = 64;
        let innermost = handler_on_alternate_stack(memory, sp);
        let outer = |inner: &Handler| handler_on_alternate_stack(memory, inner.returns_with);
        let mut handlers = std::iter::successors(innermost, outer).take(MOST_HANDLERS);
        let stubs = self.around.rings..self.around.rings + self.data_bytes();
        stubs.contains(&sp)
            || handlers.any(|it| self.is_code(it.returns_to) || stubs.contains(&it.returns_with))
    }

    /// Whether a handler of C code that has no stack of its own runs on the stack of a thread of goroutines and will return to the stubs:
    /// what it has interrupted is just above its frame, the processor's state within that at its largest. A frame that such a handler has left
    /// looks so, too, and keeps memory that could go.
    fn is_awaited_on_stack(&self, memory: &Memory, sp: u64, mappings: &[Mapping]) -> bool {
        const FRAME: u64 = 16 << 10;
        let mut found = interrupted::near(memory, sp, mappings).into_iter();
        found.any(|it| self.is_code(it.pc) && (it.at..it.at + FRAME).contains(&it.sp))
    }

    /// Whether one of these stopped threads is in the stubs, or will return there. `ends` are the addresses from which threads
    /// are led out.
    pub fn are_visited<'a>(
        &self,
        memory: &Memory,
        mut threads: impl Iterator<Item = &'a Stopped>,
        ends: &SyscallEnds,
        mappings: &[Mapping],
    ) -> bool {
        // A thread that is gone returns to nothing.
        threads.any(|thread| {
            let at = Resumption::of_stopped(thread).ok();
            at.is_some_and(|at| {
                let pc = ends.original(at.pc).unwrap_or(at.pc);
                self.is_visited(memory, Resumption { pc, ..at }, mappings)
            })
        })
    }

    /// The same of those that cannot be stopped. Of one of which nothing is known anything may be.
    pub fn is_slept_in(&self, memory: &Memory, world: &World, mappings: &[Mapping]) -> bool {
        let visits = |at| self.is_visited(memory, at, mappings);
        world.sleepers().any(|(_, at)| at.is_none_or(visits))
    }

    /// Gives all mappings back, to which no thread can come any more. True when that was done. What is given back is the
    /// program's from then on, and not given back again.
    ///
    /// # Errors
    /// When a mapping cannot be given back.
    pub fn unmap(&mut self, world: &mut World, mappings: &[Mapping]) -> Result<bool> {
        let Ok(workers) = world.workers() else {
            return Ok(false);
        };
        // At once: with the rings goes what tells of the rest.
        let data = (self.around.rings, self.data_bytes());
        let (code, is_given_back) = (&mut self.code, &mut self.is_given_back);
        let unmapped = self.caller.borrow(workers, mappings, |worker| {
            let mut give_back = |start, len| {
                let arguments = [start, len, 0, 0, 0, 0];
                worker.call("munmap", libc::SYS_munmap, arguments)
            };
            while let Some(piece) = code.last() {
                give_back(piece.start, piece.end - piece.start)?;
                code.pop();
            }
            if !*is_given_back {
                give_back(data.0, data.1)?;
                *is_given_back = true;
            }
            Ok(())
        });
        match unmapped {
            Ok(()) | Err(Error::ThreadGone { .. }) => Ok(true),
            // The program has forbidden itself such calls since.
            Err(Error::Unsuitable(_) | Error::Busy(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The handlers on a stack, from the stack pointer on, and what was searched for them; none where nothing is mapped.
fn handlers_on(
    memory: &Memory,
    sp: u64,
    mappings: &[Mapping],
) -> Option<(Range<u64>, Vec<Interrupted>)> {
    let from = sp & !7;
    let index = mappings.partition_point(|mapping| mapping.end <= from);
    let stack = mappings.get(index).filter(|m| m.contains(from))?;
    let end = stack.end.min(from + STACK_SEARCHED);
    let mut bytes = vec![0; (end - from) as usize];
    memory.read(TargetAddr(from), &mut bytes).ok()?;
    Some((from..end, interrupted::among(from, &bytes).collect()))
}

/// Whether a thread is on another stack than its own, which is the process's, or is where its thread pointer leads: C libraries
/// put what that points to above the stack.
fn is_on_foreign_stack(thread: &Stopped, mappings: &[Mapping]) -> bool {
    let Ok(registers) = thread.registers() else {
        return false;
    };
    let (sp, pointer) = (registers.rsp(), registers.fs_base());
    let stack = mappings.iter().find(|mapping| mapping.contains(sp));
    stack.is_some_and(|stack| !stack.contains(pointer) && stack.name.as_os_str() != "[stack]")
}

/// The addresses behind copied system calls, each with the one behind the original.
#[derive(Default, Debug)]
pub struct SyscallEnds(pub HashMap<u64, u64>);

impl SyscallEnds {
    /// The original of an address at or behind a copied system call, which is as long.
    #[must_use]
    pub fn original(&self, pc: u64) -> Option<u64> {
        const SYSCALL: u64 = 2;
        let behind = self.0.get(&pc).copied();
        let before = || Some(self.0.get(&(pc.wrapping_add(SYSCALL)))? - SYSCALL);
        behind.or_else(before)
    }
}

/// Whether another process runs in the memory of this one.
#[must_use]
pub fn has_guests(pid: i32) -> bool {
    !guests::of(pid, threads::list(pid).unwrap_or_default()).is_empty()
}

#[cfg(test)]
pub mod tests {
    use crate::maps;
    use crate::patience::wait_for;
    use crate::plan::Goroutines;
    use crate::remote_call::RemoteCaller;
    use crate::stacks::Stack;

    use super::super::asm::Surroundings;
    use super::super::installed::Room;
    use super::super::layout::{BLOCKS, HEADER, block, entry, header, place};
    use super::*;

    /// Mappings of ours in a process, with code at an address.
    pub fn installed(pid: i32, code: u64, goroutines: Option<Goroutines>) -> Installed {
        let around = Surroundings {
            pid,
            control: 0,
            rings: 0,
            ring_bytes: 0,
            inside: 0,
            outside: 0,
            inside_f0: 0,
            counted: (0, 0),
            delays: None,
            tid_offset: None,
            tells_pointer: false,
            goroutines,
            field: None,
        };
        let memory = Memory::open(pid).unwrap();
        let mappings = maps::read(pid).unwrap();
        let caller = RemoteCaller::find(pid, &memory, &mappings).unwrap();
        Installed {
            code: std::iter::once(code..code + 4096).collect(),
            ..Installed::new(around, 0, Room::default(), caller)
        }
    }

    /// What handlers have left on stacks that lie beside the thread's keeps nothing; the handler that it is in does.
    #[test]
    fn a_handler_of_goroutines_keeps_what_it_returns_to() {
        const CODE: u64 = 0x40_0000;
        let pid = std::process::id() as i32;
        let memory = Memory::open(pid).unwrap();
        let mappings = maps::read(pid).unwrap();
        let mut stacks = vec![0_u64; 4096];
        // Two stacks of 8 KiB; on the second one is a signal frame.
        let stack = stacks.as_ptr() as u64 + 8192;
        stacks[1500..1505].copy_from_slice(&[7, 0, stack, 0, 8191]);
        stacks[1521..1524].copy_from_slice(&[CODE + 16, 0x246, 0x002b_0000_0000_0033]);
        let known = Some(Goroutines {
            number: 152,
            current: 192,
            kept: -8,
            calls_c: true,
        });
        let is_visited = |goroutines, sp| {
            let at = Resumption { pc: 16, sp };
            installed(pid, CODE, goroutines).is_visited(&memory, at, &mappings)
        };
        // One that has no stack of its own has interrupted a stub, which has one.
        let mut data = installed(pid, CODE, known);
        (data.blocks, data.around.rings) = (1, stack - 2048);
        let at = Resumption {
            pc: 16,
            sp: stack - 1024,
        };
        assert!(data.is_visited(&memory, at, &mappings));
        assert!(is_visited(None, stack - 4096));
        assert!(!is_visited(known, stack - 4096));
        assert!(is_visited(known, stack + 1024));
        // One of C code, on the stack of what it has interrupted.
        stacks[600..604].copy_from_slice(&[stack - 2048, CODE + 16, 0x246, 0x002b_0000_0000_0033]);
        assert!(is_visited(known, stack - 4096));
        let of_go_alone = known.map(|known| Goroutines {
            calls_c: false,
            ..known
        });
        assert!(!is_visited(of_go_alone, stack - 4096));
        // What has interrupted something elsewhere is of a handler that has returned.
        stacks[600] = 16;
        assert!(!is_visited(known, stack - 4096));
        // A handler that has interrupted that one.
        stacks[1200..1205].copy_from_slice(&[7, 0, stack, 0, 8191]);
        stacks[1220..1224].copy_from_slice(&[stack + 3008, 16, 0x246, 0x002b_0000_0000_0033]);
        assert!(is_visited(known, stack + 256));
    }

    /// A call whose return address is hidden, and the address that a return probe has put in its place.
    #[test]
    fn what_a_return_probe_keeps_is_told() {
        let pid = std::process::id() as i32;
        let memory = Memory::open(pid).unwrap();
        let mut control = vec![0_u8; (BLOCKS + block::SIZE) as usize];
        let start = control.as_ptr() as u64;
        let (mut stack, mut code) = (vec![0_u64; 8], vec![0_u64; 512]);
        let (slot, hidden) = (stack.as_ptr() as u64, code.as_ptr() as u64 + 64);
        code[(place::HIDDEN / 8) as usize] = hidden;
        code[(place::RETURN_TO / 8) as usize] = 7;
        let mut put = |at: u64, word: u64| {
            control[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        };
        put(HEADER + header::NEXT_BLOCK, 1);
        let first = block::SHADOW + entry::SIZE;
        put(BLOCKS + block::BASE, start + BLOCKS + first);
        put(BLOCKS + block::TOP, start + BLOCKS + first + entry::SIZE);
        put(BLOCKS + first + entry::SLOT, slot);
        put(BLOCKS + first + entry::PLACE, code.as_ptr() as u64);
        let mut installed = installed(pid, code.as_ptr() as u64, None);
        (installed.blocks, installed.around.control) = (1, start);
        let probes = Mapping {
            start: 4096,
            end: 8192,
            name: RETURN_PROBES.into(),
            ..maps::read(pid).unwrap().remove(0)
        };
        for (word, left, is_kept) in [(hidden, 7, false), (4096, 4096, true), (16, 16, false)] {
            stack[0] = word;
            let told = installed.reveal(&memory, std::slice::from_ref(&probes));
            assert_eq!(
                (memory.read_word(TargetAddr(slot)).unwrap(), told),
                (left, is_kept)
            );
        }
        // In a copy of the stack the hidden one is as the program's, and nothing else changes.
        let calls = installed.awaited(&memory, 0);
        let copy_with = |word: u64| Stack {
            tid: 1,
            rip: TargetAddr(0),
            call: None,
            rsp: slot,
            rbp: 0,
            bytes: word.to_le_bytes().to_vec(),
        };
        for (word, left) in [(hidden, 7), (4096, 4096)] {
            let mut copy = copy_with(word);
            installed.reveal_in_copy(&memory, &calls, &mut copy);
            assert_eq!(copy.word(slot), Some(left));
        }
        let mut elsewhere = Stack {
            rsp: slot + 8,
            ..copy_with(hidden)
        };
        installed.reveal_in_copy(&memory, &calls, &mut elsewhere);
        assert_eq!(elsewhere.word(slot + 8), Some(hidden));
    }

    /// A handler on an alternate stack has interrupted one on the thread's own.
    #[test]
    fn a_handler_below_another_stack_keeps_what_it_returns_to() {
        const CODE: u64 = 0x40_0000;
        const SEGMENTS: u64 = 0x002b_0000_0000_0033;
        let pid = std::process::id() as i32;
        let memory = Memory::open(pid).unwrap();
        let page = |addr| {
            let mut page = maps::read(pid).unwrap().into_iter();
            page.find(|mapping| mapping.contains(addr)).unwrap()
        };
        let (mut outer, mut inner) = (vec![0_u64; 1 << 20], vec![0_u64; 1 << 20]);
        let stacks = [outer.as_ptr() as u64, inner.as_ptr() as u64];
        // As if each were a mapping.
        let mappings: Vec<Mapping> = {
            let mut both = stacks.map(|start| Mapping {
                start,
                end: start + 4096,
                ..page(start)
            });
            both.sort_unstable_by_key(|mapping| mapping.start);
            both.into()
        };
        inner[100..104].copy_from_slice(&[stacks[0] + 80, 16, 0x246, SEGMENTS]);
        outer[200..204].copy_from_slice(&[8, CODE + 16, 0x246, SEGMENTS]);
        let at = Resumption {
            pc: 16,
            sp: stacks[1] + 8,
        };
        let installed = installed(pid, CODE, None);
        assert!(installed.is_visited(&memory, at, &mappings));
        outer[201] = 16;
        assert!(!installed.is_visited(&memory, at, &mappings));
        // What no stack is mapped for is no handler.
        inner[100] = 8;
        assert!(!installed.is_visited(&memory, at, &mappings));
    }

    /// A child that waits in the kernel, and darc's memory where it will go on.
    #[test]
    fn a_thread_that_cannot_be_stopped_keeps_what_it_returns_to() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let at = wait_for(|| Resumption::of(pid).filter(|_| threads::state(pid) == Some('S')));
        let memory = Memory::open(pid).unwrap();
        let mappings = maps::read(pid).unwrap();
        let with_code = |start: u64| installed(pid, start, None);
        assert!(with_code(at.pc & !4095).is_visited(&memory, at, &mappings));
        assert!(!with_code(4096).is_visited(&memory, at, &mappings));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
