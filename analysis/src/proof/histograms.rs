//! The latencies of the ops that were compared: those without and those with a delay, on one scale.

use std::ops::RangeInclusive;

use darc_record::Ticks;

use super::{Delayed, Dose, Span};

/// So many columns.
const COLUMNS: usize = 48;
/// The part of the ops at either end that the picture does without.
const BEYOND: f64 = 0.01;

/// How many ops without and with a delay took how long, in columns of one width.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histograms {
    /// Where the first column begins.
    pub from: Ticks,
    /// How wide a column is.
    pub width: Ticks,
    /// Ops without a delay.
    pub without: Vec<u64>,
    /// Ops with all of it.
    pub with: Vec<u64>,
}

/// Those of the ops of a peak, `latencies` without a delay, where a delay reaches them by the part `slope`. `None` without ops
/// of both kinds.
#[must_use]
pub fn histograms(
    spans: &[Span],
    latencies: &RangeInclusive<Ticks>,
    slope: f64,
) -> Option<Histograms> {
    let is_of_peak = |op: &&Delayed| {
        let reached = Ticks((slope.max(0.0) * op.added.0 as f64) as u64);
        latencies.contains(&op.latency.saturating_sub(reached))
    };
    let of = |dose: Dose| {
        let spans = spans.iter().filter(move |span| span.dose == dose);
        let ops = spans.flat_map(|span| &span.ops).filter(is_of_peak);
        let mut latencies: Vec<u64> = ops.map(|op| op.latency.0).collect();
        latencies.sort_unstable();
        latencies
    };
    let (without, with) = (of(Dose::Nothing), of(Dose::Whole));
    let (first, last) = (ends(&without)?, ends(&with)?);
    let (from, to) = (first.0.min(last.0), first.1.max(last.1));
    let width = ((to - from) / COLUMNS as u64 + 1).max(1);
    let columns = |latencies: &[u64]| {
        let mut columns = vec![0; COLUMNS];
        for latency in latencies {
            let column = latency.checked_sub(from).map(|above| above / width);
            if let Some(count) = column.and_then(|at| columns.get_mut(at as usize)) {
                *count += 1;
            }
        }
        columns
    };
    Some(Histograms {
        from: Ticks(from),
        width: Ticks(width),
        without: columns(&without),
        with: columns(&with),
    })
}

/// Where nearly all of some sorted latencies are.
fn ends(sorted: &[u64]) -> Option<(u64, u64)> {
    let beyond = (BEYOND * sorted.len() as f64) as usize;
    Some((
        *sorted.get(beyond)?,
        *sorted.get(sorted.len().checked_sub(beyond + 1)?)?,
    ))
}
