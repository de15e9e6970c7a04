//! A session that profiles many functions at once: no f0, no descent (OSprof, OSDI 2006, section 3).
//!
//! The functions are found anew whenever code comes or goes; each keeps its number, so that what was
//! counted before stays its own.

pub(super) mod choice;
mod refused;
pub mod summary;
pub mod syscalls;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_analysis::profile::histogram::Bucket;
use darc_analysis::{Profile, Resolution};
use darc_process::modules::{CodeRef, Modules};
use darc_process::{
    Changes, Ending, Event, Libraries, Limits, Process, ProcessError, entry_points, guarded,
};
use darc_record::{Ticks, Tsc};
use darc_symbols::LookupError;
use darc_tracer::engine::jump::{Counts, Profiler};
use darc_tracer::engine::{Discard, Engine as _, ProbeCost};
use darc_tracer::plan::{CountedFunction, Plan};

pub use choice::{MOST_FUNCTIONS, Wanted};
use choice::{Scope, Source};

/// How long to watch the target before looking at other duties.
const SLICE: Duration = Duration::from_millis(20);
/// Room for at least so many functions, where no more are to be expected.
const LEAST_ROOM: u32 = 256;

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// The functions.
    pub wanted: Vec<Wanted>,
    /// Whether, and how often, a profile of its own begins.
    pub interval: Option<Duration>,
    /// Buckets per doubling of the latency.
    pub resolution: Resolution,
}

/// A function among those that are profiled.
#[derive(Clone, Debug)]
pub struct Member {
    /// Where it is.
    pub place: CodeRef,
    /// All that was counted.
    pub counts: Counts,
    /// The time that was spent inside, by the calls in progress too.
    pub busy: Ticks,
    /// The segments in which something happened.
    pub segments: Vec<SegmentCounts>,
}

/// What one function did in one segment.
#[derive(Clone, Debug)]
pub struct SegmentCounts {
    /// Which one, from 0.
    pub number: usize,
    /// Calls that began.
    pub begun: u64,
    /// The time that was spent inside.
    pub busy: Ticks,
    /// The calls that returned.
    pub profile: Profile,
}

impl Member {
    fn new(place: CodeRef) -> Member {
        Member {
            place,
            counts: Counts::default(),
            busy: Ticks(0),
            segments: Vec::new(),
        }
    }

    /// Takes what has been counted until `now`; what is new belongs to the segment, if there are segments.
    fn take(&mut self, counts: Counts, now: Tsc, segment: Option<usize>, resolution: Resolution) {
        let busy = counts.busy(now);
        if let Some(number) = segment {
            let new = SegmentCounts {
                number,
                begun: counts.begun.saturating_sub(self.counts.begun),
                busy: busy.saturating_sub(self.busy),
                profile: profile(&counts, resolution).since(&profile(&self.counts, resolution)),
            };
            if new.begun > 0 || new.busy > Ticks(0) {
                self.segments.push(new);
            }
        }
        (self.counts, self.busy) = (counts, busy);
    }
}

/// What was counted, as a profile: the buckets of the stubs, eight an octave, made coarser. Where a finer
/// bucket crosses the border between two, its calls belong to the one that it begins in.
#[must_use]
pub fn profile(counts: &Counts, resolution: Resolution) -> Profile {
    let mut profile = Profile::new(resolution);
    for bucket in &counts.buckets {
        let content = Bucket {
            ops: bucket.calls,
            total: bucket.total,
        };
        // Every latency is in some bucket.
        let _ = profile.add_bucket(resolution.bucket(bucket.from), content);
    }
    profile
}

/// All that is known in the end.
#[derive(Debug, Default)]
pub struct Measured {
    /// The functions, called or not.
    pub members: Vec<Member>,
    /// Those without a probe, with the reason.
    pub refused: BTreeMap<CodeRef, String>,
    /// When measuring began and ended.
    pub period: Option<(Tsc, Tsc)>,
    /// Where segments end, when there are several.
    pub segments: Vec<Tsc>,
    /// For how long the target was stopped each time.
    pub pauses: Vec<Duration>,
    /// Bytes of the text that are not as before.
    pub bytes_differing: u64,
    /// What a probe costs.
    pub cost: ProbeCost,
    /// What the person should know.
    pub warnings: Vec<String>,
}

/// Who wants to know where it stands.
pub trait Onlooker: std::fmt::Debug {
    /// Whether somebody asks now. Called often; must not take long.
    fn is_asked(&self) -> bool;

    /// What has been measured so far, after somebody has asked.
    fn tell(&self, modules: &Modules, measured: &Measured);
}

