//! A copy of one instruction that runs elsewhere and goes on behind the original.

use darc_disasm::relocate;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock,
};

/// A copied instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copied {
    /// The copy and the jump behind it.
    pub code: Vec<u8>,
    /// The offset of the jump.
    pub jump: usize,
    /// Where it leads: behind the original.
    pub next: u64,
}

/// Encodes the first instruction of `bytes` (which lie at `from`) for the address `to`, followed by a
/// jump to the instruction behind it.
///
/// # Errors
/// Why the instruction cannot be moved.
pub fn first_instruction(bytes: &[u8], from: u64, to: u64) -> Result<Copied, String> {
    let instruction = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return Err("its bytes are no instruction".to_owned());
    }
    let back = Instruction::with_branch(Code::Jmp_rel32_64, instruction.next_ip())
        .map_err(|error| error.to_string())?;
    let copy = relocate(&[instruction], to).map_err(|error| error.to_string())?;
    // Wherever the original is: beyond 2 GiB the encoder jumps through a word of memory.
    let jump = InstructionBlock::new(std::slice::from_ref(&back), copy.end());
    let jump = BlockEncoder::encode(64, jump, BlockEncoderOptions::NONE)
        .map_err(|error| error.to_string())?;
    Ok(Copied {
        jump: copy.bytes.len(),
        code: [copy.bytes, jump.code_buffer].concat(),
        next: instruction.next_ip(),
    })
}

/// Target and return address of the first instruction, where that is a direct call.
///
/// # Errors
/// For an indirect call, whose target is not known beforehand.
pub fn first_call(bytes: &[u8], from: u64) -> Result<Option<(u64, u64)>, String> {
    let instruction = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE).decode();
    match instruction.flow_control() {
        FlowControl::Call if instruction.is_call_near() => Ok(Some((
            instruction.near_branch_target(),
            instruction.next_ip(),
        ))),
        FlowControl::Call | FlowControl::IndirectCall => Err("it is an indirect call".to_owned()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rip_relative_operand_keeps_its_target() {
        // lea rax,[rip+0x10] at 0x1000, so of 0x1017
        let copied = first_instruction(&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0], 0x1000, 0x5000).unwrap();
        assert_eq!((copied.jump, copied.next), (7, 0x1007));
        let mut decoder = Decoder::with_ip(64, &copied.code, 0x5000, DecoderOptions::NONE);
        assert_eq!(decoder.decode().ip_rel_memory_address(), 0x1017);
        assert_eq!(decoder.decode().near_branch_target(), 0x1007);
    }

    #[test]
    fn the_way_back_may_be_long() {
        let far = 0x7f00_0000_1000;
        let copied = first_instruction(&[0xf3, 0x0f, 0x1e, 0xfa], far, 0x5000).unwrap();
        let jump = &copied.code[copied.jump..];
        let jump = Decoder::with_ip(64, jump, 0x5004, DecoderOptions::NONE).decode();
        let word = (jump.ip_rel_memory_address() - 0x5000) as usize;
        assert_eq!(copied.code[word..word + 8], (far + 4).to_le_bytes());
    }

    #[test]
    fn its_own_address_stays_that_of_the_original() {
        // lea rax,[rip-7] at 0x1000
        let bytes = [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff];
        let copied = first_instruction(&bytes, 0x1000, 0x5000).unwrap();
        let mut decoder = Decoder::with_ip(64, &copied.code, 0x5000, DecoderOptions::NONE);
        assert_eq!(decoder.decode().ip_rel_memory_address(), 0x1000);
    }

    #[test]
    fn a_call_is_not_copied_but_emulated() {
        // call 0x1105 at 0x1000
        assert_eq!(
            first_call(&[0xe8, 0, 1, 0, 0], 0x1000),
            Ok(Some((0x1105, 0x1005)))
        );
        // call rax; push rbp
        assert!(first_call(&[0xff, 0xd0], 0x1000).is_err());
        assert_eq!(first_call(&[0x55], 0x1000), Ok(None));
    }

    #[test]
    fn bytes_that_are_no_instruction_are_refused() {
        assert!(first_instruction(&[0x06], 0x1000, 0x5000).is_err());
        assert!(first_instruction(&[], 0x1000, 0x5000).is_err());
    }
}
