//! One experiment: a look at ops without delays, then spans with and without them.

use std::ops::RangeInclusive;
use std::time::Duration;

use darc_analysis::Ticks;
use darc_analysis::proof::{
    self, Baseline, Delayed, Design, LOOKS, Limits as Bounds, Random, Slope, Span,
};
use darc_process::{Ending, Event, Limits, ProcessError};
use darc_record::{FnodeId, Op, SiteId, Touched, Tsc};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{NewTarget, Served, Sink};

use super::elsewhere;
use super::{Calls, Outcome};
use crate::session::{SLICE, Session};

/// For this part of the time that is given nothing is delayed at first.
const BASELINE: u64 = 10;
/// So many ops are kept.
const MOST_OPS: usize = 400_000;
/// The part of a peak's ops that is nearly all.
const NEARLY_ALL: f64 = 0.98;
/// The percentiles whose gain is told.
const PARTS: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// An op, as far as it matters here.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    tid: i32,
    pub start: Tsc,
    pub end: Tsc,
    pub latency: Ticks,
    calls: u64,
    /// The time of the cause in it.
    cause: Ticks,
}

/// A span of time, and what calls were delayed by in it.
#[derive(Clone, Copy)]
struct Toggled {
    start: Tsc,
    end: Tsc,
    delay: Ticks,
}

/// What was seen of ops since something began.
#[derive(Default)]
struct Record {
    seen: Vec<Seen>,
    /// Calls of the cause on other threads.
    elsewhere: elsewhere::Calls,
    /// Calls of the cause in all ops, also in those that are not kept.
    calls: u64,
    /// What these were delayed by.
    added: Ticks,
}

/// Takes the ops that began after some moment.
struct Trying<'a> {
    cause: &'a [FnodeId],
    since: Tsc,
    spans: &'a [Toggled],
    record: &'a mut Record,
}

/// The span that a moment is in.
fn span_at(spans: &[Toggled], at: Tsc) -> Option<usize> {
    let index = spans.partition_point(|span| span.end < at);
    (spans.get(index)?.start <= at).then_some(index)
}

impl Sink for Trying<'_> {
    fn op(&mut self, op: Op) {
        if op.start < self.since {
            return;
        }
        let of_cause = |touched: &&Touched| self.cause.contains(&touched.fnode);
        let (mut calls, mut cause) = (0, Ticks(0));
        for touched in op.touched.iter().filter(of_cause) {
            calls = u64::saturating_add(calls, touched.count);
            cause = cause + touched.sum;
        }
        let delay = span_at(self.spans, op.start).map_or(0, |index| self.spans[index].delay.0);
        let record = &mut *self.record;
        record.calls = record.calls.saturating_add(calls);
        record.added = record.added + Ticks(calls.saturating_mul(delay));
        if record.seen.len() < MOST_OPS {
            record.seen.push(Seen {
                tid: op.tid,
                start: op.start,
                end: op.end,
                latency: op.latency,
                calls,
                cause,
            });
        }
    }

    fn served(&mut self, served: Served) {
        let (Served::Whole(op) | Served::Partly(op)) = served;
        if op.start < self.since {
            return;
        }
        let delay = span_at(self.spans, op.start).map_or(0, |index| self.spans[index].delay.0);
        self.record.calls += 1;
        self.record.added = self.record.added + Ticks(delay);
        self.record.elsewhere.add(&op);
    }

    fn latency_only(&mut self, _: Ticks, _: u64, _: Ticks) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// A test in progress.
pub(super) struct Trial<'s, 'a> {
    pub(super) session: &'s mut Session<'a>,
    /// The calls that are measured, and delayed.
    pub(super) calls: Calls,
    /// Those of the peak's ops.
    pub(super) latencies: RangeInclusive<Ticks>,
    /// When the ops begin that are looked at.
    pub(super) since: Tsc,
    record: Record,
    spans: Vec<Toggled>,
    pub(super) random: Random,
}

