//! A cause put to the test: its calls are made longer in some spans of time and not in others.
//!
//! Nothing is decided any more: the paths from f0 to the calls are measured as in [`super::localise`], the engine delays the
//! calls, and the ops go to [`darc_analysis::proof`].

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use darc_analysis::proof::{
    self, Baseline, Delayed, Design, Gain, Limits as Bounds, Random, Refusal, Slope, Span,
};
use darc_analysis::{Callee, Ticks};
use darc_process::{Ending, Event, Libraries, Limits, ProcessError};
use darc_record::{FnodeId, Op, SiteId, Touched, Tsc};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{NewTarget, Sink};

use super::bindings::Expansion;
use crate::session::{SLICE, Session};

/// For this part of the time that is given nothing is delayed at first.
const BASELINE: u64 = 10;
/// In which parts of the time the answer is looked at.
const LOOKS: [f64; 3] = [0.25, 0.5, 1.0];
/// So many ops are kept.
const MOST_OPS: usize = 400_000;
/// The part of a peak's ops that is nearly all.
const NEARLY_ALL: f64 = 0.98;
/// The percentiles whose gain is told.
pub const PARTS: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// What may be a cause of a peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The peak, numbered from 1.
    pub peak: u32,
    /// The call.
    pub fnode: FnodeId,
}

/// What came of a test.
#[derive(Clone, PartialEq, Debug)]
pub struct Proof {
    /// What was tested.
    pub suspect: Suspect,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a test.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// What delays did.
    Tried {
        /// What each call was delayed by; in some spans by twice that.
        delay: Ticks,
        /// The part of a delay that reached the ops; `None` where too few ops came.
        slope: Option<Slope>,
        /// What would be gained without the cause.
        gain: Vec<Gain>,
        /// All delays together.
        added: Ticks,
        /// For how long it was tried.
        time: Ticks,
    },
    /// No delay could have told.
    Refused(Refusal),
    /// Its calls cannot be delayed, for people.
    NotTestable(String),
}

/// An op, as far as it matters here.
#[derive(Clone, Copy)]
struct Seen {
    start: Tsc,
    end: Tsc,
    latency: Ticks,
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

/// The calls of a test.
struct Calls {
    /// Those that are measured.
    needed: BTreeSet<FnodeId>,
    /// Those of the cause among them.
    cause: Vec<FnodeId>,
}

/// What was seen of ops since something began.
#[derive(Default)]
struct Record {
    seen: Vec<Seen>,
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
                start: op.start,
                end: op.end,
                latency: op.latency,
                calls,
                cause,
            });
        }
    }

    fn latency_only(&mut self, _: Ticks, _: u64, _: Ticks) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

