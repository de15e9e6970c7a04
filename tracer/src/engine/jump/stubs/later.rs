//! The code of a stub behind the common case.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, hash, tsc};
use crate::engine::jump::layout::descriptor;

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
    Delay { at: CodeLabel, back: CodeLabel },
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
            Later::Delay { mut at, back } => {
                let mut spin = a.create_label();
                a.set_label(&mut at)?;
                a.mov(rsi, rax)?;
                tsc(a)?;
                a.mov(rdi, rax)?;
                a.add(rdi, qword_ptr(rsi + descriptor::DELAY as i32))?;
                a.set_label(&mut spin)?;
                a.pause()?;
                tsc(a)?;
                // Whoever wanted the delay may have been killed since, or want it no more.
                a.cmp(rax, qword_ptr(rsi + descriptor::UNTIL as i32))?;
                a.jae(back)?;
                a.cmp(rax, rdi)?;
                a.jb(spin)?;
                a.jmp(back)
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
