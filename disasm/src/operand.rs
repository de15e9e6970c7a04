//! Where an indirect call or jump finds its target.

use std::fmt;

use iced_x86::{Instruction, OpKind, Register};

use crate::{Memory, SkipReason};

/// A 64-bit general-purpose register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it all
pub enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

impl Gpr {
    /// All registers, in the order of their encoding.
    pub const ALL: [Self; 16] = [
        Self::Rax,
        Self::Rcx,
        Self::Rdx,
        Self::Rbx,
        Self::Rsp,
        Self::Rbp,
        Self::Rsi,
        Self::Rdi,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
    ];

    /// The 64-bit register that iced-x86 calls `register`; None for any other register or width.
    pub fn from_iced(register: Register) -> Option<Self> {
        let number = (register as usize).checked_sub(Register::RAX as usize)?;
        Self::ALL.get(number).copied()
    }

    /// The same register in iced-x86's terms.
    pub fn to_iced(self) -> Register {
        Register::RAX + self as u32
    }
}

impl fmt::Display for Gpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", format!("{self:?}").to_lowercase())
    }
}

/// The segment whose base is added to an address. In 64-bit mode the others have base 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Base 0.
    None,
    /// Thread-local storage on Linux.
    Fs,
    /// Free for programs to use.
    Gs,
}

/// A 64-bit value in memory at `segment + base + index * scale + displacement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryOperand {
    /// Segment override.
    pub segment: Segment,
    /// Base register.
    pub base: Option<Gpr>,
    /// Index register and its scale: 1, 2, 4 or 8.
    pub index: Option<(Gpr, u8)>,
    /// Added constant; the absolute address when the operand is relative to `rip`.
    pub displacement: i64,
}

impl MemoryOperand {
    /// The address that the operand refers to. Register values are those before the instruction.
    pub fn address(&self, registers: &dyn Registers) -> u64 {
        let segment = match self.segment {
            Segment::None => 0,
            Segment::Fs => registers.fs_base(),
            Segment::Gs => registers.gs_base(),
        };
        let base = self.base.map_or(0, |r| registers.gpr(r));
        let index = self
            .index
            .map_or(0, |(r, scale)| registers.gpr(r).wrapping_mul(scale.into()));
        segment
            .wrapping_add(base)
            .wrapping_add(index)
            .wrapping_add_signed(self.displacement)
    }
}

/// Where an indirect call or jump reads its target from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The register holds the target.
    Register(Gpr),
    /// The memory word holds the target.
    Memory(MemoryOperand),
}

/// Register values of a thread.
pub trait Registers {
    /// Value of a general-purpose register.
    fn gpr(&self, r: Gpr) -> u64;
    /// Base address of segment `fs`.
    fn fs_base(&self) -> u64;
    /// Base address of segment `gs`.
    fn gs_base(&self) -> u64;
    /// The flags register.
    fn rflags(&self) -> u64;
}

impl Operand {
    /// The value of the operand just before its instruction runs; None when its memory cannot be
    /// read.
    pub fn resolve(&self, regs: &dyn Registers, mem: &dyn Memory) -> Option<u64> {
        match self {
            Self::Register(r) => Some(regs.gpr(*r)),
            Self::Memory(m) => mem.read_u64(m.address(regs)),
        }
    }

    /// The first operand of a near indirect call or jump with 64-bit operand size.
    pub(crate) fn of_branch(instruction: &Instruction) -> Result<Self, SkipReason> {
        match instruction.op0_kind() {
            OpKind::Register => Gpr::from_iced(instruction.op0_register())
                .map(Self::Register)
                .ok_or(SkipReason::OperandSize),
            OpKind::Memory => memory_operand(instruction).map(Self::Memory),
            _ => Err(SkipReason::OperandSize),
        }
    }
}

