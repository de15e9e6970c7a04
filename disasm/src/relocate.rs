//! Copies instructions to another address so that they do there what they did.
//!
//! Branch targets and rip-relative operands keep their absolute addresses. Refused is what depends on
//! its own address in another way (calls push it), and what cannot reach so far.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock,
};

use crate::blocks::direct_target;

/// Instructions at a new address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// Where the copy is to run.
    pub base: u64,
    /// The code.
    pub bytes: Vec<u8>,
    /// Every instruction's (old address, new address), in order.
    pub moved: Vec<(u64, u64)>,
}

impl Relocated {
    /// The address after the copy.
    pub fn end(&self) -> u64 {
        self.base.wrapping_add(self.bytes.len() as u64)
    }
}

/// Why an instruction cannot be moved. The field is its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Immovable {
    /// It is none.
    #[error("the bytes at {0:#x} are no instruction")]
    Undecodable(u64),
    /// A call, whose return address would be another.
    #[error("the call at {0:#x} pushes its own address")]
    Call(u64),
    /// `xbegin`: its fallback path cannot be told from a normal one.
    #[error("the instruction at {0:#x} begins a transaction")]
    Transaction(u64),
    /// A branch between the moved instructions.
    #[error("the branch at {0:#x} goes between the instructions to be moved")]
    BranchInside(u64),
    /// What it refers to is more than 2 GiB from the new address.
    #[error("what the instruction at {0:#x} refers to is out of reach")]
    OutOfReach(u64),
}

/// The longest code for one instruction: `jrcxz` becomes `jrcxz; jmp; jmp rel32`.
const LONGEST: u64 = 16;

/// Copies `instructions`, which lie one after the other, to `base`. A branch to the first of them
/// keeps its old target.
///
/// # Errors
/// What cannot be moved.
pub fn relocate(instructions: &[Instruction], base: u64) -> Result<Relocated, Immovable> {
    let mut copy = Relocated {
        base,
        bytes: Vec::new(),
        moved: Vec::new(),
    };
    let inside = match instructions {
        [first, .., last] => first.next_ip()..last.next_ip(),
        _ => 0..0,
    };
    for instruction in instructions {
        let at = copy.end();
        check(instruction, at)?;
        if direct_target(instruction).is_some_and(|target| inside.contains(&target)) {
            return Err(Immovable::BranchInside(instruction.ip()));
        }
        copy.moved.push((instruction.ip(), at));
        copy.bytes.extend(encode(instruction, at)?);
    }
    Ok(copy)
}

/// Whether `instruction` can be moved at all, no matter where to.
///
/// # Errors
/// Why not.
fn movable(instruction: &Instruction) -> Result<(), Immovable> {
    let addr = instruction.ip();
    match instruction.flow_control() {
        _ if instruction.is_invalid() => Err(Immovable::Undecodable(addr)),
        FlowControl::Call | FlowControl::IndirectCall if instruction.code() != Code::Syscall => {
            Err(Immovable::Call(addr))
        }
        FlowControl::XbeginXabortXend if direct_target(instruction).is_some() => {
            Err(Immovable::Transaction(addr))
        }
        _ => Ok(()),
    }
}

fn check(instruction: &Instruction, at: u64) -> Result<(), Immovable> {
    movable(instruction)?;
    let far = |target: u64| {
        // From wherever in the code for it the reference turns out to be.
        let distance = target.wrapping_sub(at) as i64;
        let reach = i64::from(i32::MAX) - LONGEST as i64;
        !(-reach..=reach).contains(&distance)
    };
    match direct_target(instruction) {
        Some(target) if far(target) => Err(Immovable::OutOfReach(instruction.ip())),
        _ => Ok(()),
    }
}

