//! Jump tables: where the indirect jump of a `switch` goes.
//!
//! Compilers load a table entry and jump to it, or to the entry plus the table's address:
//! ```text
//! cmp $7,%edi                  cmp $7,%edi
//! ja  default                  ja  default
//! mov %edi,%edi                lea table(%rip),%rdx
//! jmp *table(,%rdi,8)          movslq (%rdx,%rdi,4),%rax
//!                              add %rdx,%rax
//!                              jmp *%rax
//! ```
//! The number of entries comes from the comparison, where nothing between it and the jump changes what
//! was compared. A compiler that knows the index to be in range (an exhaustive `match`) leaves it out. Where a mask limits the index, the entries are as many; else
//! they are read for as long as they lead to an instruction of the function. That finds too many rather
//! than too few, and a branch too many only makes a patch be refused. An entry of the true table may
//! also lead to a part of the function that lies elsewhere: where entries of the function follow upon
//! one that leads to other code, the table's end is not known.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind,
};

use crate::detached::{LONGEST, readable};
use crate::frame::Frames;
use crate::loops::Dominators;
use crate::values::{Orphans, Sum, Value, Values};
use crate::{Cfg, FunctionCode, Memory};

/// A jump table that was recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JumpTable {
    /// Address of the indirect jump.
    pub jump: u64,
    /// Address of the first entry.
    pub table: u64,
    /// Where the jump may go, in address order, each once.
    pub targets: Vec<u64>,
}

/// What is known of an indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IndirectJump {
    /// It stays inside the function.
    Table(JumpTable),
    /// It leaves the function: a tail call.
    Leaves,
    /// It may go anywhere.
    Unknown,
}

/// More entries are not read.
const MOST_ENTRIES: u64 = 1 << 16;
/// A table without a comparison is indexed by a byte-sized enumeration in practice.
const MOST_UNBOUNDED_ENTRIES: u64 = 1 << 10;
/// So many entries are looked at behind one that does not belong to a table.
const LOOKED_BEHIND: usize = 16;
/// How many blocks are looked at for comparisons in one function, which may be hostile.
const CLIMBS: usize = 1 << 18;

/// Looks anew at all indirect jumps of `cfg`.
pub(crate) fn recover(
    cfg: &Cfg,
    code: &FunctionCode,
    memory: &dyn Memory,
    orphans: Orphans,
) -> Vec<(usize, IndirectJump)> {
    if cfg.jumps().is_empty() {
        return Vec::new();
    }
    let search = Search {
        cfg,
        code,
        memory,
        values: Values::new(cfg, orphans),
        dominators: Dominators::new(cfg),
        frames: Frames::new(cfg),
        climbs: Cell::new(CLIMBS),
    };
    cfg.jumps()
        .iter()
        .map(|&(at, _)| (at, search.jump(at)))
        .collect()
}

struct Search<'a> {
    cfg: &'a Cfg,
    code: &'a FunctionCode,
    memory: &'a dyn Memory,
    values: Values<'a>,
    dominators: Dominators,
    frames: Frames,
    /// What is left of [`CLIMBS`].
    climbs: Cell<usize>,
}

/// How entries are found and read.
struct Layout {
    /// Address of the entry for index 0.
    first: u64,
    bits: u32,
    signed: bool,
    /// Added to what is read.
    base: u64,
}

