//! What an analysis does after it has its answers: it looks whether they stay so.
//!
//! The first answers come from the first ops. A rare peak shows later, two humps that looked like one come apart, and a
//! program that is in one phase now may be in another soon. So ops go on being counted until there were enough. Then the
//! peaks are cut anew, by all ops: the same program has the same peaks, whichever ops came first. And every decision is held
//! against ops that took no part in it: see [`checks`](super::checks).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use darc_record::{FnodeId, Ticks};

use crate::descent::early::Foreseen;
use crate::descent::ftree::{Callee, Fnode};
use crate::descent::params::PeakChoice;
use crate::descent::peak_record::{PathState, Stop};
use crate::descent::root_cause::{self, PeakStatus};
use crate::descent::{Analysis, MOST_UNEXPLAINED, PeakAnalysis, Request};
use crate::profile::peaks::Peak;
use crate::values::Values;

/// A peak has an answer.
const ANSWERED: [PeakStatus; 3] = [
    PeakStatus::RootCauseFound,
    PeakStatus::MaxDepthReached,
    PeakStatus::Spread,
];
/// No op is as long.
const NO_OP: RangeInclusive<Ticks> = Ticks(u64::MAX)..=Ticks(u64::MAX);
/// A known peak stays the peak of a hump that has this part of its ops,
pub(crate) const MOST: f64 = 0.8;
/// ... and this part of their time: what the others did is no cause of it.
const NEARLY_ALL: f64 = 0.85;
/// And only if that is this part of the hump's ops,
const HALF: f64 = 0.5;
/// ... and of their time: few ops may have most of it, of which nothing is known.
const MOST_TIME: f64 = 0.75;

/// How far an analysis is beyond its answers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Looking {
    /// It ends with them.
    #[default]
    Not,
    /// It goes on counting until it is told that there were enough ops.
    On,
    /// There were; the decisions are to be held against later ops.
    Enough,
    /// They are being, or were.
    Checked,
}

impl Analysis {
    /// Goes on when all paths have ended, until [`Analysis::seen_enough`].
    pub fn look_on(&mut self) {
        if self.looking == Looking::Not && !self.finished {
            self.looking = Looking::On;
        }
    }

    /// Whether [`Analysis::seen_enough`] is waited for.
    #[must_use]
    pub fn is_looking_on(&self) -> bool {
        self.looking == Looking::On
    }