impl Session<'_> {
    /// Puts causes to the test, one after the other, and lets the process go, whatever happened. Each is told as soon as it
    /// is known.
    ///
    /// # Errors
    /// Why that could not begin or go on. The target has been restored all the same.
    pub fn prove(
        self,
        limits: Limits<'_>,
        suspects: &[Suspect],
        bounds: &Bounds,
        mut tell: impl FnMut(Proof),
    ) -> Result<Ending, ProcessError> {
        self.conduct(|session| {
            if session.process.refresh()? {
                session.look_at_libraries()?;
            }
            if !session.is_f0_loaded() || session.process.libraries() == Libraries::NotLoadedYet {
                return Err(ProcessError::Unsuitable(
                    "f0 is not loaded in this process".to_owned(),
                ));
            }
            let risk = proof::risk(suspects.len(), LOOKS.len());
            let mut ended = None;
            for &suspect in suspects {
                let outcome = match ended {
                    Some(ending) => untried(ending),
                    None => {
                        let (outcome, ending) = session.test(suspect, limits, bounds, risk)?;
                        ended = ending;
                        outcome
                    }
                };
                tell(Proof { suspect, outcome });
            }
            Ok(ended.unwrap_or(Ending::Finished))
        })
    }

    /// Tests one. `Some` ending when something ended the session meanwhile.
    fn test(
        &mut self,
        suspect: Suspect,
        limits: Limits<'_>,
        bounds: &Bounds,
        risk: f64,
    ) -> Result<(Outcome, Option<Ending>), ProcessError> {
        let Calls { needed, cause } = match self.measure_path_to(suspect.fnode)? {
            Ok(calls) => calls,
            Err(why) => return Ok((Outcome::NotTestable(why), None)),
        };
        let Some(latencies) = self.latencies_of(suspect.peak) else {
            let why = "there is no such peak".to_owned();
            return Ok((Outcome::NotTestable(why), None));
        };
        let mut test = Test {
            session: self,
            needed,
            cause,
            latencies,
            since: Tsc(0),
            record: Record::default(),
            spans: Vec::new(),
            random: Random(darc_tracer::tsc().0 | 1),
        };
        let outcome = test.run(limits, bounds, risk);
        // Also after a failure: the stubs look at the clock, but nobody need wait for it.
        test.delay(Ticks(0), Tsc(0))?;
        outcome
    }

    /// Has the calls on the path from f0 to an fnode measured. The calls of the same function at the same level are one
    /// cause. Why they cannot be measured, where that is so.
    fn measure_path_to(&mut self, fnode: FnodeId) -> Result<Result<Calls, String>, ProcessError> {
        let ftree = self.investigation.analysis.ftree();
        let path = ftree.path(fnode);
        let Some(parent) = ftree.fnode(fnode).parent else {
            return Ok(Err(
                "f0 itself takes the time: there is no call in it that could be made longer"
                    .to_owned(),
            ));
        };
        let callee = ftree.fnode(fnode).callee;
        if let Callee::Absence(_) = callee {
            return Ok(Err("it is no call, so it cannot be made longer".to_owned()));
        }
        if let Callee::Unknown | Callee::Syscall(None) = callee {
            return Ok(Err("which function it is was not seen".to_owned()));
        }
        for &at in &path[..path.len() - 1] {
            match self.investigation.expand(at, &self.process, self.catalog) {
                Ok(Expansion::Done) => {}
                Ok(Expansion::AfterFirstCall) => {
                    return Ok(Err(
                        "which function it is will be known after its first call; begin again then"
                            .to_owned(),
                    ));
                }
                Err(why) => return Ok(Err(why)),
            }
        }
        let ftree = self.investigation.analysis.ftree();
        let alike = ftree.fnode(parent).children.iter().copied();
        let mut cause: Vec<FnodeId> = alike
            .filter(|&at| ftree.fnode(at).callee == callee)
            .collect();
        let needed: BTreeSet<FnodeId> = path[1..].iter().chain(&cause).copied().collect();
        // Percentiles are of the ops of all peaks.
        self.process.engine_mut().set_filter(&[]);
        let refused = self.instrument_only(needed.iter().copied())?;
        let ftree = self.investigation.analysis.ftree();
        let can_carry = |at: FnodeId| {
            let site = ftree.fnode(at).site;
            site.is_some_and(|site| !refused.contains(&site))
        };
        cause.retain(|&at| can_carry(at));
        Ok(match path[1..].iter().all(|&at| can_carry(at)) {
            false => Err("a call on the path to it can carry no probe".to_owned()),
            true => Ok(Calls { needed, cause }),
        })
    }

    fn latencies_of(&self, peak: u32) -> Option<RangeInclusive<Ticks>> {
        let analysis = &self.investigation.analysis;
        let peaks = analysis.peaks();
        let peak = peaks.iter().find(|at| at.number == peak)?;
        let resolution = analysis.params().resolution;
        let first = resolution.bounds(peak.first_bucket)?.0;
        Some(first..=resolution.bounds(peak.last_bucket)?.1)
    }
}

/// A test in progress.
struct Test<'s, 'a> {
    session: &'s mut Session<'a>,
    /// The calls that are measured.
    needed: BTreeSet<FnodeId>,
    /// The calls that are delayed.
    cause: Vec<FnodeId>,
    /// Those of the peak's ops.
    latencies: RangeInclusive<Ticks>,
    /// When the ops begin that are looked at.
    since: Tsc,
    record: Record,
    spans: Vec<Toggled>,
    random: Random,
}

impl Test<'_, '_> {
    fn run(
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
        for part in LOOKS {
            let look_at = Tsc(self.since.0 + (part * bounds.time.0 as f64) as u64);
            let mut ending = None;
            while ending.is_none()
                && darc_tracer::tsc() < look_at
                && self.record.seen.len() < MOST_OPS
            {
                ending = self.span(design, bounds.budget, limits)?;
            }
            let slope = proof::slope(&self.sorted(design), &self.latencies, risk);
            let spans = self.spans.len();
            tracing::debug!(target: "prove", ?slope, spans, ops = self.record.seen.len(), "looked");
            let is_over = ending.is_some() || part == 1.0;
            if is_over || slope.is_some_and(|slope| slope.is_decided()) {
                return Ok((slope, ending));
            }
        }
        Ok((None, None))
    }

    /// Lets the target run until the clock reads `end`.
    fn until(&mut self, end: Tsc, limits: Limits<'_>) -> Result<Option<Ending>, ProcessError> {
        while darc_tracer::tsc() < end {
            let mut sink = Trying {
                cause: &self.cause,
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
                    let needed = self.needed.iter().copied();
                    self.session.instrument_only(needed)?;
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
        self.delay(delay, end)?;
        self.spans.push(Toggled {
            start: darc_tracer::tsc(),
            end,
            delay,
        });
        self.until(end, limits)
    }

    fn delay(&mut self, by: Ticks, until: Tsc) -> Result<(), ProcessError> {
        for &fnode in &self.cause {
            self.session.process.engine_mut().delay(fnode, by, until)?;
        }
        Ok(())
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
fn untried(ending: Ending) -> Outcome {
    Outcome::NotTestable(format!("it was not tried: {}", in_words(ending)))
}

fn in_words(ending: Ending) -> &'static str {
    match ending {
        Ending::Exited(_) | Ending::Killed(_) => "the program ended",
        Ending::Exec => "the program became another one",
        _ => "it was interrupted",
    }
}
