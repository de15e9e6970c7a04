//! A session: one process, from the first look at it to the moment it is let go.
//!
//! The order is start → plan → instrument → drain → decide → restore. The engine records, the analysis
//! decides, and the session carries requests and answers between them.

mod answering;
mod arguments;
#[cfg(test)]
mod assembled;
pub mod called;
mod callee;
pub mod catalog;
pub mod claim;
pub mod clock;
mod code;
mod copies;
mod ending;
mod entrances;
mod expansion;
mod finding;
pub mod hooks;
pub mod investigation;
pub mod jit;
mod limits;
mod lookup;
pub mod markers;
pub mod modules;
pub mod narrowing;
pub mod onlooker;
mod parts;
mod patience;
mod placing;
mod planning;
pub mod profiling;
pub mod program;
mod question;
mod restored;
mod return_address;
pub mod serving;
mod stacks;
mod startup;
pub mod summary;
pub mod survey;
mod suspicion;
pub mod syscalls;
mod timeline;
mod waited;
mod waiting;
mod wakers;
mod watch;
pub mod watching;

use std::time::Duration;

use code::CodeCache;
use darc_analysis::FnodeId;
use darc_analysis::descent::noise::Noise;
use darc_tracer::engine::{Engine, EngineKind, Notice};
use darc_tracer::plan::{Ends, Mark};
use ending::EXECUTED;
use finding::check_program;
use hooks::Hooks;
use investigation::Investigation;
use nix::sys::signal::Signal;
use onlooker::Seen;
use question::Question;
use restored::Touched;
use serving::Serving;
use startup::Startup;
use suspicion::Suspicion;
use timeline::{Holding, Timeline};
use watch::Watch;

use crate::options::{Blocks, Preemption};
use crate::terminal::live::Progress;

pub use ending::{Ending, SessionError};
pub use limits::Limits;
pub use startup::Libraries;

/// How long the engine may serve the target before the session looks at its other duties.
const SLICE: Duration = Duration::from_millis(20);

/// At some 30 µs a breakpoint this many calls make an op longer by a tenth of a second.
const MOST_CALLS_INT3: u64 = 2_000;

/// Whether other functions wait for an analysis in the same process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// The process is of no use where this one cannot be analysed.
    None,
    /// They have their turns, whatever becomes of this one.
    Wait,
}

/// One process under analysis.
pub struct Session<'a> {
    pid: i32,
    investigation: &'a mut Investigation,
    /// What f0 hands to other threads.
    serving: Option<&'a mut Serving>,
    engine: Box<dyn Engine>,
    code: CodeCache,
    hooks: Hooks,
    startup: Startup,
    others: Others,
    watch: Watch<'a>,
    question: Question,
    suspicion: Suspicion,
    f0_ends: Ends,
    timeline: Timeline,
    touched: Touched,
    /// Fnodes that are measured although no path goes on from them.
    kept: Vec<FnodeId>,
}

