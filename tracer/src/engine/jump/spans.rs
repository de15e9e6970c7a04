//! Which bytes of a function a jump may replace. Pure.
//!
//! A jump takes five bytes. Where the instruction itself is shorter, those before it are displaced
//! too: only such that run straight on, into which nothing branches.

use std::collections::HashSet;
use std::ops::Range;

use darc_disasm::FunctionCode;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

/// Bytes of `jmp rel32`.
pub const JUMP: u64 = 5;

/// Why no jump fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoRoom {
    /// Nothing before it may be displaced.
    #[error("there is no room for a jump before it")]
    TooShort,
    /// A branch leads to what would be displaced.
    #[error("a branch leads between the instructions that would have to be displaced")]
    BranchInside,
    /// The function has jumps whose targets are not known.
    #[error(
        "it is too short for a jump, and the function has a jump table, which may lead between the instructions before it"
    )]
    JumpTable,
    /// The address is not that of an instruction.
    #[error("there is no instruction at this address")]
    NoInstruction,
    /// An instruction that only works where it is.
    #[error("the function begins with an instruction that cannot be moved")]
    Immovable,
}

/// Where a patched range ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// With the instruction itself.
    Included,
    /// Right before the instruction, which stays where it is.
    Excluded,
}

/// A function's instructions and what branches where.
#[derive(Debug)]
pub struct View {
    instructions: Vec<Instruction>,
    targets: HashSet<u64>,
    unknown_jumps: bool,
    /// What lies behind the function up to the next one and is never run.
    padding: Range<u64>,
}

impl View {
    /// Looks at a function.
    #[must_use]
    pub fn new(code: &FunctionCode) -> View {
        let instructions: Vec<Instruction> = code.instructions().collect();
        let own = instructions.iter().filter_map(branch_target);
        let targets = own.chain(code.entrances().iter().copied()).collect();
        let unknown_jumps = instructions
            .iter()
            .any(|i| i.flow_control() == FlowControl::IndirectBranch);
        View {
            instructions,
            targets,
            unknown_jumps,
            padding: 0..0,
        }
    }

    /// The same, where `padding` follows the function's last instruction.
    #[must_use]
    pub fn with_padding(self, padding: Range<u64>) -> View {
        View { padding, ..self }
    }

    /// All instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Whether some branch of the function leads to the address.
    #[must_use]
    pub fn is_target(&self, addr: u64) -> bool {
        self.targets.contains(&addr)
    }

    /// The position of the instruction at an address.
    #[must_use]
    pub fn position(&self, addr: u64) -> Option<usize> {
        self.instructions
            .iter()
            .position(|i| i.ip() == addr && !i.is_invalid())
    }

