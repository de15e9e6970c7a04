//! Decodes wait statuses: which of the many kinds of ptrace stop happened. Pure.
//!
//! Source: ptrace(2), "Stopped states"; every thread is seized, never attached.

use crate::sys::EVENT_STOP;

/// What stops at system calls report in a signal's place (`PTRACE_O_TRACESYSGOOD`).
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// Why a traced thread reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The thread (for the leader: the process) exited with this status.
    Exited(i32),
    /// The process was killed by this signal.
    Killed(i32),
    /// A signal is about to be delivered.
    Signal(i32),
    /// The thread is in a group stop by this signal; it wants PTRACE_LISTEN.
    GroupStop(i32),
    /// The thread stopped because it was interrupted, is new, or its group stop has ended.
    Stopped,
    /// A child process or thread was made; its id is the event's message.
    Spawned(Spawn),
    /// A system call begins, or has ended.
    Syscall,
    /// The process replaced its program.
    Exec,
    /// A stop that was not asked for; the thread is simply resumed.
    Other(i32),
}

/// How a child was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spawn {
    /// A process with a copy of the memory.
    Fork,
    /// A process that borrows the memory until it execs or exits.
    Vfork,
    /// Usually a thread.
    Clone,
}

/// Decodes the status that waitpid(2) returned for a seized thread.
#[must_use]
pub fn decode(status: i32) -> Event {
    if libc::WIFEXITED(status) {
        return Event::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Event::Killed(libc::WTERMSIG(status));
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == SYSCALL_STOP => Event::Syscall,
        0 => Event::Signal(signal),
        EVENT_STOP => match signal {
            libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                Event::GroupStop(signal)
            }
            _ => Event::Stopped,
        },
        libc::PTRACE_EVENT_FORK => Event::Spawned(Spawn::Fork),
        libc::PTRACE_EVENT_VFORK => Event::Spawned(Spawn::Vfork),
        libc::PTRACE_EVENT_CLONE => Event::Spawned(Spawn::Clone),
        libc::PTRACE_EVENT_EXEC => Event::Exec,
        other => Event::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(signal: i32, event: i32) -> i32 {
        (event << 16) | (signal << 8) | 0x7f
    }

    #[test]
    fn every_kind_of_status_is_told_apart() {
        assert_eq!(decode(3 << 8), Event::Exited(3));
        assert_eq!(decode(libc::SIGKILL), Event::Killed(libc::SIGKILL));
        assert_eq!(
            decode(stopped(libc::SIGUSR1, 0)),
            Event::Signal(libc::SIGUSR1)
        );
        assert_eq!(decode(stopped(libc::SIGTRAP | 0x80, 0)), Event::Syscall);
        assert_eq!(
            decode(stopped(libc::SIGTSTP, EVENT_STOP)),
            Event::GroupStop(libc::SIGTSTP)
        );
        assert_eq!(decode(stopped(libc::SIGTRAP, EVENT_STOP)), Event::Stopped);
        assert_eq!(
            decode(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_VFORK)),
            Event::Spawned(Spawn::Vfork)
        );
        assert_eq!(
            decode(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_EXEC)),
            Event::Exec
        );
    }
}
