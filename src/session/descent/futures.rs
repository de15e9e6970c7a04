//! Ops that are lives of futures: where f0 polls the futures of an async function, its calls are put together to lives.

use std::collections::BTreeMap;
use std::path::Path;

use darc_analysis::Absence;
use darc_analysis::lives::{Fates, Lives, Poll};
use darc_disasm::FunctionCode;
use darc_process::ProcessError;
use darc_process::futures::{self, Polls};
use darc_process::modules::CodeRef;
use darc_record::{Field, Op, Tsc};
use darc_tracer::engine::{Counters, Engine, EngineKind};

use crate::options::{Blocks, Preemption};
use crate::session::Session;
use crate::session::catalog::Catalog;
use crate::session::descent::looking_on::LookingOn;
use crate::session::descent::timeline::Timeline;

/// What ops of an f0 that polls futures are.
#[derive(Clone, Default, Debug)]
pub enum Ops {
    /// Its calls, as of any function.
    #[default]
    Calls,
    /// Lives, if f0 is such a function.
    LivesWherePossible,
    /// Lives, as in other processes, with what became of futures there: results are of one kind.
    LivesAgain(Fates),
    /// Lives.
    Lives(Box<Followed>),
}

/// The futures that f0 polls.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Where each has its state.
    pub field: Field,
    /// By each state in which a future waits: the first one that stands for the same place.
    places: BTreeMap<u32, u32>,
    lives: Lives,
    /// What became of other processes' futures.
    before: Fates,
    /// Calls that were seen by nobody but counted, or not even that.
    unseen: u64,
    /// When that was looked at last.
    looked: Tsc,
}

impl Ops {
    /// What ops are in the next process: what they were in the one before.
    pub fn next_process(&mut self) {
        if let Ops::Lives(followed) = self {
            *self = Ops::LivesAgain(followed.fates());
        }
    }
}

/// What the person should know of ops that are lives.
const LIVES: &str = "an op is the life of a future: preemption, interrupts and page faults are not told apart in it, --blocks has nothing to narrow, and all polls are recorded, whatever --budget says";

impl Followed {
    /// What became of futures beside those that are ops.
    #[must_use]
    pub fn fates(&self) -> Fates {
        self.lives.fates().and(&self.before)
    }

    /// Takes a call of f0.
    pub fn hold(&mut self, op: Op, is_whole: bool) {
        let poll = Poll {
            future: op.arguments.registers[self.field.argument],
            states: op.arguments.field,
            op,
            is_whole,
        };
        self.lives.hold(poll, darc_tracer::tsc());
    }

    /// Probes were changed between two moments.
    pub fn probes_changed(&mut self, from: Tsc, to: Tsc) {
        self.lives.unseen(from, to);
    }

    /// Looks whether calls went unseen: what is lost after this moment shows at the next look.
    fn look(&mut self, engine: &dyn Engine) {
        let now = darc_tracer::tsc();
        let Counters {
            dropped,
            sampled,
            unregistered,
            ..
        } = engine.counters();
        let unseen = dropped.wrapping_add(sampled).wrapping_add(unregistered);
        if unseen != self.unseen {
            self.lives.unseen(self.looked, darc_tracer::tsc());
            self.unseen = unseen;
        }
        self.looked = now;
    }
}

impl Session<'_> {
    /// Decides what ops are, when f0 was found.
    ///
    /// # Errors
    /// When they cannot be what they were in other processes.
    pub(super) fn decide_ops(
        &mut self,
        f0: CodeRef,
        code: &FunctionCode,
    ) -> Result<(), ProcessError> {
        let before = match &self.investigation.ops {
            Ops::LivesWherePossible => None,
            Ops::LivesAgain(before) => Some(*before),
            Ops::Calls | Ops::Lives(_) => return Ok(()),
        };
        self.investigation.ops = Ops::Calls;
        let found = futures::polls(self.process.modules(), f0, code);
        let found = found.and_then(|polls| match polls {
            Some(_) => self.may_follow_lives().map(|()| polls),
            None => Ok(None),
        });
        match (found, before) {
            (Ok(Some(polls)), _) => self.follow_lives(&polls, before.unwrap_or_default()),
            (Ok(None), None) => {}
            (Err(why), None) => self.investigation.warn(format!(
                "an op is one poll of a future where f0 is an async function's, not the life of a future: {why}"
            )),
            (found, Some(_)) => {
                let why = found.err().unwrap_or_else(|| "f0 is another function".to_owned());
                return Err(ProcessError::Unsuitable(format!(
                    "ops were lives of futures until now, and cannot be in this process: {why}"
                )));
            }
        }
        Ok(())
    }

    /// Whether the engine and what else was asked for allow that.
    fn may_follow_lives(&self) -> Result<(), String> {
        let obstacle = if self.process.engine().kind() == EngineKind::Int3 {
            "breakpoints do not tell its states; leave out --engine int3"
        } else if self.serving.is_some() {
            "--async is for single calls; leave it out"
        } else if self.investigation.analysis.chain().is_some() {
            "--value is for single calls; leave it out"
        } else if self.investigation.threads.is_some() {
            "its polls run on any thread; leave out --thread"
        } else if self.has_probes {
            "f0 was loaded after the first probes had been put in; leave out --end-at"
        } else {
            return Ok(());
        };
        Err(obstacle.to_owned())
    }

    fn follow_lives(&mut self, polls: &Polls, before: Fates) {
        let places = places(polls, self.catalog);
        let own = &mut *self.investigation;
        own.analysis.expect_awaits(places.values().copied());
        own.warn(LIVES.to_owned());
        own.ops = Ops::Lives(Box::new(Followed {
            field: polls.field,
            lives: Lives::new(places.keys().copied().collect()),
            places,
            before,
            unseen: 0,
            looked: darc_tracer::tsc(),
        }));
        // The kernel tells of threads, each of which polls many futures.
        own.preemption = Preemption::Counted;
        self.timeline = Timeline::Unused;
        // Samples are of threads, too.
        own.blocks = Blocks::Left;
        // Every poll is recorded: that goes on for no longer than it must.
        own.looks_on = false;
        self.looking_on = LookingOn::briefly();
    }

    /// Takes the lives that have ended to the analysis. All calls of f0 that ended at `complete` or before have been delivered.
    pub(super) fn settle_lives(&mut self, complete: Tsc) {
        let Ops::Lives(followed) = &mut self.investigation.ops else {
            return;
        };
        followed.look(self.process.engine());
        let places = followed.places.clone();
        let place = |state| places.get(&state).copied().unwrap_or(state);
        for life in followed.lives.settle(complete) {
            self.investigation.take_life(&life, place);
        }
    }
}

/// For each state in which a future waits the first one of the same line. What these are called is noted.
fn places(polls: &Polls, catalog: &mut Catalog) -> BTreeMap<u32, u32> {
    let mut first: BTreeMap<(Option<&str>, u32), u32> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for wait in &polls.machine.awaits {
        let Ok(state) = u32::try_from(wait.state) else {
            continue;
        };
        let file = wait.file.as_deref();
        let place = *first.entry((file, wait.line)).or_insert(state);
        places.insert(state, place);
        let file = file.and_then(|file| Path::new(file).file_name());
        let file = file.map_or_else(|| "?".into(), |name| name.to_string_lossy());
        let name = format!("await {file}:{}", wait.line);
        catalog.name_absence(Absence::Awaiting(place), || name);
    }
    places
}
