//! Waiting for traced threads with a timeout: SIGCHLD stays blocked and is waited for.

use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};

use crate::error::{Error, Result};
use crate::sys;

static ORIGINAL: OnceLock<SigSet> = OnceLock::new();

/// Blocks SIGCHLD in the calling thread (to be called before others are made) and returns the mask
/// that the process was started with, for programs that it starts.
///
/// # Errors
/// When the mask cannot be changed.
pub fn block() -> Result<SigSet> {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGCHLD);
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut before)).map_err(|errno| {
        Error::Os {
            operation: "block SIGCHLD",
            source: errno.into(),
        }
    })?;
    Ok(*ORIGINAL.get_or_init(|| before))
}

/// Waits until some traced thread may have reported, at most for `timeout`; other signals end it early.
pub fn wait(timeout: Duration) {
    sys::wait_child_signal(timeout);
}
