//! System calls made in the target's name by a stopped thread.
//!
//! The thread's registers are put back afterwards, the system call it may have been blocked in
//! included. A signal that it is owed is delivered first: what came with the signal (its sender, its
//! value) would be lost later. Signals that arrive meanwhile are blocked, and so stay queued as they
//! are. Refused where a seccomp filter might kill the target for the call. Should this process be killed meanwhile, the
//! thread finds its [way back](crate::way_back) by itself.

use std::time::Duration;

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::child_signal;
use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::stopped::{Registers, Stopped};
use crate::sys;
use crate::threads;
use crate::way_back::{Gadgets, WayBack};

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
        // Only in memory that stays: an anonymous mapping may be a tracer's own, and be given back by
        // the very calls that are made through it.
        let stays = |m: &&Mapping| m.is_file() || m.name.as_os_str() == "[vdso]";
        let vdso_first = mappings
            .iter()
            .rev()
            .filter(|m| m.executable && m.readable)
            .filter(stays);
        let mut found = Found::default();
        for mapping in vdso_first {
            found.look(memory, mapping);
            if found.gadgets().is_some() {
                break;
            }
        }
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

    /// Makes one system call; `thread` stays stopped and comes back with its registers as they were.
    ///
    /// # Errors
    /// When the thread ends meanwhile, or the call itself fails.
    pub fn call(
        self,
        thread: &mut Stopped,
        call: &'static str,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<u64> {
        self.borrow(thread, |worker| worker.call(call, number, arguments))
    }

    /// Makes the system calls of `work`; `thread` stays stopped and comes back with its registers as they were,
    /// whatever comes of it.
    ///
    /// # Errors
    /// When the thread ends meanwhile, or must not make calls that are not its own; those of `work`.
    pub fn borrow<T>(
        self,
        thread: &mut Stopped,
        work: impl FnOnce(&mut Worker<'_>) -> Result<T>,
    ) -> Result<T> {
        if threads::is_filtered(thread.tid()) {
            return Err(Error::Unsuitable(format!(
                "process {} runs under a seccomp filter, which might kill it for system calls made in its name",
                self.pid
            )));
        }
        settle(thread)?;
        let tid = thread.tid();
        let ptrace = |operation| move |errno| Error::ptrace(operation, tid, errno);
        let mask = sys::signal_mask(tid).map_err(ptrace("read the signal mask of"))?;
        let saved = thread.registers()?;
        let way_back = self.lay_way_back(thread, &saved, mask);
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
        let outcome = work(&mut Worker {
            caller: self,
            thread,
            registers,
        });
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

    /// Lays a way back below the thread's stack, where that can be.
    fn lay_way_back(
        &self,
        thread: &Stopped,
        registers: &Registers,
        mask: u64,
    ) -> Option<(Memory, WayBack, Gadgets)> {
        let gadgets = self.gadgets?;
        if !is_on_its_stack(thread.tid(), registers) {
            return None;
        }
        let extended = sys::extended_state(thread.tid()).ok()?;
        let memory = Memory::open(self.pid).ok()?;
        let back = WayBack::lay(&memory, registers, mask, &extended, gadgets)?;
        Some((memory, back, gadgets))
    }
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
        let value = run_call(self.thread)? as i64;
        if (-4095..0).contains(&value) {
            return Err(Error::RemoteCall {
                call,
                pid: self.caller.pid,
                source: Errno::from_raw(-value as i32),
            });
        }
        Ok(value as u64)
    }
}

/// Lets the thread have the signals that it is owed; it comes back stopped before any of its handlers
/// has run an instruction.
///
/// It is always stopped anew: at the report of a new thread or process it is still in the system call that made
/// it, whose result would take the place of the registers that are set now (ptrace(2), "PTRACE_EVENT stops").
fn settle(thread: &mut Stopped) -> Result<()> {
    interrupt_again(thread, thread.pending())?;
    while thread.pending() != 0 {
        interrupt_again(thread, thread.pending())?;
    }
    Ok(())
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

/// Runs the thread through the call that its registers describe; what the call returned.
fn run_call(thread: &Stopped) -> Result<u64> {
    let tid = thread.tid();
    // A stop when the call begins and one when it has ended; nothing else is reported as a SIGTRAP,
    // for all signals are blocked.
    let mut reported = 0;
    // A thread may have the end of an earlier call to report first: at the beginning of a call, and only
    // there, its result reads ENOSYS.
    let begun = |thread: &Stopped| {
        thread
            .registers()
            .map(|registers| registers.0.rax as i64 == -i64::from(libc::ENOSYS))
    };
    while reported < 2 || (reported < 4 && begun(thread)?) {
        sys::cont_to_syscall(tid, 0).map_err(|errno| Error::ptrace("resume", tid, errno))?;
        match wait(tid)? {
            Event::Signal(libc::SIGTRAP) => reported += 1,
            Event::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL) => {
                return Err(Error::Unsuitable(format!(
                    "the system call instruction that thread {tid} was to use is gone"
                )));
            }
            _ => {}
        }
    }
    Ok(thread.registers()?.0.rax)
}

fn wait(tid: i32) -> Result<Event> {
    // Looked for without the signal that reports it, too: each look has the scheduler choose anew who runs on this
    // processor, which may be that thread.
    const LOOK_AGAIN: Duration = Duration::from_micros(100);
    loop {
        // How the target ended is for whoever waits for it.
        if sys::has_ended(tid) {
            return Err(Error::ThreadGone { tid });
        }
        match sys::wait_now(tid) {
            Ok(Some((_, status))) => match decode(status) {
                Event::Exited(_) | Event::Killed(_) => return Err(Error::ThreadGone { tid }),
                event => return Ok(event),
            },
            Ok(None) => child_signal::wait(LOOK_AGAIN),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::ptrace("wait for", tid, errno)),
        }
    }
}

