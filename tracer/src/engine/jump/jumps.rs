//! The bytes of the jumps that lead from the text to stubs. Pure.
//!
//! Where there are five bytes for it, a jump leads to its stub. Where there are fewer it is punned: the bytes behind it are
//! part of the distance, and a trampoline is put where that leads. What stands behind may be another jump of ours, whose bytes
//! can be chosen by leading it over a trampoline, too. The jumps are therefore placed from the last to the first: each one
//! finds behind it what will stand there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use darc_disasm::Memory;

use super::pages::{Pages, Take};
use super::patches::Patch;
use super::spans::JUMP;
use super::stubs::Arrival;

/// Control is to be diverted from the text to a stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diversion {
    /// The first byte to be replaced.
    pub at: u64,
    /// The program's own bytes.
    pub original: Vec<u8>,
    /// The stub.
    pub to: u64,
    /// How it is come to.
    pub arrival: Arrival,
    /// Where the displaced instructions went: (original, copy).
    pub moved: Vec<(u64, u64)>,
    /// Diversions that must be there, too, if they are wanted at all: where its calls return to.
    pub landings: Vec<u64>,
}

impl Diversion {
    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at + self.original.len() as u64
    }

    fn is_punned(&self) -> bool {
        (self.original.len() as u64) < JUMP
    }

    fn opcode(&self) -> u8 {
        match self.arrival {
            Arrival::Jump => JMP,
            Arrival::Call => CALL,
        }
    }

    /// What comes before the opcode: a call ends where the program's call ends, which it returns behind.
    fn prefixes(&self) -> Vec<u8> {
        match self.arrival {
            Arrival::Jump => Vec::new(),
            Arrival::Call => vec![PREFIXES[0]; self.original.len().saturating_sub(JUMP as usize)],
        }
    }
}

/// Why there is no punned jump at a place.
pub const NO_PAGE: &str = "it is too short for a jump, and where one would lead with the bytes behind it no memory can be had";

/// Code that leads on to a stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trampoline {
    /// Where it is.
    pub at: u64,
    /// Its code.
    pub bytes: Vec<u8>,
    /// The instruction that leads there.
    pub of: u64,
}

/// What stands in the text for a diversion.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Placed {
    diversion: Diversion,
    bytes: Vec<u8>,
    /// What stands behind it, as far as it is a part of the jump.
    tail: Vec<u8>,
    trampoline: Option<u64>,
    /// The trampoline, where it led to an earlier stub before.
    taken_over: Option<Trampoline>,
}

/// The jumps that were placed, and the memory for their trampolines.
#[derive(Default, Debug)]
pub struct Jumps {
    /// The memory.
    pub pages: Pages,
    placed: BTreeMap<u64, Placed>,
    /// Where stubs have trampolines: stub and address.
    trampolines: BTreeSet<(u64, u64)>,
    /// Whose the trampolines are, by address: the instruction that leads there, and the trampoline's length.
    owners: BTreeMap<u64, (u64, u64)>,
    new: Vec<Trampoline>,
}

/// What came of placing.
#[derive(Default, Debug)]
pub struct Outcome {
    /// What to write, by address.
    pub patches: BTreeMap<u64, Patch>,
    /// Diversions for which there is no place.
    pub refused: Vec<u64>,
}

/// The longest trampoline: `jmp *0(%rip)` and the address.
const LONGEST: u64 = 14;
/// Prefixes that do nothing before a jump, in the order of preference: with one the first byte is another. Segments other than
/// `fs` and `gs` have no meaning in 64-bit code, and REX has none before a near jump (Intel SDM volume 2, 2.1.1 and 2.2.1).
const PREFIXES: [u8; 8] = [0x2e, 0x3e, 0x26, 0x36, 0x40, 0x44, 0x48, 0x4c];
const NOP: u8 = 0x90;
const JMP: u8 = 0xe9;
const CALL: u8 = 0xe8;
/// How far a jump leads, with room for its own length.
const REACH: u64 = (1 << 31) - 64;
/// How far apart places for the trampoline of a jump that could be anywhere are tried, and how many on each side.
const STEP: u64 = 64 << 10;
const STEPS: i64 = 64;

/// What the first bytes of the jump behind a punned one may become.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Follower {
    prefixes: Vec<u8>,
    /// The low bytes of the distance of a jump over a trampoline; none for a jump to the stub itself.
    low: Vec<u8>,
}

