//! The DWARF sections of a file and its units, on a budget of reads (see `reader`).

use std::sync::Arc;

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, Dwarf, SectionId, UnitHeader, UnitRef,
    UnitSectionOffset, UnitType,
};

use crate::debugfile::{self, DebugSearch};
use crate::demangle::escape;
use crate::elf::Elf;
use crate::reader::{Fuel, SectionReader};

/// All sections of a file together; more is left unread.
const MAX_TOTAL: u64 = 2 << 30;
/// Entries nest at most this deep; addr2line recurses over them.
const MAX_DEPTH: isize = 256;
/// At most this many units may claim one address.
const MAX_OVERLAP: usize = 64;

/// Why a query of the debugging information was given up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The sections contradict themselves, end early, or ask for more work than is allowed.
    #[error(transparent)]
    Damaged(#[from] gimli::Error),
    #[error("entries nest too deep")]
    TooDeep,
    #[error("too many units claim one address")]
    Overlap,
}

/// The debugging information of one file.
pub(crate) struct DebugInfo {
    pub(crate) dwarf: Arc<Dwarf<SectionReader>>,
    /// Sorted by their place in `.debug_info`.
    pub(crate) units: Vec<UnitSummary>,
    fuel: Arc<Fuel>,
    /// Bytes of all sections.
    total: u64,
}

/// A unit without its parsed tables.
pub(crate) struct UnitSummary {
    pub(crate) header: UnitHeader<SectionReader>,
    /// Empty when the unit does not say.
    ranges: Vec<gimli::Range>,
    depth: Depth,
}

impl UnitSummary {
    pub(crate) fn start(&self) -> usize {
        self.header.debug_info_offset().map_or(0, |offset| offset.0)
    }

    fn may_contain(&self, addr: u64) -> bool {
        let contains = |range: &gimli::Range| range.begin <= addr && addr < range.end;
        self.ranges.is_empty() || self.ranges.iter().any(contains)
    }
}

/// How deep the entries of a unit nest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Unchecked,
    Bounded,
    Excessive,
}

impl DebugInfo {
    /// Reads the sections of `elf`, and those of its dwz supplement.
    pub(crate) fn load(
        elf: &Elf,
        search: &DebugSearch,
        warn: &mut dyn FnMut(String),
    ) -> Result<DebugInfo, String> {
        let fuel = Arc::new(Fuel::default());
        let mut total = 0;
        let mut load =
            |elf: &Elf| load_sections(elf, &fuel, &mut total).map_err(|error| ignored(&error));
        let mut dwarf = load(elf)?;
        if let Some(supplement) = debugfile::find_supplement(elf, search, warn) {
            match load(&supplement) {
                Ok(supplement) => dwarf.set_sup(supplement),
                Err(warning) => warn(warning),
            }
        }
        fuel.set(query_budget(total));
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut info = DebugInfo {
            dwarf: Arc::new(dwarf),
            units: Vec::new(),
            fuel,
            total,
        };
        info.list_units().map_err(|error| {
            let path = escape(&elf.path().to_string_lossy());
            ignored(&format!("{path}: damaged debugging information ({error})"))
        })?;
        Ok(info)
    }

    fn list_units(&mut self) -> gimli::Result<()> {
        self.refuel();
        let mut headers = self.dwarf.units();
        while let Some(header) = headers.next()? {
            let has_code = !matches!(header.type_(), UnitType::Partial | UnitType::Type { .. });
            let Ok(unit) = self.dwarf.unit(header.clone()) else {
                continue;
            };
            let ranges = if has_code {
                self.ranges_of(&unit)
            } else {
                None
            };
            let depth = if has_code {
                Depth::Unchecked
            } else {
                Depth::Bounded
            };
            self.units.push(UnitSummary {
                header,
                ranges: ranges.unwrap_or_default(),
                depth,
            });
        }
        // An exhausted budget looks like the end of a list: the ranges cannot be trusted.
        self.fuel.check()
    }

    fn ranges_of(&self, unit: &gimli::Unit<SectionReader>) -> Option<Vec<gimli::Range>> {
        let mut found = self.dwarf.unit_ranges(unit).ok()?;
        let mut ranges = Vec::new();
        while let Some(range) = found.next().ok()? {
            if range.begin < range.end {
                ranges.push(range);
            }
        }
        Some(ranges)
    }

    /// Allows the reads of a query about one address.
    pub(crate) fn refuel(&self) {
        self.fuel.set(query_budget(self.total));
    }

