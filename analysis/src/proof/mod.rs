//! Whether a cause is one, by experiment: each call of it is made longer in some spans of time and not in others, and the
//! latencies of f0's ops in both are compared.
//!
//! If the calls are on the critical path of an op, the op becomes longer by all of what its calls were delayed; if something
//! else goes on meanwhile that the op waits for anyway, by less or by nothing. The part that arrives is the *slope*. It is the
//! slope at which the ops of both kinds of spans, each less its part of the delay, have the same mean latency (the estimate
//! of Hodges and Lehmann, Ann. Math. Stat. 34, 1963, section 6). The mean is a trimmed one (Tukey and McLaughlin, Sankhya A 25,
//! 1963): the few ops that are far longer for another reason do not count, while one of two halves that a delay does not reach
//! does, of which a median knows nothing. Ops that come after each other are alike, so
//! the interval is from resampling whole spans with replacement, which tells the estimate's standard error (Efron and Tibshirani,
//! An Introduction to the Bootstrap, 1993, sections 6.2 and 13.2; spans as in Künsch, Ann. Stat. 17, 1989).
//!
//! `docs/prove.md` is the whole of it on a page.

mod centre;
mod gain;
mod histograms;
mod linear;
mod plan;
mod statistics;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use darc_record::Ticks;

use centre::{Centre, centre, of_peak};
pub use gain::{Gain, Reach, gain};
pub use histograms::{Histograms, histograms};
pub use linear::{Half, Linear};
pub use plan::{Baseline, Design, Limits, Refusal, design};
pub use statistics::Random;
use statistics::{deviation, student_quantile};

/// Below this many ops in either kind of span nothing is estimated.
pub const FEWEST_OPS: usize = 30;
/// Below this many spans of either kind nothing is estimated.
pub const FEWEST_SPANS: usize = 10;
/// So many resamplings: with them the standard error is known to a twentieth.
const RESAMPLINGS: usize = 200;
/// At most so many ops of either kind that may be of the peak are looked at; more do not make the interval smaller, for spans differ.
const MOST_OPS: usize = 1_000;
/// The standard error of a mean of so few ops is known only so well: in 400 simulated experiments intervals wider by this
/// factor held the slope as often as they should.
const CAUTION: f64 = 1.2;
/// The part of the risk that is for what half of a delay does.
const RISK_OF_HALF: f64 = 0.2;
/// What slopes are looked for in. One cannot be negative; estimates can.
const SLOPES: RangeInclusive<f64> = -1.0..=3.0;
/// How far apart slopes are tried.
const STEP: f64 = 0.125;
/// And up to this where there is none in these: where calls queue, each waits for the delays of all before it as well.
const MOST_SLOPE: f64 = 16.0;
/// Of those each that is tried is so many times the one before.
const FACTOR: f64 = 1.125;
/// How often what is between two of them is halved.
const HALVINGS: u32 = 7;
/// With a smaller part than this of them, as far as chance does not explain that, it is not known what the delay does to the
/// others.
const LEAST_INSIDE: f64 = 0.9;
/// At a slope with which a smaller part than this of the expected ops is in the peak, the means say nothing.
const MOST_OUTSIDE: f64 = 0.5;
/// With an upper bound below this the calls are not on the path: at most a fifth of their time is.
const NOT_ON_PATH: f64 = 0.2;
/// With a lower bound of this at least they are: more than half of their time is, by a margin, for one of half may be of what
/// half of the ops wait for.
const PROVEN: f64 = 0.55;
/// With a lower bound above this ops become longer by more than their calls: something else does that as well, as a thread that
/// works for longer waits for a processor for longer, and it is not known what the calls themselves do.
const MORE: f64 = 1.05;
/// Delays that took more than so many times what they were to take are other ones, if they are longer than any are to be.
const OVERRUN: f64 = 1.5;
/// With a lower bound up to this they may be by chance, or by what few long delays do.
const LITTLE: f64 = 0.1;
/// Above this they may be for all of it.
const PARTLY: f64 = 0.8;

/// An op in which the cause was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delayed {
    /// How long it took, delays included.
    pub latency: Ticks,
    /// How long its calls were delayed, all together.
    pub added: Ticks,
    /// How long they were to be.
    pub meant: Ticks,
}

