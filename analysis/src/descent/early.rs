//! Where ops of a peak come slowly, the descent goes on below a function before that is decided.
//!
//! Each decision takes twenty ops at least, and each is made with ops that come after the one before. Of a call that is
//! slow once a second a path of ten functions would take minutes. So the callees that took much of the time in the first ops are
//! looked into at once, in the same ops that their caller's decision waits for. Where that decision is another one, what was
//! begun below is forgotten. Who can look at the stacks of slow ops while these last knows more at once: [`Analysis::slow`] says which
//! ops are meant, [`Analysis::foresee`] takes what was seen.

use darc_record::{FnodeId, Ticks, Tsc};

use crate::descent::Analysis;
use crate::descent::ftree::{Absence, Callee, Expansion, Fnode, Probe};
use crate::descent::params::PeakChoice;
use crate::descent::peak_record::{PathState, Stop};
use crate::descent::recursion;
use crate::descent::share::{ALWAYS, Estimate, LEAST};
use crate::profile::peaks::Peak;

/// So many ops tell,
const OPS: u64 = 5;
/// ... if these took longer: some tens of milliseconds. Others are decided as soon.
const SLOWLY: Ticks = Ticks(1 << 27);
/// The first one tells where it took so long to come: some tenths of a second.
const SELDOM: Ticks = Ticks(1 << 29);

/// So many functions of a peak are gone on with at a time before it has to be.
const MOST: usize = 64;

/// Ops that are shorter are not looked at: some milliseconds, many times as long as a look.
const SHORT: Ticks = Ticks(1 << 23);
/// While no peak is known yet, ops of this length may be slow: some milliseconds.
const LONG: Ticks = Ticks(1 << 24);

/// Ops that are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slow {
    /// Their peak; `None` while peaks are looked for.
    pub peak: Option<u32>,
    /// An op that takes longer than this is none of a faster peak.
    pub beyond: Ticks,
}

/// A function that the ops of a new peak may go on in.
pub(crate) struct Foreseen {
    pub(crate) fnode: FnodeId,
    /// The least part of an op's time that it had where it was a cause.
    pub(crate) least_part: Option<u32>,
}

impl Analysis {
    /// Begins below the functions of a peak whose decision is waited for and may be foreseen, at the end of an op.
    /// It said something of the functions that are `counted`.
    pub(crate) fn begin_early(&mut self, peak: u32, counted: &[FnodeId], now: Tsc) {
        let counted = counted.iter();
        let waited_for = counted.filter(|&&fnode| self.is_waited_for(fnode, peak, now));
        let foreseen: Vec<FnodeId> = waited_for
            .flat_map(|&fnode| self.foreseen(fnode, peak))
            .flat_map(|first| self.followed(first, peak))
            .filter(|&at| !self.ftree.fnode(at).record(peak).is_chosen())
            // That ends a path, which a few ops may not.
            .filter(|&at| !recursion::is_deep(&self.ftree, peak, at))
            .take(MOST.saturating_sub(self.early.iter().filter(|at| at.1 == peak).count()))
            .collect();
        for fnode in foreseen {
            self.early.insert((fnode, peak));
            self.begin_path(fnode, peak);
        }
    }

    /// Begins below a new peak's f0 what ops like its own went on in: these functions, callers first.
    pub(crate) fn begin_foreseen(&mut self, peak: u32, functions: Vec<Foreseen>) {
        for Foreseen {
            fnode: id,
            least_part,
        } in functions
        {
            let caller = self.ftree.fnode(id).parent.map(|at| self.ftree.fnode(at));
            let is_decided_in_the_same_ops =
                |caller: &Fnode| caller.record(peak).state.is_open() && !caller.is_in_batches();
            if caller.is_some_and(is_decided_in_the_same_ops) {
                self.ftree.fnode_mut(id).record_mut(peak).least_part = least_part;
                self.early.insert((id, peak));
                self.begin_path(id, peak);
            }
        }
    }

