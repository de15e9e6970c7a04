//! Paths that come no nearer to their decisions, and why each of them ends without one.
//!
//! A path collects until enough ops have said who takes its time. Where they do not come it ends in words: waiting would keep
//! its probes in the target for ever. These are all the reasons ([`Stall`]). The counts are those of one run, and are not
//! stored: a run that goes on with the results asks again.

use darc_record::FnodeId;

use crate::descent::Analysis;
use crate::descent::decision::Contribution;
use crate::descent::ftree::Expansion;
use crate::descent::noise::Noise;
use crate::descent::peak_record::{PathState, Stop};
use crate::profile::histogram::Profile;
use crate::profile::peaks::has_weight;

/// [`Stall::Silent`] after so many times `decision_ops` ops of the peak.
const SILENT: u64 = 25;
/// [`Stall::Unresolved`] after so many times `decision_ops` ops.
const UNRESOLVED: u64 = 5;
/// [`Stall::Rare`] is looked for among so many times `decision_ops` ops at least: of a peak with a hundredth of them some come.
const RARE: u64 = 25;

/// Why a path is not waited for any longer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stall {
    /// Ops of the peak come, but its function is no cause in any of them. What the person asked for alone is waited for.
    Silent,
    /// The variation of the probes drowns who takes the time, or the ops as a whole.
    Unresolved,
    /// The peak holds next to none of the ops any more, and all others are answered. It was chance, or its ops take longer
    /// than its range since what they call is measured. What the person asked for alone is waited for.
    Rare,
    /// So many calls in an op that measuring them drowns everything, in the words for the person.
    Busy(String),
}

impl Stall {
    /// What the path's end says of it.
    fn stop(self, noise: &Noise) -> Stop {
        match self {
            Stall::Silent | Stall::Rare => Stop::TooRare,
            Stall::Unresolved => Stop::NotInstrumentable(noise.remedy().to_owned()),
            Stall::Busy(why) => Stop::NotInstrumentable(why),
        }
    }
}

/// The ops of one (fnode, peak) that brought it no nearer to its decision.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Fruitless {
    /// Those in which the variation of the probes decides who takes the time, less some for each that counts.
    unresolved: u64,
    /// Those without a call that counts, since the last one with such a call.
    silent: u64,
}

impl Analysis {
    /// Takes what an op said about an fnode's time: whether the path there stalls with it.
    pub(crate) fn stalls_at(
        &mut self,
        fnode: FnodeId,
        peak: u32,
        said: Contribution,
    ) -> Option<Stall> {
        let after = |times: u64| times.saturating_mul(self.params.decision_ops.max(1));
        let key = (fnode, peak);
        match said {
            Contribution::Counted => {
                if let Some(ops) = self.fruitless.get_mut(&key) {
                    ops.silent = 0;
                    ops.unresolved = ops.unresolved.saturating_sub(UNRESOLVED);
                }
                None
            }
            Contribution::Silent => {
                let ops = self.fruitless.entry(key).or_default();
                ops.silent = ops.silent.saturating_add(1);
                let is_over = ops.silent >= after(SILENT);
                (is_over && !self.params.is_asked_for()).then_some(Stall::Silent)
            }
            Contribution::Unresolved => {
                let ops = self.fruitless.entry(key).or_default();
                ops.unresolved = ops.unresolved.saturating_add(1);
                (ops.unresolved >= after(UNRESOLVED)).then_some(Stall::Unresolved)
            }
        }
    }

    /// Counts an op that is too short as a whole, and ends the peak's open paths when there is nothing but such ops.
    pub(crate) fn count_unresolved(&mut self, peak: u32) {
        let at = &mut self.peaks[peak as usize - 1];
        at.unresolved = at.unresolved.saturating_add(1);
        if at.unresolved < UNRESOLVED.saturating_mul(self.params.decision_ops.max(1)) {
            return;
        }
        let fnodes = self.ftree.fnodes();
        let open = fnodes.filter(|fnode| fnode.record(peak).state.is_open());
        let open = open.map(|fnode| (fnode.id, Stall::Unresolved)).collect();
        self.stall_paths(peak, open);
    }

