//! The code of a stub behind the common case.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{
    Delaying, Emitted, Nap, TOP, field, has_pointer, hash, shadow, tsc,
};
use crate::engine::jump::layout::{HEADER, block, descriptor, entry, header, node, place};
use crate::engine::jump::runtime::{DEEPEST_STACK, credit};

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
    /// This is a forked child, which may have no thread pointer.
    Forked {
        at: CodeLabel,
        live: CodeLabel,
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
    /// The call in the entry before rsi is to be delayed, unless a signal handler makes it; rax is the callee's descriptor, and
    /// all that a stub saves is lost.
    Delay {
        at: CodeLabel,
        how: Delaying,
        back: CodeLabel,
    },
    /// What is awaited is further out than the slot in rdx, perhaps on another stack.
    Below { at: CodeLabel, pass: CodeLabel },
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
            Later::Forked {
                mut at,
                live,
                unknown,
            } => {
                a.set_label(&mut at)?;
                has_pointer(a, self.around.tells_pointer, unknown, live)
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
            Later::Delay { mut at, how, back } => {
                a.set_label(&mut at)?;
                outside_handlers(a, self.around.control, back)?;
                delay(a, how, self.runtime.first, back)
            }
            Later::Below { mut at, pass } => {
                a.set_label(&mut at)?;
                // Neither a window nor the sentinel is on a stack: both are negative.
                a.mov(rax, shadow(TOP, entry::SLOT))?;
                a.sub(rax, rdx)?;
                a.cmp(rax, DEEPEST_STACK)?;
                a.jle(pass)?;
                a.call(self.runtime.switched)?;
                a.jmp(pass)
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

/// Makes for `inside` where a signal handler makes, or may make, the call in the entry before rsi: where the frame of one of its
/// callers is not just below that of the next, up to the op's own; or, where that is not known, as of what has no callers here,
/// where the thread blocks a signal that the program handles, as the kernel does while the handler runs. Keeps all but rdx, rdi
/// and the flags.
fn outside_handlers(a: &mut CodeAssembler, control: u64, inside: CodeLabel) -> Emitted<()> {
    let [mut next, mut first, mut ask, mut outside] = std::array::from_fn(|_| a.create_label());
    let of = |field: u64| qword_ptr(rdi + (TOP + field as i32));
    a.mov(rdi, rsi)?;
    a.set_label(&mut next)?;
    // Below the op there is nothing to look at.
    a.cmp(rdi, field(block::BASE))?;
    a.jbe(inside)?;
    a.mov(rdx, of(entry::PLACE))?;
    a.cmp(dword_ptr(rdx + place::KIND as i32), place::CALL as i32)?;
    a.jne(first)?;
    a.movsxd(rdx, dword_ptr(rdx + place::DISTANCE as i32))?;
    a.cmp(edx, place::NOT_KNOWN)?;
    a.je(ask)?;
    a.add(rdx, of(entry::SLOT))?;
    a.lea(rdi, qword_ptr(rdi + TOP))?;
    a.cmp(rdx, of(entry::SLOT))?;
    a.je(next)?;
    a.jmp(inside)?;
    a.set_label(&mut first)?;
    a.cmp(dword_ptr(rdx + place::KIND as i32), place::SERVED as i32)?;
    a.jne(outside)?;
    a.set_label(&mut ask)?;
    blocks_handled(a, control, inside)?;
    a.set_label(&mut outside)?;
    a.nop()
}

/// Makes for `yes` where the thread blocks a signal that the program handles, or does not tell. Keeps all but rdx, rdi and the
/// flags.
fn blocks_handled(a: &mut CodeAssembler, control: u64, yes: CodeLabel) -> Emitted<()> {
    /// Bytes of the kernel's set of signals.
    const SET: i32 = 8;
    let kept = [rax, rcx, rsi, r10, r11];
    for register in kept {
        a.push(register)?;
    }
    // Changes nothing: there is no new set, only room for that in force.
    a.push(-1)?;
    a.mov(eax, libc::SYS_rt_sigprocmask as i32)?;
    a.mov(edi, libc::SIG_BLOCK)?;
    a.xor(esi, esi)?;
    a.mov(rdx, rsp)?;
    a.mov(r10d, SET)?;
    a.syscall()?;
    // Where the call has failed this is still all of them.
    a.pop(rdx)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.mov(rdi, control + HEADER + header::HANDLED)?;
    a.test(qword_ptr(rdi), rdx)?;
    a.jne(yes)
}

/// Waits as the descriptor at rax says, the callee's of the entry before rsi; rcx is the block. Credits what passed since that
/// call began, and goes on at `back`. Changes rax, rdx, rsi, rdi and the flags.
fn delay(a: &mut CodeAssembler, how: Delaying, first: u64, back: CodeLabel) -> Emitted<()> {
    let [mut look, mut spin, mut over] = std::array::from_fn(|_| a.create_label());
    a.mov(rdi, qword_ptr(rax + descriptor::DELAY as i32))?;
    a.add(rdi, shadow(TOP, entry::START))?;
    // Who sleeps looks at the clock again only when it wakes.
    a.mov(rdx, qword_ptr(rax + descriptor::UNTIL as i32))?;
    a.cmp(rdi, rdx)?;
    a.cmova(rdi, rdx)?;
    a.jmp(look)?;
    a.set_label(&mut spin)?;
    a.pause()?;
    a.set_label(&mut look)?;
    tsc(a)?;
    a.mov(rdx, shadow(TOP, entry::CHILD))?;
    // Whoever wanted the delay may have been killed since, or want it no more.
    a.cmp(rax, qword_ptr(rdx + descriptor::UNTIL as i32))?;
    a.jae(over)?;
    a.cmp(rax, rdi)?;
    a.jae(over)?;
    match how {
        Delaying::Spinning => a.jmp(spin)?,
        Delaying::Sleeping(nap) => self::nap(a, nap, look)?,
    }
    a.set_label(&mut over)?;
    credit_delay(a, first, back)
}

/// Credits to [`node::DELAYS`] how long the call in the entry before rsi has gone on when the clock reads rax.
fn credit_delay(a: &mut CodeAssembler, first: u64, back: CodeLabel) -> Emitted<()> {
    let (credited, mut begin) = (a.create_label(), a.create_label());
    a.mov(rdi, rax)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.sub(rdi, shadow(0, entry::START))?;
    a.lea(rax, field(block::NODES + node::DELAYS * node::SIZE))?;
    credit(a, credited, begin)?;
    a.jmp(back)?;
    a.set_label(&mut begin)?;
    a.call(first)?;
    a.jmp(credited)
}

/// Sleeps until little is left of the time to rdi, or a signal comes; a delay that is so short itself lets others run. After a
/// sleep that would make a delay longer than it is to be by all that busy others do. rax is what the clock reads, and rsi is
/// behind the call's entry. Keeps all but rax, rdx and the flags; whether the system call succeeds makes no difference.
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
    a.mov(rax, shadow(TOP, entry::CHILD))?;
    a.cmp(qword_ptr(rax + descriptor::DELAY as i32), rdx)?;
    a.ja(done)?;
    a.mov(eax, libc::SYS_sched_yield as i32)?;
    a.syscall()?;
    a.set_label(&mut done)?;
    for register in lost.into_iter().rev() {
        a.pop(register)?;
    }
    a.jmp(look)
}
