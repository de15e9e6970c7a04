//! What an empty probe costs: the part inside of the measured window, and the part outside.
//!
//! "Only the portion between the TSC register reads is included in the profile, and therefore it defines
//! the minimum value possible" (OSprof, OSDI 2006, section 5.2). Latencies are measured of an empty
//! function, alone and with `n` probed calls of another empty function in it. Low quantiles are taken:
//! a cost that the machine is able to reach is the probe's, what comes on top is the machine's weather.

use darc_tracer::record::Ticks;

/// The low quantile: one in this many samples is smaller.
const QUANTILE: usize = 10;

/// What one probe adds, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Costs {
    /// To the latency that the probe itself reports.
    pub inside: Ticks,
    /// To the latency of whatever surrounds the probe, beside what is inside.
    pub outside: Ticks,
}

/// Latencies of an empty function around `probes` probed calls of an empty function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nested<'a> {
    /// How many probed calls each sample holds.
    pub probes: u64,
    /// The latencies of the surrounding call.
    pub latencies: &'a [Ticks],
}

impl Costs {
    /// The costs that measurements tell. `bare` is what the empty function's own call and return take
    /// without any probe (zero when that is not known).
    ///
    /// `None` without samples, or without nested probes.
    #[must_use]
    pub fn measured(plain: &[Ticks], nested: Nested<'_>, bare: Ticks) -> Option<Self> {
        let plain = low_quantile(plain)?;
        let around = low_quantile(nested.latencies)?.saturating_sub(plain);
        let per_probe = Ticks(around.0.checked_div(nested.probes)?);
        let inside = plain.saturating_sub(bare);
        let outside = per_probe.saturating_sub(inside).saturating_sub(bare);
        Some(Self { inside, outside })
    }

    /// A call's latency with its own probe and `nested` probes below it taken out.
    #[must_use]
    pub fn compensate(&self, latency: Ticks, nested: u64) -> Ticks {
        let below = nested.saturating_mul(self.per_call().0);
        latency
            .saturating_sub(self.inside)
            .saturating_sub(Ticks(below))
    }

    /// What one probed call adds to the latency of its caller.
    #[must_use]
    pub fn per_call(&self) -> Ticks {
        self.inside + self.outside
    }

    /// Whether a (compensated) latency is smaller than what the probe itself takes inside of its window:
    /// its digits are then the probe's, not the function's.
    #[must_use]
    pub fn below_resolution(&self, latency: Ticks) -> bool {
        latency < self.inside
    }
}

/// The value that one in [`QUANTILE`] samples lies below.
fn low_quantile(samples: &[Ticks]) -> Option<Ticks> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(samples.len() / QUANTILE).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(samples: &[u64]) -> Vec<Ticks> {
        samples.iter().map(|&sample| Ticks(sample)).collect()
    }

    #[test]
    fn costs_are_told_apart_and_outliers_do_not_matter() {
        let plain = ticks(&[44, 40, 41, 9_000, 43, 40, 40, 42, 41, 40]);
        let nested = ticks(&[
            1_041, 1_040, 1_040, 70_000, 1_050, 1_040, 1_048, 1_044, 1_041, 1_040,
        ]);
        let nested = Nested {
            probes: 10,
            latencies: &nested,
        };
        let costs = Costs::measured(&plain, nested, Ticks(4)).unwrap();
        assert_eq!((costs.inside, costs.outside), (Ticks(36), Ticks(60)));
        assert_eq!(costs.compensate(Ticks(1_040), 10), Ticks(44));
        assert_eq!(costs.compensate(Ticks(20), 10), Ticks(0));
        assert!(costs.below_resolution(Ticks(35)));
        assert!(!costs.below_resolution(Ticks(36)));
    }

    #[test]
    fn nothing_is_made_up_without_samples() {
        let nested = |probes, latencies| Nested { probes, latencies };
        let one = [Ticks(5)];
        assert_eq!(Costs::measured(&[], nested(1, &one), Ticks(0)), None);
        assert_eq!(Costs::measured(&one, nested(0, &one), Ticks(0)), None);
        assert_eq!(Costs::measured(&one, nested(1, &[]), Ticks(0)), None);
    }
}
