//! What the engine has mapped in the target: making it, giving it back, and finding what an earlier
//! tracer left.

use std::fs::OpenOptions;

use darc_disasm::Registers as _;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::{Error, Result, unless_gone};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::remote_call::{RemoteCaller, Worker};
use crate::sys::SharedWords;
use crate::threads;

use super::asm::Surroundings;
use super::layout::{
    BLOCKS, DESCRIPTORS, FNODES, HEADER, LIVE, MAGIC, block, counts, descriptor, header, node, ring,
};
use super::ring::Rings;
use super::runtime::{self, Runtime};
use super::unwinding::{self, Anchor, Calls, Row};
use super::world::World;

/// Bytes of an arena: room for about two thousand stubs.
const ARENA_BYTES: u64 = 1 << 20;
/// The part of an arena that tells unwinders of the rest: a description is about half as long as its stub.
const TABLE_PART: u64 = 3;
/// How the ring's mapping is called in the target's list of mappings.
pub const NAME: &str = "darc";
/// Threads that a process without many may still make until those that ended give their blocks back.
const SPARE_BLOCKS: usize = 512;
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
    fn ring_bytes(self) -> u64 {
        match self.slots {
            0 => ring::SIZE,
            slots => counts::bytes(slots),
        }
    }
}

/// Memory of the target that is data: readable and writable.
const DATA: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

/// Refuses a target that the processor faults for reading the time stamp counter, which every stub does.
/// `room` is memory of the target for the answer.
///
/// Source: PR_GET_TSC in prctl(2). The kernel keeps it for each thread; new ones inherit it.
fn may_read_clock(worker: &mut Worker<'_>, memory: &Memory, room: u64) -> Result<()> {
    let ask = [libc::PR_GET_TSC as u64, room, 0, 0, 0, 0];
    worker.call("prctl", libc::SYS_prctl, ask)?;
    match memory.read_word(TargetAddr(room))? as i32 {
        libc::PR_TSC_SIGSEGV => Err(Error::Unsuitable(format!(
            "thread {} has forbidden itself to read the time stamp counter (PR_SET_TSC), which the jump engine's probes do; use --engine int3",
            worker.tid()
        ))),
        _ => Ok(()),
    }
}

