//! Decisions: adding up who takes the time of each op, and descending into those who take most of it.

use darc_record::{FnodeId, Op, Ticks, Touched};

use crate::descent::contribute::{Shares, certainly, divide};
use crate::descent::ftree::{Callee, Expansion};
use crate::descent::peak_record::{Outcome, PathState, Stop};
use crate::descent::recursion;
use crate::descent::root_cause::{is_told_at_f0, part_of, shares};
use crate::descent::share::{self, Estimate, Interval, Named, Weight, is_look, limit, named};
use crate::descent::{Analysis, Request};
use crate::off_cpu::apart::long_without;

/// So many ops of a peak are no chance.
const SOME: u64 = 3;

/// What an op said about an fnode's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contribution {
    /// Who takes it.
    Counted,
    /// Nothing: it was not called, or took next to nothing.
    Silent,
    /// Nothing: the measurement is not exact enough.
    Unresolved,
}

impl Analysis {
    /// Adds an op to the statistics of an fnode's callees. Only ops in which all of them were measured, or all of a
    /// batch of them, count, so that callees can be compared with one another and with the fnode itself.
    pub(crate) fn measure(&mut self, op: &Op, peak: u32, fnode: FnodeId, call: Option<&Touched>) {
        let record = self.ftree.fnode_mut(fnode).record_mut(peak);
        record.measured_ops = record.measured_ops.saturating_add(1);
        if let Some(call) = call {
            record.measured_time = record.measured_time + call.sum;
        }
        for index in 0..self.ftree.fnode(fnode).children.len() {
            let id = self.ftree.fnode(fnode).children[index];
            let child = self.ftree.fnode_mut(id);
            if !child.is_in_place() {
                let record = child.record_mut(peak);
                record.missed_ops = record.missed_ops.saturating_add(1);
            } else if let (Some(at), Some(_)) = (self.touched_at[id.0 as usize], call) {
                child.record_mut(peak).stats.add(&op.touched[at]);
            }
        }
    }

    /// Adds what an op says of who takes the time of one fnode: of all its calls in the op.
    ///
    /// Where a peak has several causes, an op in which the fnode takes next to nothing is of the peak for another
    /// reason, and says nothing about what takes the time where the fnode is a cause.
    pub(crate) fn contribute(&mut self, op: &Op, peak: u32, mut call: Touched) -> Contribution {
        let least = self.ftree.fnode(call.fnode).record(peak).least_part;
        // Half of it is within what a cause varies by.
        if least.is_some_and(|least| part(call.sum, op) < least / 2) {
            return Contribution::Silent;
        }
        let mut callees = Vec::new();
        let fnode = self.ftree.fnode(call.fnode);
        let measured = |child: &&FnodeId| fnode.measures(self.ftree.fnode(**child), peak);
        for &child in fnode.children.iter().filter(measured) {
            let Some(at) = self.touched_at[child.0 as usize] else {
                continue;
            };
            match is_told_at_f0(&self.ftree, child) {
                true => call = without(call, op.touched[at].sum),
                false => callees.push(&op.touched[at]),
            }
        }
        // Without the time away another call is the longest.
        if let Some(Some(at)) = self.touched_at.get(call.fnode.0 as usize) {
            let rest = &op.touched[*at];
            (call.max, call.sum) = (call.max.max(rest.max), call.sum.max(rest.sum));
        }
        let long = |at| recursion::long(&self.ftree, at, self.noise.long());
        let by_site = divide(&call, callees, long);
        let shares = self.by_callee(&by_site, call.sum);
        let noise = self.noise.of_caller();
        let Some((shares, contributors)) = certainly(shares, call.sum, noise) else {
            return Contribution::Unresolved;
        };
        self.add_shares(peak, &call, &shares);
        // Of several calls it is known for the longest alone how it waited.
        if call.count == 1 && by_site.calls == by_site.callees.len() as u64 {
            self.add_waiting(peak, call.fnode, shares.own);
        }
        let record = self.ftree.fnode_mut(call.fnode).record_mut(peak);
        if contributors.own {
            record.self_maxcount = record.self_maxcount.saturating_add(1);
        }
        for callee in contributors.callees {
            self.count_contributor(op, peak, callee, &by_site);
        }
        Contribution::Counted
    }

