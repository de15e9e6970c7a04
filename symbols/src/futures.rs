//! The state machines that the Rust compiler makes of async functions and blocks: where a future keeps its state, and at which
//! line each state waits.
//!
//! A function that polls such a future gets a pointer to a structure with a variant for each state (rustc's
//! `DebuginfoKind` of coroutines on targets with DWARF): 0 before the first poll, 1 after the end, 2 after a panic, and from 3 on one
//! for each `.await`, declared at its line.

pub(crate) mod coroutines;

use gimli::{AttributeValue, DwTag, UnitRef, UnitSectionOffset};

use crate::addr::FileAddr;
use crate::dwarf::{DebugInfo, QueryError, reference};
use crate::lines::file_path;
use crate::reader::SectionReader;

/// A structure with more entries is given up.
const MOST_ENTRIES: usize = 1 << 16;
/// A function with more parts is not looked at to its end.
const MOST_PARTS: usize = 64;
/// So often an entry may say that another one has its name.
const MOST_ORIGINS: usize = 16;
/// How deep below a structure the places where it waits are.
const DEPTH: isize = 3;

/// What a future that an async function or block returns looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMachine {
    /// Bytes of the future.
    pub size: u64,
    /// Where in it the state is, in bytes.
    pub state_at: u64,
    /// Bytes of the state: 1, 2 or 4.
    pub state_size: u64,
    /// Where it may wait, by the state, in order.
    pub awaits: Vec<Await>,
}

/// A place at which a future waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Await {
    /// The state while it does.
    pub state: u64,
    /// The source file.
    pub file: Option<String>,
    /// The line, from 1 on.
    pub line: u32,
}

/// What the debugging information says of a function that the compiler may have made of an async function or block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// It is made of something else.
    Other,
    /// It polls the futures of an async function; nothing where it does not describe these, or in an unknown way.
    Function(Option<StateMachine>),
    /// Those of an async block or closure.
    Block(Option<StateMachine>),
}

/// What the function at an address is made of; nothing where that is not told.
pub(crate) fn body(info: &DebugInfo, addr: FileAddr) -> Result<Option<Body>, QueryError> {
    let Some(function) = function_at(info, addr)? else {
        return Ok(None);
    };
    let entries = read(info, function, 1)?;
    let made = entries.first().map_or(Made::Otherwise, |it| it.made);
    let machine = match made {
        Made::Otherwise => return Ok(Some(Body::Other)),
        Made::OfFunction | Made::OfBlock => polled(info, &entries)?,
    };
    Ok(Some(match made {
        Made::OfFunction => Body::Function(machine),
        _ => Body::Block(machine),
    }))
}

/// The state machine that a function polls which has these entries.
fn polled(info: &DebugInfo, entries: &[Entry]) -> Result<Option<StateMachine>, QueryError> {
    let types = entries
        .iter()
        .filter(|entry| entry.tag == gimli::DW_TAG_formal_parameter);
    for parameter in types.filter_map(|entry| entry.type_at) {
        if let Some(future) = pinned(info, parameter)? {
            return machine(info, &read(info, future, DEPTH)?);
        }
    }
    Ok(None)
}

/// The entry of the function that begins at an address: the one that has its name and parameters.
fn function_at(info: &DebugInfo, addr: FileAddr) -> Result<Option<UnitSectionOffset>, QueryError> {
    let mut found = None;
    info.each_unit_around(addr.0, |unit| {
        let mut entries = unit.entries_raw(None)?;
        while found.is_none() && !entries.is_empty() {
            let at = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            if abbreviation.tag() != gimli::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut entry = Entry::new(abbreviation.tag(), at.to_unit_section_offset(&unit));
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                entry.note(unit, attribute.name(), attribute.value())?;
            }
            if entry.begins.contains(&addr.0) {
                found = Some(entry);
            }
        }
        Ok(())
    })?;
    let Some(mut entry) = found else {
        return Ok(None);
    };
    for _ in 0..MOST_ORIGINS {
        let Some(origin) = entry.origin else { break };
        match read(info, origin, 0)?.pop() {
            Some(next) => entry = next,
            None => break,
        }
    }
    Ok(Some(entry.offset))
}

