//! Decisions: counting who takes the time of each op, and descending into those who do most often.

use darc_record::{FnodeId, Op, Ticks, Touched};

use crate::descent::contribute::{Contributors, certainly_largest, divide, threshold};
use crate::descent::ftree::{Callee, Expansion};
use crate::descent::peak_record::{Outcome, PathState, Stop};
use crate::descent::{Analysis, Request};

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
    /// portion of them, count, so that callees can be compared with one another and with the fnode itself.
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

    /// Raises the maxcounts of the main contributors to one fnode's longest call in the op.
    ///
    /// Where a peak has several causes, an op in which the fnode takes next to nothing is of the peak for another
    /// reason, and says nothing about what takes the time where the fnode is a cause.
    pub(crate) fn contribute(&mut self, op: &Op, peak: u32, mut call: Touched) -> Contribution {
        let least = self.ftree.fnode(call.fnode).record(peak).least_part;
        // Half of it is within what a cause varies by, as within a bucket.
        if least.is_some_and(|least| part(call.max, op) < least / 2) {
            return Contribution::Silent;
        }
        let mut callees = Vec::new();
        let fnode = self.ftree.fnode(call.fnode);
        let measured = |child: &&FnodeId| fnode.measures(self.ftree.fnode(**child), peak);
        for &child in fnode.children.iter().filter(measured) {
            let Some(at) = self.touched_at[child.0 as usize] else {
                continue;
            };
            match self.is_told_above(child, peak) {
                true => call.max = call.max.saturating_sub(op.touched[at].max),
                false => callees.push(&op.touched[at]),
            }
        }
        // Without the time away another call is the longest.
        if let Some(Some(at)) = self.touched_at.get(call.fnode.0 as usize) {
            call.max = call.max.max(op.touched[*at].max);
        }
        let shares = divide(&call, callees);
        let contributors =
            certainly_largest(&shares, self.params.resolution, self.noise.of_caller());
        if contributors == Contributors::default() && self.noise.of_caller() > Ticks(0) {
            return Contribution::Unresolved;
        }
        let record = self.ftree.fnode_mut(call.fnode).record_mut(peak);
        record.decision_ops = record.decision_ops.saturating_add(1);
        if contributors.own {
            record.self_maxcount = record.self_maxcount.saturating_add(1);
            record.self_time = record.self_time + shares.own;
            record.loop_time = record.loop_time + shares.repeated;
        }
        for callee in contributors.callees {
            let share = shares.callees.iter().find(|(fnode, _)| *fnode == callee);
            let part = share.map_or(0, |&(_, share)| part(share, op));
            let record = self.ftree.fnode_mut(callee).record_mut(peak);
            record.maxcount = record.maxcount.saturating_add(1);
            record.least_part = Some(record.least_part.map_or(part, |least| least.min(part)));
        }
        Contribution::Counted
    }

    /// Decides wherever `decision_ops` ops of the peak have been collected.
    pub(crate) fn decide(&mut self, peak: u32) {
        let enough = self.params.decision_ops.max(1);
        let due: Vec<FnodeId> = self
            .measured
            .iter()
            .copied()
            .filter(|&fnode| {
                let record = self.ftree.fnode(fnode).record(peak);
                record.state == PathState::Collecting && record.decision_ops >= enough
            })
            .collect();
        if due.is_empty() {
            return;
        }
        for fnode in due {
            self.decide_at(fnode, peak);
        }
        self.settle();
    }

    /// One decision: the function itself, callees, or both.
    pub(crate) fn decide_at(&mut self, id: FnodeId, peak: u32) {
        self.peaks[peak as usize - 1].unresolved = 0;
        let fnode = self.ftree.fnode(id);
        let own = fnode.record(peak).self_maxcount;
        let known = |child: &FnodeId| self.ftree.fnode(*child).record(peak);
        let maxcount = |child: &FnodeId| known(child).maxcount.saturating_sub(known(child).before);
        let most = fnode.children.iter().map(maxcount).fold(own, u64::max);
        let threshold = threshold(most, self.params.maxcount_percentage);
        let measured = |child: &&FnodeId| fnode.measures(self.ftree.fnode(**child), peak);
        let mut chosen: Vec<FnodeId> = fnode.children.iter().filter(measured).copied().collect();
        chosen.retain(|child| maxcount(child) >= threshold);
        // With nothing measurable anywhere there is nothing to descend into: it ends at the function.
        let itself = own >= threshold || chosen.is_empty();
        let begun = |child: &FnodeId| known(child).state != PathState::NotChosen;
        let outcome = match (
            itself,
            chosen.is_empty() && !fnode.children.iter().any(begun),
        ) {
            (_, true) => Outcome::Itself,
            (false, false) => Outcome::Callees,
            (true, false) => Outcome::Both,
        };
        chosen.retain(|child| !begun(child));
        match itself && self.has_more(id, peak) {
            true => self.next_round(id, peak),
            false => self.set_state(id, peak, PathState::Decided(outcome)),
        }
        for child in chosen {
            self.begin_path(child, peak);
        }
    }

    /// An fnode has been chosen for a peak: go on below it, or end there.
    pub(crate) fn begin_path(&mut self, id: FnodeId, peak: u32) {
        let fnode = self.ftree.fnode(id);
        let state = match (&fnode.callee, &fnode.expansion) {
            (Callee::Syscall(_) | Callee::Absence(_), _) => PathState::Ended(Stop::SelfTime),
            _ if fnode.depth >= self.params.max_depth => PathState::Ended(Stop::MaxDepth),
            (_, Expansion::Impossible(why)) => PathState::Ended(why.clone()),
            (_, Expansion::Requested) => PathState::Waiting,
            // Where its calls are measured in portions, other peaks may have left the first one.
            (_, Expansion::Complete(_)) if !fnode.is_in_portions() => PathState::Collecting,
            (_, Expansion::None | Expansion::Partial | Expansion::Complete(_)) => {
                self.ftree.fnode_mut(id).expansion = Expansion::Requested;
                self.requests.push_back(Request::Expand(id));
                PathState::Waiting
            }
        };
        self.set_state(id, peak, state);
    }

    pub(crate) fn set_state(&mut self, fnode: FnodeId, peak: u32, state: PathState) {
        let record = self.ftree.fnode_mut(fnode).record_mut(peak);
        self.steps += 1;
        self.vain.remove(&(fnode, peak));
        let before = usize::from(record.state.is_open());
        let after = usize::from(state.is_open());
        record.state = state;
        if let Some(open) = &mut self.peaks[peak as usize - 1].open {
            *open = *open + after - before;
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

/// How much of an op that is, in millionths.
fn part(time: Ticks, op: &Op) -> u32 {
    const WHOLE: u128 = 1_000_000;
    let part = u128::from(time.0) * WHOLE / u128::from(op.latency.0.max(1));
    part.min(WHOLE) as u32
}
