//! Which instructions a jump to a stub replaces, so that control is diverted at one of them. Pure.
//!
//! A jump takes five bytes. Where the instruction is shorter, those behind or before it are displaced too: only such that
//! run straight on, into which nothing jumps, and behind what does not fall through the filling that nobody runs. Where all
//! of that does not do, the jump is *punned* (Duck, Gao, Roychoudhury: Binary rewriting without control flow recovery,
//! PLDI 2020): only the span's own bytes are written, those behind it stay and become the high bytes of the distance.
//!
//! A call is the last instruction of a span, for it returns to what is behind it. A system call is none: a thread that was
//! interrupted in it runs the instruction again.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use darc_disasm::{
    BranchInto, Cfg, Frames, FunctionCode, Memory, Sites, UnknownBranch, call_sites_in,
};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::layout::journal;

/// Bytes of `jmp rel32` and `call rel32`.
pub const JUMP: u64 = 5;

/// Why control cannot be diverted at an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoRoom {
    /// The address is not that of an instruction.
    #[error("there is no instruction at this address")]
    NoInstruction,
    /// An instruction that only works where it is.
    #[error("the instruction cannot be moved")]
    Immovable,
    /// A jump leads between its bytes.
    #[error("something jumps between the bytes of the instruction")]
    Split,
}

/// Instructions in a row that a jump replaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Their positions.
    pub range: Range<usize>,
    /// How many bytes behind them are filling, and replaced, too.
    pub filling: u64,
    /// Whether the instruction behind them is a system call that the stub makes in its place.
    pub syscall_behind: bool,
}

impl Span {
    /// Both of two that overlap.
    #[must_use]
    pub fn with(&self, other: &Span) -> Span {
        let (last, first) = match other.range.end.cmp(&self.range.end) {
            Ordering::Less => (self, other),
            Ordering::Equal if other.filling < self.filling => (self, other),
            _ => (other, self),
        };
        let start = first.range.start.min(last.range.start);
        Span {
            range: start..last.range.end,
            ..last.clone()
        }
    }
}

/// A function's instructions, what leads where, and what may be moved.
#[derive(Debug)]
pub struct View {
    code: Arc<FunctionCode>,
    cfg: Cfg,
    frames: Frames,
    /// How deep the stack is where jumps of which it is not known where they lead may lead; `None` where that is not known.
    label_depths: Option<BTreeSet<i64>>,
    sites: Sites,
    /// Addresses of calls that push their own address for another reason than to be returned to, and the like.
    fixed: HashSet<u64>,
    /// Whether jumps replace single instructions only: somebody may stand between any two.
    alone: bool,
}

impl View {
    /// Looks at a function. Jump tables are read from `memory`.
    #[must_use]
    pub fn new(code: Arc<FunctionCode>, memory: &dyn Memory) -> View {
        let cfg = Cfg::build(&code, memory);
        let sites = call_sites_in(&code, &cfg);
        let known: HashSet<u64> = sites.sites.iter().map(|site| site.addr).collect();
        let fixed = cfg
            .instructions()
            .iter()
            .filter(|i| is_call(i) && !known.contains(&i.ip()))
            .map(Instruction::ip)
            .collect();
        let frames = Frames::new(&cfg);
        let label_depths = cfg.unknown().iter().map(|unknown| match unknown {
            UnknownBranch::IndirectJump(addr) => {
                let at = cfg.instruction_at(*addr)?;
                let is_sure = frames.is_proven(at) || frames.is_as_labels(at);
                frames.depth_at(at).filter(|_| is_sure)
            }
            UnknownBranch::Undecodable(_)
            | UnknownBranch::Return(_)
            | UnknownBranch::Outside(_) => None,
        });
        View {
            code,
            label_depths: label_depths.collect(),
            frames,
            cfg,
            sites,
            fixed,
            alone: false,
        }
    }

    /// From now on jumps replace single instructions only.
    pub fn replace_alone(&mut self) {
        self.alone = true;
    }

