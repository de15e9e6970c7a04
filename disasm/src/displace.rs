//! Which bytes of a function a jump may replace, and which instructions move because of it.
//!
//! A jump takes five bytes. A call site of fewer takes the instructions *before* it along, so that
//! the replaced bytes end where the call ends: calls that are under way return to an address that was
//! not touched. For the same reason nothing but the last instruction may be a call. At a system call
//! the bytes end where `syscall` begins, since threads blocked in it are restarted there.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Mnemonic};

use crate::blocks::direct_target;
use crate::relocate::{Immovable, movable};
use crate::{BranchInto, CallSite, Cfg, SiteKind, UnknownBranch};

/// Length of `jmp rel32` in bytes.
pub const JUMP_LEN: u64 = 5;

/// Instructions that a jump replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displacement {
    /// Address of the first byte that is replaced.
    pub start: u64,
    /// Address after the last; at least [`JUMP_LEN`] bytes from the start.
    pub end: u64,
    /// Positions of the instructions in [`Cfg::instructions`], the site's own (but not a `syscall`)
    /// included. Padding that is replaced behind a `ret` is not among them.
    pub instructions: Range<usize>,
}

/// Why there is no room for a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoRoom {
    /// Nothing is known to be at the address.
    #[error("there is no instruction at this address")]
    NoInstruction,
    /// The code before (at an entry: after) it does not run straight on for long enough.
    #[error("there is no room for a jump: {0:#x} ends the straight run of code")]
    TooShort(u64),
    /// Something leads between the instructions.
    #[error("{0:#x} branches between the instructions that a jump would replace")]
    BranchInside(u64),
    /// Something may lead between the instructions.
    #[error(
        "it is too short for a jump, and {0}, so it may lead between the instructions before it"
    )]
    Unknown(UnknownBranch),
    /// An instruction works only where it is.
    #[error("{0}")]
    Immovable(Immovable),
}

/// The bytes to replace for a call site.
///
/// # Errors
/// Why there is no room.
pub fn at_site(cfg: &Cfg, site: &CallSite) -> Result<Displacement, NoRoom> {
    match site.kind {
        SiteKind::Call(_) | SiteKind::TailJump { .. } => ending_with(cfg, site.addr),
        SiteKind::Syscall { .. } => {
            let at = cfg.instruction_at(site.addr).ok_or(NoRoom::NoInstruction)?;
            backwards(cfg, at..at)
        }
    }
}

/// The bytes to replace so that they end with the instruction at `addr`: a call, a jump, a `ret`.
///
/// # Errors
/// Why there is no room.
pub fn ending_with(cfg: &Cfg, addr: u64) -> Result<Displacement, NoRoom> {
    let at = cfg.instruction_at(addr).ok_or(NoRoom::NoInstruction)?;
    if cfg.instructions()[at].is_invalid() {
        return Err(NoRoom::NoInstruction);
    }
    backwards(cfg, at..at + 1)
}

/// The bytes to replace for the `ret` at `addr`: so that they end with it or, where that does not work,
/// with the padding behind it.
///
/// # Errors
/// Why there is no room.
pub fn at_return(cfg: &Cfg, addr: u64) -> Result<Displacement, NoRoom> {
    ending_with(cfg, addr).or_else(|reason| {
        let at = cfg.instruction_at(addr).ok_or(reason)?;
        let end = end_of_padding(cfg, at);
        let free = cfg.branches_into(addr..end) == BranchInto::None;
        if end - addr < JUMP_LEN || !free {
            return Err(reason);
        }
        Ok(Displacement {
            start: addr,
            end,
            instructions: at..at + 1,
        })
    })
}

