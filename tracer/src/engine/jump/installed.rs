//! What the engine has mapped in the target: arenas, and what is in control data. [`super::mapping`] makes the mappings,
//! [`super::removal`] gives them back.

use std::collections::BTreeSet;
use std::ops::Range;

use darc_record::Field;
use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::limits::{self, Amount};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::plan::{Goroutines, Mark};
use crate::remote_call::{RemoteCaller, Worker};
use crate::sys;
use crate::threads;

use super::asm::{Delaying, Surroundings};
use super::jumps::Trampoline;
use super::layout::{
    BLOCKS, CODE, DESCRIPTORS, FNODES, HEADER, LIVE, MAGIC, MOST_CODE, TABLE, block, counts,
    descriptor, header, node, ring,
};
use super::pages::TABLE_WORD;
use super::runtime::{self, Runtime};
use super::unwinding::{self, Anchor, Calls, Row};
use super::world::World;

/// Bytes of an arena: room for about two thousand stubs.
pub const ARENA_BYTES: u64 = 1 << 20;
/// The part of an arena that tells unwinders of the rest: a description is about half as long as its stub.
const TABLE_PART: u64 = 3;
pub const MOST_BLOCKS: usize = 4096;
const PAGE: u64 = sys::PAGE as u64;

/// An arena with the routines that its stubs share.
#[derive(Debug)]
pub struct CodeArena {
    /// Where stubs are placed.
    pub arena: Arena,
    /// The routines in it.
    pub runtime: Runtime,
    table: Table,
}

/// For unwinders: what is known of an arena's code, at its end.
#[derive(Debug)]
struct Table {
    start: TargetAddr,
    len: u64,
    used: u64,
}

impl CodeArena {
    /// One without routines: a new one, or an earlier tracer's.
    pub fn bare(arena: Arena) -> CodeArena {
        let table = Table {
            start: arena.extent().0,
            len: 0,
            used: 0,
        };
        CodeArena {
            arena,
            runtime: Runtime::default(),
            table,
        }
    }

    /// Places code, and what unwinders need to know of it.
    ///
    /// # Errors
    /// When the arena is full or the target is gone.
    pub fn place(&mut self, memory: &Memory, code: &[u8], frames: &[Row]) -> Result<()> {
        let at = self.arena.place(memory, code)?;
        if frames.is_empty() {
            return Ok(());
        }
        self.tell(memory, at.0, code.len() as u64, frames)
    }

    /// Tells unwinders of `len` bytes of code at an address, as long as there is room for it.
    fn tell(&mut self, memory: &Memory, at: u64, len: u64, frames: &[Row]) -> Result<()> {
        let table = &mut self.table;
        let entry = unwinding::entries(table.used, at, len, frames);
        let len = entry.len() as u64;
        // Behind the last entry is a word of zero; without room the code is unknown to unwinders.
        if table.used + len + 8 <= table.len {
            let at = table.start.0 + table.used;
            // The length last: until then the table ends here.
            memory.write(TargetAddr(at + 4), &entry[4..])?;
            memory.write(TargetAddr(at), &entry[..4])?;
            table.used += len;
        }
        Ok(())
    }
}

impl Table {
    /// Takes a part of a new arena.
    fn begin(arena: &mut Arena, memory: &Memory) -> Result<Table> {
        let (start, len) = arena.extent();
        let room = (len / TABLE_PART).next_multiple_of(16);
        let at = TargetAddr(start.0 + len - room);
        arena.set_aside(room);
        // Before anything else: by it the arena is known as ours.
        memory.write_word(TargetAddr(start.0 + len - TABLE_WORD), at.0)?;
        memory.write(at, &unwinding::COMMON)?;
        Ok(Table {
            start: at,
            len: room - 8,
            used: unwinding::COMMON.len() as u64,
        })
    }
}

/// The mappings.
#[derive(Debug)]
pub struct Installed {
    /// What stubs are told.
    pub around: Surroundings,
    /// How many blocks and rings there are.
    pub blocks: u32,
    /// How much is mapped.
    pub room: Room,
    /// The arenas, each near some code.
    pub arenas: Vec<CodeArena>,
    /// All memory with code of ours: the arenas, and pages for trampolines.
    pub code: Vec<Range<u64>>,
    /// Whether control data and rings are the program's again.
    pub(super) is_given_back: bool,
    /// Makes system calls in the target.
    pub caller: RemoteCaller,
    /// Near which code stubs found no room since that was last asked.
    pub(super) lacking: BTreeSet<u64>,
    /// Near which code there can be no more arena, and why.
    pub(super) crowded: Vec<(u64, String)>,
    /// How many arenas are filled; control data is filled with the first.
    pub(super) filled: Option<usize>,
}

