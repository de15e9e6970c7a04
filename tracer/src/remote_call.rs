//! System calls made in the target's name by a stopped thread.
//!
//! The thread's registers are put back afterwards, the system call it may have been blocked in
//! included. A signal that it is owed is delivered first: what came with the signal (its sender, its
//! value) would be lost later. Signals that arrive meanwhile are blocked, and so stay queued as they
//! are. SIGSTOP cannot be blocked: it stops the process at once, all but this thread, which follows when it is let go. Refused
//! where a seccomp filter might kill the target for the call, or its own handling of system calls would.
//! Should this process be killed meanwhile, the thread finds its [way back](crate::way_back) by itself. A thread that is not
//! allowed to run (a frozen control group) is waited for: what was begun in its name cannot be taken back.

use std::ops::Range;
use std::time::Duration;

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::child_signal;
use crate::children;
use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::gadgets::{Found, Gadgets};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::stopped::{Registers, Stopped};
use crate::sys;
use crate::threads::{self, SignalMasks};
use crate::way_back::{self, RED_ZONE, WayBack};

/// Makes system calls through one `syscall` instruction found in the target.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCaller {
    pid: i32,
    /// Where the target has the bytes `0f 05`.
    instruction: TargetAddr,
    /// What the thread finds its way back by, where the target has it.
    gadgets: Option<Gadgets>,
}

impl RemoteCaller {
    /// Finds a `syscall` instruction: the vDSO has one, else any executable mapping will do.
    ///
    /// # Errors
    /// When there is none to be found.
    pub fn find(pid: i32, memory: &Memory, mappings: &[Mapping]) -> Result<RemoteCaller> {
        let found = Found::search(memory, mappings);
        let instruction = found.any.ok_or_else(|| {
            Error::Unsuitable(format!(
                "process {pid} has no system call instruction to borrow; it cannot be instrumented"
            ))
        })?;
        Ok(RemoteCaller {
            pid,
            instruction,
            gadgets: found.gadgets(),
        })
    }

    /// The process that makes the calls.
    #[must_use]
    pub fn pid(self) -> i32 {
        self.pid
    }

    /// Makes the system calls of `work`; the thread stays stopped and comes back with its registers as they were,
    /// whatever comes of it.
    ///
    /// Takes the first thread that is on the stack it was made with, where there is room for its way back. If none is, takes
    /// the process's first thread, whose way back may fit on an unused part of its own stack, or else any. `mappings` are
    /// those of the target.
    ///
    /// # Errors
    /// When there is no thread, or it ends meanwhile, or must not make calls that are not its own; those of `work`.
    pub fn borrow<'a, T>(
        self,
        threads: impl IntoIterator<Item = &'a mut Stopped>,
        mappings: &[Mapping],
        work: impl FnOnce(&mut Worker<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut none = Error::ThreadGone { tid: self.pid };
        let mut other: Option<&mut Stopped> = None;
        for thread in threads {
            // A worker of the kernel's (io_uring) never comes to run what it is led to.
            if thread.registers().is_ok_and(|it| it.are_of_kernel()) {
                continue;
            }
            // Each thread has its own filter, and its own way with system calls.
            if let Err(error) = self.may_call(thread.tid()) {
                none = error;
                continue;
            }
            match self.is_at_home(thread, mappings) {
                Ok(true) => return self.borrow_settled(thread, Room::BelowIt, work),
                Ok(false) if other.is_none() || thread.tid() == self.pid => other = Some(thread),
                Ok(false) => {}
                Err(error) if error.is_gone() => {}
                Err(busy @ Error::Busy(_)) => none = busy,
                Err(error) => return Err(error),
            }
        }
        let thread = other.ok_or(none)?;
        settle(thread)?;
        // Another thread's stack may be in use.
        let room = match thread.tid() == self.pid {
            true => Room::OnUnused(unused_stack(mappings)),
            false => Room::OnUnused(None),
        };
        self.borrow_settled(thread, room, work)
    }

    /// Whether the thread can make calls without any other having to stand still: it finds its way back whatever becomes of
    /// the tracer.
    #[must_use]
    pub fn suits(&self, thread: &Stopped, mappings: &[Mapping]) -> bool {
        thread.pending() == 0
            && self.gadgets.is_some()
            && self.is_home(thread, mappings).unwrap_or(false)
            && self.may_call(thread.tid()).is_ok()
    }

