//! The code that measured calls end in: the landing pad that they return to, and the copies of `syscall`
//! instructions.
//!
//! Both read the clock themselves before they trap, so that a call's end is exact however late the tracer
//! hears of it. What they change for that is undone here, whatever instruction a thread has come to.

use crate::stopped::Registers;
use darc_record::Tsc;

/// Where a thread is in one of these pieces of code, and what is to be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// How far the stack pointer has been lowered, in bytes.
    pub lowered: u64,
    /// What of rax and rdx is on the stack only.
    pub saved: Saved,
    /// Whether the clock has been read: rax and rdx hold its value.
    pub stamped: bool,
    /// Whether the trap is behind the thread.
    pub trapped: bool,
}

/// What the registers no longer hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// Everything is where it was.
    Nothing,
    /// rax is at the stack pointer.
    Rax,
    /// rdx is at the stack pointer, and rax above it.
    Both,
}

/// The landing pad.
///
/// ```text
///  0  lea rsp,[rsp-8]    the slot keeps the pad's address: somebody may just be putting it back
///  5  push rax
///  6  push rdx
///  7  rdtsc
///  9  int3               the guardian makes it a nop when the tracer has died
/// 10  pop rdx
/// 11  pop rax
/// 12  ret                to the pad again, until the guardian has put the slot right
/// ```
/// Below the stack pointer is nothing of the program's: a call has just returned there (System V ABI for
/// AMD64, 3.2.2). No flags are changed.
pub const LANDING: [u8; 13] = [
    0x48, 0x8d, 0x64, 0x24, 0xf8, 0x50, 0x52, 0x0f, 0x31, 0xcc, 0x5a, 0x58, 0xc3,
];

/// Where the trap stands in the landing pad.
pub const LANDING_TRAP: u64 = 9;

/// How far a thread is at an offset into the landing pad; `None` where no instruction begins.
#[must_use]
pub fn in_landing(offset: u64) -> Option<Progress> {
    let (lowered, saved) = match offset {
        0 => (0, Saved::Nothing),
        5 => (8, Saved::Nothing),
        6 => (16, Saved::Nothing),
        7 => (24, Saved::Nothing),
        9 | 10 => (24, Saved::Both),
        11 => (16, Saved::Rax),
        12 => (8, Saved::Nothing),
        _ => return None,
    };
    Some(Progress {
        lowered,
        saved,
        stamped: saved == Saved::Both,
        trapped: offset > LANDING_TRAP,
    })
}

/// Undoes what the landing pad has done: the registers are those of a thread that has just returned. The
/// clock's reading, if it is at hand. `stack` are the two words at the stack pointer.
pub fn undo_landing(registers: &mut Registers, progress: Progress, stack: [u64; 2]) -> Option<Tsc> {
    let stamp = progress.stamped.then(|| stamp(registers));
    match progress.saved {
        Saved::Nothing => {}
        Saved::Rax => registers.0.rax = stack[0],
        Saved::Both => [registers.0.rdx, registers.0.rax] = stack,
    }
    registers.0.rsp = registers.rsp().wrapping_add(progress.lowered);
    stamp
}

/// Where the trap stands in a measured copy of a `syscall` instruction.
pub const SYSCALL_TRAP: u64 = 10;

/// What replaces the one byte of a trap here (`nop`) when nobody listens any more.
pub const PASS: u8 = 0x90;