/// What probes cost, as calibrated, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Costs {
    /// What an empty measured call reads.
    pub inside: i32,
    /// What it takes from its caller.
    pub outside: i32,
    /// What an empty f0 reads.
    pub inside_f0: i32,
    /// What an empty counted call reads, and what it takes from its caller.
    pub counted: (i32, i32),
}

/// How much memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// How many functions' calls can be counted; with none there are rings for ops instead.
    pub slots: u32,
    /// How stubs can delay calls, if they can.
    pub delays: Option<Delaying>,
    /// Bytes of an arena.
    pub arena: u64,
    /// Whether the threads run goroutines.
    pub goroutines: Option<Goroutines>,
    /// What is noted at both ends of an op of f0.
    pub field: Option<Field>,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            slots: 0,
            delays: None,
            arena: ARENA_BYTES,
            goroutines: None,
            field: None,
        }
    }
}

impl Room {
    /// Bytes of shared memory for each block.
    pub(super) fn ring_bytes(self) -> u64 {
        match self.slots {
            0 => ring::SIZE,
            slots => counts::bytes(slots),
        }
    }
}

impl Installed {
    /// What has just been mapped, without arenas.
    #[must_use]
    pub fn new(around: Surroundings, blocks: u32, room: Room, caller: RemoteCaller) -> Installed {
        Installed {
            around,
            blocks,
            room,
            arenas: Vec::new(),
            code: Vec::new(),
            is_given_back: false,
            caller,
            lacking: BTreeSet::new(),
            crowded: Vec::new(),
            filled: None,
        }
    }

