//! The rate of the cycle counter, measured against the kernel's raw monotonic clock.
//!
//! Source: clock_gettime(2), CLOCK_MONOTONIC_RAW (not slewed by NTP).

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::analysis::{Hz, Tsc};

/// A shorter time gives a rate that is off by more than one in a thousand.
const SHORTEST: Duration = Duration::from_millis(10);

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    tsc: Tsc,
    raw: Duration,
}

impl Moment {
    /// Now. Of a few tries the tightest is taken, so that an interrupt in between does no harm.
    #[must_use]
    pub fn now() -> Moment {
        let sample = || {
            let before = darc_tracer::tsc();
            let raw = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW)
                .map(Duration::from)
                .unwrap_or_default();
            (darc_tracer::tsc() - before, Moment { tsc: before, raw })
        };
        (0..5)
            .map(|_| sample())
            .min_by_key(|(width, _)| *width)
            .expect("five samples")
            .1
    }

    /// The counter's rate between this moment and now; waits until enough time has passed.
    #[must_use]
    pub fn rate(&self) -> Hz {
        loop {
            let now = Moment::now();
            let passed = now.raw.saturating_sub(self.raw);
            if passed >= SHORTEST {
                let cycles = (now.tsc - self.tsc).0 as f64 / passed.as_secs_f64();
                return Hz::new(cycles.round() as u64)
                    .unwrap_or(Hz::new(1).expect("one is not zero"));
            }
            std::thread::sleep(SHORTEST - passed);
        }
    }
}
