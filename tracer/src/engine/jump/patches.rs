//! What is patched: the program's own bytes beside ours, written and put back while nothing runs.

use std::collections::BTreeMap;

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::memory::Memory;

use super::layout::{HEADER, JOURNAL, JOURNAL_BYTES, header, journal};
use super::spans::JUMP;
use super::world::World;

/// A place of the text and what stands there instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patch {
    /// The first byte.
    pub at: u64,
    /// The program's own bytes.
    pub original: Vec<u8>,
    /// A jump, and filling.
    pub replacement: Vec<u8>,
    /// Where the displaced instructions went: (original, copy).
    pub moved: Vec<(u64, u64)>,
}

impl Patch {
    /// A jump from `at` to `to`; `None` when that is too far or the patch would be too long.
    #[must_use]
    pub fn jump(at: u64, original: Vec<u8>, to: u64, moved: Vec<(u64, u64)>) -> Option<Patch> {
        const NOP: u8 = 0x90;
        const JMP: u8 = 0xe9;
        if original.len() < JUMP as usize || original.len() > journal::MAX_LEN {
            return None;
        }
        let displacement = i32::try_from(to.wrapping_sub(at + JUMP) as i64).ok()?;
        let mut replacement = vec![NOP; original.len()];
        replacement[0] = JMP;
        replacement[1..5].copy_from_slice(&displacement.to_le_bytes());
        Some(Patch {
            at,
            original,
            replacement,
            moved,
        })
    }

    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at + self.original.len() as u64
    }

    fn to_journal(&self) -> [u8; journal::SIZE] {
        let mut entry = [0; journal::SIZE];
        entry[journal::AT..][..8].copy_from_slice(&self.at.to_le_bytes());
        entry[journal::LEN] = self.original.len() as u8;
        entry[journal::ORIGINAL..][..self.original.len()].copy_from_slice(&self.original);
        entry[journal::REPLACEMENT..][..self.replacement.len()].copy_from_slice(&self.replacement);
        entry
    }

    fn from_journal(entry: &[u8]) -> Option<Patch> {
        let len = usize::from(entry[journal::LEN]);
        let bytes = |at: usize| entry[at..at + len].to_vec();
        (len <= journal::MAX_LEN).then(|| Patch {
            at: u64::from_le_bytes(entry[journal::AT..][..8].try_into().expect("eight bytes")),
            original: bytes(journal::ORIGINAL),
            replacement: bytes(journal::REPLACEMENT),
            moved: Vec::new(),
        })
    }
}

/// Where in the journal the entries are that hold. The others are written in the other half, and then
/// hold at once.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Half {
    #[default]
    First,
    Second,
}

impl Half {
    fn other(self) -> Half {
        match self {
            Half::First => Half::Second,
            Half::Second => Half::First,
        }
    }

    fn at(self, control: u64) -> u64 {
        match self {
            Half::First => control + JOURNAL,
            Half::Second => control + JOURNAL + JOURNAL_BYTES,
        }
    }

    fn mark(self) -> u32 {
        match self {
            Half::First => 0,
            Half::Second => header::SECOND_HALF,
        }
    }

    fn marked(word: u32) -> Half {
        match word & header::SECOND_HALF {
            0 => Half::First,
            _ => Half::Second,
        }
    }
}

/// The patches in place.
#[derive(Default, Debug)]
pub struct Patches {
    active: BTreeMap<u64, Patch>,
    differing: u64,
    half: Half,
}

impl Patches {
    /// The patch that begins at an address.
    #[must_use]
    pub fn get(&self, at: u64) -> Option<&Patch> {
        self.active.get(&at)
    }

