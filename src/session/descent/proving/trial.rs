//! One experiment: a look at ops without delays, then spans with and without them.

use std::ops::RangeInclusive;
use std::time::Duration;

use darc_analysis::proof::{
    self, Baseline, Design, Dose, FEWEST_OPS, LOOKS, Limits as Bounds, Random, Refusal, Slope,
    Span, Verdict,
};
use darc_analysis::{Hz, Ticks};
use darc_process::{Ending, Event, Limits, ProcessError};
use darc_record::Tsc;

use super::elsewhere::Threads;
use super::seen::{MOST_OPS, Record, Seen, Trying};
use super::sorting::{self, Toggled};
use super::{Calls, Outcome};
use crate::session::{SLICE, Session};

/// For this part of the time that is given nothing is delayed at first.
const BASELINE: u64 = 10;
/// And again, so often in all, where that did not tell.
const MOST_BASELINES: u32 = 3;
/// Said where ops cannot be told apart.
const AT_A_TIME: &str = "several calls of f0 run at a time, so which of them a call on another thread is for is not known";
/// Said where the stubs have delayed none of the calls.
const NOT_DELAYED: &str = "its calls are made in handlers of signals, or while such signals are blocked, as they are in a handler: those are not delayed";
/// Where more than this part of the records was lost, what is left of them tells nothing.
const MOST_LOST: f64 = 0.01;
/// The part of a peak's ops that is nearly all.
const NEARLY_ALL: f64 = 0.98;
/// The percentiles whose gain is told.
const PARTS: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// A test in progress.
pub(super) struct Trial<'s, 'a> {
    pub(super) session: &'s mut Session<'a>,
    /// The calls that are measured, and delayed.
    pub(super) calls: Calls,
    /// Those of the peak's ops.
    pub(super) latencies: RangeInclusive<Ticks>,
    clock: Hz,
    /// When the ops begin that are looked at.
    pub(super) since: Tsc,
    record: Record,
    /// Which calls on other threads count.
    threads: Threads,
    spans: Vec<Toggled>,
    /// The longest delay that any call had.
    longest: Ticks,
    pub(super) random: Random,
}

impl<'s, 'a> Trial<'s, 'a> {
    /// What is measured and delayed; the latencies of the peak; cycles a second.
    pub fn new(
        session: &'s mut Session<'a>,
        calls: Calls,
        latencies: RangeInclusive<Ticks>,
        clock: Hz,
    ) -> Trial<'s, 'a> {
        Trial {
            session,
            calls,
            latencies,
            clock,
            since: Tsc(0),
            record: Record::default(),
            threads: Threads::One,
            spans: Vec::new(),
            longest: Ticks(0),
            random: Random(darc_tracer::tsc().0 | 1),
        }
    }

    /// Conducts it. `Some` ending when something ended the session meanwhile.
    ///
    /// # Errors
    /// When the target can no longer be traced or written to for another reason than its end.
    pub fn run(
        &mut self,
        limits: Limits<'_>,
        bounds: &Bounds,
        risk: f64,
    ) -> Result<(Outcome, Option<Ending>), ProcessError> {
        let design = match self.design(limits, bounds)? {
            Ok(design) => design,
            Err(untried) => return Ok(untried),
        };
        let mut before = std::mem::take(&mut self.record);
        let lost = self.lost();
        let (slope, ending) = self.try_delays(&design, limits, bounds, risk)?;
        let lost = self.lost().saturating_sub(lost);
        if let Some(why) = self.doubt(lost.saturating_add(self.record.elsewhere.left_out())) {
            return Ok((Outcome::NotTestable(why), ending));
        }
        self.settle_record(&mut before);
        let gains: Vec<_> = before
            .seen
            .iter()
            .map(|op| (op.latency, op.cause))
            .collect();
        let reaches = slope.map_or(0.0, |slope| slope.at);
        // Half of what delays do may be all in some ops and nothing in those at a percentile.
        let proven = slope.filter(|slope| slope.verdict() == Verdict::Proven);
        let outcome = Outcome::Tried {
            delay: design.delay,
            slope,
            gain: proven.map_or(Vec::new(), |slope| {
                proof::gain(&gains, &self.latencies, slope.reach(), &PARTS)
            }),
            histograms: proof::histograms(&self.sorted(&design), &self.latencies, reaches),
            added: self.record.added,
            time: darc_tracer::tsc() - self.since,
        };
        Ok((outcome, ending))
    }

    /// How many records of ops and calls were lost so far.
    fn lost(&self) -> u64 {
        self.session.process.engine().counters().dropped
    }

