//! Where the value of a register comes from: follows definitions backwards through the blocks and
//! writes the value as a sum. Enough to recognise how compilers compute the target of a `switch`.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use crate::{Cfg, Gpr};

/// A sum: a constant plus values times a factor, all modulo 2^64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub constant: u64,
    /// Without factors of 0 and without the same value twice.
    pub terms: Vec<(Value, u64)>,
}

/// A value that is not known as a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// What a register holds after one of these instructions; `None` stands for what came from elsewhere: the
    /// function's caller, or whatever else is known to come into its middle.
    Defined(Gpr, Vec<Option<usize>>),
    /// What is loaded from memory.
    Load {
        bits: u32,
        signed: bool,
        address: Box<Sum>,
    },
    /// The low bits of a sum, zero- or sign-extended.
    Extended {
        bits: u32,
        signed: bool,
        of: Box<Sum>,
    },
    /// The bits of a sum that are set in the mask.
    Masked { mask: u64, of: Box<Sum> },
}

impl Sum {
    pub fn constant(constant: u64) -> Self {
        Self {
            constant,
            terms: Vec::new(),
        }
    }

    fn value(value: Value) -> Self {
        Self {
            constant: 0,
            terms: vec![(value, 1)],
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.constant = self.constant.wrapping_add(other.constant);
        for (value, factor) in other.terms {
            match self.terms.iter_mut().find(|(v, _)| *v == value) {
                Some((_, sum)) => *sum = sum.wrapping_add(factor),
                None => self.terms.push((value, factor)),
            }
        }
        self.terms.retain(|(_, factor)| *factor != 0);
        self
    }

    fn times(mut self, factor: u64) -> Self {
        self.constant = self.constant.wrapping_mul(factor);
        for (_, f) in &mut self.terms {
            *f = f.wrapping_mul(factor);
        }
        self.terms.retain(|(_, f)| *f != 0);
        self
    }

    fn extended(self, bits: u32, signed: bool) -> Self {
        if self.terms.is_empty() {
            let shift = 64 - bits;
            let top = self.constant << shift;
            return Self::constant(if signed {
                (top as i64 >> shift) as u64
            } else {
                top >> shift
            });
        }
        // What an inner extension did to higher bits does not matter.
        let mut inner = Self::constant(self.constant);
        for (value, factor) in self.terms {
            inner = inner.plus(match value {
                Value::Extended { bits: b, of, .. } if b >= bits => of.times(factor),
                Value::Load {
                    bits: b,
                    signed: s,
                    address,
                } if b == bits && s != signed => Self::value(Value::Load {
                    bits,
                    signed,
                    address,
                })
                .times(factor),
                value => Self::value(value).times(factor),
            });
        }
        // A load of that width is extended already.
        if let (
            [
                (
                    Value::Load {
                        bits: b, signed: s, ..
                    },
                    1,
                ),
            ],
            0,
        ) = (&inner.terms[..], inner.constant)
            && (*b == bits && *s == signed || *b < bits && !s)
        {
            return inner;
        }
        Self::value(Value::Extended {
            bits,
            signed,
            of: Box::new(inner),
        })
    }

    fn masked(self, mask: u64) -> Self {
        if self.terms.is_empty() {
            return Self::constant(self.constant & mask);
        }
        Self::value(Value::Masked {
            mask,
            of: Box::new(self),
        })
    }

    /// The single value that the sum consists of.
    pub fn single(&self) -> Option<&Value> {
        match &self.terms[..] {
            [(value, 1)] if self.constant == 0 => Some(value),
            _ => None,
        }
    }

    /// Whether a value that it consists of is defined anew by one of these instructions.
    fn is_defined_in(&self, places: &[Range<usize>]) -> bool {
        let is_in =
            |def: &Option<usize>| def.is_some_and(|d| places.iter().any(|p| p.contains(&d)));
        self.terms.iter().any(|(value, _)| match value {
            Value::Defined(_, defs) => defs.iter().any(is_in),
            Value::Load { address: of, .. }
            | Value::Extended { of, .. }
            | Value::Masked { of, .. } => of.is_defined_in(places),
        })
    }

    /// Whether it depends on what was in memory.
    fn is_loaded(&self) -> bool {
        self.terms.iter().any(|(value, _)| match value {
            Value::Defined(..) => false,
            Value::Load { .. } => true,
            Value::Extended { of, .. } | Value::Masked { of, .. } => of.is_loaded(),
        })
    }

    /// The sum without extensions around it: the same number as long as nothing was cut off.
    pub fn core(&self) -> &Self {
        let mut sum = self;
        while let Some(Value::Extended { of, .. }) = sum.single() {
            sum = of;
        }
        sum
    }
}

/// How deep expressions may nest.
const DEPTH: usize = 12;
/// How many terms a sum may have.
const TERMS: usize = 8;
/// How many instructions and blocks may be looked at for one function, which may be hostile.
const STEPS: usize = 1 << 22;

/// What the blocks are that nothing is known to lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Orphans {
    /// The cases of tables that are still to be found: they bring no other values.
    Cases,
    /// Entered from elsewhere, with any values.
    Entered,
}

