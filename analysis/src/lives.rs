//! The lives of futures, put together from single polls: what an op is where f0 polls the future of an async function. Pure.
//!
//! A poll is known by the address of the future, and by the future's state when the poll begins and when it ends (`symbols`'
//! `StateMachine`). A life is all polls of one future, from the first one on to the one in which it returns; between
//! two polls it waits at the `.await` that its state stands for. A future keeps its address from its first poll on
//! (`Pin`), but another one may have the address after its end. Whatever does not fit together is counted and told of, and is no op.
//!
//! Coroutines of C++ have lives of resumes in the same way, but less is known of each (`coroutines`).
//!
//! Polls come in the order in which the threads' records are read, so they are held until all that ended before a moment are known,
//! and are then taken in the order in which they began: polls of one future never overlap.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use darc_record::{Arguments, FnodeId, Op, Ticks, Touched, Tsc};

use crate::Analysis;
use crate::descent::ftree::Absence;

mod coroutines;

/// So many futures are followed at one time. When there are more, those are forgotten that were polled longest ago.
const MOST: usize = 1 << 16;
/// The part of them that is forgotten at once.
const FORGOTTEN: usize = MOST / 8;
/// So many polls are held at most.
const MOST_HELD: usize = 1 << 20;
/// Of more times in which polls may have gone unseen the last ones are taken for one.
const MOST_GAPS: usize = 1 << 12;
/// With so many different fnodes in one life there is no room in it for others.
const MOST_TOUCHED: usize = 1 << 12;

/// The future was not polled yet.
const UNRESUMED: u32 = 0;
/// It has returned.
const RETURNED: u32 = 1;

/// One poll of a future.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poll {
    /// Where the future is.
    pub future: u64,
    /// Its state when the poll began and when it ended; of a coroutine what `coroutines` says.
    pub states: (u32, u32),
    /// The call of f0.
    pub op: Op,
    /// Whether all is known of the call, not its latency alone.
    pub is_whole: bool,
}

/// Whose lives they are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Of {
    /// Of futures of an async function of Rust, which are polled.
    #[default]
    Futures,
    /// Of coroutines of C++, which are resumed.
    Coroutines,
}

/// What became of futures beside those that are ops.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fates {
    /// What they are.
    pub of: Of,
    /// Polls that were seen.
    pub polls: u64,
    /// Gone when another one began at their place in memory: dropped while they waited (cancelled), or left by a panic.
    pub dropped: u64,
    /// Whose first poll was not seen: they were polled before, or within the poll of another one, or had been forgotten.
    pub begun_before: u64,
    /// Of which polls may have gone unseen, or make no sense.
    pub lost: u64,
    /// Forgotten, because too many waited.
    pub forgotten: u64,
    /// In the middle of their lives in the end.
    pub under_way: u64,
}

impl Fates {
    /// Of these futures and others.
    #[must_use]
    pub fn and(&self, other: &Fates) -> Fates {
        Fates {
            of: self.of,
            polls: self.polls.saturating_add(other.polls),
            dropped: self.dropped.saturating_add(other.dropped),
            begun_before: self.begun_before.saturating_add(other.begun_before),
            lost: self.lost.saturating_add(other.lost),
            forgotten: self.forgotten.saturating_add(other.forgotten),
            under_way: self.under_way.saturating_add(other.under_way),
        }
    }
}

/// A life that has ended by returning.
#[derive(Clone, PartialEq, Debug)]
pub struct Life {
    /// From the begin of the first poll to the end of the last; what it called in all of them.
    pub op: Op,
    /// Where it waited between polls: since when first, and for how long altogether, by the state.
    pub awaits: BTreeMap<u32, (Tsc, Ticks)>,
    /// Whether all is known of all polls.
    pub is_whole: bool,
}

/// A future in the middle of its life.
#[derive(Clone, Debug)]
struct Open {
    /// Nothing where the life's begin was not seen.
    life: Option<Life>,
    /// Its state since the last poll.
    state: u32,
    /// When the last poll ended.
    since: Tsc,
    /// When it began.
    begun: Tsc,
}

/// A time in which polls may have gone unseen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gap {
    from: Tsc,
    to: Tsc,
}

