//! Signals while results are put together and written. The target is as it was, so whoever wants darc to end need not wait
//! for a report that takes long, or that nobody reads.
//!
//! A first signal leaves the report some time: the person may not know that the analysis is over, and shall not lose its
//! results. A further one, by the rules of [`super::interrupts`], or the end of that time, has the signal's default action.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::interrupts::Signals;

/// So long a report may take once somebody wants darc to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// As long as it is there, signals end darc as said above; afterwards they are counted as before.
#[derive(Debug)]
#[must_use]
pub struct Reporting {
    /// Closed when there is no report any more.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Reporting {
    /// Begins. Where there is no room for a thread signals do nothing, as if nobody looked.
    pub(super) fn begin(signals: Arc<Signals>) -> Reporting {
        let before = signals.wishes();
        let Ok((stop, stopped)) = UnixStream::pair() else {
            return Reporting {
                stop: None,
                thread: None,
            };
        };
        let named = Builder::new().name("signals".to_owned());
        let thread = named.spawn(move || look_after(&signals, &stopped, before));
        Reporting {
            stop: Some(stop),
            thread: thread.ok(),
        }
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Ends the process when somebody wants that, until the report is made.
fn look_after(signals: &Signals, stopped: &UnixStream, before: u32) {
    let mut until: Option<Instant> = None;
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            // Rounded up, or the last millisecond would be spent in turning round.
            let millis = left.as_millis() as u16 + 1;
            PollTimeout::from(millis)
        });
        let mut fds = [
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.fd(), PollFlags::POLLIN),
        ];
        // A signal that interrupts it is looked at.
        let _ = poll(&mut fds, timeout);
        if fds[0].any() == Some(true) {
            return;
        }
        match signals.wishes() - before {
            0 => {}
            1 if before == 0 => {
                let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() >= until {
                    signals.leave();
                }
            }
            _ => signals.leave(),
        }
    }
}
