//! How the measurement of a process ended, or why it could not go on.

use std::panic::{self, AssertUnwindSafe};

use darc_symbols::LookupError;
use darc_tracer::engine::Notice;

use crate::Level;

/// How the measurement of a process ended.
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
    /// The program, or a signal to darc, marked the end; the target runs on.
    Marked,
    /// f0's latencies are not distributed as stored, which was to end it; the target runs on.
    Changed,
    /// The target became another program; it runs on.
    Exec,
    /// The target exited.
    Exited(i32),
    /// The target was killed by a signal.
    Killed(i32),
    /// The target ended, and nobody tells how.
    Ended,
}

impl Ending {
    /// Whether the target ended.
    #[must_use]
    pub fn is_targets(self) -> bool {
        matches!(self, Ending::Exited(_) | Ending::Killed(_) | Ending::Ended)
    }

    /// How the target ended, as a shell tells it: the exit code, or 128 and the signal's number. `None` when it runs on, and when nobody tells.
    #[must_use]
    pub fn shell_status(self) -> Option<i32> {
        match self {
            Ending::Exited(code) => Some(code),
            Ending::Killed(signal) => Some(128 + signal),
            _ => None,
        }
    }
}

/// Why a measurement could not go on.
#[derive(thiserror::Error, Debug)]
pub enum ProcessError {
    /// f0 is not to be had.
    #[error(transparent)]
    Name(#[from] LookupError),
    /// The target or the function cannot be instrumented.
    #[error("{0}")]
    Unsuitable(String),
    /// f0 is the function that runs, and its time is all its own.
    #[error("the time in f0 cannot be divided: {0}")]
    Indivisible(String),
    /// A stored analysis is of another build of the program.
    #[error("{0}")]
    OtherBuild(String),
    /// darc panicked. Where and why has been shown.
    #[error("measuring ended by an internal error; please report the line that was shown")]
    Defect,
    /// Tracing failed.
    #[error(transparent)]
    Tracer(#[from] darc_tracer::Error),
    /// The measurement failed before the program that was started for it ran any of its own code; the program was killed.
    #[error(transparent)]
    LaunchAborted(Box<ProcessError>),
}

impl ProcessError {
    /// Whether it comes of what the program is or has done, and not of what was asked: then a program that was started
    /// for it runs as it would without.
    pub(crate) fn is_the_programs(&self) -> bool {
        match self {
            ProcessError::Tracer(error) => {
                use darc_tracer::Error::{NoThreadPointer, NotWanted};
                error.is_gone() || matches!(error, NoThreadPointer | NotWanted)
            }
            ProcessError::Indivisible(_) => true,
            _ => false,
        }
    }
}

/// Does what ends with a process being let go. A panic in it is a failure like any other, so that this comes to pass, and
/// what was found is kept.
///
/// # Errors
/// Those of `work`, and a panic.
pub fn guarded<T, E: From<ProcessError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    // What it leaves half done is counted, not relied on.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|_| Err(ProcessError::Defect.into()))
}

/// What is to be done about a process that could not be let go as it was, and runs on; `None` when it was, or is gone.
pub(crate) fn left_behind(pid: i32, restored: &darc_tracer::Result<()>) -> Option<String> {
    match restored {
        Err(error) if !error.is_gone() => Some(format!(
            "not all of darc's probes could be taken away ({error}), and the program runs on with them; once this darc has ended, darc cleanup -p {pid} takes them away"
        )),
        _ => None,
    }
}

/// What is to be said about processes that the target has made meanwhile, which have a copy of the probes; `None` without such.
pub(crate) fn heirs(pid: i32) -> Option<String> {
    const MOST: usize = 5;
    let heirs = darc_tracer::engine::jump::heirs(pid);
    let commands = heirs.iter().take(MOST);
    let commands: Vec<String> = commands
        .map(|pid| format!("darc cleanup -p {pid}"))
        .collect();
    let more = match heirs.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    (!heirs.is_empty()).then(|| {
        format!(
            "processes that the program made meanwhile have copies of the probes, which measure nothing; {}{more} takes them away",
            commands.join(", ")
        )
    })
}

/// How a session ended: by what ended it, unless the engine has seen the end of the process. `restored` says whether the
/// process was let go as it was.
///
/// # Errors
/// Those that `outcome` has; and what could not be put back in a process that runs on.
pub(crate) fn finish<T: From<Ending>>(
    outcome: Result<T, ProcessError>,
    seen: Option<Notice>,
    restored: darc_tracer::Result<()>,
) -> Result<T, ProcessError> {
    let ended = outcome?;
    match (restored, seen) {
        (Err(error), _) if !error.is_gone() => Err(error.into()),
        (_, Some(Notice::Exited(status))) => Ok(Ending::Exited(status).into()),
        (_, Some(Notice::Killed(signal))) => Ok(Ending::Killed(signal).into()),
        (_, Some(Notice::Ended)) => Ok(Ending::Ended.into()),
        _ => Ok(ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure() {
        let fine = guarded(|| Ok::<_, ProcessError>(1));
        assert_eq!(fine.unwrap(), 1);
        let failed = guarded(|| Err::<(), _>(ProcessError::Unsuitable("no room".to_owned())));
        assert_eq!(failed.unwrap_err().to_string(), "no room");
        let defect = guarded::<(), ProcessError>(|| panic!("a test of panics"));
        assert!(matches!(defect, Err(ProcessError::Defect)));
    }

    #[test]
    fn the_end_of_the_process_counts_more_than_what_ended_the_session() {
        let gone = || Err(darc_tracer::Error::ThreadGone { tid: 1 });
        let stuck = || Err(darc_tracer::Error::Unsuitable("it is stuck".to_owned()));
        let killed = Some(Notice::Killed(9));
        assert_eq!(
            finish(Ok(Ending::Finished), None, Ok(())).unwrap(),
            Ending::Finished
        );
        assert_eq!(
            finish(Ok(Ending::TimeUp), killed, gone()).unwrap(),
            Ending::Killed(9)
        );
        assert!(finish(Ok(Ending::TimeUp), None, stuck()).is_err());
        let failed = Err(ProcessError::Unsuitable("no room".to_owned()));
        let error = finish::<Ending>(failed, killed, Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "no room");
    }
}
