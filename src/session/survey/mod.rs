//! Where the time of an f0 goes that runs already or is called once: the descent by totals, in one process.
//!
//! Beyond the paper. What is found are functions that are called often enough to be analysed, each by a
//! [`Session`](super::Session) of its own.

mod arrivals;
mod began;
mod frames;
mod numbers;
mod readiness;
mod stacks;
pub(super) mod suspicion;
mod waiting;
mod windows;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use darc_analysis::totals::Totals;
use darc_process::modules::{CodeRef, ModuleId, Modules};
use darc_process::{Ending, Event, Libraries, Limits, Process, ProcessError, guarded};
use darc_record::{FnodeId, SiteId};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;
use darc_tracer::plan::{Edge, Plan, Running};

use crate::session::catalog::Catalog;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::{expansion, planning};
use crate::session::markers;
use crate::session::onlooker::{Onlooker, Seen};
use numbers::Numbers;
use readiness::Readiness;
use waiting::doing;
use windows::Windows;

pub use arrivals::{Arrival, is_idle, itself, time_table};
pub use began::{Began, began, in_words};
pub use darc_analysis::totals::NO_CALLS;
pub use frames::{InProgress, calls_in_progress};
pub(super) use frames::{JUMPS, below_f0, site_before};

/// How long the engine may serve the target before the survey looks at its other duties.
const SLICE: Duration = Duration::from_millis(10);
/// When no window has completed for so long, the call that does not return is looked for on the stack.
const STUCK: Duration = Duration::from_millis(50);
/// When all functions on the stack are looked at, their calls get more time to return.
const PATIENCE: Duration = Duration::from_secs(1);
/// A round goes on for so long, should threads that did not wait for something to do be in calls that have not returned yet, or the
/// round be short beside its longest call: the windows of many other threads make a round within milliseconds.
const LATE: Duration = Duration::from_millis(500);
/// A round in which windows complete, but few, ends after this time.
const LONGEST_ROUND: Duration = Duration::from_secs(2);

/// The survey of one f0 takes no longer: of a program whose code changes all the time no round may be like the one before.
const LONGEST_SURVEY: Duration = Duration::from_secs(30);

/// So many stacks are told on which nothing returns.
const STACKS_TOLD: usize = 4;

/// How a survey ended.
#[derive(Debug)]
pub enum Surveyed {
    /// Where the time goes is known as far as it can be; nothing is instrumented any more.
    Done(Vec<Arrival>),
    /// Something ended it early; what is known is in the totals.
    Ended(Ending),
}

/// Makes an engine for the process anew.
pub type Attach<'a> = dyn Fn() -> darc_tracer::Result<Box<dyn Engine>> + 'a;

/// One process whose f0 runs.
pub struct Survey<'a> {
    pid: i32,
    modules: &'a mut Modules,
    division: Division<'a>,
    attach: &'a Attach<'a>,
    onlooker: Option<&'a dyn Onlooker>,
    /// How long to wait for the first window.
    stuck: Duration,
    /// When it ends, whatever is known by then.
    until: Instant,
}

/// f0's time, as it is divided among what f0 calls.
struct Division<'a> {
    catalog: &'a mut Catalog,
    investigation: &'a mut Investigation,
    totals: &'a mut Totals,
    /// What the threads of windows are called elsewhere.
    numbers: Numbers,
    /// The probes that were set last.
    placed: Placed,
    /// The functions on stacks that end in a call that waits for something to do.
    seen_to_wait: BTreeSet<CodeRef>,
    /// The threads that these stacks are of.
    idle: BTreeSet<i32>,
}

/// The part of a plan that tells what windows have in them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Placed {
    running: Vec<Running>,
    edges: Vec<Edge>,
    sites: Vec<(SiteId, u64)>,
}

impl Placed {
    fn of(plan: &Plan) -> Placed {
        let sites = plan.functions.iter().flat_map(|function| &function.sites);
        Placed {
            running: plan.running.clone(),
            edges: plan.edges.clone(),
            sites: sites.map(|(id, site)| (*id, site.addr)).collect(),
        }
    }
}

/// Where an engine begins to measure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// With the next call of f0.
    AtCalls,
    /// In the calls that are on the stack.
    OnStack,
}

