//! Which stack an address belongs to, as far as the mappings tell.

use std::ops::Range;

use crate::maps;

/// The target's mappings, remembered; read again when an address is in none of them.
#[derive(Default, Debug)]
pub struct Stacks {
    regions: Vec<(u64, u64)>,
}

impl Stacks {
    /// Whether two addresses lie in one mapping, so that their order tells which frame is older.
    pub fn same(&mut self, pid: i32, rsp: u64, slot: u64) -> bool {
        self.around(pid, rsp).contains(&slot)
    }

    /// The mapping that an address lies in; empty where there is none.
    pub fn around(&mut self, pid: i32, rsp: u64) -> Range<u64> {
        let known = self.find(rsp);
        let region = known.or_else(|| {
            let mappings = maps::read(pid).unwrap_or_default();
            self.regions = mappings
                .iter()
                .filter(|m| m.writable)
                .map(|m| (m.start, m.end))
                .collect();
            self.find(rsp)
        });
        region.map_or(0..0, |(start, end)| start..end)
    }

    fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let after = self.regions.partition_point(|&(start, _)| start <= addr);
        let region = *self.regions.get(after.checked_sub(1)?)?;
        (addr < region.1).then_some(region)
    }
}