    /// All calls of the same function are one part of the time.
    fn by_callee(&self, by_site: &Shares, whole: Ticks) -> Shares {
        let mut callees: Vec<(FnodeId, Ticks)> = Vec::new();
        for &(fnode, time) in &by_site.callees {
            let first = self.ftree.first_alike(fnode);
            match callees.iter_mut().find(|(known, _)| *known == first) {
                Some((_, sum)) => *sum = (*sum + time).min(whole),
                None => callees.push((first, time)),
            }
        }
        Shares {
            callees,
            ..by_site.clone()
        }
    }

    /// Adds the parts of an fnode's time in one op.
    fn add_shares(&mut self, peak: u32, call: &Touched, shares: &Shares) {
        let noise = self.noise.of_caller();
        let record = self.ftree.fnode_mut(call.fnode).record_mut(peak);
        record.decision_ops = record.decision_ops.saturating_add(1);
        record.whole.add(call.sum, call.sum);
        record.own.add(shares.own, call.sum);
        record.loop_time = record.loop_time + shares.of_loop(noise);
        for &(callee, time) in &shares.callees {
            let record = self.ftree.fnode_mut(callee).record_mut(peak);
            record.part.add(time, call.sum);
        }
    }

    /// Adds how an fnode's own time in the op at hand was spent.
    fn add_waiting(&mut self, peak: u32, fnode: FnodeId, own: Ticks) {
        if let Some(blocked) = self.blocked_in(fnode) {
            let record = self.ftree.fnode_mut(fnode).record_mut(peak);
            record.own_seen = record.own_seen + own;
            record.own_blocked = record.own_blocked + blocked.min(own);
        }
    }

    /// Counts an op for the longest of the calls that call the same.
    fn count_contributor(&mut self, op: &Op, peak: u32, first: FnodeId, by_site: &Shares) {
        let alike = by_site.callees.iter().copied();
        let alike = alike.filter(|&(fnode, _)| self.ftree.first_alike(fnode) == first);
        let Some((callee, time)) = alike.max_by_key(|&(_, time)| time) else {
            return;
        };
        let part = part(time, op);
        let record = self.ftree.fnode_mut(callee).record_mut(peak);
        record.maxcount = record.maxcount.saturating_add(1);
        record.least_part = Some(record.least_part.map_or(part, |least| least.min(part)));
    }

    /// Decides wherever the ops of the peak that have been collected tell.
    pub(crate) fn decide(&mut self, peak: u32) {
        let least = self.params.decision_ops.max(1);
        let due = self.measured.iter().copied().filter(|&fnode| {
            let record = self.ftree.fnode(fnode).record(peak);
            record.state == PathState::Collecting && is_look(record.decision_ops, least)
        });
        let mut is_decided = false;
        for fnode in due.collect::<Vec<_>>() {
            is_decided |= self.decide_at(fnode, peak, true);
        }
        if is_decided {
            self.settle();
        }
    }

    /// No ops come any more: what waits for long ones alone is decided without.
    pub fn decide_without_long_ops(&mut self) {
        let least = self.params.decision_ops.max(1);
        loop {
            let waiting = self.ftree.fnodes().flat_map(|fnode| {
                let records = fnode.records().filter(|(_, record)| {
                    record.state == PathState::Collecting && record.decision_ops >= least
                });
                records.map(|(peak, _)| (fnode.id, peak))
            });
            let waiting: Vec<(FnodeId, u32)> = waiting.collect();
            let is_decided = waiting.into_iter().fold(false, |any, (id, peak)| {
                self.decide_at(id, peak, false) || any
            });
            if !is_decided {
                break;
            }
        }
        self.forget_open_ways();
        self.settle();
    }

    /// One decision: the function itself, callees, or both. Whether there were enough ops for it; long ones may be waited
    /// for.
    fn decide_at(&mut self, id: FnodeId, peak: u32, may_wait: bool) -> bool {
        // What had been begun below another function is forgotten with the decision of that.
        if self.ftree.fnode(id).record(peak).state != PathState::Collecting {
            return false;
        }
        if let Some(is_over) = self.check_at(id, peak, may_wait) {
            return is_over;
        }
        let parts = self.parts(id, peak);
        let estimates: Vec<Estimate> = parts.iter().map(|(_, estimate)| *estimate).collect();
        let record = self.ftree.fnode(id).record(peak);
        let at_last = record.decision_ops >= limit(self.params.decision_ops);
        if may_wait && !at_last && self.waits_for_long_ops(id, peak) {
            return false;
        }
        let named = match record.whole.time {
            // With nothing measurable anywhere there is nothing to descend into.
            Ticks(0) => Named::Causes(vec![true]),
            _ => match named(&estimates, at_last) {
                Some(named) => named.of_peak(&estimates, &self.weight(id, peak)),
                None => return false,
            },
        };
        self.peaks[peak as usize - 1].unresolved = 0;
        tracing::debug!(
            target: "descent",
            fnode = id.0,
            peak,
            ops = record.decision_ops,
            own = record.self_maxcount,
            callees = ?self.maxcounts(id, peak),
            ?parts,
            ?named,
            "decided"
        );
        self.take(id, peak, &parts, named);
        true
    }

