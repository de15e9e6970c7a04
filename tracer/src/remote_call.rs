//! System calls made in the target's name by a stopped thread.
//!
//! The thread's registers are put back afterwards, the system call it may have been blocked in
//! included. A signal that it is owed is delivered first: what came with the signal (its sender, its
//! value) would be lost later. Signals that arrive meanwhile are blocked, and so stay queued as they
//! are. Refused where a seccomp filter might kill the target for the call.

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

/// Makes system calls through one `syscall` instruction found in the target.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCaller {
    pid: i32,
    /// Where the target has the bytes `0f 05`.
    instruction: TargetAddr,
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
        for mapping in vdso_first {
            if let Some(instruction) = search(memory, mapping) {
                return Ok(RemoteCaller { pid, instruction });
            }
        }
        Err(Error::Unsuitable(format!(
            "process {pid} has no system call instruction to borrow; it cannot be instrumented"
        )))
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
        sys::set_signal_mask(tid, u64::MAX).map_err(ptrace("block the signals of"))?;
        let saved = thread.registers()?;
        let outcome = work(&mut Worker {
            caller: self,
            thread,
            saved,
        });
        thread.set_registers(&saved)?;
        sys::set_signal_mask(tid, mask).map_err(ptrace("unblock the signals of"))?;
        // Back to a stop like the first: only from there the kernel restarts an interrupted call.
        interrupt_again(thread, 0)?;
        outcome
    }
}

/// A thread of the target that makes system calls in its name, between two moments at which it is its own.
#[derive(Debug)]
pub struct Worker<'a> {
    caller: RemoteCaller,
    thread: &'a Stopped,
    saved: Registers,
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
        let mut registers = self.saved;
        let r = &mut registers.0;
        r.rip = self.caller.instruction.0;
        r.rax = number as u64;
        // Keeps the kernel from restarting a call that the stop interrupted in the middle of this one.
        r.orig_rax = u64::MAX;
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

fn search(memory: &Memory, mapping: &Mapping) -> Option<TargetAddr> {
    const CHUNK: u64 = 1 << 16;
    let mut buffer = Vec::new();
    (mapping.start..mapping.end)
        .step_by(CHUNK as usize)
        .find_map(|from| {
            buffer.resize(CHUNK.min(mapping.end - from) as usize, 0);
            memory.read(TargetAddr(from), &mut buffer).ok()?;
            let at = buffer.windows(2).position(|pair| pair == [0x0f, 0x05])?;
            Some(TargetAddr(from + at as u64))
        })
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
}
