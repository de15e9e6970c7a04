//! A program that darc has started: whether it is of use after a failure, and its end.

use std::time::Duration;

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::session::program::Program;
use crate::session::{Ending, SessionError};
use crate::terminal::interrupts::{Interrupts, Level};
use crate::terminal::warning;

impl Ending {
    /// How darc ends that passes on how a program has ended. `None` when it runs on.
    pub(super) fn exit_status(self) -> Option<ExitStatus> {
        match self {
            Ending::Exited(code) => Some(ExitStatus::TargetExited(code as u8)),
            Ending::Killed(signal) => Some(ExitStatus::TargetKilled(signal)),
            _ => None,
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        Failure::new(kind(&error), error)
    }
}

fn kind(error: &SessionError) -> FailureKind {
    match error {
        SessionError::Name(_) => FailureKind::Name,
        SessionError::Unsuitable(_) => FailureKind::Target,
        SessionError::OtherBuild(_) => FailureKind::File,
        SessionError::Tracer(error) if error.is_gone() => FailureKind::Lost,
        SessionError::Tracer(_) => FailureKind::Target,
        SessionError::InVain(error) => kind(error),
    }
}

/// The engine could not take over a program that was just started, which is ended.
pub(super) fn not_taken_over(pid: i32, error: darc_tracer::Error) -> Failure {
    let outcome = Err::<Ending, _>(SessionError::from(error));
    match Program::Starting.judge(pid, outcome) {
        Err(error) => error.into(),
        Ok(_) => Failure::message(FailureKind::Lost, format!("process {pid}: lost")),
    }
}

/// Whether the failure came when the program's own code had begun to run: what it does is not darc's to end, and what was
/// found of it stands.
pub(super) fn had_begun(failure: &Failure) -> bool {
    !failure.is(|error: &SessionError| matches!(error, SessionError::InVain(_)))
}

/// What the person is told when the analysis fails while the program runs.
pub(super) fn ended_early(failure: &Failure) -> String {
    format!("measuring ended early: {}", failure.text())
}

/// Waits for a started program although something failed, which is said at once: the program may run for long.
pub(super) fn wait_after(failure: Failure, pid: i32, interrupts: &Interrupts) -> Failure {
    warning::print(&failure.text());
    let _ = wait_for_exit(pid, interrupts);
    failure
}

/// Waits for a started program that is no longer traced. `None` when the person does not want to.
#[must_use]
pub fn wait_for_exit(pid: i32, interrupts: &Interrupts) -> Option<Ending> {
    use darc_tracer::children::End;
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let pid = nix::unistd::Pid::from_raw(pid);
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, status)) => return Some(Ending::Exited(status)),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Some(Ending::Killed(signal as i32)),
            Ok(WaitStatus::StillAlive) => {
                darc_tracer::child_signal::wait(Duration::from_millis(200))
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => {
                return Some(match darc_tracer::children::end_of(pid.as_raw())? {
                    End::Exited(status) => Ending::Exited(status),
                    End::Killed(signal) => Ending::Killed(signal),
                });
            }
        }
        if let Level::LeaveAtOnce(_) = interrupts.level() {
            return None;
        }
    }
}
