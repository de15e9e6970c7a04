//! The descent in one process: from the calls of f0 to what makes some of them slow.

pub mod ahead;
mod arguments;
pub(super) mod bindings;
mod caveats;
mod copies;
pub(super) mod expansion;
mod finding;
pub mod futures;
mod goroutines;
mod held_back;
pub mod investigation;
mod kept;
pub mod localise;
mod looking_on;
pub(super) mod planning;
mod progress;
pub mod proving;
mod question;
mod requests;
mod standstill;
mod timeline;
mod turns;
mod wakers;

use std::time::{Duration, Instant};

use darc_analysis::FnodeId;
use darc_analysis::descent::noise::Noise;
use darc_process::{Changes, Ending, Event, Libraries, Limits, Process, ProcessError, guarded};
use darc_record::Tsc;
use darc_tracer::effort::{self, Pace, Pacing};
use darc_tracer::engine::EngineKind;
use darc_tracer::plan::Ends;
use nix::sys::signal::Signal;

use crate::options::Blocks;
use crate::session::asynchronous::Serving;
use crate::session::catalog::Catalog;
use crate::session::onlooker::{Onlooker, Seen};
use crate::session::survey::suspicion::{self, Suspicion};
use crate::session::{LONG_SLICE, SLICE};
use crate::terminal::live::Progress;
use investigation::Investigation;
use looking_on::LookingOn;
use progress::Watch;
use question::Question;
use timeline::{Holding, Timeline};

/// At some 30 µs a breakpoint this many calls make an op longer by a tenth of a second.
const MOST_CALLS_INT3: u64 = 2_000;

/// Without an op for so long it waits for ops.
const LONG: Duration = Duration::from_secs(5);

/// What is to be known of programs with contexts or fibers.
const SWITCHED_STACKS: &str = "the program switches stacks in the middle of ops (contexts, fibers, coroutines): what runs on another stack before an op goes on counts as the op's, and ops in which a switch was seen decide nothing";
/// What is to be known of programs with greenlets.
const COPIED_STACKS: &str = "the program may copy its stacks (greenlets and their like are loaded): what runs in the middle of an op after a switch counts as the op's, and calls whose ends show only by a hidden return address are not measured";

/// What is to be known of programs that have an unwinder without names.
fn of_unnamed_unwinder(file: &str) -> String {
    format!(
        "{file} has an unwinder without names, from which nothing may be hidden: calls whose ends show only by a hidden return address are not measured"
    )
}

/// Whether other functions are analysed in the same process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// The process is of no use where this one cannot be analysed.
    None,
    /// They have their turns, whatever becomes of this one.
    Wait,
    /// They have them, but this one takes most of the time, or there are none.
    Small,
}

/// One process under analysis.
pub struct Session<'a> {
    process: Process<'a>,
    catalog: &'a mut Catalog,
    investigation: &'a mut Investigation,
    /// What f0 hands to other threads.
    serving: Option<&'a mut Serving>,
    others: Others,
    /// With so many ops it ends, whatever was found.
    enough: Option<u64>,
    /// Who wants to know where it stands.
    onlooker: Option<&'a dyn Onlooker>,
    watch: Watch<'a>,
    question: Question,
    suspicion: Suspicion,
    /// Whether it was said that no call of f0 was seen, or none that has returned.
    is_unreturned_told: bool,
    looking_on: LookingOn,
    f0_ends: Ends,
    /// Whether probes were put in.
    has_probes: bool,
    /// Whether those of calls are away until the rest is over, and since when they could not be put back.
    calls_are_away: bool,
    put_back_since: Option<Instant>,
    /// Since when the target has probes that are needed no more.
    retired_since: Option<Tsc>,
    timeline: Timeline,
    /// Whether that has begun, if it is used.
    is_followed: bool,
    pacing: Pacing,
    /// When there was a new op, or it began.
    called: Instant,
    /// Fnodes that are measured although no path goes on from them.
    kept: Vec<FnodeId>,
}

