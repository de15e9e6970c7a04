//! How long calls are delayed, how often, and for how long this is tried: said before anything is delayed.

use darc_record::{Hz, Ticks};

use super::{Dose, FEWEST_OPS, FEWEST_SPANS, Random};

/// An op becomes longer by this part of its latency where calls are delayed.
const PART: f64 = 0.2;
/// By more where latencies differ by much, but not by more than this: what a small delay does not change a large one may.
pub const MOST_PART: f64 = 0.5;
/// By so many times what the middle half of the latencies differ by.
const SPREADS: f64 = 2.0;
/// A delay of less than this part of an op's latency is not seen.
const LEAST_PART: f64 = 0.02;
/// Calls are delayed in at most this part of the spans: as many ops with a delay as without tell most.
const MOST: f64 = 0.5;
/// In this part of those, by half of the delay. Of 6,400 simulated experiments 6,169 were decided so, and 6,258 without it,
/// when it had no part of the risk.
const HALVES: f64 = 0.2;
/// With delays in less than this part of the spans they would be compared with too few.
const LEAST: f64 = 0.1;
/// A span is so many times as long as an op of the peak, so that most ops are in one span alone. In longer ones more are, but
/// there are fewer of them, and how much those differ tells how far the answer is known.
const OPS_A_SPAN: u64 = 6;
/// And so many times as long as nearly all of them with their delays: at either end ops of such a time are left out.
const LONGEST_A_SPAN: u64 = 4;
/// The shortest span, in parts of a second: changing the delay takes some microseconds.
const SHORTEST: u64 = 50;
/// The longest, in seconds: so long delays may go on at most when nobody is there any more to end them.
const LONGEST: u64 = 2;
/// A shorter delay, in cycles, is not what it is taken for: the loop that reads the clock takes up to 250.
const FINEST: f64 = 2_500.0;

/// What is known of the ops of a peak that call the cause, before anything is delayed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Baseline {
    /// For how long that was looked at.
    pub time: Ticks,
    /// How many ops of the peak called the cause.
    pub ops: u64,
    /// How many ops of the peak did not.
    pub others: u64,
    /// The median latency of those that did.
    pub latency: Ticks,
    /// How far apart the latencies of the middle half of those are.
    pub spread: Ticks,
    /// The latency that nearly all of them are below.
    pub longest: Ticks,
    /// The mean number of calls of the cause in them.
    pub calls: f64,
    /// All calls of the cause in all ops, whatever the peak.
    pub all_calls: u64,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// For so long calls may be delayed now and then.
    pub time: Ticks,
    /// The longest delay of a call.
    pub delay: Ticks,
    /// The part of the time that delays may take, all threads' together.
    pub budget: f64,
    /// Cycles a second.
    pub clock: Hz,
}

/// How a cause is put to the test.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Design {
    /// What calls are delayed by.
    pub delay: Ticks,
    /// In which part of the spans, those with half of it included.
    pub part: f64,
    /// The shortest span; each is up to twice as long.
    pub span: Ticks,
    /// The latency that nearly all ops are below without a delay.
    pub longest: Ticks,
    /// More calls than nearly any op has: twice the mean.
    pub calls: u64,
}

/// Why no delay can tell within the limits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Refusal {
    /// The ops of the peak do not call the cause, in the call path that was found.
    NotCalled {
        /// Calls of it in other ops, or on other threads in none.
        others: u64,
    },
    /// So many ops are expected in the spans with a delay, and so many are needed.
    TooFew {
        /// Expected.
        expected: u64,
        /// Needed.
        needed: u64,
    },
    /// A delay as small as the budget allows would not be seen.
    Budget,
    /// Its calls are so short, or so many, that a fitting delay would be shorter than the clock can tell.
    TooShort,
    /// The ops are so long that there are too few spans of time to compare.
    TooLong,
}

/// Designs the experiment.
///
/// # Errors
/// When it could not tell.
pub fn design(baseline: &Baseline, limits: &Limits) -> Result<Design, Refusal> {
    if baseline.ops == 0 {
        return Err(Refusal::NotCalled {
            others: baseline.all_calls,
        });
    }
    let calls = baseline.calls.max(1.0);
    let latency = baseline.latency.0.max(1) as f64;
    let part = (SPREADS * baseline.spread.0 as f64 / latency).clamp(PART, MOST_PART);
    let wanted = part * latency / calls;
    let delay = wanted.min(limits.delay.0 as f64).max(1.0);
    let rate = baseline.all_calls as f64 / baseline.time.0.max(1) as f64;
    // What delays take of the time, where they are in all spans.
    let price = rate * delay;
    let part = (limits.budget / price.max(f64::MIN_POSITIVE)).min(MOST);
    // With a smaller delay more spans can have one.
    let (delay, part) = match part < LEAST {
        true => (delay * part / LEAST, LEAST),
        false => (delay, part),
    };
    if delay * calls < latency * LEAST_PART {
        return Err(Refusal::Budget);
    }
    if delay < FINEST {
        return Err(Refusal::TooShort);
    }
    let second = limits.clock.get();
    let longest = baseline.longest + Ticks((delay * calls) as u64);
    let span = Ticks(baseline.latency.0.saturating_mul(OPS_A_SPAN))
        .max(Ticks(longest.0.saturating_mul(LONGEST_A_SPAN)))
        .max(Ticks(second / SHORTEST));
    let spans = limits.time.0 as f64 / (1.5 * span.0 as f64);
    let whole = part * (1.0 - HALVES);
    if span.0 > second.saturating_mul(LONGEST) / 2 || spans * whole < FEWEST_SPANS as f64 {
        return Err(Refusal::TooLong);
    }
    let share = limits.time.0 as f64 / baseline.time.0.max(1) as f64;
    let expected = (baseline.ops as f64 * share * whole) as u64;
    let needed = 2 * FEWEST_OPS as u64;
    match expected < needed {
        true => Err(Refusal::TooFew { expected, needed }),
        false => Ok(Design {
            delay: Ticks(delay as u64),
            part,
            span,
            longest: baseline.longest,
            calls: (2.0 * calls).ceil() as u64,
        }),
    }
}

impl Design {
    /// Whether an op with so many calls of the cause is compared that begins so long after the beginning of a span and so long
    /// before its end: whether it was delayed makes no difference to that, and the ops that began in the span before are over.
    #[must_use]
    pub fn fits(&self, calls: u64, since: Ticks, left: Ticks) -> bool {
        let delays = Ticks(calls.saturating_mul(self.delay.0));
        self.longest + delays <= since.min(left)
    }

    /// What calls are delayed by in the next span, and how long that is.
    pub fn next(&self, random: &mut Random) -> (Dose, Ticks) {
        let drawn = random.part();
        let dose = match () {
            () if drawn < HALVES * self.part => Dose::Half,
            () if drawn < self.part => Dose::Whole,
            () => Dose::Nothing,
        };
        let longer = random.part() * self.span.0 as f64;
        (dose, Ticks(self.span.0 + longer as u64))
    }

    /// How long a dose is.
    #[must_use]
    pub fn of(&self, dose: Dose) -> Ticks {
        match dose {
            Dose::Nothing => Ticks(0),
            Dose::Half => Ticks(self.delay.0 / 2),
            Dose::Whole => self.delay,
        }
    }
}