/// A copy of a `syscall` instruction that goes on at `next`, with a trap or (for calls that are not
/// measured) without.
///
/// ```text
///  0  syscall
///  2  mov rcx,rax        the kernel has used up rcx and r11 anyway
///  5  mov r11,rdx
///  8  rdtsc
/// 10  int3               one byte turns it into a nop
/// 11  mov rax,rcx
/// 14  mov rdx,r11
/// 17  mov rcx,[next]     where the kernel leaves the return address
/// 24  jmp [next]
/// 30  next
/// ```
/// The red zone stays as it is. r11, in which the kernel leaves the flags, has them when the trap was handled
/// and rdx otherwise.
#[must_use]
pub fn syscall_copy(next: u64) -> Vec<u8> {
    let mut code = vec![
        0x0f, 0x05, 0x48, 0x89, 0xc1, 0x49, 0x89, 0xd3, 0x0f, 0x31, 0xcc, 0x48, 0x89, 0xc8, 0x4c,
        0x89, 0xda, 0x48, 0x8b, 0x0d, 6, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0,
    ];
    code.extend(next.to_le_bytes());
    code
}

/// The offsets of the instructions of [`syscall_copy`].
pub const SYSCALL_OFFSETS: [u64; 9] = [0, 2, 5, 8, 10, 11, 14, 17, 24];

/// Undoes what a copy of a `syscall` instruction has done behind the system call. The clock's reading, if it
/// stands in the registers.
pub fn undo_syscall(registers: &mut Registers, offset: u64, next: u64) -> Option<Tsc> {
    let stamped = matches!(offset, 10 | 11);
    let stamp = stamped.then(|| stamp(registers));
    let r = &mut registers.0;
    if stamped {
        r.rax = r.rcx;
    }
    if matches!(offset, 10 | 11 | 14) {
        r.rdx = r.r11;
    }
    if offset > 0 {
        r.rcx = next;
        r.r11 = r.eflags;
    }
    stamp
}

fn stamp(registers: &Registers) -> Tsc {
    Tsc((registers.0.rdx << 32) | (registers.0.rax & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    fn decoded(code: &[u8]) -> Vec<(u64, iced_x86::Instruction)> {
        Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
            .into_iter()
            .map(|instruction| (instruction.ip(), instruction))
            .collect()
    }

    #[test]
    fn the_landing_pad_is_what_its_offsets_say() {
        let code = decoded(&LANDING);
        let (mut lowered, mut saved) = (0, Saved::Nothing);
        for (at, instruction) in &code {
            let progress = in_landing(*at).expect("an instruction begins there");
            assert_eq!(progress.lowered, lowered, "{instruction}");
            assert_eq!(progress.saved, saved, "{instruction}");
            assert_eq!(progress.trapped, *at > LANDING_TRAP, "{instruction}");
            match instruction.mnemonic() {
                Mnemonic::Lea | Mnemonic::Push => lowered += 8,
                Mnemonic::Rdtsc => saved = Saved::Both,
                Mnemonic::Pop => {
                    lowered -= 8;
                    let rdx = instruction.op0_register() == Register::RDX;
                    saved = if rdx { Saved::Rax } else { Saved::Nothing };
                }
                _ => {}
            }
            assert!(instruction.rflags_modified() == 0, "{instruction}");
        }
        assert_eq!(LANDING[LANDING_TRAP as usize], 0xcc);
        assert_eq!(code.last().unwrap().1.mnemonic(), Mnemonic::Ret);
        assert_eq!(lowered, 8, "it returns by the slot that led to it");
        assert_eq!((1..5).find_map(in_landing), None);
    }

    #[test]
    fn a_syscall_copy_is_what_its_offsets_say() {
        let code = syscall_copy(0x1234_5678_9abc);
        let (instructions, next) = code.split_at(30);
        let instructions = decoded(instructions);
        let at: Vec<u64> = instructions.iter().map(|(at, _)| *at).collect();
        assert_eq!(at, SYSCALL_OFFSETS);
        assert_eq!(code[SYSCALL_TRAP as usize], 0xcc);
        assert_eq!(next, 0x1234_5678_9abc_u64.to_le_bytes());
        for (_, instruction) in &instructions[7..] {
            assert_eq!(instruction.ip_rel_memory_address(), 30, "{instruction}");
        }
        assert_eq!(instructions[7].1.op0_register(), Register::RCX);
    }
}