/// What calls are delayed by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Dose {
    /// Nothing.
    #[default]
    Nothing,
    /// Half of the delay: it tells whether what a delay does is in proportion to it.
    Half,
    /// All of it.
    Whole,
}

/// A span of time in which all calls of the cause were delayed by the same.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Span {
    /// What each call was delayed by.
    pub dose: Dose,
    /// The ops that began and ended in it.
    pub ops: Vec<Delayed>,
}

/// The part of a delay of the cause's calls that makes ops longer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slope {
    /// The estimate.
    pub at: f64,
    /// Not less, at the level that was asked for.
    pub low: f64,
    /// Not more.
    pub high: f64,
    /// Ops of the peak without a delay that it is known from.
    pub without: u64,
    /// Ops of the peak with a delay, less their part of which they would be of it.
    pub with: u64,
    /// The mean of what was added to an op with a delay.
    pub added: Ticks,
    /// The mean of what was to be added.
    pub meant: Ticks,
    /// The mean latency of the ops without a delay.
    pub latency: Ticks,
    /// What half of the delay does; `None` where too little is known.
    pub half: Option<Half>,
}

/// What an experiment says of a cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A delay of it makes ops longer, by half of the delay at least.
    Proven,
    /// It makes them longer, but not in proportion: what a smaller delay or a shorter call does does not follow.
    NotLinear,
    /// It makes them longer, but certainly not by all of it.
    Partly,
    /// It makes them longer by a fifth of the delay at most.
    NotOnPath,
    /// The interval does not tell.
    NotDecided,
}

impl Slope {
    /// What follows from it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match () {
            () if self.high < NOT_ON_PATH => Verdict::NotOnPath,
            () if self.is_more() || self.at > *SLOPES.end() || self.overran() => {
                Verdict::NotDecided
            }
            () if self.low > 0.0 && self.linear() == Linear::No => Verdict::NotLinear,
            () if self.low >= PROVEN => Verdict::Proven,
            () if self.low > LITTLE && self.high < PARTLY && !self.are_longer() => Verdict::Partly,
            () => Verdict::NotDecided,
        }
    }

    /// Whether ops become longer by more than their calls.
    #[must_use]
    pub fn is_more(&self) -> bool {
        self.low > MORE
    }

    /// Whether delays took so much longer than they were to, and than any are to, that ops which become longer say nothing of
    /// short ones: what goes on meanwhile may have ended before.
    #[must_use]
    pub fn overran(&self) -> bool {
        self.are_longer() && self.added.0 as f64 > plan::MOST_PART * self.latency.0 as f64
    }

    /// Whether delays took much longer than they were to.
    fn are_longer(&self) -> bool {
        self.added.0 as f64 > OVERRUN * self.meant.0 as f64
    }

    /// Whether half of the delay does half of what all of it does.
    #[must_use]
    pub fn linear(&self) -> Linear {
        self.half.map_or(Linear::NotKnown, |half| half.linear())
    }

    /// The slope with its interval, of a change of the cause's time.
    #[must_use]
    pub fn reach(&self) -> Reach {
        Reach {
            at: self.at,
            low: self.low,
            high: self.high,
        }
    }

    /// Whether more ops would hardly say more.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.verdict() != Verdict::NotDecided
    }
}

/// When the answer is looked at, and may be the last one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Look {
    /// After which part of the time.
    pub at: f64,
    /// Which part of the risk it has.
    pub risk: f64,
}

/// Most of the risk is left to the last look, which knows most: early ones are for what is clear.
pub const LOOKS: [Look; 3] = [
    Look {
        at: 0.25,
        risk: 0.1,
    },
    Look { at: 0.5, risk: 0.2 },
    Look { at: 1.0, risk: 0.7 },
];

/// How large the risk of a wrong interval may be for each of several causes, all looks together, so that for all of them
/// together it is 5% (Bonferroni).
#[must_use]
pub fn risk(causes: usize) -> f64 {
    0.05 / causes.max(1) as f64
}

/// The slope for the ops of a peak, `latencies` without delay. `None` where too little is known.
#[must_use]
pub fn slope(spans: &[Span], latencies: &RangeInclusive<Ticks>, risk: f64) -> Option<Slope> {
    let up_to = |most: f64| slope_up_to(most, spans, latencies, risk);
    let larger = || up_to(MOST_SLOPE).filter(|slope| slope.at > *SLOPES.end());
    up_to(*SLOPES.end()).or_else(larger)
}