    /// The peaks whose ops come slowly and are waited for.
    #[must_use]
    pub fn slow(&self, now: Tsc) -> Vec<Slow> {
        let is_wanted = matches!(self.params.peak, PeakChoice::All | PeakChoice::One(_));
        if self.peaks.is_empty() && is_wanted && !self.finished {
            let beyond = LONG;
            return vec![Slow { peak: None, beyond }];
        }
        let waited_for = self.peaks.iter().filter(|at| {
            let is_open = at.open.is_some_and(|open| open > 0);
            is_open && self.is_slow(at.peak.number, now)
        });
        let longest = |peak: &Peak| self.params.resolution.bounds(peak.last_bucket);
        let slow = waited_for.map(|at| {
            let is_faster = |peak: &Peak| peak.last_bucket < at.peak.first_bucket;
            let faster = self.peaks.iter().map(|other| &other.peak);
            let faster = faster.filter(|peak| is_faster(peak)).filter_map(longest);
            let beyond = faster.fold(SHORT, |beyond, (_, longest)| beyond.max(longest));
            let peak = Some(at.peak.number);
            Slow { peak, beyond }
        });
        slow.collect()
    }

    /// Whether a decision of the peak has waited for ops for a while.
    fn is_slow(&self, peak: u32, now: Tsc) -> bool {
        self.measured.iter().any(|&id| {
            let fnode = self.ftree.fnode(id);
            let since = match fnode.expansion {
                Expansion::Complete(since) => since,
                _ => return false,
            };
            let record = fnode.record(peak);
            let is_collecting = record.state == PathState::Collecting;
            let has_few = record.decision_ops < self.params.decision_ops;
            is_collecting && has_few && now - since >= SLOWLY
        })
    }

    /// A function was seen on the stack in ops of a peak: what it calls is measured at once, where it is not decided yet whether the peak
    /// goes on in it. Whether that begins now.
    ///
    /// # Panics
    /// When it is no fnode of this analysis.
    pub fn foresee(&mut self, id: FnodeId, peak: u32) -> bool {
        let fnode = self.ftree.fnode(id);
        let caller = fnode.parent.map(|at| self.ftree.fnode(at));
        let is_next = caller.is_some_and(|caller| {
            let is_checked = self.checks.contains_key(&(caller.id, peak));
            caller.record(peak).state.is_open()
                && !caller.is_in_batches()
                && !is_checked
                && !self.tells_faults(caller.id, peak)
        });
        let is_apt = is_next
            && matches!(fnode.callee, Callee::Function(_))
            && !fnode.record(peak).is_chosen()
            && fnode.probe == Probe::Wanted
            && !recursion::may_be_deep(&self.ftree, id)
            && self.early.iter().filter(|at| at.1 == peak).count() < MOST;
        if is_apt {
            self.early.insert((id, peak));
            self.begin_path(id, peak);
        }
        is_apt
    }

    /// Whether the calls of a function are known and not measured yet, so that others may be added without a loss.
    #[must_use]
    pub fn is_being_expanded(&self, id: FnodeId) -> bool {
        self.ftree.fnode(id).expansion == Expansion::Requested
    }

    /// Whether the ops that decide about a function come slowly.
    fn is_waited_for(&self, id: FnodeId, peak: u32, now: Tsc) -> bool {
        let fnode = self.ftree.fnode(id);
        let record = fnode.record(peak);
        let Expansion::Complete(since) = fnode.expansion else {
            return false;
        };
        let is_slow = match record.decision_ops {
            1..OPS => now - since >= SELDOM,
            // Not after each of them.
            OPS | 8 | 13 | 20 | 31 | 47 => now - since >= SLOWLY,
            _ => false,
        };
        is_slow
            && record.state == PathState::Collecting
            && !self.checks.contains_key(&(id, peak))
            && !fnode.is_in_batches()
    }

    /// The callees that the decision of a function may be for.
    fn foreseen(&self, id: FnodeId, peak: u32) -> Vec<FnodeId> {
        if self.tells_faults(id, peak) {
            return Vec::new();
        }
        let parts = self.parts(id, peak);
        let callee = |part: &Option<FnodeId>| part.map(|at| self.ftree.fnode(at).callee);
        // A small part of the peak is not gone on with before it has to be, for there may be many: what would be no cause of the
        // peak, neither by time nor by ops.
        let weight = self.weight(id, peak);
        let is_long = |(part, estimate): &(Option<FnodeId>, Estimate)| {
            let share = estimate.time.at;
            let is_function = matches!(callee(part), Some(Callee::Function(_)));
            let is_much = share * weight.time >= LEAST || estimate.ops.at * weight.ops >= LEAST;
            is_function && share >= ALWAYS && is_much
        };
        let found = parts.into_iter().filter(is_long);
        found.filter_map(|(part, _)| part).collect()
    }