impl Search<'_> {
    fn jump(&self, at: usize) -> IndirectJump {
        let is_indirect = self.cfg.instructions()[at].flow_control() == FlowControl::IndirectBranch;
        let target = self.values.operand(at, 0).filter(|_| is_indirect);
        let Some(target) = target else {
            return self.computed(at);
        };
        if let Some(Value::Load { address, .. }) = target.single()
            && address.terms.is_empty()
        {
            return self.through_slot(at, address.constant);
        }
        match layout(&target) {
            Some((layout, index)) => match self.bounds(at, &index) {
                Some((low, count)) => self.bounded(at, &layout, low, count),
                None if self.climbs.get() == 0 => IndirectJump::Unknown,
                None => self.without_comparison(at, &layout, &index),
            },
            None if is_relative(&target) => IndirectJump::Unknown,
            None => self.computed(at),
        }
    }

    /// A jump to where a fixed slot says: of the GOT, or a variable for a function, or for a label.
    fn through_slot(&self, at: usize, slot: u64) -> IndirectJump {
        let mut word = [0; 8];
        let read = self.memory.read(slot, &mut word);
        let to = u64::from_le_bytes(word);
        let stays = read && to != self.code.entry() && self.code.contains(to);
        if stays {
            return IndirectJump::Unknown;
        }
        self.computed(at)
    }

    /// A jump to a value of which no table is known. When the frame is given back it is a tail call
    /// (of a virtual function, say), else it may be a computed `goto`; so may be all jumps of a function without a frame.
    fn computed(&self, at: usize) -> IndirectJump {
        let is_flat = || self.cfg.has_labels(self.code) && !self.frames.have_labels();
        if !self.frames.is_returned(at) || is_flat() {
            return IndirectJump::Unknown;
        }
        IndirectJump::Leaves
    }

    fn bounded(&self, at: usize, layout: &Layout, low: u64, count: u64) -> IndirectJump {
        let table = layout.entry_address(low);
        let entries: Option<Vec<_>> = (0..count)
            .map(|i| layout.read(self.memory, low.wrapping_add(i)))
            .collect();
        match entries {
            // Entries outside lead to parts of the function that lie elsewhere.
            Some(targets)
                if targets
                    .iter()
                    .all(|&t| self.is_instruction(t) || !self.code.contains(t))
                    && targets.iter().any(|&t| self.code.contains(t)) =>
            {
                self.table(at, table, targets)
            }
            Some(targets)
                if layout.bits == 64
                    && self.frames.is_returned(at)
                    && !targets.iter().any(|&t| self.code.contains(t)) =>
            {
                IndirectJump::Leaves // function pointers
            }
            Some(_) if layout.bits == 64 => self.computed(at),
            _ => IndirectJump::Unknown,
        }
    }

    fn without_comparison(&self, at: usize, layout: &Layout, index: &Sum) -> IndirectJump {
        let masked = mask(index).and_then(|mask| mask.checked_add(1));
        if let Some(count) = masked.filter(|&count| count <= MOST_UNBOUNDED_ENTRIES) {
            let found = self.bounded(at, layout, 0, count);
            // The table of a compiler that knew more is shorter, and what is behind it is no reason to take it for
            // function pointers.
            if matches!(found, IndirectJump::Table(_)) {
                return found;
            }
        }
        self.unbounded(at, layout, most_entries(index))
    }

    fn unbounded(&self, at: usize, layout: &Layout, most: u64) -> IndirectJump {
        let low = layout.first_index();
        let entries = |most| (0..most).map_while(|i| layout.read(self.memory, low.wrapping_add(i)));
        let targets: Vec<_> = entries(most)
            .take_while(|&t| self.is_instruction(t))
            .collect();
        let mut behind = entries(most).skip(targets.len());
        let goes_on = behind.next().is_some_and(|t| self.is_code_elsewhere(t))
            && behind.take(LOOKED_BEHIND).any(|t| self.is_instruction(t));
        if goes_on {
            return IndirectJump::Unknown;
        }
        // A lone entry is no table.
        if targets.len() > 1 {
            return self.table(at, layout.entry_address(low), targets);
        }
        // The first index need not be 0: what is read there may belong to something else.
        let pointers = layout.bits == 64 && targets.is_empty();
        if pointers && !entries(16).any(|t| self.code.contains(t)) {
            return self.computed(at); // perhaps a table of function pointers
        }
        IndirectJump::Unknown
    }

    fn table(&self, at: usize, table: u64, mut targets: Vec<u64>) -> IndirectJump {
        targets.sort_unstable();
        targets.dedup();
        IndirectJump::Table(JumpTable {
            jump: self.cfg.instructions()[at].ip(),
            table,
            targets,
        })
    }

    fn is_instruction(&self, addr: u64) -> bool {
        let found = self.cfg.instruction_at(addr);
        found.is_some_and(|at| !self.cfg.instructions()[at].is_invalid())
    }

    /// Whether there is code at `addr` that is not the function's.
    fn is_code_elsewhere(&self, addr: u64) -> bool {
        let mut bytes = [0; LONGEST];
        !self.code.contains(addr)
            && readable(self.memory, addr, &mut bytes).is_some_and(|bytes| {
                let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
                !decoder.decode().is_invalid()
            })
    }

    /// The smallest value of `index` at the instruction at position `at`, and how many there are.
    fn bounds(&self, at: usize, index: &Sum) -> Option<(u64, u64)> {
        let mut block = self.cfg.block_of(self.cfg.instructions()[at].ip())?;
        while let Some(above) = self.dominators.immediate(block) {
            self.climbs.set(self.climbs.get().checked_sub(1)?);
            if let Some(bounds) = self.bounds_on_edge(above, block, at, index) {
                return Some(bounds);
            }
            block = above;
        }
        None
    }

    /// What the jump at the end of block `from` to block `to` says about `index` at the instruction at position `at`.
    fn bounds_on_edge(&self, from: usize, to: usize, at: usize, index: &Sum) -> Option<(u64, u64)> {
        let blocks = self.cfg.blocks();
        if blocks[to].predecessors != [from] {
            return None;
        }
        let jump = blocks[from].instructions.end - 1;
        let instruction = &self.cfg.instructions()[jump];
        if instruction.flow_control() != FlowControl::ConditionalBranch
            || !instruction.is_jcc_short_or_near()
        {
            return None;
        }
        let taken = instruction.near_branch_target() == blocks[to].start;
        if taken && instruction.next_ip() == blocks[to].start {
            return None;
        }
        let condition = if taken {
            instruction.condition_code()
        } else {
            negated(instruction.condition_code())
        };
        let (comparison, compared, limit) = self.comparison(from, jump)?;
        let count = match condition {
            ConditionCode::be => limit.checked_add(1)?,
            ConditionCode::b => limit,
            _ => return None,
        };
        // index = e + value and compared = d + value, each perhaps inside an extension.
        let low = difference(index, &compared)?;
        // A lone entry is no table.
        if !(2..=MOST_ENTRIES).contains(&count) {
            return None;
        }
        let mut between = self.between(to, at)?;
        between.push(comparison + 1..jump);
        self.values.is_kept(index, &between).then_some((low, count))
    }

    /// What may run between the beginning of block `from` and the instruction at position `at`, which is come to through that
    /// block alone.
    fn between(&self, from: usize, at: usize) -> Option<Vec<Range<usize>>> {
        let blocks = self.cfg.blocks();
        let home = self.cfg.block_of(self.cfg.instructions()[at].ip())?;
        let mut between = Vec::new();
        between.push(blocks[home].instructions.start..at);
        let (mut seen, mut open) = (HashSet::new(), vec![home]);
        while let Some(block) = open.pop() {
            if self.values.is_entered(block) {
                return None;
            }
            if block == from {
                continue;
            }
            self.climbs.set(self.climbs.get().checked_sub(1)?);
            for &before in &blocks[block].predecessors {
                if seen.insert(before) {
                    between.push(blocks[before].instructions.clone());
                    open.push(before);
                }
            }
        }
        Some(between)
    }

    /// The comparison that has set the flags tested by the jump at position `jump`: where, and of what value with what constant.
    fn comparison(&self, block: usize, jump: usize) -> Option<(usize, Sum, u64)> {
        let start = self.cfg.blocks()[block].instructions.start;
        let at = (start..jump)
            .rev()
            .find(|&i| self.cfg.instructions()[i].rflags_modified() != 0)?;
        let instruction = &self.cfg.instructions()[at];
        if !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Sub) {
            return None;
        }
        let value = self.values.operand(at, 0)?;
        let limit = self.values.operand(at, 1)?;
        let bits = operand_bits(instruction);
        let limit = (limit.terms.is_empty()).then_some(limit.constant)?;
        Some((at, value, limit & (u64::MAX >> (64 - bits))))
    }
}