    /// Whether every path has ended, of one peak at least.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        let mut begun = self.peaks.iter().filter_map(|at| at.open).peekable();
        begun.peek().is_some() && begun.all(|open| open == 0)
    }

    /// Whether every path has ended of all peaks of which there were enough ops for that.
    #[must_use]
    pub fn is_answered_but_for_rare(&self) -> bool {
        let mut open = self.peaks.iter().filter(|at| at.open.unwrap_or(0) > 0);
        let is_rare = |at: &PeakAnalysis| {
            let ops = self
                .profile
                .range(at.peak.first_bucket, at.peak.last_bucket)
                .ops;
            ops < self.params.decision_ops
        };
        self.peaks.iter().any(|at| at.open == Some(0)) && open.all(is_rare)
    }

    /// Whether less than a tenth of the time is in ops of no peak.
    #[must_use]
    pub fn is_nearly_all_in_peaks(&self) -> bool {
        let all = self.profile.total().0;
        let peaks = self.peaks().into_iter();
        let within = peaks.fold(0, |sum: u64, peak| sum.saturating_add(peak.content.total.0));
        all.saturating_sub(within) as f64 <= MOST_UNEXPLAINED * all as f64
    }

    /// No ops come any more: the answers are what they are.
    pub fn stop_looking(&mut self) {
        if self.looking == Looking::On {
            self.looking = Looking::Checked;
            self.settle();
        }
        self.decide_without_long_ops();
        self.end_descents();
    }

    /// Enough ops were counted for the peaks to be what they are.
    pub fn seen_enough(&mut self) {
        if self.looking != Looking::On {
            return;
        }
        self.looking = Looking::Enough;
        if !self.params.is_asked_for() && self.stored.is_none() {
            self.cut_anew();
        }
        self.settle();
    }

    /// Nothing is waited for any longer: what is open ends undecided, with what is known of it, and the decisions are held against later
    /// ops.
    pub fn end_descents(&mut self) {
        let open: Vec<(FnodeId, u32)> = (self.ftree.fnodes())
            .flat_map(|fnode| {
                fnode
                    .records()
                    .map(|(peak, record)| (fnode.id, peak, record))
            })
            .filter(|(_, _, record)| record.state.is_open())
            .map(|(id, peak, _)| (id, peak))
            .collect();
        for (id, peak) in open {
            self.set_state(id, peak, PathState::Ended(Stop::TooRare));
        }
        self.settle();
    }

    /// How many ops there were of each peak that has no answer yet, and would have none if nothing more were seen; `None` where nothing is
    /// waited for: there is an answer without them, or they have little of the time.
    #[must_use]
    pub fn awaited_ops(&self) -> Option<BTreeMap<u32, u64>> {
        let has_answer = |analysis: &Analysis| analysis.answered_part() >= HALF;
        let may_be_taken_back = self.before_cut.as_deref().is_some_and(has_answer);
        if may_be_taken_back && !has_answer(self) {
            return None;
        }
        let is_open = |peak: &Peak| self.peaks[peak.number as usize - 1].open.unwrap_or(0) > 0;
        let peaks = self.peaks().into_iter().filter(is_open);
        let awaited: Vec<Peak> = peaks
            .filter(|peak| !ANSWERED.contains(&self.status_at_end(peak.number)))
            .collect();
        let time = awaited.iter().fold(0_u64, |time, peak| {
            time.saturating_add(peak.content.total.0)
        });
        let is_much = time as f64 > MOST_UNEXPLAINED * self.profile.total().0 as f64;
        let ops = awaited.iter().map(|peak| (peak.number, peak.content.ops));
        is_much.then(|| ops.collect())
    }

    /// Where a peak would stand if nothing more were seen.
    fn status_at_end(&self, peak: u32) -> PeakStatus {
        let mut causes = self.root_causes(peak);
        for cause in &mut causes {
            if cause.stop == Stop::StillDescending {
                cause.stop = Stop::TooRare;
            }
        }
        root_cause::peak_status(&causes)
    }

    /// No ops come any more: known peaks that are part of the hump of another one, by all ops, are dropped where it is not known
    /// what f0 spends its time on.
    pub fn drop_former_peaks(&mut self) {
        let is_meant = self.looking == Looking::On && !self.params.is_asked_for();
        if !is_meant || self.stored.is_some() {
            return;
        }
        let found = self.find_peaks();
        let kept = self.known_among(&found);
        // Of a hump that is another one's.
        let is_former = |index: &usize| {
            let hump = self.hump_of(&self.peaks[*index].peak, &found);
            !kept.contains(&Some(*index))
                && hump.is_some_and(|hump| kept[hump].is_some())
                && !self.is_begun(*index as u32 + 1)
        };
        let all = 0..self.peaks.len();
        let stay: Vec<usize> = all.filter(|index| !is_former(index)).collect();
        if !stay.is_empty() && stay.len() < self.peaks.len() {
            let peaks: Vec<Peak> = stay.iter().map(|&index| self.peaks[index].peak).collect();
            let kept: Vec<Option<usize>> = stay.into_iter().map(Some).collect();
            self.replace_peaks(&peaks, &kept);
        }
    }

    /// Whether it is known of a peak what f0 spends its time on.
    fn is_begun(&self, peak: u32) -> bool {
        let f0 = self.ftree.fnode(FnodeId::ROOT);
        matches!(f0.record(peak).state, PathState::Decided(_))
    }

    /// All paths have ended: what is done next. Whether that is nothing.
    pub(crate) fn goes_on(&mut self) -> bool {
        if self.looking == Looking::Enough {
            self.looking = Looking::Checked;
            if self.answered_part() >= HALF {
                self.before_cut = None;
            }
            self.begin_checks();
            if !self.is_answered() {
                return true;
            }
        }
        if self.looking != Looking::On {
            return false;
        }
        self.retire();
        let filter = vec![NO_OP];
        if self.filter != filter {
            self.filter.clone_from(&filter);
            self.requests.push_back(Request::FilterChanged(filter));
        }
        true
    }

    /// Cuts the profile into peaks anew. Those that are what they were keep what is known of them; the others are new.
    fn cut_anew(&mut self) {
        let found = self.find_peaks();
        let kept = self.known_among(&found);
        let is_same = kept.len() == self.peaks.len()
            && kept
                .iter()
                .enumerate()
                .all(|(at, &known)| known == Some(at));
        // Where all that is known stays, and there is more beside it, nothing is ever to be taken back.
        let is_more = (0..self.peaks.len()).all(|at| kept.contains(&Some(at)));
        if !found.is_empty() && !is_same {
            self.before_cut = (!is_more).then(|| Box::new(self.clone()));
            self.replace_peaks(&found, &kept);
        }
    }

    /// The part of the time of all peaks that is in those that have an answer.
    fn answered_part(&self) -> f64 {
        let time = |is_meant: &dyn Fn(&Peak) -> bool| -> f64 {
            let peaks = self.peaks().into_iter().filter(is_meant);
            peaks.map(|peak| peak.content.total.0 as f64).sum()
        };
        let is_answered = |peak: &Peak| ANSWERED.contains(&self.peak_status(peak.number));
        time(&is_answered) / time(&|_| true).max(1.0)
    }

    /// Nothing more will be seen. Where the peaks were cut anew, those without an answer have most of the time, and the answers of before
    /// were of a tenth of it more, these are taken back, with their peaks. Whether they were.
    pub fn take_back(&mut self) -> bool {
        let answered = self.answered_part();
        let is_better = |before: &Analysis| {
            answered < HALF && before.answered_part() >= answered + MOST_UNEXPLAINED
        };
        let Some(before) = self.before_cut.take().filter(|before| is_better(before)) else {
            return false;
        };
        let Analysis {
            mut ftree,
            peaks,
            off_cpu,
            ..
        } = *before;
        self.ftree.take_records(&mut ftree);
        (self.peaks, self.off_cpu) = (peaks, off_cpu);
        self.checks.clear();
        self.early.clear();
        self.fruitless.clear();
        self.requests.clear();
        self.looking = Looking::Checked;
        self.settle();
        true
    }

    /// Which known peak each of these is.
    fn known_among(&self, found: &[Peak]) -> Vec<Option<usize>> {
        found.iter().map(|hump| self.same_as(hump, found)).collect()
    }

    /// Which known peak a hump is.
    fn same_as(&self, hump: &Peak, found: &[Peak]) -> Option<usize> {
        let is_part = |part: u64, of: u64, least: f64| part as f64 >= least * of as f64;
        let is_same = |peak: &Peak| {
            let all = self.profile.range(peak.first_bucket, peak.last_bucket);
            let shared = self.shared(hump, peak);
            let is_one = self.hump_of(peak, found).map(|at| found[at].number) == Some(hump.number);
            is_one
                && is_part(shared.ops, all.ops, MOST)
                && is_part(shared.total.0, all.total.0, NEARLY_ALL)
                && is_part(shared.ops, hump.content.ops, HALF)
                && is_part(shared.total.0, hump.content.total.0, MOST_TIME)
        };
        self.peaks.iter().position(|at| is_same(&at.peak))
    }

    /// These are the peaks from now on; each is the known one of that index, or new.
    pub(crate) fn replace_peaks(&mut self, found: &[Peak], kept: &[Option<usize>]) {
        tracing::debug!(target: "descent", ?found, ?kept, "cut the peaks anew");
        let former: Vec<Peak> = self.peaks.iter().map(|at| at.peak).collect();
        let mut known: Vec<Option<PeakAnalysis>> = self.peaks.drain(..).map(Some).collect();
        let mut now = vec![None; known.len()];
        for ((hump, kept), number) in found.iter().zip(kept).zip(1..) {
            let peak = Peak { number, ..*hump };
            let before = kept.and_then(|at| known[at].take());
            if let (Some(at), true) = (*kept, before.is_some()) {
                now[at] = Some(number);
            }
            self.peaks.push(match before {
                Some(before) => PeakAnalysis { peak, ..before },
                None => PeakAnalysis {
                    peak,
                    open: None,
                    unresolved: 0,
                    values: Values::default(),
                    example: None,
                },
            });
        }
        let humps = found.iter().zip(kept).zip(1..);
        let new = humps.filter(|((_, kept), _)| kept.is_none());
        let foreseen: Vec<(u32, Vec<Foreseen>)> = new
            .map(|((hump, _), number)| (number, self.chosen_in_most_of(hump, &former)))
            .collect();
        let renumbered = |peak: u32| now.get((peak as usize).checked_sub(1)?).copied().flatten();
        self.ftree.renumber_peaks(&now);
        let fruitless = std::mem::take(&mut self.fruitless).into_iter();
        self.fruitless = fruitless
            .filter_map(|((fnode, peak), ops)| Some(((fnode, renumbered(peak)?), ops)))
            .collect();
        let early = std::mem::take(&mut self.early).into_iter();
        self.early = early
            .filter_map(|(fnode, peak)| Some((fnode, renumbered(peak)?)))
            .collect();
        if let Some(table) = &mut self.off_cpu {
            table.renumber_peaks(renumbered);
        }
        self.renumberings.push(now);
        if self.params.peak == PeakChoice::All {
            self.begin_descents();
            for (peak, functions) in foreseen {
                self.begin_foreseen(peak, functions);
            }
            self.settle();
        }
    }

    /// The functions on the paths of the former peak that most ops of a hump were of, callers first.
    fn chosen_in_most_of(&self, hump: &Peak, former: &[Peak]) -> Vec<Foreseen> {
        let shared = |peak: &Peak| self.shared(hump, peak).ops;
        let is_most = |peak: &&Peak| shared(peak) as f64 >= HALF * hump.content.ops as f64;
        let Some(most) = former.iter().find(is_most) else {
            return Vec::new();
        };
        let functions = self.ftree.fnodes().filter(|fnode| {
            let state = &fnode.record(most.number).state;
            let goes_on = state.is_open() || matches!(state, PathState::Decided(_));
            goes_on && matches!(fnode.callee, Callee::Function(_)) && !fnode.is_in_batches()
        });
        let foreseen = |fnode: &Fnode| Foreseen {
            fnode: fnode.id,
            least_part: fnode.record(most.number).least_part,
        };
        functions.map(foreseen).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::simulate::{Program, Run, Session, call};
    use crate::{Params, Status, Stop};

    /// A hundred ops smear two humps into one; later they are apart, and have a cause each. So many of the ops are slow then.
    fn smeared(run: &mut Run<'_>, slow: f64) {
        let time = match (run.op < 100, run.random(0) < slow) {
            (true, _) => 1_000.0 * 50_f64.powf(run.random(1)),
            (false, true) => 40_000.0 * (1.0 + 0.3 * run.random(1)),
            (false, false) => 1_000.0 * (1.0 + 0.3 * run.random(1)),
        };
        run.level = time as u64;
        match time > 30_000.0 {
            true => run.call(2, 2),
            false => run.call(1, 1),
        }
    }

    fn with_two_callees(f0: fn(&mut Run<'_>)) -> Program {
        Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], f0)
            .function(1, "fast", &[], |run| run.work(run.level))
            .function(2, "slow", &[], |run| run.work(run.level))
    }

    fn smeared_at_first() -> Program {
        with_two_callees(|run| smeared(run, 0.2))
    }

    fn looked_on(program: Program, ops: u64) -> Session {
        let mut session = Session::new(program, Params::default());
        session.analysis.look_on();
        session.run(ops);
        assert!(session.analysis.is_looking_on() && !session.finished);
        session.analysis.seen_enough();
        session.serve();
        session.run(20_000);
        session
    }

    #[test]
    fn peaks_that_were_one_come_apart() {
        let session = looked_on(smeared_at_first(), 20_000);
        assert!(session.finished);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        let peaks = session.analysis.peaks();
        let causes = |peak| -> Vec<String> {
            let causes = session.causes(peak).into_iter();
            causes.map(|(path, ..)| path).collect()
        };
        let all: Vec<_> = peaks.iter().map(|peak| causes(peak.number)).collect();
        assert_eq!(all, [["f0/fast"], ["f0/slow"]], "{peaks:?}");
    }

    /// The slow ones go on in five functions more.
    #[test]
    fn peaks_that_come_apart_begin_with_what_they_were_known_to_go_on_in() {
        let program = (2..=6).fold(smeared_at_first(), |program, id| {
            let name = ["slow", "b", "c", "d", "e"][id as usize - 2];
            let calls = [(id + 1, call(id + 1))];
            match id {
                2 => program.function(id, name, &calls, |run| run.call(3, 3)),
                3 => program.function(id, name, &calls, |run| run.call(4, 4)),
                4 => program.function(id, name, &calls, |run| run.call(5, 5)),
                5 => program.function(id, name, &calls, |run| run.call(6, 6)),
                _ => program.function(id, name, &[], |run| run.work(run.level)),
            }
        });
        let mut session = Session::new(program, Params::default());
        session.analysis.look_on();
        session.run(20_000);
        assert!(session.analysis.is_looking_on());
        session.analysis.seen_enough();
        session.serve();
        let first = session.next_op;
        while !session.analysis.is_checking() && !session.finished {
            session.run(1);
        }
        let peaks = session.analysis.peaks();
        let slow = peaks.last().expect("two").number;
        let causes: Vec<String> = session.causes(slow).into_iter().map(|it| it.0).collect();
        assert_eq!(causes, ["f0/slow/b/c/d/e"], "{peaks:?}");
        assert!(session.analysis.early.is_empty());
        let ops = session.next_op - first;
        assert!(ops <= 300, "{ops}");
    }

    /// What is not known of the peaks that were cut anew when their time is over is not told as known, and nothing is waited for.
    #[test]
    fn a_descent_that_takes_too_long_ends_undecided() {
        let mut session = Session::new(smeared_at_first(), Params::default());
        session.analysis.look_on();
        session.run(20_000);
        session.analysis.seen_enough();
        session.serve();
        assert!(!session.analysis.is_answered());
        session.analysis.end_descents();
        assert!(session.analysis.is_answered());
        session.serve();
        session.run(20_000);
        assert!(session.finished);
        assert_eq!(session.analysis.status(), Status::Undecided);
        let slow = session.analysis.peaks().last().expect("two").number;
        let causes = session.causes(slow);
        assert!(
            causes.iter().all(|(_, _, stop)| *stop == Stop::TooRare),
            "{causes:?}"
        );
    }

    /// The slow ones have most of the time: they are waited for until they have their answer.
    #[test]
    fn what_most_of_the_time_is_in_is_waited_for() {
        let mut session = Session::new(smeared_at_first(), Params::default());
        session.analysis.look_on();
        session.run(20_000);
        session.analysis.seen_enough();
        session.serve();
        let slow = session.analysis.peaks().pop().expect("two");
        let stands = session.analysis.before_cut.take();
        let awaited = session.analysis.awaited_ops().expect("not answered");
        assert_eq!(awaited.get(&slow.number), Some(&slow.content.ops));
        // Not where an answer stands that is of half of the time.
        session.analysis.before_cut = stands;
        assert_eq!(session.analysis.awaited_ops(), None);
        session.run(20_000);
        assert!(session.finished);
        assert_eq!(session.analysis.awaited_ops(), None);
    }

    /// The few have most of the time that was the one peak's.
    #[test]
    fn what_few_ops_do_is_not_the_cause_of_a_peak_without_them() {
        let session = looked_on(with_two_callees(|run| smeared(run, 0.05)), 20_000);
        assert!(session.finished);
        let peaks = session.analysis.peaks();
        let first: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(first, ["f0/fast"], "{peaks:?}");
    }

    fn one_in_twelve<const SEED: u64>(run: &mut Run<'_>) {
        let is_slow = run.random(2 * SEED) < 0.08;
        let level = if is_slow { 300_000.0 } else { 100_000.0 };
        run.level = (level * (1.0 + 0.1 * run.random(2 * SEED + 1))) as u64;
        let which = 1 + u32::from(is_slow);
        run.call(which, which);
    }

    /// Too few of the first ops take three times as long for a peak of their own. Later these are one, and no cause of the others.
    #[test]
    fn a_peak_is_not_of_the_ops_that_were_cut_away() {
        let bodies: [fn(&mut Run<'_>); 4] = [
            one_in_twelve::<0>,
            one_in_twelve::<1>,
            one_in_twelve::<2>,
            one_in_twelve::<3>,
        ];
        for (seed, body) in bodies.into_iter().enumerate() {
            let session = looked_on(with_two_callees(body), 20_000);
            assert!(session.finished);
            let peaks = session.analysis.peaks().into_iter();
            let causes = peaks.map(|peak| -> Vec<String> {
                let causes = session.causes(peak.number).into_iter();
                causes.map(|(path, ..)| path).collect()
            });
            let causes: Vec<_> = causes.collect();
            assert_eq!(causes, [["f0/fast"], ["f0/slow"]], "{seed}");
        }
    }

    /// Of the first ops some take twice as long, later hardly any: that was chance. The program ends before it has been looked on for
    /// long.
    #[test]
    fn what_was_a_peak_of_the_first_ops_alone_is_none_at_the_end() {
        let program = with_two_callees(|run| {
            let is_long = run.op < 100 && run.op % 7 == 0;
            run.level = if is_long { 2_500 } else { 1_000 };
            run.call(1, 1);
        });
        let mut session = Session::new(program, Params::default());
        session.analysis.look_on();
        session.run(3_000);
        assert_eq!(session.analysis.peaks().len(), 2);
        session.analysis.drop_former_peaks();
        assert_eq!(session.analysis.peaks().len(), 1);
        assert_eq!(session.causes(1)[0].0, "f0/fast");
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
    }

    #[test]
    fn an_answer_stands_while_others_are_looked_for() {
        let program = || {
            Program::default()
                .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                    match run.op % 1_000 == 999 {
                        true => run.call(2, 2),
                        false => run.call(1, 1),
                    }
                })
                .function(1, "usual", &[], |run| run.work(1_000))
                .function(2, "rare", &[], |run| run.work(200_000))
        };
        let mut session = Session::new(program(), Params::default());
        session.analysis.look_on();
        session.run(500);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        assert_eq!(session.probes(), 0);
        session.run(99_500);
        session.analysis.seen_enough();
        session.serve();
        session.run(50_000);
        assert!(session.finished);
        let rare: Vec<String> = session.causes(2).into_iter().map(|it| it.0).collect();
        assert_eq!(rare, ["f0/rare"]);
    }

    #[test]
    fn the_answer_of_before_is_taken_back_where_no_new_one_was_found() {
        let mut session = Session::new(smeared_at_first(), Params::default());
        session.analysis.look_on();
        session.run(10_000);
        let causes = |session: &Session| -> Vec<Vec<_>> {
            let peaks = session.analysis.peaks().into_iter();
            peaks.map(|peak| session.causes(peak.number)).collect()
        };
        let before = causes(&session);
        assert!(!session.analysis.take_back(), "nothing was cut");
        session.analysis.seen_enough();
        session.serve();
        assert!(!session.analysis.is_answered());
        // Whether they are open still, or have ended without an answer.
        let mut ended = session.analysis.clone();
        ended.end_descents();
        assert!(ended.is_answered() && ended.take_back());
        assert_eq!(
            ended.peaks(),
            session.analysis.before_cut.as_ref().unwrap().peaks()
        );
        assert!(session.analysis.take_back());
        assert_eq!(causes(&session), before);
        assert!(session.analysis.is_finished());
        // Those stay that have half of the time and their answers, whatever is seldom.
        let seldom = with_two_callees(|run| smeared(run, 0.015));
        let mut session = Session::new(seldom, Params::default());
        session.analysis.look_on();
        session.run(10_000);
        session.analysis.seen_enough();
        session.serve();
        session.run(300);
        assert!(session.analysis.before_cut.is_some() && !session.analysis.is_answered());
        assert!(!session.analysis.take_back());
        assert_eq!(session.analysis.peaks().len(), 2);
        // With answers these stay, also while they are held against later ops.
        let mut session = Session::new(smeared_at_first(), Params::default());
        session.analysis.look_on();
        session.run(10_000);
        session.analysis.seen_enough();
        session.serve();
        while !session.analysis.is_checking() {
            session.run(10);
        }
        assert!(!session.analysis.take_back());
        assert_eq!(session.analysis.peaks().len(), 2);
    }

    #[test]
    fn an_answer_stands_where_no_ops_come_any_more() {
        let mut session = Session::new(smeared_at_first(), Params::default());
        session.analysis.look_on();
        session.run(10_000);
        assert!(session.analysis.is_answered() && !session.finished);
        let before = session.analysis.peaks().len();
        session.analysis.stop_looking();
        session.serve();
        assert!(session.finished && session.analysis.is_finished());
        assert_eq!(session.analysis.peaks().len(), before);
    }

    #[test]
    fn an_analysis_that_does_not_look_on_ends_with_its_answers() {
        let mut session = Session::new(smeared_at_first(), Params::default());
        session.analysis.seen_enough();
        session.run(20_000);
        assert!(session.finished && session.analysis.is_finished());
    }
}
