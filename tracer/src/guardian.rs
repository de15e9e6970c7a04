//! The guardian: a process that outlives a killed tracer and puts the target's text and return
//! addresses back.
//!
//! It cannot always win: a thread that runs into a breakpoint between the tracer's death and the
//! guardian's writes dies of SIGTRAP. The documentation says so.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::ledger::{self, Debt, Ledger};
use crate::memory::Memory;

/// The tracer's end of the lifeline; the guardian acts when it is closed with debts left.
#[derive(Debug)]
pub struct Guardian {
    _life: OwnedFd,
}

impl Guardian {
    /// Starts the guardian of `pid`: this same program with the hidden subcommand `guardian`. It is handed the memory, for it may
    /// have no permission to open it: where Yama allows ancestors alone to trace, it is none of the target's.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(pid: i32, memory: &Memory, ledger: &Ledger) -> Result<Guardian> {
        let os = |operation| {
            move |errno: nix::errno::Errno| Error::Os {
                operation,
                source: errno.into(),
            }
        };
        let (watched, life) =
            nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(os("make the guardian's lifeline"))?;
        // Duplicates without close-on-exec, which live just until the guardian has been started.
        let keep = |fd: std::os::fd::BorrowedFd<'_>| {
            let copy = fd.try_clone_to_owned().map_err(|source| Error::Os {
                operation: "copy a descriptor",
                source,
            })?;
            fcntl(&copy, FcntlArg::F_SETFD(FdFlag::empty())).map_err(os("hand a descriptor on"))?;
            Ok::<OwnedFd, Error>(copy)
        };
        let (ledger_fd, watched_fd) = (keep(ledger.file().as_fd())?, keep(watched.as_fd())?);
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("guardian")
            .args(["--pid", &pid.to_string()])
            .args(["--ledger-fd", &ledger_fd.as_raw_fd().to_string()])
            .args(["--life-fd", &watched_fd.as_raw_fd().to_string()])
            .stdin(memory.descriptor()?)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own process group: an interrupt from the terminal is not for it.
            .process_group(0);
        command.spawn().map_err(|source| Error::Os {
            operation: "start the guardian process",
            source,
        })?;
        Ok(Guardian { _life: life })
    }

    /// The same in a copy of this process, for tests: their program has no such subcommand.
    #[cfg(test)]
    pub fn copied(memory: &Memory, ledger: &Ledger) -> Guardian {
        use crate::sys::{exit_now, fork_into, kill_point};

        let (watched, life) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let guardian = fork_into(|| {
            kill_point::set(u64::MAX);
            nix::unistd::close(life.as_raw_fd()).unwrap();
            watch_over(memory, ledger.file(), watched.try_clone().unwrap().into());
            exit_now(0);
        });
        kill_point::let_first(life.as_raw_fd(), guardian.unwrap());
        Guardian { _life: life }
    }
}

/// The guardian's whole life: wait until the tracer is gone, then pay what the ledger says.
///
/// # Errors
/// When the standard input cannot be taken for the target's memory.
pub fn watch(pid: i32, ledger: &File, life: File) -> Result<()> {
    watch_over(&Memory::from_stdin(pid)?, ledger, life);
    Ok(())
}

fn watch_over(memory: &Memory, ledger: &File, mut life: File) {
    let mut byte = [0];
    while matches!(life.read(&mut byte), Ok(1..)) {}
    for debt in in_order(ledger::read(ledger)) {
        pay(memory, debt);
    }
}

/// Text first: an exception that meets a breakpoint at an unwinder ends the process, whatever is on its stack.
fn in_order(mut debts: Vec<Debt>) -> Vec<Debt> {
    debts.sort_by_key(|debt| matches!(debt, Debt::Slot { .. }));
    debts
}

/// Puts one thing back, unless the target has something else there by now.
fn pay(memory: &Memory, debt: Debt) {
    match debt {
        Debt::Text { addr, original } => {
            let mut byte = [0];
            if memory.read(TargetAddr(addr), &mut byte).is_ok() && byte == [0xcc] {
                let _ = memory.write(TargetAddr(addr), &[original]);
            }
        }
        Debt::Slot {
            addr,
            return_to,
            hidden,
        } => {
            if memory
                .read_word(TargetAddr(addr))
                .is_ok_and(|word| word == hidden)
            {
                let _ = memory.write_word(TargetAddr(addr), return_to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breakpoints_are_taken_out_before_return_addresses_are_put_back() {
        let slot = |addr| Debt::Slot {
            addr,
            return_to: 1,
            hidden: 2,
        };
        let text = |addr| Debt::Text { addr, original: 0 };
        let paid = in_order(vec![slot(1), text(2), slot(3), text(4)]);
        assert_eq!(paid, [text(2), text(4), slot(1), slot(3)]);
    }
}