fn slope_up_to(
    most: f64,
    spans: &[Span],
    latencies: &RangeInclusive<Ticks>,
    risk: f64,
) -> Option<Slope> {
    let both = Both::of(spans, latencies, Dose::Whole, most);
    if !both.are_enough(FEWEST_SPANS, FEWEST_OPS) {
        return None;
    }
    let all = |spans: &[Vec<Delayed>]| spans.concat();
    let (without, with) = (all(&both.without), all(&both.with));
    let at = both
        .estimate(&without, &with, latencies)
        .filter(|&at| both.are_all(&without, &with, latencies, at))?;
    let slopes = both.resampled_slopes(latencies);
    let freedom = both.without.len().min(both.with.len()) - 1;
    let of_half = RISK_OF_HALF * risk;
    let reach = reach(slopes.iter().flatten().copied(), freedom, risk - of_half)?;
    let [none, delayed] = [&without, &with].map(|ops| of_peak(ops, at, latencies));
    if none.len().min(delayed.len()) < FEWEST_OPS {
        return None;
    }
    let mean = |of: fn(&Delayed) -> Ticks| {
        let called = delayed.iter().filter(|op| op.meant > Ticks(0));
        let (all, ops) = called.fold((0, 0), |(all, ops), op| (all + of(op).0, ops + 1));
        Ticks(all / u64::max(ops, 1))
    };
    Some(Slope {
        at,
        low: at - reach,
        high: at + reach,
        without: none.len() as u64,
        with: delayed.len() as u64,
        added: mean(|op| op.added),
        meant: mean(|op| op.meant),
        latency: Ticks(centre(&without, 0.0, latencies)?.latency as u64),
        half: Half::of(spans, latencies, most, (at, &slopes), of_half),
    })
}

/// How far an interval reaches to either side of an estimate, by what its resamplings are. `None` where many have no estimate.
fn reach(estimates: impl Iterator<Item = f64>, freedom: usize, risk: f64) -> Option<f64> {
    let estimates: Vec<f64> = estimates.collect();
    if 10 * estimates.len() < 9 * RESAMPLINGS {
        return None;
    }
    let deviation = deviation(&estimates).filter(|&deviation| deviation > 0.0)?;
    Some(CAUTION * student_quantile(risk / 2.0, freedom) * deviation)
}

/// The ops of the spans without a delay, and of those with one dose.
struct Both {
    without: Vec<Vec<Delayed>>,
    with: Vec<Vec<Delayed>>,
    /// How many ops of any latency there are with a delay, for one without.
    ratio: f64,
    /// The slopes that are tried.
    tried: Vec<f64>,
}

/// The slopes that are tried up to one.
fn tried(most: f64) -> Vec<f64> {
    let next = |&at: &f64| match at < *SLOPES.end() {
        true => Some(at + STEP),
        false => Some(at * FACTOR).filter(|&at| at <= most),
    };
    std::iter::successors(Some(*SLOPES.start()), next).collect()
}

impl Both {
    /// Those that may be of the peak whatever the slope is, up to some one.
    fn of(spans: &[Span], latencies: &RangeInclusive<Ticks>, dose: Dose, most: f64) -> Both {
        let is_possible = |op: &&Delayed| {
            let most = most * op.added.0 as f64;
            op.latency.0 as f64 + op.added.0 as f64 >= latencies.start().0 as f64
                && op.latency.0 as f64 - most <= latencies.end().0 as f64
        };
        let possible = |span: &Span| span.ops.iter().filter(is_possible).count();
        let total: usize = spans.iter().map(possible).sum();
        // Every n-th of them stands for all.
        let step = total.div_ceil(2 * MOST_OPS).max(1);
        let of = |dose: Dose| {
            let mut number = 0;
            let mut stands = |_: &&Delayed| {
                number += 1;
                number % step == 0
            };
            let spans = spans.iter().filter(|span| span.dose == dose);
            let ops = spans.map(|span| {
                let possible = span.ops.iter().filter(is_possible);
                possible.filter(&mut stands).copied().collect::<Vec<_>>()
            });
            ops.filter(|ops| !ops.is_empty()).collect::<Vec<_>>()
        };
        let all = |dose: Dose| {
            let spans = spans.iter().filter(|span| span.dose == dose);
            spans.map(|span| span.ops.len()).sum::<usize>()
        };
        Both {
            without: of(Dose::Nothing),
            with: of(dose),
            ratio: all(dose) as f64 / all(Dose::Nothing).max(1) as f64,
            tried: tried(most),
        }
    }

