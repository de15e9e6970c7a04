//! A thread that is stopped: what needs a stopped thread takes one, and resuming consumes it.

use darc_disasm::Gpr;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::sys::{self, RawRegisters};
use darc_record::Arguments;

/// What the kernel keeps as the result of a call that starts again unless a handler runs (its include/linux/errno.h).
pub(crate) const ERESTARTNOHAND: i64 = -514;

/// The general registers of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub struct Registers(pub(crate) RawRegisters);

impl Registers {
    /// The instruction pointer.
    #[must_use]
    pub fn rip(&self) -> TargetAddr {
        TargetAddr(self.0.rip)
    }

    /// Sets the instruction pointer.
    pub fn set_rip(&mut self, to: TargetAddr) {
        self.0.rip = to.0;
    }

    /// Whether the program has the processor trap behind each instruction (the trap flag).
    #[must_use]
    pub fn are_stepping(&self) -> bool {
        const TRAP_FLAG: u64 = 1 << 8;
        self.0.eflags & TRAP_FLAG != 0
    }

    /// The stack pointer.
    #[must_use]
    pub fn rsp(&self) -> u64 {
        self.0.rsp
    }

    /// The integer argument registers.
    #[must_use]
    pub fn arguments(&self) -> Arguments {
        let r = &self.0;
        Arguments::from([r.rdi, r.rsi, r.rdx, r.rcx, r.r8, r.r9])
    }

    /// Whether they are of a thread that never runs the program's code: the kernel has it work for io_uring or its like, and shows
    /// it with neither instruction nor stack (`copy_thread` in its arch/x86/kernel/process.c).
    #[must_use]
    pub fn are_of_kernel(&self) -> bool {
        self.0.rip == 0 && self.0.rsp == 0
    }

    /// The number of the system call that the thread was stopped in.
    pub fn system_call(&self) -> Option<u32> {
        u32::try_from(self.0.orig_rax).ok()
    }

    /// Has the kernel decide what becomes of a system call that the stop cut short with `EINTR`: it starts again as if nothing
    /// had happened, unless a handler runs before.
    ///
    /// The kernel restarts most interrupted calls by itself; a few kinds (`epoll_wait`, `semop`,
    /// `sigtimedwait`, …) return `EINTR` after any stop, which the program must not see. What is put in its place is
    /// what others return that only a handler may end (`ERESTARTNOHAND` in `arch_do_signal_or_restart` and `handle_signal` in the
    /// kernel's arch/x86/kernel/signal.c). A relative timeout starts anew. True when the registers were changed.
    pub fn hide_interruption(&mut self) -> bool {
        // close(2) has closed the descriptor, whatever it returns: once more it would close another one. A 32-bit program numbers
        // its system calls in another way.
        const CODE_32: u64 = 0x23;
        const CLOSE_32: u64 = 6;
        let close = match self.0.cs {
            CODE_32 => CLOSE_32,
            _ => libc::SYS_close as u64,
        };
        let is_close = self.0.orig_rax == close;
        let interrupted = self.0.orig_rax as i64 >= 0
            && !is_close
            && self.0.rax as i64 == -i64::from(libc::EINTR);
        if interrupted {
            self.0.rax = ERESTARTNOHAND as u64;
        }
        interrupted
    }
}

impl darc_disasm::Registers for Registers {
    fn gpr(&self, register: Gpr) -> u64 {
        let r = &self.0;
        match register {
            Gpr::Rax => r.rax,
            Gpr::Rcx => r.rcx,
            Gpr::Rdx => r.rdx,
            Gpr::Rbx => r.rbx,
            Gpr::Rsp => r.rsp,
            Gpr::Rbp => r.rbp,
            Gpr::Rsi => r.rsi,
            Gpr::Rdi => r.rdi,
            Gpr::R8 => r.r8,
            Gpr::R9 => r.r9,
            Gpr::R10 => r.r10,
            Gpr::R11 => r.r11,
            Gpr::R12 => r.r12,
            Gpr::R13 => r.r13,
            Gpr::R14 => r.r14,
            Gpr::R15 => r.r15,
        }
    }