    /// The instructions to replace so that a jump stands for the one at `addr` and what is displaced
    /// before it.
    ///
    /// # Errors
    /// Why there is no room.
    pub fn before(&self, addr: u64, last: Last) -> Result<Range<usize>, NoRoom> {
        let at = self.position(addr).ok_or(NoRoom::NoInstruction)?;
        let end = match last {
            Last::Included => at + 1,
            Last::Excluded => at,
        };
        let end_addr = match last {
            Last::Included => self.instructions[at].next_ip(),
            Last::Excluded => addr,
        };
        let mut start = at;
        while start == end || end_addr - self.instructions[start].ip() < JUMP {
            let before = start.checked_sub(1).ok_or(NoRoom::TooShort)?;
            let candidate = &self.instructions[before];
            let flow = candidate.flow_control();
            let straight = matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch)
                && !candidate.is_invalid()
                && candidate.next_ip() == self.instructions[start].ip();
            if !straight {
                return Err(NoRoom::TooShort);
            }
            start = before;
        }
        if end - start > 1 && self.unknown_jumps {
            return Err(NoRoom::JumpTable);
        }
        match self.is_entered(&(start..end)) {
            true => Err(NoRoom::BranchInside),
            false => Ok(start..end),
        }
    }

    /// Whether a branch leads to an instruction of the range other than its first.
    fn is_entered(&self, range: &Range<usize>) -> bool {
        let inside = self.instructions[range.clone()].iter().skip(1);
        inside.map(Instruction::ip).any(|ip| self.is_target(ip))
    }

    /// Two overlapping ranges as one, where that works: whatever ends straight execution must be at
    /// the end, for a call returns to the text behind it.
    ///
    /// # Errors
    /// Why they cannot be one.
    pub fn union(&self, a: &Range<usize>, b: &Range<usize>) -> Result<Range<usize>, NoRoom> {
        let both = a.start.min(b.start)..a.end.max(b.end);
        let instructions = &self.instructions[both.clone()];
        let goes_on = |i: &Instruction| {
            matches!(
                i.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            )
        };
        let straight = instructions.iter().rev().skip(1).all(goes_on);
        let contiguous = instructions
            .windows(2)
            .all(|pair| pair[0].next_ip() == pair[1].ip());
        match straight && contiguous {
            false => Err(NoRoom::TooShort),
            true if self.is_entered(&both) => Err(NoRoom::BranchInside),
            true => Ok(both),
        }
    }

    /// The instructions to replace at the function's entry; `endbr64` stays where it is.
    ///
    /// # Errors
    /// Why there is no room.
    pub fn at_entry(&self, entry: u64) -> Result<Range<usize>, NoRoom> {
        let first = self.position(entry).ok_or(NoRoom::NoInstruction)?;
        let start = first + usize::from(self.instructions[first].mnemonic() == Mnemonic::Endbr64);
        let mut end = start;
        let mut len = 0;
        let mut over = false;
        while len < JUMP {
            let instruction = self.instructions.get(end).ok_or(NoRoom::TooShort)?;
            let follows = end == start || self.instructions[end - 1].next_ip() == instruction.ip();
            let padding = self.padding.contains(&instruction.ip());
            if instruction.is_invalid() || !follows || (over && !padding) {
                return Err(NoRoom::TooShort);
            }
            len += instruction.len() as u64;
            end += 1;
            over |= match instruction.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => false,
                _ if padding => false,
                FlowControl::Call | FlowControl::IndirectCall
                    if instruction.code() == Code::Syscall =>
                {
                    return Err(NoRoom::Immovable);
                }
                FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::Return
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch => true,
                _ => return Err(NoRoom::Immovable),
            };
        }
        match self.is_entered(&(start..end)) {
            true => Err(NoRoom::BranchInside),
            false => Ok(start..end),
        }
    }
}

fn branch_target(instruction: &Instruction) -> Option<u64> {
    let branch = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::XbeginXabortXend
            | FlowControl::Call
    );
    let near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    (branch && near).then(|| instruction.near_branch_target())
}

#[cfg(test)]
mod tests {
    use darc_disasm::CodePart;
    use proptest::prelude::*;

    use super::*;

    fn view(bytes: &[u8]) -> View {
        let part = CodePart {
            start: 0x1000,
            bytes: bytes.to_vec(),
        };
        View::new(&FunctionCode::new(vec![part]).unwrap())
    }

    #[test]
    fn a_long_call_needs_nothing_else() {
        let v = view(&[0x90, 0xe8, 0, 0, 0, 0, 0xc3]); // nop; call; ret
        assert_eq!(v.before(0x1001, Last::Included), Ok(1..2));
    }

    #[test]
    fn a_short_call_displaces_what_is_before_it() {
        // mov %rdi,%rax; mov (%rax),%rax; call *%rax; ret
        let v = view(&[0x48, 0x89, 0xf8, 0x48, 0x8b, 0x00, 0xff, 0xd0, 0xc3]);
        assert_eq!(v.before(0x1006, Last::Included), Ok(1..3));
        // xor %eax,%eax; call *%rax; nothing before
        let v = view(&[0x31, 0xc0, 0xff, 0xd0]);
        assert_eq!(v.before(0x1002, Last::Included), Err(NoRoom::TooShort));
    }

    #[test]
    fn a_conditional_jump_before_it_is_displaced_too() {
        // test %rsi,%rsi; jne far; jmp far
        let v = view(&[0x48, 0x85, 0xf6, 0x75, 0x65, 0xeb, 0x03]);
        assert_eq!(v.before(0x1005, Last::Included), Ok(0..3));
        assert_eq!(v.at_entry(0x1000), Ok(0..2));
        assert_eq!(v.union(&(0..2), &(0..3)), Ok(0..3));
    }

