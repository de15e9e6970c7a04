//! What the probes on a path do to the ops that they measure: they come and go as delays do in the other experiments.

use std::collections::BTreeSet;

use darc_analysis::Ticks;
use darc_analysis::proof::{self, Delayed, Dose, LOOKS, Limits as Bounds, Slope, Span};
use darc_process::{Ending, Limits, ProcessError};
use darc_record::Tsc;

use super::Outcome;
use super::seen::Seen;
use super::trial::{Trial, untried};

/// The shortest span, in parts of a second: the program stands still for a moment at the beginning of each.
const SHORTEST: u64 = 20;
/// A span is so many times as long as an op.
const OPS_A_SPAN: u64 = 12;
/// The unit of what is looked for is first this part of an op.
const UNIT: u64 = 50;
/// It is larger by this, and that again, where the effect is larger.
const LARGER: u64 = 4;
/// An interval as narrow as this part of the ops' latency is narrow enough.
const NARROW: f64 = 0.01;

/// Of a latency.
#[derive(Clone, Copy)]
enum Which {
    /// All that passed.
    Passed,
    /// What is told of it: without what probes cost.
    Told,
}

impl Which {
    fn of(self, op: &Seen) -> Ticks {
        match self {
            Which::Passed => op.end - op.start,
            Which::Told => op.latency,
        }
    }
}

impl Trial<'_, '_> {
    /// Takes the probes of the calls away in some spans and puts them back in others. `Some` ending when something ended the
    /// session meanwhile.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn probes(
        &mut self,
        limits: Limits<'_>,
        bounds: &Bounds,
        risk: f64,
    ) -> Result<(Outcome, Option<Ending>), ProcessError> {
        let all = self.calls.clone();
        let outcome = self.toggle_probes(limits, bounds, risk);
        self.calls = all;
        outcome
    }

    fn toggle_probes(
        &mut self,
        limits: Limits<'_>,
        bounds: &Bounds,
        risk: f64,
    ) -> Result<(Outcome, Option<Ending>), ProcessError> {
        let with = std::mem::take(&mut self.calls.needed);
        let (mut is_with, mut spans) = (true, Vec::new());
        self.since = darc_tracer::tsc();
        let mut outcome = None;
        for look in LOOKS {
            let look_at = Tsc(self.since.0 + (look.at * bounds.time.0 as f64) as u64);
            while darc_tracer::tsc() < look_at && self.has_room() {
                if is_with != (self.random.part() < 0.5) {
                    is_with = !is_with;
                    self.calls.needed = match is_with {
                        true => with.clone(),
                        false => BTreeSet::new(),
                    };
                    self.session.instrument_calls(&self.calls)?;
                }
                let start = darc_tracer::tsc();
                let end = Tsc(start.0 + self.length(bounds));
                if let Some(ending) = self.until(end, limits)? {
                    return Ok((untried(ending), Some(ending)));
                }
                spans.push((start, end, is_with));
            }
            let found = self.effect(&spans, bounds, risk * look.risk);
            let is_narrow = found.as_ref().is_some_and(|(_, is_narrow)| *is_narrow);
            outcome = found.map(|(outcome, _)| outcome).or(outcome);
            if is_narrow {
                break;
            }
        }
        let nothing = "too few of these calls came";
        Ok((
            outcome.unwrap_or_else(|| Outcome::NotTestable(nothing.to_owned())),
            None,
        ))
    }

    fn length(&mut self, bounds: &Bounds) -> u64 {
        let shortest = bounds.clock.get() / SHORTEST;
        let of_ops = self
            .median()
            .unwrap_or_default()
            .0
            .saturating_mul(OPS_A_SPAN);
        let length = of_ops.clamp(shortest, bounds.clock.get());
        length + (self.random.part() * length as f64) as u64
    }

    /// What the spans tell, and whether that is exact.
    fn effect(
        &self,
        spans: &[(Tsc, Tsc, bool)],
        bounds: &Bounds,
        risk: f64,
    ) -> Option<(Outcome, bool)> {
        let median = self.median()?;
        let mut unit = Ticks((median.0 / UNIT).max(1));
        loop {
            let of = |which: Which| -> Option<Slope> {
                proof::slope(&self.sorted_by(spans, unit, which), &self.latencies, risk)
            };
            let (on_ops, on_latencies) = (of(Which::Passed), of(Which::Told));
            let is_large = on_ops.is_none_or(|found| found.at > 2.0);
            if is_large && unit < median {
                unit = Ticks(unit.0 * LARGER);
                continue;
            }
            let width = |found: &Slope| (found.high - found.low) * unit.0 as f64;
            let is_narrow = on_ops.is_some_and(|it| width(&it) < NARROW * median.0 as f64);
            let time = darc_tracer::tsc() - self.since;
            let time = time.min(bounds.time + bounds.time);
            let outcome = Outcome::Effect {
                on_ops,
                on_latencies,
                unit,
                time,
            };
            return Some((outcome, is_narrow));
        }
    }

    /// The spans with their ops; one with probes is one in which each op is a unit longer, if the effect is that.
    fn sorted_by(&self, spans: &[(Tsc, Tsc, bool)], unit: Ticks, which: Which) -> Vec<Span> {
        let added = |is_with: bool| if is_with { unit } else { Ticks(0) };
        let dose = |is_with: bool| match is_with {
            true => Dose::Whole,
            false => Dose::Nothing,
        };
        let mut sorted: Vec<Span> = spans
            .iter()
            .map(|&(_, _, is_with)| Span {
                dose: dose(is_with),
                ops: Vec::new(),
            })
            .collect();
        for op in self.seen() {
            let at = spans.partition_point(|&(_, end, _)| end < op.start);
            let Some(&(start, end, is_with)) = spans.get(at) else {
                continue;
            };
            if start <= op.start && op.end <= end {
                sorted[at].ops.push(Delayed {
                    latency: which.of(op),
                    added: added(is_with),
                    meant: added(is_with),
                });
            }
        }
        sorted
    }
}