/// Which registers each instruction writes.
pub(crate) struct Values<'a> {
    cfg: &'a Cfg,
    orphans: Orphans,
    /// One bit a register, by position of the instruction.
    writes: Vec<u16>,
    /// Whether memory may be another after the instruction, by position.
    stores: Vec<bool>,
    /// What is left of [`STEPS`].
    steps: Cell<usize>,
}

impl<'a> Values<'a> {
    pub fn new(cfg: &'a Cfg, orphans: Orphans) -> Self {
        let mut info = InstructionInfoFactory::new();
        let instructions = || cfg.instructions().iter();
        Self {
            cfg,
            orphans,
            writes: instructions().map(|i| written(&mut info, i)).collect(),
            stores: instructions().map(|i| stores(&mut info, i)).collect(),
            steps: Cell::new(STEPS),
        }
    }

    /// The value of operand `operand` of the instruction at position `at`, before it runs.
    pub fn operand(&self, at: usize, operand: u32) -> Option<Sum> {
        self.operand_within(at, operand, DEPTH)
    }

    /// Whether a sum is the same before and after these instructions.
    pub fn is_kept(&self, sum: &Sum, places: &[Range<usize>]) -> bool {
        let stores = |place: &Range<usize>| self.stores[place.clone()].contains(&true);
        !(sum.is_defined_in(places) || sum.is_loaded() && places.iter().any(stores))
    }

    /// The value of register `r` just before the instruction at position `at`.
    fn register_within(&self, r: Gpr, at: usize, depth: usize) -> Sum {
        let (defs, since) = self.definitions(r, at);
        let opaque = |defs| Sum::value(Value::Defined(r, defs));
        let Some(depth) = depth.checked_sub(1) else {
            return opaque(defs);
        };
        let mut values = defs
            .iter()
            .map(|d| d.and_then(|d| self.result(r, d, depth)));
        match values.next().flatten() {
            // What is copied is not what has been put into its place since.
            Some(first)
                if first.terms.len() <= TERMS
                    && values.all(|v| v.as_ref() == Some(&first))
                    && !first.is_defined_in(&since) =>
            {
                first
            }
            _ => opaque(defs),
        }
    }

    /// The instructions that may have set `r` last before position `at`, and all that may run between them and that.
    fn definitions(&self, r: Gpr, at: usize) -> (Vec<Option<usize>>, Vec<Range<usize>>) {
        let bit = 1 << r as u16;
        let mut since = Vec::new();
        let mut last_in = |range: Range<usize>| {
            let steps = self.steps.get().saturating_sub(range.len() + 1);
            self.steps.set(steps);
            let def = range.clone().rev().find(|&i| self.writes[i] & bit != 0);
            since.push(def.map_or(range.start, |def| def + 1)..range.end);
            def
        };
        let blocks = self.cfg.blocks();
        let Some(home) = self.cfg.block_of(self.cfg.instructions()[at].ip()) else {
            return (vec![None], since);
        };
        if let Some(def) = last_in(blocks[home].instructions.start..at) {
            return (vec![Some(def)], since);
        }
        let mut defs = Vec::new();
        // Blocks at whose beginning the value is still looked for.
        let mut seen = HashSet::from([home]);
        let mut open = vec![home];
        while let Some(block) = open.pop() {
            if self.steps.get() == 0 {
                defs.push(None);
                break;
            }
            if self.is_entered(block) {
                defs.push(None);
            }
            for &before in &blocks[block].predecessors {
                match last_in(blocks[before].instructions.clone()) {
                    Some(def) => defs.push(Some(def)),
                    None if seen.insert(before) => open.push(before),
                    None => {}
                }
            }
        }
        defs.sort_unstable();
        defs.dedup();
        (defs, since)
    }

    /// Whether control may come into a block from elsewhere than from the blocks before it.
    pub fn is_entered(&self, block: usize) -> bool {
        self.cfg.is_entered(block) || self.orphans == Orphans::Entered && self.cfg.is_orphan(block)
    }