impl Jumps {
    /// Places jumps. `text` is the program's own code.
    pub fn place(&mut self, wanted: &BTreeMap<u64, Diversion>, text: &dyn Memory) -> Outcome {
        let before = std::mem::take(&mut self.placed);
        let mut outcome = Outcome::default();
        for diversion in wanted.values().rev() {
            let tail = self.tail(diversion, text);
            let known = before.get(&diversion.at).filter(|known| {
                known.diversion == *diversion
                    && tail.starts_with(&known.tail)
                    && known.trampoline.is_none_or(|at| self.pages.has(at))
            });
            let placed = match known {
                Some(known) => Some(known.clone()),
                None if diversion.is_punned() => self.pun(diversion, &tail, text),
                None => straight(diversion, &diversion.prefixes()),
            };
            match placed {
                Some(placed) => drop(self.placed.insert(diversion.at, placed)),
                None => outcome.refused.push(diversion.at),
            }
        }
        let patches = self.placed.values().cloned().map(|placed| {
            let patch = Patch {
                at: placed.diversion.at,
                original: placed.diversion.original,
                replacement: placed.bytes,
                behind: placed.tail,
                trampoline: placed.taken_over,
                moved: placed.diversion.moved,
                landings: placed.diversion.landings,
            };
            (patch.at, patch)
        });
        outcome.patches = patches.collect();
        outcome
    }

    /// The pages that begin at an address cannot be mapped.
    pub fn give_up(&mut self, start: u64) {
        self.pages.give_up(start);
        let pages = &self.pages;
        self.trampolines.retain(|&(_, at)| pages.has(at));
        self.owners.retain(|&at, _| pages.has(at));
        self.new.retain(|trampoline| pages.has(trampoline.at));
    }

    /// The trampolines that were made since this was last asked.
    pub fn new_trampolines(&mut self) -> Vec<Trampoline> {
        std::mem::take(&mut self.new)
    }

    /// What will stand behind a punned jump, as far as the longest one reaches.
    fn tail(&self, diversion: &Diversion, text: &dyn Memory) -> Vec<u8> {
        if !diversion.is_punned() {
            return Vec::new();
        }
        let end = diversion.end();
        // What is not code may not be fetched, or change.
        let code = self.pages.end_of_code(diversion.at).saturating_sub(end);
        let most = code.min(JUMP - 1) as usize;
        let mut bytes = vec![0; most];
        // Near the end of what is mapped there may be fewer.
        let readable = (0..=most)
            .rev()
            .find(|&len| text.read(end, &mut bytes[..len]));
        bytes.truncate(readable.unwrap_or(0));
        for (&at, placed) in self.placed.range(end..end + most as u64) {
            overlay(&mut bytes, (at - end) as usize, &placed.bytes);
        }
        bytes
    }

    /// Places a punned jump, if need be by placing the jump behind it anew.
    fn pun(&mut self, diversion: &Diversion, tail: &[u8], text: &dyn Memory) -> Option<Placed> {
        let next = self.follower(diversion).map(|next| next.diversion.clone());
        for take in [Take::Known, Take::New] {
            if let Some((led, bytes)) = self.reserve(diversion, tail, take) {
                return Some(punned(diversion, tail, led, bytes));
            }
            let Some(next) = &next else { continue };
            let offset = (next.at - diversion.end()) as usize;
            for follower in followers(diversion, next) {
                let mut tail = tail.to_vec();
                tail.truncate(offset);
                tail.extend(follower.first_bytes(next));
                tail.truncate(JUMP as usize - 1);
                if self.find(diversion, &tail, take).is_none() {
                    continue;
                }
                let Some(anew) = self.anew(next, &follower, take) else {
                    continue;
                };
                self.placed.insert(next.at, anew);
                let tail = self.tail(diversion, text);
                let (led, bytes) = self.reserve(diversion, &tail, take)?;
                return Some(punned(diversion, &tail, led, bytes));
            }
        }
        None
    }

    /// The jump whose bytes are part of a punned one, if it can be placed anew.
    fn follower(&self, diversion: &Diversion) -> Option<&Placed> {
        let end = diversion.end();
        let (_, next) = self.placed.range(end..diversion.at + JUMP).next()?;
        (!next.diversion.is_punned()).then_some(next)
    }

