//! For tests: a process that is killed, or panics, at the n-th thing that it does to another one.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

static DONE: AtomicU64 = AtomicU64::new(0);
static DEADLY: AtomicU64 = AtomicU64::new(u64::MAX);
static PANICS: AtomicBool = AtomicBool::new(false);
static LIFELINE: AtomicI32 = AtomicI32::new(-1);
static HEIR: AtomicI32 = AtomicI32::new(0);

/// Has this process killed before the call of this number, from now on.
pub fn set(call: u64) {
    DONE.store(0, Ordering::Relaxed);
    DEADLY.store(call, Ordering::Relaxed);
}

/// Has it panic there instead.
pub fn panic_at(call: u64) {
    PANICS.store(true, Ordering::Relaxed);
    set(call);
}

/// Before this process is killed, it closes this descriptor and waits for the end of that child: what it does for a dead process is
/// done while the threads that this one has stopped stand still.
pub fn let_first(lifeline: RawFd, heir: i32) {
    HEIR.store(heir, Ordering::Relaxed);
    LIFELINE.store(lifeline, Ordering::Relaxed);
}

/// How many calls there have been.
pub fn done() -> u64 {
    DONE.load(Ordering::Relaxed)
}

/// One call of ptrace(2), or a write to the memory of another process.
pub fn pass() {
    if DONE.fetch_add(1, Ordering::Relaxed) == DEADLY.load(Ordering::Relaxed) {
        assert!(!PANICS.load(Ordering::Relaxed), "a test of panics");
        let lifeline = LIFELINE.load(Ordering::Relaxed);
        if lifeline >= 0 {
            let _ = nix::unistd::close(lifeline);
            let _ = super::wait_for(HEIR.load(Ordering::Relaxed));
        }
        // SAFETY: kill takes plain integers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
