//! Ops that bring an open path no nearer to its decision.
//!
//! A path collects until enough ops have said who takes its time. Where they do not come, it ends in
//! words: waiting would keep its probes in the target for ever. The counts are those of one run, and are not
//! stored: a run that goes on with the results asks again.

use darc_record::FnodeId;

use crate::descent::Analysis;
use crate::descent::decision::Contribution;
use crate::descent::noise::PATIENCE;
use crate::descent::peak_record::{PathState, Stop};

/// After so many times `decision_ops` ops of the peak in which an fnode was no cause, its path ends.
const SILENCE: u64 = 25;

/// The ops of one (fnode, peak).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Vain {
    /// Those in which the variation of the probes decides who takes the time, less some for each that counts.
    unresolved: u64,
    /// Those without a call that counts, since the last one with such a call.
    silent: u64,
}

impl Analysis {
    /// Takes what an op said about an fnode's time. Why its path ends, when that was the last of too many in vain.
    pub(crate) fn lose_patience(
        &mut self,
        fnode: FnodeId,
        peak: u32,
        said: Contribution,
    ) -> Option<Stop> {
        let enough = self.params.decision_ops.max(1);
        let key = (fnode, peak);
        match said {
            Contribution::Counted => {
                if let Some(vain) = self.vain.get_mut(&key) {
                    vain.silent = 0;
                    vain.unresolved = vain.unresolved.saturating_sub(PATIENCE);
                }
                None
            }
            Contribution::Silent => {
                let vain = self.vain.entry(key).or_default();
                vain.silent = vain.silent.saturating_add(1);
                let is_over = vain.silent >= SILENCE.saturating_mul(enough);
                // As for a peak that became rare: what the person asked for alone is waited for.
                (is_over && !self.params.is_asked_for()).then_some(Stop::TooRare)
            }
            Contribution::Unresolved => {
                let vain = self.vain.entry(key).or_default();
                vain.unresolved = vain.unresolved.saturating_add(1);
                (vain.unresolved >= PATIENCE.saturating_mul(enough))
                    .then(|| Stop::NotInstrumentable(self.noise.remedy().to_owned()))
            }
        }
    }

    /// Ends open paths of a peak.
    pub(crate) fn end_paths(&mut self, peak: u32, paths: Vec<(FnodeId, Stop)>) {
        if paths.is_empty() {
            return;
        }
        for (fnode, stop) in paths {
            // With the end of a path that of what was begun early below it may have come.
            if self.ftree.fnode(fnode).record(peak).state.is_open() {
                self.set_state(fnode, peak, PathState::Ended(stop));
            }
        }
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use darc_record::Ticks;

    use crate::descent::noise::Noise;
    use crate::descent::params::Params;
    use crate::descent::peak_record::Stop;
    use crate::simulate::{Program, Session, call};
    use crate::{Analysis, Status};

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
                // The descent chooses after 147 ops.
                match run.op < 155 {
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
}