/// What one engine's measurement came to.
enum Part {
    Done(Vec<Arrival>),
    Ended(Ending),
    /// No call returns: a deeper function has to be looked at.
    Stuck,
}

impl From<Ending> for Part {
    fn from(ending: Ending) -> Part {
        Part::Ended(ending)
    }
}

impl<'a> Survey<'a> {
    /// A survey of a process. What is found goes to `totals`; `attach` makes engines.
    pub fn new(
        pid: i32,
        modules: &'a mut Modules,
        catalog: &'a mut Catalog,
        investigation: &'a mut Investigation,
        totals: &'a mut Totals,
        attach: &'a Attach<'a>,
    ) -> Survey<'a> {
        Survey {
            pid,
            modules,
            division: Division {
                catalog,
                investigation,
                totals,
                numbers: Numbers::of(pid),
                placed: Placed::default(),
                seen_to_wait: BTreeSet::new(),
                idle: BTreeSet::new(),
            },
            attach,
            onlooker: None,
            stuck: STUCK,
            until: Instant::now() + LONGEST_SURVEY,
        }
    }

    /// Lets somebody look where it stands.
    #[must_use]
    pub fn seen_by(self, onlooker: Option<&'a dyn Onlooker>) -> Survey<'a> {
        Survey { onlooker, ..self }
    }

    /// Surveys a program that was just started: f0 has not been called yet.
    ///
    /// # Errors
    /// When f0 is not there, or cannot be instrumented.
    pub fn launched(
        mut self,
        engine: Box<dyn Engine>,
        limits: Limits<'_>,
    ) -> Result<Surveyed, ProcessError> {
        let part = self.with_engine(engine, Libraries::NotLoadedYet, Begin::AtCalls, limits)?;
        self.go_on(part, limits)
    }

    /// Surveys a process in which f0 runs.
    ///
    /// # Errors
    /// As [`Survey::launched`].
    pub fn attached(mut self, limits: Limits<'_>) -> Result<Surveyed, ProcessError> {
        self.go_on(Part::Stuck, limits)
    }

    fn go_on(&mut self, mut part: Part, limits: Limits<'_>) -> Result<Surveyed, ProcessError> {
        loop {
            match part {
                Part::Done(arrivals) => return Ok(Surveyed::Done(arrivals)),
                Part::Ended(ending) => return Ok(Surveyed::Ended(ending)),
                Part::Stuck => {}
            }
            if self.stuck == PATIENCE {
                // The whole stack is instrumented and nothing on it returns: it waits.
                self.tell_where_it_stands();
                return Ok(Surveyed::Done(Vec::new()));
            }
            let engine = (self.attach)()?;
            self.stuck = PATIENCE;
            part = self.with_engine(engine, Libraries::Loaded, Begin::OnStack, limits)?;
        }
    }

    /// Says where threads are that call f0, of which no call returned.
    fn tell_where_it_stands(&mut self) {
        let investigation = &mut self.division.investigation;
        let stacks = frames::below(self.pid, self.modules, investigation);
        let mut told: Vec<String> = stacks.iter().take(STACKS_TOLD).cloned().collect();
        let more = stacks.len() - told.len();
        if more > 0 {
            told.push(format!("{more} more"));
        }
        if !told.is_empty() {
            let (within, told) = (PATIENCE.as_secs(), told.join("; "));
            investigation.warn(format!(
                "no call was seen to return within {within} s; now it is in: {told}"
            ));
        }
    }

    fn with_engine(
        &mut self,
        engine: Box<dyn Engine>,
        libraries: Libraries,
        begin: Begin,
        limits: Limits<'_>,
    ) -> Result<Part, ProcessError> {
        self.division.investigation.cost = engine.cost();
        let mut measurement = Measurement {
            division: &mut self.division,
            process: Process::new(self.pid, self.modules, engine, libraries),
            onlooker: self.onlooker,
            stuck: self.stuck,
            until: self.until,
        };
        let readiness = Readiness::begin(self.pid);
        let outcome = guarded(|| measurement.run(begin, limits));
        let division = &mut measurement.division;
        division.investigation.not_running = readiness.share(division.totals.threads());
        // Of who was in one call all the time nothing is in the totals.
        let Investigation {
            share_of_cpu,
            unfollowed,
            ..
        } = &mut *division.investigation;
        if let Some(chosen) = share_of_cpu {
            let threads = division.totals.threads();
            let mut threads = threads.filter(|tid| !unfollowed.contains(tid)).peekable();
            let is_known = threads.peek().is_some();
            let share = readiness.share_of_cpu(threads).filter(|_| is_known);
            *chosen = share.unwrap_or(*chosen);
        }
        let process = &mut measurement.process;
        let outcome = process.finish(outcome);
        let investigation = &mut *measurement.division.investigation;
        investigation.add_counters(process.engine().counters());
        for warning in process.take_warnings() {
            investigation.warn(warning);
        }
        outcome
    }
}