    #[test]
    fn a_call_ends_a_range() {
        // call 0; push %rbx; sub $8,%rsp
        let v = view(&[0xe8, 0, 0, 0, 0, 0x53, 0x48, 0x83, 0xec, 8]);
        assert_eq!(v.union(&(0..1), &(0..3)), Err(NoRoom::TooShort));
        assert_eq!(v.union(&(1..2), &(1..3)), Ok(1..3));
    }

    #[test]
    fn a_call_before_it_is_not_displaced() {
        // call 0; call *%rax
        let v = view(&[0xe8, 0, 0, 0, 0, 0xff, 0xd0]);
        assert_eq!(v.before(0x1005, Last::Included), Err(NoRoom::TooShort));
    }

    #[test]
    fn nothing_may_branch_inside() {
        // mov (%rax),%rax; call *%rax; jmp to the call
        let v = view(&[0x48, 0x8b, 0x00, 0xff, 0xd0, 0xeb, 0xfc]);
        assert_eq!(v.before(0x1003, Last::Included), Err(NoRoom::BranchInside));
        // The same, but the branch leads to the beginning of the range.
        let v = view(&[0x48, 0x8b, 0x00, 0xff, 0xd0, 0xeb, 0xf9]);
        assert_eq!(v.before(0x1003, Last::Included), Ok(0..2));
    }

    #[test]
    fn an_unknown_jump_may_lead_anywhere_but_into_an_instruction() {
        // call 0; mov (%rax),%rax; call *%rax; jmp *%rdx
        let v = view(&[0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x00, 0xff, 0xd0, 0xff, 0xe2]);
        assert_eq!(v.before(0x1000, Last::Included), Ok(0..1));
        assert_eq!(v.before(0x1008, Last::Included), Err(NoRoom::JumpTable));
    }