    /// Page faults that are told at a function are not told below, which only its decision says.
    fn tells_faults(&self, id: FnodeId, peak: u32) -> bool {
        let is_fault = |(part, estimate): (Option<FnodeId>, Estimate)| {
            let callee = part.map(|at| self.ftree.fnode(at).callee);
            callee == Some(Callee::Absence(Absence::PageFault)) && estimate.time.at >= LEAST / 2.0
        };
        self.parts(id, peak).into_iter().any(is_fault)
    }

    /// A function is decided: what was begun early below it stands where it is `chosen` and has not stalled, and is forgotten elsewhere.
    pub(crate) fn confirm_early(&mut self, id: FnodeId, peak: u32, chosen: &[FnodeId]) {
        for child in self.ftree.fnode(id).children.clone() {
            // What stalled meanwhile is begun anew: it was not known yet that it is a cause.
            let has_stalled =
                self.ftree.fnode(child).record(peak).state == PathState::Ended(Stop::TooRare);
            let is_left = !chosen.contains(&child) || has_stalled;
            if self.early.remove(&(child, peak)) && is_left {
                self.forget_path(child, peak);
            }
        }
    }

    /// A function is not waited for any longer, and so nothing is that was begun early below it: what is known of that is told.
    pub(crate) fn give_up_early(&mut self, id: FnodeId, peak: u32) {
        let mut below = self.ftree.fnode(id).children.clone();
        while let Some(id) = below.pop() {
            let fnode = self.ftree.fnode(id);
            let state = &fnode.record(peak).state;
            if state.is_open() {
                self.set_state(id, peak, PathState::Ended(Stop::TooRare));
            } else if matches!(state, PathState::Decided(_)) {
                below.extend(&fnode.children);
            }
        }
    }

    pub(crate) fn forget_path(&mut self, from: FnodeId, peak: u32) {
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
    use darc_record::{FnodeId, Ticks, Tsc};

    use crate::descent::stall::Stall;
    use crate::simulate::{Program, Run, Session, call};
    use crate::{Analysis, CauseKind, Params, Status, Stop};

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
        let slow = ops_of(|run| run.work(1 << 27));
        let seldom = ops_of(|run| run.work(1 << 30));
        assert!(often >= 100 + 6 * 20, "{often}");
        assert!(slow <= 20 + 6 * 5 + 25, "{slow}");
        assert!(seldom <= 10 + 6 + 25, "{seldom}");
    }

    /// The stacks of the first ops lead down the whole chain, as the session sees it.
    #[test]
    fn what_is_foreseen_is_decided_by_the_same_ops() {
        let mut session = Session::new(chain(|run| run.work(1 << 27)), Params::default());
        while session.analysis.peaks().is_empty() {
            let slow = session.analysis.slow(Tsc(u64::MAX));
            assert!(slow.iter().all(|slow| slow.peak.is_none()));
            session.run(1);
        }
        session.run(1);
        let slow = session.analysis.slow(Tsc(u64::MAX));
        assert_eq!(slow.iter().map(|it| it.peak).collect::<Vec<_>>(), [Some(1)]);
        assert!(slow[0].beyond < Ticks(1 << 27));
        assert_eq!(session.analysis.slow(Tsc(0)), []);
        let mut at = FnodeId::ROOT;
        for _ in NAMES {
            let ftree = session.analysis.ftree();
            let calls = ftree.fnode(at).children.iter().copied();
            let mut calls = calls.filter(|&at| ftree.fnode(at).site.is_some());
            at = calls.next().expect("a call");
            assert!(session.analysis.foresee(at, 1));
            assert!(!session.analysis.foresee(at, 1), "it has begun");
            session.serve();
        }
        session.run(1_000);
        assert_eq!(session.causes(1)[0].0, "f0/a/b/c/d/e/f");
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        assert!(session.next_op <= 20 + 25, "{}", session.next_op);
    }