    /// The addresses of all patches.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.active.keys().copied()
    }

    /// How many bytes were not the program's own after they had been put back.
    #[must_use]
    pub fn bytes_differing(&self) -> u64 {
        self.differing
    }

    /// Overwrites what was read from the text with the program's own bytes.
    pub fn hide_from(&self, addr: u64, buffer: &mut [u8]) {
        let end = addr.saturating_add(buffer.len() as u64);
        let from = addr.saturating_sub(journal::MAX_LEN as u64);
        for patch in self.active.range(from..end).map(|(_, patch)| patch) {
            for (at, &byte) in (patch.at..).zip(&patch.original) {
                if (addr..end).contains(&at) {
                    buffer[(at - addr) as usize] = byte;
                }
            }
        }
    }

    /// Removes and adds patches while nothing runs. The journal at `control` is right at every moment:
    /// what it lists may or may not be in the text, but nothing else is.
    ///
    /// Returns the patches that were not made: the program has written that code since it was read, so
    /// their stubs would run what no longer stands there.
    ///
    /// # Errors
    /// When the text or the journal cannot be written. What was done is known.
    pub fn change(
        &mut self,
        memory: &Memory,
        world: &World,
        control: u64,
        remove: &[u64],
        add: Vec<Patch>,
    ) -> Result<Vec<u64>> {
        for at in remove {
            self.restore(memory, *at)?;
        }
        let (add, written): (Vec<Patch>, Vec<Patch>) = add
            .into_iter()
            .partition(|patch| stands(memory, patch.at, &patch.original));
        let written = written.into_iter().map(|patch| patch.at).collect();
        if add.is_empty() && remove.is_empty() {
            return Ok(written);
        }
        self.list(memory, control, &add)?;
        for thread in world.threads() {
            unless_gone(move_out(thread, &add))?;
        }
        for (tid, resumption) in world.sleepers() {
            let inside =
                |patch: &Patch| resumption.is_none_or(|at| patch.at < at.pc && at.pc < patch.end());
            if add.iter().any(inside) {
                return Err(Error::Unsuitable(format!(
                    "thread {tid} waits in the kernel in the middle of an instruction to be replaced, and cannot be moved; try again"
                )));
            }
        }
        for patch in add {
            memory.write(TargetAddr(patch.at), &patch.replacement)?;
            self.active.insert(patch.at, patch);
        }
        Ok(written)
    }

    /// Has the journal list what is active and what will be.
    fn list(&mut self, memory: &Memory, control: u64, add: &[Patch]) -> Result<()> {
        let listed = self.active.values().chain(add);
        let entries: Vec<u8> = listed.flat_map(Patch::to_journal).collect();
        if entries.len() as u64 > JOURNAL_BYTES {
            return Err(Error::Unsuitable(
                "too many places are to be instrumented at once".to_owned(),
            ));
        }
        let half = self.half.other();
        memory.write(TargetAddr(half.at(control)), &entries)?;
        let word = (entries.len() / journal::SIZE) as u32 | half.mark();
        let counter = TargetAddr(control + HEADER + header::PATCHES);
        memory.write(counter, &word.to_le_bytes())?;
        self.half = half;
        Ok(())
    }

    /// Puts one patch's bytes back if they are still ours; code that the program has replaced is left alone.
    fn restore(&mut self, memory: &Memory, at: u64) -> Result<()> {
        if let Some(patch) = self.active.remove(&at) {
            self.differing += restore(memory, &patch)?;
        }
        Ok(())
    }

    /// Puts everything back. The target may be running: a patch is left in one piece or not at all,
    /// as far as a write of some bytes is seen at once; better when it is stopped.
    ///
    /// # Errors
    /// When the text cannot be written though it is mapped.
    pub fn restore_all(&mut self, memory: &Memory) -> Result<()> {
        for at in self.addresses().collect::<Vec<_>>() {
            self.restore(memory, at)?;
        }
        Ok(())
    }

    /// The patches that an earlier tracer's journal lists.
    #[must_use]
    pub fn from_journal(memory: &Memory, control: u64) -> Patches {
        let counter = TargetAddr(control + HEADER + header::PATCHES);
        let word = memory.read_word(counter).map_or(0, |word| word as u32);
        let half = Half::marked(word);
        let count = (word & !header::SECOND_HALF) as usize;
        let mut entries =
            vec![0; count.min(JOURNAL_BYTES as usize / journal::SIZE) * journal::SIZE];
        if memory
            .read(TargetAddr(half.at(control)), &mut entries)
            .is_err()
        {
            return Patches::default();
        }
        let active = entries
            .chunks_exact(journal::SIZE)
            .filter_map(Patch::from_journal)
            .map(|patch| (patch.at, patch))
            .collect();
        Patches {
            active,
            differing: 0,
            half,
        }
    }
}

