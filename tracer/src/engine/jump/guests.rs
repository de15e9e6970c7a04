//! Guests: other processes that run in the target's memory, as a child of vfork(2) does until it executes its program.

use crate::sys;
use crate::threads;

/// Those that these threads of a process have made.
pub fn of(pid: i32, makers: impl IntoIterator<Item = i32>) -> Vec<i32> {
    let children = makers.into_iter().flat_map(threads::children);
    children
        .filter(|&child| sys::shares_memory(pid, child) == Some(true))
        .collect()
}
