//! What measuring takes of the machine, kept below a share of a processor.
//!
//! An analysis that ends soon may take more: there is a credit. Who is over it measures less until time has made up for it.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// What was spent on one purpose, and how much may be.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    limits: Limits,
    began: Instant,
    spent: Duration,
}

/// How much may be spent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Of one processor's time, in the long run: 0.01 is a hundredth.
    pub share: f64,
    /// Beside that, once.
    pub credit: Duration,
}

impl Limits {
    /// What may have been spent some time after the beginning.
    fn allowed(self, after: Duration) -> Duration {
        self.credit + after.mul_f64(self.share)
    }
}

impl Effort {
    /// Nothing is spent yet.
    #[must_use]
    pub fn new(limits: Limits) -> Effort {
        Effort {
            limits,
            began: Instant::now(),
            spent: Duration::ZERO,
        }
    }

    /// Spends time.
    pub fn add(&mut self, time: Duration) {
        self.spent = self.spent.saturating_add(time);
    }

    /// Whether more is spent than may be.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.has_left(Duration::ZERO)
    }

    /// Whether more is spent than the share and this part of the credit.
    #[must_use]
    pub fn is_over_part(&self, part: f64) -> bool {
        let limits = Limits {
            credit: self.limits.credit.mul_f64(part),
            ..self.limits
        };
        self.spent > limits.allowed(self.began.elapsed())
    }

    /// Whether so much more may be spent now.
    #[must_use]
    pub fn has_left(&self, more: Duration) -> bool {
        self.spent + more <= self.limits.allowed(self.began.elapsed())
    }
}

/// The processor's time that this thread has used.
#[must_use]
pub fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_is_given_once_and_a_share_for_ever() {
        let limits = Limits {
            share: 0.01,
            credit: Duration::from_millis(300),
        };
        assert_eq!(limits.allowed(Duration::ZERO), limits.credit);
        let minute = limits.allowed(Duration::from_secs(60));
        assert_eq!(minute, Duration::from_millis(900));
    }

    #[test]
    fn what_is_spent_counts() {
        let mut effort = Effort::new(Limits {
            share: 0.0,
            credit: Duration::from_secs(1),
        });
        effort.add(Duration::from_millis(1));
        assert!(!effort.is_over());
        effort.add(Duration::from_millis(500));
        assert!(!effort.has_left(Duration::from_millis(600)));
        assert!(effort.is_over_part(0.4) && !effort.is_over_part(0.9));
        effort.add(Duration::from_millis(501));
        assert!(effort.is_over());
    }
}