/// What one engine measures.
struct Measurement<'m, 'a> {
    division: &'m mut Division<'a>,
    process: Process<'m>,
    onlooker: Option<&'m dyn Onlooker>,
    stuck: Duration,
    until: Instant,
}

impl Measurement<'_, '_> {
    fn run(&mut self, begin: Begin, limits: Limits<'_>) -> Result<Part, ProcessError> {
        self.begin(begin)?;
        limits.begin();
        let mut since = Instant::now();
        let mut loaded = self.loaded();
        loop {
            let event = self.process.poll(limits, |engine, modules| {
                let mut sink = Windows {
                    modules,
                    catalog: self.division.catalog,
                    totals: self.division.totals,
                    numbers: &mut self.division.numbers,
                };
                engine.poll(SLICE, &mut sink)
            })?;
            match event {
                Event::Ended(ending) => return Ok(Part::Ended(ending)),
                Event::CodeChanged if self.process.libraries() == Libraries::Loaded => {
                    let modules = self.process.modules();
                    self.division.investigation.find_f0(modules)?;
                    let placed = self.division.placed.clone();
                    self.division.instrument(&mut self.process)?;
                    let before = std::mem::replace(&mut loaded, self.loaded());
                    // What has come or gone may have nothing to do with what is measured.
                    let is_elsewhere = loaded != before && placed == self.division.placed;
                    if !is_elsewhere {
                        self.division.next_round();
                        since = Instant::now();
                    }
                }
                Event::CodeChanged => continue,
                Event::Nothing => {}
            }
            self.show();
            let (windows, _) = self.division.totals.so_far();
            let late_by = self.until.elapsed();
            let is_late = !late_by.is_zero();
            let complete = (self.division.is_round_complete(&self.process)
                && (since.elapsed() >= LATE || !self.division.awaits_long_calls(&self.process)))
                || (windows > 0 && (is_late || since.elapsed() >= LONGEST_ROUND));
            if complete {
                self.division.let_silent_be();
                if is_late {
                    let longest = LONGEST_SURVEY.as_secs();
                    self.division.investigation.warn(format!(
                        "dividing the time was ended after {longest} s: not all functions that are called rarely were looked into"
                    ));
                }
                if is_late || !self.division.go_deeper(&mut self.process)? {
                    return Ok(Part::Done(self.division.arrive(&self.process)));
                }
                since = Instant::now();
            } else if windows == 0
                && self.process.libraries() == Libraries::Loaded
                && (since.elapsed() >= self.stuck || late_by >= PATIENCE)
            {
                return Ok(Part::Stuck);
            }
        }
    }

    /// What is loaded where.
    fn loaded(&self) -> Vec<(u64, u64, ModuleId)> {
        self.process.modules().ranges().collect()
    }

    /// Sets the first probes.
    fn begin(&mut self, begin: Begin) -> Result<(), ProcessError> {
        let is_there = self.process.refresh()?;
        let found = (self.division.investigation).find_f0(self.process.modules());
        match found {
            Ok(f0) if is_there => {
                if begin == Begin::OnStack {
                    self.division.find_frames(&self.process, f0);
                }
                self.division.instrument(&mut self.process)?;
                self.division.next_round();
                Ok(())
            }
            // Of one that is just ending the next poll says how it did.
            Err(error) if is_there && self.process.libraries() == Libraries::Loaded => {
                Err(error.into())
            }
            _ => {
                let hooks = self.process.hooks();
                self.process.apply(&hooks).map(drop)
            }
        }
    }