impl<'a> Session<'a> {
    /// Analyses a process. The places that are found in its files are numbered in the catalog.
    pub fn new(
        process: Process<'a>,
        catalog: &'a mut Catalog,
        investigation: &'a mut Investigation,
        progress: &'a mut Progress,
    ) -> Session<'a> {
        let engine = process.engine();
        investigation.cost = engine.cost();
        let kind = engine.kind();
        let (most_calls, other) = match kind {
            EngineKind::Int3 => (Some(MOST_CALLS_INT3), "; --engine jump may"),
            EngineKind::Jump => (None, ""),
        };
        investigation.most_calls = most_calls;
        investigation.analysis.next_process();
        investigation.ahead.forget();
        let remedy = format!(
            "its ops are so short that the {} engine cannot tell who takes their time{other}",
            kind.name()
        );
        let cost = engine.cost();
        let noise = Noise::new(cost.resolution, cost.of_caller, remedy);
        investigation.analysis.set_noise(noise);
        if kind == EngineKind::Jump {
            investigation.analysis.cost_is_estimated();
        }
        let pacing = Pacing::new(effort::Limits::of(investigation.budget));
        Session {
            process,
            catalog,
            investigation,
            serving: None,
            others: Others::None,
            enough: None,
            onlooker: None,
            watch: Watch::new(progress),
            question: Question::default(),
            suspicion: Suspicion::default(),
            is_unreturned_told: false,
            looking_on: LookingOn::default(),
            f0_ends: Ends::default(),
            has_probes: false,
            calls_are_away: false,
            put_back_since: None,
            retired_since: None,
            timeline: Timeline::Unused,
            is_followed: false,
            pacing,
            called: Instant::now(),
            kept: Vec::new(),
        }
    }

    /// Follows what f0 hands to other threads, too.
    #[must_use]
    pub fn and_serving(mut self, mut serving: Option<&'a mut Serving>) -> Session<'a> {
        if let Some(serving) = &mut serving {
            serving.next_process();
            let own = &mut serving.investigation;
            own.cost = self.investigation.cost;
            own.analysis
                .set_noise(self.investigation.analysis.noise().clone());
            if self.process.engine().kind() == EngineKind::Jump {
                own.analysis.cost_is_estimated();
            }
        }
        self.serving = serving;
        self
    }

    /// Whether others are to be analysed in the process, too.
    #[must_use]
    pub fn beside(self, others: Others) -> Session<'a> {
        Session { others, ..self }
    }

    /// Ends with so many ops, whatever was found.
    #[must_use]
    pub fn with_enough(self, ops: u64) -> Session<'a> {
        let enough = Some(ops);
        Session { enough, ..self }
    }

    /// Lets somebody look where it stands.
    #[must_use]
    pub fn seen_by(self, onlooker: Option<&'a dyn Onlooker>) -> Session<'a> {
        Session { onlooker, ..self }
    }

    /// Analyses until something ends it, and lets the process go, whatever happened.
    ///
    /// # Errors
    /// Why the analysis could not begin or go on. The target has been restored all the same.
    pub fn run(self, limits: Limits<'_>) -> Result<Ending, ProcessError> {
        self.conduct(|session| {
            session.look_on();
            session.analyse(limits)
        })
    }

    /// Does something with the process, and lets it go, whatever happened.
    fn conduct(
        mut self,
        work: impl FnOnce(&mut Self) -> Result<Ending, ProcessError>,
    ) -> Result<Ending, ProcessError> {
        let pid = self.process.pid();
        let f0 = self.investigation.spec.to_string();
        let _span = tracing::debug_span!(target: "descent", "analysis", pid, ?f0).entered();
        let outcome = guarded(|| work(&mut self));
        tracing::debug!(target: "descent", ?outcome, "the analysis ended");
        if !outcome.as_ref().is_ok_and(|ending| ending.is_targets()) {
            self.watch.restoring(self.investigation);
        }
        let goroutines = self.process.follows_goroutines();
        let unreturned = (goroutines && outcome.is_ok() && !self.is_unreturned_told)
            .then(|| caveats::unreturned(&self.process, self.investigation, ""))
            .flatten();
        let outcome = match outcome {
            Err(error @ ProcessError::Unsuitable(_)) if self.others != Others::None => {
                self.process.spare();
                self.process.finish(Err(error))
            }
            outcome => self.process.finish(outcome),
        };
        self.timeline.finish(
            &self.pacing,
            &self.process,
            self.catalog,
            self.investigation,
            self.serving.as_deref_mut(),
        );
        self.settle_lives(Tsc(u64::MAX));
        self.investigation.look_back();
        self.compare_code();
        for warning in self.process.take_warnings() {
            self.investigation.warn(warning);
        }
        let mut counters = self.process.engine().counters();
        if self.process.engine().kind() == EngineKind::Jump {
            // To take the probes away was a part of it.
            self.pacing.account();
            counters.spent = self.pacing.spent();
        }
        let caveat = crate::session::effort::caveat(&counters.spent, self.investigation.budget);
        self.investigation.warnings.extend(caveat);
        let threads = self.investigation.threads.as_ref();
        if let Some(calls @ 1..) = threads.map(|threads| threads.unknown()) {
            self.investigation.warn(format!(
                "{calls} calls were of threads that ended before their names were read, and are left out"
            ));
        }
        if self.investigation.analysis.ended_too_soon() {
            self.investigation.warn(
                "calls of f0 run side by side, and the short ones end first: before four times what long ones take has passed they decide nothing; let it measure longer".to_owned(),
            );
        }
        let measured = self.investigation.analysis.profile().count();
        if counters.unregistered > 0 {
            let passed = counters.unregistered;
            self.investigation.warnings.push(match goroutines {
                true => caveats::unfollowed(passed, measured),
                false => format!(
                    "{passed} calls of f0 passed unmeasured: threads came faster than there was room for them"
                ),
            });
        }
        if goroutines {
            let ended = caveats::ended_otherwise(counters.ended_otherwise, measured);
            for warning in ended.into_iter().chain(unreturned) {
                self.investigation.warn(warning);
            }
        }
        if counters.switched_stacks > 0 && !self.process.hooks().copies_stacks {
            self.investigation.warn(SWITCHED_STACKS.to_owned());
        }
        self.investigation.add_counters(counters);
        copies::warn(self.investigation, self.process.modules());
        let hooks = self.process.hooks();
        if hooks.copies_stacks {
            self.investigation.warn(COPIED_STACKS.to_owned());
        }
        if let Some(file) = &hooks.unnamed_unwinder {
            self.investigation.warn(of_unnamed_unwinder(file));
        }
        let kind = self.process.engine().kind();
        self.process.unload();
        let ending = outcome?;
        if ending == Ending::Killed(Signal::SIGTRAP as i32) && kind == EngineKind::Int3 {
            self.investigation.warnings.push(
                "SIGTRAP ended the target: a trap of its own, or a breakpoint met by a thread that cannot be traced (CLONE_UNTRACED); --engine jump has no breakpoints".to_owned(),
            );
        }
        Ok(ending)
    }

    /// Has the analysis go on when it has its answers, where that costs the target little and nobody waits for it.
    fn look_on(&mut self) {
        let is_cheap = self.process.engine().kind() == EngineKind::Jump;
        let is_alone = self.others != Others::Wait && self.serving.is_none();
        // A function is narrowed as soon as it is known: a short program does not wait for that.
        let is_all = self.enough.is_none() && self.investigation.blocks == Blocks::Left;
        let is_brief = !self.investigation.looks_on;
        if (is_cheap || is_brief) && is_alone && is_all {
            self.investigation.analysis.look_on();
            if is_brief {
                self.looking_on = LookingOn::briefly();
            }
        }
    }

    /// Compares all code of the modules that had probes with their files.
    fn compare_code(&mut self) {
        let compared = self.process.compare_code();
        self.investigation.bytes_compared += compared.bytes;
        for (module, bytes) in compared.differing {
            self.investigation.warnings.push(format!(
                "{bytes} bytes of code of {module} are not as in its file; darc's own are all put back, so the program or another tool wrote them"
            ));
        }
    }

    fn analyse(&mut self, limits: Limits<'_>) -> Result<Ending, ProcessError> {
        if self.process.refresh()? {
            self.look_at_libraries()?;
        }
        loop {
            // Not every linker announces that the libraries are there.
            let is_announced = self.process.changes() != Changes::None;
            let waits = is_announced || self.process.libraries() == Libraries::Loaded;
            if waits || self.is_f0_loaded() {
                limits.begin();
            }
            if self.is_f0_loaded() && self.answer()? {
                let meanwhile = match self.investigation.blocks {
                    Blocks::Left => None,
                    Blocks::After | Blocks::First => self.narrow(limits)?,
                };
                return Ok(meanwhile.unwrap_or(Ending::Finished));
            }
            match self.measure(limits)? {
                Event::Ended(ending) => return Ok(ending),
                Event::CodeChanged => self.look_at_libraries()?,
                Event::Nothing => {}
            }
            self.place_what_is_bound()?;
            self.look_ahead();
            self.investigation.look_for_stalls();
            self.looking_on.look(self.investigation, limits.end());
            if let Some(serving) = &mut self.serving {
                serving.investigation.look_for_stalls();
            }
            self.show();
            if self.may_be_running(limits) {
                let (pid, modules) = (self.process.pid(), self.process.modules());
                let goroutines = self.process.follows_goroutines();
                if self
                    .suspicion
                    .is_confirmed(pid, modules, self.investigation, goroutines)
                {
                    return self.is_running();
                }
                let is_told = self.is_unreturned_told;
                if goroutines && !is_told && self.suspicion.is_due(self.investigation) {
                    if caveats::is_main(&self.process, self.investigation) {
                        return self.is_running();
                    }
                    // It stays true when calls return later.
                    let until = " in the first seconds";
                    let said = caveats::unreturned(&self.process, self.investigation, until);
                    self.investigation.warnings.extend(said);
                    self.is_unreturned_told = true;
                }
            }
            self.tell_of_the_wait();
            let count = self.investigation.analysis.profile().count();
            if self.enough.is_some_and(|enough| count >= enough) {
                return Ok(Ending::Finished);
            }
        }
    }

    /// Whether it is asked if f0 does not return. Where a person says for how long to measure, a long call of a goroutine may end in that time.
    fn may_be_running(&self, limits: Limits<'_>) -> bool {
        let ends = limits.end().is_some() && self.process.follows_goroutines();
        !ends && self.is_f0_loaded() && self.process.engine().leaves_target_untraced()
    }

    /// Says once that no call of f0 is seen, where it is the only function that is analysed.
    fn tell_of_the_wait(&mut self) {
        let is_alone = self.others == Others::None && !self.process.follows_goroutines();
        let is_apt = is_alone && !self.is_unreturned_told && self.is_f0_loaded();
        if is_apt && self.suspicion.is_uncalled(self.investigation) {
            let f0 = self
                .investigation
                .f0
                .map(|f0| self.process.modules().name(f0));
            let f0 = f0.unwrap_or_else(|| self.investigation.spec.to_string());
            self.watch.tell(&caveats::uncalled(&f0, self.process.pid()));
            self.is_unreturned_told = true;
        }
    }

    /// F0 does not return. What of a Go program runs all the time is not divided.
    fn is_running(&self) -> Result<Ending, ProcessError> {
        if !self.process.follows_goroutines() {
            return Ok(Ending::Running);
        }
        let callees = match caveats::callees(&self.process, self.investigation) {
            none if none.is_empty() => String::new(),
            some => format!(": {}", some.join(" or ")),
        };
        Err(ProcessError::Unsuitable(format!(
            "f0 has not returned for {} s, and functions of Go programs that run all the time are not measured; try a function that it calls{callees}; or, where its calls are as long as that, say for how long to measure (-d 60s)",
            suspicion::LONG.as_secs()
        )))
    }

    /// Lets the target run on for a while, and takes the ops to the analyses.
    fn measure(&mut self, limits: Limits<'_>) -> Result<Event, ProcessError> {
        let calls = self.investigation.calls();
        let slice = self.slice(limits);
        let before = darc_tracer::tsc();
        let event = self.process.poll(limits, |engine, modules| {
            let mut sink = Holding {
                modules,
                catalog: self.catalog,
                investigation: self.investigation,
                serving: self.serving.as_deref_mut(),
                timeline: &mut self.timeline,
                pacing: &mut self.pacing,
            };
            engine.poll(slice, &mut sink)
        })?;
        self.timeline.advance(
            &self.pacing,
            &self.process,
            self.catalog,
            self.investigation,
            self.serving.as_deref_mut(),
        );
        self.settle_lives(before);
        self.keep_pace()?;
        let cost = self.process.engine().cost();
        let serving = self.serving.iter_mut().map(|it| &mut it.investigation);
        for own in serving.chain([&mut *self.investigation]) {
            own.analysis.set_resolution(cost.resolution, cost.of_caller);
        }
        if self.investigation.calls() > calls {
            self.process.was_called();
            self.called = Instant::now();
        }
        Ok(event)
    }

    /// Measures less when measuring has taken more than it may, and more when that is made up for.
    fn keep_pace(&mut self) -> Result<(), ProcessError> {
        let engine = self.process.engine_mut();
        if engine.kind() == EngineKind::Int3 {
            return Ok(());
        }
        self.pacing
            .spend(engine.take_price(), self.timeline.take_price());
        if !engine.rests() {
            self.pacing.account();
            // It may have rested before all ops were wanted.
            return match self.pacing.stays_open() {
                true => Ok(()),
                false => self.end_rest(),
            };
        }
        let rested = self.pacing.is_resting();
        let pace = self.pacing.decide();
        engine.set_pace(pace);
        match (rested, pace) {
            (false, Pace::Rest) if self.pacing.is_resting() => self.timeline.rest(),
            (true, Pace::Rest) if !self.calls_are_away && self.pacing.are_passes_dear() => {
                self.put_calls_away()?;
            }
            (true, Pace::AsRecordsCome | Pace::InBatches) => self.end_rest()?,
            _ => {}
        }
        Ok(())
    }

    /// Everything is measured again, or the rest goes on where probes cannot be put in at this moment.
    fn end_rest(&mut self) -> Result<(), ProcessError> {
        if self.calls_are_away && !self.put_calls_back()? {
            self.process.engine_mut().set_pace(Pace::Rest);
            return Ok(());
        }
        self.timeline.go_on();
        self.pacing.go_on();
        Ok(())
    }

    /// For how long the engine is left alone.
    fn slice(&mut self, limits: Limits<'_>) -> Duration {
        let waits = self.called.elapsed() >= LONG || self.pacing.is_resting();
        if !waits || !self.is_f0_loaded() || !self.timeline.has_room() {
            return SLICE;
        }
        let left = limits
            .end()
            .map(|at| at.saturating_duration_since(Instant::now()));
        left.map_or(LONG_SLICE, |left| left.clamp(SLICE, LONG_SLICE))
    }

    /// Shows the person where it stands, and asks which peak is meant.
    fn show(&mut self) {
        let naming = (self.investigation).naming(self.process.modules(), self.catalog);
        self.watch.look(self.investigation, naming);
        self.question.consider(self.investigation, &mut self.watch);
        if let Some(onlooker) = self.onlooker {
            onlooker.look(Seen {
                naming,
                investigation: self.investigation,
                serving: self.serving.as_deref(),
                totals: None,
            });
        }
    }
}
