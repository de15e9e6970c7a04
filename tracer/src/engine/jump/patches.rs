//! What is patched: the program's own bytes beside ours, written and put back while nothing runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::maps::{Mapping, SharedCode};
use crate::memory::Memory;

use super::jumps::Trampoline;
use super::layout::{HEADER, JOURNAL, JOURNAL_BYTES, header, journal};
use super::moves::Moves;
use super::watch::Mapped;
use super::world::World;

/// A place of the text and what stands there instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patch {
    /// The first byte.
    pub at: u64,
    /// The program's own bytes.
    pub original: Vec<u8>,
    /// What must stand before them, for it was copied with them: but for a breakpoint of somebody's at its first byte.
    pub before: Vec<u8>,
    /// A jump, or its first bytes, and what fills the rest.
    pub replacement: Vec<u8>,
    /// What must stand behind them, for it is a part of the jump.
    pub behind: Vec<u8>,
    /// A trampoline of its that leads elsewhere from now on: until it is written the jump must not be there.
    pub trampoline: Option<Trampoline>,
    /// Where the displaced instructions went: (original, copy).
    pub moved: Vec<(u64, u64)>,
    /// Where its stub goes on in the text.
    pub next: u64,
    /// Patches without which it must not be there, if they are wanted at all: they notice that its calls return.
    pub landings: Vec<u64>,
}

impl Patch {
    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at + self.original.len() as u64
    }

    /// Why it must not be made, because of whose code it is in, or those are which it needs.
    #[must_use]
    pub fn refusal(&self, shared: &SharedCode) -> Option<String> {
        // Of its bytes the first and the last may be in different pages.
        let own = [self.at, self.end().saturating_sub(1)];
        let mut all = own.iter().chain(&self.landings);
        all.find_map(|&at| shared.refusal(at))
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
            before: Vec::new(),
            replacement: bytes(journal::REPLACEMENT),
            behind: Vec::new(),
            trampoline: None,
            moved: Vec::new(),
            next: 0,
            landings: Vec::new(),
        })
    }
}

/// The target's memory as it is without patches.
#[derive(Clone, Copy, Debug)]
pub struct Unpatched<'a> {
    /// The memory.
    pub memory: &'a Memory,
    /// The patches.
    pub patches: &'a Patches,
}

impl Unpatched<'_> {
    /// Whether a breakpoint of somebody's is where these bytes of the program were.
    #[must_use]
    pub fn has_breakpoint(&self, at: u64, bytes: &[u8]) -> bool {
        let mut now = vec![0; bytes.len()];
        let read = darc_disasm::Memory::read(self, at, &mut now);
        let mut pairs = now.iter().zip(bytes);
        read && pairs.any(|(&now, &own)| now == INT3 && own != INT3)
    }
}

impl darc_disasm::Memory for Unpatched<'_> {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        let read = self.memory.read(TargetAddr(addr), buffer).is_ok();
        self.patches.hide_from(addr, buffer);
        read
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
    /// Where the stubs of all patches there have been go on in the text, those of earlier tracers too: a thread may still be in one.
    ways_back: BTreeSet<u64>,
    half: Half,
}

impl Patches {
    /// The patch that begins at an address.
    #[must_use]
    pub fn get(&self, at: u64) -> Option<&Patch> {
        self.active.get(&at)
    }

    /// Notes where a thread may come out of what earlier tracers have left.
    pub fn note_ways_back(&mut self, ways: BTreeSet<u64>) {
        self.ways_back.extend(ways);
    }

    /// Forgets where a thread may come out of stubs, of code that is not mapped any more: what lies there later is no part of it. A program
    /// may load and unload libraries for years. What is mapped may be code that is only written to at the moment.
    pub fn forget_unmapped(&mut self, mappings: &[Mapping]) {
        let mut mappings = mappings.iter().peekable();
        self.ways_back.retain(|&next| {
            while mappings.next_if(|mapping| mapping.end <= next).is_some() {}
            mappings
                .peek()
                .is_some_and(|mapping| mapping.contains(next))
        });
    }

