//! How children ended whose status was taken while their threads were waited for.
//!
//! The thread that stops a program is one of the process that started it: what it is told of the program's end nobody
//! is told again (wait(2); the kernel hands a status on only to a parent in another process).

use std::sync::{Mutex, PoisonError};

use crate::event::{Event, decode};
use crate::proc::Stat;
use crate::sys;
pub use crate::sys::die_with_us;

/// Processes and their statuses, few at any time.
static TAKEN: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Keeps the status of a process that has ended.
pub(crate) fn keep(pid: i32, status: i32) {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.retain(|&(other, _)| other != pid);
    taken.push((pid, status));
}

/// How a child of this process ended, without waiting: `None` while it lives, when it has been told before, and when
/// another process traces it.
#[must_use]
pub fn end_of(pid: i32) -> Option<End> {
    let kept = {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let at = taken.iter().position(|&(other, _)| other == pid);
        at.map(|at| taken.swap_remove(at).1)
    };
    end(kept.or_else(|| sys::reap(pid))?)
}

/// How another process's child ended, as long as its parent has not waited for it (proc_pid_stat(5), `exit_code`).
pub(crate) fn end_of_other(pid: i32) -> Option<End> {
    end(Stat::of(pid).ok()?.field(52)?)
}

/// What a status says of a process that has ended (wait(2)).
pub(crate) fn end(status: i32) -> Option<End> {
    match decode(status) {
        Event::Exited(status) => Some(End::Exited(status)),
        Event::Killed(signal) => Some(End::Killed(signal)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_told_once() {
        // No process has this number (proc_sys_kernel(5), pid_max).
        let pid = 1 << 23;
        keep(pid, 3 << 8);
        assert_eq!(end_of(pid), Some(End::Exited(3)));
        assert_eq!(end_of(pid), None);
    }
}
