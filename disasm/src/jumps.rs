//! The jumps in a piece of code, decoded from its beginning on.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, OpKind};

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
    fn places_that_jumps_read_are_found() {
        // jmp *0x10(%rip); call *0x10(%rip); jmp *(%rax)
        let bytes = [0xff, 0x25, 16, 0, 0, 0, 0xff, 0x15, 16, 0, 0, 0, 0xff, 0x20];
        assert_eq!(jumps_through(&bytes, 0x1000), [0x1016]);
    }
}
