//! What ends a measurement although the process goes on.

use std::cell::Cell;
use std::time::{Duration, Instant};

use darc_tracer::plan::Mark;

use crate::Ending;

/// How urgently the person wants the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Not at all: go on.
    GoOn,
    /// End the measurement, restore the target, report.
    End,
    /// Restore the target and leave, because of this signal.
    LeaveAtOnce(i32),
}

/// What the person wants while a process is measured.
pub trait Interrupts: std::fmt::Debug {
    /// How urgently the end is wanted. Asked often; must not take long.
    fn level(&self) -> Level;

    /// Whether the person has set the mark in the program's place.
    fn asked(&self, mark: Mark) -> bool;
}

/// For how long to measure, where somebody has said that. It counts from when there are probes: neither what is done to find out where
/// these go nor what comes before is measuring.
#[derive(Debug, Default)]
pub struct Given {
    time: Option<Duration>,
    end: Cell<Option<Instant>>,
}

impl Given {
    /// So much time; without end where it is `None`.
    #[must_use]
    pub fn new(time: Option<Duration>) -> Given {
        let end = Cell::default();
        Given { time, end }
    }

    /// Whether it ends by itself.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.time.is_some()
    }

    /// It counts from now on, unless it does so already.
    pub fn begin(&self) {
        if self.end.get().is_none() {
            self.end.set(self.time.map(|time| Instant::now() + time));
        }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        is_past(self.end.get())
    }
}

fn is_past(end: Option<Instant>) -> bool {
    end.is_some_and(|end| Instant::now() >= end)
}

/// What ends a measurement although the process goes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The time that the person gave, for this measurement and those before and after it.
    pub given: Option<&'a Given>,
    /// When it ends by itself, however much of that is left.
    pub deadline: Option<Instant>,
    /// The person's wishes.
    pub interrupts: &'a dyn Interrupts,
    /// The mark that ends it, set by the program or by the person.
    pub until: Option<Mark>,
}

impl Limits<'_> {
    /// The time that was given counts from now on: there are probes, or what they go into is waited for.
    pub fn begin(&self) {
        if let Some(given) = self.given {
            given.begin();
        }
    }

    /// When it ends by itself, as far as that is known.
    #[must_use]
    pub fn end(&self) -> Option<Instant> {
        let given = self.given.and_then(|given| given.end.get());
        [given, self.deadline].into_iter().flatten().min()
    }

    /// What the person decided: an interrupt, or that the time is over.
    pub(crate) fn reached(&self) -> Option<Ending> {
        match self.interrupts.level() {
            Level::GoOn if is_past(self.end()) => Some(Ending::TimeUp),
            Level::GoOn => None,
            level => Some(Ending::Interrupted(level)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl Interrupts for Nobody {
        fn level(&self) -> Level {
            Level::GoOn
        }

        fn asked(&self, _: Mark) -> bool {
            false
        }
    }

    #[test]
    fn time_that_was_given_counts_from_when_measuring_begins() {
        let given = Given::new(Some(Duration::ZERO));
        let limits = Limits {
            given: Some(&given),
            deadline: None,
            interrupts: &Nobody,
            until: None,
        };
        assert_eq!(limits.reached(), None);
        assert!(!given.is_over());
        limits.begin();
        let end = limits.end();
        assert_eq!(limits.reached(), Some(Ending::TimeUp));
        assert!(given.is_over());
        // It is one time for all that is measured.
        limits.begin();
        assert_eq!(limits.end(), end);
    }

    #[test]
    fn a_turn_ends_before_the_time_that_was_given() {
        let given = Given::new(Some(Duration::from_secs(3600)));
        let now = Instant::now();
        let limits = Limits {
            given: Some(&given),
            deadline: Some(now),
            interrupts: &Nobody,
            until: None,
        };
        limits.begin();
        assert_eq!(limits.end(), Some(now));
        assert_eq!(limits.reached(), Some(Ending::TimeUp));
        assert!(!given.is_over());
        let without = Given::new(None);
        without.begin();
        assert!(!without.is_limited() && !without.is_over());
    }
}