/// Where the padding ends that lies behind the `ret` at position `at`, as far as a jump needs it.
fn end_of_padding(cfg: &Cfg, at: usize) -> u64 {
    let ret = &cfg.instructions()[at];
    let mut end = ret.next_ip();
    if ret.flow_control() != FlowControl::Return {
        return end;
    }
    for next in &cfg.instructions()[at + 1..] {
        let padding = matches!(next.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        if end - ret.ip() >= JUMP_LEN || !padding || next.ip() != end {
            break;
        }
        end = next.next_ip();
    }
    end
}

/// The bytes to replace at the function's entry. An `endbr64` there stays in place, as indirect
/// branches must find it.
///
/// # Errors
/// Why there is no room.
pub fn at_entry(cfg: &Cfg) -> Result<Displacement, NoRoom> {
    let all = cfg.instructions();
    let entry = cfg
        .instruction_at(cfg.entry())
        .ok_or(NoRoom::NoInstruction)?;
    let first = entry + usize::from(all[entry].mnemonic() == Mnemonic::Endbr64);
    let mut range = first..first;
    while len(cfg, &range) < JUMP_LEN {
        let before = range
            .end
            .checked_sub(1)
            .filter(|&at| at >= first)
            .map(|at| &all[at]);
        let next = all
            .get(range.end)
            .filter(|next| before.is_none_or(|b| runs_on(b) && b.next_ip() == next.ip()));
        if next.is_none() {
            return Err(NoRoom::TooShort(before.map_or(cfg.entry(), |b| b.ip())));
        }
        range.end += 1;
    }
    checked(cfg, range)
}

/// Two displacements that overlap or touch as one.
///
/// # Errors
/// Why they cannot be one.
pub fn union(cfg: &Cfg, a: &Displacement, b: &Displacement) -> Result<Displacement, NoRoom> {
    let (a, b) = (&a.instructions, &b.instructions);
    let range = a.start.min(b.start)..a.end.max(b.end);
    let instructions = cfg.instructions().get(range.clone()).unwrap_or_default();
    for pair in instructions.windows(2) {
        if !runs_on(&pair[0]) || pair[0].next_ip() != pair[1].ip() {
            return Err(NoRoom::TooShort(pair[0].ip()));
        }
    }
    checked(cfg, range)
}

/// As few instructions as make room for a jump before those at position `range.start`, and these.
fn backwards(cfg: &Cfg, mut range: Range<usize>) -> Result<Displacement, NoRoom> {
    let all = cfg.instructions();
    while len(cfg, &range) < JUMP_LEN {
        let next = all[range.start].ip();
        let before = range.start.checked_sub(1).map(|at| &all[at]);
        if !before.is_some_and(|b| runs_on(b) && b.next_ip() == next) {
            return Err(NoRoom::TooShort(before.map_or(cfg.entry(), |b| b.ip())));
        }
        range.start -= 1;
    }
    checked(cfg, range)
}

/// Whether the next instruction is where `instruction` leads, at least sometimes, and no return
/// address lies between them.
fn runs_on(instruction: &iced_x86::Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch
    ) && instruction.code() != Code::Hlt
}

fn len(cfg: &Cfg, range: &Range<usize>) -> u64 {
    match cfg.instructions().get(range.clone()) {
        Some([first, .., last]) => last.next_ip().wrapping_sub(first.ip()),
        Some([only]) => only.len() as u64,
        _ => 0,
    }
}

/// A displacement, once nothing leads into it and everything in it can be moved. Its last instruction
/// is allowed to be a call: whoever moves it makes the call himself.
fn checked(cfg: &Cfg, range: Range<usize>) -> Result<Displacement, NoRoom> {
    let instructions = &cfg.instructions()[range.clone()];
    let (Some(first), Some(last)) = (instructions.first(), instructions.last()) else {
        return Err(NoRoom::NoInstruction);
    };
    for instruction in instructions {
        match movable(instruction) {
            Err(Immovable::Call(_)) if is_call_elsewhere(cfg, instruction) => {}
            Err(reason) => return Err(NoRoom::Immovable(reason)),
            Ok(()) if instruction.code() == Code::Syscall => {
                return Err(NoRoom::TooShort(instruction.ip()));
            }
            Ok(()) => {}
        }
    }
    let (start, end) = (first.ip(), last.next_ip());
    if start < cfg.entry() && cfg.entry() < end {
        return Err(NoRoom::TooShort(cfg.entry()));
    }
    match cfg.branches_into(start..end) {
        BranchInto::None => Ok(Displacement {
            start,
            end,
            instructions: range,
        }),
        BranchInto::From(addr) => Err(NoRoom::BranchInside(addr)),
        BranchInto::Unknown(unknown) => Err(NoRoom::Unknown(unknown)),
    }
}

/// Whether `call` calls another function, or this one anew, rather than reading its own address.
fn is_call_elsewhere(cfg: &Cfg, call: &iced_x86::Instruction) -> bool {
    if call.is_call_near_indirect() {
        return true;
    }
    let target = call.near_branch_target();
    debug_assert!(direct_target(call).is_none());
    call.is_call_near() && (target == cfg.entry() || cfg.block_of(target).is_none())
}