/// The memory operand of `instruction`.
fn memory_operand(instruction: &Instruction) -> Result<MemoryOperand, SkipReason> {
    let segment = match instruction.segment_prefix() {
        Register::FS => Segment::Fs,
        Register::GS => Segment::Gs,
        _ => Segment::None,
    };
    // iced-x86 gives the absolute address as the displacement of rip-relative operands.
    let (base, wide) = match instruction.memory_base() {
        Register::None | Register::RIP => (None, true),
        register => {
            let gpr = Gpr::from_iced(register);
            (gpr, gpr.is_some())
        }
    };
    let index = match instruction.memory_index() {
        Register::None => None,
        register => {
            let scale = instruction.memory_index_scale() as u8;
            let gpr = Gpr::from_iced(register).ok_or(SkipReason::AddressSize)?;
            Some((gpr, scale))
        }
    };
    // A 32-bit address wraps at 4 GiB: without registers it shows only in the displacement's width.
    let narrow = base.is_none() && index.is_none() && instruction.memory_displ_size() == 4;
    if !wide || narrow && !instruction.is_ip_rel_memory_operand() {
        return Err(SkipReason::AddressSize);
    }
    Ok(MemoryOperand {
        segment,
        base,
        index,
        displacement: instruction.memory_displacement64() as i64,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    struct Thread;

    impl Registers for Thread {
        fn gpr(&self, r: Gpr) -> u64 {
            0x1000 * (r as u64 + 1)
        }
        fn fs_base(&self) -> u64 {
            0x7000_0000
        }
        fn gs_base(&self) -> u64 {
            u64::MAX
        }
        fn rflags(&self) -> u64 {
            0
        }
    }

    struct Words(HashMap<u64, u64>);

    impl Memory for Words {
        fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
            match self.0.get(&addr) {
                Some(word) => buf.copy_from_slice(&word.to_le_bytes()),
                None => return false,
            }
            true
        }
    }

    fn operand(bytes: &[u8]) -> Result<Operand, SkipReason> {
        let instruction = Decoder::with_ip(64, bytes, 0x40_0000, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), bytes.len());
        Operand::of_branch(&instruction)
    }

    /// The address from which an operand is read.
    fn address(bytes: &[u8]) -> u64 {
        match operand(bytes).unwrap() {
            Operand::Memory(m) => m.address(&Thread),
            Operand::Register(r) => panic!("{r}"),
        }
    }

    #[test]
    fn registers() {
        assert_eq!(operand(&[0xff, 0xd0]), Ok(Operand::Register(Gpr::Rax))); // call *%rax
        let r13 = operand(&[0x41, 0xff, 0xd5]).unwrap(); // call *%r13
        assert_eq!(r13, Operand::Register(Gpr::R13));
        assert_eq!(r13.resolve(&Thread, &Words(HashMap::new())), Some(0xe000));
        assert_eq!(Gpr::R13.to_string(), "%r13");
        assert_eq!(Gpr::from_iced(Register::EAX), None);
        assert_eq!(Gpr::from_iced(Register::RIP), None);
        for r in Gpr::ALL {
            assert_eq!(Gpr::from_iced(r.to_iced()), Some(r));
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(address(&[0xff, 0x50, 0x08]), 0x1008); // call *8(%rax)
        assert_eq!(address(&[0xff, 0x50, 0xf8]), 0x0ff8); // call *-8(%rax)
        assert_eq!(address(&[0xff, 0x54, 0x24, 0x10]), 0x5010); // call *16(%rsp)
        assert_eq!(address(&[0x41, 0xff, 0x14, 0xc4]), 0xd000 + 8 * 0x1000); // call *(%r12,%rax,8)
        assert_eq!(address(&[0xff, 0x15, 0x10, 0, 0, 0]), 0x40_0016); // call *16(%rip)
        assert_eq!(address(&[0xff, 0x14, 0x25, 0, 0x10, 0, 0]), 0x1000); // call *0x1000
        assert_eq!(
            address(&[0xff, 0x14, 0x25, 0, 0, 0, 0x80]),
            0xffff_ffff_8000_0000 // call *-0x80000000
        );
        assert_eq!(address(&[0x64, 0xff, 0x50, 0x08]), 0x7000_1008); // call *%fs:8(%rax)
        assert_eq!(address(&[0x65, 0xff, 0x10]), 0x0fff); // call *%gs:(%rax), wrapping
        assert_eq!(address(&[0x2e, 0xff, 0x50, 0x08]), 0x1008); // cs has no base
        assert_eq!(address(&[0x64, 0xff, 0x15, 0x10, 0, 0, 0]), 0x7040_0017); // %fs:16(%rip)
    }

    #[test]
    fn narrow_operands_are_refused() {
        // call *8(%eax)
        assert_eq!(
            operand(&[0x67, 0xff, 0x50, 8]),
            Err(SkipReason::AddressSize)
        );
        // call *(,%eax,8)
        assert_eq!(
            operand(&[0x67, 0xff, 0x14, 0xc5, 0, 0, 0, 0]),
            Err(SkipReason::AddressSize)
        );
        // call *0x1000 with a 32-bit address
        assert_eq!(
            operand(&[0x67, 0xff, 0x14, 0x25, 0, 0x10, 0, 0]),
            Err(SkipReason::AddressSize)
        );
        // call *16(%eip)
        assert_eq!(
            operand(&[0x67, 0xff, 0x15, 0x10, 0, 0, 0]),
            Err(SkipReason::AddressSize)
        );
    }

    #[test]
    fn memory_is_read_through_the_callers_eyes() {
        let slot = operand(&[0xff, 0x50, 0x08]).unwrap(); // call *8(%rax)
        let memory = Words(HashMap::from([(0x1008, 0x1234)]));
        assert_eq!(slot.resolve(&Thread, &memory), Some(0x1234));
        assert_eq!(slot.resolve(&Thread, &Words(HashMap::new())), None);
    }
}
