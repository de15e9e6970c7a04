//! From the time of perf records (`CLOCK_MONOTONIC_RAW`, nanoseconds) to the cycle counter.
//!
//! The kernel may not say how its clock follows from the counter (`cap_user_time` is 0 on many virtual machines), so
//! pairs of both are taken from time to time, and what lies between two of them is interpolated.
//! Source: clock_gettime(2), perf_event_open(2) on `use_clockid`.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::sys;
use darc_record::{Ticks, Tsc};

/// One moment on both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The cycle counter.
    pub tsc: Tsc,
    /// `CLOCK_MONOTONIC_RAW`, nanoseconds.
    pub nanos: u64,
    /// By how much the counter may be off: half of what passed while the other clock was read.
    pub within: Ticks,
}

impl Pair {
    /// Now. Of some tries the tightest is taken, so that an interrupt in between does no harm.
    #[must_use]
    pub fn now() -> Pair {
        let attempt = || {
            let before = sys::tsc();
            let nanos = now();
            let width = (sys::tsc() - before).0;
            let tsc = Tsc(before.0 + width / 2);
            let within = Ticks(width.div_ceil(2));
            (width, Pair { tsc, nanos, within })
        };
        let first = attempt();
        (0..9)
            .map(|_| attempt())
            .fold(
                first,
                |best, next| if next.0 < best.0 { next } else { best },
            )
            .1
    }
}

/// `CLOCK_MONOTONIC_RAW` in nanoseconds, the clock of all records.
#[must_use]
pub fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC_RAW)
        .map(Duration::from)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Converts times; grows more exact as pairs are added.
#[derive(Clone, Debug)]
pub struct Clock {
    /// In order of time; the distance doubles towards the past.
    pairs: Vec<Pair>,
}

/// Two pairs that are closer say little about the rate.
const CLOSEST: u64 = 1_000_000;
/// So many pairs are kept.
const KEPT: usize = 4096;

impl Clock {
    /// Begins at this moment, with the rate of the milliseconds that follow: waits for them.
    #[must_use]
    pub fn calibrate() -> Clock {
        let first = Pair::now();
        std::thread::sleep(Duration::from_nanos(2 * CLOSEST));
        Clock {
            pairs: vec![first, Pair::now()],
        }
    }

    /// A clock that knows these pairs; at least two are needed for a rate.
    #[must_use]
    pub fn of(pairs: Vec<Pair>) -> Clock {
        Clock { pairs }
    }

    /// Takes another pair.
    pub fn tick(&mut self) {
        let pair = Pair::now();
        let last = self.pairs.last().map_or(0, |last| last.nanos);
        if pair.nanos.saturating_sub(last) >= CLOSEST {
            if self.pairs.len() >= KEPT {
                // Every second one goes: still close enough, whatever the rate does.
                let mut index = 0;
                self.pairs.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            self.pairs.push(pair);
        }
    }

    /// By how much a converted time may be off: as much as the worst of the pairs.
    #[must_use]
    pub fn error(&self) -> Ticks {
        let within = self.pairs.iter().map(|pair| pair.within);
        within.max().unwrap_or_default()
    }

    /// The counter at a time; extrapolated outside of the pairs.
    #[must_use]
    pub fn tsc(&self, nanos: u64) -> Tsc {
        let after = self.pairs.partition_point(|pair| pair.nanos <= nanos);
        let right = after.clamp(1, self.pairs.len().saturating_sub(1).max(1));
        let (Some(from), Some(to)) = (self.pairs.get(right - 1), self.pairs.get(right)) else {
            return self.pairs.first().map_or(Tsc(0), |pair| pair.tsc);
        };
        let cycles = i128::from(to.tsc.0) - i128::from(from.tsc.0);
        let span = (i128::from(to.nanos) - i128::from(from.nanos)).max(1);
        let at = i128::from(nanos) - i128::from(from.nanos);
        let tsc = i128::from(from.tsc.0) + at * cycles / span;
        Tsc(u64::try_from(tsc.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(tsc: u64, nanos: u64) -> Pair {
        Pair {
            tsc: Tsc(tsc),
            nanos,
            within: Ticks(tsc % 7),
        }
    }

    #[test]
    fn times_between_and_outside_of_the_pairs() {
        let clock = Clock::of(vec![pair(1000, 100), pair(3000, 1100), pair(4000, 2100)]);
        let converted = [50, 100, 600, 1100, 1600, 2100, 3100].map(|nanos| clock.tsc(nanos).0);
        assert_eq!(converted, [900, 1000, 2000, 3000, 3500, 4000, 5000]);
        assert_eq!(clock.error(), Ticks(6));
        assert_eq!(Clock::of(vec![pair(7, 1)]).tsc(9), Tsc(7));
        assert_eq!(Clock::of(Vec::new()).tsc(9), Tsc(0));
        assert_eq!(
            clock.tsc(u64::MAX),
            Clock::of(vec![pair(3000, 1100), pair(4000, 2100)]).tsc(u64::MAX)
        );
    }

    /// Both clocks bracket each other: what was read between two readings of the one lies between them on the other.
    #[test]
    fn a_calibrated_clock_agrees_with_the_counter() {
        let mut clock = Clock::calibrate();
        let moments: Vec<_> = (0..1000).map(|_| (sys::tsc(), now(), sys::tsc())).collect();
        std::thread::sleep(Duration::from_millis(2));
        clock.tick();
        // Ten microseconds of leeway at any plausible frequency; a wrong conversion is off by far more.
        const LEEWAY: u64 = 50_000;
        let agree = |&&(before, nanos, after): &&(Tsc, u64, Tsc)| {
            let tsc = clock.tsc(nanos).0;
            tsc + LEEWAY >= before.0 && tsc <= after.0 + LEEWAY
        };
        let count = moments.iter().filter(agree).count();
        assert!(count >= 990, "{count} of 1000");
    }
}
