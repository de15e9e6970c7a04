//! A way back for a thread that makes system calls in the target's name, should its tracer be killed meanwhile: the
//! kernel then lets the thread run on with the registers that were set for the call.
//!
//! It is a signal frame with the thread's own registers, below the thread's stack or on an unused part of the first
//! thread's: behind the system call the thread comes to a `ret`, which leads to the C library's `rt_sigreturn`. While the
//! tracer lives nothing of this runs, and what was there is put back.
//!
//! Source: the kernel's `arch/x86/include/uapi/asm/sigcontext.h` and `ucontext.h`, sigreturn(2); System V ABI for AMD64, 3.2.2
//! (the red zone).

use crate::addr::TargetAddr;
use crate::gadgets::Gadgets;
use crate::memory::Memory;
use crate::stopped::{ERESTARTNOHAND, Registers};
use crate::sys::{self, RawRegisters};

/// Bytes below the stack pointer that belong to the function.
pub const RED_ZONE: u64 = 128;
/// Bytes of `struct rt_sigframe`: return address, context, signal information.
const FRAME: usize = 440;
/// Offsets in it.
const FLAGS: usize = 8;
const STACK_FLAGS: usize = 32;
const REGISTERS: usize = 48;
const EXTENDED: usize = REGISTERS + 184;
const MASK: usize = REGISTERS + 256;
/// Signal information, which nobody reads: there a frame of ours is told from others.
const TAG_AT: usize = FRAME - 16;
const TAG: &[u8; 16] = b"darc's way back.";

/// There is an extended state, and the stack segment is to be restored as it is.
const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// No stack for signals has such flags: the thread keeps the one that it has.
const NO_SUCH_STACK: u32 = u32::MAX;

/// Of the extended state, at an offset that processors leave to software: that there is one, and how long it is.
const SOFTWARE: usize = 464;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// Which parts of the extended state are in use (the processor's `XSTATE_BV`).
const IN_USE: usize = 512;
/// What XSAVE writes before anything that not every processor has.
const LEAST_EXTENDED: usize = 512 + 64;

/// What has been laid below a thread's stack, and what was there.
#[derive(Debug)]
pub struct WayBack {
    at: TargetAddr,
    before: Vec<u8>,
}

impl WayBack {
    /// Lays it below `top`; `None` where there is no room, or the target is gone. `extended` is the thread's extended
    /// state, as the kernel tells it (`NT_X86_XSTATE`).
    pub fn lay(
        memory: &Memory,
        top: u64,
        registers: &Registers,
        mask: u64,
        extended: &[u8],
        gadgets: Gadgets,
    ) -> Option<WayBack> {
        let (at, bytes) = frame(top, &registers.0, mask, extended, gadgets.sigreturn)?;
        let mut before = vec![0; bytes.len()];
        memory.read(at, &mut before).ok()?;
        let laid = memory.write(at, &bytes);
        let back = WayBack { at, before };
        match laid {
            Ok(()) => Some(back),
            Err(_) => {
                back.clear(memory);
                None
            }
        }
    }

    /// Whether this memory is still zero, or holds the way back of a tracer that was killed.
    #[must_use]
    pub fn is_unused(memory: &[u8]) -> bool {
        memory.iter().all(|&byte| byte == 0) || memory.windows(TAG.len()).any(|bytes| bytes == TAG)
    }

    /// The stack pointer with which a `ret` takes the way back.
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        self.at.0
    }

    /// Puts back what was there. That the target is gone is noticed elsewhere.
    pub fn clear(self, memory: &Memory) {
        let _ = memory.write(self.at, &self.before);
    }
}

/// The part of an extended state that is in use. The kernel tells of all that the processor has, and takes no frame back with
/// more than the thread may use: tiles (AMX) need a permission. Then it restores nothing but x87 and SSE
/// (`check_xstate_in_sigframe` in its arch/x86/kernel/fpu/signal.c).
fn in_use(extended: &[u8]) -> Option<&[u8]> {
    let parts = extended.get(IN_USE..IN_USE + 8)?;
    let parts = u64::from_le_bytes(parts.try_into().ok()?);
    let end = sys::end_of_extended_state(parts).max(LEAST_EXTENDED);
    extended.get(..end)
}

/// Where the frame is to be, and its bytes. Its first word is what a `ret` takes.
fn frame(
    top: u64,
    registers: &RawRegisters,
    mask: u64,
    extended: &[u8],
    sigreturn: TargetAddr,
) -> Option<(TargetAddr, Vec<u8>)> {
    let extended = in_use(extended)?;
    let state_len = extended.len() + 4;
    let state_at = top.checked_sub(state_len as u64)? & !63;
    // As the stack is at the beginning of a function.
    let at = (state_at.checked_sub(FRAME as u64)? & !15).checked_sub(8)?;
    let mut bytes = vec![0; (state_at - at) as usize + state_len];
    let mut put = |offset: usize, field: &[u8]| {
        bytes[offset..offset + field.len()].copy_from_slice(field);
    };
    put(0, &sigreturn.0.to_le_bytes());
    let flags = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
    put(FLAGS, &flags.to_le_bytes());
    put(STACK_FLAGS, &NO_SUCH_STACK.to_le_bytes());
    let r = restarted(registers);
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.eflags,
    ];
    for (offset, value) in (REGISTERS..).step_by(8).zip(general) {
        put(offset, &value.to_le_bytes());
    }
    // cs, gs, fs, ss.
    let segments = [r.cs, 0, 0, r.ss];
    for (offset, value) in (REGISTERS + 144..).step_by(2).zip(segments) {
        put(offset, &(value as u16).to_le_bytes());
    }
    put(TAG_AT, TAG);
    put(EXTENDED, &state_at.to_le_bytes());
    put(MASK, &mask.to_le_bytes());
    let state = (state_at - at) as usize;
    put(state, extended);
    // Parts of the state that are not in use are as they are at a program's beginning; x87 and SSE are always there.
    let in_use = extended[IN_USE..IN_USE + 8]
        .try_into()
        .map_or(0, u64::from_le_bytes);
    let features = in_use | 3;
    put(state + SOFTWARE, &MAGIC1.to_le_bytes());
    put(state + SOFTWARE + 4, &(state_len as u32).to_le_bytes());
    put(state + SOFTWARE + 8, &features.to_le_bytes());
    put(
        state + SOFTWARE + 16,
        &(extended.len() as u32).to_le_bytes(),
    );
    put(state + extended.len(), &MAGIC2.to_le_bytes());
    Some((TargetAddr(at), bytes))
}

/// The registers with which a system call that the stop interrupted begins again, as the kernel would have it.
///
/// A call that the kernel would go on with by `restart_syscall` (`nanosleep`, `poll`) begins anew, with all of its time: behind
/// `rt_sigreturn` it would end with `EINTR` (`restore_sigcontext` in the kernel's arch/x86/kernel/signal_64.c).
pub fn restarted(registers: &RawRegisters) -> RawRegisters {
    const ERESTARTSYS: i64 = -512;
    const ERESTARTNOINTR: i64 = -513;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    let mut r = *registers;
    if r.orig_rax as i64 >= 0 {
        let again = match r.rax as i64 {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK => {
                Some(r.orig_rax)
            }
            _ => None,
        };
        if let Some(number) = again {
            r.rax = number;
            r.rip = r.rip.wrapping_sub(2);
        }
    }
    r
}