impl<'a> Session<'a> {
    /// Takes charge of a process that the engine has attached to or started.
    pub fn new(
        pid: i32,
        investigation: &'a mut Investigation,
        engine: Box<dyn Engine>,
        libraries: Libraries,
        progress: &'a mut Progress,
    ) -> Session<'a> {
        investigation.cost = engine.cost();
        let kind = engine.kind();
        let (most_calls, other) = match kind {
            EngineKind::Int3 => (Some(MOST_CALLS_INT3), "; --engine jump may"),
            EngineKind::Jump => (None, ""),
        };
        investigation.most_calls = most_calls;
        investigation.analysis.next_process();
        let remedy = format!(
            "its ops are so short that the {} engine cannot tell who takes their time{other}",
            kind.name()
        );
        let cost = engine.cost();
        let noise = Noise::new(cost.resolution, cost.of_caller, remedy);
        investigation.analysis.set_noise(noise);
        let timeline = match (kind, investigation.preemption) {
            (_, Preemption::Counted) => Timeline::Unused,
            (EngineKind::Int3, Preemption::Apart) => {
                investigation.warn(
                    "preemption, interrupts and who ended waits are not told: to the kernel, threads that breakpoints stop look as if they waited; leave out --engine int3"
                        .to_owned(),
                );
                Timeline::Unused
            }
            (EngineKind::Jump, Preemption::Apart) => Timeline::follow(pid, investigation),
        };
        Session {
            pid,
            investigation,
            serving: None,
            engine,
            code: CodeCache::default(),
            hooks: Hooks::default(),
            startup: Startup::of(libraries),
            others: Others::None,
            watch: Watch::new(progress),
            question: Question::default(),
            suspicion: Suspicion::default(),
            f0_ends: Ends::default(),
            timeline,
            touched: Touched::default(),
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
            if let Timeline::Switches(_) = self.timeline {
                own.analysis.expect_absences();
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

    /// Analyses until something ends it, and lets the process go, whatever happened.
    ///
    /// # Errors
    /// Why the analysis could not begin or go on. The target has been restored all the same.
    pub fn run(mut self, limits: Limits<'_>) -> Result<Ending, SessionError> {
        let outcome = match self.analyse(limits) {
            Err(error @ SessionError::Unsuitable(_)) if self.others == Others::Wait => Err(error),
            outcome => self.startup.judge(self.pid, outcome),
        };
        let restored = match outcome {
            Ok(Ending::Exited(_) | Ending::Killed(_)) => Ok(()),
            _ => {
                self.watch.restoring(self.investigation);
                self.engine.finish()
            }
        };
        self.timeline
            .finish(self.pid, self.investigation, self.serving.as_deref_mut());
        match program::left_behind(self.pid, &restored) {
            Some(warning) => self.investigation.warn(warning),
            None if self.engine.end().is_none() => self.compare_code(),
            None => {}
        }
        let counters = self.engine.counters();
        if counters.unregistered > 0 {
            self.investigation.warnings.push(format!(
                "{} calls of f0 passed unmeasured: threads came faster than there was room for them",
                counters.unregistered
            ));
        }
        self.investigation.add_counters(counters);
        copies::warn(self.investigation);
        self.investigation.modules.unload();
        let ending = program::finish(outcome, self.engine.end(), restored)?;
        if ending == Ending::Killed(Signal::SIGTRAP as i32)
            && self.engine.kind() == EngineKind::Int3
        {
            self.investigation.warnings.push(
                "SIGTRAP ended the target: a trap of its own, or a breakpoint met by a thread that cannot be traced (CLONE_UNTRACED); --engine jump has no breakpoints".to_owned(),
            );
        }
        Ok(ending)
    }

    /// Compares all code of the modules that had probes with their files.
    fn compare_code(&mut self) {
        let compared = self.touched.compare(self.pid, &self.investigation.modules);
        self.investigation.bytes_compared += compared.bytes;
        for (module, bytes) in compared.differing {
            self.investigation.warnings.push(format!(
                "{bytes} bytes of code of {module} are not as in its file; darc's own are all put back, so the program or another tool wrote them"
            ));
        }
    }

    fn analyse(&mut self, limits: Limits<'_>) -> Result<Ending, SessionError> {
        self.look_at_libraries()?;
        loop {
            if self.is_f0_loaded() && self.answer()? {
                let meanwhile = match self.investigation.blocks {
                    Blocks::Left => None,
                    Blocks::After | Blocks::First => self.narrow(limits)?,
                };
                return Ok(meanwhile.unwrap_or(Ending::Finished));
            }
            let mut sink = Holding {
                investigation: self.investigation,
                serving: self.serving.as_deref_mut(),
                timeline: &mut self.timeline,
            };
            self.startup.goes_on();
            let ops = sink.investigation.analysis.profile().count();
            let notice = self.engine.poll(SLICE, &mut sink)?;
            self.timeline
                .advance(self.investigation, self.serving.as_deref_mut());
            let cost = self.engine.cost();
            self.investigation
                .analysis
                .set_resolution(cost.resolution, cost.of_caller);
            if let Some(serving) = &mut self.serving {
                let analysis = &mut serving.investigation.analysis;
                analysis.set_resolution(cost.resolution, cost.of_caller);
            }
            if self.investigation.analysis.profile().count() > ops {
                self.startup.called();
            }
            if let Some(ending) = self.noticed(notice)? {
                return Ok(ending);
            }
            self.place_what_is_bound()?;
            self.investigation.be_patient();
            if let Some(serving) = &mut self.serving {
                serving.investigation.be_patient();
            }
            self.watch.look(self.investigation);
            self.question.consider(self.investigation, &mut self.watch);
            if let Some(onlooker) = limits.onlooker {
                onlooker.look(Seen {
                    serving: self.serving.as_deref(),
                    ..Seen::from(&*self.investigation)
                });
            }
            if self.is_f0_loaded() && self.engine.leaves_target_untraced() {
                let pid = self.pid;
                if self.suspicion.is_confirmed(pid, self.investigation) {
                    return Ok(Ending::Running);
                }
            }
            let marked = self.investigation.end_at.is_some() && self.engine.marked(Mark::End) > 0;
            if marked || limits.interrupts.end_asked() {
                return Ok(Ending::Told);
            }
            let count = self.investigation.analysis.profile().count();
            if limits.enough.is_some_and(|enough| count >= enough) {
                return Ok(Ending::Finished);
            }
            if let Some(ending) = limits.reached() {
                return Ok(ending);
            }
        }
    }

    /// What a notice means for the session: `Some` when it ends.
    fn noticed(&mut self, notice: Option<Notice>) -> Result<Option<Ending>, SessionError> {
        let Some(notice) = notice else {
            return Ok(None);
        };
        let ending = Ending::of_target(notice);
        match ending {
            Some(Ending::Exec) => self.investigation.warnings.push(EXECUTED.to_owned()),
            Some(_) => {}
            None => {
                self.startup.noticed();
                self.look_at_libraries()?;
            }
        }
        Ok(ending)
    }

    /// What ends what is done after the analysis.
    fn ended_early(
        &mut self,
        notice: Option<Notice>,
        limits: Limits<'_>,
    ) -> Result<Option<Ending>, SessionError> {
        let noticed = self.noticed(notice)?;
        let told = self.investigation.end_at.is_some() && self.engine.marked(Mark::End) > 0;
        let told = (told || limits.interrupts.end_asked()).then_some(Ending::Told);
        Ok(noticed.or(told).or_else(|| limits.reached()))
    }
}