    /// Whether control data and the first arenas are filled.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        self.filled.is_some()
    }

    /// Fills what was mapped since it was last called.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn fill(&mut self, memory: &Memory) -> Result<()> {
        if self.filled.is_none() {
            self.write_descriptors(memory)?;
            self.bring_in(memory);
        }
        let filled = self.filled.get_or_insert(0);
        for code in &mut self.arenas[*filled..] {
            let start = code.arena.next().0;
            let (bytes, runtime) = runtime::emit(start, &self.around)
                .map_err(|error| Error::Unsuitable(error.to_string()))?;
            let routines = runtime.all().map(Anchor::called);
            let frames = unwinding::rows(&bytes, start, Calls::Return, &routines);
            code.table = Table::begin(&mut code.arena, memory)?;
            code.runtime = runtime;
            code.place(memory, &bytes, &frames)?;
            *filled += 1;
        }
        Ok(())
    }

    /// Has the pages be there that the first op of each thread uses: the kernel would bring them in one by one, and the op be longer by
    /// ten page faults and more. Nothing leads to them yet. What cannot be brought in comes later.
    fn bring_in(&self, memory: &Memory) {
        for page in self.first_pages() {
            let (at, mut byte) = (TargetAddr(page), [0]);
            // A write has the target have a page of its own.
            if memory.read(at, &mut byte).is_ok() {
                let _ = memory.write(at, &byte);
            }
        }
    }

    /// These pages: the tables by which a thread finds its block, and of so many blocks and rings as there are threads their parts' first ones.
    fn first_pages(&self) -> BTreeSet<u64> {
        /// Of more threads many never call f0.
        const MOST: u64 = 64;
        let threads = threads::list(self.caller.pid()).map_or(0, |threads| threads.len());
        let blocks = u64::from(self.blocks).min(MOST).min(threads as u64);
        let (control, rings) = (self.around.control, self.around.rings);
        let tables = (TABLE..DESCRIPTORS)
            .step_by(sys::PAGE)
            .map(|at| control + at);
        let of_blocks = (0..blocks).flat_map(|index| {
            let block = control + BLOCKS + index * block::SIZE;
            [0, block::TOUCH, block::SHADOW, block::NODES].map(|at| block + at)
        });
        let of_rings = (0..blocks).flat_map(|index| {
            let ring = rings + index * self.around.ring_bytes;
            (0..=ring::DATA).step_by(sys::PAGE).map(move |at| ring + at)
        });
        let pages = tables.chain(of_blocks).chain(of_rings);
        pages.map(|at| at & !(sys::PAGE as u64 - 1)).collect()
    }

    fn write_descriptors(&self, memory: &Memory) -> Result<()> {
        let mut descriptors = Vec::new();
        for index in 0..FNODES {
            let mut bytes = [0; descriptor::SIZE as usize];
            let node = (block::NODES + index * node::SIZE) as u32;
            bytes[descriptor::NODE as usize..][..4].copy_from_slice(&node.to_le_bytes());
            bytes[descriptor::FUNCTION as usize..][..4]
                .copy_from_slice(&descriptor::NO_FUNCTION.to_le_bytes());
            descriptors.extend_from_slice(&bytes);
        }
        memory.write(TargetAddr(self.around.control + DESCRIPTORS), &descriptors)
    }

    /// The arena near `addr` that has room for `len` more bytes.
    pub fn arena_near(&mut self, addr: u64, len: u64) -> Option<&mut CodeArena> {
        const REACH: u64 = 0x7000_0000;
        self.arenas.iter_mut().find(|code| {
            let (start, size) = code.arena.extent();
            let near = start.0.abs_diff(addr) < REACH && (start.0 + size).abs_diff(addr) < REACH;
            near && code.arena.next().0 + len <= start.0 + size - code.table.len - 8
        })
    }

    /// Forgets why there was no room near an address: it is looked for anew.
    pub fn uncrowd(&mut self, addr: u64) {
        self.crowded
            .retain(|(at, _)| at.abs_diff(addr) >= ARENA_BYTES);
    }

    /// Remembers that a stub found no room near an address, and says why there is none as far as that is known by now.
    pub fn lack(&mut self, addr: u64) -> String {
        let mut crowded = self.crowded.iter();
        match crowded.find(|(at, _)| at.abs_diff(addr) < ARENA_BYTES) {
            Some((_, why)) => why.clone(),
            None => {
                self.lacking.insert(addr);
                "there is no memory left near it for the probe's code".to_owned()
            }
        }
    }

    /// Maps one more arena near `addr`, which [`Installed::fill`] has to fill. `mappings` are those of a moment ago, `ground`
    /// what they leave.
    ///
    /// # Errors
    /// When there is no room near it.
    pub fn add_arena(
        &mut self,
        pid: i32,
        memory: &Memory,
        world: &mut World,
        (mappings, ground): (&[Mapping], &Ground),
        addr: u64,
    ) -> Result<()> {
        if self.code.len() >= MOST_CODE {
            return Err(Error::Unsuitable(
                "the room for the probes' code is used up".to_owned(),
            ));
        }
        limits::check(pid, self.amount(), Amount::of_code(self.room.arena))?;
        let (caller, len) = (self.caller, self.room.arena);
        let arena = caller.borrow(world.workers()?, mappings, |worker| {
            let mut map = |ground: &Ground| {
                let at = Arena::gap_near(ground, TargetAddr(addr), len)?;
                self.announced(memory, &(at.0..at.0 + len), || {
                    Arena::map_at(worker, at, len)
                })
            };
            match map(ground) {
                // The program, or this tracer, has mapped something there since.
                Err(Error::RemoteCall {
                    source: Errno::EEXIST,
                    ..
                }) => map(&Ground::of(pid, &maps::read(pid)?)),
                arena => arena,
            }
        })?;
        let (start, len) = arena.extent();
        self.arenas.push(CodeArena::bare(arena));
        self.code.push(start.0..start.0 + len);
        Ok(())
    }

    /// Maps a piece of code that the list of all code names before; where that fails, something else is there.
    fn announced<T>(
        &self,
        memory: &Memory,
        piece: &Range<u64>,
        map: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let index = self.code.len() as u64;
        let entry = self.around.control + CODE + 16 * index;
        memory.write_word(TargetAddr(entry), piece.start)?;
        memory.write_word(TargetAddr(entry + 8), piece.end - piece.start)?;
        self.count_code(memory, index + 1)?;
        let mapped = map();
        if mapped.is_err() {
            // That the target is gone is noticed elsewhere.
            let _ = self.count_code(memory, index);
        }
        mapped
    }

    /// Says how many entries the list of all code has.
    fn count_code(&self, memory: &Memory, count: u64) -> Result<()> {
        let at = TargetAddr(self.around.control + HEADER + header::CODE);
        memory.write(at, &(count as u32).to_le_bytes())
    }

    /// Maps pages for trampolines.
    ///
    /// # Errors
    /// When something else is there, or the target may not map memory.
    pub fn add_pages(
        &mut self,
        memory: &Memory,
        worker: &mut Worker<'_>,
        range: Range<u64>,
    ) -> Result<()> {
        let (start, len) = (range.start, range.end - range.start);
        if self.code.len() >= MOST_CODE {
            return Err(Error::Unsuitable("there are too many pages".to_owned()));
        }
        self.announced(memory, &range, || {
            let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let arguments = [start, len, protection, flags as u64, u64::MAX, 0];
            let got = worker.call("mmap", libc::SYS_mmap, arguments)?;
            if got == start {
                return Ok(());
            }
            // Kernels before 4.17 do not know the flag.
            worker.call("munmap", libc::SYS_munmap, [got, len, 0, 0, 0, 0])?;
            Err(Error::Unsuitable(format!("no memory at {start:#x}")))
        })?;
        self.code.push(range);
        Ok(())
    }

    /// Writes a trampoline into pages that were added, and what unwinders need to know of it.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn write_trampoline(&mut self, memory: &Memory, trampoline: &Trampoline) -> Result<()> {
        let Trampoline { at, bytes, of } = trampoline;
        let pages = self.code.iter().find(|pages| pages.contains(at));
        if let (Some(pages), Some(first)) = (pages, self.arenas.first_mut()) {
            // Before anything else: by it the pages are known as ours.
            let table = TargetAddr(pages.end - TABLE_WORD);
            memory.write_word(table, first.table.start.0)?;
            let frames = unwinding::rows(bytes, *at, Calls::Jump, &[Anchor::copy(*at, *of)]);
            first.tell(memory, *at, bytes.len() as u64, &frames)?;
        }
        memory.write(TargetAddr(*at), bytes)
    }

    /// All that is mapped, as the limits count it.
    #[must_use]
    pub fn amount(&self) -> Amount {
        let code = self.code.iter().map(|code| code.end - code.start).sum();
        data_amount(self.blocks, self.around.ring_bytes) + Amount::of_code(code)
    }

    /// Bytes of control data and rings, which lie beside each other.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        rings_bytes(self.blocks, self.around.ring_bytes) + control_bytes(self.blocks)
    }

    /// How many blocks threads have taken; all, as far as is known of a target that has ended.
    #[must_use]
    pub fn used_blocks(&self, memory: &Memory) -> usize {
        let at = TargetAddr(self.around.control + HEADER + header::NEXT_BLOCK);
        let used = memory.read_word(at).map_or(self.blocks, |word| word as u32);
        used.min(self.blocks) as usize
    }

    /// What stubs have taken of a thread for calls, in cycles, where that can be read.
    #[must_use]
    pub fn stolen(&self, memory: &Memory, index: usize) -> Option<u64> {
        let block = self.around.control + BLOCKS + index as u64 * block::SIZE;
        let at = TargetAddr(block + block::STOLEN);
        memory.read_word(at).ok()
    }

    /// Whether the mappings are still there: else the program has ended, or is another.
    #[must_use]
    pub fn is_there(&self, memory: &Memory) -> bool {
        let at = TargetAddr(self.around.control + HEADER + header::MAGIC);
        !self.is_given_back && memory.read_word(at).ok() == Some(MAGIC)
    }

    /// Tells the stubs whether to measure, and in which generation of the plan. What the program itself has ended
    /// ([`Mark::End`]) does not begin again: the stub counts the call before it stops the measuring.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn set_generation(&self, memory: &Memory, generation: u32) -> Result<()> {
        let live = TargetAddr(self.around.control + LIVE);
        memory.write(live, &generation.to_le_bytes())?;
        let ends = TargetAddr(self.around.control + HEADER + header::mark(Mark::End));
        match memory.read_word(ends)? {
            0 => Ok(()),
            _ => memory.write(live, &0_u32.to_le_bytes()),
        }
    }
}

