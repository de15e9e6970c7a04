//! What is watched: functions that were named, or the callees of one function.

use darc_process::modules::CodeRef;
use darc_tracer::addr::TargetAddr;

use crate::session::watching::History;

/// What an item is counted by: the same item later goes on in the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    /// A function, at its entry.
    Entry(CodeRef),
    /// A callee in a function on a path.
    Callee(CodeRef, Option<u32>, CodeRef),
    /// An indirect call: where it is in the function.
    Site(CodeRef, Option<u32>, Offset),
}

/// Where an instruction is: its distance from the function's entry, which stays when the library is loaded elsewhere.
/// Cold parts may lie before the entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Offset(i64);

impl Offset {
    pub(super) fn of(addr: u64, entry: TargetAddr) -> Offset {
        Offset(addr.wrapping_sub(entry.0) as i64)
    }
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        write!(f, "{sign}{:#x}", self.0.unsigned_abs())
    }
}

/// Something that is watched.
#[derive(Debug)]
pub struct Item {
    /// What it is called.
    pub name: String,
    /// The function, where that is known.
    pub(super) place: Option<CodeRef>,
    pub(super) slot: u32,
    pub(super) sites: Vec<Offset>,
    /// What it did.
    pub history: History,
}

/// The functions that were named, or what one function calls.
#[derive(Debug)]
pub(super) struct Level {
    /// The function that was stepped into; none for those that were named.
    pub(super) inside: Option<Inside>,
    pub(super) items: Vec<Item>,
}

#[derive(Debug)]
pub(super) struct Inside {
    pub(super) name: String,
    pub(super) place: CodeRef,
    pub(super) parent: Option<u32>,
    /// Which of the items of the level above.
    pub(super) slot: u32,
}
