//! A program that darc has started: whether it is of use after a failure, and its end.

use std::time::Duration;

use darc_process::{Ending, Interrupts as _, Level, ProcessError, Program};
use darc_report::model::Ended;

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::terminal::interrupts::Interrupts;
use crate::terminal::warning;

/// What the report says of an ending.
pub fn ended(ending: Ending) -> Ended {
    match ending {
        Ending::Finished => Ended::Finished,
        Ending::Running => Ended::Running,
        Ending::Interrupted(_) => Ended::Interrupted,
        Ending::TimeUp => Ended::Duration,
        Ending::Marked => Ended::Mark,
        Ending::Changed => Ended::Changed,
        Ending::Exec | Ending::Exited(_) | Ending::Killed(_) | Ending::Ended => Ended::Target,
    }
}

/// How darc ends that passes on how a program has ended. `None` when it runs on.
pub fn passed_on(ending: Ending) -> Option<ExitStatus> {
    match ending {
        Ending::Exited(code) => Some(ExitStatus::TargetExited(code as u8)),
        Ending::Killed(signal) => Some(ExitStatus::TargetKilled(signal)),
        _ => None,
    }
}

impl From<ProcessError> for Failure {
    fn from(error: ProcessError) -> Failure {
        Failure::new(kind(&error), error)
    }
}

fn kind(error: &ProcessError) -> FailureKind {
    match error {
        ProcessError::Name(_) => FailureKind::Name,
        ProcessError::Unsuitable(_) | ProcessError::Indivisible(_) => FailureKind::Target,
        ProcessError::OtherBuild(_) => FailureKind::File,
        ProcessError::Defect => FailureKind::Internal,
        ProcessError::Tracer(error) if error.is_gone() => FailureKind::Lost,
        ProcessError::Tracer(_) => FailureKind::Target,
        ProcessError::LaunchAborted(error) => kind(error),
    }
}

/// The engine could not take over a program that was just started, which is ended unless its own code has run.
pub fn not_taken_over(pid: i32, error: darc_tracer::Error) -> Failure {
    let outcome = Err::<Ending, _>(ProcessError::from(error));
    match Program::Starting.judge(pid, outcome) {
        Err(error) => error.into(),
        Ok(_) => Failure::message(FailureKind::Lost, format!("process {pid}: lost")),
    }
}

/// Whether the failure came when the program's own code had begun to run: what it does is not darc's to end, and what was
/// found of it stands.
pub fn had_begun(failure: &Failure) -> bool {
    !failure.is(|error: &ProcessError| matches!(error, ProcessError::LaunchAborted(_)))
}

/// What the person is told when the analysis fails while the program runs.
pub fn ended_early(failure: &Failure) -> String {
    format!("measuring ended early: {}", failure.text())
}

/// How darc ends when something failed about a program that it has started: as the program does, if its own code has run.
/// What failed is said at once, for the program may run for long.
///
/// # Errors
/// The failure, where nothing of the program has run.
pub fn ends_despite(
    failure: Failure,
    pid: i32,
    interrupts: &Interrupts,
) -> Result<ExitStatus, Failure> {
    let has_begun = had_begun(&failure);
    if has_begun {
        warning::print(&failure.text());
    }
    let ended = wait_for_exit(pid, interrupts).and_then(passed_on);
    match (has_begun, ended, interrupts.level()) {
        (true, Some(status), _) => Ok(status),
        (true, None, Level::LeaveAtOnce(signal)) => Ok(ExitStatus::LeftAtOnce(signal)),
        _ => Err(failure),
    }
}

/// Waits for a started program that is no longer traced. `None` when the person does not want to.
#[must_use]
pub fn wait_for_exit(pid: i32, interrupts: &Interrupts) -> Option<Ending> {
    use darc_tracer::children::End;
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let pid = nix::unistd::Pid::from_raw(pid);
    loop {
        darc_tracer::threads::let_go_of_the_late();
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
