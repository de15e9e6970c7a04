//! Inlined copies of a function: where its body stands instead of a call. DWARF records them at the place of each copy, so
//! that all entries have to be looked at.

use std::collections::HashSet;

use gimli::{AttributeValue, DwAt, DwTag, Reader, Section, UnitRef, UnitSectionOffset};

use crate::demangle::demangle;
use crate::dwarf::{DebugInfo, QueryError, reference};
use crate::lines::file_path;
use crate::names;
use crate::reader::SectionReader;

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

/// Copies are collected up to this number.
const MAX_COPIES: usize = 10_000;
/// Follow at most this many references from an entry to the one that has its name.
const MAX_ORIGINS: usize = 16;
/// Enclosing functions, classes and namespaces beyond this depth are not remembered.
const MAX_SCOPES: usize = 64;

/// All inlined copies of the functions that `name` means. Empty for names without a plain identifier (operators, closures),
/// as those cannot be searched in reasonable time.
pub(crate) fn copies(info: &DebugInfo, name: &str) -> Result<Vec<InlinedCopy>, QueryError> {
    let ident = names::last_identifier(name);
    let occurs = |section: &SectionReader| contains(section.bytes(), ident.as_bytes());
    let (strings, entries) = (
        info.dwarf.debug_str.reader(),
        info.dwarf.debug_info.reader(),
    );
    if ident.is_empty() || !(occurs(strings) || occurs(entries)) {
        return Ok(Vec::new());
    }
    let mut origins = HashSet::new();
    walk(info, |_, entry, scopes| {
        if entry.is_function() && entry.is_called(name, &ident, scopes) {
            origins.insert(entry.offset);
        }
    })?;
    if origins.is_empty() {
        return Ok(Vec::new());
    }
    // An abstract instance may have its name in the declaration that it completes.
    let mut completed = Vec::new();
    walk(info, |_, entry, _| {
        if entry.is_function() && entry.origin.is_some_and(|origin| origins.contains(&origin)) {
            completed.push(entry.offset);
        }
    })?;
    origins.extend(completed);
    let mut copies = Vec::new();
    walk(info, |unit, entry, scopes| {
        let is_copy = entry.tag == gimli::DW_TAG_inlined_subroutine
            && entry.origin.is_some_and(|origin| origins.contains(&origin));
        if is_copy && copies.len() < MAX_COPIES {
            copies.push(copy(info, unit, entry, scopes));
        }
    })?;
    Ok(copies)
}

fn copy(
    info: &DebugInfo,
    unit: UnitRef<'_, SectionReader>,
    entry: &Entry,
    scopes: &[Scope],
) -> InlinedCopy {
    let caller = scopes
        .iter()
        .rev()
        .find(|scope| scope.tag == gimli::DW_TAG_subprogram);
    let caller = caller.and_then(|caller| name_of(info, caller.offset));
    let header = unit.line_program.as_ref().map(|program| program.header());
    let file = header
        .zip(entry.call_file)
        .and_then(|(header, number)| file_path(unit, header, header.file(number)?));
    InlinedCopy {
        caller: caller.unwrap_or_else(|| "?".to_owned()),
        file,
        line: entry.call_line,
    }
}

/// An entry around the visited one that gives its name or its code.
struct Scope {
    depth: isize,
    tag: DwTag,
    offset: UnitSectionOffset,
    name: Option<SectionReader>,
}

/// Visits every function, inlined copy and scope of every unit, with the scopes around it.
fn walk(
    info: &DebugInfo,
    mut visit: impl FnMut(UnitRef<'_, SectionReader>, &Entry, &[Scope]),
) -> gimli::Result<()> {
    info.each_unit(|unit| {
        let mut scopes: Vec<Scope> = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let (depth, offset) = (entries.next_depth(), entries.next_offset());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            let mut entry = Entry::new(abbreviation.tag(), offset.to_unit_section_offset(&unit));
            if !entry.is_function() && !entry.is_copy() && !entry.is_named_scope() {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                entry.note(unit, attribute.name(), attribute.value());
            }
            while scopes.last().is_some_and(|scope| scope.depth >= depth) {
                scopes.pop();
            }
            visit(unit, &entry, &scopes);
            if !entry.is_copy() && abbreviation.has_children() && scopes.len() < MAX_SCOPES {
                let Entry {
                    tag, offset, name, ..
                } = entry;
                scopes.push(Scope {
                    depth,
                    tag,
                    offset,
                    name,
                });
            }
        }
        Ok(())
    })
}

/// The demangled name of the function entry at an offset.
fn name_of(info: &DebugInfo, mut offset: UnitSectionOffset) -> Option<String> {
    for _ in 0..MAX_ORIGINS {
        let summary = info.unit_of(offset)?;
        let unit = info.dwarf.unit(summary.header.clone()).ok()?;
        let unit = UnitRef::new(&info.dwarf, &unit);
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

/// What a walk notes about an entry.
struct Entry {
    tag: DwTag,
    offset: UnitSectionOffset,
    name: Option<SectionReader>,
    linkage_name: Option<SectionReader>,
    origin: Option<UnitSectionOffset>,
    call_file: Option<u64>,
    call_line: Option<u32>,
}

impl Entry {
    fn new(tag: DwTag, offset: UnitSectionOffset) -> Entry {
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

    fn is_copy(&self) -> bool {
        self.tag == gimli::DW_TAG_inlined_subroutine
    }

    fn is_named_scope(&self) -> bool {
        matches!(
            self.tag,
            gimli::DW_TAG_namespace
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_union_type
                | gimli::DW_TAG_enumeration_type
        )
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
                self.linkage_name = unit.attr_string(value).ok();
            }
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                self.origin = reference(unit, &value);
            }
            gimli::DW_AT_call_file => {
                self.call_file = match value {
                    AttributeValue::FileIndex(number) => Some(number),
                    value => value.udata_value(),
                };
            }
            gimli::DW_AT_call_line => {
                self.call_line = value
                    .udata_value()
                    .and_then(|line| u32::try_from(line).ok());
            }
            _ => {}
        }
    }

    /// Whether the entry is a function that `name` means: by its mangled name, or, where there is none, by the names around
    /// it.
    fn is_called(&self, name: &str, ident: &str, scopes: &[Scope]) -> bool {
        let text = |part: &SectionReader| String::from_utf8_lossy(part.bytes()).into_owned();
        match (&self.linkage_name, &self.name) {
            (Some(linkage), _) => {
                contains(linkage.bytes(), ident.as_bytes())
                    && names::is_called(&text(linkage), name)
            }
            (None, Some(plain)) => {
                contains(plain.bytes(), ident.as_bytes()) && {
                    let around = scopes.iter().filter_map(|scope| scope.name.as_ref());
                    let parts: Vec<String> = around.chain([plain]).map(text).collect();
                    names::is_called(&parts.join("::"), name)
                }
            }
            (None, None) => false,
        }
    }
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
