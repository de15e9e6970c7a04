//! Where ops of a peak come slowly, the descent goes on below a function before that is decided.
//!
//! Each decision takes twenty ops at least, and each is made with ops that come after the one before. Of a call that is
//! slow once a second a path of ten functions would take minutes. So a callee that took most of the time in each of the first ops is
//! looked into at once, in the same ops that its caller's decision waits for. Where that decision is another one, what was
//! begun below is forgotten.

use darc_record::{FnodeId, Ticks, Tsc};

use crate::descent::Analysis;
use crate::descent::ftree::{Callee, Expansion};
use crate::descent::peak_record::PathState;
use crate::descent::share::{Estimate, LEAST};
use crate::off_cpu::is_absence;

/// A callee of so many ops in a row is gone on with.
const OPS: u64 = 5;
/// ... if it has this part of their time at least.
const PART: f64 = 0.5;
/// ... and if these took longer: some tens of milliseconds. Others are decided as soon.
const SLOWLY: Ticks = Ticks(1 << 27);

impl Analysis {
    /// Begins below the functions of a peak whose decision is waited for and may be foreseen, at the end of an op.
    pub(crate) fn begin_early(&mut self, peak: u32, now: Tsc) {
        let foreseen: Vec<FnodeId> = self
            .measured
            .iter()
            .filter_map(|&fnode| self.foreseen(fnode, peak, now))
            .collect();
        for first in foreseen {
            let followed = self.followed(first, peak).into_iter();
            let new = followed.filter(|&at| !self.ftree.fnode(at).record(peak).is_chosen());
            for fnode in new.collect::<Vec<_>>() {
                self.early.insert((fnode, peak));
                self.begin_path(fnode, peak);
            }
        }
    }

    /// The callee that the decision of a function will most likely be for.
    fn foreseen(&self, id: FnodeId, peak: u32, now: Tsc) -> Option<FnodeId> {
        let fnode = self.ftree.fnode(id);
        let record = fnode.record(peak);
        let Expansion::Complete(since) = fnode.expansion else {
            return None;
        };
        let is_first = record.state == PathState::Collecting
            && record.decision_ops == OPS
            && !self.checks.contains_key(&(id, peak));
        if !is_first || fnode.is_in_batches() || now - since < SLOWLY {
            return None;
        }
        let takes_most = |estimate: &Estimate| estimate.time.at >= PART && estimate.ops.at >= 1.0;
        let parts = self.parts(id, peak);
        // What is told of time away here is not told below, which only the decision says.
        let is_away = |part: &FnodeId| is_absence(self.ftree.fnode(*part).callee);
        if parts.iter().any(|(part, estimate)| {
            part.as_ref().is_some_and(is_away) && estimate.time.at >= LEAST / 2.0
        }) {
            return None;
        }
        let mut parts = parts.into_iter();
        let found = parts.find_map(|(part, estimate)| part.filter(|_| takes_most(&estimate)))?;
        let callee = self.ftree.fnode(found).callee;
        matches!(callee, Callee::Function(_)).then_some(found)
    }

    /// A function is decided: what was begun early below it stands where it is `chosen`, and is forgotten elsewhere.
    pub(crate) fn confirm_early(&mut self, id: FnodeId, peak: u32, chosen: &[FnodeId]) {
        for child in self.ftree.fnode(id).children.clone() {
            if self.early.remove(&(child, peak)) && !chosen.contains(&child) {
                self.forget_path(child, peak);
            }
        }
    }

    /// Forgets all that was begun early and is not decided above: a caller that is not gone on with has no path below it.
    pub(crate) fn forget_early(&mut self) {
        for (fnode, peak) in std::mem::take(&mut self.early) {
            self.forget_path(fnode, peak);
        }
    }

    fn forget_path(&mut self, from: FnodeId, peak: u32) {
        let mut below = vec![from];
        while let Some(id) = below.pop() {
            let fnode = self.ftree.fnode(id);
            if fnode.record(peak).is_chosen() {
                below.extend(&fnode.children);
                self.early.remove(&(id, peak));
                self.set_state(id, peak, PathState::NotChosen);
                self.begin_batch(id, peak, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::simulate::{Program, Run, Session, call};
    use crate::{Params, Status};

    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    const BODIES: [fn(&mut Run<'_>); 5] = [
        |run| run.call(2, 2),
        |run| run.call(3, 3),
        |run| run.call(4, 4),
        |run| run.call(5, 5),
        |run| run.call(6, 6),
    ];

    /// A chain of functions, of which the last takes the time.
    fn chain(last: fn(&mut Run<'_>)) -> Program {
        let f0 = Program::default().function(0, "f0", &[(1, call(1))], |run| run.call(1, 1));
        (1..=6).fold(f0, |program, id| {
            let name = NAMES[id as usize - 1];
            match BODIES.get(id as usize - 1) {
                Some(body) => program.function(id, name, &[(id + 1, call(id + 1))], *body),
                None => program.function(id, name, &[], last),
            }
        })
    }

    #[test]
    fn seldom_ops_are_part_of_several_decisions() {
        let ops_of = |last| {
            let mut session = Session::new(chain(last), Params::default());
            session.run(1_000);
            assert_eq!(session.analysis.status(), Status::RootCauseFound);
            assert_eq!(session.causes(1)[0].0, "f0/a/b/c/d/e/f");
            assert!(session.analysis.early.is_empty());
            session.next_op
        };
        let often = ops_of(|run| run.work(1 << 14));
        let seldom = ops_of(|run| run.work(1 << 28));
        assert!(often >= 100 + 6 * 20, "{often}");
        assert!(seldom <= 100 + 6 * 5 + 25, "{seldom}");
    }

    #[test]
    fn what_was_not_rightly_foreseen_is_forgotten() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                match (100..106).contains(&run.op) {
                    true => run.call(1, 1),
                    false => run.call(2, 2),
                }
            })
            .function(1, "a", &[(3, call(3))], |run| run.call(3, 3))
            .function(2, "b", &[], |run| run.work(1 << 28))
            .function(3, "c", &[], |run| run.work(1 << 28));
        let params = Params {
            decision_ops: 200,
            ..Params::default()
        };
        let mut session = Session::new(program, params);
        session.run(108);
        let a = session.analysis.early.iter().next().copied();
        assert!(a.is_some(), "it was begun early");
        session.run(2_000);
        assert!(session.finished);
        let causes: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(causes, ["f0/b"]);
        assert!(session.analysis.early.is_empty());
    }
}