/// Whether the thread is on the stack that it was made with. Below another one, small ones of coroutines for instance, may be
/// anything.
///
/// The C libraries keep a thread's descriptor above its stack; the first thread's stack is where the kernel put it
/// (proc_pid_stat(5), `startstack`).
fn is_on_its_stack(tid: i32, registers: &Registers) -> bool {
    const LARGEST: u64 = 8 << 20;
    let is_below = |top: u64| {
        let depth = top.checked_sub(registers.rsp());
        depth.is_some_and(|depth| depth < LARGEST)
    };
    let start = || {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(25)?.parse().ok()
    };
    is_below(registers.0.fs_base) || start().is_some_and(is_below)
}

/// What is looked for in the target's code.
#[derive(Default)]
struct Found {
    /// A `syscall`.
    any: Option<TargetAddr>,
    /// One with a `ret` behind it.
    call: Option<TargetAddr>,
    sigreturn: Option<TargetAddr>,
}

impl Found {
    fn gadgets(&self) -> Option<Gadgets> {
        Some(Gadgets {
            call: self.call?,
            sigreturn: self.sigreturn?,
        })
    }

    fn look(&mut self, memory: &Memory, mapping: &Mapping) {
        const CHUNK: u64 = 1 << 16;
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        const RET: u8 = 0xc3;
        /// `mov $15, %rax`, by which the C libraries return from signal handlers.
        const SIGRETURN: [u8; 7] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0];
        let mut buffer = Vec::new();
        for from in (mapping.start..mapping.end).step_by(CHUNK as usize) {
            // What lies across the end of a chunk is in this one whole.
            let len = (CHUNK + 16).min(mapping.end - from);
            buffer.resize(len as usize, 0);
            if memory.read(TargetAddr(from), &mut buffer).is_err() {
                return;
            }
            let pairs = buffer.windows(2).enumerate();
            for (at, _) in pairs.filter(|(_, pair)| *pair == SYSCALL) {
                let addr = |offset: usize| TargetAddr(from + offset as u64);
                self.any.get_or_insert(addr(at));
                if buffer.get(at + 2) == Some(&RET) {
                    self.call.get_or_insert(addr(at));
                }
                if buffer[..at].ends_with(&SIGRETURN) {
                    self.sigreturn.get_or_insert(addr(at - SIGRETURN.len()));
                }
            }
            if self.gadgets().is_some() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_left_to_whoever_waits_for_it() {
        let child = sys::fork_into(|| sys::exit_now(7)).unwrap();
        assert!(matches!(wait(child), Err(Error::ThreadGone { .. })));
        assert_eq!(sys::wait_for(child), Ok((child, 7 << 8)));
    }

    /// Works with all registers, vectors included, and exits with 7 when everything was right.
    fn work() {
        let sum = |from: u64| {
            let floats = (from..from + 1000).map(|n| (n as f64).sqrt());
            std::hint::black_box(floats.sum::<f64>().to_bits() ^ from.rotate_left(7))
        };
        let expected: [u64; 8] = std::array::from_fn(|from| sum(from as u64));
        let right = (0..60_000).all(|round: u64| {
            let from = round % 8;
            sum(std::hint::black_box(from)) == expected[from as usize]
        });
        leave(right);
    }

    /// Exits with 7 when everything was right, signals included.
    fn leave(right: bool) -> ! {
        let mask = nix::sys::signal::SigSet::thread_get_mask().unwrap();
        let unblocked = !mask.contains(nix::sys::signal::Signal::SIGUSR1);
        sys::exit_now(if right && unblocked { 7 } else { 9 });
    }

    /// A tracer that ends in the middle of its calls; whether it came so far.
    fn abandon(pid: i32, calls: usize) -> bool {
        let tracer = sys::fork_into(|| {
            let memory = Memory::open(pid).unwrap();
            let mappings = crate::maps::read(pid).unwrap();
            let caller = RemoteCaller::find(pid, &memory, &mappings).unwrap();
            assert!(caller.gadgets.is_some());
            sys::seize(pid, 0).unwrap();
            sys::interrupt(pid).unwrap();
            if wait(pid).is_err() {
                sys::exit_now(6);
            }
            let _ = caller.borrow(&mut Stopped::observed(pid, 0), |worker| -> Result<()> {
                for _ in 0..calls {
                    worker.call("getppid", libc::SYS_getppid, [0; 6])?;
                }
                sys::exit_now(5)
            });
            sys::exit_now(6);
        });
        let (_, status) = sys::wait_for(tracer.unwrap()).unwrap();
        status == 5 << 8
    }

    #[test]
    fn a_thread_finds_its_way_back_when_its_tracer_ends() {
        let child = sys::fork_into(work).unwrap();
        let abandoned = (0..40).filter(|&round| abandon(child, round % 3)).count();
        assert_eq!(sys::wait_for(child), Ok((child, 7 << 8)));
        assert!(abandoned > 0);
    }

    #[test]
    fn a_call_that_was_interrupted_goes_on_when_the_tracer_ends() {
        let (from, to) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let mut byte = [0];
            let read = nix::unistd::read(&from, &mut byte);
            leave(read == Ok(1) && byte == [3]);
        });
        let child = child.unwrap();
        for round in 0..6 {
            assert!(abandon(child, round % 3), "round {round}");
        }
        nix::unistd::write(&to, &[3]).unwrap();
        assert_eq!(sys::wait_for(child), Ok((child, 7 << 8)));
    }
}
