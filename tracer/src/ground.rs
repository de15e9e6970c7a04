//! Where memory may be mapped in a target: not where something is, nor where the heap or the stack is to grow.

use std::collections::BTreeMap;
use std::ops::Range;

use procfs::process::{LimitValue, Process};

use crate::maps::Mapping;

const PAGE: u64 = 4096;
/// The kernel keeps the first pages free (`vm.mmap_min_addr`), and so do we.
const LOWEST: u64 = 64 << 10;
/// The end of what programs can address (Intel SDM volume 1, 3.3.7.1), without the last page.
const HIGHEST: u64 = (1 << 47) - 4096;
/// How far the heap that the kernel grows (brk(2)) has room to grow.
const HEAP_GROWTH: u64 = 1 << 30;
/// The same in a program of Go's, whose run-time maps its memory: C libraries, which it may have, too, map theirs where there is no room
/// (malloc(3), "Notes"), and jumps that have to be short lead to where a small program has its heap.
const HEAP_GROWTH_BESIDE_GO: u64 = 64 << 20;
/// How far a stack has room to grow, beside its limit.
const STACK_GAP: u64 = 16 << 20;
/// How far from code its probes' memory may be: less than a signed 32-bit displacement, with room for both.
const REACH: u64 = 0x7000_0000;

/// What may be mapped in a process.
#[derive(Clone, Default, Debug)]
pub struct Ground {
    /// What is taken, or to be left to somebody who grows: start to end, sorted and apart.
    taken: BTreeMap<u64, u64>,
    /// Code that cannot be written: start to end.
    code: Vec<Range<u64>>,
    /// How many more mappings there may be.
    mappings: usize,
}

impl Ground {
    /// The ground around `mappings`. `stack` is how large the first thread's stack may become (RLIMIT_STACK), `heap` where the
    /// heap begins (`start_brk`), and `most` how many mappings the kernel allows.
    #[must_use]
    pub fn new(mappings: &[Mapping], stack: u64, heap: Option<u64>, most: usize) -> Ground {
        Ground::with_growth(mappings, stack, (heap, HEAP_GROWTH), most)
    }

    /// As [`Ground::new`], where the heap grows so far.
    fn with_growth(
        mappings: &[Mapping],
        stack: u64,
        (heap, growth): (Option<u64>, u64),
        most: usize,
    ) -> Ground {
        let mut ground = Ground {
            taken: BTreeMap::new(),
            code: Vec::new(),
            mappings: most.saturating_sub(mappings.len()) / 2,
        };
        ground.take(0..LOWEST);
        ground.take(HIGHEST..u64::MAX);
        for mapping in mappings {
            let mut range = mapping.start..mapping.end;
            if mapping.executable && !mapping.writable {
                ground.add_code(range.clone());
            }
            match mapping.name.as_os_str().as_encoded_bytes() {
                b"[stack]" => {
                    let growth = stack.min(HEAP_GROWTH).saturating_add(STACK_GAP);
                    range.start = range.end.saturating_sub(growth).min(range.start);
                }
                b"[heap]" => range.end = range.end.saturating_add(growth),
                _ => {}
            }
            ground.take(range);
        }
        if let Some(heap) = heap {
            ground.take(heap..heap.saturating_add(growth));
        }
        ground
    }

    /// The ground of a process that has these mappings.
    #[must_use]
    pub fn of(pid: i32, mappings: &[Mapping]) -> Ground {
        Ground::around(pid, mappings, HEAP_GROWTH)
    }

    /// The same of a program that has no heap but what it maps: Go's run-time never calls brk(2). C code that it may have (`calls_c`)
    /// does.
    #[must_use]
    pub fn of_goroutines(pid: i32, mappings: &[Mapping], calls_c: bool) -> Ground {
        let growth = match calls_c {
            true => HEAP_GROWTH_BESIDE_GO,
            false => 0,
        };
        Ground::around(pid, mappings, growth)
    }

    fn around(pid: i32, mappings: &[Mapping], growth: u64) -> Ground {
        /// The kernel's default (`vm.max_map_count` in the kernel's admin-guide/sysctl/vm.rst), should it not tell.
        const MOST_MAPPINGS: usize = 65_530;
        let process = Process::new(pid).ok();
        let heap = process.as_ref().filter(|_| growth > 0);
        let heap = heap.and_then(|it| it.stat().ok()?.start_brk);
        let limits = process.and_then(|process| process.limits().ok());
        let stack = limits.map(|limits| limits.max_stack_size.soft_limit);
        let stack = match stack {
            Some(LimitValue::Value(bytes)) => bytes,
            Some(LimitValue::Unlimited) | None => u64::MAX,
        };
        let most = procfs::sys::vm::max_map_count();
        let most = most.map_or(MOST_MAPPINGS, |most| most as usize);
        Ground::with_growth(mappings, stack, (heap, growth), most)
    }