    /// Ends the open paths of all peaks that are a negligible share of the ops of late and of their time, when no other
    /// peak is open. False when these ops are too few to say.
    pub fn stall_rare(&mut self, lately: &Profile) -> bool {
        if lately.count() < RARE.saturating_mul(self.params.decision_ops) {
            return false;
        }
        if self.params.is_asked_for() {
            return true;
        }
        let is_open = |&number: &u32| self.peaks[number as usize - 1].open.unwrap_or(0) > 0;
        let open: Vec<u32> = (1..=self.peaks.len() as u32).filter(is_open).collect();
        let weighs = |&number: &u32| {
            let peak = &self.peaks[number as usize - 1].peak;
            has_weight(&lately.range(peak.first_bucket, peak.last_bucket), lately)
        };
        if open.iter().any(weighs) {
            return true;
        }
        for peak in open {
            // Paths whose calls are not measured yet are looked at when they are.
            let fnodes = self.ftree.fnodes();
            let collecting =
                fnodes.filter(|fnode| fnode.record(peak).state == PathState::Collecting);
            let rare = collecting.map(|fnode| (fnode.id, Stall::Rare)).collect();
            self.stall_paths(peak, rare);
        }
        self.settle();
        true
    }

    /// Ends every open path at an fnode, and never measures its calls again.
    pub fn stall(&mut self, fnode: FnodeId, why: Stall) {
        tracing::debug!(target: "descent", fnode = fnode.0, ?why, "stalled");
        self.end_at(fnode, why.stop(&self.noise));
    }

    /// Ends these open paths of a peak.
    pub(crate) fn stall_paths(&mut self, peak: u32, paths: Vec<(FnodeId, Stall)>) {
        if paths.is_empty() {
            return;
        }
        for (fnode, why) in paths {
            // With the end of a path that of what was begun early below it may have come.
            if self.ftree.fnode(fnode).record(peak).state.is_open() {
                tracing::debug!(target: "descent", fnode = fnode.0, peak, ?why, "stalled");
                let stop = why.stop(&self.noise);
                self.set_state(fnode, peak, PathState::Ended(stop));
            }
        }
        self.settle();
    }

