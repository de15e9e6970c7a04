//! Waiting in tests for what another process does: not for ever.

use std::time::{Duration, Instant};

/// So long a test waits on a machine that is busy.
const MOST: Duration = Duration::from_secs(60);

/// Looks for something until it is there.
#[track_caller]
pub fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < MOST, "it does not come");
        std::thread::yield_now();
    }
}

/// Waits until something is so.
#[track_caller]
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    wait_for(|| is_so().then_some(()));
}
