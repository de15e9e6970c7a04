//! What the engine has mapped in the target: making it, giving it back, and finding what an earlier
//! tracer left.

use std::fs::OpenOptions;

use darc_disasm::Registers as _;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::{Error, Result, unless_gone};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::remote_call::RemoteCaller;
use crate::stopped::Stopped;
use crate::sys::SharedWords;
use crate::threads;

use super::asm::Surroundings;
use super::layout::{
    BLOCKS, DESCRIPTORS, FNODES, HEADER, LIVE, MAGIC, block, descriptor, entry, header, node,
    place, ring,
};
use super::ring::Rings;
use super::runtime::{self, Runtime};
use super::world::World;

/// Bytes of an arena: room for about two thousand stubs.
const ARENA_BYTES: u64 = 1 << 20;
/// How the ring's mapping is called in the target's list of mappings.
const NAME: &str = "darc";
/// Threads that a process without many may still make.
const SPARE_BLOCKS: usize = 64;
const MOST_BLOCKS: usize = 4096;
/// How much of a stack above the stack pointer is searched for addresses of stubs.
const STACK_SEARCHED: u64 = 8 << 20;

/// An arena with the routines that its stubs share.
#[derive(Debug)]
pub struct CodeArena {
    /// Where stubs are placed.
    pub arena: Arena,
    /// The routines in it.
    pub runtime: Runtime,
}

/// The mappings.
#[derive(Debug)]
pub struct Installed {
    /// What stubs are told.
    pub around: Surroundings,
    /// How many blocks and rings there are.
    pub blocks: u32,
    /// The arenas, each near some code.
    pub arenas: Vec<CodeArena>,
    caller: RemoteCaller,
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
}

