//! A cause put to the test: its calls are made longer in some spans of time and not in others.
//!
//! Nothing is decided any more: the paths from f0 to the calls are measured as in [`super::localise`], the engine delays the
//! calls, and the ops go to [`darc_analysis::proof`].

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use darc_analysis::proof::{
    self, Baseline, Delayed, Gain, Limits as Bounds, Random, Refusal, Slope, Span,
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
/// At most this part of a span is too near its end for an op of the peak to begin in.
const NEAR_END: u64 = 2;
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

/// Takes the ops.
struct Trying<'a> {
    cause: &'a [FnodeId],
    seen: &'a mut Vec<Seen>,
}

impl Sink for Trying<'_> {
    fn op(&mut self, op: Op) {
        if self.seen.len() >= MOST_OPS {
            return;
        }
        let of_cause = |touched: &&Touched| self.cause.contains(&touched.fnode);
        let (mut calls, mut cause) = (0, Ticks(0));
        for touched in op.touched.iter().filter(of_cause) {
            calls += touched.count;
            cause = cause + touched.sum;
        }
        self.seen.push(Seen {
            start: op.start,
            end: op.end,
            latency: op.latency,
            calls,
            cause,
        });
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
            for &suspect in suspects {
                let risk = proof::risk(suspects.len(), LOOKS.len());
                let (outcome, ending) = session.test(suspect, limits, bounds, risk)?;
                tell(Proof { suspect, outcome });
                if let Some(ending) = ending {
                    return Ok(ending);
                }
            }
            Ok(Ending::Finished)
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
        let cause = match self.measure_path_to(suspect.fnode)? {
            Ok(cause) => cause,
            Err(why) => return Ok((Outcome::NotTestable(why), None)),
        };
        let Some(latencies) = self.latencies_of(suspect.peak) else {
            let why = "there is no such peak".to_owned();
            return Ok((Outcome::NotTestable(why), None));
        };
        let mut test = Test {
            session: self,
            cause,
            latencies,
            seen: Vec::new(),
            spans: Vec::new(),
            random: Random(darc_tracer::tsc().0 | 1),
        };
        let outcome = test.run(limits, bounds, risk);
        // Also after a failure: the stubs look at the clock, but nobody need wait for it.
        test.delay(Ticks(0), Tsc(0))?;
        outcome
    }

    /// Has the calls on the path from f0 to an fnode measured. The calls of the same function at the same level are one
    /// cause: all of their fnodes, or why they cannot be measured.
    fn measure_path_to(
        &mut self,
        fnode: FnodeId,
    ) -> Result<Result<Vec<FnodeId>, String>, ProcessError> {
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
        let alike = alike.filter(|&at| match callee {
            Callee::Unknown | Callee::Syscall(None) => at == fnode,
            known => ftree.fnode(at).callee == known,
        });
        let cause: Vec<FnodeId> = alike.collect();
        let needed: BTreeSet<FnodeId> = path[1..].iter().chain(&cause).copied().collect();
        // Every op is looked at, and percentiles are of all of them.
        self.process.engine_mut().set_filter(&[]);
        let refused = self.instrument_only(needed.iter().copied())?;
        let ftree = self.investigation.analysis.ftree();
        let of_path = |at: &&FnodeId| {
            let site = ftree.fnode(**at).site;
            site.is_some_and(|site| refused.contains(&site))
        };
        Ok(match path[1..].iter().find(of_path) {
            Some(_) => Err("a call on the path to it can carry no probe".to_owned()),
            None => Ok(cause),
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
    /// The calls that are delayed.
    cause: Vec<FnodeId>,
    /// Those of the peak's ops.
    latencies: RangeInclusive<Ticks>,
    seen: Vec<Seen>,
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
        let began = darc_tracer::tsc();
        let time = Ticks(bounds.time.0 / BASELINE);
        if let Some(ending) = self.until(Tsc(began.0 + time.0), limits)? {
            let why = format!("it was not tried: {}", in_words(ending));
            return Ok((Outcome::NotTestable(why), Some(ending)));
        }
        let baseline = self.baseline(time);
        tracing::debug!(target: "prove", ?baseline, "looked at ops without delays");
        let design = match proof::design(&baseline, bounds) {
            Ok(design) => design,
            Err(why) => return Ok((Outcome::Refused(why), None)),
        };
        tracing::debug!(target: "prove", ?design, "designed");
        let gains: Vec<(Ticks, Ticks)> =
            self.seen.iter().map(|op| (op.latency, op.cause)).collect();
        self.seen.clear();
        let began = darc_tracer::tsc();
        let mut looks = LOOKS.iter().peekable();
        let mut ending = None;
        let mut slope = None;
        while let Some(part) = looks.peek() {
            let look_at = began.0 + (*part * bounds.time.0 as f64) as u64;
            if ending.is_none() && darc_tracer::tsc().0 < look_at {
                let (delay, length) = design.next(&mut self.random);
                ending = self.span(delay, length, limits)?;
                continue;
            }
            looks.next();
            slope = proof::slope(&self.sorted(), &self.latencies, risk);
            tracing::debug!(target: "prove", ?slope, spans = self.spans.len(), ops = self.seen.len(), "looked");
            if ending.is_some() || slope.is_some_and(|slope| slope.is_decided()) {
                break;
            }
        }
        let reaches = slope.map_or(0.0, |slope| slope.at);
        let outcome = Outcome::Tried {
            delay: design.delay,
            slope,
            gain: proof::gain(&gains, reaches, &PARTS),
            added: self.added(),
            time: darc_tracer::tsc() - began,
        };
        Ok((outcome, ending))
    }

    /// Lets the target run until the clock reads `end`.
    fn until(&mut self, end: Tsc, limits: Limits<'_>) -> Result<Option<Ending>, ProcessError> {
        while darc_tracer::tsc() < end {
            let (cause, seen) = (&self.cause, &mut self.seen);
            let event = self.session.process.poll(limits, |engine, _| {
                engine.poll(SLICE, &mut Trying { cause, seen })
            })?;
            match event {
                Event::Ended(ending) => return Ok(Some(ending)),
                Event::CodeChanged => self.session.look_at_libraries()?,
                Event::Nothing => {}
            }
        }
        Ok(None)
    }

    fn span(
        &mut self,
        delay: Ticks,
        length: Ticks,
        limits: Limits<'_>,
    ) -> Result<Option<Ending>, ProcessError> {
        let end = Tsc(darc_tracer::tsc().0 + length.0);
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
        let ops = self.seen.iter().filter(of_peak);
        let (callers, others): (Vec<&Seen>, Vec<&Seen>) = ops.partition(|op| op.calls > 0);
        let mut latencies: Vec<Ticks> = callers.iter().map(|op| op.latency).collect();
        latencies.sort_unstable();
        let calls: u64 = callers.iter().map(|op| op.calls).sum();
        Baseline {
            time,
            ops: callers.len() as u64,
            others: others.len() as u64,
            latency: latencies.get(latencies.len() / 2).copied().unwrap_or_default(),
            calls: calls as f64 / callers.len().max(1) as f64,
            all_calls: self.seen.iter().map(|op| op.calls).sum(),
        }
    }

    /// The span that a moment is in.
    fn span_at(&self, at: Tsc) -> Option<usize> {
        let index = self.spans.partition_point(|span| span.end < at);
        let span = self.spans.get(index)?;
        (span.start <= at).then_some(index)
    }

    /// The spans with the ops that belong to them: those that began so early in one that all of an op of the peak fits.
    fn sorted(&self) -> Vec<Span> {
        let empty = |span: &Toggled| Span {
            delay: span.delay,
            ops: Vec::new(),
        };
        let mut sorted: Vec<Span> = self.spans.iter().map(empty).collect();
        for op in self.seen.iter().filter(|op| op.calls > 0) {
            let Some(index) = self.span_at(op.start) else {
                continue;
            };
            let span = self.spans[index];
            let near = Ticks(self.latencies.end().0 + 4 * span.delay.0);
            let near = near.min(Ticks((span.end - span.start).0 / NEAR_END));
            if op.start.0 + near.0 <= span.end.0 && op.end <= span.end {
                sorted[index].ops.push(Delayed {
                    latency: op.latency,
                    added: Ticks(op.calls * span.delay.0),
                });
            }
        }
        sorted
    }

    /// All delays of ops that were recorded.
    fn added(&self) -> Ticks {
        let delay_at = |at| self.span_at(at).map_or(0, |index| self.spans[index].delay.0);
        let added = self.seen.iter().map(|op| op.calls * delay_at(op.start));
        Ticks(added.sum())
    }
}

fn in_words(ending: Ending) -> &'static str {
    match ending {
        Ending::Exited(_) | Ending::Killed(_) => "the program ended",
        Ending::Exec => "the program became another one",
        _ => "it was interrupted",
    }
}
