//! The rate of the cycle counter, measured against the kernel's raw monotonic clock, and what makes it doubtful.
//!
//! Nothing here depends on the target's own clocks, so its time namespace makes no difference. Source:
//! clock_gettime(2), CLOCK_MONOTONIC_RAW (not slewed by NTP) and CLOCK_BOOTTIME (goes on in suspend);
//! Documentation/ABI/testing/sysfs-devices-system-clocksource of the kernel.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use darc_record::{Hz, Tsc};

/// A shorter time gives a rate that is off by more than one in a thousand.
const SHORTEST: Duration = Duration::from_millis(10);

/// Rates that differ by more are two.
const SAME_RATE: f64 = 0.01;
/// A machine that slept for less was not asleep: its two clocks are not read at once.
const ASLEEP: Duration = Duration::from_millis(100);
/// Which clocks the kernel offers; the counter is not among them once it was found unstable.
const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Why durations may be wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Doubt {
    /// The kernel does not count on it.
    #[error(
        "the kernel does not trust the time stamp counter (it offers: {offered}): durations may be wrong where a thread changes processors; see darc doctor"
    )]
    Distrusted {
        /// The clocks that it offers instead.
        offered: String,
    },
    /// A virtual machine that was moved, or a counter that follows the processor's frequency.
    #[error(
        "the time stamp counter ran at {then:.3} GHz and runs at {now:.3} GHz: durations in time are wrong by as much; those in cycles are of two kinds; measure again"
    )]
    Rate {
        /// On the whole, in cycles per nanosecond.
        then: f64,
        /// Now, in cycles per nanosecond.
        now: f64,
    },
    /// The counter was set.
    #[error("the time stamp counter went backwards: durations are wrong; measure again")]
    Backwards,
    /// Suspend.
    #[error("the machine slept for {} s meanwhile: calls that were under way read too long or too short", .0.as_secs_f64().round())]
    Slept(Duration),
}

/// One moment on all clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    tsc: Tsc,
    raw: Duration,
    /// How long the machine has been asleep since it was started.
    asleep: Duration,
}

impl Moment {
    /// Now. Of a few tries the tightest is taken, so that an interrupt in between does no harm.
    #[must_use]
    pub fn now() -> Moment {
        let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
        let awake = read(ClockId::CLOCK_MONOTONIC);
        let asleep = read(ClockId::CLOCK_BOOTTIME).saturating_sub(awake);
        let sample = || {
            let tsc = darc_tracer::tsc();
            let raw = read(ClockId::CLOCK_MONOTONIC_RAW);
            (darc_tracer::tsc() - tsc, Moment { tsc, raw, asleep })
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
        let rate = self.until(&self.later()) * 1e9;
        Hz::new(rate.round() as u64).unwrap_or(Hz::new(1).expect("one is not zero"))
    }

    /// What makes durations doubtful that were measured between this moment and now.
    #[must_use]
    pub fn doubts(&self) -> Vec<Doubt> {
        let recent = Moment::now();
        let mut doubts = Vec::from_iter(kernels_verdict().err());
        doubts.extend(self.happened(&recent, &recent.later()));
        doubts
    }

    /// What happened up to `now`, judged by the rate from `recent` on.
    fn happened(&self, recent: &Moment, now: &Moment) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let (then, rate) = (self.until(recent), recent.until(now));
        if recent.tsc < self.tsc || now.tsc < recent.tsc {
            doubts.push(Doubt::Backwards);
        } else if recent.raw.saturating_sub(self.raw) >= SHORTEST
            && (then / rate - 1.0).abs() > SAME_RATE
        {
            doubts.push(Doubt::Rate { then, now: rate });
        }
        let slept = now.asleep.saturating_sub(self.asleep);
        if slept >= ASLEEP {
            doubts.push(Doubt::Slept(slept));
        }
        doubts
    }

    /// A moment that is late enough for a rate.
    fn later(&self) -> Moment {
        loop {
            let now = Moment::now();
            match SHORTEST.checked_sub(now.raw.saturating_sub(self.raw)) {
                None | Some(Duration::ZERO) => return now,
                Some(rest) => std::thread::sleep(rest),
            }
        }
    }

    /// Cycles per nanosecond between two moments.
    fn until(&self, later: &Moment) -> f64 {
        let passed = later.raw.saturating_sub(self.raw).as_nanos().max(1);
        later.tsc.0.saturating_sub(self.tsc.0) as f64 / passed as f64
    }
}

/// Whether the kernel keeps time by the counter, or would. Where it does not say, it is taken to.
///
/// # Errors
/// What it does instead.
pub fn kernels_verdict() -> Result<(), Doubt> {
    judge(&std::fs::read_to_string(SOURCES).unwrap_or_default())
}

fn judge(offered: &str) -> Result<(), Doubt> {
    let offered: Vec<&str> = offered.split_whitespace().collect();
    match offered.is_empty() || offered.iter().any(|name| name.contains("tsc")) {
        true => Ok(()),
        false => Err(Doubt::Distrusted {
            offered: offered.join(", "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(tsc: u64, millis: u64, asleep: u64) -> Moment {
        Moment {
            tsc: Tsc(tsc),
            raw: Duration::from_millis(millis),
            asleep: Duration::from_millis(asleep),
        }
    }

    #[test]
    fn a_steady_counter_is_not_doubted() {
        let (first, recent, now) = (
            moment(7, 0, 0),
            moment(2_000_000_007, 1000, 0),
            moment(2_020_000_007, 1010, 50),
        );
        assert_eq!(first.happened(&recent, &now), []);
        assert_eq!(recent.happened(&recent, &now), []);
        assert_eq!(
            Moment::now().happened(&Moment::now(), &Moment::now().later()),
            []
        );
    }

    #[test]
    fn what_happened_to_the_clock_is_told() {
        let first = moment(1_000_000_000, 0, 0);
        let (recent, now) = (
            moment(3_000_000_000, 1000, 0),
            moment(3_030_000_000, 1010, 0),
        );
        let changed = Doubt::Rate {
            then: 2.0,
            now: 3.0,
        };
        assert_eq!(first.happened(&recent, &now), [changed]);
        let recent = moment(500_000_000, 1000, 7000);
        let now = moment(520_000_000, 1010, 7000);
        let slept = Doubt::Slept(Duration::from_secs(7));
        assert_eq!(first.happened(&recent, &now), [Doubt::Backwards, slept]);
    }

    #[test]
    fn the_kernels_own_verdict_counts() {
        assert_eq!(judge("tsc kvm-clock \n"), Ok(()));
        assert_eq!(judge("hyperv_clocksource_tsc_page acpi_pm"), Ok(()));
        assert_eq!(judge(""), Ok(()));
        let said = judge("hpet acpi_pm \n").unwrap_err().to_string();
        assert!(said.contains("it offers: hpet, acpi_pm"), "{said}");
    }
}