    /// Whether an fnode's decision is put off until long ops come.
    pub(crate) fn waits_for_long_ops(&self, id: FnodeId, peak: u32) -> bool {
        let waits = self.params.decision_ops.saturating_mul(share::LONG_OPS);
        let has_few = self.ftree.fnode(id).record(peak).decision_ops < waits;
        has_few && self.lacks_long_ops(id, peak)
    }

    /// Whether ops of the peak that are longer than all that were looked at have much of its time: what takes it in these is not known.
    pub(crate) fn lacks_long_ops(&self, id: FnodeId, peak: u32) -> bool {
        let seen = self.ftree.fnode(id).record(peak).longest_bucket;
        let of = &self.peaks[peak as usize - 1].peak;
        if seen >= of.last_bucket {
            return false;
        }
        let all = self.profile.range(of.first_bucket, of.last_bucket);
        let longer = self.profile.range(seen + 1, of.last_bucket);
        longer.ops >= SOME && longer.total.0 as f64 >= share::SOME_TIME * all.total.0 as f64
    }

    /// Which part of the peak's time and of its ops a function has, with all calls of it that its caller makes: each may have
    /// a path of its own.
    pub(crate) fn weight(&self, id: FnodeId, peak: u32) -> Weight {
        let path = self.ftree.path(id);
        let mut weight = Weight {
            time: 1.0,
            ops: 1.0,
        };
        for pair in path.windows(2) {
            let ops = self.ftree.fnode(pair[0]).record(peak).decision_ops.max(1) as f64;
            let (mut time, mut hits) = (0.0, 0);
            for at in self.alike(self.ftree.first_alike(pair[1])) {
                let record = self.ftree.fnode(at).record(peak);
                time += part_of(&self.ftree, peak, pair[0], at);
                hits += record.maxcount.saturating_sub(record.before);
            }
            weight.time *= f64::min(time, 1.0);
            weight.ops *= (hits as f64 / ops).min(1.0);
        }
        weight
    }

    /// Goes on as was decided.
    pub(crate) fn take(
        &mut self,
        id: FnodeId,
        peak: u32,
        parts: &[(Option<FnodeId>, Estimate)],
        named: Named,
    ) {
        let (is_spread, named) = match named {
            Named::None => (true, Vec::new()),
            Named::Causes(named) => (false, named),
        };
        let causes = parts.iter().zip(named).filter(|&(_, is_cause)| is_cause);
        let causes = causes.map(|((part, _), _)| *part);
        let is_burst =
            |part: &Option<FnodeId>| part.is_some_and(|at| self.is_small_in_all(at, peak));
        let causes: Vec<Option<FnodeId>> = causes.filter(|part| !is_burst(part)).collect();
        // Of what is left of the time nothing is known.
        let is_spread = is_spread || causes.is_empty();
        let itself = causes.contains(&None);
        let chosen = causes.into_iter().flatten();
        let mut chosen: Vec<FnodeId> = chosen.flat_map(|at| self.followed(at, peak)).collect();
        let ways = match is_spread {
            true => self.ways(id, peak, parts),
            false => Vec::new(),
        };
        chosen.extend(&ways);
        self.confirm_early(id, peak, &chosen);
        let fnode = self.ftree.fnode(id);
        let begun = |child: &FnodeId| self.ftree.fnode(*child).record(peak).is_chosen();
        let any = ways.is_empty() && (!chosen.is_empty() || fnode.children.iter().any(begun));
        let outcome = match (itself, any) {
            (true, true) => Outcome::Both,
            (false, true) => Outcome::Callees,
            (false, false) if is_spread => Outcome::Spread,
            (_, false) => Outcome::Itself,
        };
        chosen.retain(|child| !begun(child));
        match (itself || is_spread) && self.has_more(id, peak) {
            true => self.next_batch(id, peak),
            false => self.set_state(id, peak, PathState::Decided(outcome)),
        }
        self.early.extend(ways.into_iter().map(|way| (way, peak)));
        for child in chosen {
            self.begin_path(child, peak);
        }
    }

