//! Memory for trampolines: code at addresses that the program's own bytes prescribe, or nearly so. Pure; mapping it is up to
//! the caller.
//!
//! A punned jump leads to an address of which the upper bits are fixed. There a few bytes are needed that jump on to the
//! stub. Chunks of pages are taken where an address demands it, and shared by all that can lead to them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ground::Ground;

use super::layout::MOST_CODE;

/// What is mapped at once, and aligned to: more trampolines find room, and mappings stay few.
const CHUNK: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// So many chunks at most: other code has as much room in the list of all.
const MOST_PAGES: usize = MOST_CODE / 3 * 2;
/// What is kept at the end of a chunk: the address of a table for unwinders.
pub const TABLE_WORD: u64 = 8;
/// How many addresses of a range are tried for a new chunk.
const TRIES: u64 = 16;

/// Pages of ours, and what of them is used.
#[derive(Clone, Default, Debug)]
struct Chunk {
    end: u64,
    /// Start to end, apart.
    used: BTreeMap<u64, u64>,
    mapped: bool,
}

impl Chunk {
    /// The first of the addresses at which `len` bytes are free.
    fn gap(&self, start: u64, wanted: &Range<u64>, len: u64) -> Option<u64> {
        let mut at = wanted.start.max(start);
        loop {
            if at >= wanted.end || at.checked_add(len + TABLE_WORD)? > self.end {
                return None;
            }
            match self.used.range(..at + len).next_back() {
                Some((_, &end)) if end > at => at = end,
                _ => return Some(at),
            }
        }
    }
}

/// Where trampolines are.
#[derive(Default, Debug)]
pub struct Pages {
    ground: Ground,
    chunks: BTreeMap<u64, Chunk>,
    /// What could not be mapped, for reasons of which the list of mappings may say nothing.
    given_up: Vec<Range<u64>>,
}

/// Whether new pages may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// Only room in pages that there are.
    Known,
    /// New pages, too.
    New,
}

impl Pages {
    /// Says what is around now.
    pub fn set_ground(&mut self, ground: Ground) {
        self.ground = ground;
    }

    /// Whether `len` bytes could be had that begin at one of the addresses.
    #[must_use]
    pub fn has_room(&self, wanted: &Range<u64>, len: u64, take: Take) -> bool {
        self.known(wanted, len).is_some()
            || take == Take::New && self.new_pages(wanted, len).is_some()
    }

    /// Takes `len` bytes that begin at one of the addresses.
    pub fn reserve(&mut self, wanted: &Range<u64>, len: u64, take: Take) -> Option<u64> {
        let at = match self.known(wanted, len) {
            Some(at) => at,
            None if take == Take::New => {
                let (at, pages) = self.new_pages(wanted, len)?;
                let chunk = Chunk {
                    end: pages.end,
                    ..Chunk::default()
                };
                self.chunks.insert(pages.start, chunk);
                at
            }
            None => return None,
        };
        let (_, chunk) = self.chunks.range_mut(..=at).next_back()?;
        chunk.used.insert(at, at + len);
        Some(at)
    }

    fn known(&self, wanted: &Range<u64>, len: u64) -> Option<u64> {
        let below = self.chunks.range(..wanted.start).next_back();
        let chunks = below.into_iter().chain(self.chunks.range(wanted.clone()));
        let mut gaps = chunks.map(|(&start, chunk)| chunk.gap(start, wanted, len));
        gaps.find_map(|gap| gap)
    }

    /// One of the addresses, and new pages in which `len` bytes can begin there.
    fn new_pages(&self, wanted: &Range<u64>, len: u64) -> Option<(u64, Range<u64>)> {
        if self.chunks.len() >= MOST_PAGES.min(self.ground.mappings()) {
            return None;
        }
        let step = ((wanted.end - wanted.start) / TRIES)
            .next_multiple_of(PAGE)
            .max(PAGE);
        let later = (1..TRIES).map(|n| (wanted.start & !(PAGE - 1)).saturating_add(n * step));
        for at in std::iter::once(wanted.start).chain(later) {
            let end = at.checked_add(len + TABLE_WORD)?;
            let end = end.checked_next_multiple_of(PAGE)?;
            if at >= wanted.end {
                break;
            }
            let needed = at & !(PAGE - 1)..end;
            let all = at & !(CHUNK - 1)..end.checked_next_multiple_of(CHUNK)?;
            let pages = [all, needed].into_iter().find(|pages| self.is_free(pages));
            if let Some(pages) = pages {
                return Some((at, pages));
            }
        }
        None
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        let before = self.chunks.range(..range.end).next_back();
        let mut given_up = self.given_up.iter();
        self.ground.is_free(range)
            && before.is_none_or(|(_, chunk)| chunk.end <= range.start)
            && given_up.all(|other| other.end <= range.start || range.end <= other.start)
    }

    /// The end of the code, in memory that cannot be written, that has an address; the address itself where that has none.
    #[must_use]
    pub fn end_of_code(&self, addr: u64) -> u64 {
        self.ground.end_of_code(addr)
    }

    /// How many chunks there may be where `bytes` more may be mapped.
    #[must_use]
    pub fn most_within(&self, bytes: u64) -> usize {
        let more = usize::try_from(bytes / CHUNK).unwrap_or(usize::MAX);
        self.chunks.len().saturating_add(more)
    }

