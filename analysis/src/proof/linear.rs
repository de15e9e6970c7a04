//! Whether what a delay does is in proportion to it.

use std::ops::RangeInclusive;

use darc_record::Ticks;

use super::{Both, Dose, FEWEST_OPS, FEWEST_SPANS, Span, reach};

/// Slopes that differ by more than this are not the same.
const DIFFERENT: f64 = 0.2;
/// Those that differ by less than this are, as far as can be told: the half of a delay is seen half as well, in few spans.
const ALIKE: f64 = 0.4;

/// What the median of the halves is of that of whole delays.
const HALVES: RangeInclusive<f64> = 0.35..=0.65;

/// What half of the delay does, beside what all of it does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Half {
    /// Its slope: that of all of the delay where what a delay does is in proportion to it.
    pub at: f64,
    /// By how much more than that of all of the delay it is at least, at the level that was asked for; negative for less.
    pub least: f64,
    /// And at most.
    pub most: f64,
}

/// Whether half of a delay does half of what all of it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linear {
    /// It does.
    Yes,
    /// It does less, or more.
    No,
    /// The interval does not tell.
    NotKnown,
}

impl Half {
    /// That of the ops of a peak, beside the slope of all of the delay and its resamplings.
    pub(super) fn of(
        spans: &[Span],
        latencies: &RangeInclusive<Ticks>,
        most: f64,
        (whole, of_whole): (f64, &[Option<f64>]),
        risk: f64,
    ) -> Option<Half> {
        let both = Both::of(spans, latencies, Dose::Half, most);
        if !both.are_enough(FEWEST_SPANS / 2, FEWEST_OPS / 2) || !are_halves(spans) {
            return None;
        }
        let at = both.estimate(&both.without.concat(), &both.with.concat(), latencies)?;
        let of_half = both.resampled_slopes(latencies);
        let pairs = of_half.iter().zip(of_whole);
        let differences = pairs.filter_map(|(half, whole)| Some((*half)? - (*whole)?));
        let freedom = both.without.len().min(both.with.len()) - 1;
        let reach = reach(differences, freedom, risk)?;
        Some(Half {
            at,
            least: at - whole - reach,
            most: at - whole + reach,
        })
    }

    /// What follows from it.
    #[must_use]
    pub fn linear(&self) -> Linear {
        match () {
            () if self.least > DIFFERENT || self.most < -DIFFERENT => Linear::No,
            () if self.least > -ALIKE && self.most < ALIKE => Linear::Yes,
            () => Linear::NotKnown,
        }
    }
}

/// Whether the delays that were to be halves were: a short one may be waited for otherwise, or end late by as much.
fn are_halves(spans: &[Span]) -> bool {
    let typical = |dose: Dose| {
        let spans = spans.iter().filter(|span| span.dose == dose);
        let mut added: Vec<Ticks> = spans
            .flat_map(|span| &span.ops)
            .map(|op| op.added)
            .collect();
        let middle = added.len() / 2;
        (!added.is_empty()).then(|| added.select_nth_unstable(middle).1.0 as f64)
    };
    let (half, whole) = (typical(Dose::Half), typical(Dose::Whole));
    let part = half.zip(whole).map(|(half, whole)| half / whole.max(1.0));
    part.is_some_and(|part| HALVES.contains(&part))
}