    /// The parts of an fnode's time, with what is known of each: the function itself, then what it calls.
    pub(crate) fn parts(&self, id: FnodeId, peak: u32) -> Vec<(Option<FnodeId>, Estimate)> {
        let fnode = self.ftree.fnode(id);
        let record = fnode.record(peak);
        let (whole, ops) = (&record.whole, record.decision_ops);
        let longest = self.longest_op(peak) * ops as f64 / whole.time.0.max(1) as f64;
        let own = Estimate {
            time: record.own.share(whole, ops),
            ops: Interval::of_ops(record.self_maxcount, ops),
            variance: record.own.share_of_variance(whole, ops),
        };
        let is_first = |child: &&FnodeId| {
            fnode.measures(self.ftree.fnode(**child), peak)
                && self.ftree.first_alike(**child) == **child
                && !is_told_at_f0(&self.ftree, **child)
        };
        let callees = fnode.children.iter().filter(is_first).map(|&first| {
            let alike = self
                .alike(first)
                .map(|at| self.ftree.fnode(at).record(peak));
            let hits = alike.map(|at| at.maxcount.saturating_sub(at.before)).sum();
            let part = &self.ftree.fnode(first).record(peak).part;
            let calls = self.alike(first);
            let calls = calls.map(|at| self.ftree.fnode(at).record(peak).stats.ops);
            // Time away comes in bursts: some ops are always longer for it.
            let variance = match self.ftree.fnode(first).callee {
                Callee::Absence(_) => 0.0,
                _ => part.share_of_variance(whole, ops),
            };
            let estimate = Estimate {
                time: part
                    .share(whole, ops)
                    .of_occurrences(calls.sum(), ops, longest),
                ops: Interval::of_ops(hits, ops),
                variance,
            };
            (Some(first), estimate)
        });
        let own = (None, self.without_other_batches(id, peak, own));
        std::iter::once(own).chain(callees).collect()
    }

    /// How long an op of the peak may be at most, in cycles.
    fn longest_op(&self, peak: u32) -> f64 {
        let last = self.peaks[peak as usize - 1].peak.last_bucket;
        let bounds = self.params.resolution.bounds(last);
        bounds.map_or(f64::INFINITY, |(_, longest)| longest.0 as f64)
    }

    /// When the last batch of an fnode's calls is measured, the time of the earlier ones seems to be its own.
    fn without_other_batches(&self, id: FnodeId, peak: u32, own: Estimate) -> Estimate {
        let fnode = self.ftree.fnode(id);
        let others = fnode.children.iter().copied();
        let others = others.filter(|&child| !fnode.measures(self.ftree.fnode(child), peak));
        let elsewhere: f64 = others
            .map(|child| part_of(&self.ftree, peak, id, child))
            .sum();
        if elsewhere <= 0.0 || self.has_more(id, peak) {
            return own;
        }
        Estimate {
            time: own.time.less(elsewhere),
            ops: Interval::EMPTY,
            variance: 0.0,
        }
    }

