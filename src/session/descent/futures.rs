//! Ops that are lives of futures: where f0 polls the futures of an async function, or resumes coroutines, its calls are put together to
//! lives.

use std::collections::BTreeMap;

use darc_analysis::Absence;
use darc_analysis::lives::{Fates, Life, Lives, Of, Poll};
use darc_process::ProcessError;
use darc_process::code::Scanned;
use darc_process::coroutines;
use darc_process::futures::{self, Polled, Polls, Unread};
use darc_process::modules::CodeRef;
use darc_record::{Field, Op, Tsc};
use darc_tracer::engine::{Counters, Engine, EngineKind};
use darc_tracer::plan::Ends;

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
const LIVES: &str = "an op is a life of several calls of f0: preemption, interrupts and page faults are not told apart in it, --blocks has nothing to narrow, and all polls are recorded, whatever --budget says";

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
            ended_otherwise,
            ..
        } = engine.counters();
        let unseen = dropped.wrapping_add(sampled).wrapping_add(unregistered);
        // A future that is left by a panic is not polled again.
        let unseen = match self.lives.fates().of {
            Of::Futures => unseen,
            Of::Coroutines => unseen.wrapping_add(ended_otherwise),
        };
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
        scanned: &Scanned,
    ) -> Result<(), ProcessError> {
        let before = match &self.investigation.ops {
            Ops::LivesWherePossible => None,
            Ops::LivesAgain(before) => Some(*before),
            Ops::Lives(followed) => {
                self.f0_ends = ends_of(followed.fates().of, self.f0_ends);
                return Ok(());
            }
            Ops::Calls => return Ok(()),
        };
        self.investigation.ops = Ops::Calls;
        let modules = self.process.modules();
        let found = futures::polls(modules, f0, scanned);
        let found = found.and_then(|polls| match polls {
            Some(polls) => match self.may_follow_lives(polls.of) {
                Ok(()) => Ok(Some(polls)),
                Err(why) => Err(Unread { of: polls.of, why }),
            },
            None => Ok(None),
        });
        match (found, before) {
            (Ok(Some(polls)), _) => self.follow_lives(&polls, before.unwrap_or_default()),
            (Ok(None), None) if coroutines::is_ramp(modules, f0) => {
                let name = modules.name(f0);
                self.investigation.warn(format!(
                    "{name} is a coroutine, and f0 the function that makes one: what the coroutine does later is no part of an op; --f0 '{name}' means that"
                ));
            }
            (Ok(None), None) => {}
            (Err(unread), None) => self.investigation.warn(is_one_poll(&unread)),
            (found, Some(_)) => {
                let why = found.err().map(|unread| unread.why);
                let why = why.unwrap_or_else(|| "f0 is another function".to_owned());
                return Err(ProcessError::Unsuitable(format!(
                    "ops were lives until now, and cannot be in this process: {why}"
                )));
            }
        }
        Ok(())
    }

    /// Whether the engine and what else was asked for allow that.
    fn may_follow_lives(&self, of: Polled) -> Result<(), String> {
        let obstacle = if of == Polled::Coroutines && self.f0_ends != Ends::ByReturns {
            "code of other functions jumps into it"
        } else if self.process.engine().kind() == EngineKind::Int3 {
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
        let of = match polls.of {
            Polled::Futures => Of::Futures,
            Polled::Coroutines => Of::Coroutines,
        };
        self.f0_ends = ends_of(of, self.f0_ends);
        own.warn(LIVES.to_owned());
        own.ops = Ops::Lives(Box::new(Followed {
            field: polls.field,
            lives: Lives::new(of, places.keys().copied().collect()),
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
        let of = followed.fates().of;
        for life in followed.lives.settle(complete) {
            if of == Of::Coroutines {
                name_others(&life, &places, self.catalog);
            }
            self.investigation.take_life(&life, place);
        }
    }
}

/// For each state in which a future waits the first one of the same name. What these are called is noted.
fn places(polls: &Polls, catalog: &mut Catalog) -> BTreeMap<u32, u32> {
    let mut first: BTreeMap<&str, u32> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for wait in &polls.waits {
        let place = *first.entry(&wait.name).or_insert(wait.state);
        places.insert(wait.state, place);
        catalog.name_absence(Absence::Awaiting(place), || wait.name.clone());
    }
    places
}

/// Names the places at which a coroutine waited that were not found in its code.
fn name_others(life: &Life, places: &BTreeMap<u32, u32>, catalog: &mut Catalog) {
    let states = life.awaits.keys();
    for &state in states.filter(|state| !places.contains_key(state)) {
        catalog.name_absence(Absence::Awaiting(state), || coroutines::numbered(state));
    }
}

/// How the ends of f0's calls are noticed, where it would otherwise be in this way: another coroutine that a resume passes control to at
/// its end, through a pointer, is no part of it. A function that it calls last is.
fn ends_of(of: Of, otherwise: Ends) -> Ends {
    match of {
        Of::Futures => otherwise,
        Of::Coroutines => Ends::ByLeaving,
    }
}

/// What an op is where lives cannot be followed.
fn is_one_poll(Unread { of, why }: &Unread) -> String {
    match of {
        Polled::Futures => format!(
            "an op is one poll of a future where f0 is an async function's, not the life of a future: {why}"
        ),
        Polled::Coroutines => format!(
            "an op is one resume of a coroutine, with all that it passes control to at its end, or one time that f0 begins or destroys one, not the life of a coroutine: {why}"
        ),
    }
}
