//! Ranges of addresses of which one holds an address.

use crate::addr::{AddrRange, FileAddr};

/// Sorted and disjoint.
#[derive(Default)]
pub(crate) struct Ranges(Vec<AddrRange>);

impl Ranges {
    /// Sorts ranges, and cuts off what overlaps an earlier one.
    pub(crate) fn new(ranges: impl Iterator<Item = AddrRange>) -> Ranges {
        let mut ranges: Vec<AddrRange> = ranges.collect();
        ranges.sort();
        let mut end = FileAddr(0);
        for range in &mut ranges {
            range.start = range.start.max(end);
            end = end.max(range.end);
        }
        ranges.retain(|range| !range.is_empty());
        Ranges(ranges)
    }

    /// How many bytes they are together.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(AddrRange::len).sum()
    }

    /// The range that holds an address.
    pub(crate) fn around(&self, addr: FileAddr) -> Option<AddrRange> {
        let before = self.0.partition_point(|range| range.start <= addr);
        self.0[..before]
            .last()
            .copied()
            .filter(|range| range.contains(addr))
    }
}
