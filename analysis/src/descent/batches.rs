//! A function with very many calls is gone over in batches: blocks of it, one after the other.
//!
//! DARC (SIGMETRICS 2008, section 3.3): where measuring all calls at once would cost too much, blocks are looked at first.
//! Here a block's calls are measured while those of the others count as the function's own time. A decision for callees ends
//! it; as long as the function itself is among the causes, its time may be that of calls in another batch, and the
//! next one is measured. Each peak goes at its own pace.

use std::collections::{BTreeSet, HashMap, HashSet};

use darc_record::{FnodeId, SiteId, Ticks};

use crate::descent::ftree::{Callee, Expansion, Fnode};
use crate::descent::peak_record::PathState;
use crate::descent::share::Part;
use crate::descent::{Analysis, Request};

impl Analysis {
    /// Takes the calls of an fnode's function in the batches in which they are measured. Of those, the calls become children
    /// that a peak's decision is at, or that lead to where another decision is open.
    ///
    /// Batches that are not those of before (an earlier run had another limit, or none) were measured with other calls
    /// beside them: what was counted for a decision that was not made says nothing, and it begins anew.
    ///
    /// # Panics
    /// When it is no fnode of this analysis.
    pub fn add_batches(&mut self, id: FnodeId, batches: &[Vec<(SiteId, Callee)>]) {
        if !self.are_known(id, batches) {
            for peak in self.undecided_at(id) {
                self.begin_batch(id, peak, 0);
            }
        }
        self.ftree.fnode_mut(id).batches = batches.len().max(1);
        let sites = (0..).zip(batches).flat_map(|(batch, calls)| {
            let sites = calls.iter().map(|&(site, _)| site);
            sites.map(move |site| (site, batch))
        });
        let batch_of: HashMap<SiteId, usize> = sites.collect();
        for child in self.ftree.fnode(id).children.clone() {
            let child = self.ftree.fnode_mut(child);
            if let Some(&batch) = child.site.and_then(|site| batch_of.get(&site)) {
                child.in_batch = batch;
            }
        }
        let needed: HashSet<SiteId> = self.needed_below(id).collect();
        let wanted = self.batches_wanted(id);
        for (batch, calls) in batches.iter().enumerate() {
            for &(site, callee) in calls {
                if wanted.contains(&batch) || needed.contains(&site) {
                    let child = self.add_child(id, site, callee);
                    self.ftree.fnode_mut(child).in_batch = batch;
                }
            }
        }
    }

    /// Whether what was counted for decisions that were not made was counted in these batches.
    fn are_known(&self, id: FnodeId, batches: &[Vec<(SiteId, Callee)>]) -> bool {
        let fnode = self.ftree.fnode(id);
        if fnode.batches <= 1 && batches.len() <= 1 {
            return true;
        }
        let begun = self.undecided_at(id).into_iter().map(|peak| {
            let record = fnode.record(peak);
            record.batch + usize::from(record.decision_ops > 0)
        });
        let begun = begun.max().unwrap_or(0);
        let mut calls = (0..).zip(batches).flat_map(|(batch, calls)| {
            let calls = calls.iter();
            calls.map(move |&(site, callee)| (batch, site, callee))
        });
        fnode.batches == batches.len()
            && calls.all(
                |(batch, site, callee)| match self.ftree.known_child(id, site, callee) {
                    Some(child) => self.ftree.fnode(child).in_batch == batch,
                    None => batch >= begun,
                },
            )
    }

