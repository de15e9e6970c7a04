//! What the person may choose about the analysis (DARC, SIGMETRICS 2008, section 5).

use thiserror::Error;

use crate::descent::range::{ALL, Range};
use crate::profile::histogram::Resolution;

/// No root-cause path becomes longer than this, whatever is asked for: results nest as deep.
pub const MAX_DEPTH: usize = 128;

/// Which peaks are analysed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PeakChoice {
    /// Every peak, side by side.
    #[default]
    All,
    /// The peak of this number only (the leftmost is 1).
    One(u32),
    /// None until [`Analysis::choose`](super::Analysis::choose) is called.
    Later,
    /// None at all: the profile is all that is wanted.
    Nothing,
}

/// The parameters of one analysis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Ops collected before peaks are chosen.
    pub start_ops: u64,
    /// A decision takes so many ops inside the peak at least, and twenty times as many at most.
    pub decision_ops: u64,
    /// The longest root-cause path, f0 included.
    pub max_depth: usize,
    /// Buckets per doubling of the latency.
    pub resolution: Resolution,
    /// Which peaks are analysed.
    pub peak: PeakChoice,
    /// The ops that are the one peak, where they were named.
    pub range: Option<Range>,
}

/// A parameter that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Error, Debug)]
pub enum ParamsError {
    /// A count or depth of zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A range without any latency.
    #[error("the range of latencies must begin before its end")]
    Range,
    /// A depth above [`MAX_DEPTH`].
    #[error("max-depth must be at most {MAX_DEPTH}, not {0}")]
    TooDeep(usize),
}

impl Default for Params {
    fn default() -> Self {
        Self {
            start_ops: 100,
            decision_ops: 20,
            max_depth: 32,
            resolution: Resolution::HALVES,
            peak: PeakChoice::All,
            range: None,
        }
    }
}

impl Params {
    /// Whether a peak was asked for: it is waited for, however rare its ops are.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.peak != PeakChoice::All || self.range.is_some()
    }

    /// Refuses values that would never lead to a decision.
    ///
    /// # Errors
    /// Names the first such parameter.
    pub fn validate(&self) -> Result<(), ParamsError> {
        let peak = match self.peak {
            PeakChoice::One(peak) => u64::from(peak),
            PeakChoice::All | PeakChoice::Later | PeakChoice::Nothing => 1,
        };
        let counts = [
            ("start-ops", self.start_ops),
            ("decision-ops", self.decision_ops),
            ("max-depth", self.max_depth as u64),
            ("peak", peak),
        ];
        if let Some((name, _)) = counts.into_iter().find(|&(_, value)| value == 0) {
            return Err(ParamsError::Zero(name));
        }
        let is_range = match self.range {
            Some(Range::Between(first, last)) => first <= last,
            Some(Range::Above(percentile)) => percentile < ALL,
            None => true,
        };
        if !is_range {
            return Err(ParamsError::Range);
        }
        if self.max_depth > MAX_DEPTH {
            return Err(ParamsError::TooDeep(self.max_depth));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_nonsense_is_not() {
        let good = Params::default();
        assert_eq!(good.validate(), Ok(()));
        let bad = Params {
            decision_ops: 0,
            ..good
        };
        assert_eq!(bad.validate(), Err(ParamsError::Zero("decision-ops")));
    }
}