    /// Whether the thread is on its own stack, and has no signal to take.
    fn is_at_home(&self, thread: &mut Stopped, mappings: &[Mapping]) -> Result<bool> {
        if self.gadgets.is_none() || !self.is_home(thread, mappings)? {
            return Ok(false);
        }
        settle(thread)?;
        // A signal's handler may have a stack of its own.
        self.is_home(thread, mappings)
    }

    fn is_home(&self, thread: &Stopped, mappings: &[Mapping]) -> Result<bool> {
        let registers = thread.registers()?;
        let pointers = (registers.rsp(), registers.0.fs_base);
        let is_first = thread.tid() == self.pid;
        Ok(is_on_its_stack(is_first, pointers, mappings)
            && (is_first || self.has_descriptor(pointers.1)))
    }

    /// Whether a thread's descriptor is one of a C library: it begins with its own address (System V ABI for AMD64, 3.4.6).
    /// Others keep stacks, small ones, and descriptors side by side.
    fn has_descriptor(&self, at: u64) -> bool {
        let memory = Memory::open(self.pid).ok();
        memory.is_some_and(|memory| memory.read_word(TargetAddr(at)).ok() == Some(at))
    }

    fn borrow_settled<T>(
        self,
        thread: &mut Stopped,
        room: Room,
        work: impl FnOnce(&mut Worker<'_>) -> Result<T>,
    ) -> Result<T> {
        let tid = thread.tid();
        let ptrace = |operation| move |errno| Error::ptrace(operation, tid, errno);
        let mask = sys::signal_mask(tid).map_err(ptrace("read the signal mask of"))?;
        let blocked = SignalMasks::of(tid).map(|masks| masks.blocked);
        let saved = self.started_again(thread)?;
        let way_back = self.lay_way_back(thread, room, &saved, mask);
        let mut registers = saved;
        // Keeps the kernel from restarting a call that the stop interrupted in the middle of another one.
        registers.0.orig_rax = u64::MAX;
        match &way_back {
            Some((_, back, gadgets)) => {
                // As behind the `ret`: it is on its way from the first moment on.
                registers.0.rip = gadgets.sigreturn.0;
                registers.0.rsp = back.stack_pointer() + 8;
                thread.set_registers(&registers)?;
                registers.0.rip = gadgets.call.0;
                registers.0.rsp = back.stack_pointer();
            }
            None => registers.0.rip = self.instruction.0,
        }
        sys::set_signal_mask(tid, u64::MAX).map_err(ptrace("block the signals of"))?;
        let mut worker = Worker {
            caller: self,
            thread,
            registers,
        };
        let outcome = work(&mut worker);
        let saved = match blocked {
            Some(blocked) if blocked != mask => as_if_restarted(tid, saved, blocked),
            _ => saved,
        };
        // The registers last: with them it is its own again.
        sys::set_signal_mask(tid, mask).map_err(ptrace("unblock the signals of"))?;
        thread.set_registers(&saved)?;
        if let Some((memory, back, _)) = way_back {
            back.clear(&memory);
        }
        // Back to a stop like the first: only from there the kernel restarts an interrupted call.
        interrupt_again(thread, 0)?;
        outcome
    }

    /// The thread's registers, with which it goes on afterwards. In a restartable sequence (rseq(2)) the kernel has it start again,
    /// for it was interrupted; it would not notice that when the thread is elsewhere meanwhile (`rseq_ip_fixup` in its
    /// kernel/rseq.c).
    fn started_again(&self, thread: &Stopped) -> Result<Registers> {
        /// The field of struct rseq for the sequence that the thread is in (include/uapi/linux/rseq.h).
        const SEQUENCE: u64 = 8;
        let mut registers = thread.registers()?;
        let area = sys::restartable_area(thread.tid()).unwrap_or(0);
        if area == 0 {
            return Ok(registers);
        }
        let memory = Memory::open(self.pid)?;
        // struct rseq_cs: version and flags, the first address, the length, where it starts again.
        let mut descriptor = [0; 32];
        let sequence = memory.read_word(TargetAddr(area + SEQUENCE)).unwrap_or(0);
        if sequence != 0 && memory.read(TargetAddr(sequence), &mut descriptor).is_ok() {
            let (words, _) = descriptor.as_chunks();
            let [_, start, len, again] = std::array::from_fn(|n| u64::from_le_bytes(words[n]));
            if registers.rip().0.wrapping_sub(start) < len {
                registers.set_rip(TargetAddr(again));
            }
        }
        Ok(registers)
    }

    /// Whether a thread may make calls that are not its own.
    fn may_call(&self, tid: i32) -> Result<()> {
        let why = if threads::is_filtered(tid) {
            "runs under a seccomp filter, which might kill it for system calls made in its name"
        } else if sys::handles_calls(tid).unwrap_or(false) {
            "handles system calls itself (PR_SET_SYSCALL_USER_DISPATCH), which would end it for those made in its name"
        } else {
            return Ok(());
        };
        Err(Error::Unsuitable(format!("process {} {why}", self.pid)))
    }

    /// Whether the thread is on an alternate stack for signals with room for a way back, and for a handler below it.
    ///
    /// Such a thread must stay there: while it is elsewhere, the next handler would begin at the top of that stack again.
    fn has_room_for_handlers(memory: &Memory, registers: &Registers, state: usize) -> bool {
        const FRAMES: u64 = 2;
        const REST: u64 = 2048;
        let needed = FRAMES * (state as u64 + REST);
        let handler = handler_on_alternate_stack(memory, registers.rsp());
        handler.is_some_and(|handler| registers.rsp() - handler.stack.start >= needed)
    }

    /// Lays a way back below the thread's stack, where that can be.
    fn lay_way_back(
        &self,
        thread: &Stopped,
        room: Room,
        registers: &Registers,
        mask: u64,
    ) -> Option<(Memory, WayBack, Gadgets)> {
        let memory = Memory::open(self.pid).ok()?;
        let gadgets = self.gadgets.filter(|gadgets| gadgets.are_there(&memory))?;
        let extended = sys::extended_state(thread.tid()).ok()?;
        let top = match room {
            Room::BelowIt => registers.rsp().checked_sub(RED_ZONE)?,
            Room::OnUnused(_)
                if Self::has_room_for_handlers(&memory, registers, extended.len()) =>
            {
                registers.rsp().checked_sub(RED_ZONE)?
            }
            Room::OnUnused(stack) => {
                let stack = stack?;
                let mut bytes = [0; UNUSED];
                memory.read(TargetAddr(stack), &mut bytes).ok()?;
                WayBack::is_unused(&bytes).then_some(stack + UNUSED as u64)?
            }
        };
        let back = WayBack::lay(&memory, top, registers, mask, &extended, gadgets)?;
        Some((memory, back, gadgets))
    }
}

/// A signal handler that runs on an alternate stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handler {
    /// All of that stack.
    pub stack: Range<u64>,
    /// Where the handler returns to.
    pub returns_to: u64,
    /// The stack pointer that it returns with.
    pub returns_with: u64,
}

