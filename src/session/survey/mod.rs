//! Where the time of an f0 goes that runs already or is called once: the descent by totals, in one process.
//!
//! Beyond the paper. What is found are functions that are called often enough to be analysed, each by a
//! [`Session`](super::Session) of its own.

mod arrivals;
mod frames;
mod windows;

use std::time::{Duration, Instant};

use darc_record::FnodeId;
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;
use darc_tracer::plan::{Mark, Plan, Running};

use darc_analysis::totals::Totals;

use super::code::CodeCache;
use super::hooks::Hooks;
use super::investigation::Investigation;
use super::modules::CodeRef;
use super::onlooker::Seen;
use super::planning::{self, Sources};
use super::program;
use super::startup::Startup;
use super::{EXECUTED, Ending, Libraries, Limits, SessionError, check_program, expansion, markers};

use windows::Windows;

pub use arrivals::{Arrival, time_table};
pub use frames::calls_in_progress;

/// How long the engine may serve the target before the survey looks at its other duties.
const SLICE: Duration = Duration::from_millis(10);
/// When no window has completed for so long, the call that does not return is looked for on the stack.
const STUCK: Duration = Duration::from_millis(50);
/// When all functions on the stack are looked at, their calls get more time to return.
const PATIENCE: Duration = Duration::from_secs(1);
/// A round in which windows complete, but few, ends after this time.
const LONGEST_ROUND: Duration = Duration::from_secs(2);

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
    investigation: &'a mut Investigation,
    totals: &'a mut Totals,
    code: CodeCache,
    hooks: Hooks,
    attach: &'a Attach<'a>,
    arrivals: Vec<Arrival>,
    /// How long to wait for the first window.
    stuck: Duration,
}