/// The structure of a future that a parameter of type `Pin<&mut Future>` points to, if it is that of an async function or block.
fn pinned(
    info: &DebugInfo,
    pin: UnitSectionOffset,
) -> Result<Option<UnitSectionOffset>, QueryError> {
    let pin = read(info, pin, 1)?;
    let is_structure = |entry: &Entry| entry.tag == gimli::DW_TAG_structure_type;
    if !pin.first().is_some_and(is_structure) {
        return Ok(None);
    }
    let mut members = pin.iter();
    let member = members.find(|entry| entry.tag == gimli::DW_TAG_member);
    let Some(pointer) = member.and_then(|member| member.type_at) else {
        return Ok(None);
    };
    let pointer = read(info, pointer, 0)?;
    let pointer = pointer.first();
    let pointer = pointer.filter(|entry| entry.tag == gimli::DW_TAG_pointer_type);
    let Some(future) = pointer.and_then(|pointer| pointer.type_at) else {
        return Ok(None);
    };
    let structure = read(info, future, 0)?;
    let structure = structure.first();
    let is_future = structure.is_some_and(|it| is_structure(it) && it.made != Made::Otherwise);
    Ok(is_future.then_some(future))
}

/// The state machine that the entries of a structure describe. What contradicts itself is none.
fn machine(info: &DebugInfo, entries: &[Entry]) -> Result<Option<StateMachine>, QueryError> {
    let is_part = |entry: &Entry| entry.depth == 1 && entry.tag == gimli::DW_TAG_variant_part;
    let Some(part) = entries.iter().position(is_part) else {
        return Ok(None);
    };
    let below = entries[part + 1..].iter();
    let below: Vec<&Entry> = below.take_while(|entry| entry.depth > 1).collect();
    let mut awaits = Vec::new();
    let mut is_known = [false; 3];
    let mut value = None;
    for entry in &below {
        match (entry.depth, entry.tag) {
            (2, gimli::DW_TAG_variant) => value = entry.value,
            (3, gimli::DW_TAG_member) => {
                let (Some(state), Some(at)) = (value.take(), entry.type_at) else {
                    return Ok(None);
                };
                let variant = read(info, at, 0)?;
                let name = variant.first().and_then(|it| it.name.as_deref());
                match (state, name, entry.line) {
                    (0, Some("Unresumed"), _)
                    | (1, Some("Returned"), _)
                    | (2, Some("Panicked"), _) => is_known[state as usize] = true,
                    (3.., Some(name), Some(line)) if name.starts_with("Suspend") => {
                        awaits.push(Await {
                            state,
                            file: entry.file.clone(),
                            line,
                        });
                    }
                    _ => return Ok(None),
                }
            }
            _ => {}
        }
    }
    awaits.sort_by_key(|found| found.state);
    let is_once = awaits.windows(2).all(|pair| pair[0].state < pair[1].state);
    let is_state = |entry: &&&Entry| entry.depth == 2 && entry.tag == gimli::DW_TAG_member;
    let state = below.iter().find(is_state);
    Ok(match (is_known == [true; 3] && is_once, state) {
        (true, Some(state)) => placed(info, entries, state, awaits),
        _ => None,
    })
}

/// The same with where the state is, which lies within the future.
fn placed(
    info: &DebugInfo,
    entries: &[Entry],
    state: &Entry,
    awaits: Vec<Await>,
) -> Option<StateMachine> {
    let size = entries.first()?.byte_size?;
    let (state_at, state_size) = (state.location?, size_of(info, state.type_at?)?);
    let is_inside = state_at
        .checked_add(state_size)
        .is_some_and(|end| end <= size);
    (is_inside && matches!(state_size, 1 | 2 | 4)).then_some(StateMachine {
        size,
        state_at,
        state_size,
        awaits,
    })
}

/// An entry and those below it, as far as `depth` steps, in order.
fn read(info: &DebugInfo, at: UnitSectionOffset, depth: isize) -> Result<Vec<Entry>, QueryError> {
    let mut found = Vec::new();
    let Some(summary) = info.unit_of(at) else {
        return Ok(found);
    };
    let unit = info.dwarf.unit(summary.header.clone())?;
    let unit = UnitRef::new(&info.dwarf, &unit);
    let Some(from) = at.to_unit_offset(&unit) else {
        return Ok(found);
    };
    let mut entries = unit.entries_raw(Some(from))?;
    while !entries.is_empty() && found.len() < MOST_ENTRIES {
        let (at, below) = (entries.next_offset(), entries.next_depth());
        if below <= 0 && !found.is_empty() {
            break;
        }
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        if below > depth {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        let mut entry = Entry::new(abbreviation.tag(), at.to_unit_section_offset(&unit));
        entry.depth = below;
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            entry.note(unit, attribute.name(), attribute.value())?;
        }
        found.push(entry);
    }
    Ok(found)
}

