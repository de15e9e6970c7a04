//! PLT stubs: the few instructions through which calls into shared objects go.

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic, Register};

/// The address of the GOT slot through which the PLT stub at `addr` jumps: `jmp *slot(%rip)`, after
/// an optional `endbr64` and with or without `bnd` (x86-64 psABI, "Procedure Linkage Table"), or after the
/// `mov $number,%r11d` of the linker mold. The lazy form has the same first instruction; its slot leads
/// back into the PLT until it is bound.
/// None for any other code, the first half of an IBT stub (`endbr64; push; jmp`) included.
///
/// `bytes` are those at `addr`, 16 suffice.
pub fn got_slot(bytes: &[u8], addr: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
    let mut jump = decoder.decode();
    if jump.mnemonic() == Mnemonic::Endbr64 {
        jump = decoder.decode();
    }
    if jump.code() == Code::Mov_r32_imm32 && jump.op0_register() == Register::R11D {
        jump = decoder.decode();
    }
    let through_slot = jump.code() == Code::Jmp_rm64 && jump.is_ip_rel_memory_operand();
    // With a 32-bit address the instruction is another one.
    (through_slot && jump.memory_displ_size() == 8).then(|| jump.ip_rel_memory_address())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs() {
        // jmp *0x2fe2(%rip); push $0; jmp .plt
        let lazy = [
            0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,
        ];
        assert_eq!(got_slot(&lazy, 0x1030), Some(0x4018));
        // endbr64; bnd jmp *0x2f75(%rip); nopl
        let ibt = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0,
        ];
        assert_eq!(got_slot(&ibt, 0x1050), Some(0x3fd0));
        // endbr64; jmp *0x2f76(%rip)
        let newer = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x76, 0x2f, 0, 0];
        assert_eq!(got_slot(&newer, 0x1050), Some(0x3fd0));
        // endbr64; mov $0x1,%r11d; jmp *0x2408(%rip): mold's
        let numbered = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0xbb, 1, 0, 0, 0, 0xff, 0x25, 0x08, 0x24, 0, 0,
        ];
        assert_eq!(got_slot(&numbered, 0x1660), Some(0x3a78));
        assert_eq!(got_slot(&numbered[4..], 0x1664), Some(0x3a78));
        // jmp *0x2fe2(%rip); xchg %ax,%ax: .plt.got
        assert_eq!(got_slot(&lazy[..6], 0x1030), Some(0x4018));
    }

    #[test]
    fn other_code() {
        // endbr64; push $0; bnd jmp .plt
        let first_half = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xf2, 0xe9, 0xe1, 0xff, 0xff, 0xff, 0x90,
        ];
        assert_eq!(got_slot(&first_half, 0x1030), None);
        assert_eq!(got_slot(&[0xff, 0xe0], 0x1000), None); // jmp *%rax
        // mov $1,%r10d; jmp *0(%rip)
        let another = [0x41, 0xba, 1, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0];
        assert_eq!(got_slot(&another, 0x1000), None);
        assert_eq!(got_slot(&[0xff, 0x15, 0, 0, 0, 0], 0x1000), None); // call *0(%rip)
        assert_eq!(got_slot(&[0x67, 0xff, 0x25, 0, 0, 0, 0], 0x1000), None); // jmp *0(%eip)
        assert_eq!(got_slot(&[0xff, 0x25], 0x1000), None);
        assert_eq!(got_slot(&[], 0x1000), None);
    }
}
