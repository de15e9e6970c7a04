//! A child process together with what it used.
#![allow(unsafe_code)]

use std::io;
use std::process::Child;
use std::time::{Duration, Instant};

/// How a child ended.
pub struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its largest resident set, in bytes.
    pub peak_rss: u64,
    /// The CPU time it used, in seconds.
    pub cpu: f64,
    /// Since `began`.
    pub took: Duration,
}

/// Waits for the child's end.
///
/// # Errors
/// When it is not a child any more.
pub fn wait(child: &Child, began: Instant) -> io::Result<Ended> {
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: all-zero is a value of this plain structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live variables; the process is a child that nobody waited for.
    while unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } != pid {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(Ended {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        peak_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        took: began.elapsed(),
    })
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}
