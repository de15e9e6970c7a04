//! What can go wrong with a target: each error carries the operation and the thread or address.

use std::path::Path;

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::proc;

/// A failure while tracing a process.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// The thread ended while it was worked on; for a tracer this is ordinary.
    #[error("thread {tid} has ended")]
    ThreadGone {
        /// The thread.
        tid: i32,
    },
    /// A ptrace request was refused.
    #[error("cannot {operation} thread {tid}: {source}")]
    Ptrace {
        /// The verb of the request, for people.
        operation: &'static str,
        /// The thread.
        tid: i32,
        /// What the kernel said.
        source: Errno,
    },
    /// The target's memory could not be read or written.
    #[error("cannot {operation} {len} bytes at {addr} of process {pid}: {source}")]
    Memory {
        /// "read" or "write".
        operation: &'static str,
        /// The process.
        pid: i32,
        /// Where.
        addr: TargetAddr,
        /// How many bytes.
        len: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A system call made in the target's name failed.
    #[error("{call} in process {pid} failed: {source}{}", remedy(*source))]
    RemoteCall {
        /// Which system call.
        call: &'static str,
        /// The process.
        pid: i32,
        /// What the kernel answered in the target.
        source: Errno,
    },
    /// Something about the target rules out what was asked.
    #[error("{0}")]
    Unsuitable(String),
    /// What the target's threads do at this moment rules it out. Nothing was changed; a moment later it may be otherwise.
    #[error("{0}")]
    Busy(String),
    /// A program was started for the jump engine that has no C library, or ended before that was ready.
    #[error(
        "the program has set up no thread pointer as C libraries do, without which the jump engine cannot measure what it starts; use --engine int3"
    )]
    NoThreadPointer,
    /// A program was started that is not to be measured any more.
    #[error("darc was told to end before the program had begun")]
    NotWanted,
    /// The command could not be started.
    #[error("cannot start {command}: {source}; {}", start_remedy(command, *source))]
    Launch {
        /// The command as given.
        command: String,
        /// What exec said.
        source: Errno,
    },
    /// The kernel grants no perf events.
    #[error(transparent)]
    Perf(#[from] crate::perf::Refusal),
    /// A call to the operating system on the tracer's own behalf failed.
    #[error("cannot {operation}: {source}")]
    Os {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What a person can do about a program that does not start. A file that is there and is not found is one
/// whose interpreter is not (execve(2)).
fn start_remedy(command: &str, errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT if Path::new(command).is_file() => {
            "what its #! line or its program header names as interpreter is not there"
        }
        Errno::EMFILE | Errno::ENFILE => "raise the limit of open files (ulimit -n)",
        _ => "check the path and that it is an executable program",
    }
}

/// What a person can do about a refused system call.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM | Errno::EAGAIN => {
            "; it may map or lock no more memory: raise its limits (prlimit --as --memlock)"
        }
        _ => "",
    }
}

/// A result of a tracing operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Sorts a ptrace errno: `ESRCH` means that the thread is gone (or not stopped, which the types exclude).
    pub(crate) fn ptrace(operation: &'static str, tid: i32, source: Errno) -> Error {
        match source {
            Errno::ESRCH => Error::ThreadGone { tid },
            _ => Error::Ptrace {
                operation,
                tid,
                source,
            },
        }
    }

    /// Sorts what the kernel says of a process's entry in `/proc`. Of one that is about to end, and has no memory any more,
    /// it says that there is none, that there is no such file, or that this is not permitted.
    pub(crate) fn process(operation: &'static str, pid: i32, source: std::io::Error) -> Error {
        let of_the_end = [libc::ESRCH, libc::ENOENT, libc::EACCES, libc::EPERM];
        let may_be_gone = |errno| of_the_end.contains(&errno) && proc::is_ending(pid);
        match source.raw_os_error() {
            Some(errno) if may_be_gone(errno) => Error::ThreadGone { tid: pid },
            _ => Error::Os { operation, source },
        }
    }

    /// Whether the error says no more than that a thread ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::ThreadGone { .. })
    }
}

/// Turns the end of the thread into `None`, and leaves other failures as they are.
pub(crate) fn unless_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
