//! For tests: a process that is killed at the n-th thing that it does to another one.

use std::sync::atomic::{AtomicU64, Ordering};

static DONE: AtomicU64 = AtomicU64::new(0);
static DEADLY: AtomicU64 = AtomicU64::new(u64::MAX);

/// Has this process killed before the call of this number, from now on.
pub fn set(call: u64) {
    DONE.store(0, Ordering::Relaxed);
    DEADLY.store(call, Ordering::Relaxed);
}

/// How many calls there have been.
pub fn done() -> u64 {
    DONE.load(Ordering::Relaxed)
}

/// One call of ptrace(2), or a write to the memory of another process.
pub fn pass() {
    if DONE.fetch_add(1, Ordering::Relaxed) == DEADLY.load(Ordering::Relaxed) {
        // SAFETY: kill takes plain integers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