    #[test]
    fn a_system_call_stays_and_its_number_is_displaced() {
        // mov $1,%eax; syscall; jmp to the syscall
        let v = view(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xfc]);
        assert_eq!(v.before(0x1005, Last::Excluded), Ok(0..1));
    }

    #[test]
    fn a_system_call_takes_nothing_from_elsewhere() {
        // push %rbx; mov %edi,%eax; syscall: too short
        let v = view(&[0x53, 0x89, 0xf8, 0x0f, 0x05]);
        assert_eq!(v.before(0x1003, Last::Excluded), Err(NoRoom::TooShort));
        // call 0; syscall
        let v = view(&[0xe8, 0, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(v.before(0x1005, Last::Excluded), Err(NoRoom::TooShort));
        // syscall; and elsewhere mov $1,%eax
        let part = |start, bytes: &[u8]| CodePart {
            start,
            bytes: bytes.to_vec(),
        };
        let parts = vec![
            part(0x1000, &[0x0f, 0x05]),
            part(0x800, &[0xb8, 1, 0, 0, 0]),
        ];
        let v = View::new(&FunctionCode::new(parts).unwrap());
        assert_eq!(v.before(0x1000, Last::Excluded), Err(NoRoom::TooShort));
    }

    #[test]
    fn jumps_out_of_a_function_take_what_is_before_them() {
        // mov %rsi,%rdi; mov (%rsi),%rax; jmp *0x10(%rax), three bytes; the function has an unknown jump
        let v = view(&[0x48, 0x89, 0xf7, 0x48, 0x8b, 0x06, 0xff, 0x60, 0x10]);
        assert_eq!(v.before(0x1006, Last::Included), Err(NoRoom::JumpTable));
        // nop; je far; mov %eax,%edi; jmp far
        let v = view(&[
            0x90, 0x0f, 0x84, 0xf9, 0x0f, 0, 0, 0x89, 0xc7, 0xe9, 0xf2, 0x0f, 0, 0,
        ]);
        assert_eq!(v.before(0x1001, Last::Included), Ok(1..2));
        assert_eq!(v.before(0x1009, Last::Included), Ok(3..4));
    }

    #[test]
    fn what_is_no_instruction_has_no_room() {
        // push %rbx; ret; a byte that begins none
        let v = view(&[0x53, 0xc3, 0x06]);
        for addr in [0x1002, 0x1005] {
            assert_eq!(v.before(addr, Last::Included), Err(NoRoom::NoInstruction));
        }
        assert_eq!(v.before(0x1001, Last::Included), Err(NoRoom::TooShort));
    }

    #[test]
    fn an_entry_may_end_with_a_call_and_be_jumped_to() {
        // push %rbx; call far; pop %rbx
        let v = view(&[0x53, 0xe8, 0xfa, 0x0f, 0, 0, 0x5b]);
        assert_eq!(v.at_entry(0x1000), Ok(0..2));
        // push %rbx; call *%rax; pop %rbx: the call returns before there is room
        let v = view(&[0x53, 0xff, 0xd0, 0x5b]);
        assert_eq!(v.at_entry(0x1000), Err(NoRoom::TooShort));
        // dec %edi; nopl (%rax); jne to the entry
        let v = view(&[0xff, 0xcf, 0x0f, 0x1f, 0x00, 0x75, 0xf9, 0xc3]);
        assert_eq!(v.at_entry(0x1000), Ok(0..2));
        assert!(v.is_target(0x1000));
        // push %rbx; dec %edi; jne to the dec
        let v = view(&[0x53, 0xff, 0xcf, 0x75, 0xfc, 0xc3]);
        assert_eq!(v.at_entry(0x1000), Err(NoRoom::BranchInside));
    }

    #[test]
    fn an_entry_and_an_end_that_overlap_are_one() {
        // endbr64; push %rbp; mov %rsp,%rbp; push %rbx; ret
        let v = view(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x53, 0xc3]);
        let end = v.before(0x1009, Last::Included).unwrap();
        assert_eq!(end, 2..5);
        assert_eq!(v.union(&v.at_entry(0x1000).unwrap(), &end), Ok(1..5));
    }

    proptest! {
        #[test]
        fn a_range_is_room_for_a_jump_in_any_code(
            pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 1..40),
        ) {
            let v = view(&pieces.concat());
            let all = v.instructions();
            let fits = |range: &Range<usize>| {
                let inside = &all[range.clone()];
                let straight = inside.windows(2).all(|pair| pair[0].next_ip() == pair[1].ip());
                let len = inside[inside.len() - 1].next_ip() - inside[0].ip();
                straight && len >= JUMP && inside[1..].iter().all(|i| !v.is_target(i.ip()))
            };
            let mut found: Vec<_> = v.at_entry(0x1000).into_iter().collect();
            for instruction in all {
                found.extend(v.before(instruction.ip(), Last::Included));
                found.extend(v.before(instruction.ip(), Last::Excluded));
            }
            prop_assert!(found.iter().all(fits));
            for pair in found.windows(2) {
                if let Ok(both) = v.union(&pair[0], &pair[1]) {
                    prop_assert!(fits(&both));
                }
            }
        }
    }

    /// Instructions of which the code of the property consists; the last is none.
    const PIECES: [&[u8]; 12] = [
        &[0xe8, 0, 0, 0, 0],
        &[0xe9, 8, 0, 0, 0],
        &[0x74, 4],
        &[0x75, 0xf8],
        &[0xeb, 0xf0],
        &[0x0f, 0x05],
        &[0xb8, 1, 0, 0, 0],
        &[0xff, 0xd0],
        &[0x55],
        &[0xc3],
        &[0x48, 0x89, 0xfb],
        &[0x06],
    ];

    #[test]
    fn padding_makes_room_for_what_is_over() {
        // ret; nopl 0(%rax,%rax), seven bytes
        let bytes = [0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0];
        assert_eq!(view(&bytes).at_entry(0x1000), Err(NoRoom::TooShort));
        let padded = view(&bytes).with_padding(0x1001..0x1008);
        assert_eq!(padded.at_entry(0x1000), Ok(0..2));
    }

    #[test]
    fn an_entry_keeps_its_landing_mark() {
        // endbr64; push %rbp; mov %rsp,%rbp; push %rbx; ret
        let v = view(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x53, 0xc3]);
        assert_eq!(v.at_entry(0x1000), Ok(1..4));
        // xor %eax,%eax; ret
        assert_eq!(
            view(&[0x31, 0xc0, 0xc3]).at_entry(0x1000),
            Err(NoRoom::TooShort)
        );
    }
}