/// Whether these bytes are what stands at an address now.
fn stands(memory: &Memory, at: u64, bytes: &[u8]) -> bool {
    let mut now = vec![0; bytes.len()];
    memory.read(TargetAddr(at), &mut now).is_ok() && now == bytes
}

/// Returns how many bytes of ours remain.
fn restore(memory: &Memory, patch: &Patch) -> Result<u64> {
    // Unmapped or replaced meanwhile (dlclose, a program that writes code): nothing of ours is left there.
    if !stands(memory, patch.at, &patch.replacement) {
        return Ok(0);
    }
    memory.write(TargetAddr(patch.at), &patch.original)?;
    let mut bytes = vec![0; patch.original.len()];
    memory.read(TargetAddr(patch.at), &mut bytes)?;
    let differing = bytes
        .iter()
        .zip(&patch.original)
        .filter(|(now, own)| now != own);
    Ok(differing.count() as u64)
}

/// Moves a thread that is about to run an instruction in the middle of what will be replaced.
fn move_out(thread: &crate::stopped::Stopped, patches: &[Patch]) -> Result<()> {
    let mut registers = thread.registers()?;
    let rip = registers.rip().0;
    let inside = patches
        .iter()
        .find(|patch| patch.at < rip && rip < patch.end());
    let Some(patch) = inside else { return Ok(()) };
    match patch.moved.iter().find(|(original, _)| *original == rip) {
        Some(&(_, copy)) => {
            registers.set_rip(TargetAddr(copy));
            thread.set_registers(&registers)
        }
        None => Err(Error::Unsuitable(format!(
            "thread {} is at {}, in the middle of an instruction to be replaced",
            thread.tid(),
            registers.rip()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::BLOCKS;
    use super::*;

    #[test]
    fn a_patch_is_a_jump_and_filling() {
        // call *16(%rip), six bytes
        let patch = Patch::jump(0x1000, vec![0xff, 0x15, 16, 0, 0, 0], 0x2005, Vec::new()).unwrap();
        assert_eq!(patch.replacement, [0xe9, 0x00, 0x10, 0, 0, 0x90]);
        assert_eq!(patch.end(), 0x1006);
        assert_eq!(Patch::from_journal(&patch.to_journal()), Some(patch));
    }

    #[test]
    fn what_is_too_far_or_too_short_is_none() {
        assert_eq!(Patch::jump(0x1000, vec![0; 4], 0x2000, Vec::new()), None);
        assert_eq!(
            Patch::jump(0x1000, vec![0; 5], 0x1_0000_0000, Vec::new()),
            None
        );
    }

    #[test]
    fn what_is_active_is_listed_at_every_moment() {
        // This process plays the target.
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let space = vec![0_u64; (BLOCKS / 8) as usize];
        let control = space.as_ptr() as u64;
        let patch = |at| Patch::jump(at, vec![1, 2, 3, 4, 5], 0x2000, Vec::new()).unwrap();
        let listed = || -> Vec<u64> {
            Patches::from_journal(&memory, control)
                .addresses()
                .collect()
        };
        let counter = TargetAddr(control + HEADER + header::PATCHES);
        let mut patches = Patches::default();
        let mut active = Vec::new();
        for at in [0x3000, 0x1000, 0x2000] {
            let before = memory.read_word(counter).unwrap();
            patches.list(&memory, control, &[patch(at)]).unwrap();
            let after = memory.read_word(counter).unwrap();
            // As if the tracer had died before the last write.
            memory.write_word(counter, before).unwrap();
            assert_eq!(listed(), active);
            memory.write_word(counter, after).unwrap();
            patches.active.insert(at, patch(at));
            active.push(at);
            active.sort_unstable();
            assert_eq!(listed(), active);
        }
        drop(space);
    }

    #[test]
    fn the_programs_own_bytes_can_be_read() {
        let mut patches = Patches::default();
        let patch = Patch::jump(0x1000, vec![1, 2, 3, 4, 5], 0x2000, Vec::new()).unwrap();
        patches.active.insert(patch.at, patch);
        let mut seen = [9; 4];
        patches.hide_from(0x1003, &mut seen);
        assert_eq!(seen, [4, 5, 9, 9]);
        let mut seen = [9; 4];
        patches.hide_from(0xffe, &mut seen);
        assert_eq!(seen, [9, 9, 1, 2]);
    }
}