    /// The chunks that are to be mapped.
    #[must_use]
    pub fn unmapped(&self) -> Vec<Range<u64>> {
        let chunks = self.chunks.iter().filter(|(_, chunk)| !chunk.mapped);
        chunks.map(|(&start, chunk)| start..chunk.end).collect()
    }

    /// The chunk that begins at an address is mapped.
    pub fn set_mapped(&mut self, start: u64) {
        if let Some(chunk) = self.chunks.get_mut(&start) {
            chunk.mapped = true;
        }
    }

    /// The chunk that begins at an address cannot be mapped.
    pub fn give_up(&mut self, start: u64) {
        if let Some(chunk) = self.chunks.remove(&start) {
            self.given_up.push(start..chunk.end);
        }
    }

    /// Whether an address is in one of the chunks.
    #[must_use]
    pub fn has(&self, addr: u64) -> bool {
        let chunk = self.chunks.range(..=addr).next_back();
        chunk.is_some_and(|(_, chunk)| addr < chunk.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps;

    const MAPS: &[u8] = b"\
555555554000-555555560000 r-xp 00000000 08:01 1 /bin/program
555555570000-555555591000 rw-p 00000000 00:00 0 [heap]
7ffff7dd0000-7ffff7fd0000 r-xp 00000000 08:01 2 /lib/libc.so.6
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]
";
    const LIBC: u64 = 0x7fff_f7dd_0000;
    const STACK: u64 = 0x7fff_ffff_f000;

    fn pages(most: usize) -> Pages {
        let mut pages = Pages::default();
        let ground = Ground::new(&maps::parse(MAPS), 8 << 20, Some(0x5555_5557_0000), most);
        pages.set_ground(ground);
        pages
    }

    fn new(pages: &mut Pages, at: u64) -> Option<u64> {
        pages.reserve(&(at..at + 1), 5, Take::New)
    }

    #[test]
    fn pages_are_taken_where_nobody_is_or_will_be() {
        let mut pages = pages(1000);
        for taken in [
            0x1000,
            0x5555_5555_5000,
            // The last bytes, or the word behind them, would be another's.
            0x5555_5555_3ffd,
            0x5555_5555_3ff8,
            // Between the program and its heap, which has been given back or not.
            0x5555_5559_5000,
            0x5555_7000_0000,
            LIBC,
            // The stack may grow so far.
            STACK - (8 << 20),
            STACK - (23 << 20),
            STACK,
        ] {
            assert_eq!(new(&mut pages, taken), None, "{taken:x}");
        }
        assert!(pages.unmapped().is_empty());
        for free in [
            0x1_0000,
            0x5555_5550_0123,
            0x5555_9999_0000,
            LIBC - 13,
            STACK - (25 << 20),
        ] {
            assert_eq!(new(&mut pages, free), Some(free), "{free:x}");
        }
        let ours = pages.unmapped();
        assert!(
            ours.iter()
                .all(|pages| pages.start.is_multiple_of(PAGE) && pages.end.is_multiple_of(PAGE))
        );
        assert!(ours.iter().any(|pages| pages.end == LIBC));
    }

    #[test]
    fn trampolines_share_pages() {
        let mut pages = pages(1000);
        let wanted = 0x6000_0000_0000..0x6000_0000_0100;
        let taken: Vec<u64> = (0..60)
            .filter_map(|_| pages.reserve(&wanted, 5, Take::New))
            .collect();
        let expected: Vec<u64> = (0..52).map(|n| wanted.start + 5 * n).collect();
        assert_eq!(taken, expected);
        assert_eq!(pages.unmapped().len(), 1);
        assert!(pages.has(wanted.start) && !pages.has(wanted.start - 1));
        pages.set_mapped(wanted.start & !(CHUNK - 1));
        assert!(pages.unmapped().is_empty());
        assert!(!pages.has_room(&wanted, 5, Take::New));
        let elsewhere = 0x6000_1000_0000..0x6000_1000_0100;
        assert!(pages.has_room(&elsewhere, 5, Take::New));
        assert!(!pages.has_room(&elsewhere, 5, Take::Known));
    }

    #[test]
    fn mappings_are_not_used_up() {
        // Half of what is left of the limit.
        let mut pages = pages(4 + 6);
        let got = (0..10).filter(|n| new(&mut pages, 0x6000_0000_0000 + (n << 20)).is_some());
        assert_eq!(got.count(), 3);
    }

    #[test]
    fn pages_that_were_given_up_are_not_taken_again() {
        let mut pages = pages(1000);
        let at = 0x6000_0000_0000;
        assert_eq!(new(&mut pages, at), Some(at));
        pages.give_up(at);
        assert!(pages.unmapped().is_empty() && !pages.has(at));
        assert_eq!(new(&mut pages, at), None);
        // Nothing says that they are taken.
        let ground = Ground::new(&maps::parse(MAPS), 8 << 20, None, 1000);
        pages.set_ground(ground.clone());
        assert_eq!(new(&mut pages, at), None);
        assert_eq!(new(&mut pages, at + (1 << 20)), Some(at + (1 << 20)));
        pages.set_ground(ground.with_most(0));
        assert_eq!(new(&mut pages, at + (2 << 20)), None);
    }

    #[test]
    fn code_ends_where_its_mapping_does() {
        let pages = pages(1000);
        assert_eq!(pages.end_of_code(LIBC + 5), 0x7fff_f7fd_0000);
        assert_eq!(pages.end_of_code(LIBC - 1), LIBC - 1);
        assert_eq!(pages.end_of_code(0x5555_5557_0000), 0x5555_5557_0000);
    }
}