impl<'s, 'a> Trial<'s, 'a> {
    /// What is measured and delayed; the latencies of the peak.
    pub fn new(
        session: &'s mut Session<'a>,
        calls: Calls,
        latencies: RangeInclusive<Ticks>,
    ) -> Trial<'s, 'a> {
        Trial {
            session,
            calls,
            latencies,
            since: Tsc(0),
            record: Record::default(),
            spans: Vec::new(),
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
        let time = Ticks(bounds.time.0 / BASELINE);
        self.since = darc_tracer::tsc();
        if let Some(ending) = self.until(Tsc(self.since.0 + time.0), limits)? {
            return Ok((untried(ending), Some(ending)));
        }
        if !self.settle() {
            let why = "several calls of f0 run at a time, so which of them a call on another thread is for is not known";
            return Ok((Outcome::NotTestable(why.to_owned()), None));
        }
        let baseline = self.baseline(time);
        tracing::debug!(target: "prove", ?baseline, "looked at ops without delays");
        let design = match proof::design(&baseline, bounds) {
            Ok(design) => design,
            Err(why) => return Ok((Outcome::Refused(why), None)),
        };
        tracing::debug!(target: "prove", ?design, "designed");
        let before = std::mem::take(&mut self.record).seen;
        let (slope, ending) = self.try_delays(&design, limits, bounds, risk)?;
        let gains: Vec<_> = before.iter().map(|op| (op.latency, op.cause)).collect();
        let reaches = slope.map_or(0.0, |slope| slope.at);
        let outcome = Outcome::Tried {
            delay: design.delay,
            slope,
            gain: proof::gain(&gains, &self.latencies, reaches, &PARTS),
            histograms: proof::histograms(&self.sorted(&design), &self.latencies, reaches),
            added: self.record.added,
            time: darc_tracer::tsc() - self.since,
        };
        Ok((outcome, ending))
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
        for look in LOOKS {
            let look_at = Tsc(self.since.0 + (look.at * bounds.time.0 as f64) as u64);
            let mut ending = None;
            while ending.is_none() && darc_tracer::tsc() < look_at && self.has_room() {
                ending = self.span(design, bounds.budget, limits)?;
            }
            self.settle();
            let slope = proof::slope(&self.sorted(design), &self.latencies, risk * look.risk);
            let spans = self.spans.len();
            tracing::debug!(target: "prove", ?slope, spans, ops = self.record.seen.len(), "looked");
            let is_over = ending.is_some() || look.at == 1.0;
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
        while darc_tracer::tsc() < end {
            let mut sink = Trying {
                cause: &self.calls.cause,
                since: self.since,
                spans: &self.spans,
                record: &mut self.record,
            };
            let process = &mut self.session.process;
            let event = process.poll(limits, |engine, _| engine.poll(SLICE, &mut sink))?;
            match event {
                Event::Ended(ending) => return Ok(Some(ending)),
                Event::CodeChanged => {
                    self.session.look_at_libraries()?;
                    self.session.instrument_calls(&self.calls)?;
                }
                Event::Nothing => {}
            }
        }
        Ok(None)
    }

    /// One span. While delays have taken more than they may, it is one without.
    fn span(
        &mut self,
        design: &Design,
        budget: f64,
        limits: Limits<'_>,
    ) -> Result<Option<Ending>, ProcessError> {
        let (mut delay, length) = design.next(&mut self.random);
        let now = darc_tracer::tsc();
        let allowed = budget * ((now - self.since).0 + length.0) as f64;
        if self.record.added.0 as f64 > allowed {
            delay = Ticks(0);
        }
        let end = Tsc(now.0 + length.0);
        // To be delayed by nothing costs what any delay costs beside what it is to last: ops of both kinds of spans have that.
        self.delay(delay.max(Ticks(1)), end)?;
        self.spans.push(Toggled {
            start: darc_tracer::tsc(),
            end,
            delay,
        });
        self.until(end, limits)
    }

    /// Ends all delays, and waits for who sleeps: memory in which a thread is cannot be given back.
    ///
    /// # Errors
    /// As [`Trial::delay`].
    pub fn end_delays(&mut self, bounds: &Bounds) -> Result<(), ProcessError> {
        self.delay(Ticks(0), Tsc(0))?;
        let longest = self.spans.iter().map(|span| span.delay).max();
        let longest = bounds.clock.nanos(longest.unwrap_or_default()).0;
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
        self.record.seen.len() < MOST_OPS
    }

    /// The median latency of the peak's ops.
    pub(super) fn median(&self) -> Option<Ticks> {
        let latencies = self.record.seen.iter().map(|op| op.latency);
        let mut latencies: Vec<Ticks> =
            latencies.filter(|it| self.latencies.contains(it)).collect();
        let middle = latencies.len() / 2;
        (!latencies.is_empty()).then(|| *latencies.select_nth_unstable(middle).1)
    }

    /// Gives calls on other threads to the ops that they are of: whether it is known whose they are.
    fn settle(&mut self) -> bool {
        if self.calls.elsewhere.is_none() {
            return true;
        }
        let Record {
            seen, elsewhere, ..
        } = &mut self.record;
        elsewhere.sort();
        for op in seen.iter_mut() {
            (op.calls, op.cause) = elsewhere.of(op.tid, op.start, op.end);
        }
        elsewhere.are_told_apart(seen.iter().map(|op| (op.start, op.end, op.calls)))
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
        let empty = |span: &Toggled| Span {
            delay: span.delay,
            ops: Vec::new(),
        };
        let mut sorted: Vec<Span> = self.spans.iter().map(empty).collect();
        for op in self.record.seen.iter().filter(|op| op.calls > 0) {
            let Some(index) = span_at(&self.spans, op.start) else {
                continue;
            };
            let span = self.spans[index];
            if op.end <= span.end && design.fits(op.calls, span.end - op.start) {
                sorted[index].ops.push(Delayed {
                    latency: op.latency,
                    added: Ticks(op.calls.saturating_mul(span.delay.0)),
                });
            }
        }
        sorted
    }
}

/// What is not tried, since something has ended all of it.
pub(super) fn untried(ending: Ending) -> Outcome {
    Outcome::NotTestable(format!("it was not tried: {}", in_words(ending)))
}

fn in_words(ending: Ending) -> &'static str {
    match ending {
        Ending::Exited(_) | Ending::Killed(_) => "the program ended",
        Ending::Exec => "the program became another one",
        _ => "it was interrupted",
    }
}
