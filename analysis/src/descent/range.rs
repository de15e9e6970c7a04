//! Latencies that the person names as the peak.

use darc_record::Ticks;

use crate::descent::Analysis;
use crate::profile::histogram::Bucket;
use crate::profile::peaks::Peak;

/// Which ops are of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Range {
    /// Those of these latencies, both included.
    Between(Ticks, Ticks),
    /// The slowest: those above this percentile, in millionths of all ops.
    Above(u32),
}

impl Range {
    /// After how many ops it is known where it begins.
    #[must_use]
    pub fn enough(self) -> u64 {
        match self {
            Range::Between(..) => 0,
            Range::Above(percentile) => {
                let above = u64::from(ALL.saturating_sub(percentile).max(1));
                OPS_ABOVE.saturating_mul(u64::from(ALL)).div_ceil(above)
            }
        }
    }
}

/// The whole, in millionths.
pub const ALL: u32 = 1_000_000;
/// So many ops above a percentile tell where it is.
const OPS_ABOVE: u64 = 10;

impl Analysis {
    /// The ops of these latencies are the one peak; no other is looked for.
    pub fn name_range(&mut self, range: Range) {
        self.params.range = Some(range);
    }

    /// Makes the range the first peak, as soon as enough ops tell where it begins: to whole buckets.
    pub(crate) fn look_in_range(&mut self, range: Range) {
        if !self.peaks.is_empty() {
            return;
        }
        let Some((first, last)) = self.bounds_of(range) else {
            return;
        };
        let (first_bucket, last_bucket) = (self.bucket(first), self.bucket(last));
        self.push_peak(Peak {
            number: 1,
            first_bucket,
            last_bucket,
            content: Bucket::default(),
        });
        self.begin_descents();
    }

    fn bounds_of(&self, range: Range) -> Option<(Ticks, Ticks)> {
        match range {
            Range::Between(first, last) => Some((first, last)),
            Range::Above(percentile) => {
                let part = f64::from(percentile) / f64::from(ALL);
                let first = self.percentile(part);
                let first = first.filter(|_| self.profile.count() >= range.enough());
                Some((first?, Ticks(u64::MAX)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Program, Session, call};
    use crate::{CauseKind, Params, Resolution, Status, Stop};

    /// One op of 100 writes; the others take what they take, in one broad hump that the writes are in.
    fn broad() -> Program {
        Program::default()
            .function(0, "f0", &[(1, call(1)), (2, call(2))], |run| {
                match run.op % 100 == 7 {
                    true => run.call(2, 2),
                    false => run.call(1, 1),
                }
            })
            .function(1, "compute", &[], |run| {
                let time = 1_000.0 * 50_f64.powf(run.random(1));
                run.work(time as u64);
            })
            .function(2, "write", &[], |run| run.work(60_000))
    }

    fn analysed(range: Range, ops: u64) -> Session {
        let params = Params {
            resolution: Resolution::FINE,
            ..Params::default()
        };
        let mut analysis = Analysis::new(params);
        analysis.name_range(range);
        let mut session = Session::over(broad(), analysis);
        session.run(ops);
        session
    }

    #[test]
    fn a_range_that_is_named_is_the_one_peak() {
        let write = ("f0/write".to_owned(), CauseKind::Function, Stop::NoCalls);
        let between = Range::Between(Ticks(55_000), Ticks(u64::MAX));
        for (range, ops) in [(between, 7_000), (Range::Above(992_000), 10_000)] {
            let session = analysed(range, ops);
            assert!(session.finished, "{range:?}");
            assert_eq!(session.analysis.peaks().len(), 1, "{range:?}");
            assert_eq!(session.causes(1), std::slice::from_ref(&write), "{range:?}");
            assert_eq!(session.analysis.status(), Status::RootCauseFound);
        }
    }

    #[test]
    fn a_percentile_waits_for_the_ops_that_tell_it() {
        let session = analysed(Range::Above(999_900), 50_000);
        assert!(session.analysis.peaks().is_empty());
        assert_eq!(session.analysis.status(), Status::InProgress);
    }

    #[test]
    fn a_resumed_analysis_looks_for_no_other_peak() {
        let between = Range::Between(Ticks(55_000), Ticks(u64::MAX));
        let session = analysed(between, 500);
        let params = *session.analysis.params();
        let analysis = Analysis::resume(params, session.stored()).unwrap();
        let mut resumed = Session::over(broad(), analysis);
        resumed.run(20_000);
        assert_eq!(resumed.analysis.peaks().len(), 1);
        assert!(resumed.finished);
    }
}