fn encode(instruction: &Instruction, at: u64) -> Result<Vec<u8>, Immovable> {
    let out_of_reach = Immovable::OutOfReach(instruction.ip());
    // The encoder moves targets that are in the block; only this instruction's old address would be.
    let mut block = [*instruction];
    block[0].set_ip(at);
    let encoded = BlockEncoder::encode(
        64,
        InstructionBlock::new(&block, at),
        BlockEncoderOptions::NONE,
    )
    .map_err(|_| out_of_reach)?
    .code_buffer;
    // The encoder reaches targets below 4 GiB from anywhere, by a 32-bit address; make sure that it is
    // the same target.
    if instruction.is_ip_rel_memory_operand() {
        let copy = Decoder::with_ip(64, &encoded, at, DecoderOptions::NONE).decode();
        let same = copy.is_ip_rel_memory_operand()
            && copy.ip_rel_memory_address() == instruction.ip_rel_memory_address();
        if !same {
            return Err(out_of_reach);
        }
    }
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x40_1000;
    const NEAR: u64 = 0x41_0000;

    fn decode(bytes: &[u8], base: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, base, DecoderOptions::NONE)
            .iter()
            .collect()
    }

    fn moved(bytes: &[u8], to: u64) -> Result<Relocated, Immovable> {
        relocate(&decode(bytes, BASE), to)
    }

    #[test]
    fn plain_instructions_keep_their_bytes() {
        let bytes = [0x55, 0x48, 0x89, 0xe5, 0x53]; // push %rbp; mov %rsp,%rbp; push %rbx
        let copy = moved(&bytes, NEAR).unwrap();
        assert_eq!(copy.bytes, bytes);
        assert_eq!(
            copy.moved,
            [(BASE, NEAR), (BASE + 1, NEAR + 1), (BASE + 4, NEAR + 4)]
        );
        assert_eq!(copy.end(), NEAR + 5);
    }

    #[test]
    fn references_keep_their_targets() {
        // lea 16(%rip),%rax; je .+0x12; mov %rdx,-8(%rip)
        let bytes = [
            0x48, 0x8d, 0x05, 16, 0, 0, 0, 0x74, 0x10, 0x48, 0x89, 0x15, 0xf8, 0xff, 0xff, 0xff,
        ];
        let old = decode(&bytes, BASE);
        let new = decode(&moved(&bytes, NEAR).unwrap().bytes, NEAR);
        assert_eq!(
            new[0].ip_rel_memory_address(),
            old[0].ip_rel_memory_address()
        );
        assert_eq!(new[1].near_branch_target(), old[1].near_branch_target());
        assert_eq!(new[1].len(), 6);
        assert_eq!(
            new[2].ip_rel_memory_address(),
            old[2].ip_rel_memory_address()
        );
    }

    #[test]
    fn short_jumps_on_rcx_get_a_detour() {
        // jrcxz .+0x12; nop
        let copy = moved(&[0xe3, 0x10, 0x90], NEAR).unwrap();
        let new = decode(&copy.bytes, NEAR);
        let targets: Vec<_> = new.iter().filter_map(direct_target).collect();
        assert!(targets.contains(&(BASE + 0x12)));
        let &(nop, after) = copy.moved.last().unwrap();
        assert_eq!(nop, BASE + 2);
        assert!(targets.contains(&after));
        assert_eq!(new.last().unwrap().ip(), after);
    }

    #[test]
    fn what_cannot_move() {
        let far = 0x7fff_0000_0000;
        assert_eq!(moved(&[0xe8, 0, 0, 0, 0], NEAR), Err(Immovable::Call(BASE)));
        assert_eq!(moved(&[0xff, 0xd0], NEAR), Err(Immovable::Call(BASE)));
        assert_eq!(moved(&[0x06], NEAR), Err(Immovable::Undecodable(BASE)));
        // xbegin
        assert_eq!(
            moved(&[0xc7, 0xf8, 0, 0, 0, 0], NEAR),
            Err(Immovable::Transaction(BASE))
        );
        assert_eq!(moved(&[0x74, 0x10], far), Err(Immovable::OutOfReach(BASE)));
        assert_eq!(moved(&[0xe3, 0x10], far), Err(Immovable::OutOfReach(BASE)));
        // lea 16(%rip),%rax: only the lowest 4 GiB are in reach from everywhere
        let lea = [0x48, 0x8d, 0x05, 16, 0, 0, 0];
        assert!(moved(&lea, far).is_ok());
        assert_eq!(
            relocate(&decode(&lea, far), BASE),
            Err(Immovable::OutOfReach(far))
        );
        // je over one nop; nop; nop
        assert_eq!(
            moved(&[0x74, 1, 0x90, 0x90], NEAR),
            Err(Immovable::BranchInside(BASE))
        );
    }

    #[test]
    fn a_branch_to_the_first_keeps_its_target() {
        // nop; jne to the nop; and a jne to itself
        for (bytes, branch) in [(&[0x90, 0x75, 0xfd][..], 1), (&[0x75, 0xfe], 0)] {
            let copy = moved(bytes, NEAR).unwrap();
            let new = decode(&copy.bytes, NEAR);
            assert_eq!(new[branch].near_branch_target(), BASE);
        }
    }
}