/// What a session of the engine came to.
enum Part {
    Done,
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
        investigation: &'a mut Investigation,
        totals: &'a mut Totals,
        attach: &'a Attach<'a>,
    ) -> Survey<'a> {
        Survey {
            pid,
            investigation,
            totals,
            code: CodeCache::default(),
            hooks: Hooks::default(),
            attach,
            arrivals: Vec::new(),
            stuck: STUCK,
        }
    }

    /// Surveys a program that was just started: f0 has not been called yet.
    ///
    /// # Errors
    /// When f0 is not there, or cannot be instrumented.
    pub fn launched(
        mut self,
        engine: Box<dyn Engine>,
        limits: Limits<'_>,
    ) -> Result<Surveyed, SessionError> {
        let part = self.with_engine(engine, Libraries::NotLoadedYet, limits)?;
        self.go_on(part, limits)
    }

    /// Surveys a process in which f0 runs.
    ///
    /// # Errors
    /// As [`Survey::launched`].
    pub fn attached(mut self, limits: Limits<'_>) -> Result<Surveyed, SessionError> {
        self.go_on(Part::Stuck, limits)
    }

    fn go_on(&mut self, mut part: Part, limits: Limits<'_>) -> Result<Surveyed, SessionError> {
        loop {
            match part {
                Part::Done => return Ok(Surveyed::Done(std::mem::take(&mut self.arrivals))),
                Part::Ended(ending) => return Ok(Surveyed::Ended(ending)),
                Part::Stuck => {}
            }
            if self.stuck == PATIENCE {
                // The whole stack is instrumented and nothing on it returns: it waits.
                return Ok(Surveyed::Done(Vec::new()));
            }
            let engine = (self.attach)()?;
            if self.refresh()? {
                self.find_frames(engine.as_ref())?;
            }
            self.stuck = PATIENCE;
            part = self.with_engine(engine, Libraries::Loaded, limits)?;
        }
    }

    fn with_engine(
        &mut self,
        mut engine: Box<dyn Engine>,
        libraries: Libraries,
        limits: Limits<'_>,
    ) -> Result<Part, SessionError> {
        self.investigation.cost = engine.cost();
        let mut startup = Startup::of(libraries);
        let outcome = self.measure(engine.as_mut(), &mut startup, limits);
        let outcome = startup.judge(self.pid, outcome);
        let restored = match outcome {
            Ok(Part::Ended(Ending::Exited(_) | Ending::Killed(_))) => Ok(()),
            _ => engine.finish(),
        };
        self.investigation.add_counters(engine.counters());
        if let Some(warning) = program::left_behind(self.pid, &restored) {
            self.investigation.warn(warning);
        }
        program::finish(outcome, engine.end(), restored)
    }

    fn measure(
        &mut self,
        engine: &mut dyn Engine,
        startup: &mut Startup,
        limits: Limits<'_>,
    ) -> Result<Part, SessionError> {
        let mut since = Instant::now();
        let is_there = self.refresh()?;
        if is_there {
            startup.looked(&self.hooks);
        }
        if is_there && self.investigation.find_f0().is_ok() {
            self.instrument(engine)?;
        } else if startup.libraries() == Libraries::Loaded {
            self.investigation.find_f0()?;
        } else {
            engine.apply(&self.hooks.plan())?;
        }
        loop {
            let mut sink = Windows {
                investigation: self.investigation,
                totals: self.totals,
            };
            startup.goes_on();
            let notice = engine.poll(SLICE, &mut sink)?;
            if let Some(ending) = notice.and_then(Ending::of_target) {
                if ending == Ending::Exec {
                    self.investigation.warnings.push(EXECUTED.to_owned());
                }
                return Ok(Part::Ended(ending));
            }
            if notice.is_some() {
                startup.noticed();
                if startup.libraries() == Libraries::NotLoadedYet {
                    continue;
                }
                if self.refresh()? {
                    self.investigation.find_f0()?;
                    self.instrument(engine)?;
                    since = Instant::now();
                }
            }
            if let Some(onlooker) = limits.onlooker {
                onlooker.look(Seen {
                    totals: Some(self.totals),
                    ..Seen::from(&*self.investigation)
                });
            }
            let marked = self.investigation.end_at.is_some() && engine.marked(Mark::End) > 0;
            if marked || limits.interrupts.end_asked() {
                return Ok(Part::Ended(Ending::Told));
            }
            if let Some(ending) = limits.reached() {
                return Ok(Part::Ended(ending));
            }
            let (windows, _) = self.totals.so_far();
            let complete = self.totals.is_round_complete()
                || (windows > 0 && since.elapsed() >= LONGEST_ROUND);
            if complete {
                if !self.go_deeper(engine)? {
                    self.arrivals = self.arrive(engine);
                    return Ok(Part::Done);
                }
                since = Instant::now();
            } else if windows == 0
                && startup.libraries() == Libraries::Loaded
                && since.elapsed() >= self.stuck
            {
                return Ok(Part::Stuck);
            }
        }
    }

    /// Reads what is loaded. False when the process is just ending.
    fn refresh(&mut self) -> Result<bool, SessionError> {
        if self.investigation.modules.refresh(self.pid).is_err()
            || self.investigation.modules.loaded().is_empty()
        {
            return Ok(false);
        }
        check_program(&self.investigation.modules)?;
        self.hooks = Hooks::find(&self.investigation.modules);
        self.code.clear();
        Ok(true)
    }

    fn sources<'s>(&'s self, engine: &'s dyn Engine, f0: CodeRef) -> Sources<'s> {
        Sources {
            modules: &self.investigation.modules,
            catalog: &self.investigation.catalog,
            engine,
            f0,
        }
    }

    fn entry(&self, engine: &dyn Engine, fnode: FnodeId) -> Result<TargetAddr, String> {
        let f0 = self.investigation.f0.ok_or("f0 is not loaded")?;
        self.sources(engine, f0)
            .entry(self.totals.ftree().fnode(fnode))
    }

    fn expand(&mut self, engine: &dyn Engine, fnode: FnodeId) {
        let outcome = self
            .entry(engine, fnode)
            .and_then(|entry| expansion::calls(entry, self.investigation, &mut self.code, engine));
        match outcome {
            Ok(calls) if calls.is_empty() => {
                self.totals
                    .cannot_expand(fnode, "it makes no calls".to_owned());
            }
            Ok(calls) => {
                for (site, callee) in calls {
                    self.totals.add_child(fnode, site, callee);
                }
                self.totals.expanded(fnode);
            }
            Err(reason) => self.totals.cannot_expand(fnode, reason),
        }
    }

    /// Goes into the callees that take much time in few calls. False when there are none.
    fn go_deeper(&mut self, engine: &mut dyn Engine) -> Result<bool, SessionError> {
        let returned = self.totals.forget_returned();
        let deeper = self.totals.to_expand();
        if deeper.is_empty() && !returned {
            return Ok(false);
        }
        for fnode in deeper {
            self.expand(engine, fnode);
        }
        self.instrument(engine)?;
        Ok(true)
    }

    /// Brings the probes to the totals' tree, and begins a round.
    fn instrument(&mut self, engine: &mut dyn Engine) -> Result<(), SessionError> {
        let running: Vec<FnodeId> = self.totals.running().collect();
        for &fnode in &running {
            self.expand(engine, fnode);
        }
        let Some(f0) = self.investigation.f0 else {
            return Ok(());
        };
        let mut code = std::mem::take(&mut self.code);
        let plan = {
            let sources = self.sources(engine, f0);
            let ftree = self.totals.ftree();
            let needed = self.totals.needed();
            let running = running.iter().filter_map(|&fnode| {
                let entry = sources.entry(ftree.fnode(fnode)).ok()?;
                Some(Running { entry, fnode })
            });
            Plan {
                running: running.collect(),
                ..planning::plan(ftree, needed, &sources, &mut code, &self.hooks).plan
            }
        };
        let mut plan = plan;
        markers::add_end(&mut plan, self.investigation, &mut code, engine)?;
        self.code = code;
        if plan
            .functions
            .iter()
            .all(|function| function.sites.is_empty())
        {
            let why = self
                .totals
                .reason(FnodeId::ROOT)
                .unwrap_or("it makes no calls");
            return Err(SessionError::Unsuitable(format!(
                "f0 runs already, and the time in it cannot be divided: {why}"
            )));
        }
        planning::apply(&plan, engine, self.investigation)?;
        self.totals.next_round(darc_tracer::tsc());
        Ok(())
    }
}