    /// Places a jump that is long enough so that its first bytes are others.
    fn anew(&mut self, next: &Diversion, follower: &Follower, take: Take) -> Option<Placed> {
        let Follower { prefixes, low } = follower;
        if low.is_empty() {
            return straight(next, prefixes);
        }
        let behind = next.at + prefixes.len() as u64 + JUMP;
        let mut word = [0; 8];
        word[..low.len()].copy_from_slice(low);
        let (low, period) = (i64::from_le_bytes(word), 1_i64 << (8 * low.len()));
        let step = period.max(STEP as i64);
        // From the nearest to the farthest.
        let distances = (0..=STEPS).flat_map(|n| [n * step + low, low - n * step]);
        for distance in distances {
            let Ok(reached) = i32::try_from(distance) else {
                break;
            };
            let at = behind.checked_add_signed(reached.into())?;
            if let Some(led) = self.trampoline(next, &(at..at + 1), take) {
                return Some(Placed {
                    bytes: jump(next, prefixes, led.at)?,
                    diversion: next.clone(),
                    tail: Vec::new(),
                    trampoline: Some(led.at),
                    taken_over: led.taken_over,
                });
            }
        }
        None
    }

    /// The ways to pun a jump: how many prefixes it has, and where it can lead. With prefixes the distance takes in more of
    /// what is behind.
    fn ways(diversion: &Diversion, tail: &[u8]) -> impl Iterator<Item = (usize, Range<u64>)> {
        let (len, at) = (diversion.original.len(), diversion.at);
        (0..len).filter_map(move |prefixes| {
            let own = len - 1 - prefixes;
            let mut distance = [0; 4];
            distance[own..].copy_from_slice(tail.get(..4 - own)?);
            let behind = at + prefixes as u64 + JUMP;
            let first = behind.checked_add_signed(i32::from_le_bytes(distance).into())?;
            Some((prefixes, first..first.checked_add(1 << (8 * own))?))
        })
    }

    /// Whether there is room where a punned jump can lead.
    fn find(&self, diversion: &Diversion, tail: &[u8], take: Take) -> Option<()> {
        let has_room = |wanted: &Range<u64>| {
            let len = length(wanted, diversion.to);
            self.pages.has_room(wanted, len, take)
        };
        Jumps::ways(diversion, tail)
            .any(|(_, wanted)| has_room(&wanted))
            .then_some(())
    }

    /// Makes the trampoline of a punned jump: where it is, and the jump's own bytes.
    fn reserve(
        &mut self,
        diversion: &Diversion,
        tail: &[u8],
        take: Take,
    ) -> Option<(Led, Vec<u8>)> {
        for (prefixes, wanted) in Jumps::ways(diversion, tail) {
            let Some(led) = self.trampoline(diversion, &wanted, take) else {
                continue;
            };
            let behind = diversion.at + prefixes as u64 + JUMP;
            let mut bytes = vec![PREFIXES[0]; prefixes];
            bytes.push(JMP);
            bytes.extend((led.at.wrapping_sub(behind) as u32).to_le_bytes());
            bytes.truncate(diversion.original.len());
            return Some((led, bytes));
        }
        None
    }

    /// A trampoline to a diversion's stub, at one of the addresses.
    fn trampoline(
        &mut self,
        diversion: &Diversion,
        wanted: &Range<u64>,
        take: Take,
    ) -> Option<Led> {
        let Diversion { at: of, to, .. } = *diversion;
        let known = self.trampolines.range((to, wanted.start)..(to, wanted.end));
        let mut known = known.map(|&(_, at)| at).filter(|&at| self.pages.has(at));
        if let Some(at) = known.next() {
            let taken_over = None;
            return Some(Led { at, taken_over });
        }
        let len = length(wanted, to);
        let new = self.pages.reserve(wanted, len, take);
        let at = new.or_else(|| self.own(of, wanted, len))?;
        let bytes = match len {
            JUMP => {
                let distance = to.wrapping_sub(at + JUMP) as u32;
                [&[JMP][..], &distance.to_le_bytes()].concat()
            }
            _ => [&[0xff, 0x25, 0, 0, 0, 0][..], &to.to_le_bytes()].concat(),
        };
        if new.is_none() {
            self.trampolines.retain(|&(_, other)| other != at);
        }
        self.trampolines.insert((to, at));
        let trampoline = Trampoline { at, bytes, of };
        let taken_over = match new {
            Some(_) => {
                self.owners.insert(at, (of, len));
                self.new.push(trampoline);
                None
            }
            None => Some(trampoline),
        };
        Some(Led { at, taken_over })
    }

