//! Blocks of threads that have ended are given to others.
//!
//! A thread that ends says nothing, and a later one with the same thread pointer takes over its block by
//! itself. Where thread pointers do not come again, the blocks would run out: the reader gives back those
//! whose thread is gone. Both change the state of a block by comparing and exchanging it, so that it goes to
//! one of them only; and only blocks are given back in which no return is awaited, so that a thread that
//! finds one a moment too early has nothing to do with it. Goroutines give theirs back by themselves, when they end
//! (`stubs/goroutines.rs`).

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::addr::TargetAddr;
use crate::memory::Memory;
use crate::threads;

use super::installed::Installed;
use super::layout::{BLOCKS, DESCRIPTORS, TABLE, TABLE_BYTES, TABLE_DELETED, block};
use super::ring::Rings;

/// How often it is looked for ended threads at most.
const EVERY: Duration = Duration::from_millis(2);

/// Who gives blocks back, and when that was done last.
#[derive(Debug)]
pub struct Recycling {
    pid: i32,
    last: Instant,
}

impl Recycling {
    /// For a process of which nothing is known yet.
    #[must_use]
    pub fn new(pid: i32) -> Recycling {
        Recycling {
            pid,
            last: Instant::now(),
        }
    }

    /// Gives back what ended threads had, when most blocks are taken. `drain` reads a ring to its end before
    /// somebody else writes to it.
    pub fn look(
        &mut self,
        installed: &Installed,
        memory: &Memory,
        rings: &mut Rings,
        mut drain: impl FnMut(&mut Rings, usize),
    ) {
        let count = rings.count();
        let used = installed.used_blocks(memory).min(count);
        let rare = (count - used) as u64 + rings.free_blocks() <= count as u64 / 2;
        // Without an id in its place nobody would notice that a thread pointer belongs to another thread.
        if !rare || installed.around.tid_offset.is_none() || self.last.elapsed() < EVERY {
            return;
        }
        self.last = Instant::now();
        // The owners first: who has a block now and is not listed afterwards has ended.
        let owners: Vec<(usize, i32)> = (0..used)
            .filter_map(|index| Some((index, rings.owner(index)?)))
            .collect();
        let Some(alive) = ids_in_target(self.pid) else {
            return;
        };
        let reclaimed: HashMap<u64, usize> = owners
            .into_iter()
            .filter(|(_, tid)| !alive.contains(tid))
            .filter_map(|(index, tid)| {
                Some((reclaim(installed, memory, rings, index, tid)?, index))
            })
            .collect();
        if reclaimed.is_empty() || forget(installed, memory, &reclaimed).is_none() {
            return;
        }
        for &index in reclaimed.values() {
            drain(rings, index);
            rings.free(index);
        }
    }
}

/// Takes a block from its thread, so that nobody finds it: its address. `None` when it is still needed, or
/// the target is gone.
fn reclaim(
    installed: &Installed,
    memory: &Memory,
    rings: &Rings,
    index: usize,
    tid: i32,
) -> Option<u64> {
    let control = installed.around.control;
    let at = control + BLOCKS + index as u64 * block::SIZE;
    let mut fields = [0; 0x80];
    memory.read(TargetAddr(at), &mut fields).ok()?;
    let field = |offset: u64| word(&fields, offset as usize);
    let idle = field(block::TOP) == field(block::BASE)
        && field(block::CURRENT) == control + DESCRIPTORS
        && field(block::TID) == tid as u32 as u64;
    if !idle || !rings.reclaim(index, tid) {
        return None;
    }
    memory.write_word(TargetAddr(at + block::THREAD), 0).ok()?;
    Some(at)
}

/// Deletes the blocks' entries from the table.
fn forget(installed: &Installed, memory: &Memory, blocks: &HashMap<u64, usize>) -> Option<()> {
    let at = installed.around.control + TABLE;
    let mut table = vec![0; TABLE_BYTES as usize];
    memory.read(TargetAddr(at), &mut table).ok()?;
    for (offset, entry) in (0..).step_by(16).zip(table.chunks_exact(16)) {
        if word(entry, 0) > TABLE_DELETED && blocks.contains_key(&word(entry, 8)) {
            let key = TargetAddr(at + offset);
            memory.write_word(key, TABLE_DELETED).ok()?;
        }
    }
    Some(())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The ids of the process's threads in its own pid namespace.
fn ids_in_target(pid: i32) -> Option<HashSet<i32>> {
    let listed = threads::list(pid).ok()?;
    let nested = threads::status_field(pid, "NSpid")?
        .split_whitespace()
        .count()
        > 1;
    let own = |tid| match nested {
        false => Some(tid),
        true => {
            let ids = threads::status_field(tid, "NSpid")?;
            ids.split_whitespace().last()?.parse().ok()
        }
    };
    Some(listed.into_iter().filter_map(own).collect())
}