/// The signal handler that runs on an alternate stack, known by the frame by which it returns (struct ucontext in the kernel's
/// include/uapi/asm-generic/ucontext.h, struct sigcontext in its uapi/asm/sigcontext.h).
pub fn handler_on_alternate_stack(memory: &Memory, sp: u64) -> Option<Handler> {
    /// Words of a context up to the code segment.
    const CONTEXT: usize = 24;
    const SEARCHED: usize = 64 << 10;
    const PAGE: u64 = sys::PAGE as u64;
    let from = sp & !7;
    let mut bytes = Vec::new();
    let mut page = [0; PAGE as usize];
    // As far as there is memory.
    while bytes.len() < SEARCHED {
        let at = from + bytes.len() as u64;
        let len = (PAGE - at % PAGE) as usize;
        if memory.read(TargetAddr(at), &mut page[..len]).is_err() {
            break;
        }
        bytes.extend_from_slice(&page[..len]);
    }
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let handler = |(index, context): (usize, &[u64])| {
        let &[
            flags,
            link,
            start,
            _,
            len,
            ..,
            returns_with,
            returns_to,
            _,
            segments,
        ] = context
        else {
            return None;
        };
        let at = from + 8 * index as u64;
        let is_context = (1..8).contains(&flags) && link == 0 && segments as u16 == USER_CODE;
        let stack = start..start.checked_add(len)?;
        let holds = stack.contains(&sp) && stack.contains(&at);
        (is_context && holds).then_some(Handler {
            stack,
            returns_to,
            returns_with,
        })
    };
    words.windows(CONTEXT).enumerate().find_map(handler)
}

