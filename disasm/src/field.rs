//! Whether a function reads a part of what an argument points to before it does anything else: then anybody may read it
//! just before the function does.

use std::collections::HashMap;

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::FunctionCode;

/// So many instructions are looked at: the beginning of a function that keeps registers and makes room on the stack.
const MOST: usize = 100;
/// The registers of the first arguments (System V ABI for AMD64, 3.2.3).
const ARGUMENTS: [Register; 2] = [Register::RDI, Register::RSI];

/// Where a value is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Keeper {
    Register(Register),
    /// A word of memory, by the register that it is addressed by.
    Slot(Register, u64),
}

/// Which of the first two arguments (from 0) points to `offset` bytes before a word of `size` bytes that the function reads whatever happens:
/// before it branches, calls or returns.
///
/// A loop that touches the pages of a large frame is no branch.
#[must_use]
pub fn field_of_argument(code: &FunctionCode, offset: u64, size: u64) -> Option<usize> {
    let mut factory = InstructionInfoFactory::new();
    // Which argument is there, and since which instruction.
    let mut kept: HashMap<Keeper, (usize, u64)> = HashMap::new();
    for (argument, register) in ARGUMENTS.into_iter().enumerate() {
        kept.insert(Keeper::Register(register), (argument, 0));
    }
    for instruction in code.instructions().take(MOST) {
        if instruction.is_invalid() {
            return None;
        }
        let info = factory.info(&instruction);
        let reads = info.used_memory().iter().any(|memory| {
            let is_read = matches!(memory.access(), OpAccess::Read | OpAccess::ReadWrite);
            is_read && is_of_size(memory.memory_size(), size)
        });
        let base = Keeper::Register(instruction.memory_base());
        let is_plain = instruction.memory_index() == Register::None
            && instruction.segment_prefix() == Register::None
            && instruction.memory_displacement64() == offset;
        if reads
            && is_plain
            && let Some(&(argument, _)) = kept.get(&base)
        {
            return Some(argument);
        }
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target();
                if !(code.entry()..instruction.ip()).contains(&target) {
                    return None;
                }
                // What has been there since before the loop, and is there behind it, is there in all of its turns.
                kept.retain(|_, &mut (_, since)| since < target);
                continue;
            }
            _ => return None,
        }
        let moved = moved(&instruction, &kept);
        let written = info.used_registers().iter().filter(|used| {
            !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None
            )
        });
        for used in written {
            let register = used.register().full_register();
            kept.retain(|keeper, _| match *keeper {
                Keeper::Register(kept) | Keeper::Slot(kept, _) => kept != register,
            });
        }
        let writes = info.used_memory().iter().any(|memory| {
            !matches!(
                memory.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None
            )
        });
        if writes {
            // It may be any of them.
            kept.retain(|keeper, _| matches!(keeper, Keeper::Register(_)));
        }
        if let Some((to, argument)) = moved {
            kept.insert(to, (argument, instruction.ip()));
        }
    }
    None
}

fn is_of_size(memory: MemorySize, size: u64) -> bool {
    memory.size() as u64 == size
}

/// Where an instruction copies an argument to.
fn moved(
    instruction: &Instruction,
    kept: &HashMap<Keeper, (usize, u64)>,
) -> Option<(Keeper, usize)> {
    if instruction.mnemonic() != Mnemonic::Mov || instruction.op_count() != 2 {
        return None;
    }
    let keeper = |operand: u32| match instruction.op_kind(operand) {
        OpKind::Register if instruction.op_register(operand).is_gpr64() => {
            Some(Keeper::Register(instruction.op_register(operand)))
        }
        OpKind::Memory
            if matches!(instruction.memory_base(), Register::RSP | Register::RBP)
                && instruction.memory_index() == Register::None
                && instruction.memory_size().size() == 8 =>
        {
            let base = instruction.memory_base();
            Some(Keeper::Slot(base, instruction.memory_displacement64()))
        }
        _ => None,
    };
    let &(argument, _) = kept.get(&keeper(1)?)?;
    Some((keeper(0)?, argument))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodePart;
    use iced_x86::code_asm::*;

    fn found(emit: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Option<usize> {
        let mut a = CodeAssembler::new(64).unwrap();
        emit(&mut a).unwrap();
        let bytes = a.assemble(0x1000).unwrap();
        let part = CodePart {
            start: 0x1000,
            bytes,
        };
        field_of_argument(&FunctionCode::new(vec![part]).unwrap(), 0x40, 1)
    }

    use iced_x86::IcedError;

    #[test]
    fn the_argument_is_followed_to_where_it_is_read_through() {
        let direct = found(|a| {
            a.push(rbx)?;
            a.sub(rsp, 0x28)?;
            a.movzx(eax, byte_ptr(rdi + 0x40))
        });
        assert_eq!(direct, Some(0));
        let copied = found(|a| {
            a.mov(r14, rsi)?;
            a.xor(esi, esi)?;
            a.mov(qword_ptr(rsp + 8), r14)?;
            a.xor(r14d, r14d)?;
            a.mov(rax, qword_ptr(rsp + 8))?;
            a.cmp(byte_ptr(rax + 0x40), 3)
        });
        assert_eq!(copied, Some(1), "where the result is returned in memory");
        let probing = found(|a| {
            let mut page = a.create_label();
            a.lea(r11, qword_ptr(rsp - 0x8000))?;
            a.set_label(&mut page)?;
            a.sub(rsp, 0x1000)?;
            a.mov(qword_ptr(rsp), 0)?;
            a.cmp(rsp, r11)?;
            a.jne(page)?;
            a.movzx(eax, byte_ptr(rdi + 0x40))
        });
        assert_eq!(probing, Some(0));
    }

    #[test]
    fn what_is_not_certainly_read_is_not_found() {
        type Emit = fn(&mut CodeAssembler) -> Result<(), IcedError>;
        let cases: [Emit; 8] = [
            |a| a.mov(byte_ptr(rdi + 0x40), 1),
            |a| a.movzx(eax, byte_ptr(rdi + 0x41)),
            |a| a.movzx(eax, word_ptr(rdi + 0x40)),
            |a| a.movzx(eax, byte_ptr(rdi + rcx + 0x40)),
            |a| a.movzx(eax, byte_ptr(rdi + 0x40).fs()),
            |a| {
                a.xor(edi, edi)?;
                a.movzx(eax, byte_ptr(rdi + 0x40))
            },
            |a| {
                a.jne(0x2000)?;
                a.movzx(eax, byte_ptr(rdi + 0x40))
            },
            |a| {
                let mut again = a.create_label();
                a.set_label(&mut again)?;
                a.mov(rax, rdi)?;
                a.mov(rdi, rbx)?;
                a.jne(again)?;
                a.movzx(eax, byte_ptr(rax + 0x40))
            },
        ];
        for (index, emit) in cases.into_iter().enumerate() {
            assert_eq!(found(emit), None, "{index}");
        }
        let overwritten = found(|a| {
            a.mov(qword_ptr(rsp + 8), rdi)?;
            a.mov(qword_ptr(rbx), rcx)?;
            a.mov(rax, qword_ptr(rsp + 8))?;
            a.movzx(eax, byte_ptr(rax + 0x40))
        });
        assert_eq!(overwritten, None);
    }
}
