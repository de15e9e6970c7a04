//! What the person may choose about the analysis (DARC, SIGMETRICS 2008, section 5).

use thiserror::Error;

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
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Params {
    /// Ops collected before peaks are chosen.
    pub start_ops: u64,
    /// Ops inside the peak between two decisions.
    pub decision_ops: u64,
    /// 0 to 1: an fnode is a root cause when its maxcount is at least this part of the largest one.
    pub maxcount_percentage: f64,
    /// The longest root-cause path, f0 included.
    pub max_depth: usize,
    /// Buckets per doubling of the latency.
    pub resolution: Resolution,
    /// Which peaks are analysed.
    pub peak: PeakChoice,
}

/// A parameter that makes no sense.
#[derive(Clone, Copy, PartialEq, Error, Debug)]
pub enum ParamsError {
    /// A count or depth of zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A depth above [`MAX_DEPTH`].
    #[error("max-depth must be at most {MAX_DEPTH}, not {0}")]
    TooDeep(usize),
    /// A percentage outside of its range.
    #[error("maxcount-percentage must lie between 0 and 1, not {0}")]
    Percentage(f64),
}

impl Default for Params {
    fn default() -> Self {
        Self {
            start_ops: 100,
            decision_ops: 20,
            maxcount_percentage: 0.9,
            max_depth: 16,
            resolution: Resolution::default(),
            peak: PeakChoice::All,
        }
    }
}

impl Params {
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
        if self.max_depth > MAX_DEPTH {
            return Err(ParamsError::TooDeep(self.max_depth));
        }
        if !(0.0..=1.0).contains(&self.maxcount_percentage) {
            return Err(ParamsError::Percentage(self.maxcount_percentage));
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
        for percentage in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let bad = Params {
                maxcount_percentage: percentage,
                ..good
            };
            assert!(bad.validate().is_err());
        }
        let bad = Params {
            decision_ops: 0,
            ..good
        };
        assert_eq!(bad.validate(), Err(ParamsError::Zero("decision-ops")));
    }
}
