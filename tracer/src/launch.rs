//! Starts a program that is traced from its first instruction, otherwise as a shell would start it.
//!
//! The child keeps the signal mask, the dispositions and the descriptors that this process was
//! started with. Source: ptrace(2), fork(2), execve(2).

use std::ffi::{CString, OsString};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::preflight;
use crate::stopped::Stopped;
use crate::sys::{self, Argv};

/// A process that waits to be told to execute its program.
#[derive(Debug)]
pub struct Held {
    pid: i32,
    shown: String,
    unsupported: Option<preflight::Unsupported>,
    go: std::fs::File,
    failed: std::fs::File,
}

/// Makes the process in which `command` will run, and holds it before it executes it. Nobody traces it.
///
/// `mask` is the signal mask that the program is to have. Where the caller gives up, the process ends with it.
///
/// # Errors
/// When the command cannot be found.
pub fn hold(command: &[OsString], mask: &SigSet) -> Result<Held> {
    let shown = command
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let fail = |source| Error::Launch {
        command: shown.clone(),
        source,
    };
    let arguments: Vec<CString> = command
        .iter()
        .map(|argument| CString::new(argument.as_bytes()))
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| fail(Errno::EINVAL))?;
    let name = command.first().ok_or_else(|| fail(Errno::ENOENT))?;
    let program = find(name).map_err(fail)?;
    let unsupported = preflight::unsupported_file(&program);
    let program = CString::new(program.as_bytes()).map_err(|_| fail(Errno::EINVAL))?;
    let argv = Argv::new(program, arguments);

    let (go_read, go_write) = pipe()?;
    let (failed_read, failed_write) = pipe()?;
    // A copy of the writing end would keep the child waiting for ever when this process gives up.
    let go_copy = go_write.as_raw_fd();
    let pid = sys::fork_into(|| {
        // Only system calls from here on: other threads' locks are frozen in this copy.
        let _ = nix::unistd::close(go_copy);
        let mut byte = [0];
        let released = nix::unistd::read(&go_read, &mut byte) == Ok(1);
        if released {
            sys::restore_sigpipe();
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None);
            let errno = argv.exec();
            let _ = nix::unistd::write(&failed_write, &(errno as i32).to_le_bytes());
        }
    })
    .map_err(fail)?;
    drop((go_read, failed_write));
    Ok(Held {
        pid,
        shown,
        unsupported,
        go: go_write.into(),
        failed: failed_read.into(),
    })
}

impl Held {
    /// The process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Refuses a program of which darc would say what is wrong; it has not run then.
    ///
    /// # Errors
    /// When the program's file is for another processor, or another mode of this one.
    pub fn supported(self) -> Result<Held> {
        match self.unsupported {
            None => Ok(self),
            Some(what) => {
                let refused = Error::Unsuitable(format!("{}: {what}", self.shown));
                self.abandon();
                Err(refused)
            }
        }
    }

    fn let_go(&mut self) -> Result<()> {
        self.go.write_all(&[1]).map_err(|source| Error::Os {
            operation: "release the new process",
            source,
        })
    }

    /// What exec said; none when the program is in place, or will be.
    fn failure(&mut self) -> Option<Error> {
        // Exec closes the pipe: end of file means that the program is in place.
        let mut errno = [0; 4];
        self.failed.read_exact(&mut errno).ok()?;
        Some(Error::Launch {
            command: self.shown.clone(),
            source: Errno::from_raw(i32::from_le_bytes(errno)),
        })
    }

    /// Lets it execute the program, untraced: its pid. It is a child of this process, to be waited for.
    ///
    /// # Errors
    /// When the program cannot be executed; then there is no child any more.
    pub fn release(mut self) -> Result<i32> {
        self.let_go()?;
        match self.failure() {
            None => Ok(self.pid),
            Some(error) => {
                let _ = sys::wait_for(self.pid);
                Err(error)
            }
        }
    }

    /// Ends the process, whose program has not been executed.
    pub fn abandon(self) {
        let Held { pid, go, .. } = self;
        drop(go);
        let _ = sys::wait_for(pid);
    }
}

/// Starts `command` and returns it stopped right after exec: its program is mapped, nothing of it has run.
///
/// `mask` is the signal mask that the program is to have; `options` are ptrace options and must
/// contain `PTRACE_O_TRACEEXEC`.
///
/// # Errors
/// When the command cannot be found or executed, or is a program for another kind of processor.
pub fn launch(command: &[OsString], mask: &SigSet, options: i32) -> Result<Stopped> {
    let mut held = hold(command, mask)?;
    let pid = held.pid;
    if let Err(errno) = sys::seize(pid, options) {
        held.abandon();
        return Err(Error::ptrace("trace the new", pid, errno));
    }
    held.let_go()?;
    // The exec event stops the child before it can be seen here, so the pipe must not be waited for first.
    let mut execed = false;
    loop {
        let (_, status) =
            sys::wait_for(pid).map_err(|errno| Error::ptrace("wait for", pid, errno))?;
        match decode(status) {
            Event::Exec => {
                // Execve itself is not over at this stop: the kernel has still to write its result
                // over a register. The next stop is before the program's first instruction.
                let _ = sys::interrupt(pid).and_then(|()| sys::cont(pid, 0));
                execed = true;
            }
            Event::Stopped if execed => {
                return match preflight::unsupported(pid) {
                    None => Ok(Stopped::observed(pid, 0)),
                    Some(what) => {
                        sys::kill_and_reap(pid);
                        Err(Error::Unsuitable(format!("{}: {what}", held.shown)))
                    }
                };
            }
            Event::Exited(_) | Event::Killed(_) => {
                return Err(held.failure().unwrap_or(Error::ThreadGone { tid: pid }));
            }
            Event::Signal(signal) => {
                let _ = sys::cont(pid, signal);
            }
            _ => {
                let _ = sys::cont(pid, 0);
            }
        }
    }
}

/// The path of a program: as given, or the first of that name that can be executed on `PATH`.
///
/// Unlike execvp(3) this never falls back to a shell for a file that is no program.
fn find(name: &OsString) -> std::result::Result<OsString, Errno> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(name.clone());
    }
    let path =
        std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let mut refused = Errno::ENOENT;
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        match nix::unistd::access(&candidate, nix::unistd::AccessFlags::X_OK) {
            Ok(()) if candidate.is_file() => return Ok(candidate.into_os_string()),
            Err(Errno::EACCES) => refused = Errno::EACCES,
            _ => {}
        }
    }
    Err(refused)
}

fn pipe() -> Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|errno| Error::Os {
        operation: "make a pipe",
        source: errno.into(),
    })
}
