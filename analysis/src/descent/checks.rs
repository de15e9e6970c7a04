//! Decisions, held against ops that took no part in them.
//!
//! A decision is made with the first ops that came. When the analysis has looked on for a while, each decided fnode is measured
//! once more, in later ops. Where a part of its time has another share in these, the ops of both times decide together:
//! what takes the time in one phase of a program and not in the next is one cause of several.

use darc_record::{FnodeId, Ticks};

use crate::descent::Analysis;
use crate::descent::ftree::Expansion;
use crate::descent::peak_record::{Outcome, PathState, Stop};
use crate::descent::share::{Estimate, LEAST, Named, Part, limit, named};
use crate::profile::peaks::has_weight;

/// So many times the least number of ops for a decision are compared with those that it was made with,
const OPS: u64 = 2;
/// ... and where no more come this part of it, which shows large differences alone.
const FEW: u64 = 2;

/// What a decision was made with.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    outcome: Outcome,
    ops: u64,
    self_maxcount: u64,
    whole: Part,
    own: Part,
    loop_time: Ticks,
    own_seen: Ticks,
    own_blocked: Ticks,
    /// For each callee its part, and which maxcount belonged to other decisions.
    callees: Vec<(FnodeId, Part, u64)>,
    parts: Vec<(Option<FnodeId>, Estimate)>,
    /// What is no cause unless later ops have it, too, with the state that it had.
    doubtful: Vec<(FnodeId, PathState)>,
    /// Whether the longest ops were missing, or the function itself is a cause for few ops alone.
    is_weak: bool,
}

impl Analysis {
    /// Begins to measure all decided fnodes of the peaks that matter once more.
    pub(crate) fn begin_checks(&mut self) {
        let peaks = self.peaks().into_iter();
        let known = peaks.filter(|peak| {
            let is_begun = self.peaks[peak.number as usize - 1].open.is_some();
            is_begun && has_weight(&peak.content, &self.profile)
        });
        for peak in known.map(|peak| peak.number).collect::<Vec<_>>() {
            let decided = self.ftree.fnodes().filter(|fnode| {
                let record = fnode.record(peak);
                matches!(record.state, PathState::Decided(_))
                    && record.decision_ops > 0
                    && !fnode.is_in_batches()
                    && !matches!(fnode.expansion, Expansion::Impossible(_))
            });
            for id in decided.map(|fnode| fnode.id).collect::<Vec<_>>() {
                self.begin_check(id, peak);
            }
        }
    }

