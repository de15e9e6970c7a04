//! The ops of a peak, each less its part of the delay, and their mean.

use std::ops::RangeInclusive;

use darc_record::Ticks;

use super::Delayed;

/// The part of a peak's ops at either end that a mean leaves out.
const TRIMMED: f64 = 0.1;

/// The mean latency of the ops of a peak without the outermost, and how many they are.
#[derive(Clone, Copy)]
pub struct Centre {
    pub latency: f64,
    pub ops: usize,
}

/// That of ops each less its part of the delay; `None` where none is of the peak.
pub fn centre(ops: &[Delayed], slope: f64, latencies: &RangeInclusive<Ticks>) -> Option<Centre> {
    let of_peak = ops.iter().filter_map(|op| less(op, slope, latencies));
    let mut of_peak: Vec<f64> = of_peak.collect();
    let ops = of_peak.len();
    let beyond = (TRIMMED * ops as f64) as usize;
    let kept = ops.checked_sub(2 * beyond).filter(|&kept| kept > 0)?;
    if beyond > 0 {
        of_peak.select_nth_unstable_by(beyond, f64::total_cmp);
        of_peak[beyond..].select_nth_unstable_by(kept - 1, f64::total_cmp);
    }
    let sum: f64 = of_peak[beyond..beyond + kept].iter().sum();
    Some(Centre {
        latency: sum / kept as f64,
        ops,
    })
}

/// Those of the peak.
pub fn of_peak(ops: &[Delayed], slope: f64, latencies: &RangeInclusive<Ticks>) -> Vec<Delayed> {
    let is_inside = |op: &&Delayed| less(op, slope, latencies).is_some();
    ops.iter().filter(is_inside).copied().collect()
}

/// An op's latency less its part of the delay, where that is of the peak.
fn less(op: &Delayed, slope: f64, latencies: &RangeInclusive<Ticks>) -> Option<f64> {
    let (first, last) = (latencies.start().0 as f64, latencies.end().0 as f64);
    let less = op.latency.0 as f64 - slope * op.added.0 as f64;
    (first..=last).contains(&less).then_some(less)
}
