//! Whether the arithmetic flags still matter at a place of the program: where they are overwritten
//! before anybody looks at them, a stub need not keep them, which saves a tenth of its time.
//!
//! Only straight code is followed, through direct calls and jumps and back out of what was called;
//! everything else, and code that cannot be read, counts as looking at them.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits,
};

use crate::addr::TargetAddr;
use crate::memory::Memory;

/// What becomes of the flags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Flags {
    /// Somebody may look at them.
    #[default]
    Matter,
    /// They are overwritten before.
    Overwritten,
}

/// The flags that the stubs' own arithmetic changes.
const ALL: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// How many instructions are looked at.
const MOST: usize = 48;

/// Follows the code from `at` on; where it returns, it goes on at `return_to`, if that is known.
#[must_use]
pub fn at(memory: &Memory, at: u64, return_to: Option<u64>) -> Flags {
    let read = |addr: u64, bytes: &mut [u8]| memory.read(TargetAddr(addr), bytes).is_ok();
    follow(&read, at, return_to)
}

fn follow(read: &dyn Fn(u64, &mut [u8]) -> bool, at: u64, return_to: Option<u64>) -> Flags {
    let mut code = Code {
        read,
        start: 0,
        bytes: Vec::new(),
    };
    let mut returns: Vec<u64> = return_to.into_iter().collect();
    let (mut at, mut alive) = (at, ALL);
    for _ in 0..MOST {
        let Some(instruction) = code.decode(at) else {
            return Flags::Matter;
        };
        if instruction.rflags_read() & alive != 0 {
            return Flags::Matter;
        }
        if always_writes(&instruction) {
            alive &= !instruction.rflags_modified();
        }
        if alive == 0 {
            return Flags::Overwritten;
        }
        let next = match instruction.flow_control() {
            FlowControl::Next => Some(instruction.next_ip()),
            FlowControl::UnconditionalBranch => Some(instruction.near_branch_target()),
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Call => {
                returns.push(instruction.next_ip());
                Some(instruction.near_branch_target())
            }
            FlowControl::IndirectBranch => through_the_table(read, &instruction),
            FlowControl::Return => returns.pop(),
            _ => None,
        };
        match next {
            Some(next) => at = next,
            None => return Flags::Matter,
        }
    }
    Flags::Matter
}

/// Shifts by a count in a register and repeated instructions change no flags when there is nothing to do.
fn always_writes(instruction: &Instruction) -> bool {
    let by_register = (0..instruction.op_count()).any(|index| {
        instruction.op_kind(index) == OpKind::Register
            && instruction.op_register(index) == Register::CL
    });
    !by_register && !instruction.has_rep_prefix() && !instruction.has_repne_prefix()
}

/// Where a jump through a word at a fixed address leads now: how the PLT is made.
fn through_the_table(read: &dyn Fn(u64, &mut [u8]) -> bool, jump: &Instruction) -> Option<u64> {
    let mut word = [0; 8];
    (jump.is_ip_rel_memory_operand() && read(jump.ip_rel_memory_address(), &mut word))
        .then(|| u64::from_le_bytes(word))
}

/// Code of the program, read in pieces.
struct Code<'a> {
    read: &'a dyn Fn(u64, &mut [u8]) -> bool,
    start: u64,
    bytes: Vec<u8>,
}

impl Code<'_> {
    fn decode(&mut self, at: u64) -> Option<Instruction> {
        const LONGEST: usize = 15;
        const PIECE: usize = 64;
        const PAGE: u64 = 4096;
        let known = |code: &Self| {
            let offset = usize::try_from(at.checked_sub(code.start)?).ok()?;
            (offset + LONGEST <= code.bytes.len()).then_some(offset)
        };
        let offset = match known(self) {
            Some(offset) => offset,
            None => {
                let to_page_end = (PAGE - at % PAGE) as usize;
                let readable = [PIECE, to_page_end.min(PIECE)].into_iter().find(|&len| {
                    self.bytes.resize(len, 0);
                    (self.read)(at, &mut self.bytes)
                });
                readable?;
                self.start = at;
                0
            }
        };
        let mut decoder = Decoder::with_ip(64, &self.bytes[offset..], at, DecoderOptions::NONE);
        Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    const BASE: u64 = 0x1000;

    fn flags(emit: impl Fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Flags {
        let mut a = CodeAssembler::new(64).unwrap();
        emit(&mut a).unwrap();
        let mut bytes = a.assemble(BASE).unwrap();
        bytes.resize(4096, 0xcc);
        let read = |addr: u64, buffer: &mut [u8]| {
            let from = addr.wrapping_sub(BASE) as usize;
            bytes
                .get(from..from.wrapping_add(buffer.len()))
                .map(|found| buffer.copy_from_slice(found))
                .is_some()
        };
        follow(&read, BASE, None)
    }

    #[test]
    fn arithmetic_overwrites_them() {
        let overwritten = |a: &mut CodeAssembler| {
            a.push(rbx)?;
            a.mov(rbx, rdi)?;
            a.sub(rsp, 16)
        };
        assert_eq!(flags(overwritten), Flags::Overwritten);
    }

    #[test]
    fn who_reads_them_wants_them() {
        let carry = |a: &mut CodeAssembler| {
            a.mov(rbx, rdi)?;
            a.adc(rax, rbx)
        };
        assert_eq!(flags(carry), Flags::Matter);
        // inc leaves the carry flag as it is.
        let half = |a: &mut CodeAssembler| {
            a.inc(rax)?;
            a.sbb(rax, rax)
        };
        assert_eq!(flags(half), Flags::Matter);
        let branch = |a: &mut CodeAssembler| a.jc(BASE);
        assert_eq!(flags(branch), Flags::Matter);
    }

    #[test]
    fn what_may_change_nothing_does_not_count() {
        let by_register = |a: &mut CodeAssembler| {
            a.shl(rax, cl)?;
            a.jc(BASE)
        };
        assert_eq!(flags(by_register), Flags::Matter);
        let repeated = |a: &mut CodeAssembler| {
            a.repe().cmpsb()?;
            a.je(BASE)
        };
        assert_eq!(flags(repeated), Flags::Matter);
    }

    #[test]
    fn calls_are_followed_and_left_again() {
        let through = |last: fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>| {
            move |a: &mut CodeAssembler| {
                let mut leaf = a.create_label();
                a.call(leaf)?;
                last(a)?;
                a.set_label(&mut leaf)?;
                a.lea(rax, qword_ptr(rdi + 3))?;
                a.ret()
            }
        };
        assert_eq!(flags(through(|a| a.add(rax, rbx))), Flags::Overwritten);
        assert_eq!(flags(through(|a| a.adc(rax, rbx))), Flags::Matter);
        // Nobody knows where this returns to.
        assert_eq!(flags(|a| a.ret()), Flags::Matter);
    }

    #[test]
    fn a_jump_through_a_word_is_followed() {
        let through = |a: &mut CodeAssembler| {
            let (mut word, mut to) = (a.create_label(), a.create_label());
            a.jmp(qword_ptr(word))?;
            a.set_label(&mut to)?;
            a.xor(eax, eax)?;
            a.ret()?;
            a.set_label(&mut word)?;
            a.dq(&[BASE + 6])
        };
        assert_eq!(flags(through), Flags::Overwritten);
    }

    #[test]
    fn endless_and_unreadable_code_wants_them() {
        assert_eq!(flags(|a| a.jmp(BASE)), Flags::Matter);
        assert_eq!(flags(|a| a.jmp(0x9_0000_u64)), Flags::Matter);
    }
}
