//! Retpolines: code that jumps to where a register says by a `ret`, so that the processor does not predict where to.
//!
//! Compilers (`-mindirect-branch=thunk`, `-mretpoline`) have functions of this form, to which they jump or which they call
//! in place of an indirect jump or call, or put it into the code itself:
//! ```text
//!    call 2f
//! 1: pause
//!    lfence
//!    jmp 1b
//! 2: mov %rax,(%rsp)
//!    ret
//! ```

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use crate::Memory;
use crate::detached::{LONGEST, readable};

/// Whether the code at `addr` jumps to where a register says, and does nothing else.
pub(crate) fn is_thunk(memory: &dyn Memory, addr: u64) -> bool {
    let decode = |addr| {
        let mut bytes = [0; LONGEST];
        let bytes = readable(memory, addr, &mut bytes)?;
        let instruction = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    };
    let Some(mut first) = decode(addr) else {
        return false;
    };
    // No compiler writes more of them.
    for _ in 0..4 {
        if !matches!(first.code(), Code::Endbr64 | Code::Lfence) {
            break;
        }
        let Some(next) = decode(first.next_ip()) else {
            return false;
        };
        first = next;
    }
    match first.flow_control() {
        FlowControl::IndirectBranch => first.op0_kind() == OpKind::Register,
        _ => return_of(&first, decode).is_some(),
    }
}

/// The `ret` of a retpoline that begins with this call.
pub(crate) fn return_of(
    call: &Instruction,
    decode: impl Fn(u64) -> Option<Instruction>,
) -> Option<u64> {
    let writes = (call.code() == Code::Call_rel32_64)
        .then(|| decode(call.near_branch_target()))
        .flatten()?;
    let on_top = writes.code() == Code::Mov_rm64_r64
        && writes.memory_base() == Register::RSP
        && writes.memory_index() == Register::None
        && writes.memory_displacement64() == 0;
    let behind = decode(writes.next_ip())?;
    (on_top && behind.flow_control() == FlowControl::Return).then(|| behind.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same instruction wherever one looks.
    struct Endless(&'static [u8]);

    impl Memory for Endless {
        fn read(&self, addr: u64, into: &mut [u8]) -> bool {
            for (at, byte) in (addr..).zip(into) {
                *byte = self.0[at as usize % self.0.len()];
            }
            true
        }
    }

    #[test]
    fn code_that_never_comes_to_a_jump_is_no_thunk() {
        let lfence = Endless(&[0x0f, 0xae, 0xe8]);
        assert!(!is_thunk(&lfence, 0));
        let jump = Endless(&[0xff, 0xe0]);
        assert!(is_thunk(&jump, 0));
    }
}
