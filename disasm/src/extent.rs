//! Where a function ends of which only the entry is known: neither symbol nor unwind entry tell.

use std::collections::HashSet;

use iced_x86::{FlowControl, Instruction, Mnemonic};

use crate::blocks::{Block, direct_target};
use crate::{Cfg, CodePart, FunctionCode, Memory};

/// Code is read in steps of this many bytes, as far as it can be.
const STEP: u64 = 4096;
/// No function is followed further.
const FARTHEST: u64 = 64 << 10;
/// Compilers align functions to this many bytes.
const ALIGNMENT: u64 = 16;

/// The code of the function that begins at `entry`, as far as control flow leads, but not beyond
/// `limit` (the next function that is known, or the end of the section).
///
/// It ends after a `ret`, a jump or `ud2` beyond which nothing in it leads. A jump ahead over other
/// code to what looks like the beginning of a function is a tail jump. None when there is no
/// instruction at `entry`.
pub fn function_at(entry: u64, limit: u64, memory: &dyn Memory) -> Option<FunctionCode> {
    let bytes = read(entry, limit, memory);
    let part = |bytes| CodePart {
        start: entry,
        bytes,
    };
    let window = FunctionCode::new(vec![part(bytes.clone())])?;
    let cfg = Cfg::build(&window, memory);
    let end = end(&cfg)?;
    let len = usize::try_from(end.checked_sub(entry)?).ok()?;
    FunctionCode::new(vec![part(bytes.get(..len)?.to_vec())])
}

fn read(entry: u64, limit: u64, memory: &dyn Memory) -> Vec<u8> {
    let limit = limit.min(entry.saturating_add(FARTHEST));
    let mut bytes = Vec::new();
    let mut at = entry;
    while at < limit {
        let step = (STEP - at % STEP).min(limit - at);
        let mut buf = vec![0; step as usize];
        if !memory.read(at, &mut buf) {
            break;
        }
        bytes.extend(buf);
        at += step;
    }
    bytes
}

/// The address after the last instruction that the entry leads to.
fn end(cfg: &Cfg) -> Option<u64> {
    let mut seen = HashSet::new();
    let mut open = vec![cfg.block_of(cfg.entry())?];
    // Jumps ahead whose target may be another function.
    let mut doubtful: Vec<usize> = Vec::new();
    let mut end = cfg.entry();
    loop {
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            let block = &cfg.blocks()[at];
            let flow = flow(cfg, block);
            end = end.max(flow.end);
            if flow.ended {
                continue;
            }
            for &next in &block.successors {
                let begins_function = is_jump_to(cfg, block, next) && begins_function(cfg, next);
                if begins_function {
                    doubtful.push(next);
                } else {
                    open.push(next);
                }
            }
        }
        // What other code of the function lies beyond is a part of it nevertheless.
        doubtful.retain(|&next| !seen.contains(&next));
        match doubtful
            .iter()
            .position(|&next| cfg.blocks()[next].start < end)
        {
            Some(at) => open.push(doubtful.swap_remove(at)),
            None => break,
        }
    }
    (end > cfg.entry()).then_some(end)
}

/// How far a block runs.
struct Flow {
    end: u64,
    /// Whether it never gets to its last instruction: it calls something that does not return.
    ended: bool,
}

fn flow(cfg: &Cfg, block: &Block) -> Flow {
    let instructions = &cfg.instructions()[block.instructions.clone()];
    for (at, call) in instructions.iter().enumerate() {
        let is_call = call.is_call_near() || call.is_call_near_indirect();
        let first = block.instructions.start + at + 1;
        if is_call && ends_function(cfg, first, call.next_ip()) {
            return Flow {
                end: call.next_ip(),
                ended: true,
            };
        }
    }
    Flow {
        end: block.end,
        ended: false,
    }
}

/// Whether at position `at`, behind a call, there is padding up to another function. Inside a function
/// padding is for what is jumped to.
fn ends_function(cfg: &Cfg, at: usize, addr: u64) -> bool {
    let mut expected = addr;
    for next in cfg.instructions().get(at..).unwrap_or_default() {
        let padded = expected != addr;
        if next.ip() != expected || next.is_invalid() {
            return true;
        }
        match next.mnemonic() {
            Mnemonic::Int3 => return true,
            Mnemonic::Nop => expected = next.next_ip(),
            mnemonic => {
                return (padded || mnemonic == Mnemonic::Endbr64)
                    && expected.is_multiple_of(ALIGNMENT)
                    && !is_branched_to(cfg, expected);
            }
        }
    }
    expected != addr
}

/// Whether a block other than the one before it leads to `addr`.
fn is_branched_to(cfg: &Cfg, addr: u64) -> bool {
    let blocks = cfg.blocks();
    let block = cfg.block_of(addr).map(|at| &blocks[at]);
    block.is_some_and(|b| b.start == addr && b.predecessors.iter().any(|&p| blocks[p].end != addr))
}

/// Whether `block` ends with an unconditional direct jump to block `next`.
fn is_jump_to(cfg: &Cfg, block: &Block, next: usize) -> bool {
    let last = &cfg.instructions()[block.instructions.end - 1];
    last.flow_control() == FlowControl::UnconditionalBranch
        && direct_target(last) == Some(cfg.blocks()[next].start)
}

/// Whether a block looks like the beginning of a function: aligned, and nothing runs into it.
fn begins_function(cfg: &Cfg, at: usize) -> bool {
    let block = &cfg.blocks()[at];
    if !block.start.is_multiple_of(ALIGNMENT) || block.start == cfg.entry() {
        return false;
    }
    let before = &cfg.instructions()[..block.instructions.start];
    let is_padding = |i: &&Instruction| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
    let first = &cfg.instructions()[block.instructions.start];
    let last = before.iter().rev().find(|i| !is_padding(i));
    first.mnemonic() == Mnemonic::Endbr64 || last.is_none_or(|i| !crate::blocks::falls_through(i))
}