    fn fs_base(&self) -> u64 {
        self.0.fs_base
    }

    fn gs_base(&self) -> u64 {
        self.0.gs_base
    }

    fn rflags(&self) -> u64 {
        self.0.eflags
    }
}

/// A thread in a ptrace stop. Dropping it leaves the thread stopped.
#[derive(Debug)]
#[must_use = "a stopped thread must be resumed, parked or detached"]
pub struct Stopped {
    tid: i32,
    /// The signal whose delivery the thread was stopped at, still owed to it (zero for none).
    pending: i32,
}

impl Stopped {
    /// Only whoever saw the stop in a wait status may say that a thread is stopped.
    pub(crate) fn observed(tid: i32, pending: i32) -> Stopped {
        Stopped { tid, pending }
    }

    /// The thread's id.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// The signal that will be delivered on resume; zero for none.
    #[must_use]
    pub fn pending(&self) -> i32 {
        self.pending
    }

    /// Whether the signal was raised by what the thread itself did, and not sent by anybody.
    #[must_use]
    pub fn is_own_fault(&self) -> bool {
        nix::sys::ptrace::getsiginfo(nix::unistd::Pid::from_raw(self.tid))
            .is_ok_and(|info| info.si_code > 0)
    }

    /// Whether the signal is the trap behind a single step that the thread has made by its trap flag.
    #[must_use]
    pub(crate) fn has_stepped(&self) -> bool {
        let info = || nix::sys::ptrace::getsiginfo(nix::unistd::Pid::from_raw(self.tid));
        self.pending == libc::SIGTRAP && info().is_ok_and(|info| info.si_code == libc::TRAP_TRACE)
    }

    /// Makes the trap that the thread is stopped at one behind a single step, after which `at` is the next instruction.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(crate) fn owe_step(&self, at: TargetAddr) -> Result<()> {
        sys::set_step(self.tid, at.0)
            .map_err(|errno| Error::ptrace("change the signal of", self.tid, errno))
    }

    /// Takes a signal back that was about to be delivered.
    pub fn suppress_signal(&mut self) {
        self.pending = 0;
    }

    /// Hands the thread a signal (on resume) that arrived while something else was done with it.
    pub(crate) fn owe(&mut self, signal: i32) {
        self.pending = signal;
    }

    /// Reads the registers.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn registers(&self) -> Result<Registers> {
        sys::registers(self.tid)
            .map(Registers)
            .map_err(|errno| Error::ptrace("read the registers of", self.tid, errno))
    }

    /// Writes the registers.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn set_registers(&self, registers: &Registers) -> Result<()> {
        sys::set_registers(self.tid, &registers.0)
            .map_err(|errno| Error::ptrace("write the registers of", self.tid, errno))
    }

    /// Hides that its system call was interrupted ([`Registers::hide_interruption`]); the registers that it has then.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(crate) fn hide_interruption(&self) -> Result<Registers> {
        let mut registers = self.registers()?;
        if registers.hide_interruption() {
            self.set_registers(&registers)?;
        }
        Ok(registers)
    }

    /// Lets the thread run on, with the signal that it is owed.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn resume(self) -> Result<()> {
        sys::cont(self.tid, self.pending).map_err(|errno| Error::ptrace("resume", self.tid, errno))
    }

    /// Leaves the thread in its group stop.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn listen(self) -> Result<()> {
        sys::listen(self.tid).map_err(|errno| Error::ptrace("leave stopped", self.tid, errno))
    }

    /// Detaches, with the signal that the thread is owed.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn detach(self) -> Result<()> {
        sys::detach(self.tid, self.pending)
            .map_err(|errno| Error::ptrace("detach from", self.tid, errno))
    }
}
