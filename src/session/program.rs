//! How far a program has come that was started for a session: until its own code runs it may be ended as if it had never
//! been started.

use darc_tracer::engine::Notice;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Ending, SessionError};

/// How far the program of a session has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// It was started for this, and its libraries are being loaded: nothing of it has run that a person would miss.
    Starting,
    /// Its own code runs, or has run.
    Runs,
}

impl Program {
    /// Ends a program that was started in vain, and says so. To be asked before the engine lets it go.
    ///
    /// # Errors
    /// Those that `outcome` has.
    pub fn judge<T>(self, pid: i32, outcome: Result<T, SessionError>) -> Result<T, SessionError> {
        match (self, outcome) {
            (Program::Starting, Err(error)) if !error.is_gone() => {
                end(pid);
                Err(SessionError::InVain(Box::new(error)))
            }
            (_, outcome) => outcome,
        }
    }
}

/// What is to be done about a process that could not be let go as it was, and runs on; `None` when it was, or is gone.
pub(super) fn left_behind(pid: i32, restored: &darc_tracer::Result<()>) -> Option<String> {
    match restored {
        Err(error) if !error.is_gone() => Some(format!(
            "not all of darc's probes could be taken away ({error}), and the program runs on with them; once this darc has ended, darc cleanup -p {pid} takes them away"
        )),
        _ => None,
    }
}

/// How a session ended: by what ended it, unless the engine has seen the end of the process. `restored` says whether the
/// process was let go as it was.
///
/// # Errors
/// Those that `outcome` has; and what could not be put back in a process that runs on.
pub(super) fn finish<T: From<Ending>>(
    outcome: Result<T, SessionError>,
    seen: Option<Notice>,
    restored: darc_tracer::Result<()>,
) -> Result<T, SessionError> {
    let ended = outcome?;
    match (restored, seen.and_then(Ending::of_target)) {
        (Err(error), _) if !error.is_gone() => Err(error.into()),
        (_, Some(end @ (Ending::Exited(_) | Ending::Killed(_)))) => Ok(end.into()),
        _ => Ok(ended),
    }
}

/// Ends a program that was started and is held before its first instruction.
pub fn end(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let failed = Err(SessionError::Unsuitable("no room".to_owned()));
        let error = finish::<Ending>(failed, killed, Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "no room");
    }

    #[test]
    fn only_a_program_that_has_not_begun_is_ended() {
        let failed = || Err::<(), _>(SessionError::Unsuitable("no room".to_owned()));
        let child = || {
            let mut command = std::process::Command::new("sleep");
            command.arg("1000").spawn().unwrap()
        };

        let mut waits = child();
        let pid = i32::try_from(waits.id()).unwrap();
        assert!(Program::Starting.judge(pid, Ok(())).is_ok());
        assert_eq!(waits.try_wait().unwrap(), None);
        let error = Program::Starting.judge(pid, failed()).unwrap_err();
        assert!(matches!(&error, SessionError::InVain(_)), "{error:?}");
        assert_eq!(error.to_string(), "no room");
        assert!(!waits.wait().unwrap().success());

        let mut runs = child();
        let pid = i32::try_from(runs.id()).unwrap();
        let error = Program::Runs.judge(pid, failed()).unwrap_err();
        assert!(matches!(&error, SessionError::Unsuitable(_)), "{error:?}");
        assert_eq!(runs.try_wait().unwrap(), None);
        runs.kill().unwrap();
        runs.wait().unwrap();
    }
}