    /// A trampoline at one of the addresses that an earlier jump of the same instruction leads to, of `len` bytes at least.
    fn own(&self, of: u64, wanted: &Range<u64>, len: u64) -> Option<u64> {
        let mut owners = self.owners.range(wanted.clone());
        let own = owners.find(|&(_, &(owner, has))| owner == of && has >= len);
        own.map(|(&at, _)| at)
    }
}

/// The trampoline that a jump leads to.
struct Led {
    at: u64,
    /// What is to be written, where an earlier jump led there.
    taken_over: Option<Trampoline>,
}

fn punned(diversion: &Diversion, tail: &[u8], led: Led, bytes: Vec<u8>) -> Placed {
    let prefixes = bytes.iter().position(|&byte| byte == JMP).unwrap_or(0);
    let taken = prefixes + JUMP as usize - bytes.len();
    Placed {
        diversion: diversion.clone(),
        bytes,
        tail: tail[..taken].to_vec(),
        trampoline: Some(led.at),
        taken_over: led.taken_over,
    }
}

/// The length of a trampoline to a stub from any of the addresses.
fn length(from: &Range<u64>, to: u64) -> u64 {
    let near = |at: u64| at.abs_diff(to) < REACH;
    match near(from.start) && near(from.end) {
        true => JUMP,
        false => LONGEST,
    }
}

/// Writes bytes over others, as far as these reach.
fn overlay(bytes: &mut [u8], offset: usize, with: &[u8]) {
    for (old, new) in bytes.iter_mut().skip(offset).zip(with) {
        *old = *new;
    }
}

impl Follower {
    /// The first bytes of the jump, as far as they are settled.
    fn first_bytes(&self, next: &Diversion) -> Vec<u8> {
        let Follower { prefixes, low } = self;
        match low.is_empty() {
            true => jump(next, prefixes, next.to).unwrap_or_default(),
            false => [prefixes, &[next.opcode()][..], low].concat(),
        }
    }
}

/// What the jump behind a punned one may become, the simplest first.
fn followers(punned: &Diversion, next: &Diversion) -> impl Iterator<Item = Follower> {
    let spare = next.original.len() as u64 > JUMP;
    let prefixes = next.prefixes();
    let rest = prefixes.get(1..).unwrap_or_default().to_vec();
    let first = PREFIXES.into_iter().filter(move |_| spare);
    let prefixed = first.map(move |first| Follower {
        prefixes: [&[first], &rest[..]].concat(),
        low: Vec::new(),
    });
    // How many bytes of its distance may be part of the other's; the last says how far that leads: the nearest first.
    let low = match prefixes.len() as u64 {
        0 => (punned.at + JUMP - next.at) as usize - 1,
        prefixes => usize::from(next.at + prefixes + 1 < punned.end() + JUMP - 1),
    };
    let nearest = (0..0x70_u8)
        .flat_map(|n| [0xff - n, n])
        .filter(move |_| low > 0);
    let over = nearest.flat_map(move |last| {
        let few = if low > 1 { 4 } else { 1 };
        let prefixes = prefixes.clone();
        (0..few).map(move |n| {
            let mut bytes = vec![0; low];
            if low > 1 {
                bytes[low - 2] = n << 6;
            }
            bytes[low - 1] = last;
            Follower {
                prefixes: prefixes.clone(),
                low: bytes,
            }
        })
    });
    prefixed.chain(over)
}

/// A jump to the stub itself, behind prefixes.
fn straight(diversion: &Diversion, prefixes: &[u8]) -> Option<Placed> {
    Some(Placed {
        bytes: jump(diversion, prefixes, diversion.to)?,
        diversion: diversion.clone(),
        tail: Vec::new(),
        trampoline: None,
        taken_over: None,
    })
}