    /// Why what was seen says nothing; `lost` records of it were.
    fn doubt(&mut self, lost: u64) -> Option<String> {
        let ops = self.record.seen.len() as u64;
        let kept = match self.calls.elsewhere {
            // Each of these has a record of its own.
            Some(_) => ops.saturating_add(self.record.calls),
            None => ops,
        };
        if lost > (MOST_LOST * kept as f64) as u64 {
            return Some(format!(
                "{lost} records were lost beside the {kept} that were read, for they came faster than that: which calls were delayed is not known"
            ));
        }
        if !self.settle() {
            return Some(AT_A_TIME.to_owned());
        }
        self.delays_nothing().then(|| NOT_DELAYED.to_owned())
    }

    /// Whether the stubs have delayed none of many calls, not even by nothing.
    fn delays_nothing(&self) -> bool {
        self.record.calls >= FEWEST_OPS as u64 && self.record.added == Ticks(0)
    }

    /// Looks at ops without delays until these tell how to delay calls, or what there is to say instead. What is refused is
    /// looked at again, for something else may have kept the machine busy.
    fn design(
        &mut self,
        limits: Limits<'_>,
        bounds: &Bounds,
    ) -> Result<Result<Design, (Outcome, Option<Ending>)>, ProcessError> {
        let time = Ticks(bounds.time.0 / BASELINE);
        let mut outcome = Outcome::Refused(Refusal::NotCalled { others: 0 });
        for _ in 0..MOST_BASELINES {
            self.record = Record::default();
            self.since = darc_tracer::tsc();
            if let Some(ending) = self.until(Tsc(self.since.0 + time.0), limits)? {
                return Ok(Err((untried(ending), Some(ending))));
            }
            outcome = match self.settle() {
                true => match self.designed(time, bounds) {
                    Ok(design) => return Ok(Ok(design)),
                    Err(why) => Outcome::Refused(why),
                },
                false => Outcome::NotTestable(AT_A_TIME.to_owned()),
            };
        }
        Ok(Err((outcome, None)))
    }

    fn designed(&self, time: Ticks, bounds: &Bounds) -> Result<Design, Refusal> {
        let baseline = self.baseline(time);
        let design = proof::design(&baseline, bounds);
        tracing::debug!(target: "prove", ?baseline, ?design, "looked at ops without delays");
        design
    }

    /// Delays calls in some spans and not in others, until that decides, or the time is over.
    fn try_delays(
        &mut self,
        design: &Design,
        limits: Limits<'_>,
        bounds: &Bounds,
        risk: f64,
    ) -> Result<(Option<Slope>, Option<Ending>), ProcessError> {
        self.since = darc_tracer::tsc();
        self.longest = design.delay;
        for look in LOOKS {
            let look_at = Tsc(self.since.0 + (look.at * bounds.time.0 as f64) as u64);
            let mut ending = None;
            while ending.is_none() && darc_tracer::tsc() < look_at && self.has_room() {
                ending = self.span(design, bounds.budget, limits)?;
            }
            let slope = self.slope(design, risk * look.risk);
            let spans = self.spans.len();
            tracing::debug!(target: "prove", ?slope, spans, ops = self.record.seen.len(), "looked");
            let is_over = ending.is_some() || look.at == 1.0 || self.delays_nothing();
            if is_over || slope.is_some_and(|slope| slope.is_decided()) {
                return Ok((slope, ending));
            }
        }
        Ok((None, None))
    }

    /// Lets the target run until the clock reads `end`.
    pub(super) fn until(
        &mut self,
        end: Tsc,
        limits: Limits<'_>,
    ) -> Result<Option<Ending>, ProcessError> {
        loop {
            let left = end.0.saturating_sub(darc_tracer::tsc().0);
            if left == 0 {
                return Ok(None);
            }
            // A span that is to be as short as a slice lasts no longer than it.
            let left = Duration::from_nanos(self.clock.nanos(Ticks(left)).0 as u64);
            let slice = SLICE.min(left);
            let mut sink = Trying {
                cause: &self.calls.cause,
                since: self.since,
                record: &mut self.record,
            };
            let process = &mut self.session.process;
            let event = process.poll(limits, |engine, _| engine.poll(slice, &mut sink))?;
            match event {
                Event::Ended(ending) => return Ok(Some(ending)),
                Event::CodeChanged => {
                    self.session.look_at_libraries()?;
                    self.session.instrument_calls(&self.calls)?;
                }
                Event::Nothing => {}
            }
        }
    }

    /// One span. While delays have taken more than they may, it is one without.
    fn span(
        &mut self,
        design: &Design,
        budget: f64,
        limits: Limits<'_>,
    ) -> Result<Option<Ending>, ProcessError> {
        let (mut dose, length) = design.next(&mut self.random);
        let now = darc_tracer::tsc();
        let allowed = budget * ((now - self.since).0 + length.0) as f64;
        let drawn = self.record.added.0 as f64 <= allowed;
        if !drawn {
            dose = Dose::Nothing;
        }
        let mut span = Toggled {
            start: now,
            end: Tsc(now.0 + length.0),
            dose,
            drawn,
        };
        self.delay(span.delay(design), span.end)?;
        span.start = darc_tracer::tsc();
        self.spans.push(span);
        self.until(span.end, limits)
    }

