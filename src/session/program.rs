//! How far a program has come that was started for a session: until its own code runs it may be ended as if it had never
//! been started.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::SessionError;

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

/// Ends a program that was started and is held before its first instruction.
pub fn end(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

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
