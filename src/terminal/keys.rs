//! A key press of the person while darc works: the return key, on a terminal that is ours to read.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, read, tcgetpgrp};

/// Listens to stdin, where it is a terminal.
#[derive(Debug)]
pub struct Keys {
    listens: Cell<bool>,
}

impl Keys {
    /// Listens unless stdin belongs to somebody else, or is no terminal.
    #[must_use]
    pub fn new(ours: bool) -> Keys {
        Keys {
            listens: Cell::new(ours && io::stdin().is_terminal()),
        }
    }

    /// Whether the return key was pressed since the last look. Never waits; a background job does not read.
    pub fn pressed(&self) -> bool {
        if !self.listens.get() {
            return false;
        }
        let stdin = io::stdin();
        let fd: BorrowedFd<'_> = stdin.as_fd();
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        if tcgetpgrp(fd) != Ok(getpgrp()) || poll(&mut fds, PollTimeout::ZERO) != Ok(1) {
            return false;
        }
        let mut line = [0; 256];
        match read(fd, &mut line) {
            Ok(1..) => true,
            _ => {
                self.listens.set(false);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_listen_hears_nothing() {
        assert!(!Keys::new(false).pressed());
    }
}
