//! Starts a program that is traced from its first instruction, otherwise as a shell would start it.
//!
//! The child keeps the signal mask, the dispositions and the descriptors that this process was
//! started with. Source: ptrace(2), fork(2), execve(2).

use std::ffi::{CString, OsString};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::stopped::Stopped;
use crate::sys;

/// Starts `command` and returns it stopped right after exec: its program is mapped, nothing of it has run.
///
/// `mask` is the signal mask that the program is to have; `options` are ptrace options and must
/// contain `PTRACE_O_TRACEEXEC`.
///
/// # Errors
/// When the command cannot be found or executed.
pub fn launch(command: &[OsString], mask: &SigSet, options: i32) -> Result<Stopped> {
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
    let program = CString::new(program.as_bytes()).map_err(|_| fail(Errno::EINVAL))?;
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(ptr::null());

    let (go_read, go_write) = pipe()?;
    let (failed_read, failed_write) = pipe()?;
    let pid = sys::fork_into(|| {
        // Only system calls from here on: other threads' locks are frozen in this copy.
        let mut byte = [0];
        let released = nix::unistd::read(&go_read, &mut byte) == Ok(1);
        if released {
            sys::restore_sigpipe();
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None);
            let errno = sys::exec(&program, &pointers);
            let _ = nix::unistd::write(&failed_write, &(errno as i32).to_le_bytes());
        }
    })
    .map_err(fail)?;
    drop((go_read, failed_write));

    if let Err(errno) = sys::seize(pid, options) {
        drop(go_write);
        let _ = sys::wait_for(pid);
        return Err(Error::ptrace("trace the new", pid, errno));
    }
    std::fs::File::from(go_write)
        .write_all(&[1])
        .map_err(|source| Error::Os {
            operation: "release the new process",
            source,
        })?;
    let mut errno = [0; 4];
    // Exec closes the pipe: end of file means that the program is in place.
    let mut failed = std::fs::File::from(failed_read);
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
            Event::Stopped if execed => return Ok(Stopped::observed(pid, 0)),
            Event::Exited(_) | Event::Killed(_) => {
                let known = failed.read_exact(&mut errno).is_ok();
                let source = if known {
                    Errno::from_raw(i32::from_le_bytes(errno))
                } else {
                    Errno::UnknownErrno
                };
                return Err(fail(source));
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