    /// The calls that are one part of their parent's time with the first of them.
    fn alike(&self, first: FnodeId) -> impl Iterator<Item = FnodeId> + '_ {
        let parent = self.ftree.fnode(first).parent;
        let siblings = parent.map_or(&[][..], |at| &self.ftree.fnode(at).children);
        let siblings = siblings.iter().copied();
        siblings.filter(move |&at| self.ftree.first_alike(at) == first)
    }

    /// The calls of one part that are gone on with: the longest, until they are most of it. Each may lead elsewhere.
    pub(crate) fn followed(&self, first: FnodeId, peak: u32) -> Vec<FnodeId> {
        let time = |at: &FnodeId| self.ftree.fnode(*at).record(peak).stats.sum.0 as f64;
        let mut alike: Vec<FnodeId> = self.alike(first).collect();
        alike.sort_by(|one, other| time(other).total_cmp(&time(one)));
        let times: Vec<f64> = alike.iter().map(time).collect();
        let weight = self.ftree.fnode(first).parent.map_or(1.0, |parent| {
            let parts = alike
                .iter()
                .map(|&at| part_of(&self.ftree, peak, parent, at));
            {
                let path = shares(&self.ftree, peak, &self.ftree.path(parent));
                path.last().copied().unwrap_or(1.0) * parts.sum::<f64>()
            }
        });
        alike.truncate(share::leading(&times, weight));
        alike
    }

    /// The maxcounts of an fnode's callees that have one, by fnode id; for the log.
    fn maxcounts(&self, id: FnodeId, peak: u32) -> Vec<(u32, u64)> {
        let children = self.ftree.fnode(id).children.iter();
        children
            .map(|child| (child.0, self.ftree.fnode(*child).record(peak).maxcount))
            .filter(|&(_, maxcount)| maxcount > 0)
            .collect()
    }

    /// An fnode has been chosen for a peak: go on below it, or end there.
    pub(crate) fn begin_path(&mut self, id: FnodeId, peak: u32) {
        let fnode = self.ftree.fnode(id);
        let state = match (&fnode.callee, &fnode.expansion) {
            (Callee::Syscall(_) | Callee::Absence(_), _) => PathState::Ended(Stop::SelfTime),
            _ if recursion::is_deep(&self.ftree, peak, id) => PathState::Ended(Stop::Recursion),
            _ if fnode.depth >= self.params.max_depth => PathState::Ended(Stop::MaxDepth),
            // It makes no calls, but page faults struck in it since.
            (_, Expansion::Impossible(Stop::NoCalls)) if !fnode.children.is_empty() => {
                self.request_calls(id)
            }
            (_, Expansion::Impossible(why)) => PathState::Ended(why.clone()),
            (_, Expansion::Requested) => PathState::Waiting,
            // Where its calls are measured in batches, other peaks may have left the first one.
            (_, Expansion::Complete(_)) if !fnode.is_in_batches() => PathState::Collecting,
            (_, Expansion::None | Expansion::Partial | Expansion::Complete(_)) => {
                self.request_calls(id)
            }
        };
        self.set_state(id, peak, state);
    }

    /// Asks for the calls of an fnode's function to be measured.
    fn request_calls(&mut self, id: FnodeId) -> PathState {
        self.ftree.fnode_mut(id).expansion = Expansion::Requested;
        self.requests.push_back(Request::Expand(id));
        PathState::Waiting
    }

    /// Takes a path to another state. A check that ends without enough ops changes nothing.
    pub(crate) fn set_state(&mut self, fnode: FnodeId, peak: u32, state: PathState) {
        let state = match state {
            PathState::Ended(_) => self
                .undo_check(fnode, peak)
                .map_or(state, PathState::Decided),
            state => state,
        };
        let record = self.ftree.fnode_mut(fnode).record_mut(peak);
        tracing::debug!(
            target: "descent",
            fnode = fnode.0,
            peak,
            from = ?record.state,
            to = ?state,
            "a path went on"
        );
        self.steps += 1;
        self.fruitless.remove(&(fnode, peak));
        let is_given_up = state == PathState::Ended(Stop::TooRare);
        let is_left = matches!(state, PathState::Ended(_) | PathState::NotChosen);
        let before = usize::from(record.state.is_open());
        let after = usize::from(state.is_open());
        record.state = state;
        if let Some(open) = &mut self.peaks[peak as usize - 1].open {
            *open = *open + after - before;
        }
        if is_given_up {
            self.give_up_early(fnode, peak);
        } else if is_left {
            self.confirm_early(fnode, peak, &[]);
        }
    }

    pub(crate) fn waiting_for(&self, fnode: FnodeId) -> Vec<u32> {
        self.ftree
            .fnode(fnode)
            .records()
            .filter(|(_, record)| record.state == PathState::Waiting)
            .map(|(peak, _)| peak)
            .collect()
    }
}

/// A call without this part of its time.
fn without(call: Touched, time: Ticks) -> Touched {
    let left = Touched {
        max: call.max.saturating_sub(time),
        sum: call.sum.saturating_sub(time),
        ..call
    };
    Touched {
        long: long_without(&call, &left),
        ..left
    }
}

/// How much of an op that is, in millionths.
fn part(time: Ticks, op: &Op) -> u32 {
    const WHOLE: u128 = 1_000_000;
    let part = u128::from(time.0) * WHOLE / u128::from(op.latency.0.max(1));
    part.min(WHOLE) as u32
}