/// Bytes of the type at an offset, where that says so itself.
fn size_of(info: &DebugInfo, at: UnitSectionOffset) -> Option<u64> {
    read(info, at, 0).ok()?.first()?.byte_size
}

/// What the compiler made a function or structure of, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    OfFunction,
    OfBlock,
    Otherwise,
}

impl Made {
    /// `{async_fn#0}`, `{async_fn_env#0}`, `{async_block#2}` …; generators that wait (`{async_gen_fn#0}`) are no futures.
    fn named(name: &str) -> Made {
        let of = name.strip_prefix("{async_");
        match of {
            Some(of) if of.starts_with("gen") => Made::Otherwise,
            Some(of) if of.starts_with("fn#") || of.starts_with("fn_env#") => Made::OfFunction,
            Some(_) => Made::OfBlock,
            None => Made::Otherwise,
        }
    }
}

/// What is noted of an entry.
struct Entry {
    tag: DwTag,
    offset: UnitSectionOffset,
    depth: isize,
    name: Option<String>,
    made: Made,
    /// The entry that has its name.
    origin: Option<UnitSectionOffset>,
    type_at: Option<UnitSectionOffset>,
    byte_size: Option<u64>,
    location: Option<u64>,
    /// Where its parts begin.
    begins: Vec<u64>,
    /// Of a variant: which one it is.
    value: Option<u64>,
    file: Option<String>,
    line: Option<u32>,
}

impl Entry {
    fn new(tag: DwTag, offset: UnitSectionOffset) -> Entry {
        Entry {
            tag,
            offset,
            depth: 0,
            name: None,
            made: Made::Otherwise,
            origin: None,
            type_at: None,
            byte_size: None,
            location: None,
            begins: Vec::new(),
            value: None,
            file: None,
            line: None,
        }
    }

    fn note(
        &mut self,
        unit: UnitRef<'_, SectionReader>,
        attribute: gimli::DwAt,
        value: AttributeValue<SectionReader>,
    ) -> gimli::Result<()> {
        match attribute {
            gimli::DW_AT_name => {
                let name = unit.attr_string(value)?;
                let name = String::from_utf8_lossy(name.bytes()).into_owned();
                self.made = Made::named(&name);
                self.name = Some(name);
            }
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                self.origin = reference(unit, &value);
            }
            gimli::DW_AT_type => self.type_at = reference(unit, &value),
            gimli::DW_AT_byte_size => self.byte_size = value.udata_value(),
            gimli::DW_AT_data_member_location => self.location = value.udata_value(),
            gimli::DW_AT_low_pc => self.begins.extend(unit.attr_address(value)?),
            gimli::DW_AT_ranges => self.note_ranges(unit, value)?,
            gimli::DW_AT_discr_value => self.value = value.udata_value(),
            gimli::DW_AT_decl_file => self.file = declared_in(unit, &value),
            gimli::DW_AT_decl_line => {
                let line = value.udata_value().filter(|&line| line > 0);
                self.line = line.and_then(|line| u32::try_from(line).ok());
            }
            _ => {}
        }
        Ok(())
    }

    fn note_ranges(
        &mut self,
        unit: UnitRef<'_, SectionReader>,
        value: AttributeValue<SectionReader>,
    ) -> gimli::Result<()> {
        let Some(mut ranges) = unit.attr_ranges(value)? else {
            return Ok(());
        };
        while let Some(range) = ranges.next()? {
            if self.begins.len() < MOST_PARTS {
                self.begins.push(range.begin);
            }
        }
        Ok(())
    }
}

fn declared_in(
    unit: UnitRef<'_, SectionReader>,
    value: &AttributeValue<SectionReader>,
) -> Option<String> {
    let number = match value {
        AttributeValue::FileIndex(number) => *number,
        value => value.udata_value()?,
    };
    let header = unit.line_program.as_ref()?.header();
    file_path(unit, header, header.file(number)?)
}