/// The code segment of 64-bit user code on Linux.
pub const USER_CODE: u16 = 0x33;

/// Bytes of a stack that was never used: room for a way back.
const UNUSED: usize = 16 << 10;

/// Where a way back may be laid.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// Below the thread's stack.
    BelowIt,
    /// At the end of a stack, at this address, if nothing has been there yet.
    OnUnused(Option<u64>),
}

/// The end of the first thread's stack. The kernel maps more than most programs ever use (`setup_arg_pages` in its fs/exec.c).
fn unused_stack(mappings: &[Mapping]) -> Option<u64> {
    let mut stacks = mappings.iter().filter(|m| m.name.as_os_str() == "[stack]");
    let stack = stacks.find(|m| m.end - m.start > 2 * UNUSED as u64)?;
    Some(stack.start)
}

/// A thread of the target that makes system calls in its name, between two moments at which it is its own.
#[derive(Debug)]
pub struct Worker<'a> {
    caller: RemoteCaller,
    thread: &'a Stopped,
    /// Those of a call, but for its number and arguments.
    registers: Registers,
}

impl Worker<'_> {
    /// The thread's id.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.thread.tid()
    }

    /// Runs `work` while these bytes are in the target, below the thread's stack. `work` gets their address.
    ///
    /// # Errors
    /// When there is no room, and those of `work`.
    pub fn with_bytes<T>(
        &mut self,
        memory: &Memory,
        bytes: &[u8],
        work: impl FnOnce(&mut Self, u64) -> Result<T>,
    ) -> Result<T> {
        let below = RED_ZONE + bytes.len() as u64;
        let at = TargetAddr(self.registers.rsp().wrapping_sub(below) & !7);
        let mut before = vec![0; bytes.len()];
        memory.read(at, &mut before)?;
        memory.write(at, bytes)?;
        let outcome = work(self, at.0);
        // That the target is gone is noticed elsewhere.
        let _ = memory.write(at, &before);
        outcome
    }

    /// Makes one system call.
    ///
    /// # Errors
    /// When the thread ends meanwhile, or the call itself fails.
    pub fn call(&mut self, call: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64> {
        let mut registers = self.registers;
        let r = &mut registers.0;
        r.rax = number as u64;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
        self.thread.set_registers(&registers)?;
        let value = self.run_call()? as i64;
        if (-4095..0).contains(&value) {
            return Err(Error::RemoteCall {
                call,
                pid: self.caller.pid,
                source: Errno::from_raw(-value as i32),
            });
        }
        Ok(value as u64)
    }

    /// Runs the thread through the call that its registers describe; what the call returned.
    fn run_call(&mut self) -> Result<u64> {
        let thread = self.thread;
        let tid = thread.tid();
        // A stop when the call begins and one when it has ended.
        let (mut reported, mut signal) = (0, 0);
        // A thread may have the end of an earlier call to report first: at the beginning of a call, and only
        // there, its result reads ENOSYS.
        let begun = || -> Result<bool> {
            let registers = thread.registers()?;
            Ok(registers.0.rax as i64 == -i64::from(libc::ENOSYS))
        };
        while reported < 2 || (reported < 4 && begun()?) {
            sys::cont_to_syscall(tid, signal)
                .map_err(|errno| Error::ptrace("resume", tid, errno))?;
            signal = 0;
            match wait(tid)? {
                Event::Syscall => reported += 1,
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                Event::Signal(other) => {
                    // It comes of what is done here, and is not the program's.
                    let _ = sys::wait_now(tid);
                    if [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL].contains(&other) {
                        return Err(Error::Unsuitable(format!(
                            "the system call instruction that thread {tid} was to use is gone"
                        )));
                    }
                }
                _ => {}
            }
        }
        Ok(thread.registers()?.0.rax)
    }
}