    /// A stack may lead to what no op calls there.
    #[test]
    fn what_no_op_has_called_is_not_told() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| run.call(1, 1))
            .function(1, "a", &[(3, call(3))], |run| run.call(3, 3))
            .function(3, "b", &[], |run| run.work(1 << 27))
            .function(2, "c", &[], |_| {});
        let params = Params {
            decision_ops: 100,
            ..Params::default()
        };
        let mut session = Session::new(program, params);
        while session.analysis.ftree().root().children.is_empty() {
            session.run(1);
        }
        for child in session.analysis.ftree().root().children.clone() {
            session.analysis.foresee(child, 1);
        }
        let told = |session: &Session| {
            let causes = session.causes(1).into_iter();
            causes.map(|it| it.0).collect::<Vec<_>>()
        };
        assert_eq!(told(&session), ["f0"]);
        session.serve();
        session.run(30);
        assert_eq!(told(&session), ["f0/a/b"]);
        session.analysis.end_descents();
        assert_eq!(told(&session), ["f0/a/b"]);
    }

    /// Two looks met something rare.
    #[test]
    fn what_was_foreseen_in_vain_is_forgotten() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                run.call(1, 1);
                run.call(2, 2);
            })
            .function(1, "a", &[(3, call(3))], |run| run.call(3, 3))
            .function(3, "b", &[], |run| run.work(1 << 27))
            .function(2, "c", &[(4, call(4))], |run| run.call(4, 4))
            .function(4, "d", &[], |run| run.work(1 << 20));
        let mut session = Session::new(program, Params::default());
        while session.analysis.ftree().root().children.is_empty() {
            session.run(1);
        }
        for child in session.analysis.ftree().root().children.clone() {
            session.analysis.foresee(child, 1);
        }
        session.serve();
        session.run(1_000);
        let causes: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(causes, ["f0/a/b"]);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        assert!(session.analysis.early.is_empty());
    }

    #[test]
    fn what_stalls_before_its_caller_is_decided_is_begun_anew() {
        let mut session = Session::new(chain(|run| run.work(1 << 27)), Params::default());
        while session.analysis.early.is_empty() {
            session.run(1);
        }
        let early = session.analysis.early.clone().into_iter();
        for (child, peak) in early.take(1) {
            session
                .analysis
                .stall_paths(peak, vec![(child, Stall::Rare)]);
        }
        session.serve();
        session.run(1_000);
        assert_eq!(session.causes(1)[0].0, "f0/a/b/c/d/e/f");
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
    }

    /// Half of the ops go on in `b`, half in `c`, and each of these in a function of its own.
    #[test]
    fn causes_in_turn_are_begun_side_by_side() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1))], |run| run.call(1, 1))
            .function(1, "a", &[(2, call(2)), (3, call(3))], |run| {
                match run.op % 2 {
                    0 => run.call(2, 2),
                    _ => run.call(3, 3),
                }
            })
            .function(2, "b", &[(4, call(4))], |run| run.call(4, 4))
            .function(3, "c", &[(5, call(5))], |run| run.call(5, 5))
            .function(4, "d", &[], |run| run.work(1 << 30))
            .function(5, "e", &[], |run| run.work(1 << 30));
        let mut session = Session::new(program, Params::default());
        session.run(1_000);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        let causes: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(causes, ["f0/a/b/d", "f0/a/c/e"]);
        assert!(session.next_op <= 10 + 4 + 64, "{}", session.next_op);
    }

    /// A third of the ops go on in `a`, and are that much shorter that these have less than a tenth of the time.
    #[test]
    fn what_many_ops_do_is_begun_early_though_it_takes_little_of_the_time() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                match run.op % 3 {
                    0 => run.call(1, 1),
                    _ => run.call(2, 2),
                }
            })
            .function(1, "a", &[(3, call(3))], |run| run.call(3, 3))
            .function(3, "b", &[(4, call(4))], |run| run.call(4, 4))
            .function(4, "c", &[(5, call(5))], |run| run.call(5, 5))
            .function(5, "d", &[], |run| run.work(4 << 26))
            .function(2, "e", &[], |run| run.work(20 << 26));
        let params = Params {
            range: Some(crate::Range::Between(Ticks(0), Ticks(u64::MAX))),
            ..Params::default()
        };
        let mut session = Session::new(program, params);
        session.run(1_000);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
        let mut causes: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        causes.sort();
        assert_eq!(causes, ["f0/a/b/c/d", "f0/e"]);
        assert!(session.next_op <= 240, "{}", session.next_op);
    }

    /// As long as nothing is decided, what is begun is told in its caller's place, and another run goes on with it.
    #[test]
    fn what_is_begun_is_told_as_not_decided() {
        let params = Params {
            decision_ops: 100,
            ..Params::default()
        };
        let program = || chain(|run| run.work(1 << 30));
        let mut session = Session::new(program(), params);
        session.run(30);
        let deepest = ("f0/a/b/c/d/e/f".to_owned(), CauseKind::Function);
        let told = |session: &Session| {
            let causes = session.causes(1).into_iter();
            causes
                .map(|(path, kind, stop)| ((path, kind), stop))
                .collect::<Vec<_>>()
        };
        let undecided = Stop::StillDescending;
        assert_eq!(told(&session), [(deepest.clone(), undecided)]);
        assert_eq!(session.analysis.status(), Status::InProgress);
        let begun = session.analysis.early.clone();
        assert_eq!(begun.len(), 6);
        let analysis = Analysis::resume(params, session.stored()).unwrap();
        assert_eq!(analysis.early, begun);
        let mut session = Session::over(program(), analysis);
        session.run(1_000);
        assert_eq!(told(&session), [(deepest, Stop::NoCalls)]);
        assert!(session.analysis.early.is_empty());
    }

    /// Before the session has served the request for its calls. They are asked for again where it turns out to be a cause.
    #[test]
    fn what_is_forgotten_before_it_was_begun_is_looked_into_later() {
        let mut session = Session::new(chain(|run| run.work(1 << 14)), Params::default());
        while session.analysis.ftree().root().children.is_empty() {
            session.run(1);
        }
        let a = session.analysis.ftree().root().children[0];
        session.analysis.begin_path(a, 1);
        session.analysis.forget_path(a, 1);
        session.serve();
        session.run(1_000);
        assert_eq!(session.causes(1)[0].0, "f0/a/b/c/d/e/f");
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
    }

    /// Nothing is waited for any longer: it is told as before, and another run goes on with it.
    #[test]
    fn what_is_begun_is_told_when_it_is_given_up() {
        let params = Params {
            decision_ops: 100,
            ..Params::default()
        };
        let mut session = Session::new(chain(|run| run.work(1 << 30)), params);
        session.run(30);
        let begun = session.analysis.early.clone();
        session.analysis.end_descents();
        assert!(session.analysis.is_answered());
        let deepest = "f0/a/b/c/d/e/f".to_owned();
        let told = session.causes(1);
        assert_eq!(
            told,
            [(deepest.clone(), CauseKind::Function, Stop::TooRare)]
        );
        assert_eq!(session.analysis.status(), Status::Undecided);
        let analysis = Analysis::resume(params, session.stored()).unwrap();
        assert_eq!(analysis.early, begun);
        let mut session = Session::over(chain(|run| run.work(1 << 30)), analysis);
        session.run(1_000);
        assert_eq!(session.causes(1)[0].0, deepest);
        assert_eq!(session.analysis.status(), Status::RootCauseFound);
    }

    #[test]
    fn what_was_not_rightly_foreseen_is_forgotten() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                match run.op < 40 {
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
        session.run(30);
        let a = session.analysis.early.iter().next().copied();
        assert!(a.is_some(), "it was begun early");
        session.run(2_000);
        assert!(session.finished);
        let causes: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(causes, ["f0/b"]);
        assert!(session.analysis.early.is_empty());
    }

    #[test]
    fn what_is_forgotten_when_the_time_is_over_is_not_decided() {
        let f0 = |run: &mut Run<'_>| {
            // Long ops that do not come again are waited for.
            let long = if matches!(run.op, 2 | 5 | 8) { 2 } else { 1 };
            let of_a = if run.op < 16 { 10 } else { 1 };
            run.level = of_a;
            run.call(1, 1);
            run.level = 32 * long - of_a;
            run.call(2, 2);
        };
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], f0)
            .function(1, "a", &[(3, call(3))], |run| run.call(3, 3))
            .function(2, "b", &[], |run| run.work(run.level << 25))
            .function(3, "c", &[], |run| run.work(run.level << 25));
        let mut session = Session::new(program, Params::default());
        session.run(90);
        assert!(!session.analysis.is_answered());
        assert!(session.analysis.early.iter().any(|&(_, peak)| peak == 1));
        session.analysis.decide_without_long_ops();
        session.serve();
        let causes: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(causes, ["f0/b"]);
    }
}
