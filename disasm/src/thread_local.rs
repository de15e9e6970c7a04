//! Which thread-local variable a function reads or writes first.

use iced_x86::{Code, Instruction, Register};

use crate::code::FunctionCode;

/// How far from the thread pointer the variable is that a function uses first, in bytes: said by the instruction that uses it, or by the
/// one before, as in code that may lie anywhere (System V ABI for AMD64, 3.5.7, "Thread-Local Storage": the local-exec model). `None`
/// where it is said otherwise.
pub fn thread_local(code: &FunctionCode) -> Option<i64> {
    let mut before: Option<Instruction> = None;
    for i in code.instructions() {
        if i.segment_prefix() != Register::FS {
            before = Some(i);
            continue;
        }
        let displacement = i.memory_displacement64() as i64;
        return match (i.memory_base(), i.memory_index()) {
            (Register::None, Register::None) => Some(displacement),
            (base, Register::None) => {
                let said = before
                    .filter(|it| it.code() == Code::Mov_rm64_imm32 && it.op0_register() == base);
                said?.immediate32to64().checked_add(displacement)
            }
            _ => None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::CodePart;

    use super::*;

    fn first(bytes: &[u8]) -> Option<i64> {
        let part = CodePart {
            start: 0x1000,
            bytes: bytes.to_vec(),
        };
        thread_local(&FunctionCode::new(vec![part]).unwrap())
    }

    #[test]
    fn it_is_said_in_one_instruction_or_in_two() {
        // push %rbp; mov %fs:-8,%rax
        let one = [0x55, 0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff];
        assert_eq!(first(&one), Some(-8));
        // mov $-24,%rcx; mov %fs:(%rcx),%rax
        let two = [
            0x48, 0xc7, 0xc1, 0xe8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x01,
        ];
        assert_eq!(first(&two), Some(-24));
        // mov 0x10(%rip),%rcx; mov %fs:(%rcx),%rax
        let by_table = [0x48, 0x8b, 0x0d, 0x10, 0, 0, 0, 0x64, 0x48, 0x8b, 0x01];
        assert_eq!(first(&by_table), None);
        // mov $-24,%rdx; mov %fs:(%rcx),%rax
        let other = [
            0x48, 0xc7, 0xc2, 0xe8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x01,
        ];
        assert_eq!(first(&other), None);
        assert_eq!(first(&[0x55, 0xc3]), None);
    }
}
