//! The frames of coroutines of C++, as gcc describes them since version 12: a structure that a function of the coroutine gets a pointer
//! to (`_Z5servei.Frame`), with members that begin with `_Coro_` (gcc's `gcc/cp/coroutines.cc`).

use gimli::UnitSectionOffset;

use super::{Entry, function_at, read};
use crate::addr::FileAddr;
use crate::dwarf::{DebugInfo, QueryError};

/// Where the frame of a coroutine keeps what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoroutineFrame {
    /// Where the number of the place is at which it goes on (`_Coro_resume_index`), in bytes; two bytes.
    pub index_at: u64,
    /// The lines at which the coroutine itself begins and ends, as far as they are told: gcc gives them to code that has none of its
    /// own.
    pub lines: [Option<u32>; 2],
}

/// The frame of the coroutine that the function at an address is of; nothing where that is not told, or not in this way.
pub(crate) fn frame(
    info: &DebugInfo,
    addr: FileAddr,
) -> Result<Option<CoroutineFrame>, QueryError> {
    let Some(function) = function_at(info, addr)? else {
        return Ok(None);
    };
    let entries = read(info, function, 1)?;
    let mut entries = entries.iter();
    let parameter = entries.find(|entry| entry.tag == gimli::DW_TAG_formal_parameter);
    let Some(pointer) = parameter.and_then(|entry| entry.type_at) else {
        return Ok(None);
    };
    let Some(structure) = pointed_to(info, pointer)? else {
        return Ok(None);
    };
    Ok(described(info, &read(info, structure, 1)?))
}

/// What a pointer that may not change points to.
fn pointed_to(
    info: &DebugInfo,
    mut at: UnitSectionOffset,
) -> Result<Option<UnitSectionOffset>, QueryError> {
    /// `const` and the like around it.
    const MOST: usize = 4;
    for _ in 0..MOST {
        let entry = read(info, at, 0)?.pop();
        let Some((tag, Some(to))) = entry.map(|entry| (entry.tag, entry.type_at)) else {
            return Ok(None);
        };
        if tag == gimli::DW_TAG_pointer_type {
            return Ok(Some(to));
        }
        at = to;
    }
    Ok(None)
}

fn described(info: &DebugInfo, entries: &[Entry]) -> Option<CoroutineFrame> {
    let structure = entries.first()?;
    let member = |name: &str| {
        entries.iter().find(|entry| {
            entry.depth == 1
                && entry.tag == gimli::DW_TAG_member
                && entry.name.as_deref() == Some(name)
        })
    };
    let resumed_by = member("_Coro_resume_fn")?;
    let index = member("_Coro_resume_index")?;
    let size = super::size_of(info, index.type_at?)?;
    let index_at = index.location?;
    let is_known = resumed_by.location == Some(0)
        && size == 2
        && index_at
            .checked_add(size)
            .is_some_and(|end| Some(end) <= structure.byte_size);
    is_known.then_some(CoroutineFrame {
        index_at,
        lines: [resumed_by.line, structure.line],
    })
}
