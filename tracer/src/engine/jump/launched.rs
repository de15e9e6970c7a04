//! A program that was just started is led to where its first thread has a thread pointer: before that
//! stubs could not tell threads apart, and nothing of the program's own has run.

use std::time::Duration;

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::child_signal;
use crate::children;
use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads;
use darc_disasm::Registers as _;

/// The ptrace options under which a program is to be started.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEEXEC;

/// System calls until the C library has set itself up; a program without one makes none for that.
const MOST_CALLS: u32 = 20_000;
/// System calls after the thread pointer is set until the thread's id is in its place.
const SETTLING: u32 = 4;

/// Runs a program from system call to system call until it has a thread pointer. One that never gets one is let go. That of C libraries points
/// to itself when it is set up, that of Go's run-time (`is_go`) does not. Let go as soon as it is not wanted any more (`is_wanted`):
/// it may wait for long, stopped by somebody, or in a system call of a program without a C library.
///
/// # Errors
/// When it never gets one, or ends before, or is not wanted.
pub fn run_to_thread_pointer(
    thread: Stopped,
    is_go: bool,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Stopped> {
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
        let status = wait(pid, is_wanted)?;
        let event = decode(status);
        match event {
            Event::Exited(_) | Event::Killed(_) => {
                children::keep(pid, status);
                return Err(Error::NoThreadPointer);
            }
            _ if !is_wanted() => {
                let mut thread = Stopped::observed(pid, 0);
                if let Event::Signal(signal) = event {
                    thread.owe(signal);
                }
                thread.hide_interruption()?;
                thread.detach()?;
                return Err(Error::NotWanted);
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

/// Waits for the thread's next report. When it is not wanted any more it is asked for one.
fn wait(pid: i32, is_wanted: &dyn Fn() -> bool) -> Result<i32> {
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    let mut is_asked = false;
    loop {
        match sys::wait_now(pid) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) if !is_asked && !is_wanted() => {
                is_asked = true;
                threads::interrupt(pid)?;
            }
            Ok(None) => child_signal::wait(LOOK_AGAIN),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::ptrace("wait for", pid, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};

    use nix::sys::signal::{SigSet, Signal, kill};
    use nix::unistd::Pid;

    use crate::engine::Engine as _;
    use crate::{launch, maps};

    use super::super::Jump;
    use crate::patience::wait_until;

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
        let thread = run_to_thread_pointer(thread, false, &|| true).unwrap();
        let arrived = std::time::Instant::now();
        assert!(continued.join().unwrap() < arrived);
        kill(target, Signal::SIGKILL).unwrap();
        drop(thread);
        let _ = sys::wait_for(pid);
    }

    /// It is the thread that is needed to restore everything.
    #[test]
    fn a_program_that_was_started_is_let_go_after_a_panic() {
        let command = ["sleep".into(), "1000".into()];
        let thread = launch::launch(&command, &SigSet::empty(), OPTIONS).unwrap();
        let pid = thread.tid();
        let mut engine = Jump::launched(thread, false, &|| true).unwrap();
        let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
        engine.install(&[code.unwrap().start]).unwrap();
        let change =
            AssertUnwindSafe(|| engine.while_stopped::<()>(|_| panic!("a test of panics")));
        assert!(panic::catch_unwind(change).is_err());
        engine.finish().unwrap();
        let left = super::super::clear_leftovers(pid).unwrap();
        assert_eq!(left, super::super::Cleared::Nothing);
        wait_until(|| {
            assert!(!threads::is_dead(pid), "it did not run on");
            threads::state(pid) == Some('S')
        });
        sys::kill_and_reap(pid);
    }

    /// Who ends darc need not wait for a program that waits.
    #[test]
    fn a_program_that_is_not_wanted_is_let_go_wherever_it_is() {
        let command = ["sleep".into(), "1000".into()];
        let thread = launch::launch(&command, &SigSet::empty(), OPTIONS).unwrap();
        let pid = thread.tid();
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        // At the report of the signal, at that of the stop, and then while nothing more comes.
        let looks = std::cell::Cell::new(0);
        let is_wanted = || {
            looks.set(looks.get() + u32::from(threads::state(pid) == Some('t')));
            looks.get() < 3
        };
        let outcome = run_to_thread_pointer(thread, false, &is_wanted);
        assert!(matches!(outcome, Err(Error::NotWanted)), "{outcome:?}");
        // As whoever stopped it left it, to which it goes back by itself.
        wait_until(|| threads::state(pid) != Some('R'));
        assert_eq!(threads::state(pid), Some('T'));
        assert_eq!(
            threads::status_field(pid, "TracerPid").as_deref(),
            Some("0")
        );
        sys::kill_and_reap(pid);
    }
}