    /// Whether a thread may still come out of an earlier stub in the middle of these bytes.
    #[must_use]
    pub fn are_come_back_to(&self, bytes: &Range<u64>) -> bool {
        let mut inside = self.ways_back.range(bytes.clone());
        inside.any(|&next| next != bytes.start)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// The addresses of all patches.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.active.keys().copied()
    }

    /// How many bytes are in all patches.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lengths = self
            .active
            .values()
            .map(|patch| patch.original.len() as u64);
        lengths.sum()
    }

    /// Whether code in one of these places is the program's own, though there are patches: a library that was unloaded has been
    /// loaded again where it was. The first and the last patch of each place are looked at.
    #[must_use]
    pub fn are_taken_out(&self, memory: &Memory, code: &[Mapped]) -> bool {
        code.iter().any(|(place, _)| {
            let mut within = self.active.range(place.clone()).map(|(_, patch)| patch);
            let ends = (within.next(), within.next_back());
            let mut ends = [ends.0, ends.1].into_iter().flatten().peekable();
            ends.peek().is_some() && ends.all(|patch| stands(memory, patch.at, &patch.original))
        })
    }

    /// Forgets the patches in whose places the program's own code stands. Whether there were any. A thread may still be in their stubs:
    /// the program may have written the same code again.
    pub fn forget_taken_out(&mut self, memory: &Memory) -> bool {
        let before = self.active.len();
        self.active
            .retain(|_, patch| !stands(memory, patch.at, &patch.original));
        self.active.len() < before
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

    /// These patches, and those that have bytes of theirs in their jumps: while one is away the others would lead elsewhere.
    #[must_use]
    pub fn with_reliant(&self, mut patches: Vec<u64>) -> Vec<u64> {
        let mut next = 0;
        while let Some(at) = patches.get(next) {
            next += 1;
            let Some(patch) = self.active.get(at) else {
                continue;
            };
            let from = patch.at.saturating_sub(journal::MAX_LEN as u64);
            let before = self.active.range(from..patch.at);
            let reliant = before
                .map(|(_, other)| other)
                .filter(|other| other.end() + other.behind.len() as u64 > patch.at);
            let new = reliant
                .map(|other| other.at)
                .filter(|at| !patches.contains(at));
            let new: Vec<u64> = new.collect();
            patches.extend(new);
        }
        patches
    }

    /// Removes and adds patches while nothing runs. The journal at `control` is right at every moment:
    /// what it lists may or may not be in the text, but nothing else is. And each jump is: what others rely on behind them
    /// is removed after them, and added before them.
    ///
    /// `early` are the threads that are to be moved among those that were stopped before the others.
    ///
    /// Returns the patches that were not made: the program has written that code since it was read, so
    /// their stubs would run what no longer stands there. Or nothing is there at the moment.
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
        early: &Moves<'_>,
    ) -> Result<Vec<u64>> {
        let kept = self.active.keys().filter(|at| !remove.contains(at)).count();
        if ((kept + add.len()) * journal::SIZE) as u64 > JOURNAL_BYTES {
            return Err(Error::Unsuitable(
                "too many places are to be instrumented at once".to_owned(),
            ));
        }
        // Before anything is changed: nothing may be left half done.
        let mut moves = Moves::of(memory, early.mappings(), world.late_threads(), &add)?;
        moves.extend(early);
        for (tid, resumption) in world.sleepers() {
            let inside =
                |patch: &Patch| resumption.is_none_or(|at| patch.at < at.pc && at.pc < patch.end());
            if add.iter().any(inside) {
                return Err(Error::Busy(format!(
                    "thread {tid} waits in the kernel in the middle of an instruction to be replaced, and cannot be moved; try again"
                )));
            }
            if let Some(at) = resumption {
                moves.note_handlers(memory, at.sp, &add);
            }
        }
        let mut remove = remove.to_vec();
        remove.sort_unstable();
        let mut gap = Gap::default();
        for &at in &remove {
            self.restore(memory, at, &mut gap)?;
        }
        let (mut add, written): (Vec<Patch>, Vec<Patch>) = add
            .into_iter()
            .partition(|patch| stands(memory, patch.at, &patch.original) && follows(memory, patch));
        let mut written: Vec<u64> = written.into_iter().map(|patch| patch.at).collect();
        if add.is_empty() && remove.is_empty() {
            return Ok(written);
        }
        self.list(memory, control, &add)?;
        // Threads are led into the stubs of all of them. Nothing comes back from a `ret` or jump with filling behind it in its patch,
        // and there its stub has no jump to the rest.
        let ways = add.iter().filter(|patch| patch.next >= patch.end());
        self.ways_back.extend(ways.map(|patch| patch.next));
        moves.make(memory, world, &add)?;
        add.sort_unstable_by_key(|patch| std::cmp::Reverse(patch.at));
        for patch in add {
            let lands = !patch.landings.iter().any(|at| written.contains(at));
            if lands && stands(memory, patch.end(), &patch.behind) {
                if let Some(trampoline) = &patch.trampoline {
                    memory.write(TargetAddr(trampoline.at), &trampoline.bytes)?;
                }
                let outcome = write_whole(memory, &patch);
                let mut is_there = || {
                    !matches!(
                        standing(memory, &patch, &mut gap),
                        Ok((Standing::Nothing, _))
                    )
                };
                if outcome.is_ok() || is_there() {
                    self.active.insert(patch.at, patch);
                }
                outcome?;
            } else {
                written.push(patch.at);
            }
        }
        Ok(written)
    }

    /// Has the journal list what is active and what will be.
    fn list(&mut self, memory: &Memory, control: u64, add: &[Patch]) -> Result<()> {
        let listed = self.active.values().chain(add);
        let entries: Vec<u8> = listed.flat_map(Patch::to_journal).collect();
        let half = self.half.other();
        memory.write(TargetAddr(half.at(control)), &entries)?;
        let word = (entries.len() / journal::SIZE) as u32 | half.mark();
        let counter = TargetAddr(control + HEADER + header::PATCHES);
        memory.write(counter, &word.to_le_bytes())?;
        self.half = half;
        Ok(())
    }

    /// Puts one patch's bytes back if they are still ours; code that the program has replaced is left alone. What cannot be put
    /// back stays known: it leads to our memory.
    fn restore(&mut self, memory: &Memory, at: u64, gap: &mut Gap) -> Result<()> {
        if let Some(patch) = self.active.get(&at) {
            restore(memory, patch, gap)?;
            self.active.remove(&at);
        }
        Ok(())
    }

    /// Puts everything back. The target may be running: a patch is left in one piece or not at all,
    /// as far as a write of some bytes is seen at once; better when it is stopped.
    ///
    /// # Errors
    /// When the text cannot be written though it is mapped: what leads to our memory has to find it there. All else is restored,
    /// but for what stands in the distance of a jump that stays: it would lead elsewhere.
    pub fn restore_all(&mut self, memory: &Memory) -> Result<()> {
        let (mut outcome, mut gap) = (Ok(()), Gap::default());
        for at in self.addresses().collect::<Vec<_>>() {
            if !self.stays_behind_another(at) {
                outcome = outcome.and(self.restore(memory, at, &mut gap));
            }
        }
        outcome
    }

    /// Whether the bytes at an address may be part of a jump before it that is active.
    fn stays_behind_another(&self, at: u64) -> bool {
        const JUMP: u64 = 5;
        let from = at.saturating_sub(journal::MAX_LEN as u64 + JUMP);
        let mut before = self.active.range(from..at);
        before.any(|(_, other)| other.end() + JUMP > at)
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
            half,
            ways_back: BTreeSet::new(),
        }
    }
}