    /// What the instruction at position `at`, which writes `r`, leaves in it.
    fn result(&self, r: Gpr, at: usize, depth: usize) -> Option<Sum> {
        let instruction = &self.cfg.instructions()[at];
        let operand = |n| self.operand_within(at, n, depth);
        if instruction.code() == Code::Cdqe {
            return Some(self.register_within(r, at, depth).extended(32, true));
        }
        let target = instruction.op0_register();
        if instruction.op0_kind() != OpKind::Register || target.full_register() != r.to_iced() {
            return None;
        }
        let bits = match target.size() {
            8 => 64,
            4 => 32,
            _ => return None,
        };
        let same = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Register
            && instruction.op1_register() == target;
        let sum = match instruction.mnemonic() {
            Mnemonic::Mov => operand(1)?,
            Mnemonic::Movzx => operand(1)?,
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                operand(1)?.extended(operand_bits(instruction, 1)?, true)
            }
            Mnemonic::Lea => self.address(at, depth)?,
            Mnemonic::Xor | Mnemonic::Sub if same => Sum::default(),
            Mnemonic::Add => operand(0)?.plus(operand(1)?),
            Mnemonic::Sub => operand(0)?.plus(operand(1)?.times(u64::MAX)),
            Mnemonic::Inc => operand(0)?.plus(Sum::constant(1)),
            Mnemonic::Dec => operand(0)?.plus(Sum::constant(u64::MAX)),
            Mnemonic::Shl if instruction.op1_kind() == OpKind::Immediate8 => {
                let shift = u32::from(instruction.immediate8()) % bits;
                operand(0)?.times(1 << shift)
            }
            Mnemonic::And => {
                let mask = operand(1)?;
                if !mask.terms.is_empty() {
                    return None;
                }
                operand(0)?.masked(mask.constant)
            }
            _ => return None,
        };
        Some(if bits == 32 {
            sum.extended(32, false)
        } else {
            sum
        })
    }

    fn operand_within(&self, at: usize, operand: u32, depth: usize) -> Option<Sum> {
        let instruction = &self.cfg.instructions()[at];
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                let high_byte = matches!(
                    register,
                    Register::AH | Register::BH | Register::CH | Register::DH
                );
                let gpr = Gpr::from_iced(register.full_register()).filter(|_| !high_byte)?;
                let sum = self.register_within(gpr, at, depth);
                Some(match register.size() {
                    8 => sum,
                    size => sum.extended(size as u32 * 8, false),
                })
            }
            OpKind::Memory => {
                // The other segments have base 0; %ds is how `notrack` is written.
                let segment = instruction.segment_prefix();
                if depth == 0 || matches!(segment, Register::FS | Register::GS) {
                    return None;
                }
                Some(Sum::value(Value::Load {
                    bits: operand_bits(instruction, operand)?,
                    signed: false,
                    address: Box::new(self.address(at, depth)?),
                }))
            }
            kind if is_immediate(kind) => Some(Sum::constant(instruction.immediate(operand))),
            _ => None,
        }
    }

    /// The address of the memory operand of the instruction at position `at`.
    fn address(&self, at: usize, depth: usize) -> Option<Sum> {
        let instruction = &self.cfg.instructions()[at];
        let mut sum = Sum::constant(instruction.memory_displacement64());
        let index = (
            instruction.memory_index(),
            u64::from(instruction.memory_index_scale()),
        );
        for (register, factor) in [(instruction.memory_base(), 1), index] {
            if matches!(register, Register::None | Register::RIP) {
                continue; // the displacement is absolute already
            }
            let value = self.register_within(Gpr::from_iced(register)?, at, depth);
            sum = sum.plus(value.times(factor));
        }
        Some(sum)
    }
}

/// The registers that `instruction` writes, one bit each. Of what a call destroys only the registers
/// of a result count: a compiler that reads another one after a call knows that it was kept.
fn written(info: &mut InstructionInfoFactory, instruction: &Instruction) -> u16 {
    if is_call(instruction) {
        return 1 << Gpr::Rax as u16 | 1 << Gpr::Rdx as u16;
    }
    info.info(instruction)
        .used_registers()
        .iter()
        .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
        .filter_map(|used| Gpr::from_iced(used.register().full_register()))
        .fold(0, |mask, r| mask | 1 << r as u16)
}

fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.is_call_near_indirect()
}

/// Whether `instruction` may change memory.
fn stores(info: &mut InstructionInfoFactory, instruction: &Instruction) -> bool {
    let is_read = |access| {
        matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        )
    };
    let used = info.info(instruction).used_memory();
    is_call(instruction)
        || instruction.code() == Code::Syscall
        || used.iter().any(|memory| !is_read(memory.access()))
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Width of a register or memory operand.
fn operand_bits(instruction: &Instruction, operand: u32) -> Option<u32> {
    let bytes = match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).size(),
        OpKind::Memory => instruction.memory_size().size(),
        _ => return None,
    };
    matches!(bytes, 1 | 2 | 4 | 8).then_some(bytes as u32 * 8)
}