/// One process whose functions are being profiled.
pub struct Profiling<'a> {
    process: Process<'a, Profiler>,
    question: &'a Question,
    slots: HashMap<CodeRef, u32>,
    measured: &'a mut Measured,
    /// A named library is not there: it may be loaded later.
    waiting: bool,
    onlooker: Option<&'a dyn Onlooker>,
}

impl<'a> Profiling<'a> {
    /// Profiles functions of a process.
    pub fn new(
        process: Process<'a, Profiler>,
        question: &'a Question,
        measured: &'a mut Measured,
    ) -> Profiling<'a> {
        measured.cost = process.engine().cost();
        Profiling {
            process,
            question,
            slots: HashMap::new(),
            measured,
            waiting: false,
            onlooker: None,
        }
    }

    /// Tells this one where it stands, whenever it asks.
    #[must_use]
    pub fn onlooker(self, onlooker: &'a dyn Onlooker) -> Profiling<'a> {
        Profiling {
            onlooker: Some(onlooker),
            ..self
        }
    }

    /// Measures until something ends it, and lets the process go, whatever happened.
    ///
    /// # Errors
    /// Why measuring could not begin or go on. The target has been restored all the same.
    pub fn run(mut self, limits: Limits<'_>) -> Result<Ending, ProcessError> {
        let outcome = guarded(|| self.measure(limits));
        let unregistered = self.process.engine().unregistered();
        let end = darc_tracer::tsc();
        let outcome = self.process.finish(outcome);
        self.measured.warnings.extend(self.process.take_warnings());
        if let Some((_, until)) = &mut self.measured.period {
            *until = end;
        }
        let segments = self.measured.segments.len();
        if segments > 0 {
            self.measured.segments.push(end);
        }
        self.take_counts(end, (segments > 0).then_some(segments));
        self.warn_of_losses(unregistered);
        let counters = self.process.engine().counters();
        self.measured.pauses = counters.pauses;
        self.measured.bytes_differing = counters.bytes_differing;
        outcome
    }

    fn measure(&mut self, limits: Limits<'_>) -> Result<Ending, ProcessError> {
        if self.process.refresh()? {
            self.look_at_libraries()?;
        }
        let mut segment_ends = None;
        let mut timed = false;
        loop {
            if self.measured.period.is_some() && !timed {
                timed = true;
                limits.begin();
                segment_ends = self.question.interval.map(|time| Instant::now() + time);
            }
            let next = [limits.end(), segment_ends].into_iter().flatten().min();
            let slice = next.map_or(SLICE, |at| {
                SLICE.min(at.saturating_duration_since(Instant::now()))
            });
            let event =
                (self.process).poll(limits, |engine, _| engine.poll(slice, &mut Discard))?;
            match event {
                Event::Ended(ending) => return Ok(ending),
                Event::CodeChanged => self.look_at_libraries()?,
                Event::Nothing => {}
            }
            if segment_ends.is_some_and(|at| Instant::now() >= at) {
                self.end_segment();
                segment_ends = self.question.interval.map(|time| Instant::now() + time);
            }
            if let Some(onlooker) = self.onlooker.filter(|onlooker| onlooker.is_asked()) {
                self.tell(onlooker);
            }
        }
    }

    /// Code came or went: finds the functions among what is loaded now, and probes them.
    fn look_at_libraries(&mut self) -> Result<(), ProcessError> {
        let found = Source(&self.process).find(&self.question.wanted);
        if found.functions.len() > MOST_FUNCTIONS {
            return Err(ProcessError::Unsuitable(format!(
                "{} functions fit, more than the {MOST_FUNCTIONS} that can be profiled at once; narrow the names",
                found.functions.len()
            )));
        }
        let starting = !self.has_started();
        for error in found.missing {
            self.consider_missing(error, starting)?;
        }
        for note in found.notes {
            if !self.measured.warnings.contains(&note) && !starting {
                self.measured.warnings.push(note);
            }
        }
        self.measured.refused.extend(found.refused);
        // A program that was just started has hardly any of its libraries yet.
        let expected = match self.waiting || (starting && found.scope == Scope::Libraries) {
            true => MOST_FUNCTIONS,
            false => found.functions.len(),
        };
        self.probe(found.functions.into_iter().collect(), expected)
    }

    /// A library that was named and is not there may be loaded later; anything else is an error.
    fn consider_missing(&mut self, error: LookupError, starting: bool) -> Result<(), ProcessError> {
        match error {
            _ if starting => Ok(()),
            LookupError::NoSuchModule { .. } if !self.waiting => {
                self.waiting = true;
                let warning = format!("{error}; waiting for it to be loaded");
                self.measured.warnings.push(warning);
                Ok(())
            }
            LookupError::NoSuchModule { .. } => Ok(()),
            // It was there: its library has been unloaded.
            _ if self.waiting || self.process.changes() == Changes::Later => Ok(()),
            error => Err(error.into()),
        }
    }

    /// Probes these; there is to be room for as many as are `expected`.
    fn probe(&mut self, functions: Vec<CodeRef>, expected: usize) -> Result<(), ProcessError> {
        let mut plan = self.process.hooks();
        for place in functions {
            let modules = self.process.modules();
            let Some(entry) = modules.locate(place) else {
                continue;
            };
            let scanned = match entry_points::ends(modules, place) {
                Err(reason) => Err(reason),
                Ok(ends) => self.process.scan(entry).map(|code| (code, ends)),
            };
            match scanned {
                Ok((scanned, ends)) => {
                    let next = self.slots.len() as u32;
                    let slot = *self.slots.entry(place).or_insert(next);
                    if slot == next {
                        self.measured.members.push(Member::new(place));
                    }
                    plan.counted.push(CountedFunction {
                        code: Arc::clone(&scanned.code),
                        slot,
                        ends,
                    });
                }
                Err(reason) => drop(self.measured.refused.insert(place, reason)),
            }
        }
        if self.process.engine().slots() == 0 {
            let slots = (expected as u32).max(LEAST_ROOM);
            self.process.engine_mut().reserve(slots);
        }
        self.apply(&plan)
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), ProcessError> {
        let refused = self.process.apply(plan)?;
        for refused in refused {
            // Hooks are refused too; they are nobody's wish.
            if let Some(place) = self.process.modules().place(refused.addr)
                && self.slots.contains_key(&place)
            {
                self.measured.refused.insert(place, refused.reason);
            }
        }
        if !self.has_started() {
            return Ok(());
        }
        if self.measured.period.is_none() {
            let counted = |function: &CountedFunction| {
                let member = self.measured.members.get(function.slot as usize);
                member.is_some_and(|member| !self.measured.refused.contains_key(&member.place))
            };
            if !self.waiting && !plan.counted.iter().any(counted) {
                let modules = self.process.modules();
                return Err(refused::nothing_is_left(modules, self.measured));
            }
            let now = darc_tracer::tsc();
            self.measured.period = Some((now, now));
        }
        Ok(())
    }

    fn has_started(&self) -> bool {
        self.process.libraries() == Libraries::Loaded
    }

    /// Shows what there would be if it all ended now; what is kept does not change.
    fn tell(&mut self, onlooker: &dyn Onlooker) {
        let now = darc_tracer::tsc();
        let kept = (
            self.measured.members.clone(),
            self.measured.segments.clone(),
            self.measured.period,
        );
        // Nothing is a segment before measuring has begun.
        let divided = self.question.interval.is_some() && self.measured.period.is_some();
        let segment = divided.then_some(kept.1.len());
        self.measured.segments.extend(divided.then_some(now));
        self.take_counts(now, segment);
        if let Some((_, until)) = &mut self.measured.period {
            *until = now;
        }
        self.measured.pauses = self.process.engine().counters().pauses;
        onlooker.tell(self.process.modules(), self.measured);
        (
            self.measured.members,
            self.measured.segments,
            self.measured.period,
        ) = kept;
    }

    fn end_segment(&mut self) {
        let (now, number) = (darc_tracer::tsc(), self.measured.segments.len());
        self.measured.segments.push(now);
        self.take_counts(now, Some(number));
    }

    fn take_counts(&mut self, now: Tsc, segment: Option<usize>) {
        for (slot, counts) in self.process.engine().counts() {
            if let Some(member) = self.measured.members.get_mut(slot as usize) {
                member.take(counts, now, segment, self.question.resolution);
            }
        }
    }

    fn warn_of_losses(&mut self, unregistered: u64) {
        if unregistered > 0 {
            self.measured.warnings.push(format!(
                "there were more threads than places to count in: {unregistered} calls were not counted"
            ));
        }
        for member in &self.measured.members {
            let (returned, counted) = (member.counts.returned, member.counts.in_buckets());
            if returned != counted {
                self.measured.warnings.push(format!(
                    "checksum: {returned} calls of a function returned, its buckets hold {counted}; a call was being counted when the target ended, or its memory was damaged"
                ));
            }
        }
    }
}