/// All futures of f0.
#[derive(Clone, Default, Debug)]
pub struct Lives {
    /// The states in which futures wait. The places at which coroutines do need not be known.
    waits: BTreeSet<u32>,
    held: Vec<Poll>,
    open: HashMap<u64, Open>,
    /// In order.
    gaps: Vec<Gap>,
    /// Of coroutines: until when all was known the last time.
    complete: Tsc,
    /// Of coroutines: whether one was seen to be destroyed when it had ended.
    are_destroyed: bool,
    fates: Fates,
}

impl Lives {
    /// Of futures that wait in these states, or of coroutines, whatever these are; none is known yet.
    #[must_use]
    pub fn new(of: Of, waits: BTreeSet<u32>) -> Lives {
        Lives {
            waits,
            fates: Fates {
                of,
                ..Fates::default()
            },
            ..Lives::default()
        }
    }

    /// Takes a poll that was told of at this moment. One that makes no sense is lost, with whatever it was a part of.
    pub fn hold(&mut self, poll: Poll, now: Tsc) {
        let is_sensible = poll.op.start <= poll.op.end && poll.op.end <= now;
        match is_sensible && self.held.len() < MOST_HELD {
            true => self.held.push(poll),
            false => {
                self.fates.lost = self.fates.lost.saturating_add(1);
                self.unseen(poll.op.start.min(now), now);
            }
        }
    }

    /// The lives that have ended, in the order of their last polls, as far as polls are known that ended at `complete` or before: all
    /// of these have been taken.
    pub fn settle(&mut self, complete: Tsc) -> Vec<Life> {
        let ended = match self.fates.of {
            Of::Futures => complete,
            Of::Coroutines => self.complete_for_coroutines(complete),
        };
        let held = std::mem::take(&mut self.held);
        let (mut ripe, held): (Vec<Poll>, Vec<Poll>) =
            held.into_iter().partition(|poll| poll.op.end <= ended);
        self.held = held;
        if self.fates.of == Of::Coroutines {
            self.hold_back(&mut ripe);
        }
        ripe.sort_by_key(|poll| poll.op.start);
        ripe.into_iter()
            .filter_map(|poll| match self.fates.of {
                Of::Futures => self.poll(poll),
                Of::Coroutines => self.resume(poll),
            })
            .collect()
    }

    /// Polls may have gone unseen between two moments, not before the end of the gap told of last. A future that is polled neither
    /// before nor after misses none.
    pub fn unseen(&mut self, from: Tsc, to: Tsc) {
        let mut gap = Gap { from, to };
        let is_full = self.gaps.len() >= MOST_GAPS;
        while let Some(last) = self.gaps.pop_if(|last| is_full || last.to >= gap.from) {
            gap.from = gap.from.min(last.from);
            gap.to = gap.to.max(last.to);
            if is_full {
                break;
            }
        }
        self.gaps.push(gap);
    }

    /// Whether a future may have missed polls that was polled neither since a moment nor until another one.
    fn may_miss(&self, since: Tsc, until: Tsc) -> bool {
        let first = self.gaps.partition_point(|gap| gap.to <= since);
        self.gaps.get(first).is_some_and(|gap| gap.from < until)
    }

    /// What became of futures beside those that are ops.
    #[must_use]
    pub fn fates(&self) -> Fates {
        Fates {
            under_way: self
                .open
                .values()
                .filter(|open| open.life.is_some())
                .count() as u64,
            ..self.fates
        }
    }

    /// Takes a poll in its turn; the life that it ends.
    fn poll(&mut self, poll: Poll) -> Option<Life> {
        self.fates.polls = self.fates.polls.saturating_add(1);
        let (before, after) = poll.states;
        let known = self.open.remove(&poll.future);
        let life = match before {
            UNRESUMED => {
                self.left(known, poll.op.start);
                Some(Life::beginning(&poll))
            }
            _ => self.resumed(known, &poll),
        };
        if after == RETURNED {
            return life;
        }
        if !self.waits.contains(&after) {
            self.fates.lost += u64::from(life.is_some());
            return None;
        }
        self.make_room();
        let open = Open {
            life,
            state: after,
            since: poll.op.end,
            begun: poll.op.start,
        };
        self.open.insert(poll.future, open);
        None
    }

    /// A future that was in the middle of its life is not there any more, but another one.
    fn left(&mut self, open: Option<Open>, until: Tsc) {
        let Some(open) = open.filter(|open| open.life.is_some()) else {
            return;
        };
        match self.may_miss(open.since, until) {
            true => self.fates.lost += 1,
            false => self.fates.dropped += 1,
        }
    }