impl Layout {
    fn stride(&self) -> u64 {
        u64::from(self.bits / 8)
    }

    fn entry_address(&self, index: u64) -> u64 {
        self.first.wrapping_add(index.wrapping_mul(self.stride()))
    }

    /// The smallest index, going by the address that all entries are relative to: the table's.
    fn first_index(&self) -> u64 {
        let ahead = self.base.wrapping_sub(self.first) as i64;
        if self.base == 0 || ahead % self.stride() as i64 != 0 {
            return 0;
        }
        (ahead / self.stride() as i64) as u64
    }

    fn read(&self, memory: &dyn Memory, index: u64) -> Option<u64> {
        let mut word = [0; 8];
        let bytes = (self.bits / 8) as usize;
        if !memory.read(self.entry_address(index), &mut word[..bytes]) {
            return None;
        }
        let shift = 64 - self.bits;
        let top = u64::from_le_bytes(word) << shift;
        let entry = if self.signed {
            (top as i64 >> shift) as u64
        } else {
            top >> shift
        };
        Some(self.base.wrapping_add(entry))
    }
}

/// Takes a jump target apart: `base + load(first + stride * index)`.
fn layout(target: &Sum) -> Option<(Layout, Sum)> {
    let [(value, 1)] = &target.terms[..] else {
        return None;
    };
    let (bits, signed, address) = match value {
        Value::Load {
            bits,
            signed,
            address,
        } => (*bits, *signed, address),
        Value::Extended { bits, signed, of } => match of.single() {
            Some(Value::Load {
                bits: b, address, ..
            }) if b == bits => (*bits, *signed, address),
            _ => return None,
        },
        _ => return None,
    };
    if !matches!(bits, 32 | 64) {
        return None;
    }
    let stride = i64::from(bits / 8);
    let terms: Option<Vec<_>> = address
        .terms
        .iter()
        .map(|(value, factor)| {
            let factor = *factor as i64;
            (factor % stride == 0).then(|| (value.clone(), (factor / stride) as u64))
        })
        .collect();
    let layout = Layout {
        first: address.constant,
        bits,
        signed,
        base: target.constant,
    };
    let index = Sum {
        constant: 0,
        terms: terms?,
    };
    Some((layout, index))
}

