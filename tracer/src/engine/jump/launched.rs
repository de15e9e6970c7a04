//! A program that was just started is led to where its first thread has a thread pointer: before that
//! stubs could not tell threads apart, and nothing of the program's own has run.

use crate::addr::TargetAddr;
use crate::children;
use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::sys;
use darc_disasm::Registers as _;

/// The ptrace options under which a program is to be started.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEEXEC;

/// System calls until the C library has set itself up; a program without one makes none for that.
const MOST_CALLS: u32 = 20_000;
/// System calls after the thread pointer is set until the thread's id is in its place.
const SETTLING: u32 = 4;

/// Runs a program from system call to system call until it has a thread pointer. One that never gets one is let go. That of C libraries points
/// to itself when it is set up, that of Go's run-time (`is_go`) does not.
///
/// # Errors
/// When it never gets one, or ends before.
pub fn run_to_thread_pointer(thread: Stopped, is_go: bool) -> Result<Stopped> {
    let pid = thread.tid();
    let memory = Memory::open(pid)?;
    let (mut signal, mut entered, mut settled) = (thread.pending(), false, 0);
    let mut is_held = false;
    for _ in 0..2 * MOST_CALLS {
        let resumed = match is_held {
            true => sys::listen(pid),
            false => sys::cont_to_syscall(pid, signal),
        };
        resumed.map_err(|errno| Error::ptrace("resume", pid, errno))?;
        (signal, is_held) = (0, false);
        let (_, status) =
            sys::wait_for(pid).map_err(|errno| Error::ptrace("wait for", pid, errno))?;
        match decode(status) {
            Event::Exited(_) | Event::Killed(_) => {
                children::keep(pid, status);
                return Err(Error::NoThreadPointer);
            }
            Event::Syscall => {}
            Event::Signal(other) => {
                signal = other;
                continue;
            }
            // It stays stopped until somebody continues it.
            Event::GroupStop(_) => {
                is_held = true;
                continue;
            }
            _ => continue,
        }
        entered = !entered;
        if entered {
            continue;
        }
        let thread = Stopped::observed(pid, 0);
        let pointer = thread.registers()?.fs_base();
        let is_itself = || memory.read_word(TargetAddr(pointer)).ok() == Some(pointer);
        if pointer != 0 && (is_go || is_itself()) {
            settled += 1;
            if settled == SETTLING {
                return Ok(thread);
            }
        }
    }
    sys::detach(pid, signal).map_err(|errno| Error::ptrace("detach from", pid, errno))?;
    Err(Error::NoThreadPointer)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{SigSet, Signal, kill};
    use nix::unistd::Pid;

    use crate::{launch, threads};

    use super::*;

    /// Who stops a program that is being started finds it stopped, until it is continued.
    #[test]
    fn a_program_that_is_stopped_meanwhile_stays_stopped() {
        /// Between two system calls it does not stand for so long.
        const LOOKS: u32 = 2000;
        let command = ["sleep".into(), "1000".into()];
        let thread = launch::launch(&command, &SigSet::empty(), OPTIONS).unwrap();
        let pid = thread.tid();
        let target = Pid::from_raw(pid);
        kill(target, Signal::SIGSTOP).unwrap();
        let continued = std::thread::spawn(move || {
            let mut stopped = 0;
            while stopped < LOOKS {
                stopped = match threads::state(pid) {
                    Some('t' | 'T') => stopped + 1,
                    _ => 0,
                };
                std::thread::yield_now();
            }
            let continued = std::time::Instant::now();
            kill(target, Signal::SIGCONT).unwrap();
            continued
        });
        let thread = run_to_thread_pointer(thread, false).unwrap();
        let arrived = std::time::Instant::now();
        assert!(continued.join().unwrap() < arrived);
        kill(target, Signal::SIGKILL).unwrap();
        drop(thread);
        let _ = sys::wait_for(pid);
    }
}