    /// Whether decisions are being held against later ops.
    #[must_use]
    pub fn is_checking(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Ends all checks: what was decided stands, unless the ops that came are clearly others.
    pub fn end_checks(&mut self) {
        let few = (self.params.decision_ops / FEW).max(1);
        let mut open: Vec<(FnodeId, u32)> = self.checks.keys().copied().collect();
        open.sort_unstable();
        for (id, peak) in open {
            let ops = self.ftree.fnode(id).record(peak).decision_ops;
            let differs = self.is_other_since(id, peak) || self.was_doubtful(id, peak);
            match ops >= few && differs {
                true => self.end_check(id, peak),
                // The state does not matter: the one of before comes back.
                false => self.set_state(id, peak, PathState::Ended(Stop::StillDescending)),
            }
        }
        self.settle();
    }

    fn begin_check(&mut self, id: FnodeId, peak: u32) {
        let PathState::Decided(outcome) = self.ftree.fnode(id).record(peak).state else {
            return;
        };
        // Below what has just been left, or was not decided.
        let path = self.ftree.path(id);
        let is_left = |at: &FnodeId| {
            let state = &self.ftree.fnode(*at).record(peak).state;
            matches!(state, PathState::NotChosen | PathState::Ended(_))
        };
        if path.iter().any(is_left) {
            return;
        }
        let parts = self.parts(id, peak);
        let mut own = parts.iter().filter(|(part, _)| part.is_none());
        let is_little = own.any(|(_, estimate)| estimate.is_small_difference());
        let is_itself = matches!(outcome, Outcome::Itself | Outcome::Both);
        let is_weak = self.lacks_long_ops(id, peak) || (is_itself && is_little);
        let doubtful = self.leave_doubtful(id, peak, &parts);
        let mut callees = Vec::new();
        for child in self.ftree.fnode(id).children.clone() {
            let record = self.ftree.fnode_mut(child).record_mut(peak);
            callees.push((child, std::mem::take(&mut record.part), record.before));
            record.before = record.maxcount;
        }
        let record = self.ftree.fnode_mut(id).record_mut(peak);
        let sample = Sample {
            outcome,
            ops: std::mem::take(&mut record.decision_ops),
            self_maxcount: std::mem::take(&mut record.self_maxcount),
            whole: std::mem::take(&mut record.whole),
            own: std::mem::take(&mut record.own),
            loop_time: std::mem::take(&mut record.loop_time),
            own_seen: std::mem::take(&mut record.own_seen),
            own_blocked: std::mem::take(&mut record.own_blocked),
            callees,
            parts,
            doubtful,
            is_weak,
        };
        self.checks.insert((id, peak), sample);
        self.begin_path(id, peak);
    }

    /// Time away that is hardly any in all ops is no cause any more, and what made few ops longer than the others is to do so again: these
    /// causes, and their states.
    fn leave_doubtful(
        &mut self,
        id: FnodeId,
        peak: u32,
        parts: &[(Option<FnodeId>, Estimate)],
    ) -> Vec<(FnodeId, PathState)> {
        let is_small = |child: FnodeId| {
            let first = Some(self.ftree.first_alike(child));
            let mut parts = parts.iter();
            parts.any(|(part, estimate)| *part == first && estimate.is_small_difference())
        };
        let children = self.ftree.fnode(id).children.iter().copied();
        let doubtful = children.filter(|&child| {
            self.ftree.fnode(child).record(peak).is_chosen()
                && (self.is_small_in_all(child, peak) || is_small(child))
        });
        let doubtful: Vec<FnodeId> = doubtful.collect();
        let leave = |child: FnodeId| {
            let state = self.ftree.fnode(child).record(peak).state.clone();
            self.set_state(child, peak, PathState::NotChosen);
            (child, state)
        };
        doubtful.into_iter().map(leave).collect()
    }

    /// Ends the check of an fnode that has seen enough ops for it. Whether it has one.
    pub(crate) fn check_at(&mut self, id: FnodeId, peak: u32, may_wait: bool) -> Option<bool> {
        let sample = self.checks.get(&(id, peak))?;
        let least = self.params.decision_ops.max(1).saturating_mul(OPS);
        // What few ops say is asked of as many others.
        let least = match sample.doubtful.is_empty() {
            true => least,
            false => least.max(sample.ops.min(limit(self.params.decision_ops))),
        };
        let is_short = self.ftree.fnode(id).record(peak).decision_ops < least;
        if is_short || (may_wait && self.waits_for_long_ops(id, peak)) {
            return Some(false);
        }
        self.end_check(id, peak);
        Some(true)
    }

    /// Whether it is known already that the ops of a decision were not enough for it.
    fn was_doubtful(&self, id: FnodeId, peak: u32) -> bool {
        let sample = self.checks.get(&(id, peak));
        sample.is_some_and(|sample| !sample.doubtful.is_empty() || sample.is_weak)
    }

    /// Whether the ops since a check began are clearly others than those that decided.
    fn is_other_since(&self, id: FnodeId, peak: u32) -> bool {
        let Some(sample) = self.checks.get(&(id, peak)) else {
            return false;
        };
        let later = self.parts(id, peak);
        let before = |part: &Option<FnodeId>| {
            let mut before = sample.parts.iter();
            before.find(|(known, _)| known == part).map(|it| it.1)
        };
        let is_other = later.iter().any(|(part, now)| match before(part) {
            Some(before) => now.time.differs(&before.time),
            None => now.time.low >= LEAST,
        });
        tracing::debug!(target: "descent", fnode = id.0, peak, ?later, is_other, "held against later ops");
        is_other
    }

    /// Ends a check with the ops that came: where they differ those of both times decide together.
    fn end_check(&mut self, id: FnodeId, peak: u32) {
        let is_other = self.is_other_since(id, peak);
        let differs = is_other || self.was_doubtful(id, peak);
        let Some(sample) = self.checks.get(&(id, peak)) else {
            return;
        };
        // What differs is no less true for having been seen later: both times count alike.
        let ops = self.ftree.fnode(id).record(peak).decision_ops;
        let weight = match is_other && sample.ops > ops {
            true => ops as f64 / sample.ops as f64,
            false => 1.0,
        };
        let Some((doubtful, outcome)) = self.pool(id, peak, weight) else {
            return;
        };
        match differs {
            false => self.set_state(id, peak, PathState::Decided(outcome)),
            true => self.decide_again(id, peak, doubtful),
        }
    }

    /// Decides with the ops of both times. What was doubtful and is a cause all the same goes on where it was.
    fn decide_again(&mut self, id: FnodeId, peak: u32, doubtful: Vec<(FnodeId, PathState)>) {
        let parts = self.parts(id, peak);
        let estimates: Vec<Estimate> = parts.iter().map(|it| it.1).collect();
        let named = named(&estimates, true).unwrap_or(Named::None);
        let named = named.of_peak(&estimates, &self.weight(id, peak));
        if let Named::Causes(causes) = &named {
            let causes = parts.iter().zip(causes).filter(|&(_, &is_cause)| is_cause);
            let causes: Vec<Option<FnodeId>> = causes.map(|((part, _), _)| *part).collect();
            for (child, state) in doubtful {
                let is_cause = causes.contains(&Some(self.ftree.first_alike(child)));
                if is_cause && !self.is_small_in_all(child, peak) {
                    self.set_state(child, peak, state);
                }
            }
        }
        self.take(id, peak, &parts, named);
    }

    /// A check is over without enough ops: what it began with comes back.
    pub(crate) fn undo_check(&mut self, id: FnodeId, peak: u32) -> Option<Outcome> {
        let (doubtful, outcome) = self.pool(id, peak, 1.0)?;
        for (child, state) in doubtful {
            self.set_state(child, peak, state);
        }
        Some(outcome)
    }

    /// Adds what a decision was made with to what was seen since, by a weight; the check is over. What was doubtful, and what was
    /// decided.
    fn pool(
        &mut self,
        id: FnodeId,
        peak: u32,
        weight: f64,
    ) -> Option<(Vec<(FnodeId, PathState)>, Outcome)> {
        let sample = self.checks.remove(&(id, peak))?;
        let of = |count: u64| (count as f64 * weight).round() as u64;
        for (child, part, before) in sample.callees {
            let record = self.ftree.fnode_mut(child).record_mut(peak);
            record.part.include(&part.times(weight));
            record.before = record
                .before
                .saturating_sub(of(record.before.saturating_sub(before)));
        }
        let record = self.ftree.fnode_mut(id).record_mut(peak);
        record.decision_ops = record.decision_ops.saturating_add(of(sample.ops));
        record.self_maxcount = record
            .self_maxcount
            .saturating_add(of(sample.self_maxcount));
        record.whole.include(&sample.whole.times(weight));
        record.own.include(&sample.own.times(weight));
        record.loop_time = record.loop_time + Ticks(of(sample.loop_time.0));
        record.own_seen = record.own_seen + Ticks(of(sample.own_seen.0));
        record.own_blocked = record.own_blocked + Ticks(of(sample.own_blocked.0));
        Some((sample.doubtful, sample.outcome))
    }
}

#[cfg(test)]
mod tests {
    use crate::simulate::{Program, Run, Session, call};
    use crate::{Params, Status};