    /// Allows the reads of a query that goes over everything once.
    pub(crate) fn refuel_for_scan(&self) {
        self.fuel.set(query_budget(self.total).max(self.total));
    }

    /// Calls `visit` with every unit.
    pub(crate) fn each_unit(
        &self,
        mut visit: impl FnMut(UnitRef<'_, SectionReader>) -> gimli::Result<()>,
    ) -> gimli::Result<()> {
        self.refuel_for_scan();
        for summary in &self.units {
            if let Ok(unit) = self.dwarf.unit(summary.header.clone()) {
                visit(UnitRef::new(&self.dwarf, &unit))?;
            }
        }
        Ok(())
    }

    /// Calls `visit` with every unit that may contain an address.
    pub(crate) fn each_unit_around(
        &self,
        addr: u64,
        mut visit: impl FnMut(UnitRef<'_, SectionReader>) -> gimli::Result<()>,
    ) -> gimli::Result<()> {
        self.refuel();
        for summary in self.units.iter().filter(|unit| unit.may_contain(addr)) {
            if let Ok(unit) = self.dwarf.unit(summary.header.clone()) {
                visit(UnitRef::new(&self.dwarf, &unit))?;
            }
        }
        Ok(())
    }

    /// The unit that an entry is in.
    pub(crate) fn unit_of(&self, entry: UnitSectionOffset) -> Option<&UnitSummary> {
        let behind = self.units.partition_point(|unit| unit.start() <= entry.0);
        self.units.get(behind.checked_sub(1)?)
    }

    /// Checks that the units that may contain an address are shaped so that addr2line can take them: it recurses over
    /// nested entries, and reads every unit that claims the address.
    pub(crate) fn check_units_around(&mut self, addr: u64) -> Result<(), QueryError> {
        let mut claims = 0;
        for unit in self.units.iter_mut().filter(|unit| unit.may_contain(addr)) {
            claims += usize::from(!unit.ranges.is_empty());
            if unit.depth == Depth::Unchecked {
                unit.depth = depth(&self.dwarf, &unit.header)?;
            }
            if unit.depth == Depth::Excessive {
                return Err(QueryError::TooDeep);
            }
            if claims > MAX_OVERLAP {
                return Err(QueryError::Overlap);
            }
        }
        Ok(())
    }
}

/// The entry that an attribute refers to.
pub(crate) fn reference(
    unit: UnitRef<'_, SectionReader>,
    value: &AttributeValue<SectionReader>,
) -> Option<UnitSectionOffset> {
    match value {
        AttributeValue::UnitRef(offset) => Some(offset.to_unit_section_offset(&unit)),
        AttributeValue::DebugInfoRef(offset) => Some(UnitSectionOffset(offset.0)),
        _ => None,
    }
}

fn ignored(error: &dyn std::fmt::Display) -> String {
    format!("{error}; debugging information ignored")
}

/// Reads that one query may do. The largest units in the wild have some ten million attributes.
fn query_budget(total: u64) -> u64 {
    ((16 << 20) + total / 4).min(64 << 20)
}

fn load_sections(
    elf: &Elf,
    fuel: &Arc<Fuel>,
    total: &mut u64,
) -> Result<Dwarf<SectionReader>, crate::Error> {
    Dwarf::load(|id| {
        let bytes = if is_needed(id) {
            elf.data_of(id.name())?
        } else {
            None
        }
        .unwrap_or_default();
        *total += bytes.len() as u64;
        if *total > MAX_TOTAL {
            return Err(elf.damaged("more than 2 GiB of debugging information"));
        }
        Ok(SectionReader::new(bytes, Arc::clone(fuel)))
    })
}

/// Locations of variables, types and macros say nothing about positions of code. `.debug_aranges` is left out as a second
/// opinion about the ranges of the units, which would have to be checked as well.
fn is_needed(id: SectionId) -> bool {
    matches!(
        id,
        SectionId::DebugAbbrev
            | SectionId::DebugAddr
            | SectionId::DebugInfo
            | SectionId::DebugLine
            | SectionId::DebugLineStr
            | SectionId::DebugRanges
            | SectionId::DebugRngLists
            | SectionId::DebugStr
            | SectionId::DebugStrOffsets
    )
}

fn depth(dwarf: &Dwarf<SectionReader>, header: &UnitHeader<SectionReader>) -> gimli::Result<Depth> {
    let abbreviations = dwarf.abbreviations(header)?;
    let mut entries = header.entries_raw(&abbreviations, None)?;
    while !entries.is_empty() {
        if entries.next_depth() > MAX_DEPTH {
            return Ok(Depth::Excessive);
        }
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(Depth::Bounded)
}
