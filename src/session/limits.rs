//! What ends a session early.

use std::time::Instant;

use crate::terminal::interrupts::{Interrupts, Level};

use super::Ending;
use super::onlooker::Onlooker;

/// What ends a session early.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// When the analysis ends by itself.
    pub deadline: Option<Instant>,
    /// The person's signals.
    pub interrupts: &'a Interrupts,
    /// Who wants to know where it stands.
    pub onlooker: Option<&'a dyn Onlooker>,
    /// With so many ops it ends, whatever was found.
    pub enough: Option<u64>,
}

impl Limits<'_> {
    /// What the person decided: an interrupt, or that the time is over.
    pub(super) fn reached(&self) -> Option<Ending> {
        let over = |deadline: Instant| Instant::now() >= deadline;
        match self.interrupts.level() {
            Level::GoOn if self.deadline.is_some_and(over) => Some(Ending::TimeUp),
            Level::GoOn => None,
            level => Some(Ending::Interrupted(level)),
        }
    }
}
