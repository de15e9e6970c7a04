//! The mappings that every stub needs, made in the target: control data and rings.

use darc_disasm::Registers as _;

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::identity;
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::remote_call::{RemoteCaller, Worker};
use crate::sys::{self, Presence};

use super::asm::Surroundings;
use super::installed::{Costs, Installed, MOST_BLOCKS, Room, control_bytes, rings_bytes};
use super::layout::{HEADER, LIVE, MAGIC, header, ring};
use super::ring::Rings;
use super::shared;
use super::world::World;

/// Threads that a process without many may still make until those that ended give their blocks back.
const SPARE_BLOCKS: usize = 512;

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

/// Maps control data, which children made by fork find empty.
fn map_control(worker: &mut Worker<'_>, memory: &Memory, blocks: usize) -> Result<u64> {
    let len = control_bytes(blocks as u32);
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [0, len, DATA, private as u64, u64::MAX, 0];
    let control = worker.call("mmap", libc::SYS_mmap, arguments)?;
    let ready = may_read_clock(worker, memory, control + HEADER).and_then(|()| {
        let wipe = [control + LIVE, 4096, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
        worker.call("madvise", libc::SYS_madvise, wipe)
    });
    match ready {
        Ok(_) => Ok(control),
        Err(error) => Err(give_back_control(worker, control, blocks, error)?),
    }
}

/// Unmaps control data that cannot be used; why, if that went well.
fn give_back_control(
    worker: &mut Worker<'_>,
    control: u64,
    blocks: usize,
    why: Error,
) -> Result<Error> {
    let arguments = [control, control_bytes(blocks as u32), 0, 0, 0, 0];
    unless_gone(worker.call("munmap", libc::SYS_munmap, arguments))?;
    Ok(why)
}

/// Maps control data and rings, which [`Installed::fill`] has to fill. The target's own list of descriptors is as
/// before afterwards, and so are its mappings where this fails. `presence` tells from the first moment on that a tracer
/// lives which they belong to.
///
/// # Errors
/// When the target has no thread pointers, or may not map memory.
pub fn map(
    pid: i32,
    memory: &Memory,
    world: &mut World,
    (caller, mappings): (RemoteCaller, &[Mapping]),
    presence: Presence,
    (costs, room): (Costs, Room),
) -> Result<(Installed, Rings)> {
    let tid_offset = thread_pointers(pid, memory, world)?;
    let threads = world.threads().count();
    let blocks = (2 * threads + SPARE_BLOCKS).min(MOST_BLOCKS);
    let (control, mut words, rings) = caller.borrow(world.workers()?, mappings, |worker| {
        let control = map_control(worker, memory, blocks)?;
        let name = TargetAddr(control + HEADER);
        let len = rings_bytes(blocks as u32, room.ring_bytes());
        match shared::make(worker, memory, (control, name), len) {
            Ok((words, rings)) => Ok((control, words, rings)),
            Err(error) => Err(give_back_control(worker, control, blocks, error)?),
        }
    })?;
    words.store(ring::OWNER as usize + 8, sys::own_number());
    words.tell_presence(ring::OWNER as usize, presence);
    let around = Surroundings {
        pid: identity::number_inside(pid).unwrap_or(pid),
        control,
        rings,
        ring_bytes: room.ring_bytes(),
        inside: costs.inside,
        outside: costs.outside,
        inside_f0: costs.inside_f0,
        counted: costs.counted,
        tid_offset,
    };
    announce(memory, &around, blocks as u32)?;
    let installed = Installed::new(around, blocks as u32, room, caller);
    Ok((installed, Rings::new(words, blocks, room.ring_bytes())))
}

/// Writes by what a later tracer knows the mappings.
fn announce(memory: &Memory, around: &Surroundings, blocks: u32) -> Result<()> {
    let mut head = [0; header::FILTER as usize];
    head[header::MAGIC as usize..][..8].copy_from_slice(&MAGIC.to_le_bytes());
    head[header::BLOCKS as usize..][..4].copy_from_slice(&blocks.to_le_bytes());
    head[header::RINGS as usize..][..8].copy_from_slice(&around.rings.to_le_bytes());
    head[header::RING_BYTES as usize..][..8].copy_from_slice(&around.ring_bytes.to_le_bytes());
    memory.write(TargetAddr(around.control + HEADER), &head)
}

/// Checks that every thread has a thread pointer (System V ABI for AMD64, 3.4.6: `%fs:0` holds its own
/// address), and finds where the C library keeps the thread's id, if it does.
fn thread_pointers(pid: i32, memory: &Memory, world: &World) -> Result<Option<u32>> {
    /// `struct pthread` of the GNU C library and of musl.
    const KNOWN: [u32; 2] = [0x2d0, 0x30];
    let mut fits = KNOWN.to_vec();
    // Most programs see the ids that everybody sees.
    let same_ids = identity::numbers(pid).is_some_and(|numbers| numbers.len() == 1);
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
            false => identity::number_inside(thread.tid()),
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
