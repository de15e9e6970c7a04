//! Source positions and inlined functions, from DWARF 4 and 5. Positions of addresses come from addr2line; the searches the
//! other way round (line to address, inlined copies of a function) walk the entries here.

use std::collections::HashSet;
use std::sync::Arc;

use addr2line::{Context, LookupContinuation, LookupResult};
use gimli::{
    AttributeValue, DwAt, Dwarf, Reader, Section as _, UnitHeader, UnitRef, UnitSectionOffset,
};

use crate::addr::FileAddr;
use crate::debugfile::{self, DebugSearch};
use crate::demangle::demangle;
use crate::elf::Elf;
use crate::reader::{Fuel, SectionReader};
use crate::spec;

/// One function of an inline chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Demangled.
    pub function: String,
    /// Source file, with its directory as the compiler recorded it.
    pub file: Option<String>,
    /// Line, from 1 on.
    pub line: Option<u32>,
}

/// A place where a function's body was put in the stead of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedCopy {
    /// The function that contains the copy, demangled.
    pub caller: String,
    /// Source file of the replaced call.
    pub file: Option<String>,
    /// Line of the replaced call.
    pub line: Option<u32>,
}

/// A frame whose function may have no name in the debugging information.
pub(crate) struct UnnamedFrame {
    pub(crate) name: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

/// An address that belongs to a searched line.
#[derive(Clone, Debug)]
pub(crate) struct LineAddr {
    pub(crate) addr: FileAddr,
    pub(crate) line: u32,
}

/// All sections of a file together; more is left unread.
const MAX_TOTAL: u64 = 2 << 30;
/// Entries nest at most this deep; addr2line recurses over them.
const MAX_DEPTH: isize = 256;
/// At most this many units may claim one address.
const MAX_OVERLAP: usize = 64;
/// Inline chains are cut off here.
const MAX_FRAMES: usize = 256;
/// Inlined copies and line addresses are collected up to this number.
const MAX_FOUND: usize = 10_000;
/// Follow at most this many references from an entry to the one that has its name.
const MAX_ORIGINS: usize = 16;

/// The debugging information of one file.
pub(crate) struct Lines {
    dwarf: Arc<Dwarf<SectionReader>>,
    context: Context<SectionReader>,
    units: Vec<UnitSummary>,
    fuel: Arc<Fuel>,
    total: u64,
}

struct UnitSummary {
    header: UnitHeader<SectionReader>,
    /// Empty when the unit does not say.
    ranges: Vec<gimli::Range>,
    depth: Depth,
}

impl UnitSummary {
    fn start(&self) -> usize {
        self.header.debug_info_offset().map_or(0, |offset| offset.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Unchecked,
    Bounded,
    Excessive,
}

impl Lines {
    /// Reads the sections of `elf`, and those of its dwz supplement.
    pub(crate) fn load(
        elf: &Elf,
        search: &DebugSearch,
        warn: &mut dyn FnMut(String),
    ) -> Result<Lines, String> {
        let failed =
            |error: &dyn std::fmt::Display| format!("{error}; debugging information ignored");
        let fuel = Arc::new(Fuel::default());
        let mut total = 0;
        let mut dwarf = load_dwarf(elf, &fuel, &mut total).map_err(|error| failed(&error))?;
        if let Some(supplement) = debugfile::find_supplement(elf, search, warn) {
            match load_dwarf(&supplement, &fuel, &mut total) {
                Ok(supplement) => dwarf.set_sup(supplement),
                Err(error) => warn(failed(&error)),
            }
        }
        let mut lines =
            Lines::index(Arc::new(dwarf), Arc::clone(&fuel), total).map_err(|error| {
                failed(&format!(
                    "{}: damaged debugging information ({error})",
                    crate::demangle::escape(&elf.path().to_string_lossy())
                ))
            })?;
        lines.units.shrink_to_fit();
        Ok(lines)
    }

    fn index(
        dwarf: Arc<Dwarf<SectionReader>>,
        fuel: Arc<Fuel>,
        total: u64,
    ) -> gimli::Result<Lines> {
        fuel.set(query_budget(total));
        let mut units = Vec::new();
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let skipped = matches!(
                header.type_(),
                gimli::UnitType::Partial | gimli::UnitType::Type { .. }
            );
            let Ok(unit) = dwarf.unit(header.clone()) else {
                continue;
            };
            let mut ranges = Vec::new();
            if !skipped && let Ok(mut found) = dwarf.unit_ranges(&unit) {
                while let Ok(Some(range)) = found.next() {
                    ranges.push(range);
                }
            }
            units.push(UnitSummary {
                header,
                ranges,
                depth: if skipped {
                    Depth::Bounded
                } else {
                    Depth::Unchecked
                },
            });
        }
        fuel.set(query_budget(total));
        let context = Context::from_arc_dwarf(Arc::clone(&dwarf))?;
        Ok(Lines {
            dwarf,
            context,
            units,
            fuel,
            total,
        })
    }

    /// The inline chain at an address, innermost first.
    pub(crate) fn frames(&mut self, addr: FileAddr) -> gimli::Result<Vec<UnnamedFrame>> {
        self.fuel.set(query_budget(self.total));
        // addr2line asks for the address behind it.
        if addr.0 == u64::MAX || !self.is_bounded(addr.0)? {
            return Ok(Vec::new());
        }
        let mut lookup = self.context.find_frames(addr.0);
        let mut found = loop {
            match lookup {
                LookupResult::Output(found) => break found?,
                // Split DWARF (`.dwo`): what the main file says must do.
                LookupResult::Load { continuation, .. } => lookup = continuation.resume(None),
            }
        };
        let mut frames = Vec::new();
        while let Some(frame) = found.next()? {
            let name = frame
                .function
                .and_then(|name| Some(demangle(&name.raw_name().ok()?)));
            let location = frame.location;
            frames.push(UnnamedFrame {
                name,
                file: location
                    .as_ref()
                    .and_then(|location| location.file)
                    .map(str::to_owned),
                line: location
                    .and_then(|location| location.line)
                    .filter(|&line| line > 0),
            });
            if frames.len() == MAX_FRAMES {
                break;
            }
        }
        Ok(frames)
    }

    /// Whether the units that may contain an address are shaped so that addr2line can take them.
    fn is_bounded(&mut self, addr: u64) -> gimli::Result<bool> {
        let claims = |unit: &&mut UnitSummary| {
            unit.ranges.is_empty()
                || unit
                    .ranges
                    .iter()
                    .any(|range| range.begin <= addr && addr < range.end)
        };
        let mut overlap = 0;
        for unit in self.units.iter_mut().filter(claims) {
            if !unit.ranges.is_empty() {
                overlap += 1;
            }
            if unit.depth == Depth::Unchecked {
                unit.depth = depth(&self.dwarf, &unit.header)?;
            }
            if unit.depth == Depth::Excessive || overlap > MAX_OVERLAP {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The addresses where statements of a line begin; of the next line that has any, if this one has none. `file` matches
    /// whole components from the end of the recorded path.
    pub(crate) fn addresses_of(&mut self, file: &str, line: u32) -> gimli::Result<Vec<LineAddr>> {
        self.fuel.set(self.scan_budget());
        let mut found: Vec<LineAddr> = Vec::new();
        let mut programs = HashSet::new();
        for summary in &self.units {
            let Ok(unit) = self.dwarf.unit(summary.header.clone()) else {
                continue;
            };
            let unit = UnitRef::new(&self.dwarf, &unit);
            let Some(program) = unit.line_program.clone() else {
                continue;
            };
            if !programs.insert(program.header().offset().0) {
                continue;
            }
            let mut wanted: Vec<u64> = Vec::new();
            for (index, entry) in (0u64..).zip(program.header().file_names()) {
                let index = if program.header().version() >= 5 {
                    index
                } else {
                    index + 1
                };
                let path = file_path(unit, program.header(), entry);
                if let Some(path) = path
                    && is_path_suffix(&path, file)
                {
                    wanted.push(index);
                }
            }
            if !wanted.is_empty() {
                rows_of(program, &wanted, line, &mut found)?;
            }
        }
        let best = found.iter().map(|found| found.line).min();
        found.retain(|found| Some(found.line) == best);
        Ok(found)
    }

    /// The inlined copies of the functions that `name` means.
    pub(crate) fn inlined_copies(&mut self, name: &str) -> gimli::Result<Vec<InlinedCopy>> {
        let ident = spec::last_identifier(name).to_owned();
        let is_there = |section: &SectionReader| contains(section.bytes(), ident.as_bytes());
        if ident.is_empty()
            || !(is_there(self.dwarf.debug_str.reader())
                || is_there(self.dwarf.debug_info.reader()))
        {
            return Ok(Vec::new());
        }
        let mut origins = HashSet::new();
        self.walk(|_, entry, _| {
            if entry.is_function() && entry.is_called(name, &ident) {
                origins.insert(entry.offset);
            }
        })?;
        if origins.is_empty() {
            return Ok(Vec::new());
        }
        // An abstract instance may have its name in the declaration that it completes.
        let mut completed = Vec::new();
        self.walk(|_, entry, _| {
            if entry.is_function() && entry.origin.is_some_and(|origin| origins.contains(&origin)) {
                completed.push(entry.offset);
            }
        })?;
        origins.extend(completed);
        let mut copies = Vec::new();
        self.walk(|unit, entry, caller| {
            let matches = entry.tag == gimli::DW_TAG_inlined_subroutine
                && entry.origin.is_some_and(|origin| origins.contains(&origin));
            if matches && copies.len() < MAX_FOUND {
                let caller = caller.and_then(|caller| self.name_of(caller));
                let program = unit.line_program.as_ref().map(|program| program.header());
                let file = program
                    .zip(entry.call_file)
                    .and_then(|(header, index)| file_path(unit, header, header.file(index)?));
                copies.push(InlinedCopy {
                    caller: caller.unwrap_or_else(|| "?".to_owned()),
                    file,
                    line: entry.call_line,
                });
            }
        })?;
        Ok(copies)
    }

    /// Visits every entry of every unit with the concrete function around it.
    fn walk(
        &self,
        mut visit: impl FnMut(UnitRef<'_, SectionReader>, &Entry, Option<UnitSectionOffset>),
    ) -> gimli::Result<()> {
        self.fuel.set(self.scan_budget());
        for summary in &self.units {
            let Ok(unit) = self.dwarf.unit(summary.header.clone()) else {
                continue;
            };
            let unit = UnitRef::new(&self.dwarf, &unit);
            let mut around: Vec<(isize, UnitSectionOffset)> = Vec::new();
            let mut entries = unit.entries_raw(None)?;
            while !entries.is_empty() {
                let depth = entries.next_depth();
                let offset = entries.next_offset();
                let Some(abbreviation) = entries.read_abbreviation()? else {
                    continue;
                };
                let mut entry =
                    Entry::new(abbreviation.tag(), offset.to_unit_section_offset(&unit));
                if !entry.is_relevant() {
                    entries.skip_attributes(abbreviation.attributes())?;
                    continue;
                }
                for spec in abbreviation.attributes() {
                    let attribute = entries.read_attribute(*spec)?;
                    entry.note(unit, attribute.name(), attribute.value());
                }
                while around.last().is_some_and(|(outer, _)| *outer >= depth) {
                    around.pop();
                }
                visit(unit, &entry, around.last().map(|(_, offset)| *offset));
                if entry.is_function() && around.len() < MAX_ORIGINS {
                    around.push((depth, entry.offset));
                }
            }
        }
        Ok(())
    }

    /// The demangled name of the function entry at an offset.
    fn name_of(&self, mut offset: UnitSectionOffset) -> Option<String> {
        for _ in 0..MAX_ORIGINS {
            let at = self
                .units
                .partition_point(|unit| unit.start() <= offset.0)
                .checked_sub(1)?;
            let unit = self.dwarf.unit(self.units.get(at)?.header.clone()).ok()?;
            let unit = UnitRef::new(&self.dwarf, &unit);
            let mut entries = unit.entries_raw(Some(offset.to_unit_offset(&unit)?)).ok()?;
            let abbreviation = entries.read_abbreviation().ok()??;
            let mut entry = Entry::new(abbreviation.tag(), offset);
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec).ok()?;
                entry.note(unit, attribute.name(), attribute.value());
            }
            if let Some(name) = entry.linkage_name.or(entry.name) {
                return Some(demangle(&name.to_string_lossy().ok()?));
            }
            offset = entry.origin?;
        }
        None
    }

    fn scan_budget(&self) -> u64 {
        query_budget(self.total).max(self.total)
    }
}

/// Reads that one query may do. The largest units in the wild have some ten million attributes.
fn query_budget(total: u64) -> u64 {
    ((16 << 20) + total / 4).min(64 << 20)
}

fn load_dwarf(
    elf: &Elf,
    fuel: &Arc<Fuel>,
    total: &mut u64,
) -> Result<Dwarf<SectionReader>, crate::Error> {
    Dwarf::load(|id| {
        let wanted = match id {
            // Not needed for positions, or (the last) a second opinion about the ranges of units that has to be trusted.
            gimli::SectionId::DebugLoc
            | gimli::SectionId::DebugLocLists
            | gimli::SectionId::DebugTypes
            | gimli::SectionId::DebugMacinfo
            | gimli::SectionId::DebugMacro
            | gimli::SectionId::DebugNames
            | gimli::SectionId::DebugAranges => None,
            id => elf.data_of(id.name())?,
        };
        let bytes = wanted.unwrap_or_default();
        *total += bytes.len() as u64;
        if *total > MAX_TOTAL {
            return Err(elf.damaged("more than 2 GiB of debugging information"));
        }
        Ok(SectionReader::new(bytes, Arc::clone(fuel)))
    })
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

/// What a walk notes about an entry.
struct Entry {
    tag: gimli::DwTag,
    offset: UnitSectionOffset,
    name: Option<SectionReader>,
    linkage_name: Option<SectionReader>,
    origin: Option<UnitSectionOffset>,
    call_file: Option<u64>,
    call_line: Option<u32>,
}

impl Entry {
    fn new(tag: gimli::DwTag, offset: UnitSectionOffset) -> Entry {
        Entry {
            tag,
            offset,
            name: None,
            linkage_name: None,
            origin: None,
            call_file: None,
            call_line: None,
        }
    }

    fn is_function(&self) -> bool {
        self.tag == gimli::DW_TAG_subprogram
    }

    fn is_relevant(&self) -> bool {
        self.is_function() || self.tag == gimli::DW_TAG_inlined_subroutine
    }

    fn note(
        &mut self,
        unit: UnitRef<'_, SectionReader>,
        attribute: DwAt,
        value: AttributeValue<SectionReader>,
    ) {
        match attribute {
            gimli::DW_AT_name => self.name = unit.attr_string(value).ok(),
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                self.linkage_name = unit.attr_string(value).ok()
            }
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                self.origin = reference(unit, &value)
            }
            gimli::DW_AT_call_file => {
                self.call_file = match value {
                    AttributeValue::FileIndex(index) => Some(index),
                    value => value.udata_value(),
                }
            }
            gimli::DW_AT_call_line => {
                self.call_line = value
                    .udata_value()
                    .and_then(|line| u32::try_from(line).ok())
            }
            _ => {}
        }
    }

    /// Whether the entry is a function that `name` means: by its mangled name, or, where there is none, by its plain one.
    fn is_called(&self, name: &str, ident: &str) -> bool {
        let text = |part: &SectionReader| String::from_utf8_lossy(part.bytes()).into_owned();
        match (&self.linkage_name, &self.name) {
            (Some(linkage), _) => {
                contains(linkage.bytes(), ident.as_bytes()) && spec::is_called(&text(linkage), name)
            }
            (None, Some(plain)) => plain.bytes() == name.as_bytes(),
            (None, None) => false,
        }
    }
}

fn reference(
    unit: UnitRef<'_, SectionReader>,
    value: &AttributeValue<SectionReader>,
) -> Option<UnitSectionOffset> {
    match value {
        AttributeValue::UnitRef(offset) => Some(offset.to_unit_section_offset(&unit)),
        AttributeValue::DebugInfoRef(offset) => Some(UnitSectionOffset(offset.0)),
        _ => None,
    }
}

fn file_path(
    unit: UnitRef<'_, SectionReader>,
    header: &gimli::LineProgramHeader<SectionReader>,
    file: &gimli::FileEntry<SectionReader>,
) -> Option<String> {
    let text = |value| {
        unit.attr_string(value)
            .ok()?
            .to_string_lossy()
            .ok()
            .map(std::borrow::Cow::into_owned)
    };
    let name = text(file.path_name())?;
    if name.starts_with('/') {
        return Some(name);
    }
    let directory = file.directory(header).and_then(text).unwrap_or_default();
    let base = unit
        .comp_dir
        .as_ref()
        .and_then(|dir| dir.to_string_lossy().ok())
        .unwrap_or_default();
    let parts = [&*base, &directory, &name];
    let path = parts
        .iter()
        .fold(std::path::PathBuf::new(), |path, part| path.join(part));
    path.to_str().map(str::to_owned)
}

/// Whether the last components of `path` are those of `suffix`.
fn is_path_suffix(path: &str, suffix: &str) -> bool {
    std::path::Path::new(path).ends_with(suffix)
}

/// Collects the rows of a program with the smallest line that is not before the wanted one.
fn rows_of(
    program: gimli::IncompleteLineProgram<SectionReader>,
    files: &[u64],
    line: u32,
    found: &mut Vec<LineAddr>,
) -> gimli::Result<()> {
    let mut rows = program.rows();
    while let Some((_, row)) = rows.next_row()? {
        let Some(at) = row.line().and_then(|at| u32::try_from(at.get()).ok()) else {
            continue;
        };
        if !files.contains(&row.file_index()) {
            continue;
        }
        if row.end_sequence() || !row.is_stmt() || at < line {
            continue;
        }
        let best = found.last().map(|found| found.line);
        if best.is_some_and(|best| at > best) || found.len() >= MAX_FOUND {
            continue;
        }
        if best.is_some_and(|best| at < best) {
            found.clear();
        }
        found.push(LineAddr {
            addr: FileAddr(row.address()),
            line: at,
        });
    }
    Ok(())
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    let Some((&first, rest)) = needle.split_first() else {
        return true;
    };
    let mut bytes = bytes;
    while let Some(at) = bytes.iter().position(|&byte| byte == first) {
        bytes = &bytes[at + 1..];
        if bytes.starts_with(rest) {
            return true;
        }
    }
    false
}