/// A breakpoint.
const INT3: u8 = 0xcc;

/// Whether these bytes are what stands at an address now.
fn stands(memory: &Memory, at: u64, bytes: &[u8]) -> bool {
    let mut now = vec![0; bytes.len()];
    memory.read(TargetAddr(at), &mut now).is_ok() && now == bytes
}

/// Whether what is copied with a patch stands before it.
fn follows(memory: &Memory, patch: &Patch) -> bool {
    let Some((_, rest)) = patch.before.split_first() else {
        return true;
    };
    let at = patch.at - patch.before.len() as u64;
    let first = stands(memory, at, &patch.before[..1]) || stands(memory, at, &[INT3]);
    first && stands(memory, at + 1, rest)
}

/// Writes a patch, or nothing of it.
fn write_whole(memory: &Memory, patch: &Patch) -> Result<()> {
    let at = TargetAddr(patch.at);
    let written = memory.write(at, &patch.replacement);
    if written.is_err() {
        // The first of two pages may have been written.
        let _ = memory.write(at, &patch.original);
    }
    written
}

/// What of a patch is in the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Nothing: it is not there, or other code has taken its place.
    Nothing,
    /// Its jump, or a part of the patch beside the program's own bytes: a tracer was killed while it wrote, or somebody has put a
    /// part back. Behind the jump the program may have written something else.
    Ours,
    /// All of it but for a breakpoint of somebody's, who will put our byte back when it goes.
    Breakpoint,
}