    /// One callee takes the time of the first 10,000 ops, another one that of all others.
    fn phases() -> Program {
        Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                let callee = if run.op < 10_000 { 1 } else { 2 };
                run.work(100);
                run.call(callee, callee);
            })
            .function(1, "early", &[], |run| run.work(1_000))
            .function(2, "late", &[(3, call(3))], |run| run.call(3, 3))
            .function(3, "below", &[], |run| run.work(1_000))
    }

    fn paths(session: &Session) -> Vec<String> {
        session.causes(1).into_iter().map(|it| it.0).collect()
    }

    #[test]
    fn what_takes_the_time_later_is_a_cause_too() {
        let mut session = Session::new(phases(), Params::default());
        session.analysis.look_on();
        session.run(10_100);
        assert_eq!(paths(&session), ["f0/early"]);
        session.analysis.seen_enough();
        session.serve();
        assert!(session.analysis.is_checking());
        session.run(2_000);
        assert!(session.finished);
        assert_eq!(paths(&session), ["f0/early", "f0/late/below"]);
    }

    #[test]
    fn what_holds_is_as_before_and_known_from_more_ops() {
        let mut session = Session::new(phases(), Params::default());
        session.analysis.look_on();
        session.run(5_000);
        let known = session.analysis.root_causes(1)[0].known_from;
        session.analysis.seen_enough();
        session.serve();
        session.run(1_000);
        assert!(session.finished);
        assert_eq!(paths(&session), ["f0/early"]);
        assert!(session.analysis.root_causes(1)[0].known_from >= known + 40);
    }

    fn with_usual_and_seldom(f0: fn(&mut Run<'_>)) -> Session {
        let takes = |run: &mut Run<'_>| run.work(run.level);
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], f0)
            .function(1, "usual", &[], takes)
            .function(2, "seldom", &[], takes);
        let mut session = Session::new(program, Params::default());
        session.analysis.look_on();
        session
    }

    #[test]
    fn ops_that_were_too_long_to_be_among_the_first_are_looked_at() {
        // The longer the fewer, and without a gap; the longest, which come later, are so for another callee.
        let f0 = |run: &mut Run<'_>| {
            let doublings = 3.0 * run.random(1).powi(10);
            let is_early = run.op < 200;
            let time = 1_000.0
                * 2_f64.powf(if is_early {
                    doublings.min(1.99)
                } else {
                    doublings
                });
            let usual = if time > 4_000.0 { 1_000.0 } else { time };
            run.level = usual as u64;
            run.call(1, 1);
            run.level = (time - usual) as u64;
            run.call(2, 2);
        };
        let mut session = with_usual_and_seldom(f0);
        session.run(20_000);
        assert_eq!(paths(&session), ["f0/usual"]);
        session.analysis.seen_enough();
        session.serve();
        session.run(2_000);
        assert!(session.finished);
        assert_eq!(session.analysis.peaks().len(), 1);
        assert_eq!(paths(&session), ["f0/usual", "f0/seldom"]);
    }

    #[test]
    fn long_ops_that_never_come_again_are_not_waited_for_for_ever() {
        // Among the first hundred, before anything was measured.
        let f0 = |run: &mut Run<'_>| {
            run.level = if run.op < 100 && run.op.is_multiple_of(16) {
                2_500
            } else {
                1_000
            };
            run.call(1, 1);
        };
        let mut session = with_usual_and_seldom(f0);
        session.run(160);
        assert!(!session.analysis.is_answered());
        session.analysis.decide_without_long_ops();
        session.serve();
        assert_eq!(paths(&session), ["f0/usual"]);
        assert!(session.analysis.is_answered());
    }

    #[test]
    fn what_struck_the_first_ops_alone_is_no_cause() {
        let f0 = |run: &mut Run<'_>| {
            let is_struck = matches!(run.op, 10 | 30 | 60 | 90 | 105 | 125 | 140);
            run.level = 1_000;
            run.call(1, 1);
            run.level = if is_struck { 1_300 } else { 10 };
            run.call(2, 2);
        };
        let mut session = with_usual_and_seldom(f0);
        session.run(20_000);
        let before = paths(&session);
        session.analysis.seen_enough();
        session.serve();
        session.run(2_000);
        assert!(session.finished);
        assert_eq!(
            (before.len(), paths(&session)),
            (2, vec!["f0/usual".to_owned()])
        );
    }

    #[test]
    fn a_few_ops_that_are_clearly_others_count() {
        let mut session = Session::new(phases(), Params::default());
        session.analysis.look_on();
        session.run(10_100);
        session.analysis.seen_enough();
        session.serve();
        session.run(15);
        session.analysis.end_checks();
        assert_eq!(paths(&session), ["f0/early", "f0/late"]);
        assert_ne!(session.analysis.status(), Status::RootCauseFound);
        session.serve();
        session.run(500);
        assert!(session.finished);
        assert_eq!(paths(&session), ["f0/early", "f0/late/below"]);
    }

    #[test]
    fn a_check_that_does_not_end_changes_nothing() {
        let mut session = Session::new(phases(), Params::default());
        session.analysis.look_on();
        session.run(10_100);
        session.analysis.seen_enough();
        session.serve();
        session.run(5);
        session.analysis.end_checks();
        session.serve();
        assert!(session.finished && !session.analysis.is_checking());
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        assert_eq!(paths(&session), ["f0/early"]);
    }
}
