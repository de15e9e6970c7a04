//! For tests: a process that is killed, panics, or comes late, at the n-th thing that it does to another one.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::threads;

static DONE: AtomicU64 = AtomicU64::new(0);
static DEADLY: AtomicU64 = AtomicU64::new(u64::MAX);
static PANICS: AtomicBool = AtomicBool::new(false);
static AWAITED: AtomicI32 = AtomicI32::new(0);
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

/// Has it come late there instead, as who waits for a processor does: this thread runs for a while before, if it can.
pub fn late_at(call: u64, thread: i32) {
    AWAITED.store(thread, Ordering::Relaxed);
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
        match AWAITED.load(Ordering::Relaxed) {
            0 => {}
            thread => return let_run(thread),
        }
        let lifeline = LIFELINE.load(Ordering::Relaxed);
        if lifeline >= 0 {
            let _ = nix::unistd::close(lifeline);
            let _ = super::wait_for(HEIR.load(Ordering::Relaxed));
        }
        // SAFETY: kill takes plain integers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Returns when a thread has run for some milliseconds, or does not run.
fn let_run(thread: i32) {
    const NANOSECONDS: u64 = 10_000_000;
    let ran = || -> Option<u64> {
        let times = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
        times.split_ascii_whitespace().next()?.parse().ok()
    };
    let end = ran().map(|ran| ran + NANOSECONDS);
    while threads::state(thread) == Some('R') && ran() < end {
        std::thread::yield_now();
    }
}