impl Installed {
    /// Maps control data and rings. The target's own list of descriptors is as before afterwards.
    ///
    /// # Errors
    /// When the target has no thread pointers, or may not map memory.
    pub fn install(
        pid: i32,
        memory: &Memory,
        world: &mut World,
        costs: Costs,
    ) -> Result<(Installed, Rings)> {
        let tid_offset = thread_pointers(pid, memory, world)?;
        let mappings = maps::read(pid)?;
        let caller = RemoteCaller::find(pid, memory, &mappings)?;
        let threads = world.threads().count();
        let blocks = (2 * threads + SPARE_BLOCKS).min(MOST_BLOCKS);
        let worker = world.worker()?;
        let data = libc::PROT_READ | libc::PROT_WRITE;
        let mut map = |len: u64, flags: i32, fd: u64| {
            let arguments = [0, len, data as u64, flags as u64, fd, 0];
            caller.call(worker, "mmap", libc::SYS_mmap, arguments)
        };
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let control = map(control_bytes(blocks as u32), private, u64::MAX)?;
        let wipe = [control + LIVE, 4096, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
        caller.call(worker, "madvise", libc::SYS_madvise, wipe)?;
        let name = TargetAddr(control + HEADER);
        memory.write(name, b"darc\0")?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let fd = caller.call(
            worker,
            "memfd_create",
            libc::SYS_memfd_create,
            [name.0, flags, 0, 0, 0, 0],
        )?;
        let words = share(worker.tid(), fd, blocks);
        let rings = words.and_then(|words| {
            let len = rings_bytes(blocks as u32);
            let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
            let arguments = [0, len, data as u64, shared as u64, fd, 0];
            let at = caller.call(worker, "mmap", libc::SYS_mmap, arguments)?;
            Ok((words, at))
        });
        caller.call(worker, "close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        let (words, rings) = rings?;
        let me = std::process::id();
        words.store(ring::OWNER as usize, me.into());
        words.store(ring::OWNER as usize + 8, began(me.into()).unwrap_or(0));
        words.store(ring::CONTROL as usize, control);
        let around = Surroundings {
            control,
            rings,
            inside: costs.inside,
            outside: costs.outside,
            inside_f0: costs.inside_f0,
            tid_offset,
        };
        let installed = Installed {
            around,
            blocks: blocks as u32,
            arenas: Vec::new(),
            caller,
        };
        installed.initialise(memory)?;
        Ok((installed, Rings::new(words, blocks)))
    }

    fn initialise(&self, memory: &Memory) -> Result<()> {
        let control = self.around.control;
        let mut descriptors = Vec::new();
        for index in 0..FNODES {
            let mut bytes = [0; descriptor::SIZE as usize];
            let node = (block::NODES + index * node::SIZE) as u32;
            bytes[descriptor::NODE as usize..][..4].copy_from_slice(&node.to_le_bytes());
            bytes[descriptor::FUNCTION as usize..][..4]
                .copy_from_slice(&descriptor::NO_FUNCTION.to_le_bytes());
            descriptors.extend_from_slice(&bytes);
        }
        memory.write(TargetAddr(control + DESCRIPTORS), &descriptors)?;
        let mut head = [0; header::FILTER as usize];
        head[header::MAGIC as usize..][..8].copy_from_slice(&MAGIC.to_le_bytes());
        head[header::BLOCKS as usize..][..4].copy_from_slice(&self.blocks.to_le_bytes());
        head[header::RINGS as usize..][..8].copy_from_slice(&self.around.rings.to_le_bytes());
        memory.write(TargetAddr(control + HEADER), &head)
    }

    /// The arena near `addr` that has room for `len` more bytes.
    pub fn arena_near(&mut self, addr: u64, len: u64) -> Option<&mut CodeArena> {
        const REACH: u64 = 0x7000_0000;
        self.arenas.iter_mut().find(|code| {
            let (start, size) = code.arena.extent();
            let near = start.0.abs_diff(addr) < REACH && (start.0 + size).abs_diff(addr) < REACH;
            near && code.arena.next().0 + len <= start.0 + size
        })
    }

    /// Maps one more arena near `addr`.
    ///
    /// # Errors
    /// When there is no room near it.
    pub fn add_arena(
        &mut self,
        pid: i32,
        memory: &Memory,
        world: &mut World,
        addr: u64,
    ) -> Result<()> {
        if self.arenas.len() >= header::MAX_ARENAS {
            return Err(Error::Unsuitable(
                "the room for the probes' code is used up".to_owned(),
            ));
        }
        let mappings = maps::read(pid)?;
        let mut arena = Arena::map(
            self.caller,
            world.worker()?,
            &mappings,
            TargetAddr(addr),
            ARENA_BYTES,
        )?;
        let (start, len) = arena.extent();
        let index = self.arenas.len() as u64;
        let list = self.around.control + HEADER + header::ARENA + 16 * index;
        memory.write_word(TargetAddr(list), start.0)?;
        memory.write_word(TargetAddr(list + 8), len)?;
        let count = TargetAddr(self.around.control + HEADER + header::ARENAS);
        memory.write(count, &(index as u32 + 1).to_le_bytes())?;
        let (bytes, runtime) = runtime::emit(start.0, &self.around)
            .map_err(|error| Error::Unsuitable(error.to_string()))?;
        arena.place(memory, &bytes)?;
        self.arenas.push(CodeArena { arena, runtime });
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

    /// One field summed over all used blocks.
    #[must_use]
    pub fn sum(&self, memory: &Memory, field: u64) -> u64 {
        (0..self.used_blocks(memory) as u64)
            .map(|index| self.around.control + BLOCKS + index * block::SIZE + field)
            .filter_map(|at| memory.read_word(TargetAddr(at)).ok())
            .fold(0, u64::wrapping_add)
    }

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
                if !known
                    || blocks as usize > MOST_BLOCKS
                    || rings_bytes(blocks) != mapping.end - mapping.start
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
                        mapped.then(|| CodeArena {
                            arena: Arena::found(TargetAddr(start), len),
                            runtime: Runtime::default(),
                        })
                    })
                    .collect::<Option<Vec<_>>>()?;
                Some(Installed {
                    around: Surroundings {
                        control,
                        rings: mapping.start,
                        inside: 0,
                        outside: 0,
                        inside_f0: 0,
                        tid_offset: None,
                    },
                    blocks,
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
            (self.around.rings, rings_bytes(self.blocks)),
        ];
        for (start, len) in arenas.chain(data) {
            let arguments = [start, len, 0, 0, 0, 0];
            match self
                .caller
                .call(worker, "munmap", libc::SYS_munmap, arguments)
            {
                Ok(_) | Err(Error::ThreadGone { .. }) => {}
                // The program has forbidden itself such calls since.
                Err(Error::Unsuitable(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// When a process began, in clock ticks since boot (proc_pid_stat(5), field 22).
fn began(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

fn control_bytes(blocks: u32) -> u64 {
    BLOCKS + u64::from(blocks) * block::SIZE
}

fn rings_bytes(blocks: u32) -> u64 {
    u64::from(blocks) * ring::SIZE
}

/// Maps the target's memory file here. The target cannot shrink it, which would end this process.
fn share(tid: i32, fd: u64, blocks: usize) -> Result<SharedWords> {
    let os = |source| Error::Os {
        operation: "open the memory shared with the target",
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{tid}/fd/{fd}"))
        .map_err(os)?;
    let len = rings_bytes(blocks as u32);
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
        let id = id_in_target(thread.tid());
        fits.retain(|&offset| {
            let at = TargetAddr(pointer + u64::from(offset));
            memory
                .read_word(at)
                .is_ok_and(|word| Some(word as u32 as i32) == id)
        });
    }
    Ok(fits.first().copied())
}

/// A thread's id in its own pid namespace.
fn id_in_target(tid: i32) -> Option<i32> {
    let ids = threads::status_field(tid, "NSpid")?;
    ids.split_whitespace().last()?.parse().ok()
}
