//! Where a function writes which constant into two bytes of a structure: how a coroutine says where it will go on.

use std::collections::HashSet;

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use crate::FunctionCode;

/// A constant that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// What.
    pub value: u16,
    /// Where the instruction is that writes it.
    pub addr: u64,
    /// The addresses of the next instructions before it which run whenever this one does, the nearest first: nothing is jumped to between
    /// them.
    pub before: Vec<u64>,
    /// As these, behind it, itself first.
    pub behind: Vec<u64>,
}

/// So many instructions are looked at on each side of one, at most.
const NEAR: usize = 64;
/// So many constants are told, at most: a stranger's function may be nothing else.
const MOST: usize = 4096;

/// The constants that a function writes into the two bytes that are `offset` behind where a register points to. A constant that comes
/// from elsewhere than the same straight line of code is none.
#[must_use]
pub fn constants_written(code: &FunctionCode, offset: u64) -> Vec<Written> {
    let instructions: Vec<Instruction> = code.instructions().collect();
    let mut written = Vec::new();
    for line in straight_lines(&instructions) {
        for (at, instruction) in line.iter().enumerate() {
            if written.len() == MOST {
                return written;
            }
            if !writes_there(instruction, offset) {
                continue;
            }
            let before = &line[at.saturating_sub(NEAR)..at];
            if let Some(value) = constant(before, instruction) {
                let behind = line[at..].iter().take(NEAR);
                written.push(Written {
                    value,
                    addr: instruction.ip(),
                    before: before.iter().rev().map(Instruction::ip).collect(),
                    behind: behind.map(Instruction::ip).collect(),
                });
            }
        }
    }
    written
}

/// Instructions that follow each other, and of which none but the first is jumped to. A call comes back.
fn straight_lines(instructions: &[Instruction]) -> Vec<&[Instruction]> {
    let targets: HashSet<u64> = instructions
        .iter()
        .filter(|i| {
            matches!(
                i.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            )
        })
        .map(Instruction::near_branch_target)
        .collect();
    let goes_on = |before: &Instruction, next: &Instruction| {
        matches!(
            before.flow_control(),
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall
        ) && before.next_ip() == next.ip()
            && !targets.contains(&next.ip())
    };
    instructions.chunk_by(goes_on).collect()
}

fn writes_there(instruction: &Instruction, offset: u64) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Memory
        && instruction.memory_size().size() == 2
        && instruction.memory_base().is_gpr64()
        && instruction.memory_base() != Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
        && instruction.memory_displacement64() == offset
}

/// What a called function leaves as it is (System V ABI for AMD64, 3.2.1).
const KEPT: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// What an instruction writes that comes after these.
fn constant(before: &[Instruction], instruction: &Instruction) -> Option<u16> {
    if instruction.op1_kind() == OpKind::Immediate16 {
        return Some(instruction.immediate16());
    }
    if instruction.op1_kind() != OpKind::Register {
        return None;
    }
    let register = instruction.op1_register().full_register();
    let mut factory = InstructionInfoFactory::new();
    let writes = |i: &Instruction, factory: &mut InstructionInfoFactory| {
        if matches!(
            i.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
            return !KEPT.contains(&register);
        }
        let info = factory.info(i);
        info.used_registers().iter().any(|used| {
            used.register().full_register() == register
                && !matches!(
                    used.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::None
                )
        })
    };
    let last = before.iter().rev().find(|i| writes(i, &mut factory))?;
    match (last.mnemonic(), last.op1_kind()) {
        (Mnemonic::Mov, OpKind::Immediate32) => u16::try_from(last.immediate32()).ok(),
        (Mnemonic::Xor, OpKind::Register) if last.op0_register() == last.op1_register() => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodePart;
    use iced_x86::code_asm::*;

    fn found(emit: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<(u16, usize)> {
        let mut a = CodeAssembler::new(64).unwrap();
        emit(&mut a).unwrap();
        let bytes = a.assemble(0x1000).unwrap();
        let part = CodePart {
            start: 0x1000,
            bytes,
        };
        let code = FunctionCode::new(vec![part]).unwrap();
        let written = constants_written(&code, 0x24).into_iter();
        let around = |it: &Written| it.before.len() + it.behind.len();
        written.map(|it| (it.value, around(&it))).collect()
    }

    use iced_x86::IcedError;

    #[test]
    fn constants_are_known_from_the_instruction_or_the_line_before_it() {
        let written = found(|a| {
            a.mov(word_ptr(rax + 0x24), 4)?;
            a.ret()?;
            a.mov(ecx, 6)?;
            a.nop()?;
            a.mov(word_ptr(rbx + 0x24), cx)?;
            a.ret()?;
            a.xor(eax, eax)?;
            a.mov(word_ptr(rbx + 0x24), ax)
        });
        assert_eq!(written, [(4, 2), (6, 4), (0, 2)]);
    }

    #[test]
    fn what_may_be_another_constant_is_none() {
        let written = found(|a| {
            let mut there = a.create_label();
            a.mov(ecx, 6)?;
            a.set_label(&mut there)?;
            a.mov(word_ptr(rbx + 0x24), cx)?;
            a.add(ecx, 2)?;
            a.mov(word_ptr(rbx + 0x24), cx)?;
            a.mov(word_ptr(rbx + 0x26), 8)?;
            a.mov(dword_ptr(rbx + 0x24), 8)?;
            a.mov(word_ptr(rsp + 0x24), 8)?;
            a.mov(edx, 6)?;
            a.call(rbp)?;
            a.mov(word_ptr(rbx + 0x24), dx)?;
            a.jmp(there)
        });
        assert_eq!(written, []);
    }

    #[test]
    fn what_a_call_keeps_is_the_same_constant() {
        let written = found(|a| {
            a.mov(r12d, 6)?;
            a.call(rbp)?;
            a.mov(word_ptr(rbx + 0x24), r12w)
        });
        assert_eq!(written, [(6, 3)]);
    }

    #[test]
    fn no_more_is_told_than_somebody_may_need() {
        let written = found(|a| {
            for _ in 0..2 * MOST {
                a.mov(word_ptr(rbx + 0x24), 4)?;
            }
            Ok(())
        });
        assert_eq!(written.len(), MOST);
        assert!(written.iter().all(|&(_, around)| around <= 2 * NEAR));
    }
}