    /// All instructions, by address.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        self.cfg.instructions()
    }

    /// The calls that it makes, and what looks like one.
    #[must_use]
    pub fn sites(&self) -> &Sites {
        &self.sites
    }

    /// How many bytes below the function's return address the stack pointer is before an instruction, where that is always
    /// the same.
    #[must_use]
    pub fn depth_at(&self, addr: u64) -> Option<i64> {
        let at = self
            .instructions()
            .binary_search_by_key(&addr, Instruction::ip);
        self.frames.depth_at(at.ok()?)
    }

    /// Whether something jumps, or may jump, to the address.
    #[must_use]
    pub fn is_target(&self, addr: u64) -> bool {
        addr != self.cfg.entry() && self.cfg.is_arrival(addr)
            || self.instructions().iter().any(|i| branches_to(i, addr))
    }

    /// Whether the instruction at a position ends the program.
    #[must_use]
    pub fn is_trap(&self, at: usize) -> bool {
        let mnemonic = self.instructions()[at].mnemonic();
        matches!(mnemonic, Mnemonic::Int3 | Mnemonic::Ud2)
    }

    /// Whether certainly no code of the function is at an address behind some of it.
    #[must_use]
    pub fn ends_at(&self, addr: u64) -> bool {
        self.code.ends_at(addr)
    }

    /// Whether control can come to the address again and again without the call before it.
    #[must_use]
    pub fn is_in_loop_without_call(&self, addr: u64) -> bool {
        if !self.cfg.is_arrival(addr) {
            return false;
        }
        let blocks = self.cfg.blocks();
        let calling = self.cfg.block_of(addr.wrapping_sub(1));
        let Some(start) = self.cfg.block_of(addr).filter(|_| !self.is_unknown()) else {
            return true;
        };
        let mut seen = HashSet::new();
        let mut open = vec![start];
        while let Some(block) = open.pop() {
            for &next in &blocks[block].successors {
                if next == start && Some(block) != calling {
                    return true;
                }
                if Some(next) != calling && seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    }

    /// Whether all of a span may be moved, and runs from its first instruction to its last, whoever comes.
    #[must_use]
    pub fn is_displaceable(&self, span: &Span) -> bool {
        let Range { start, end } = span.range;
        (start..end).all(|at| self.moves(at))
            && (start + 1..end).all(|at| self.falls_into(at))
            && !self.is_entered(&span.range)
    }

    /// The position of the instruction at an address.
    #[must_use]
    pub fn position(&self, addr: u64) -> Option<usize> {
        let at = self.cfg.instruction_at(addr)?;
        (!self.instructions()[at].is_invalid()).then_some(at)
    }

    /// The position of the first instruction to divert at for the function's entry: `endbr64` stays where it is.
    #[must_use]
    pub fn entry(&self) -> Option<usize> {
        let first = self.position(self.cfg.entry())?;
        let mark = self.instructions()[first].mnemonic() == Mnemonic::Endbr64;
        Some(first + usize::from(mark && self.falls_into(first + 1)))
    }

    /// The position behind the function's first instruction, and by how much that lowers the stack pointer, where it does nothing
    /// else than that or push a register: there control can be diverted, too.
    ///
    /// Another tool's breakpoint at the first byte is then beside the jump. With the jump there the kernel would go on behind the
    /// instruction that a uprobe stands for, in the middle of the jump (`default_post_xol_op` and `push_emulate_op` in its
    /// arch/x86/kernel/uprobes.c).
    #[must_use]
    pub fn behind_first(&self) -> Option<(usize, i32)> {
        let first = self.entry()?;
        // In a longer one there is room for the jump.
        let lowers = Some(&self.instructions()[first]).filter(|first| (first.len() as u64) < JUMP);
        let lowered = lowers_stack(lowers?)?;
        let behind = first + 1;
        let next = self.instructions().get(behind)?.ip();
        let is_apart = !self.alone
            && self.falls_into(behind)
            && !self.is_target(next)
            && !self.is_entered(&(first..behind + 1));
        let fits = |span: Span| span.range.start == behind && self.len(&span) >= JUMP;
        let has_room = is_apart && self.span(behind, None).is_ok_and(fits);
        has_room.then_some((behind, lowered))
    }

    /// Whether a span diverts control at the instruction at a position.
    #[must_use]
    pub fn covers(&self, span: &Span, at: usize) -> bool {
        span.range.contains(&at) || span.syscall_behind && span.range.end == at
    }

    /// The bytes of a span, filling included, and its first address.
    #[must_use]
    pub fn bytes(&self, span: &Span) -> Option<(u64, Vec<u8>)> {
        let (start, end) = self.extent(&span.range);
        let len = usize::try_from(end + span.filling - start).ok()?;
        Some((start, self.code.filled_bytes_at(start, len)?))
    }

    /// What to replace so that control is diverted at the instruction at position `at`. `before` is the span before it, which
    /// the new one may take in.
    ///
    /// # Errors
    /// Why nothing can be replaced.
    pub fn span(&self, at: usize, before: Option<&Span>) -> Result<Span, NoRoom> {
        let instruction = self.instructions().get(at).ok_or(NoRoom::NoInstruction)?;
        if instruction.is_invalid() {
            return Err(NoRoom::NoInstruction);
        }
        if instruction.code() == Code::Syscall {
            return self.around_syscall(at, before);
        }
        if !self.moves(at) {
            return Err(NoRoom::Immovable);
        }
        if self.is_entered(&(at..at + 1)) {
            return Err(NoRoom::Split);
        }
        if self.alone {
            return Ok(Span {
                range: at..at + 1,
                filling: 0,
                syscall_behind: false,
            });
        }
        let ahead = self.ahead(at);
        if self.len(&ahead) >= JUMP {
            return Ok(ahead);
        }
        let back = self.back(at, at + 1, before);
        let fits =
            |span: &Span| self.len(span) >= JUMP && self.len(span) <= journal::MAX_LEN as u64;
        if let Some(back) = back.clone().filter(fits) {
            return Ok(back);
        }
        // The more bytes of its own the more places are in a punned jump's reach. Not by moving what has a span of its own.
        let apart = |span: &Span| before.is_none_or(|before| before.range.end <= span.range.start);
        let back = back.filter(apart);
        Ok(match back {
            Some(back) if self.len(&back) > self.len(&ahead) => back,
            _ => ahead,
        })
    }

    /// The system call itself stays: what is displaced is before it. With nothing there it is replaced alone.
    fn around_syscall(&self, at: usize, before: Option<&Span>) -> Result<Span, NoRoom> {
        let alone = Span {
            range: at..at + 1,
            filling: 0,
            syscall_behind: false,
        };
        let reached = self.cfg.is_arrival(self.instructions()[at].ip()) || self.is_unknown();
        if reached {
            return Ok(alone);
        }
        let runs_into = |span: &Span| span.range.end == at && self.falls_into(at);
        let fits =
            |span: &Span| self.len(span) >= JUMP && self.len(span) <= journal::MAX_LEN as u64;
        let joined = before.filter(|span| runs_into(span)).cloned();
        let span = joined.or_else(|| self.back(at, at, before)).filter(fits);
        Ok(span.map_or(alone, |span| Span {
            syscall_behind: true,
            ..span
        }))
    }

    /// From an instruction on, until there is room.
    fn ahead(&self, at: usize) -> Span {
        let mut range = at..at + 1;
        let mut filling = 0;
        loop {
            let (start, end) = self.extent(&range);
            let missing = JUMP.saturating_sub(end - start);
            if missing == 0 {
                break;
            }
            let last = &self.instructions()[range.end - 1];
            if !falls_through(last) {
                if !is_call(last) {
                    filling = self.filling(range.end, end).min(missing);
                }
                break;
            }
            let longer = range.start..range.end + 1;
            if !self.falls_into(range.end) || !self.moves(range.end) || self.is_entered(&longer) {
                break;
            }
            range = longer;
        }
        Span {
            range,
            filling,
            syscall_behind: false,
        }
    }

    /// From as many instructions before `at` as make room up to `end`. A loop's way back stays where it is: it would come by
    /// the stub in each round.
    fn back(&self, at: usize, end: usize, before: Option<&Span>) -> Option<Span> {
        let mut start = at;
        loop {
            let range = start..end;
            let missing = range.is_empty() || {
                let (first, behind) = self.extent(&range);
                behind - first < JUMP
            };
            if !missing {
                break;
            }
            let joins = start > 0
                && self.falls_into(start)
                && self.moves(start - 1)
                && !ends_loop(&self.instructions()[start - 1])
                && !self.is_entered(&(start - 1..end));
            if !joins {
                break;
            }
            start -= 1;
        }
        let taken = before.filter(|before| before.range.end > start);
        if let Some(before) = taken {
            if before.filling > 0 || before.syscall_behind {
                return None;
            }
            start = start.min(before.range.start);
        }
        let range = start..end;
        (!range.is_empty() && !self.is_entered(&range)).then_some(Span {
            range,
            filling: 0,
            syscall_behind: false,
        })
    }

    /// How many bytes from `addr` on nobody runs, where the instruction at position `next` would be.
    fn filling(&self, next: usize, addr: u64) -> u64 {
        let rest = self.instructions()[next..].iter();
        let idle = |i: &&Instruction| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        let mut end = addr;
        for instruction in rest.take_while(idle) {
            let reached = self.cfg.is_arrival(instruction.ip()) || self.is_unknown();
            if instruction.ip() != end || reached {
                break;
            }
            end = instruction.next_ip();
        }
        end - addr + self.code.filling_at(end) as u64
    }

    /// The bytes that a span has for a jump.
    #[must_use]
    pub fn len(&self, span: &Span) -> u64 {
        let (start, end) = self.extent(&span.range);
        end - start + span.filling
    }

    fn extent(&self, range: &Range<usize>) -> (u64, u64) {
        let instructions = &self.instructions()[range.clone()];
        match instructions {
            [first, .., last] => (first.ip(), last.next_ip()),
            [only] => (only.ip(), only.next_ip()),
            [] => (0, 0),
        }
    }

    /// Whether the instruction before position `at` runs on into it.
    fn falls_into(&self, at: usize) -> bool {
        let pair = at
            .checked_sub(1)
            .and_then(|before| self.instructions().get(before..=at));
        pair.is_some_and(|pair| {
            falls_through(&pair[0]) && !pair[1].is_invalid() && pair[0].next_ip() == pair[1].ip()
        })
    }

    /// Whether the instruction may run elsewhere.
    fn moves(&self, at: usize) -> bool {
        let instruction = &self.instructions()[at];
        let fixed = instruction.is_invalid()
            || instruction.code() == Code::Syscall
            || self.fixed.contains(&instruction.ip());
        match instruction.flow_control() {
            _ if fixed => false,
            // Whoever handles the signal knows the instruction by its address.
            FlowControl::Interrupt | FlowControl::Exception => false,
            FlowControl::XbeginXabortXend => false,
            FlowControl::IndirectBranch => !instruction.is_jmp_far_indirect(),
            FlowControl::UnconditionalBranch => !instruction.is_jmp_far(),
            FlowControl::Return => matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16),
            _ => true,
        }
    }

    /// Whether something leads, or may lead, between the instructions of the range or their bytes.
    fn is_entered(&self, range: &Range<usize>) -> bool {
        let (start, end) = self.extent(range);
        match self.cfg.branches_into(start..end) {
            BranchInto::None => false,
            BranchInto::From(_) => true,
            BranchInto::Unknown(_) => range.clone().skip(1).any(|at| self.may_be_label(at)),
        }
    }

    /// Whether jumps of which it is not known where they lead may lead to the instruction at a position: where they are the
    /// stack has the depth that it has at their labels.
    fn may_be_label(&self, at: usize) -> bool {
        match (self.frames.depth_at(at), &self.label_depths) {
            (Some(depth), Some(labels)) if self.frames.is_proven(at) => labels.contains(&depth),
            _ => true,
        }
    }

    /// Whether there are jumps of which it is not known where they lead.
    fn is_unknown(&self) -> bool {
        !self.cfg.unknown().is_empty()
    }
}