/// Control data and rings, as the limits count them.
pub fn data_amount(blocks: u32, ring_bytes: u64) -> Amount {
    let (rings, control) = (rings_bytes(blocks, ring_bytes), control_bytes(blocks));
    let promised = rings.saturating_add(control);
    Amount {
        all: promised,
        data: control,
        promised,
    }
}

pub fn control_bytes(blocks: u32) -> u64 {
    (BLOCKS + u64::from(blocks) * block::SIZE).next_multiple_of(PAGE)
}

/// Bytes of the ring mapping, saturating: the numbers may be a stranger's.
pub fn rings_bytes(blocks: u32, each: u64) -> u64 {
    let bytes = u64::from(blocks).saturating_mul(each);
    bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use crate::engine::Engine as _;
    use crate::engine::jump::{Jump, leftovers};

    use super::*;

    /// The first op of a thread would have a page fault for each.
    #[test]
    fn what_the_first_op_uses_is_there() {
        /// Of an entry in proc_pid_pagemap(5).
        const PRESENT: u64 = 1 << 63;
        let mut target = leftovers::tests::start();
        let pid = target.id() as i32;
        let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
        let mut engine = Jump::attach(pid).unwrap();
        engine.install(&[code.unwrap().start]).unwrap();
        let pages = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
        let installed = &engine.space.as_ref().unwrap().installed;
        let first = installed.first_pages();
        // Of the first thread's block and ring, too.
        let Surroundings { control, rings, .. } = installed.around;
        for part in [control + TABLE, control + BLOCKS + block::NODES, rings] {
            assert!(
                first.contains(&(part & !(sys::PAGE as u64 - 1))),
                "{part:#x}"
            );
        }
        for page in first {
            let mut entry = [0; 8];
            let at = page / sys::PAGE as u64 * 8;
            pages.read_exact_at(&mut entry, at).unwrap();
            assert_ne!(u64::from_le_bytes(entry) & PRESENT, 0, "{page:#x}");
        }
        engine.finish().unwrap();
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }
}