    /// The slopes of spans drawn anew, those without a delay always the same ones in the same place: the n-th slopes of two
    /// doses belong together.
    fn resampled_slopes(&self, latencies: &RangeInclusive<Ticks>) -> Vec<Option<f64>> {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut of_delayed = Random(0x2545_f491_4f6c_dd1d);
        (0..RESAMPLINGS)
            .map(|_| {
                let without = resampled(&self.without, &mut random);
                let with = resampled(&self.with, &mut of_delayed);
                self.estimate(&without, &with, latencies)
            })
            .collect()
    }

    /// Whether about as many delayed ops as are expected are of the peak with this slope. Where a delay reaches some of them
    /// alone, the others may seem to be of no peak, and the slope would be that of the reached ones.
    fn are_all(
        &self,
        without: &[Delayed],
        with: &[Delayed],
        latencies: &RangeInclusive<Ticks>,
        slope: f64,
    ) -> bool {
        let of = |ops: &[Delayed], slope| {
            centre(ops, slope, latencies).map_or(0.0, |centre| centre.ops as f64)
        };
        let expected = self.ratio * of(without, 0.0);
        of(with, slope) >= LEAST_INSIDE * expected - expected.sqrt()
    }

    /// The slope at which both means are equal; `None` where there is not exactly one.
    ///
    /// Which ops are of the peak depends on the slope, so where another peak is near the means may be equal for several. A
    /// slope with which the delayed ops are hardly in the peak any more is too small or too large, whatever the few say that
    /// are in it: calls that took longer for another reason.
    fn estimate(
        &self,
        without: &[Delayed],
        with: &[Delayed],
        latencies: &RangeInclusive<Ticks>,
    ) -> Option<f64> {
        let expected = centre(without, 0.0, latencies)?;
        let fewest = (MOST_OUTSIDE * self.ratio * expected.ops as f64) as usize;
        let known = |slope: f64| {
            let found = centre(with, slope, latencies);
            found.filter(|found| found.ops >= fewest)
        };
        let known_at: Vec<Option<Centre>> = self.tried.iter().map(|&at| known(at)).collect();
        let first = known_at.iter().position(Option::is_some)?;
        let last = known_at.iter().rposition(Option::is_some)?;
        let is_too_small = |step: usize| match known_at[step] {
            Some(found) => found.latency > expected.latency,
            None => step < first,
        };
        // A step or two around it are a matter of single ops.
        let last_small = (0..=last).rfind(|&step| is_too_small(step));
        let first_large = (first..known_at.len()).find(|&step| !is_too_small(step))?;
        let last_small = last_small.filter(|&step| step <= first_large + 2)?;
        let mut low = self.tried[first_large.saturating_sub(1)];
        let mut high = *self.tried.get(last_small + 1)?;
        let middle = |low: f64, high: f64| f64::midpoint(low, high);
        for _ in 0..HALVINGS {
            let slope = middle(low, high);
            match known(slope) {
                Some(found) if found.latency > expected.latency => low = slope,
                Some(_) => high = slope,
                // Outside of what is known, on the side that is nearer.
                None if slope < self.tried[first] => low = slope,
                None => high = slope,
            }
        }
        Some(middle(low, high))
    }

    fn are_enough(&self, fewest_spans: usize, fewest_ops: usize) -> bool {
        [&self.without, &self.with].iter().all(|spans| {
            let ops: usize = spans.iter().map(Vec::len).sum();
            spans.len() >= fewest_spans && ops >= fewest_ops
        })
    }
}

/// As many spans as there are, drawn with replacement.
fn resampled(spans: &[Vec<Delayed>], random: &mut Random) -> Vec<Delayed> {
    let drawn = (0..spans.len()).map(|_| &spans[random.below(spans.len())]);
    drawn.flatten().copied().collect()
}