/// The registers of a thread that waits under a signal mask of the call's own (`pselect`, `sigsuspend`), as the kernel leaves them
/// when the call starts again. `blocked` is that mask. Only the kernel can put it back together with the registers, so
/// that signals which the call holds back are delivered when it is gone: to a thread in the call they would end it.
fn as_if_restarted(tid: i32, saved: Registers, blocked: u64) -> Registers {
    let due = SignalMasks::of(tid).is_some_and(|now| now.pending & !blocked & now.caught != 0);
    match due {
        true => saved,
        false => Registers(way_back::restarted(&saved.0)),
    }
}

/// Lets the thread have the signals that it is owed; it comes back stopped before any of its handlers
/// has run an instruction.
///
/// It is always stopped anew: at the report of a new thread or process it is still in the system call that made
/// it, whose result would take the place of the registers that are set now (ptrace(2), "PTRACE_EVENT stops").
fn settle(thread: &mut Stopped) -> Result<()> {
    /// Who is sent signals without end, by a timer or by another process, has all others stand still meanwhile.
    const MOST: usize = 64;
    for _ in 0..MOST {
        interrupt_again(thread, thread.pending())?;
        if thread.pending() == 0 {
            return Ok(());
        }
    }
    Err(Error::Busy(format!(
        "thread {} is sent signals all the time; try again",
        thread.tid()
    )))
}

/// Resumes the thread with a signal (zero for none) and stops it again at once.
fn interrupt_again(thread: &mut Stopped, signal: i32) -> Result<()> {
    let tid = thread.tid();
    sys::interrupt(tid)
        .and_then(|()| sys::cont(tid, signal))
        .map_err(|errno| Error::ptrace("resume", tid, errno))?;
    thread.owe(0);
    if let Event::Signal(signal) = wait(tid)? {
        // It was on its way already; the interrupt is still to come.
        thread.owe(signal);
    }
    Ok(())
}

/// Waits for a report. A signal that is about to be delivered stays with the thread ([`sys::wait_but_for_signals`]).
fn wait(tid: i32) -> Result<Event> {
    // Looked for without the signal that reports it, too: each look has the scheduler choose anew who runs on this
    // processor, which may be that thread.
    const LOOK_AGAIN: Duration = Duration::from_micros(100);
    /// After so many looks it may have ended without a report.
    const SOON: u32 = 20;
    let mut looks: u32 = 0;
    loop {
        looks = looks.saturating_add(1);
        // Whoever waits for the target takes its status. The end of a first thread is reported only when the ends of all
        // others have been taken.
        if sys::has_ended(tid) || (looks > SOON && threads::is_dead(tid)) {
            return Err(Error::ThreadGone { tid });
        }
        match sys::wait_but_for_signals(tid) {
            Ok(Some((_, status))) => match decode(status) {
                Event::Exited(_) | Event::Killed(_) => {
                    // Since it was asked; of a process that is not told again.
                    children::keep(tid, status);
                    return Err(Error::ThreadGone { tid });
                }
                event => return Ok(event),
            },
            Ok(None) => child_signal::wait(LOOK_AGAIN),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::ptrace("wait for", tid, errno)),
        }
    }
}

/// Whether the thread is on the stack that it was made with. Below another one, a small one of coroutines or of signal handlers
/// for instance, may be anything.
///
/// The first thread's stack is the mapping that the kernel calls so (proc_pid_maps(5)). The C libraries keep the descriptor of
/// every other thread above its stack, in the same mapping.
fn is_on_its_stack(is_first: bool, (at, descriptor): (u64, u64), mappings: &[Mapping]) -> bool {
    let index = mappings.partition_point(|mapping| mapping.end <= at);
    let Some(mapping) = mappings.get(index).filter(|mapping| mapping.contains(at)) else {
        return false;
    };
    let is_a_threads = || !is_first && at < descriptor && mapping.contains(descriptor);
    mapping.name.as_os_str() == "[stack]" || is_a_threads()
}

#[cfg(test)]
pub(crate) mod tests;