    /// Ends every open path at an fnode whose calls are not to be measured (any more).
    pub(crate) fn end_at(&mut self, fnode: FnodeId, stop: Stop) {
        self.ftree.fnode_mut(fnode).expansion = Expansion::Impossible(stop.clone());
        self.measured.retain(|&measured| measured != fnode);
        for peak in self.open_at(fnode) {
            self.set_state(fnode, peak, PathState::Ended(stop.clone()));
        }
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use darc_record::{Arguments, Op, SiteId, Ticks, Touched, Tsc};

    use super::*;
    use crate::simulate::{Program, Session, call};
    use crate::{Callee, Params, PeakChoice, PeakStatus, Request, Status};

    /// f0 calls A and B, both for long. Whether A or the longest of its many calls takes the time is within the variation
    /// of their probes; below B is a chain in which every fnode is clear.
    fn one_clear_and_one_not() -> Program {
        let f0 = |run: &mut crate::simulate::Run<'_>| {
            run.call(1, 1);
            run.call(2, 2);
        };
        let mut program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], f0)
            .function(1, "A", &[(10, call(10))], |run| {
                for step in 0..60 {
                    run.level = step;
                    run.work(9_000);
                    run.call(10, 10);
                }
            })
            .function(10, "short", &[], |run| {
                run.work(if run.level == 0 { 300_000 } else { 10 });
            });
        const CHAIN: [&str; 8] = ["B", "b1", "b2", "b3", "b4", "b5", "b6", "b7"];
        for (below, name) in CHAIN.into_iter().enumerate() {
            let id = [2, 20, 21, 22, 23, 24, 25, 26][below];
            program = match below {
                7 => program.function(id, name, &[], |run| run.work(600_000)),
                _ => {
                    let next = 20 + below as u32;
                    program.function(id, name, &[(next, call(next))], BODIES[below])
                }
            };
        }
        program
    }

    const BODIES: [fn(&mut crate::simulate::Run<'_>); 7] = [
        |run| run.call(20, 20),
        |run| run.call(21, 21),
        |run| run.call(22, 22),
        |run| run.call(23, 23),
        |run| run.call(24, 24),
        |run| run.call(25, 25),
        |run| run.call(26, 26),
    ];

    #[test]
    fn a_path_that_cannot_be_resolved_ends_alone() {
        let mut analysis = Analysis::new(Params::default());
        analysis.set_noise(Noise::new(Ticks(0), Ticks(9_990), "too short".to_owned()));
        let mut session = Session::over(one_clear_and_one_not(), analysis);
        session.run(1_000);
        let ends: Vec<(String, Stop)> = session
            .causes(1)
            .into_iter()
            .map(|(path, _, stop)| (path, stop))
            .collect();
        let unresolved = Stop::NotInstrumentable("too short".to_owned());
        assert_eq!(
            ends,
            [
                ("f0/A".to_owned(), unresolved),
                ("f0/B/b1/b2/b3/b4/b5/b6/b7".to_owned(), Stop::NoCalls)
            ]
        );
        assert_eq!(session.analysis.status(), Status::Undecided);
    }

    /// The ops stay as slow as they were, but no longer in the function that the descent has chosen.
    #[test]
    fn a_path_into_a_function_that_is_called_no_more_ends_in_words() {
        let program = Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                // The descent chooses after 125 ops.
                match run.op < 130 {
                    true => run.call(1, 1),
                    false => run.call(2, 2),
                }
            })
            .function(1, "once", &[(3, call(3))], |run| run.call(3, 3))
            .function(2, "later", &[(4, call(3))], |run| run.call(4, 3))
            .function(3, "work", &[], |run| run.work(90_000));
        let mut session = Session::new(program, Params::default());
        session.run(600);
        assert_eq!(session.analysis.status(), Status::InProgress);
        assert!(session.probes() > 0);
        session.run(100);
        assert_eq!(
            session.causes(1),
            [(
                "f0/once".to_owned(),
                crate::CauseKind::Function,
                Stop::TooRare
            )]
        );
        assert!(session.finished);
        assert_eq!(session.probes(), 0);
    }

    /// Three ops at first that are never seen again, then ops that call one function, whatever they take.
    fn analysed(params: Params, usual: u64) -> Analysis {
        let mut analysis = Analysis::new(params);
        for index in 0..5_000 {
            let latency = Ticks(if index < 3 { 1 << 10 } else { usual });
            let touched = Touched {
                fnode: FnodeId(2),
                max: latency,
                max_start: Tsc(index),
                long: Ticks(0),
                sum: latency,
                count: 1,
            };
            analysis.op(&Op {
                arguments: Arguments::default(),
                tid: 1,
                start: Tsc(index),
                end: Tsc(index),
                latency,
                touched: vec![touched],
            });
            for request in analysis.requests() {
                match request {
                    Request::Expand(FnodeId::ROOT) => {
                        analysis.add_child(FnodeId::ROOT, SiteId(1), Callee::Unknown);
                        analysis.expanded(FnodeId::ROOT, Tsc(index));
                    }
                    Request::Expand(fnode) => analysis.expanded(fnode, Tsc(index)),
                    _ => {}
                }
            }
        }
        analysis
    }

    #[test]
    fn a_peak_that_became_rare_ends_in_words() {
        let mut analysis = analysed(Params::default(), 1 << 20);
        assert_eq!(analysis.status(), Status::InProgress);
        let steps = analysis.steps();
        let all = analysis.profile().clone();
        assert!(analysis.stall_rare(&all));
        assert!(analysis.steps() > steps);
        assert_eq!(analysis.status(), Status::RootCauseFound);
        assert_eq!(analysis.root_causes(1)[0].stop, Stop::TooRare);
        assert_eq!(analysis.peak_status(1), PeakStatus::Undecided);
        assert_eq!(analysis.root_causes(2)[0].stop, Stop::NoCalls);
    }

    #[test]
    fn a_peak_that_the_person_asked_for_or_that_takes_time_is_waited_for() {
        let asked = Params {
            peak: PeakChoice::One(1),
            ..Params::default()
        };
        for mut analysis in [analysed(asked, 1 << 20), analysed(Params::default(), 8)] {
            let all = analysis.profile().clone();
            assert!(analysis.stall_rare(&all));
            assert_eq!(analysis.status(), Status::InProgress);
        }
    }
}
