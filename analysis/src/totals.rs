//! The descent by totals: where the time of a function goes that runs already, or is called once.
//!
//! No op of such a function completes in time. Its time is cut into windows, which take the place of ops,
//! and the total of each callee takes the place of the maximum. The descent goes down through callees that
//! are called rarely, and arrives at those that are called often enough to be analysed as an f0 of their own.
//! Beyond the paper (DARC, SIGMETRICS 2008, analyses calls of f0 only).

use std::collections::{BTreeMap, BTreeSet};

use darc_record::{FnodeId, Op, SiteId, Ticks, Touched, Tsc};

use crate::Hz;
use crate::descent::ftree::{Callee, Ftree};

/// A callee with a smaller part of the time in which the threads do something is not gone into.
const WORTHWHILE: f64 = 0.05;
/// A round has at least so many windows,
const ROUND_WINDOWS: u64 = 10;
/// and so many of them make a second of the threads' time,
const ROUNDS_A_SECOND: u64 = 10;
/// ... and so many a second of what they do beside waiting for something to do.
const ROUNDS_A_SECOND_OF_WORK: u64 = 100;
/// What waits for something to do for a larger part of its time does nothing else.
const NOTHING_ELSE: f64 = 0.9;
/// So many of its longest calls fit into a round.
const CALLS_A_ROUND: u64 = 5;
/// A callee is worth an analysis of its own when so many ops complete in this time.
const SECONDS_FOR_START: u64 = 1;
/// Why nobody looks into what takes its time itself.
pub const NO_CALLS: &str = "it makes no calls";

/// What was measured of an fnode over all windows of a round.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Total {
    /// All calls together.
    pub time: Ticks,
    /// How many calls.
    pub calls: u64,
    /// The longest call.
    pub max: Ticks,
}

/// What becomes of an fnode's calls.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Calls {
    Measured,
    Impossible(String),
}

/// Where time was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Share {
    /// The fnodes of one callee of one function: several call sites may lead to it. For the time of a
    /// function itself that function's fnode.
    pub fnodes: Vec<FnodeId>,
    /// Whose time it is.
    pub of: ShareOf,
    /// Its part of the time of all windows, 0 to 1.
    pub share: f64,
    /// What was measured.
    pub total: Total,
}

/// Whose time a [`Share`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareOf {
    /// The function's own code, and calls that are not measured.
    Itself,
    /// A callee that is called so often that it can be analysed as an f0.
    Frequent,
    /// A callee that is called rarely, and that the descent did not go into.
    Rare,
}

/// What a thread does in a share of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It works, as far as is known.
    Work,
    /// It waits for something to do, or for what it needs: reading from a socket may be either.
    MayWait,
    /// It was seen to wait for something to do in what it calls there, which may do something else as well: that is looked into,
    /// however often it is called.
    SeenToWait,
    /// It waits for something to do.
    Waits,
}

/// The descent.
#[derive(Clone, Debug)]
pub struct Totals {
    ftree: Ftree,
    running: BTreeSet<FnodeId>,
    /// The calls that were on a thread's stack, the outermost first.
    stacks: BTreeMap<i32, Vec<FnodeId>>,
    /// What each thread had of its windows beside the calls that its running functions made.
    own: BTreeMap<i32, Ticks>,
    calls: BTreeMap<FnodeId, Calls>,
    sums: BTreeMap<FnodeId, Total>,
    windows: u64,
    time: Ticks,
    since: Tsc,
    /// The end of the last window.
    until: Tsc,
    start_ops: u64,
    max_depth: usize,
    hz: Hz,
}

impl Totals {
    /// Nothing is known but that f0 runs. `start_ops` are needed for an analysis; no path becomes longer than
    /// `max_depth`.
    #[must_use]
    pub fn new(start_ops: u64, max_depth: usize, hz: Hz) -> Totals {
        Totals {
            ftree: Ftree::new(),
            running: BTreeSet::from([FnodeId::ROOT]),
            stacks: BTreeMap::new(),
            own: BTreeMap::new(),
            calls: BTreeMap::new(),
            sums: BTreeMap::new(),
            windows: 0,
            time: Ticks(0),
            since: Tsc(0),
            until: Tsc(0),
            start_ops,
            max_depth,
            hz,
        }
    }