    /// The sites of known calls that are measured whatever the batch: chosen ones, and those on the way to an fnode
    /// where a decision is open.
    fn needed_below(&self, id: FnodeId) -> impl Iterator<Item = SiteId> + '_ {
        let leading = self.leading_to_open();
        let children = self.ftree.fnode(id).children.iter();
        children
            .map(|&child| self.ftree.fnode(child))
            .filter(move |child| leading[child.id.0 as usize] || self.is_needed_above(child))
            .filter_map(|child| child.site)
    }

    /// The peaks without a decision at an fnode: a path that was left open may be gone on with in another run.
    fn undecided_at(&self, id: FnodeId) -> Vec<u32> {
        let records = self.ftree.fnode(id).records();
        let undecided =
            records.filter(|(_, record)| !matches!(record.state, PathState::Decided(_)));
        undecided.map(|(peak, _)| peak).collect()
    }

    /// The peaks whose descent is at an fnode.
    pub(crate) fn open_at(&self, id: FnodeId) -> Vec<u32> {
        let records = self.ftree.fnode(id).records();
        let open = records.filter(|(_, record)| record.state.is_open());
        open.map(|(peak, _)| peak).collect()
    }

    /// The batches of an fnode's calls that peaks are at.
    fn batches_wanted(&self, id: FnodeId) -> BTreeSet<usize> {
        let fnode = self.ftree.fnode(id);
        let batch = |peak| fnode.record(peak).batch.min(fnode.batches - 1);
        self.open_at(id).into_iter().map(batch).collect()
    }

    /// Whether calls of an fnode are left that have not been measured for a peak.
    pub(crate) fn has_more(&self, id: FnodeId, peak: u32) -> bool {
        let fnode = self.ftree.fnode(id);
        fnode.record(peak).batch + 1 < fnode.batches
    }

    /// Goes on to the next batch.
    pub(crate) fn next_batch(&mut self, id: FnodeId, peak: u32) {
        let next = self.ftree.fnode(id).record(peak).batch + 1;
        self.begin_batch(id, peak, next);
        self.ftree.fnode_mut(id).expansion = Expansion::Requested;
        self.set_state(id, peak, PathState::Waiting);
        self.requests.push_back(Request::Expand(id));
    }

    /// Counts anew, for a decision about the calls of this batch.
    pub(crate) fn begin_batch(&mut self, id: FnodeId, peak: u32, batch: usize) {
        for child in self.ftree.fnode(id).children.clone() {
            let record = self.ftree.fnode_mut(child).record_mut(peak);
            record.before = record.maxcount;
            record.part = Part::NOTHING;
        }
        let record = self.ftree.fnode_mut(id).record_mut(peak);
        record.batch = batch;
        record.self_maxcount = 0;
        record.decision_ops = 0;
        record.longest_bucket = 0;
        (record.whole, record.own) = (Part::NOTHING, Part::NOTHING);
        record.loop_time = Ticks(0);
        (record.own_seen, record.own_blocked) = (Ticks(0), Ticks(0));
    }

    /// The ops in which other batches of the parent's calls were measured say nothing about a call that is new. What is
    /// told apart of an indirect call was measured with it.
    pub(crate) fn miss_earlier_ops(&mut self, parent: FnodeId, child: FnodeId) {
        let site = self.ftree.fnode(child).site;
        let parent = self.ftree.fnode(parent);
        let same_site = parent.children.iter().map(|&id| self.ftree.fnode(id));
        let same_site = same_site
            .filter(|at| at.site == site && at.id != child)
            .min_by_key(|at| at.id);
        let missed = parent.records().map(|(peak, record)| match same_site {
            Some(at) => (peak, at.record(peak).missed_ops),
            None => (peak, record.measured_ops),
        });
        for (peak, ops) in missed.filter(|&(_, ops)| ops > 0).collect::<Vec<_>>() {
            self.ftree.fnode_mut(child).record_mut(peak).missed_ops = ops;
        }
    }

    /// Whether a call is measured for a decision at its parent.
    pub(crate) fn is_needed_above(&self, fnode: &Fnode) -> bool {
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
    use darc_record::{Arguments, Op, Touched, Tsc};

    use super::*;
    use crate::descent::ftree::{Callee, CalleeId};
    use crate::descent::params::Params;
    use crate::descent::peak_record::Stop;
    use crate::descent::root_cause::CauseKind;
    use crate::simulate::{Program, Run, Session, call};

    const CALLS: u32 = 6;
    const BATCH: u32 = 2;

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
                long: Ticks(0),
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
                let calls = (0..CALLS).map(|id| (SiteId(id), call(id)));
                let calls: Vec<_> = calls.collect();
                let batches = calls.chunks(BATCH as usize).map(<[_]>::to_vec);
                analysis.add_batches(fnode, &batches.collect::<Vec<_>>());
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
    fn a_cause_in_any_batch_is_found_with_few_probes() {
        for cause in 0..CALLS {
            let mut times = [100; CALLS as usize];
            times[cause as usize] = 9_000;
            let (calls, itself, most) = analysed(times);
            assert_eq!((calls, itself), (vec![cause], false));
            assert!(most <= BATCH as usize, "{most}");
        }
    }

    #[test]
    fn the_function_itself_is_blamed_when_all_batches_have_been_looked_at() {
        assert!(analysed([100; CALLS as usize]).0.is_empty());
        assert!(analysed([100; CALLS as usize]).1);
    }

    #[test]
    fn causes_in_two_batches_are_both_found() {
        let (calls, itself, _) = analysed([4_700, 10, 10, 10, 4_700, 10]);
        assert_eq!((calls, itself), (vec![0, 4], false));
    }

    /// f0 makes six calls, of which the last takes the time.
    fn last_of_six() -> Program {
        let sites = [1, 2, 3, 4, 5, 6].map(|id| (id, call(id)));
        let quick = |run: &mut Run<'_>| run.work(100);
        let f0 = |run: &mut Run<'_>| (1..=6).for_each(|id| run.call(id, id));
        let quick_ones = ["a", "b", "c", "d", "e"].into_iter().zip(1..);
        quick_ones
            .fold(Program::default(), |program, (name, id)| {
                program.function(id, name, &[], quick)
            })
            .function(0, "f0", &sites, f0)
            .function(6, "slow", &[], |run| run.work(90_000))
    }

    fn ends(session: &Session) -> Vec<(String, CauseKind, Stop)> {
        session.causes(1)
    }

    fn slow() -> Vec<(String, CauseKind, Stop)> {
        vec![("f0/slow".to_owned(), CauseKind::Function, Stop::NoCalls)]
    }

    #[test]
    fn what_was_counted_in_other_batches_decides_nothing_after_a_resume() {
        let params = Params::default();
        let mut stopped = Session::in_batches(last_of_six(), Analysis::new(params), BATCH as usize);
        let at = |session: &Session| {
            let record = session.analysis.ftree().root().record(1);
            (record.batch, record.decision_ops)
        };
        while at(&stopped) != (1, params.decision_ops - 1) {
            assert!(!stopped.finished);
            stopped.run(1);
        }
        for most in [usize::MAX, 4, BATCH as usize, 1] {
            let analysis = Analysis::resume(params, stopped.stored()).unwrap();
            let mut resumed = Session::in_batches(last_of_six(), analysis, most);
            resumed.run(1_000);
            assert_eq!(ends(&resumed), slow(), "at most {most} at once");
        }
    }

    #[test]
    fn a_short_program_is_gone_over_in_batches_by_many_runs() {
        let params = Params::default();
        let mut session = Session::new(last_of_six(), params);
        session.run(params.start_ops - 1);
        let mut runs = 0;
        while !session.finished {
            assert!(runs < 30);
            let analysis = Analysis::resume(params, session.stored()).unwrap();
            session = Session::in_batches(last_of_six(), analysis, BATCH as usize);
            // Fewer than a decision takes.
            session.run(7);
            assert!(session.probes() <= BATCH as usize);
            runs += 1;
        }
        assert_eq!(ends(&session), slow());
    }

    /// f0 makes six calls: the last takes the time of usual ops, and the first that of rare ones, which come late.
    fn rare_and_usual() -> Program {
        let mut program = last_of_six();
        let rare = |run: &mut Run<'_>| {
            let slow = run.op > 300 && run.op.is_multiple_of(9);
            run.work(if slow { 80_000_000 } else { 100 });
        };
        program.functions.get_mut(&1).unwrap().body = rare;
        program
    }

    #[test]
    fn a_peak_that_is_found_late_sees_the_batches_that_others_have_left() {
        let params = Params {
            decision_ops: 120,
            ..Params::default()
        };
        let mut session =
            Session::in_batches(rare_and_usual(), Analysis::new(params), BATCH as usize);
        while session.analysis.peaks().len() < 2 {
            session.run(1);
        }
        let f0 = session.analysis.ftree().root();
        assert_eq!((f0.record(1).batch, f0.record(2).batch), (2, 0));
        // Each peak has its own batch.
        assert_eq!(session.probes(), 2 * BATCH as usize);
        session.run(20_000);
        assert_eq!(ends(&session), slow());
        let rare = ("f0/a".to_owned(), CauseKind::Function, Stop::NoCalls);
        assert_eq!(session.causes(2), [rare]);
    }
}
