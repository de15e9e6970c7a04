//! The code of a stub behind the common case.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Delaying, Emitted, Nap, TOP, hash, shadow, tsc};
use crate::engine::jump::layout::{descriptor, entry};

use super::builder::Builder;

/// Code that is rarely run, placed behind the rest.
pub enum Later {
    /// Finds the block of a thread that was not on this stack before, by a routine that may give a new thread one.
    Find {
        at: CodeLabel,
        routine: u64,
        back: CodeLabel,
        unknown: CodeLabel,
    },
    /// Calls a routine and goes on.
    Call {
        at: CodeLabel,
        routine: u64,
        back: CodeLabel,
    },
    /// The site's function is not current. It runs already, so a window may begin here.
    Window {
        at: CodeLabel,
        descriptor: u64,
        function: u32,
        again: CodeLabel,
        pass: CodeLabel,
    },
    /// A call returned to a function that runs already.
    Cut {
        at: CodeLabel,
        descriptor: u64,
        back: CodeLabel,
    },
    /// The call in the entry before rsi is to be delayed; rax is the callee's descriptor, and all that a stub saves is lost.
    Delay {
        at: CodeLabel,
        how: Delaying,
        /// Only where the caller's slot is so many bytes above its own.
        distance: Option<i32>,
        back: CodeLabel,
    },
    /// Calls a routine; with the zero flag goes one way, else the other.
    Choose {
        at: CodeLabel,
        routine: u64,
        zero: CodeLabel,
        other: CodeLabel,
    },
}

impl Builder<'_> {
    /// Appends such code.
    pub fn later(&mut self, later: Later) -> Emitted<()> {
        let a = &mut self.a;
        match later {
            Later::Find {
                mut at,
                routine,
                back,
                unknown,
            } => {
                a.set_label(&mut at)?;
                hash(a)?;
                a.call(routine)?;
                a.test(rcx, rcx)?;
                a.je(unknown)?;
                a.call(self.runtime.remember)?;
                a.jmp(back)
            }
            Later::Call {
                mut at,
                routine,
                back,
            } => {
                a.set_label(&mut at)?;
                a.call(routine)?;
                a.jmp(back)
            }
            Later::Window {
                mut at,
                descriptor,
                function,
                again,
                pass,
            } => {
                a.set_label(&mut at)?;
                a.mov(rax, descriptor)?;
                a.mov(edx, function)?;
                a.call(self.runtime.window)?;
                a.je(again)?;
                a.jmp(pass)
            }
            Later::Cut {
                mut at,
                descriptor,
                back,
            } => {
                a.set_label(&mut at)?;
                a.mov(rax, descriptor)?;
                a.call(self.runtime.cut)?;
                a.jmp(back)
            }
            Later::Delay {
                mut at,
                how,
                distance,
                back,
            } => {
                a.set_label(&mut at)?;
                if let Some(distance) = distance {
                    a.mov(rdx, shadow(2 * TOP, entry::SLOT))?;
                    a.sub(rdx, shadow(TOP, entry::SLOT))?;
                    a.cmp(rdx, distance)?;
                    a.jne(back)?;
                }
                delay(a, how, back)
            }
            Later::Choose {
                mut at,
                routine,
                zero,
                other,
            } => {
                a.set_label(&mut at)?;
                a.call(routine)?;
                a.je(zero)?;
                a.jmp(other)
            }
        }
    }
}

/// Waits as the descriptor at rax says, and goes on at `back`. Changes rax, rdx, rsi, rdi and the flags.
fn delay(a: &mut CodeAssembler, how: Delaying, back: CodeLabel) -> Emitted<()> {
    let [mut look, mut spin] = std::array::from_fn(|_| a.create_label());
    a.mov(rsi, rax)?;
    tsc(a)?;
    a.mov(rdi, rax)?;
    a.add(rdi, qword_ptr(rsi + descriptor::DELAY as i32))?;
    a.jmp(look)?;
    a.set_label(&mut spin)?;
    a.pause()?;
    a.set_label(&mut look)?;
    tsc(a)?;
    // Whoever wanted the delay may have been killed since, or want it no more.
    a.cmp(rax, qword_ptr(rsi + descriptor::UNTIL as i32))?;
    a.jae(back)?;
    a.cmp(rax, rdi)?;
    a.jae(back)?;
    match how {
        Delaying::Spinning => a.jmp(spin),
        Delaying::Sleeping(nap) => self::nap(a, nap, look),
    }
}

/// Sleeps until little is left of the time to rdi, or a signal comes; a delay that is so short itself lets others run. After a
/// sleep that would make a delay longer than it is to be by all that busy others do. rax is what the clock reads. Keeps all
/// but rax, rdx and the flags; whether the system call succeeds makes no difference.
fn nap(a: &mut CodeAssembler, Nap { scale, slack }: Nap, look: CodeLabel) -> Emitted<()> {
    let [mut short, mut done] = std::array::from_fn(|_| a.create_label());
    let lost = [rcx, r11];
    a.neg(rax)?;
    a.add(rax, rdi)?;
    a.mov(rdx, slack)?;
    for register in lost {
        a.push(register)?;
    }
    a.sub(rax, rdx)?;
    a.jbe(short)?;
    a.mov(rdx, scale)?;
    a.mul(rdx)?;
    a.shrd(rax, rdx, 32)?;
    a.push(rsi)?;
    a.push(rdi)?;
    // struct timespec: a delay is below a second.
    a.push(rax)?;
    a.push(0)?;
    a.mov(rdi, rsp)?;
    a.xor(esi, esi)?;
    a.mov(eax, libc::SYS_nanosleep as i32)?;
    a.syscall()?;
    a.lea(rsp, qword_ptr(rsp + 16))?;
    a.pop(rdi)?;
    a.pop(rsi)?;
    a.pop(r11)?;
    a.pop(rcx)?;
    a.jmp(look)?;
    a.set_label(&mut short)?;
    a.cmp(qword_ptr(rsi + descriptor::DELAY as i32), rdx)?;
    a.ja(done)?;
    a.mov(eax, libc::SYS_sched_yield as i32)?;
    a.syscall()?;
    a.set_label(&mut done)?;
    for register in lost.into_iter().rev() {
        a.pop(register)?;
    }
    a.jmp(look)
}
