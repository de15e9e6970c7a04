//! How a session ended, or why it could not go on.

use darc_symbols::LookupError;
use darc_tracer::engine::Notice;

use crate::terminal::interrupts::Level;

/// A warning of sessions that end with [`Ending::Exec`].
pub(super) const EXECUTED: &str = "the target executed another program; measuring ended there";

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every path of every peak has ended; the target runs on.
    Finished,
    /// f0 was called before and does not return; the target runs on.
    Running,
    /// The person ended it; the target runs on.
    Interrupted(Level),
    /// The time that was given is over; the target runs on.
    TimeUp,
    /// The program, or a signal to darc, ended it; the target runs on.
    Told,
    /// f0's latencies are not distributed as stored, which was to end it; the target runs on.
    Changed,
    /// The target became another program; it runs on.
    Exec,
    /// The target exited.
    Exited(i32),
    /// The target was killed by a signal.
    Killed(i32),
}

impl Ending {
    /// How the target ended, as a shell tells it: the exit code, or 128 and the signal's number. `None` when it runs on.
    #[must_use]
    pub fn shell_status(self) -> Option<i32> {
        match self {
            Ending::Exited(code) => Some(code),
            Ending::Killed(signal) => Some(128 + signal),
            _ => None,
        }
    }

    /// The end of the target, or `None` when it goes on: libraries came or went.
    pub(super) fn of_target(notice: Notice) -> Option<Ending> {
        match notice {
            Notice::Exited(status) => Some(Ending::Exited(status)),
            Notice::Killed(signal) => Some(Ending::Killed(signal)),
            Notice::Exec => Some(Ending::Exec),
            Notice::LibrariesChanged => None,
        }
    }
}

/// Why a session could not go on.
#[derive(thiserror::Error, Debug)]
pub enum SessionError {
    /// f0 is not to be had.
    #[error(transparent)]
    Name(#[from] LookupError),
    /// The target or the function cannot be instrumented.
    #[error("{0}")]
    Unsuitable(String),
    /// A stored analysis is of another build of the program.
    #[error("{0}")]
    OtherBuild(String),
    /// Tracing failed.
    #[error(transparent)]
    Tracer(#[from] darc_tracer::Error),
    /// That, before the program that was started for it had begun: it has been ended.
    #[error(transparent)]
    InVain(Box<SessionError>),
}

impl SessionError {
    /// Whether the process was gone.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, SessionError::Tracer(error) if error.is_gone())
    }
}
