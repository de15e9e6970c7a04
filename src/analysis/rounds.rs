//! A function with very many calls is gone over in portions: blocks of it, one after the other.
//!
//! DARC (SIGMETRICS 2008, section 3.3): where measuring all calls at once would cost too much, blocks are looked at first.
//! Here a block's calls are measured while those of the others count as the function's own time. A decision for callees ends
//! it; as long as the function itself is among the causes, its time may be that of calls in another portion, and the
//! next one is measured. Each peak goes at its own pace.

use std::collections::BTreeSet;

use darc_tracer::record::{FnodeId, Ticks};

use super::descent::{Analysis, Request};
use super::ftree::{Expansion, Fnode, PathState};

impl Analysis {
    /// Says in how many portions the calls of an fnode are measured, before [`Analysis::add_child`] adds those that are
    /// wanted.
    ///
    /// # Panics
    /// When it is no fnode of this analysis.
    pub fn set_rounds(&mut self, fnode: FnodeId, rounds: usize) {
        self.ftree.fnode_mut(fnode).rounds = rounds.max(1);
    }

    /// The portions of an fnode's calls that peaks are at.
    #[must_use]
    pub fn rounds_wanted(&self, fnode: FnodeId) -> BTreeSet<usize> {
        let fnode = self.ftree.fnode(fnode);
        let open = fnode.records().filter(|(_, record)| record.state.is_open());
        open.map(|(_, record)| record.round.min(fnode.rounds - 1))
            .collect()
    }

    /// Says in which portion a call of its parent is.
    ///
    /// # Panics
    /// When it is no fnode of this analysis.
    pub fn set_in_round(&mut self, child: FnodeId, round: usize) {
        self.ftree.fnode_mut(child).in_round = round;
    }

    /// Whether calls of an fnode are left that have not been measured for a peak.
    pub(super) fn has_more(&self, id: FnodeId, peak: u32) -> bool {
        let fnode = self.ftree.fnode(id);
        fnode.record(peak).round + 1 < fnode.rounds
    }

    /// Goes on to the next portion.
    pub(super) fn next_round(&mut self, id: FnodeId, peak: u32) {
        for child in self.ftree.fnode(id).children.clone() {
            let record = self.ftree.fnode_mut(child).record_mut(peak);
            record.before = record.maxcount;
        }
        let fnode = self.ftree.fnode_mut(id);
        fnode.expansion = Expansion::Requested;
        let record = fnode.record_mut(peak);
        record.round += 1;
        record.self_maxcount = 0;
        record.decision_ops = 0;
        record.self_time = Ticks(0);
        record.loop_time = Ticks(0);
        self.set_state(id, peak, PathState::Waiting);
        self.requests.push_back(Request::Expand(id));
    }

    /// Whether a call is measured for a decision at its parent.
    pub(super) fn is_needed_above(&self, fnode: &Fnode) -> bool {
        let Some(parent) = fnode.parent else {
            return false;
        };
        let parent = self.ftree.fnode(parent);
        let mut open = parent
            .records()
            .filter(|(_, record)| record.state.is_open());
        open.any(|(peak, _)| parent.measures(fnode, peak))
    }
}

#[cfg(test)]
mod tests {
    use darc_tracer::record::{Arguments, Op, SiteId, Touched, Tsc};

    use super::super::ftree::{Callee, CalleeId};
    use super::super::params::Params;
    use super::super::root_cause::CauseKind;
    use super::*;

    const CALLS: u32 = 6;
    const PORTION: u32 = 2;

    /// f0 makes six calls, measured two at a time; `times` are those of the calls in an op of 10,000 cycles. Which of them
    /// become causes, and whether f0 itself does; and how many were measured at most at a time.
    fn analysed(times: [u64; CALLS as usize]) -> (Vec<u32>, bool, usize) {
        let mut analysis = Analysis::new(Params {
            start_ops: 1,
            decision_ops: 5,
            ..Params::default()
        });
        let mut measured = Vec::new();
        let mut most = 0;
        for now in 0..200 {
            let touched = |&(child, call): &(FnodeId, u32)| Touched {
                fnode: child,
                max: Ticks(times[call as usize]),
                max_start: Tsc(now * 100_000),
                sum: Ticks(times[call as usize]),
                count: 1,
            };
            analysis.op(&Op {
                tid: 1,
                start: Tsc(now * 100_000),
                end: Tsc(now * 100_000 + 10_000),
                latency: Ticks(10_000),
                arguments: Arguments::default(),
                touched: measured.iter().map(touched).collect(),
            });
            for request in analysis.requests() {
                let Request::Expand(fnode) = request else {
                    continue;
                };
                if fnode != FnodeId::ROOT {
                    // The callees call nothing.
                    analysis.expanded(fnode, Tsc(now * 100_000 + 50_000));
                    continue;
                }
                analysis.set_rounds(fnode, (CALLS / PORTION) as usize);
                for round in analysis.rounds_wanted(fnode) {
                    for call in (0..CALLS).filter(|call| (call / PORTION) as usize == round) {
                        let callee = Callee::Function(CalleeId(call));
                        let child = analysis.add_child(fnode, SiteId(call), callee);
                        analysis.set_in_round(child, round);
                    }
                }
                analysis.expanded(fnode, Tsc(now * 100_000 + 50_000));
            }
            let needed = analysis.needed_probes().filter(|&id| id != FnodeId::ROOT);
            let call = |id| match analysis.ftree().fnode(id).callee {
                Callee::Function(CalleeId(call)) => (id, call),
                _ => unreachable!("all are functions"),
            };
            measured = needed.map(call).collect();
            most = most.max(measured.len());
        }
        let mut calls = Vec::new();
        let mut itself = false;
        for cause in analysis.root_causes(1) {
            assert_eq!(cause.kind, CauseKind::Function);
            match analysis.ftree().fnode(*cause.path.last().unwrap()).callee {
                Callee::Function(CalleeId(call)) => calls.push(call),
                _ => itself = true,
            }
        }
        (calls, itself, most)
    }

    #[test]
    fn a_cause_in_any_portion_is_found_with_few_probes() {
        for cause in 0..CALLS {
            let mut times = [100; CALLS as usize];
            times[cause as usize] = 9_000;
            let (calls, itself, most) = analysed(times);
            assert_eq!((calls, itself), (vec![cause], false));
            assert!(most <= PORTION as usize, "{most}");
        }
    }

    #[test]
    fn the_function_itself_is_blamed_when_all_portions_have_been_looked_at() {
        assert!(analysed([100; CALLS as usize]).0.is_empty());
        assert!(analysed([100; CALLS as usize]).1);
    }

    #[test]
    fn causes_in_two_portions_are_both_found() {
        let (calls, itself, _) = analysed([4_700, 10, 10, 10, 4_700, 10]);
        assert_eq!((calls, itself), (vec![0, 4], false));
    }
}