    /// Ends all delays, and waits for who sleeps: memory in which a thread is cannot be given back.
    ///
    /// # Errors
    /// As [`Trial::delay`].
    pub fn end_delays(&mut self) -> Result<(), ProcessError> {
        self.delay(Ticks(0), Tsc(0))?;
        let longest = self.clock.nanos(self.longest).0;
        std::thread::sleep(Duration::from_nanos(longest as u64));
        Ok(())
    }

    /// Has the calls of the cause delayed from now on.
    ///
    /// # Errors
    /// When the target cannot be written to for another reason than its end.
    pub fn delay(&mut self, by: Ticks, until: Tsc) -> Result<(), ProcessError> {
        for &fnode in &self.calls.cause {
            self.session.process.engine_mut().delay(fnode, by, until)?;
        }
        Ok(())
    }

    /// The ops that were seen.
    pub(super) fn seen(&self) -> &[Seen] {
        &self.record.seen
    }

    /// Whether more are kept.
    pub(super) fn has_room(&self) -> bool {
        self.record.seen.len() < MOST_OPS && self.record.elsewhere.has_room()
    }

    /// The median latency of the peak's ops.
    pub(super) fn median(&self) -> Option<Ticks> {
        let latencies = self.record.seen.iter().map(|op| op.latency);
        let mut latencies: Vec<Ticks> =
            latencies.filter(|it| self.latencies.contains(it)).collect();
        let middle = latencies.len() / 2;
        (!latencies.is_empty()).then(|| *latencies.select_nth_unstable(middle).1)
    }

    /// The slope so far. What calls on several threads are delayed by counts once, for these work side by side. Where ops become
    /// longer by more than that, and all of it proves the cause, the calls come after each other.
    fn slope(&mut self, design: &Design, risk: f64) -> Option<Slope> {
        // The better of two answers has the risk of both.
        let risk = match self.calls.elsewhere {
            Some(_) => risk / 2.0,
            None => risk,
        };
        let of_one = self.slope_by(Threads::One, design, risk);
        let is_more = of_one.is_some_and(|slope| slope.is_more());
        if self.calls.elsewhere.is_none() || !is_more {
            return of_one;
        }
        let of_all = self.slope_by(Threads::All, design, risk);
        let proves = of_all.filter(|slope| slope.verdict() == Verdict::Proven);
        proves.or_else(|| self.slope_by(Threads::One, design, risk))
    }

    fn slope_by(&mut self, threads: Threads, design: &Design, risk: f64) -> Option<Slope> {
        self.threads = threads;
        self.settle();
        proof::slope(&self.sorted(design), &self.latencies, risk)
    }

    /// Gives calls on other threads to the ops that they are of: whether it is known whose they are.
    fn settle(&mut self) -> bool {
        let mut record = std::mem::take(&mut self.record);
        let is_known = self.settle_record(&mut record);
        self.record = record;
        is_known
    }

    fn settle_record(&self, record: &mut Record) -> bool {
        self.calls.elsewhere.is_none() || record.settle(self.threads)
    }

    fn baseline(&self, time: Ticks) -> Baseline {
        let of_peak = |op: &&Seen| self.latencies.contains(&op.latency);
        let ops = self.record.seen.iter().filter(of_peak);
        let (callers, others): (Vec<&Seen>, Vec<&Seen>) = ops.partition(|op| op.calls > 0);
        let mut latencies: Vec<Ticks> = callers.iter().map(|op| op.latency).collect();
        latencies.sort_unstable();
        let at = |part: f64| {
            let index = (part * latencies.len() as f64) as usize;
            latencies.get(index).copied().unwrap_or_default()
        };
        let calls: f64 = callers.iter().map(|op| op.calls as f64).sum();
        Baseline {
            time,
            ops: callers.len() as u64,
            others: others.len() as u64,
            latency: at(0.5),
            spread: at(0.75).saturating_sub(at(0.25)),
            longest: at(NEARLY_ALL),
            calls: calls / callers.len().max(1) as f64,
            all_calls: self.record.calls,
        }
    }

    /// The spans with the ops that belong to them.
    fn sorted(&self, design: &Design) -> Vec<Span> {
        let elsewhere = self.calls.elsewhere.is_some();
        sorting::sorted(&self.record.seen, &self.spans, design, elsewhere)
    }
}

/// What is not tried, since something has ended all of it.
pub(super) fn untried(ending: Ending) -> Outcome {
    Outcome::NotTestable(format!("it was not tried: {}", in_words(ending)))
}

fn in_words(ending: Ending) -> &'static str {
    match ending {
        ending if ending.is_targets() => "the program ended",
        Ending::Exec => "the program became another one",
        _ => "it was interrupted",
    }
}
