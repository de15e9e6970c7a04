//! What ends a measurement although the process goes on.

use std::time::Instant;

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

/// What ends a measurement although the process goes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// When it ends by itself.
    pub deadline: Option<Instant>,
    /// The person's wishes.
    pub interrupts: &'a dyn Interrupts,
    /// The mark that ends it, set by the program or by the person.
    pub until: Option<Mark>,
}

impl Limits<'_> {
    /// What the person decided: an interrupt, or that the time is over.
    pub(crate) fn reached(&self) -> Option<Ending> {
        let over = |deadline: Instant| Instant::now() >= deadline;
        match self.interrupts.level() {
            Level::GoOn if self.deadline.is_some_and(over) => Some(Ending::TimeUp),
            Level::GoOn => None,
            level => Some(Ending::Interrupted(level)),
        }
    }
}