    fn show(&self) {
        let Some(onlooker) = self.onlooker else {
            return;
        };
        let Division {
            catalog,
            investigation,
            totals,
            ..
        } = &*self.division;
        onlooker.look(Seen {
            naming: investigation.naming(self.process.modules(), catalog),
            investigation,
            serving: None,
            totals: Some(totals),
        });
    }
}

impl Division<'_> {
    fn entry(&self, process: &Process<'_>, fnode: FnodeId) -> Result<TargetAddr, String> {
        let sources = self.investigation.sources(process, self.catalog);
        let sources = sources.ok_or("f0 is not loaded")?;
        sources.entry(self.totals.ftree().fnode(fnode))
    }

    fn expand(&mut self, process: &Process<'_>, fnode: FnodeId) {
        let outcome = self
            .entry(process, fnode)
            .and_then(|entry| expansion::calls(entry, process, self.catalog, self.investigation));
        match outcome {
            Ok(calls) if calls.measurable.is_empty() && !calls.unmeasurable.is_empty() => {
                let reason = "its calls cannot be measured".to_owned();
                self.totals.cannot_expand(fnode, reason);
            }
            Ok(calls) if calls.measurable.is_empty() => {
                self.totals.cannot_expand(fnode, NO_CALLS.to_owned());
            }
            Ok(calls) => {
                for (site, callee) in calls.measurable {
                    self.totals.add_child(fnode, site, callee);
                }
                self.totals.expanded(fnode);
            }
            Err(reason) => self.totals.cannot_expand(fnode, reason),
        }
    }

    fn is_round_complete(&self, process: &Process<'_>) -> bool {
        let naming = self.investigation.naming(process.modules(), self.catalog);
        self.totals
            .is_round_complete(&|share| doing(naming, self.totals, share, &self.seen_to_wait))
    }

    /// Who was silent for a whole round waits for something else than its end, or is gone.
    fn let_silent_be(&mut self) {
        self.idle.extend(self.totals.silent());
    }

    /// Whether more of the long calls will be seen when the round goes on: a thread that did not wait for something to do is in one,
    /// or few fit into what has passed of it.
    fn awaits_long_calls(&self, process: &Process<'_>) -> bool {
        let naming = self.investigation.naming(process.modules(), self.catalog);
        self.totals.silent().any(|tid| !self.idle.contains(&tid))
            || self.totals.is_short_beside_calls(&|share| {
                doing(naming, self.totals, share, &self.seen_to_wait)
            })
    }

    /// Goes into the callees that take much time in few calls. False when there are none.
    fn go_deeper(&mut self, process: &mut Process<'_>) -> Result<bool, ProcessError> {
        let returned = self.totals.forget_returned();
        let naming = self.investigation.naming(process.modules(), self.catalog);
        let deeper = self
            .totals
            .to_expand(&|share| doing(naming, self.totals, share, &self.seen_to_wait));
        if deeper.is_empty() && !returned {
            return Ok(false);
        }
        for fnode in deeper {
            self.expand(process, fnode);
        }
        self.instrument(process)?;
        self.next_round();
        Ok(true)
    }

    /// Brings the probes to the totals' tree.
    fn instrument(&mut self, process: &mut Process<'_>) -> Result<(), ProcessError> {
        let running: Vec<FnodeId> = self.totals.running().collect();
        for &fnode in &running {
            self.expand(process, fnode);
        }
        let mut plan = {
            let Some(sources) = self.investigation.sources(process, self.catalog) else {
                return Ok(());
            };
            let ftree = self.totals.ftree();
            let needed = self.totals.needed();
            let running = running.iter().filter_map(|&fnode| {
                let entry = sources.entry(ftree.fnode(fnode)).ok()?;
                Some(Running { entry, fnode })
            });
            Plan {
                running: running.collect(),
                ..planning::plan(ftree, needed, &sources).plan
            }
        };
        markers::add_end(&mut plan, self.investigation, process)?;
        if plan
            .functions
            .iter()
            .all(|function| function.sites.is_empty())
        {
            let why = self.totals.reason(FnodeId::ROOT).unwrap_or(NO_CALLS);
            return Err(ProcessError::Indivisible(why.to_owned()));
        }
        planning::apply(&plan, process, self.investigation, self.catalog)?;
        self.placed = Placed::of(&plan);
        Ok(())
    }

    fn next_round(&mut self) {
        self.totals.next_round(darc_tracer::tsc());
    }
}