/// By how much an instruction lowers the stack pointer, where that and the push of a register are all that it does.
fn lowers_stack(i: &Instruction) -> Option<i32> {
    /// More is no frame, but a way to test how much stack there is.
    const MOST: u64 = 1 << 16;
    let amount = match i.code() {
        Code::Push_r64 if i.op0_register() != Register::RSP => 8,
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if i.op0_register() == Register::RSP => {
            i.immediate(1)
        }
        _ => return None,
    };
    (amount <= MOST && amount % 8 == 0).then_some(amount as i32)
}

/// Whether it is a call, which returns to what is behind it.
#[must_use]
pub fn is_call(instruction: &Instruction) -> bool {
    let calls = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    calls && instruction.code() != Code::Syscall
}

fn falls_through(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::Next => instruction.code() != Code::Hlt,
        FlowControl::ConditionalBranch => true,
        _ => false,
    }
}

/// Whether it is a jump back, under a condition.
fn ends_loop(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::ConditionalBranch
        && instruction.near_branch_target() <= instruction.ip()
}

fn branches_to(instruction: &Instruction, addr: u64) -> bool {
    let branch = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::XbeginXabortXend
            | FlowControl::Call
    );
    let near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    branch && near && instruction.near_branch_target() == addr
}

#[cfg(test)]
pub(super) mod tests;
