//! Peaks that became rare: nobody waits for them alone.
//!
//! A peak is found among few ops. Later it may hold next to none of them: it was chance, or its ops take longer than
//! the peak's range since what they call is measured. Its decisions would be a matter of hours.

use crate::descent::Analysis;
use crate::descent::peak_record::{PathState, Stop};
use crate::profile::histogram::Profile;
use crate::profile::peaks::has_weight;

impl Analysis {
    /// How often the descent has gone on by now: decisions, calls that began to be measured, paths that ended.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Ends the open paths of all peaks that are a negligible share of the ops of late and of their time, when no other
    /// peak is open. A peak that the person asked for alone is waited for.
    pub fn give_up_rare(&mut self, lately: &Profile) {
        if self.params.is_asked_for() {
            return;
        }
        let is_open = |&number: &u32| self.peaks[number as usize - 1].open.unwrap_or(0) > 0;
        let open: Vec<u32> = (1..=self.peaks.len() as u32).filter(is_open).collect();
        let weighs = |&number: &u32| {
            let peak = &self.peaks[number as usize - 1].peak;
            has_weight(&lately.range(peak.first_bucket, peak.last_bucket), lately)
        };
        if open.iter().any(weighs) {
            return;
        }
        for peak in open {
            let collecting: Vec<_> = self
                .ftree
                .fnodes()
                .filter(|fnode| fnode.record(peak).state == PathState::Collecting)
                .map(|fnode| fnode.id)
                .collect();
            // Paths whose calls are not measured yet are looked at when they are.
            let ended = collecting.into_iter().map(|id| (id, Stop::TooRare));
            self.end_paths(peak, ended.collect());
        }
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Callee, Params, PeakChoice, PeakStatus, Request, SiteId, Status};
    use darc_record::{Arguments, FnodeId, Op, Ticks, Touched, Tsc};

    /// Three ops at first that are never seen again, then ops that call one function, whatever they take.
    fn analysed(params: Params, usual: u64) -> Analysis {
        let mut analysis = Analysis::new(params);
        for index in 0..5_000 {
            let latency = Ticks(if index < 3 { 1 << 10 } else { usual });
            let touched = Touched {
                fnode: FnodeId(2),
                max: latency,
                max_start: Tsc(index),
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
    fn a_peak_that_became_rare_is_given_up_in_words() {
        let mut analysis = analysed(Params::default(), 1 << 20);
        assert_eq!(analysis.status(), Status::InProgress);
        let steps = analysis.steps();
        let all = analysis.profile().clone();
        analysis.give_up_rare(&all);
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
            analysis.give_up_rare(&all);
            assert_eq!(analysis.status(), Status::InProgress);
        }
    }
}
