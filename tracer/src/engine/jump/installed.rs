//! What the engine has mapped in the target: arenas, and what is in control data. [`super::mapping`] makes the mappings,
//! [`super::removal`] gives them back.

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::remote_call::RemoteCaller;

use super::asm::Surroundings;
use super::layout::{
    BLOCKS, DESCRIPTORS, FNODES, HEADER, LIVE, MAGIC, block, counts, descriptor, header, node, ring,
};
use super::runtime::{self, Runtime};
use super::unwinding::{self, Anchor, Calls, Row};
use super::world::World;

/// Bytes of an arena: room for about two thousand stubs.
const ARENA_BYTES: u64 = 1 << 20;
/// The part of an arena that tells unwinders of the rest: a description is about half as long as its stub.
const TABLE_PART: u64 = 3;
/// How the ring's mapping is called in the target's list of mappings.
pub const NAME: &str = "darc";
pub const MOST_BLOCKS: usize = 4096;

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
        let table = &mut self.table;
        let entry = unwinding::entries(table.used, at.0, code.len() as u64, frames);
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
        memory.write(at, &unwinding::COMMON)?;
        memory.write_word(TargetAddr(start.0 + len - 8), at.0)?;
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
    /// Makes system calls in the target.
    pub caller: RemoteCaller,
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
    /// Bytes of an arena.
    pub arena: u64,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            slots: 0,
            arena: ARENA_BYTES,
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
            caller,
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

    /// Maps one more arena near `addr`, which [`Installed::fill`] has to fill. `mappings` are those of a moment ago.
    ///
    /// # Errors
    /// When there is no room near it.
    pub fn add_arena(
        &mut self,
        pid: i32,
        memory: &Memory,
        world: &mut World,
        mappings: &[Mapping],
        addr: u64,
    ) -> Result<()> {
        if self.arenas.len() >= header::MAX_ARENAS {
            return Err(Error::Unsuitable(
                "the room for the probes' code is used up".to_owned(),
            ));
        }
        let (caller, len) = (self.caller, self.room.arena);
        let near = TargetAddr(addr);
        let arena = caller.borrow(world.workers()?, mappings, |worker| {
            match Arena::map(worker, mappings, near, len) {
                // The program, or this tracer, has mapped something there since.
                Err(Error::RemoteCall {
                    source: Errno::EEXIST,
                    ..
                }) => Arena::map(worker, &maps::read(pid)?, near, len),
                arena => arena,
            }
        })?;
        let (start, len) = arena.extent();
        let index = self.arenas.len() as u64;
        let list = self.around.control + HEADER + header::ARENA + 16 * index;
        memory.write_word(TargetAddr(list), start.0)?;
        memory.write_word(TargetAddr(list + 8), len)?;
        let count = TargetAddr(self.around.control + HEADER + header::ARENAS);
        memory.write(count, &(index as u32 + 1).to_le_bytes())?;
        self.arenas.push(CodeArena::bare(arena));
        Ok(())
    }

    /// How many blocks threads have taken; all, as far as is known of a target that has ended.
    #[must_use]
    pub fn used_blocks(&self, memory: &Memory) -> usize {
        let at = TargetAddr(self.around.control + HEADER + header::NEXT_BLOCK);
        let used = memory.read_word(at).map_or(self.blocks, |word| word as u32);
        used.min(self.blocks) as usize
    }

    /// Whether the mappings are still there: else the program has ended, or is another.
    #[must_use]
    pub fn is_there(&self, memory: &Memory) -> bool {
        let at = TargetAddr(self.around.control + HEADER + header::MAGIC);
        memory.read_word(at).ok() == Some(MAGIC)
    }

    /// Tells the stubs whether to measure, and in which generation of the plan.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn set_generation(&self, memory: &Memory, generation: u32) -> Result<()> {
        memory.write(
            TargetAddr(self.around.control + LIVE),
            &generation.to_le_bytes(),
        )
    }
}

pub fn control_bytes(blocks: u32) -> u64 {
    BLOCKS + u64::from(blocks) * block::SIZE
}

/// Bytes of the ring mapping, saturating: the numbers may be a stranger's.
pub fn rings_bytes(blocks: u32, each: u64) -> u64 {
    u64::from(blocks).saturating_mul(each)
}