/// How many values an index can have, going by its width.
fn most_entries(index: &Sum) -> u64 {
    let values = match (mask(index), index.single()) {
        (Some(mask), _) => mask.saturating_add(1),
        (None, Some(Value::Extended { bits: 8, .. } | Value::Load { bits: 8, .. })) => 1 << 8,
        (None, _) => MOST_UNBOUNDED_ENTRIES,
    };
    values.min(MOST_UNBOUNDED_ENTRIES)
}

/// The largest value of an index that a mask limits. No extension around it may make another number of it.
fn mask(index: &Sum) -> Option<u64> {
    let mut narrowest = 64;
    let mut sum = index;
    loop {
        match sum.single()? {
            Value::Extended { bits, of, .. } => {
                narrowest = narrowest.min(*bits);
                sum = of;
            }
            Value::Masked { mask, .. } => return (mask >> (narrowest - 1) == 0).then_some(*mask),
            _ => return None,
        }
    }
}

/// Whether a jump target is computed from what is read: the mark of a table of offsets, even where
/// the table's address is not known. (Tables of pointers to labels may have it unknown too, but code
/// that uses them does so with its frame in place.)
fn is_relative(target: &Sum) -> bool {
    let offset = |value: &Value| match value {
        Value::Load { bits, .. } => *bits < 64,
        Value::Extended { .. } => true,
        _ => false,
    };
    target.terms.len() > 1 || target.terms.iter().any(|(value, _)| offset(value))
}

/// `index - compared`, when both are the same value but for a constant.
fn difference(index: &Sum, compared: &Sum) -> Option<u64> {
    let (index, compared) = (innermost(index), innermost(compared));
    (index.terms == compared.terms && !index.terms.is_empty())
        .then(|| index.constant.wrapping_sub(compared.constant))
}

/// The sum inside all extensions, and of a load what is loaded without regard to the width that
/// a comparison reads.
fn innermost(sum: &Sum) -> Sum {
    let mut core = sum.core().clone();
    for (value, _) in &mut core.terms {
        if let Value::Load { bits, signed, .. } = value {
            *bits = 0;
            *signed = false;
        }
    }
    core
}

fn negated(condition: ConditionCode) -> ConditionCode {
    match condition {
        ConditionCode::a => ConditionCode::be,
        ConditionCode::ae => ConditionCode::b,
        ConditionCode::b => ConditionCode::ae,
        ConditionCode::be => ConditionCode::a,
        ConditionCode::ne => ConditionCode::e,
        ConditionCode::e => ConditionCode::ne,
        _ => ConditionCode::None,
    }
}

/// Width of the first operand of a comparison.
fn operand_bits(instruction: &Instruction) -> u32 {
    let bytes = match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size(),
        OpKind::Memory => instruction.memory_size().size(),
        _ => 8,
    };
    (bytes.clamp(1, 8) * 8) as u32
}
