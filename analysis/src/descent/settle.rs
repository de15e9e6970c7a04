//! What follows from every change: the end of the analysis, probes and ops that are needed no more.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use darc_record::{FnodeId, Ticks};

use crate::descent::ftree::{Expansion, Fnode, Probe};
use crate::descent::{Analysis, Request};

impl Analysis {
    /// After every change: finish, or take away what no peak needs any more.
    pub(crate) fn settle(&mut self) {
        if self.finished {
            return;
        }
        if self.is_answered() && !self.goes_on() {
            self.finished = true;
            tracing::debug!(target: "descent", ops = self.profile.count(), "all paths have ended");
            self.requests.push_back(Request::Finished);
        }
        if self.is_answered() {
            return;
        }
        self.retire();
        self.filter_ops();
    }

    /// Asks anew for what a new engine has to be asked for: it has not heard which ops are of interest.
    pub fn next_process(&mut self) {
        self.filter.clear();
        self.side_by_side.next_process();
        if !self.finished {
            self.filter_ops();
        }
    }

    /// Asks for the ops of peaks that still descend, and for a few of every ended peak wherever another
    /// one has begun to measure: what slow ops do means little without what fast ops do there.
    pub(crate) fn filter_ops(&mut self) {
        let filter: Vec<RangeInclusive<Ticks>> = self
            .peaks
            .iter()
            .filter(|at| match at.open {
                None => false,
                // Ops that cannot be resolved would never be enough.
                Some(0) => {
                    at.unresolved < self.params.decision_ops
                        && self.is_contrast_wanted(at.peak.number)
                }
                Some(_) => true,
            })
            .filter_map(|at| {
                let (first, _) = self.params.resolution.bounds(at.peak.first_bucket)?;
                let (_, last) = self.params.resolution.bounds(at.peak.last_bucket)?;
                // Ops that are shorter than can be told are counted in the bucket of the shortest that can.
                let shortest = at.peak.contains(self.bucket(Ticks(0)));
                let is_cut = self.params.range.is_none();
                let first = match is_cut && self.blur.is_estimated() {
                    true => self.behind_shorter_peaks(first),
                    false => first,
                };
                Some(if shortest { Ticks(0) } else { first }..=last)
            })
            .collect();
        if !filter.is_empty() && filter != self.filter {
            tracing::debug!(target: "descent", ?filter, "changed which ops are of interest (cycles)");
            self.filter.clone_from(&filter);
            self.requests.push_back(Request::FilterChanged(filter));
        }
    }

    /// From where on no peak is until `first`: so short may the ops be of which much was taken out.
    fn behind_shorter_peaks(&self, first: Ticks) -> Ticks {
        let bounds = |bucket| self.params.resolution.bounds(bucket);
        let ends = self.peaks.iter().filter_map(|at| {
            let (_, last) = bounds(at.peak.last_bucket)?;
            (last < first).then(|| Ticks(last.0 + 1))
        });
        ends.max().unwrap_or(Ticks(0))
    }

    /// Whether an fnode that collects for other peaks, or a call in the batch of its calls that is measured, has seen
    /// fewer than `decision_ops` ops of this one.
    fn is_contrast_wanted(&self, peak: u32) -> bool {
        self.measured.iter().any(|&id| {
            let fnode = self.ftree.fnode(id);
            let seen = fnode.record(peak).measured_ops;
            let missed = |child: &Fnode| match child.is_in_place() {
                true => child.record(peak).missed_ops,
                false => 0,
            };
            let children = fnode.children.iter().map(|&child| self.ftree.fnode(child));
            let most = children.map(missed).max().unwrap_or(0);
            seen.saturating_sub(most) < self.params.decision_ops
                && fnode.records().any(|(_, record)| record.state.is_open())
        })
    }

    /// A probe is needed while its parent collects (or is about to), and while anything at or below its
    /// own fnode does: a deeper decision needs the latency of every fnode above it.
    pub(crate) fn retire(&mut self) {
        let open = self.leading_to_open();
        let is_open = |id: FnodeId| {
            let records = self.ftree.fnode(id).records();
            records
                .into_iter()
                .any(|(_, record)| record.state.is_open())
        };
        let retired: Vec<FnodeId> = self
            .ftree
            .fnodes()
            .filter(|fnode| fnode.probe == Probe::Wanted && !open[fnode.id.0 as usize])
            .filter(|fnode| fnode.parent.is_some() && !self.is_needed_above(fnode))
            .map(|fnode| fnode.id)
            .collect();
        // Where the parent's decision is still open, only the next batch of its calls takes their place.
        let parents = self.ftree.fnodes().map(|fnode| fnode.id);
        let going_on: BTreeSet<FnodeId> = parents.filter(|&id| is_open(id)).collect();
        for &id in &retired {
            let fnode = self.ftree.fnode_mut(id);
            fnode.probe = Probe::Retired;
            if let Some(parent) = fnode.parent.filter(|parent| !going_on.contains(parent)) {
                let above = self.ftree.fnode_mut(parent);
                if matches!(above.expansion, Expansion::Complete(_)) {
                    above.expansion = Expansion::Partial;
                }
                self.measured.retain(|&measured| measured != parent);
            }
        }
        if !retired.is_empty() {
            let fnodes: Vec<u32> = retired.iter().map(|fnode| fnode.0).collect();
            tracing::debug!(target: "descent", ?fnodes, "retired probes");
            self.requests.push_back(Request::Retire(retired));
        }
    }

    /// By fnode id: whether a decision is open at it or anywhere below.
    pub(crate) fn leading_to_open(&self) -> Vec<bool> {
        let mut open = vec![false; self.ftree.len() + 1];
        for fnode in self.ftree.fnodes().rev() {
            let here = fnode.records().any(|(_, record)| record.state.is_open());
            open[fnode.id.0 as usize] |= here;
            if let Some(parent) = fnode.parent {
                open[parent.0 as usize] |= open[fnode.id.0 as usize];
            }
        }
        open
    }
}