impl Standing {
    fn of(patch: &Patch, now: &[u8]) -> Standing {
        /// Of a jump and of a call: `jmp rel32`, `call rel32`. Their prefixes are other bytes.
        const OPCODES: [u8; 2] = [0xe9, 0xe8];
        const DISTANCE: usize = 4;
        let (own, ours) = (&patch.original, &patch.replacement);
        let sides = || now.iter().zip(own.iter().zip(ours));
        if now == own {
            return Standing::Nothing;
        }
        if sides().all(|(now, (own, ours))| now == own || now == ours) {
            return Standing::Ours;
        }
        let mut others = sides().filter(|(now, (_, ours))| now != ours);
        let is_one = matches!((others.next(), others.next()), (Some((&INT3, _)), None));
        if is_one && ours.len() > 1 {
            return Standing::Breakpoint;
        }
        let opcode = ours.iter().position(|byte| OPCODES.contains(byte));
        let jump = ..opcode.map_or(ours.len(), |at| (at + 1 + DISTANCE).min(ours.len()));
        match now[jump] == ours[jump] {
            true => Standing::Ours,
            false => Standing::Nothing,
        }
    }
}

/// Addresses at which nothing is mapped while the target stands still. Those of a library that was unloaded hold many patches, and
/// each listing of the mappings takes its time.
#[derive(Debug, Default)]
struct Gap(Range<u64>);

impl Gap {
    fn has(&mut self, memory: &Memory, at: u64) -> bool {
        if !self.0.contains(&at)
            && let Some(found) = memory.gap_around(TargetAddr(at))
        {
            self.0 = found;
        }
        self.0.contains(&at)
    }
}

/// What of a patch is in the text, and what stands there now.
fn standing(memory: &Memory, patch: &Patch, gap: &mut Gap) -> Result<(Standing, Vec<u8>)> {
    let mut now = vec![0; patch.original.len()];
    if let Err(error) = memory.read(TargetAddr(patch.at), &mut now) {
        return match gap.has(memory, patch.at) {
            true => Ok((Standing::Nothing, now)),
            false => Err(error),
        };
    }
    Ok((Standing::of(patch, &now), now))
}

/// Puts the program's own bytes back where ours are.
fn restore(memory: &Memory, patch: &Patch, gap: &mut Gap) -> Result<()> {
    let (found, mut bytes) = standing(memory, patch, gap)?;
    match found {
        // Unmapped or replaced meanwhile (dlclose, a program that writes code): nothing of ours is left there.
        Standing::Nothing => return Ok(()),
        Standing::Ours => {}
        Standing::Breakpoint => {
            return Err(Error::Unsuitable(format!(
                "somebody's breakpoint is in the probe at {:#x}, which stays until that is gone",
                patch.at
            )));
        }
    }
    for (byte, (own, ours)) in bytes
        .iter_mut()
        .zip(patch.original.iter().zip(&patch.replacement))
    {
        if byte == ours {
            *byte = *own;
        }
    }
    memory.write(TargetAddr(patch.at), &bytes)?;
    match standing(memory, patch, gap)?.0 {
        Standing::Nothing => Ok(()),
        Standing::Ours | Standing::Breakpoint => Err(Error::Unsuitable(format!(
            "what was written to the code at {:#x} is not what stands there",
            patch.at
        ))),
    }
}

#[cfg(test)]
mod tests;