/// Maps the rings, which the target and the tracer share, through a descriptor that the target has for
/// this moment only. Returns the tracer's side and the address in the target.
fn share_rings(
    worker: &mut Worker<'_>,
    memory: &Memory,
    control: u64,
    (blocks, room): (usize, Room),
) -> Result<(SharedWords, u64)> {
    let wipe = [control + LIVE, 4096, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
    worker.call("madvise", libc::SYS_madvise, wipe)?;
    let name = TargetAddr(control + HEADER);
    memory.write(name, b"darc\0")?;
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let arguments = [name.0, flags, 0, 0, 0, 0];
    let fd = worker.call("memfd_create", libc::SYS_memfd_create, arguments)?;
    let words = share(worker.tid(), fd, blocks, room.ring_bytes());
    let rings = words.and_then(|words| {
        let len = rings_bytes(blocks as u32, room.ring_bytes());
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let arguments = [0, len, DATA, shared as u64, fd, 0];
        let at = worker.call("mmap", libc::SYS_mmap, arguments)?;
        Ok((words, at))
    });
    worker.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    rings
}

/// Maps control data and rings: the tracer's side of the rings, and where both are in the target.
fn map(
    worker: &mut Worker<'_>,
    memory: &Memory,
    (blocks, room): (usize, Room),
) -> Result<(SharedWords, u64, u64)> {
    let len = control_bytes(blocks as u32);
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [0, len, DATA, private as u64, u64::MAX, 0];
    let control = worker.call("mmap", libc::SYS_mmap, arguments)?;
    let shared = may_read_clock(worker, memory, control + HEADER)
        .and_then(|()| share_rings(worker, memory, control, (blocks, room)));
    match shared {
        Ok((words, rings)) => Ok((words, control, rings)),
        Err(error) => {
            let arguments = [control, len, 0, 0, 0, 0];
            unless_gone(worker.call("munmap", libc::SYS_munmap, arguments))?;
            Err(error)
        }
    }
}

impl Installed {
    /// Maps control data and rings, which [`Installed::fill`] has to fill. The target's own list of descriptors is as
    /// before afterwards.
    ///
    /// # Errors
    /// When the target has no thread pointers, or may not map memory.
    pub fn install(
        pid: i32,
        memory: &Memory,
        world: &mut World,
        caller: RemoteCaller,
        (costs, room): (Costs, Room),
    ) -> Result<(Installed, Rings)> {
        let tid_offset = thread_pointers(pid, memory, world)?;
        let threads = world.threads().count();
        let blocks = (2 * threads + SPARE_BLOCKS).min(MOST_BLOCKS);
        let (words, control, rings) = caller.borrow(world.worker()?, |worker| {
            map(worker, memory, (blocks, room))
        })?;
        let me = std::process::id();
        words.store(ring::OWNER as usize, me.into());
        words.store(ring::OWNER as usize + 8, began(me.into()).unwrap_or(0));
        words.store(ring::CONTROL as usize, control);
        let around = Surroundings {
            pid: id_in_target(pid).unwrap_or(pid),
            control,
            rings,
            ring_bytes: room.ring_bytes(),
            inside: costs.inside,
            outside: costs.outside,
            inside_f0: costs.inside_f0,
            counted: costs.counted,
            tid_offset,
        };
        let installed = Installed {
            around,
            blocks: blocks as u32,
            room,
            arenas: Vec::new(),
            caller,
        };
        installed.announce(memory)?;
        Ok((installed, Rings::new(words, blocks, room.ring_bytes())))
    }

    /// Writes by what a later tracer knows the mappings.
    fn announce(&self, memory: &Memory) -> Result<()> {
        let mut head = [0; header::FILTER as usize];
        head[header::MAGIC as usize..][..8].copy_from_slice(&MAGIC.to_le_bytes());
        head[header::BLOCKS as usize..][..4].copy_from_slice(&self.blocks.to_le_bytes());
        head[header::RINGS as usize..][..8].copy_from_slice(&self.around.rings.to_le_bytes());
        head[header::RING_BYTES as usize..][..8]
            .copy_from_slice(&self.around.ring_bytes.to_le_bytes());
        memory.write(TargetAddr(self.around.control + HEADER), &head)
    }

    /// Fills what was mapped: the arenas behind the first `filled`, and when nothing was filled before, the rest.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn fill(&mut self, memory: &Memory, filled: Option<usize>) -> Result<()> {
        if filled.is_none() {
            self.write_descriptors(memory)?;
        }
        for code in &mut self.arenas[filled.unwrap_or(0)..] {
            let start = code.arena.next().0;
            let (bytes, runtime) = runtime::emit(start, &self.around)
                .map_err(|error| Error::Unsuitable(error.to_string()))?;
            let routines = runtime.all().map(Anchor::called);
            let frames = unwinding::rows(&bytes, start, Calls::Return, &routines);
            code.table = Table::begin(&mut code.arena, memory)?;
            code.runtime = runtime;
            code.place(memory, &bytes, &frames)?;
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
        let worker = world.worker()?;
        let arena = match Arena::map(caller, worker, mappings, TargetAddr(addr), len) {
            // The program, or this tracer, has mapped something there since.
            Err(Error::RemoteCall {
                source: Errno::EEXIST,
                ..
            }) => Arena::map(caller, worker, &maps::read(pid)?, TargetAddr(addr), len)?,
            arena => arena?,
        };
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

/// When a process began, in clock ticks since boot (proc_pid_stat(5), field 22).
pub fn began(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

pub fn control_bytes(blocks: u32) -> u64 {
    BLOCKS + u64::from(blocks) * block::SIZE
}

/// Bytes of the ring mapping, saturating: the numbers may be a stranger's.
pub fn rings_bytes(blocks: u32, each: u64) -> u64 {
    u64::from(blocks).saturating_mul(each)
}

/// Maps the target's memory file here. The target cannot shrink it, which would end this process.
fn share(tid: i32, fd: u64, blocks: usize, each: u64) -> Result<SharedWords> {
    let os = |source| Error::Os {
        operation: "open the memory shared with the target",
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{tid}/fd/{fd}"))
        .map_err(os)?;
    let len = rings_bytes(blocks as u32, each);
    file.set_len(len).map_err(os)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| os(errno.into()))?;
    SharedWords::map(&file, len as usize).map_err(|errno| os(errno.into()))
}

/// Checks that every thread has a thread pointer (System V ABI for AMD64, 3.4.6: `%fs:0` holds its own
/// address), and finds where the C library keeps the thread's id, if it does.
fn thread_pointers(pid: i32, memory: &Memory, world: &World) -> Result<Option<u32>> {
    /// `struct pthread` of the GNU C library and of musl.
    const KNOWN: [u32; 2] = [0x2d0, 0x30];
    let mut fits = KNOWN.to_vec();
    // Most programs see the ids that everybody sees.
    let same_ids = ids(pid).is_some_and(|ids| ids.len() == 1);
    for thread in world.threads() {
        let Some(registers) = unless_gone(thread.registers())? else {
            continue;
        };
        let pointer = registers.fs_base();
        if pointer == 0 || memory.read_word(TargetAddr(pointer)).ok() != Some(pointer) {
            return Err(Error::Unsuitable(format!(
                "thread {} of process {pid} has no thread pointer, by which the jump engine tells threads apart; use --engine int3",
                thread.tid()
            )));
        }
        let id = match same_ids {
            true => Some(thread.tid()),
            false => id_in_target(thread.tid()),
        };
        fits.retain(|&offset| {
            let at = TargetAddr(pointer + u64::from(offset));
            memory
                .read_word(at)
                .is_ok_and(|word| Some(word as u32 as i32) == id)
        });
    }
    Ok(fits.first().copied())
}

/// A thread's ids, from the pid namespace of `/proc` to its own (proc_pid_status(5), `NSpid`).
fn ids(tid: i32) -> Option<Vec<i32>> {
    let ids = threads::status_field(tid, "NSpid")?;
    ids.split_whitespace().map(|id| id.parse().ok()).collect()
}

/// A thread's id in its own pid namespace.
fn id_in_target(tid: i32) -> Option<i32> {
    ids(tid)?.pop()
}