    /// The life with one more poll; nothing where its begin is not known. Equal states prove nothing where polls may have gone unseen:
    /// another future may be there by now.
    fn resumed(&mut self, open: Option<Open>, poll: &Poll) -> Option<Life> {
        let Some(open) = open else {
            self.fates.begun_before += 1;
            return None;
        };
        let mut life = open.life?;
        let is_next = open.state == poll.states.0 && poll.op.start >= open.since;
        if !is_next || self.may_miss(open.since, poll.op.start) {
            self.fates.lost += 1;
            return None;
        }
        life.go_on(open.state, open.since, poll);
        Some(life)
    }

    fn make_room(&mut self) {
        if self.open.len() < MOST {
            return;
        }
        let mut since: Vec<Tsc> = self.open.values().map(|open| open.since).collect();
        since.sort_unstable();
        let last = since[FORGOTTEN];
        let forgotten = self.open.extract_if(|_, open| open.since <= last);
        let forgotten = forgotten.filter(|(_, open)| open.life.is_some());
        self.fates.forgotten += forgotten.count() as u64;
    }
}

impl Life {
    fn beginning(poll: &Poll) -> Life {
        let mut life = Life {
            op: Op {
                latency: Ticks(0),
                // Of each poll: they say where the future is.
                arguments: Arguments::default(),
                touched: Vec::new(),
                ..poll.op.clone()
            },
            awaits: BTreeMap::new(),
            is_whole: true,
        };
        life.add(poll);
        life
    }

    /// It was polled again, after having waited since then.
    fn go_on(&mut self, state: u32, since: Tsc, poll: &Poll) {
        let waited = poll.op.start - since;
        let (_, all) = self.awaits.entry(state).or_insert((since, Ticks(0)));
        *all = *all + waited;
        self.op.latency = self.op.latency + waited;
        self.add(poll);
    }

    fn add(&mut self, poll: &Poll) {
        self.op.tid = poll.op.tid;
        self.op.end = poll.op.end;
        self.op.latency = self.op.latency + poll.op.latency;
        self.is_whole &= poll.is_whole;
        for touched in &poll.op.touched {
            self.touch(touched);
        }
    }

    fn touch(&mut self, by: &Touched) {
        let is_full = self.op.touched.len() >= MOST_TOUCHED;
        let mut known = self.op.touched.iter_mut();
        match known.find(|known| known.fnode == by.fnode) {
            Some(known) => add(known, by),
            None if !is_full => self.op.touched.push(*by),
            None => self.is_whole = false,
        }
    }
}

/// Adds the calls of one fnode in another poll.
fn add(known: &mut Touched, by: &Touched) {
    if by.max > known.max {
        (known.max, known.max_start) = (by.max, by.max_start);
    }
    known.sum = known.sum + by.sum;
    known.count = known.count.saturating_add(by.count);
    known.long = known.long + by.long;
}

impl Analysis {
    /// f0's ops are lives of futures that wait in these states: they have callees beside f0's own, and f0 is measured even if it
    /// makes no calls. What the kernel tells of threads says nothing of them.
    pub fn expect_awaits(&mut self, states: impl Iterator<Item = u32>) {
        self.off_cpu = None;
        for state in states {
            self.ftree.absence(FnodeId::ROOT, Absence::Awaiting(state));
        }
    }

    /// Records a life as an op. What its future waited for at one place is one cause, however often it did. `place` says which of
    /// the states that wait at one place stands for it.
    pub fn life(&mut self, life: &Life, place: impl Fn(u32) -> u32) {
        let mut op = life.op.clone();
        let mut waited: BTreeMap<u32, (Tsc, Ticks)> = BTreeMap::new();
        for (&state, &(first, time)) in &life.awaits {
            let (since, all) = waited.entry(place(state)).or_insert((first, Ticks(0)));
            *since = first.min(*since);
            *all = *all + time;
        }
        for (state, (max_start, time)) in waited {
            op.touched.push(Touched {
                fnode: self.ftree.absence(FnodeId::ROOT, Absence::Awaiting(state)),
                max: time,
                max_start,
                sum: time,
                count: 1,
                long: time,
            });
        }
        self.op(&op);
    }
}

#[cfg(test)]
mod tests;
