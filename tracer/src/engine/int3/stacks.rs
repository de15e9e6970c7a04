//! Which stack an address belongs to, as far as the mappings tell.

use crate::maps;

/// The target's mappings, remembered; read again when an address is in none of them.
#[derive(Default, Debug)]
pub struct Stacks {
    regions: Vec<(u64, u64)>,
}

impl Stacks {
    /// Whether two addresses lie in one mapping, so that their order tells which frame is older.
    pub fn same(&mut self, pid: i32, rsp: u64, slot: u64) -> bool {
        let region = match self.find(rsp) {
            Some(region) => Some(region),
            None => {
                let mappings = maps::read(pid).unwrap_or_default();
                self.regions = mappings
                    .iter()
                    .filter(|m| m.writable)
                    .map(|m| (m.start, m.end))
                    .collect();
                self.find(rsp)
            }
        };
        region.is_some_and(|(start, end)| (start..end).contains(&slot))
    }

    fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let after = self.regions.partition_point(|&(start, _)| start <= addr);
        let region = *self.regions.get(after.checked_sub(1)?)?;
        (addr < region.1).then_some(region)
    }
}
