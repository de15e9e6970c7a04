//! The jumps in a piece of code, decoded from its beginning on.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use crate::FunctionCode;

/// Every jump that names its target: where it is, and where it leads. Calls are none. One after the other: a stranger's
/// code may be nothing but jumps.
pub fn direct_jumps(bytes: &[u8], at: u64) -> impl Iterator<Item = (u64, u64)> {
    let decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    decoder
        .into_iter()
        .filter(|instruction| {
            matches!(
                instruction.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            ) && instruction.op0_kind() == OpKind::NearBranch64
        })
        .map(|instruction| (instruction.ip(), instruction.near_branch_target()))
}

/// As [`direct_jumps`], calls among them.
pub fn direct_transfers(bytes: &[u8], at: u64) -> impl Iterator<Item = (u64, u64)> {
    let decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    decoder
        .into_iter()
        .filter(|i| i.op_count() == 1 && i.op0_kind() == OpKind::NearBranch64)
        .map(|i| (i.ip(), i.near_branch_target()))
}

/// Whether the address that a jump goes to may be that of a table's entry: just before a number is made one of 64 bits, as
/// compilers do with distances within a table.
#[must_use]
pub fn may_go_by_table(code: &FunctionCode, jump: u64) -> bool {
    const BEFORE: usize = 5;
    let instructions: Vec<Instruction> = code.instructions().collect();
    let Some(at) = instructions.iter().position(|i| i.ip() == jump) else {
        return true;
    };
    let widens = |i: &Instruction| {
        matches!(i.mnemonic(), Mnemonic::Movsxd | Mnemonic::Cdqe)
            || i.op_count() == 2 && i.op1_kind() == OpKind::Memory && i.memory_index_scale() == 8
    };
    instructions[at.saturating_sub(BEFORE)..=at]
        .iter()
        .any(widens)
        || instructions[at].memory_index_scale() == 8
}

/// The fixed places in memory that hold where jumps lead.
#[must_use]
pub fn jumps_through(bytes: &[u8], at: u64) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    decoder
        .into_iter()
        .filter(|instruction| {
            instruction.code() == Code::Jmp_rm64 && instruction.is_ip_rel_memory_operand()
        })
        .map(|instruction| instruction.ip_rel_memory_address())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_found_and_calls_are_not() {
        // jmp +2; je -4; call 0; jmp *%rax
        let bytes = [0xeb, 2, 0x74, 0xfc, 0xe8, 0, 0, 0, 0, 0xff, 0xe0];
        let found: Vec<_> = direct_jumps(&bytes, 0x1000).collect();
        assert_eq!(found, [(0x1000, 0x1004), (0x1002, 0x1000)]);
    }

    #[test]
    fn calls_are_transfers() {
        // jmp +2; call 0; call *%rax
        let bytes = [0xeb, 2, 0xe8, 0, 0, 0, 0, 0xff, 0xd0];
        let found: Vec<_> = direct_transfers(&bytes, 0x1000).collect();
        assert_eq!(found, [(0x1000, 0x1004), (0x1002, 0x1007)]);
    }

    #[test]
    fn jumps_by_tables_are_told_from_jumps_through_pointers() {
        let is_one = |bytes: &[u8], at: u64| {
            let part = crate::CodePart {
                start: 0x1000,
                bytes: bytes.to_vec(),
            };
            may_go_by_table(&FunctionCode::new(vec![part]).unwrap(), 0x1000 + at)
        };
        // movslq (%rcx,%rax,4),%rax; add %rcx,%rax; jmp *%rax
        assert!(is_one(
            &[0x48, 0x63, 0x04, 0x81, 0x48, 0x01, 0xc8, 0xff, 0xe0],
            7
        ));
        // jmp *(,%rax,8)
        assert!(is_one(&[0xff, 0x24, 0xc5, 0, 0, 0, 0], 0));
        // mov (%rdi),%rax; pop %rbx; jmp *%rax
        assert!(!is_one(&[0x48, 0x8b, 0x07, 0x5b, 0xff, 0xe0], 4));
    }

    #[test]
    fn places_that_jumps_read_are_found() {
        // jmp *0x10(%rip); call *0x10(%rip); jmp *(%rax)
        let bytes = [0xff, 0x25, 16, 0, 0, 0, 0xff, 0x15, 16, 0, 0, 0, 0xff, 0x20];
        assert_eq!(jumps_through(&bytes, 0x1000), [0x1016]);
    }
}
