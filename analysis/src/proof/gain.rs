//! What would be gained without a cause.

use std::ops::RangeInclusive;

use darc_record::Ticks;

use super::statistics::normal_quantile;

/// Latencies of f0's ops as they are, and as they would be if the cause took no time and nothing else took its place.
#[derive(Clone, PartialEq, Debug)]
pub struct Gain {
    /// The part of the ops that are shorter, 0 to 1.
    pub part: f64,
    /// That percentile now.
    pub now: Ticks,
    /// And without the cause's time, as far as that is on the path.
    pub without: Ticks,
    /// The same at the ends of the slope's interval, the smaller one first, and there of the percentile's own: so few ops tell it
    /// only so well.
    pub bounds: [Ticks; 2],
}

/// The part of a change of the cause's time that reaches an op.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reach {
    /// The estimate.
    pub at: f64,
    /// Not less.
    pub low: f64,
    /// Not more.
    pub high: f64,
}

/// The risk that a percentile of all ops is outside of the interval that the seen ones tell.
const RISK: f64 = 0.01;
/// With fewer ops above it a percentile is not told.
const FEWEST_ABOVE: f64 = 10.0;

/// The gain at some percentiles, if the slope is that of the ops with these latencies, and the others stay as they are. Each
/// op is its latency, and the time of the cause in it. That the slope is the same for a change as large as all of its time is an
/// assumption. How far off a percentile is follows from how many of so many independent ops are below it, which is binomial, and
/// so nearly normal (David and Nagaraja, Order Statistics, 2003, section 7.1).
#[must_use]
pub fn gain(
    ops: &[(Ticks, Ticks)],
    latencies: &RangeInclusive<Ticks>,
    slope: Reach,
    parts: &[f64],
) -> Vec<Gain> {
    let sorted = |of: &dyn Fn(&(Ticks, Ticks)) -> Ticks| {
        let mut latencies: Vec<Ticks> = ops.iter().map(of).collect();
        latencies.sort_unstable();
        latencies
    };
    let now = sorted(&|op| op.0);
    let without = |slope: f64| {
        let slope = slope.clamp(0.0, 1.0);
        sorted(&|&(latency, cause)| match latencies.contains(&latency) {
            true => latency.saturating_sub(Ticks((slope * cause.0 as f64).round() as u64)),
            false => latency,
        })
    };
    let [shortest, without, longest] = [slope.high, slope.at, slope.low].map(without);
    let count = ops.len() as f64;
    let at = |part: f64| ((part * count) as usize).min(ops.len() - 1);
    let beside = |part: f64, way: f64| {
        let off = normal_quantile(RISK / 2.0) * (count * part * (1.0 - part)).sqrt();
        at((part * count + way * off).max(0.0) / count)
    };
    let told = parts
        .iter()
        .filter(|&part| ((1.0 - part) * count).round() >= FEWEST_ABOVE);
    let gains = told.map(|&part| Gain {
        part,
        now: now[at(part)],
        without: without[at(part)],
        bounds: [shortest[beside(part, -1.0)], longest[beside(part, 1.0)]],
    });
    gains.collect()
}