    /// The same, where there may be `most` mappings of ours.
    #[must_use]
    pub fn with_most(self, most: usize) -> Ground {
        Ground {
            mappings: self.mappings.min(most),
            ..self
        }
    }

    /// Adds code that cannot be written.
    pub fn add_code(&mut self, range: Range<u64>) {
        self.code.push(range.clone());
        self.take(range);
    }

    /// A range is taken from now on.
    pub fn take(&mut self, mut range: Range<u64>) {
        while let Some((&start, &end)) = self.taken.range(..=range.end).next_back()
            && end >= range.start
        {
            range = range.start.min(start)..range.end.max(end);
            self.taken.remove(&start);
        }
        self.taken.insert(range.start, range.end);
    }

    /// Whether nothing is in a range.
    #[must_use]
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        let before = self.taken.range(..range.end).next_back();
        range.start < range.end && before.is_none_or(|(_, &end)| end <= range.start)
    }

    /// How many more mappings there may be.
    #[must_use]
    pub fn mappings(&self) -> usize {
        self.mappings
    }

    /// The end of the code, in memory that cannot be written, that has an address; the address itself where that has none.
    #[must_use]
    pub fn end_of_code(&self, addr: u64) -> u64 {
        let around = self.code.iter().find(|range| range.contains(&addr));
        around.map_or(addr, |range| range.end)
    }

    /// Room for `len` bytes (whole pages) within a signed 32-bit displacement of `near`, with a guard page to its neighbours.
    /// The nearest is taken.
    #[must_use]
    pub fn gap_near(&self, near: u64, len: u64) -> Option<u64> {
        let lowest = near.saturating_sub(REACH);
        let highest = near.saturating_add(REACH);
        let ends = self.taken.values();
        let starts = self.taken.keys().skip(1);
        ends.zip(starts)
            .filter_map(|(from, to)| {
                let from = from.saturating_add(PAGE).max(lowest);
                let from = from.next_multiple_of(PAGE);
                let to = to.saturating_sub(PAGE).min(highest) & !(PAGE - 1);
                let last = to.checked_sub(len).filter(|&last| last >= from)?;
                Some(near.clamp(from, last) & !(PAGE - 1))
            })
            .min_by_key(|&at| at.abs_diff(near))
    }
}

#[cfg(test)]
mod tests {
    use crate::maps;

    use super::*;

    fn ground(maps: &str, heap: Option<u64>) -> Ground {
        Ground::new(&maps::parse(maps.as_bytes()), 8 << 20, heap, 1000)
    }

    #[test]
    fn a_gap_is_near_and_keeps_a_guard_page() {
        let maps = "400000-500000 r-xp 0 00:00 0 \n504000-600000 r-xp 0 00:00 0 \n";
        let ground = ground(maps, None);
        assert_eq!(ground.gap_near(0x4f_0000, 0x2000), Some(0x50_1000));
        let at = ground.gap_near(0x4f_0000, 0x3000).unwrap();
        assert!(at + 0x3000 <= 0x3f_f000 || at >= 0x60_1000, "{at:#x}");
    }

    #[test]
    fn no_gap_within_reach_is_none() {
        let ground = ground("1000-7ffffffff000 r-xp 0 00:00 0 \n", None);
        assert_eq!(ground.gap_near(0x4000_0000_0000, 0x1000), None);
    }

    /// Whether it has been used already or not.
    #[test]
    fn no_gap_is_where_the_heap_grows() {
        const CODE: &str = "400000-500000 r-xp 0 00:00 0 /bin/program\n";
        const END: u64 = 0x50_0000;
        let used = format!("{CODE}500000-521000 rw-p 0 00:00 0 [heap]\n");
        for (maps, heap) in [(CODE, Some(END)), (&used, Some(END)), (&used, None)] {
            let at = ground(maps, heap).gap_near(END - 0x1000, 1 << 20).unwrap();
            assert!(!(0x40_0000..=END + HEAP_GROWTH).contains(&at), "{at:#x}");
        }
    }

    #[test]
    fn little_is_left_to_the_heap_of_c_code_beside_gos() {
        let maps =
            "400000-500000 r-xp 0 00:00 0 /bin/program\n500000-521000 rw-p 0 00:00 0 [heap]\n";
        let mappings = maps::parse(maps.as_bytes());
        let heap = (Some(0x50_0000), HEAP_GROWTH_BESIDE_GO);
        let ground = Ground::with_growth(&mappings, 8 << 20, heap, 1000);
        // Below the program is no room for so much.
        let at = ground.gap_near(0x4f_0000, 8 << 20).unwrap();
        let end = 0x52_1000 + HEAP_GROWTH_BESIDE_GO;
        assert!((end..end + (1 << 20)).contains(&at), "{at:#x}");
    }
}