/// A jump in place of a diversion's bytes, the rest of which are filled.
fn jump(diversion: &Diversion, prefixes: &[u8], to: u64) -> Option<Vec<u8>> {
    let behind = diversion.at + prefixes.len() as u64 + JUMP;
    let distance = i32::try_from(to.wrapping_sub(behind) as i64).ok()?;
    let opcode = [diversion.opcode()];
    let mut bytes = [prefixes, &opcode, &distance.to_le_bytes()].concat();
    let len = diversion.original.len();
    (bytes.len() <= len).then(|| {
        bytes.resize(len, NOP);
        bytes
    })
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one extent of several")]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
    use proptest::prelude::*;

    use super::super::pages::Ground;
    use super::*;

    const TEXT: u64 = 0x5555_5555_4000;
    const STUBS: u64 = TEXT + (64 << 20);
    const MANY: usize = 1000;

    /// A program's code.
    struct Text {
        start: u64,
        bytes: Vec<u8>,
    }

    fn text(bytes: &[u8]) -> Text {
        Text {
            start: TEXT,
            bytes: bytes.to_vec(),
        }
    }

    impl Memory for Text {
        fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
            let from = addr.wrapping_sub(self.start) as usize;
            let found = self.bytes.get(from..from.saturating_add(buffer.len()));
            found.is_some_and(|found| {
                buffer.copy_from_slice(found);
                true
            })
        }
    }

    /// Diversions of these extents in the text, each to a stub of its own, to every other one by a call.
    fn diversions(text: &Text, extents: &[Range<usize>]) -> BTreeMap<u64, Diversion> {
        let numbered = (0..).zip(extents);
        let found = numbered.map(|(n, extent)| {
            let at = text.start + extent.start as u64;
            let diversion = Diversion {
                at,
                original: text.bytes[extent.clone()].to_vec(),
                to: STUBS + n * 64,
                arrival: match n % 2 == 1 && (5..16).contains(&extent.len()) {
                    true => Arrival::Call,
                    false => Arrival::Jump,
                },
                moved: Vec::new(),
                landings: Vec::new(),
            };
            (at, diversion)
        });
        found.collect()
    }

    fn ground(text: &Text) -> Ground {
        let mut ground = Ground::new(&[], 8 << 20, None, MANY);
        ground.add_code(text.start & !4095..(text.start + text.bytes.len() as u64 + 4095) & !4095);
        ground.take(STUBS..STUBS + (1 << 20));
        ground
    }

    fn placed(text: &Text, wanted: &BTreeMap<u64, Diversion>) -> (Jumps, Outcome) {
        let mut jumps = Jumps::default();
        jumps.pages.set_ground(ground(text));
        let outcome = jumps.place(wanted, text);
        (jumps, outcome)
    }

    fn patched(text: &Text, outcome: &Outcome) -> Vec<u8> {
        let mut bytes = text.bytes.clone();
        for patch in outcome.patches.values() {
            let at = (patch.at - text.start) as usize;
            bytes[at..at + patch.replacement.len()].copy_from_slice(&patch.replacement);
        }
        bytes
    }

    fn decode(bytes: &[u8], at: u64) -> Instruction {
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode()
    }

    /// Where the processor goes from an address of the patched text.
    fn led_to(text: &Text, outcome: &Outcome, made: &[Trampoline], at: u64) -> u64 {
        let bytes = patched(text, outcome);
        let jump = decode(&bytes[(at - text.start) as usize..], at);
        match jump.flow_control() {
            // It returns to behind what it is in place of.
            FlowControl::Call => assert_eq!(jump.next_ip(), outcome.patches[&at].end()),
            flow => assert_eq!(flow, FlowControl::UnconditionalBranch),
        }
        let target = jump.near_branch_target();
        let Some(trampoline) = made.iter().find(|trampoline| trampoline.at == target) else {
            return target;
        };
        let on = decode(&trampoline.bytes, trampoline.at);
        match on.op0_kind() {
            OpKind::Memory => {
                assert_eq!(on.ip_rel_memory_address(), on.next_ip());
                u64::from_le_bytes(trampoline.bytes[on.len()..].try_into().unwrap())
            }
            _ => on.near_branch_target(),
        }
    }

    /// All that was placed leads to its stub, from a text of which nothing else has changed.
    fn check(text: &Text, wanted: &BTreeMap<u64, Diversion>) -> usize {
        let (mut jumps, outcome) = placed(text, wanted);
        let made = jumps.new_trampolines();
        for patch in outcome.patches.values() {
            let to = wanted[&patch.at].to;
            assert_eq!(led_to(text, &outcome, &made, patch.at), to);
            let opcode = patch.replacement.iter().rev().nth(4);
            assert!(wanted[&patch.at].arrival == Arrival::Jump || opcode == Some(&CALL));
            assert_eq!(patch.original.len(), patch.replacement.len());
        }
        let now = patched(text, &outcome);
        for (at, (old, new)) in (text.start..).zip(text.bytes.iter().zip(&now)) {
            let replaced = outcome
                .patches
                .values()
                .any(|p| (p.at..p.end()).contains(&at));
            assert!(replaced || old == new);
        }
        let mut used: Vec<Range<u64>> = made
            .iter()
            .map(|one| one.at..one.at + one.bytes.len() as u64)
            .collect();
        used.sort_by_key(|range| range.start);
        assert!(used.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let mapped = jumps.pages.unmapped();
        let ours = |one: &Range<u64>| {
            mapped
                .iter()
                .any(|m| m.start <= one.start && one.end <= m.end)
        };
        assert!(used.iter().all(ours));
        // Nothing changes when the same is wanted again.
        let again = jumps.place(wanted, text);
        assert_eq!(again.patches, outcome.patches);
        assert!(jumps.new_trampolines().is_empty());
        outcome.refused.len()
    }

    #[test]
    fn with_room_it_is_a_jump_and_filling() {
        // call *16(%rip), six bytes
        let text = text(&[0xff, 0x15, 16, 0, 0, 0, 0xc3]);
        let (_, outcome) = placed(&text, &diversions(&text, &[0..6]));
        let patch = &outcome.patches[&TEXT];
        let distance = (STUBS - TEXT - 5) as u32;
        let expected = [&[0xe9][..], &distance.to_le_bytes(), &[0x90]].concat();
        assert_eq!(patch.replacement, expected);
        assert!(patch.behind.is_empty());
        // Too far away.
        let mut wanted = diversions(&text, &[0..6]);
        wanted.get_mut(&TEXT).unwrap().to = TEXT + (1 << 32);
        assert_eq!(placed(&text, &wanted).1.refused, [TEXT]);
    }

    #[test]
    fn a_punned_jump_leaves_what_is_behind_it() {
        // jmp *%rax; nopw %cs:0(%rax,%rax): the bytes behind it lead 242 MiB ahead
        let text = text(&[0xff, 0xe0, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
        let (_, outcome) = placed(&text, &diversions(&text, &[0..2]));
        let patch = &outcome.patches[&TEXT];
        assert_eq!((patch.replacement.len(), patch.replacement[0]), (2, 0xe9));
        assert_eq!(patch.behind, [0x66, 0x2e, 0x0f]);
    }

    #[test]
    fn every_last_byte_of_a_punned_jump_is_followed() {
        // Three bytes of text before one that takes all its values.
        for last in 0..=0xff {
            let text = text(&[0xff, 0xe0, 0x90, 0x00, last, 0, 0, 0, 0]);
            assert_eq!(check(&text, &diversions(&text, &[0..2])), 0, "{last:x}");
            let text = super::tests::text(&[0xc3, 0x11, 0x22, 0x33, last, 0x12, 0, 0, 0]);
            assert_eq!(check(&text, &diversions(&text, &[0..1])), 0, "{last:x}");
        }
    }

    #[test]
    fn a_punned_jump_ends_with_its_code() {
        let text = text(&[0x90, 0x90, 0x90, 0xff, 0xe0, 0x90, 0x00, 0x10, 0]);
        let mut jumps = Jumps::default();
        let mut ground = Ground::new(&[], 8 << 20, None, MANY);
        ground.add_code(TEXT..TEXT + 7);
        jumps.pages.set_ground(ground);
        let wanted = diversions(&text, &[3..5]);
        assert_eq!(jumps.place(&wanted, &text).refused, [TEXT + 3]);
    }

    #[test]
    fn the_jump_behind_a_punned_one_makes_way() {
        // A program near the beginning of memory, where nothing can be led backwards.
        let low = Text {
            start: 0x40_1000,
            bytes: vec![0x90; 64],
        };
        for len in 1..5 {
            // Two punned jumps, each before a longer one.
            let ends = [len, len + 6, 32 + len, 32 + len + 6];
            let extents = [0..ends[0], ends[0]..ends[1], 32..ends[2], ends[2]..ends[3]];
            let mut wanted = diversions(&low, &extents);
            for (n, diversion) in (0..).zip(wanted.values_mut()) {
                diversion.to = low.start + (8 << 20) + 64 * n;
            }
            let (mut jumps, outcome) = placed(&low, &wanted);
            assert_eq!(outcome.refused, [0; 0], "{len}");
            let made = jumps.new_trampolines();
            for (&at, diversion) in &wanted {
                assert_eq!(led_to(&low, &outcome, &made, at), diversion.to);
            }
            // They share their memory.
            assert!(
                jumps.pages.unmapped().len() <= 2,
                "{len}: {:x?}",
                jumps.pages.unmapped()
            );
        }
    }

    #[test]
    fn a_jump_is_placed_anew_when_what_is_behind_it_changes() {
        let text = text(&[0xff, 0xd0, 0x48, 0x89, 0xc7, 0x48, 0x89, 0xde, 0xc3]);
        let both = diversions(&text, &[0..2, 2..8]);
        let mut alone = both.clone();
        alone.remove(&(TEXT + 2));
        let mut jumps = Jumps::default();
        jumps.pages.set_ground(ground(&text));
        let first = jumps.place(&alone, &text);
        let second = jumps.place(&both, &text);
        let third = jumps.place(&alone, &text);
        assert_eq!(first.patches, third.patches);
        assert_ne!(first.patches[&TEXT], second.patches[&TEXT]);
        assert_eq!(first.patches[&TEXT].behind, &text.bytes[2..5]);
        let made = jumps.new_trampolines();
        for (outcome, wanted) in [(&first, &alone), (&second, &both)] {
            for (&at, diversion) in wanted {
                assert_eq!(led_to(&text, outcome, &made, at), diversion.to);
            }
        }
    }

    #[test]
    fn the_only_trampoline_that_a_byte_can_lead_to_is_taken_over() {
        // ret, and what is behind it prescribes one address.
        let text = text(&[0xc3, 0x11, 0x22, 0x33, 0x12]);
        let first = diversions(&text, &[0..1]);
        let mut second = first.clone();
        second.get_mut(&TEXT).unwrap().to += 64;
        let (mut jumps, before) = placed(&text, &first);
        let made = jumps.new_trampolines();
        assert_eq!(led_to(&text, &before, &made, TEXT), first[&TEXT].to);
        for _ in 0..2 {
            let after = jumps.place(&second, &text);
            assert_eq!(after.refused, [0; 0]);
            assert!(jumps.new_trampolines().is_empty());
            let patch = &after.patches[&TEXT];
            // It is not the same, so that it is made anew.
            assert_ne!(patch, &before.patches[&TEXT]);
            let over = patch.trampoline.clone().expect("it was taken over");
            assert_eq!(over.at, made[0].at);
            assert_eq!(led_to(&text, &after, &[over], TEXT), second[&TEXT].to);
        }
    }

    #[test]
    fn pages_that_cannot_be_had_are_done_without() {
        let text = text(&[0xff, 0xe0, 0x90, 0x00, 0x10, 0, 0, 0, 0]);
        let wanted = diversions(&text, &[0..2]);
        let (mut jumps, _) = placed(&text, &wanted);
        let pages = jumps.pages.unmapped();
        assert_eq!(pages.len(), 1);
        jumps.give_up(pages[0].start);
        assert!(jumps.new_trampolines().is_empty());
        let outcome = jumps.place(&wanted, &text);
        // There is one more way, with a prefix.
        assert_ne!(jumps.pages.unmapped(), pages);
        assert_eq!(outcome.refused.len() + outcome.patches.len(), 1);
    }

    proptest! {
        #[test]
        fn whatever_the_text_jumps_lead_to_their_stubs(
            bytes in prop::collection::vec(any::<u8>(), 200),
            pieces in prop::collection::vec((0_usize..4, 1_usize..9), 1..16),
        ) {
            let text = text(&bytes);
            let mut at = 0;
            let extents = pieces.into_iter().map(|(gap, len)| {
                let start = at + gap;
                at = start + len;
                start..at
            });
            let extents: Vec<_> = extents.collect();
            check(&text, &diversions(&text, &extents));
        }
    }
}