    /// The tree of what is measured.
    #[must_use]
    pub fn ftree(&self) -> &Ftree {
        &self.ftree
    }

    /// The fnodes of the functions that run, f0 first.
    pub fn running(&self) -> impl Iterator<Item = FnodeId> + '_ {
        self.running.iter().copied()
    }

    /// A call that a function makes.
    pub fn add_child(&mut self, parent: FnodeId, site: SiteId, callee: Callee) -> FnodeId {
        self.ftree.add_child(parent, site, callee)
    }

    /// The call of this fnode is on the stack of a thread now, inside of what was told before: its return was never awaited.
    pub fn set_running(&mut self, tid: i32, fnode: FnodeId) {
        self.running.insert(fnode);
        self.stacks.entry(tid).or_default().push(fnode);
    }

    /// All calls of the fnode's function are measured from now on.
    pub fn expanded(&mut self, fnode: FnodeId) {
        self.calls.insert(fnode, Calls::Measured);
    }

    /// The calls of the fnode's function cannot be measured.
    pub fn cannot_expand(&mut self, fnode: FnodeId, why: String) {
        self.calls.insert(fnode, Calls::Impossible(why));
    }

    /// Why the calls of an fnode's function are not measured, if that was tried.
    #[must_use]
    pub fn reason(&self, fnode: FnodeId) -> Option<&str> {
        match (self.calls.get(&fnode), self.ftree.fnode(fnode).callee) {
            (Some(Calls::Impossible(why)), _) => Some(why),
            (_, Callee::Syscall(_)) => Some(NO_CALLS),
            _ => None,
        }
    }

    /// The instrumentation was changed: figures are counted from zero, from windows that begin at `since`.
    pub fn next_round(&mut self, since: Tsc) {
        (self.since, self.until) = (since, since);
        self.sums.clear();
        self.own.clear();
        self.windows = 0;
        self.time = Ticks(0);
    }

    /// One window of one thread.
    pub fn window(&mut self, op: &Op) {
        if op.start < self.since {
            return;
        }
        self.windows = self.windows.saturating_add(1);
        self.time = self.time + op.latency;
        self.until = self.until.max(op.end);
        let own = self.own.entry(op.tid).or_default();
        *own = *own + Self::beside_calls(&self.ftree, &self.running, op);
        for touched in &op.touched {
            if self.ftree.get(touched.fnode).is_none() {
                continue;
            }
            let total = self.sums.entry(touched.fnode).or_default();
            total.time = total.time + touched.sum;
            total.calls = total.calls.saturating_add(touched.count);
            total.max = total.max.max(touched.max);
        }
    }

    /// What is left of a window beside the calls that running functions made.
    fn beside_calls(ftree: &Ftree, running: &BTreeSet<FnodeId>, op: &Op) -> Ticks {
        let all: BTreeSet<FnodeId> = op.touched.iter().map(|touched| touched.fnode).collect();
        let by_running = |touched: &&Touched| {
            let parent = ftree.get(touched.fnode).and_then(|fnode| fnode.parent);
            parent.is_some_and(|parent| running.contains(&parent) && !all.contains(&parent))
        };
        let calls = op.touched.iter().filter(by_running);
        let calls = calls.fold(Ticks(0), |sum, touched| sum + touched.sum);
        op.latency.saturating_sub(calls)
    }

    /// The innermost function that each thread with windows is in. Of one whose stack is not known it is the innermost that all
    /// others are in.
    fn innermost(&self) -> impl Iterator<Item = (FnodeId, Ticks)> + '_ {
        let running = |stack: &Vec<FnodeId>| -> Vec<FnodeId> {
            let inside = stack.iter().copied();
            inside.take_while(|&fnode| self.is_running(fnode)).collect()
        };
        let mut stacks = self.stacks.values().map(running);
        let first = stacks.next().unwrap_or_default();
        let common = stacks.fold(first, |common, stack| {
            let pairs = common.into_iter().zip(stack);
            let same = pairs.map_while(|(one, other)| (one == other).then_some(one));
            same.collect()
        });
        self.own.iter().map(move |(tid, &time)| {
            let own = self.stacks.get(tid).map(running);
            let inside = own.as_ref().unwrap_or(&common).last();
            (inside.copied().unwrap_or(FnodeId::ROOT), time)
        })
    }

    /// How many windows the round has, and how much time of all threads they hold.
    #[must_use]
    pub fn so_far(&self) -> (u64, Ticks) {
        (self.windows, self.time)
    }

    /// Whether the round is short beside its longest call that is not one of waiting for something to do: which part such calls
    /// have of it is chance.
    #[must_use]
    pub fn is_short_beside_calls(&self, doing: &dyn Fn(&Share) -> Doing) -> bool {
        let shares = self.shares();
        let calls = shares.iter().filter(|share| doing(share) != Doing::Waits);
        let longest = calls.map(|share| share.total.max.0).max();
        let passed = self.until.0.saturating_sub(self.since.0);
        passed < CALLS_A_ROUND.saturating_mul(longest.unwrap_or_default())
    }

    /// The threads that have windows in this round.
    pub fn threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.own.keys().copied()
    }

    /// The threads that were on f0's calls when these were looked for, and have no window in this round: each is in one call.
    pub fn silent(&self) -> impl Iterator<Item = i32> + '_ {
        let threads = self.stacks.keys().copied();
        threads.filter(|tid| !self.own.contains_key(tid))
    }

    /// Whether the figures of this round mean something. `doing` tells what a thread does in a share.
    #[must_use]
    pub fn is_round_complete(&self, doing: &dyn Fn(&Share) -> Doing) -> bool {
        let a_second = self.hz.get();
        self.windows >= ROUND_WINDOWS
            && self.time.0 >= a_second / ROUNDS_A_SECOND
            && self.work(doing).0 >= a_second / ROUNDS_A_SECOND_OF_WORK
    }

    /// The time in which the threads did something.
    pub fn work(&self, doing: &dyn Fn(&Share) -> Doing) -> Ticks {
        let shares = self.shares();
        let other = shares.iter().filter(|share| doing(share) != Doing::Work);
        let other = other.fold(Ticks(0), |sum, share| sum + share.total.time);
        self.time.saturating_sub(other)
    }

    /// The shares that are a part worth looking into of the time in which the threads did something, the largest first. That
    /// threads wait for something to do, often for most of the time, makes nothing else less worth a look.
    #[must_use]
    pub fn worthwhile(&self, doing: &dyn Fn(&Share) -> Doing) -> Vec<Share> {
        let mut shares = self.shares();
        let least = self.work(doing).0 as f64 * WORTHWHILE;
        shares.retain(|share| doing(share) != Doing::Waits && share.total.time.0 as f64 >= least);
        shares
    }

    /// The fnodes whose calls are to be measured as calls of a function that is gone into.
    pub fn needed(&self) -> impl Iterator<Item = FnodeId> + '_ {
        let inside = |fnode: &FnodeId| self.is_inside(*fnode);
        self.ftree
            .fnodes()
            .filter(move |fnode| fnode.parent.as_ref().is_some_and(inside))
            .map(|fnode| fnode.id)
    }

    /// Frames that were on a stack, and whose functions have returned and were called anew since: they are
    /// callees like others, and not gone into any more. True when there were any.
    pub fn forget_returned(&mut self) -> bool {
        let returned = |fnode: &FnodeId| *fnode != FnodeId::ROOT && self.total(*fnode).calls > 0;
        let returned = self.running.iter().copied().filter(returned);
        let returned: BTreeSet<FnodeId> = returned.map(|fnode| self.called(fnode)).collect();
        for fnode in &returned {
            let below = |&other: &FnodeId| !self.ftree.path(other).contains(fnode);
            let running = self.running.iter().copied().filter(below).collect();
            let calls = self
                .calls
                .keys()
                .copied()
                .filter(below)
                .collect::<BTreeSet<_>>();
            self.running = running;
            self.calls.retain(|known, _| calls.contains(known));
        }
        !returned.is_empty()
    }

    /// The call that a running function was reached by: where it was by jumps, that of the function which jumped first.
    fn called(&self, fnode: FnodeId) -> FnodeId {
        let path = self.ftree.path(fnode).into_iter().rev();
        let jumped = path.skip(1).take_while(|at| !self.running.contains(at));
        jumped.last().unwrap_or(fnode)
    }

    /// The callees to be gone into before the next round: those that take much of the time in few calls, and those in which threads
    /// were seen to wait.
    #[must_use]
    pub fn to_expand(&self, doing: &dyn Fn(&Share) -> Doing) -> Vec<FnodeId> {
        let shares = self.worthwhile(doing);
        let gone_into = shares.iter().filter(|share| match share.of {
            ShareOf::Itself => false,
            ShareOf::Rare => true,
            ShareOf::Frequent => doing(share) == Doing::SeenToWait,
        });
        gone_into
            .flat_map(|share| &share.fnodes)
            .copied()
            .filter(|fnode| self.may_expand(*fnode))
            .collect()
    }

    /// What is to be analysed: the worthwhile callees that are called often, the largest first. What was gone into for having been seen
    /// to wait, and does something else for a tenth of its time or more, stands for what is below it.
    #[must_use]
    pub fn to_analyse(&self, doing: &dyn Fn(&Share) -> Doing) -> Vec<Share> {
        let least = self.work(doing).0 as f64 * WORTHWHILE;
        let gone_into = self.often_gone_into(doing);
        let mut found: Vec<Share> = self.worthwhile(doing);
        found.retain(|share| {
            let path = self.ftree.path(share.fnodes[0]);
            let is_below = |above: &Share| above.fnodes.iter().any(|fnode| path.contains(fnode));
            share.of == ShareOf::Frequent && !gone_into.iter().any(is_below)
        });
        let gone_into = gone_into.into_iter();
        found.extend(gone_into.filter(|share| share.total.time.0 as f64 >= least));
        found.sort_by_key(|share| std::cmp::Reverse(share.total.time));
        found
    }

    /// The callees that are called often and were gone into all the same, as far as they do not only wait. None is below another.
    fn often_gone_into(&self, doing: &dyn Fn(&Share) -> Doing) -> Vec<Share> {
        let shares = self.shares();
        let waits = shares.iter().filter(|share| doing(share) == Doing::Waits);
        let waits: Vec<&Share> = waits.collect();
        let waited = |fnodes: &[FnodeId]| -> u64 {
            let is_below = |share: &&&Share| {
                let path = self.ftree.path(share.fnodes[0]);
                fnodes.iter().any(|fnode| path.contains(fnode))
            };
            let below = waits.iter().filter(is_below);
            below.map(|share| share.total.time.0).sum()
        };
        let inside = self.inside().into_iter();
        let inside = inside.filter(|&fnode| fnode != FnodeId::ROOT && !self.is_running(fnode));
        let mut found = self.grouped(inside);
        found.retain(|share| {
            let all = share.total.time.0 as f64;
            share.of == ShareOf::Frequent && (waited(&share.fnodes) as f64) < all * NOTHING_ELSE
        });
        let fnodes: BTreeSet<FnodeId> = found
            .iter()
            .flat_map(|share| &share.fnodes)
            .copied()
            .collect();
        found.retain(|share| {
            let mut above = self.ftree.path(share.fnodes[0]);
            above.pop();
            !above.iter().any(|fnode| fnodes.contains(fnode))
        });
        found
    }

    fn may_expand(&self, fnode: FnodeId) -> bool {
        let fnode_of = self.ftree.fnode(fnode);
        !self.calls.contains_key(&fnode)
            && matches!(fnode_of.callee, Callee::Function(_))
            && fnode_of.depth < self.max_depth
    }

    /// Where the time of the round went, the largest part first.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        let mut called: Vec<FnodeId> = Vec::new();
        let mut own: BTreeMap<FnodeId, u64> = BTreeMap::new();
        for fnode in self.inside() {
            let all = match self.is_running(fnode) {
                true => 0,
                false => self.total(fnode).time.0,
            };
            let children = self.ftree.fnode(fnode).children.iter();
            let children: Vec<FnodeId> = children
                .copied()
                .filter(|&child| !self.is_running(child))
                .collect();
            let below: u64 = children.iter().map(|&child| self.total(child).time.0).sum();
            own.insert(fnode, all.saturating_sub(below));
            called.extend(children.iter().filter(|&&child| !self.is_inside(child)));
        }
        // A thread has been in the innermost of its running functions all the time.
        for (inside, time) in self.innermost() {
            *own.entry(inside).or_default() += time.0;
        }
        let itself = own.into_iter().filter(|&(_, time)| time > 0);
        let mut shares = self.grouped(called.into_iter());
        shares.extend(itself.map(|(fnode, time)| Share {
            fnodes: vec![fnode],
            of: ShareOf::Itself,
            share: self.part_of_all(Ticks(time)),
            total: Total {
                time: Ticks(time),
                ..Total::default()
            },
        }));
        shares.retain(|share| share.total.time.0 > 0);
        shares.sort_by_key(|share| std::cmp::Reverse(share.total.time));
        shares
    }

    /// Fnodes that were called, each callee of a function as one share.
    fn grouped(&self, fnodes: impl Iterator<Item = FnodeId>) -> Vec<Share> {
        let mut groups: BTreeMap<(Option<FnodeId>, Callee), Share> = BTreeMap::new();
        for fnode in fnodes {
            let total = self.total(fnode);
            if total.calls == 0 {
                continue;
            }
            let known = self.ftree.fnode(fnode);
            let share = groups
                .entry((known.parent, known.callee))
                .or_insert_with(|| Share {
                    fnodes: Vec::new(),
                    of: ShareOf::Rare,
                    share: 0.0,
                    total: Total::default(),
                });
            share.fnodes.push(fnode);
            share.total.time = share.total.time + total.time;
            share.total.calls += total.calls;
            share.total.max = share.total.max.max(total.max);
        }
        let mut shares: Vec<Share> = groups.into_values().collect();
        for share in &mut shares {
            share.share = self.part_of_all(share.total.time);
            if self.is_frequent(share.total.calls) {
                share.of = ShareOf::Frequent;
            }
        }
        shares
    }

    fn part_of_all(&self, time: Ticks) -> f64 {
        time.0 as f64 / self.time.0.max(1) as f64
    }

    /// Where many threads are measured their time passes faster than the clock's. Windows that are not over yet tell nothing of what
    /// has passed of them.
    fn is_frequent(&self, calls: u64) -> bool {
        let known = self.own.keys().filter(|tid| self.stacks.contains_key(tid));
        let threads = known.count().max(1) as u64;
        let passed = self
            .until
            .0
            .saturating_sub(self.since.0)
            .min(self.time.0 / threads)
            .max(1);
        let a_second =
            u128::from(calls) * u128::from(self.hz.get()) * u128::from(SECONDS_FOR_START);
        a_second >= u128::from(self.start_ops) * u128::from(passed)
    }

    fn total(&self, fnode: FnodeId) -> Total {
        self.sums.get(&fnode).copied().unwrap_or_default()
    }

    /// Running, and not called anew since.
    fn is_running(&self, fnode: FnodeId) -> bool {
        self.running.contains(&fnode) && self.total(fnode).calls == 0
    }

    fn is_inside(&self, fnode: FnodeId) -> bool {
        self.calls.get(&fnode) == Some(&Calls::Measured)
    }

    /// The fnodes whose calls are measured.
    fn inside(&self) -> Vec<FnodeId> {
        let all = self.calls.iter();
        all.filter(|&(_, calls)| *calls == Calls::Measured)
            .map(|(&fnode, _)| fnode)
            .collect()
    }
}

#[cfg(test)]
mod tests;
