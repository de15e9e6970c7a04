//! Units of time: cycles of the time stamp counter, and nanoseconds for people.
//!
//! [`Ticks`] (durations) and [`Tsc`](crate::Tsc) (points on the time line) are what is measured and computed with;
//! [`Nanos`] exist only to be shown, and only [`Hz`] leads from one to the other.

use std::fmt;
use std::num::NonZeroU64;

use crate::Ticks;

/// The rate of the time stamp counter, in cycles per second. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Hz(NonZeroU64);

/// A duration in nanoseconds, for display; fractions matter for single instructions.
#[derive(Clone, Copy, PartialEq, PartialOrd, Default, Debug)]
pub struct Nanos(pub f64);

impl Hz {
    /// The rate of `cycles` per second, `None` for zero.
    #[must_use]
    pub fn new(cycles: u64) -> Option<Self> {
        NonZeroU64::new(cycles).map(Self)
    }

    /// Cycles per second.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// How long `ticks` last.
    #[must_use]
    pub fn nanos(self, ticks: Ticks) -> Nanos {
        Nanos(ticks.0 as f64 * 1e9 / self.get() as f64)
    }

    /// How many ticks pass in `nanos` (rounded; saturating; nothing for negative durations).
    #[must_use]
    pub fn ticks(self, nanos: Nanos) -> Ticks {
        Ticks((nanos.0 * self.get() as f64 / 1e9).round() as u64)
    }
}

impl fmt::Display for Nanos {
    /// Two to three significant digits and the fitting unit: `0.7 ns`, `42 ns`, `1.2 µs`, `340 ms`, `12 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
        let mut value = self.0;
        let mut unit = 0;
        // 999.5 and above would be printed as 1000.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1e3;
            unit += 1;
        }
        let text = if value >= 9.95 || value == 0.0 {
            format!("{value:.0} {}", UNITS[unit])
        } else {
            format!("{value:.1} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds_and_back() {
        let hz = Hz::new(2_500_000_000).unwrap();
        assert_eq!(hz.nanos(Ticks(25)), Nanos(10.0));
        assert_eq!(hz.ticks(Nanos(10.0)), Ticks(25));
        assert_eq!(hz.ticks(Nanos(-1.0)), Ticks(0));
        assert_eq!(Hz::new(0), None);
    }

    #[test]
    fn durations_are_shown_in_the_fitting_unit() {
        let cases = [
            (0.0, "0 ns"),
            (0.72, "0.7 ns"),
            (9.94, "9.9 ns"),
            (9.96, "10 ns"),
            (999.4, "999 ns"),
            (999.6, "1.0 µs"),
            (1_234.0, "1.2 µs"),
            (340e6, "340 ms"),
            (12.3e9, "12 s"),
            (86_400e9, "86400 s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(Nanos(nanos).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Nanos(42.0)), "   42 ns");
    }
}
