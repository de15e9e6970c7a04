//! The process that a subcommand is about: whether it may be measured, and how it is shown.

use std::ffi::OsString;

use darc_process::claim::{Claim, Claimed};
use darc_tracer::preflight::{self, Note};

use crate::exit::{Classify as _, Failure, FailureKind};

/// The process that an id stands for, if nothing speaks against measuring it. What the person should know of it
/// is told to `tell`.
///
/// # Errors
/// What speaks against it.
pub fn checked(pid: i32, mut tell: impl FnMut(&Note)) -> Result<i32, Failure> {
    let found = preflight::check(pid).class(FailureKind::Target)?;
    found.notes.iter().for_each(&mut tell);
    Ok(found.pid)
}

/// Makes sure that no other darc measures the process.
pub fn claim(pid: i32) -> Result<Claim, Failure> {
    let claimed = Claim::on(pid).map_err(|error| match error.is_gone() {
        true => tracing_failed(&error, pid),
        false => Failure::new(FailureKind::Other, error),
    })?;
    let owner = match claimed {
        Claimed::Ours(claim) => return Ok(claim),
        Claimed::Taken(Some(owner)) => format!("process {owner}, another darc"),
        Claimed::Taken(None) => "another darc".to_owned(),
    };
    Err(Failure::message(
        FailureKind::Target,
        format!("process {pid}: already measured by {owner}; wait until that has ended"),
    ))
}

/// A failed attach, with the reason that the kernel's bare number does not tell.
pub fn tracing_failed(error: &darc_tracer::Error, pid: i32) -> Failure {
    if error.is_gone() {
        return gone(pid);
    }
    match error {
        darc_tracer::Error::Ptrace {
            source: nix::errno::Errno::EPERM,
            ..
        } => Failure::message(
            FailureKind::Target,
            darc_tracer::preflight::explain_eperm(pid),
        ),
        _ => Failure::message(FailureKind::Target, error),
    }
}

/// The failure of an attach: of a process that has ended nothing else is to be said.
pub fn unless_gone(failure: Failure, pid: i32) -> Failure {
    let follows = matches!(failure.kind(), FailureKind::Target | FailureKind::Name);
    match follows && darc_tracer::proc::is_ending(pid) {
        true => gone(pid),
        false => failure,
    }
}

fn gone(pid: i32) -> Failure {
    Failure::message(
        FailureKind::Lost,
        format!("process {pid} ended while darc attached to it"),
    )
}

/// A path or argument as it is shown.
#[must_use]
pub fn shown(command: &[OsString]) -> Vec<String> {
    command
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect()
}

/// The command that the process was started with.
pub fn command_line(pid: i32) -> Vec<String> {
    let bytes = darc_tracer::proc::arguments(pid);
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    match text.is_empty() {
        true => Vec::new(),
        false => text
            .split(|&byte| byte == 0)
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect(),
    }
}
