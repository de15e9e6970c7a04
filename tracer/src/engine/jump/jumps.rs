//! The bytes of the jumps that lead from the text to stubs. Pure.
//!
//! Where there are five bytes for it, a jump leads to its stub. Where there are fewer it is punned: the bytes behind it are
//! part of the distance, and a trampoline is put where that leads. What stands behind may be another jump of ours, whose bytes
//! can be chosen by leading it over a trampoline, too. The jumps are therefore placed from the last to the first: each one
//! finds behind it what will stand there.
//!
//! Memory is written a page at a time, and a tracer may be killed at any moment. So where a jump would be on two pages it is
//! punned, too, if that can be: then it is written at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use darc_disasm::Memory;

use crate::sys;

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
    /// What stands before them, as far as that is copied, too.
    pub before: Vec<u8>,
    /// The stub.
    pub to: u64,
    /// How it is come to.
    pub arrival: Arrival,
    /// Where the displaced instructions went: (original, copy).
    pub moved: Vec<(u64, u64)>,
    /// Where the stub goes on in the text.
    pub next: u64,
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

    /// What of it is on its first page, where it is on two.
    fn on_first_page(&self) -> Option<Diversion> {
        let len = sys::PAGE - self.at as usize % sys::PAGE;
        let original = self.original.get(..len)?.to_vec();
        (len < self.original.len()).then(|| Diversion {
            original,
            ..self.clone()
        })
    }

    fn opcode(&self) -> u8 {
        match self.arrival {
            Arrival::Jump | Arrival::BehindFirst(_) => JMP,
            Arrival::Call => CALL,
        }
    }

    /// What comes before the opcode: a call ends where the program's call ends, which it returns behind.
    fn prefixes(&self) -> Vec<u8> {
        match self.arrival {
            Arrival::Jump | Arrival::BehindFirst(_) => Vec::new(),
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
    /// Whose the trampolines are, by address.
    owners: BTreeMap<u64, Owner>,
    /// Those that were made for an earlier stub, as they are now. Each patch that needs one writes it: the one that took it over
    /// may never have been made.
    taken_over: BTreeMap<u64, Trampoline>,
    new: Vec<Trampoline>,
}

/// Whose a trampoline is.
#[derive(Clone, Copy, Debug)]
struct Owner {
    /// The instruction that leads there.
    of: u64,
    /// How. A thread may stand at the trampoline while it is taken over, with the stack of that.
    arrival: Arrival,
    /// The trampoline's length.
    len: u64,
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
const INT3: u8 = 0xcc;
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
            let first = diversion.on_first_page();
            let known = before.get(&diversion.at).filter(|known| {
                let is_same =
                    known.diversion == *diversion || Some(&known.diversion) == first.as_ref();
                is_same
                    && self.tail(&known.diversion, text).starts_with(&known.tail)
                    && known.trampoline.is_none_or(|at| self.pages.has(at))
            });
            let placed = match known {
                Some(known) => Some(known.clone()),
                None => first
                    .and_then(|first| self.on_one_page(diversion, &first, text))
                    .or_else(|| self.anywhere(diversion, text)),
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
                before: placed.diversion.before,
                replacement: placed.bytes,
                behind: placed.tail,
                trampoline: placed.taken_over,
                moved: placed.diversion.moved,
                next: placed.diversion.next,
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
        self.taken_over.retain(|&at, _| pages.has(at));
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
        let behind = self.placed.range(end..end + most as u64);
        let ours = |at: usize| {
            let at = end + at as u64;
            let mut behind = behind.clone().map(|(_, placed)| &placed.diversion);
            behind.any(|placed| (placed.at..placed.end()).contains(&at))
        };
        // What may be a breakpoint of somebody's may go.
        let mut watched = (0..bytes.len()).filter(|&at| bytes[at] == INT3);
        let watched = watched.find(|&at| !ours(at));
        bytes.truncate(watched.unwrap_or(most));
        for (&at, placed) in behind {
            overlay(&mut bytes, (at - end) as usize, &placed.bytes);
        }
        bytes
    }

    fn anywhere(&mut self, diversion: &Diversion, text: &dyn Memory) -> Option<Placed> {
        match diversion.is_punned() {
            true => self.pun(diversion, &self.tail(diversion, text), text),
            false => straight(diversion, &diversion.prefixes()),
        }
    }

    /// Places a jump across the border of two pages so that nothing is written but its `first` part: the rest of it is what
    /// stands there. So it is there at once, or not at all.
    fn on_one_page(
        &mut self,
        diversion: &Diversion,
        first: &Diversion,
        text: &dyn Memory,
    ) -> Option<Placed> {
        if diversion.arrival != Arrival::Call {
            return self.anywhere(first, text);
        }
        let prefixes = diversion.prefixes();
        let len = first.original.len();
        let own = len.checked_sub(prefixes.len() + 1)?;
        let behind = diversion.end();
        let tail = &diversion.original[len..];
        let wanted = led_by(behind, own, tail)?;
        let mut takes = [Take::Known, Take::New].into_iter();
        let led = takes.find_map(|take| self.trampoline(diversion, &wanted, take))?;
        let distance = (led.at.wrapping_sub(behind) as u32).to_le_bytes();
        Some(Placed {
            bytes: [&prefixes, &[CALL][..], &distance[..own]].concat(),
            diversion: first.clone(),
            tail: tail.to_vec(),
            trampoline: Some(led.at),
            taken_over: led.taken_over,
        })
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
            if offset > tail.len() {
                continue;
            }
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
        // What is written on one page alone has its place by what stands behind it.
        (!next.diversion.is_punned() && next.tail.is_empty()).then_some(next)
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
            let behind = at + prefixes as u64 + JUMP;
            Some((prefixes, led_by(behind, len - 1 - prefixes, tail)?))
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
        let Diversion {
            at: of,
            to,
            arrival,
            ..
        } = *diversion;
        let known = self.trampolines.range((to, wanted.start)..(to, wanted.end));
        let mut known = known.map(|&(_, at)| at).filter(|&at| self.pages.has(at));
        if let Some(at) = known.next() {
            let taken_over = self.taken_over.get(&at).cloned();
            return Some(Led { at, taken_over });
        }
        let len = length(wanted, to);
        let owner = Owner { of, arrival, len };
        let new = self.pages.reserve(wanted, len, take);
        let at = new.or_else(|| self.own(owner, wanted))?;
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
                self.owners.insert(at, owner);
                self.new.push(trampoline);
                None
            }
            None => {
                self.taken_over.insert(at, trampoline.clone());
                Some(trampoline)
            }
        };
        Some(Led { at, taken_over })
    }

    /// A trampoline at one of the addresses that an earlier jump of the same instruction leads to, as long at least.
    fn own(&self, by: Owner, wanted: &Range<u64>) -> Option<u64> {
        let mut owners = self.owners.range(wanted.clone());
        let own = owners
            .find(|(_, had)| (had.of, had.arrival) == (by.of, by.arrival) && had.len >= by.len);
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

/// Where a jump can lead of whose distance the first `own` bytes can be chosen.
fn led_by(behind: u64, own: usize, tail: &[u8]) -> Option<Range<u64>> {
    let mut distance = [0; 4];
    distance[own..].copy_from_slice(tail.get(..4 - own)?);
    let first = behind.checked_add_signed(i32::from_le_bytes(distance).into())?;
    Some(first..first.checked_add(1 << (8 * own))?)
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
mod tests;
