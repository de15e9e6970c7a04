//! `darc status`: where an analysis, a profiling or a watch stands that another darc conducts.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use darc_report as report;
use darc_report::state::{self, Stored};

use crate::command::style::style_of;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::StatusOptions;
use crate::output::to_stdout;
use crate::session::claim;
use crate::terminal::warning;

/// A darc that does not answer for so long is busy, or is restoring its target.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the darc that measures the process, or every one that there is.
///
/// # Errors
/// When no darc measures, or it does not answer.
pub fn execute(options: StatusOptions) -> Result<ExitStatus, Failure> {
    if let Some(pid) = options.pid {
        show(pid, &options)?;
        return Ok(ExitStatus::Done);
    }
    let mut shown = false;
    for pid in claim::claimed().class(FailureKind::Other)? {
        // One that is just ending, or another user's, does not keep the others from being shown.
        match show(pid, &options) {
            Ok(()) => shown = true,
            Err(failure) => warning::print(&failure.text()),
        }
    }
    match shown {
        true => Ok(ExitStatus::Done),
        false => Err(Failure::message(
            FailureKind::Target,
            "status: no darc measures a process here; start one with darc attach or darc run",
        )),
    }
}

/// Asks everybody who measures the process or looks at it.
fn show(pid: i32, options: &StatusOptions) -> Result<(), Failure> {
    let refuse =
        |why: String| Failure::message(FailureKind::Target, format!("process {pid}: {why}"));
    let streams = claim::connect(pid)
        .map_err(|_| refuse("no darc measures it; darc status alone lists all".to_owned()))?;
    let mut failed = None;
    let mut shown = false;
    for stream in streams {
        match answer(stream, options, refuse) {
            Ok(()) => shown = true,
            Err(failure) if failed.is_none() => failed = Some(failure),
            Err(_) => {}
        }
    }
    match failed {
        Some(failure) if !shown => Err(failure),
        _ => Ok(()),
    }
}

fn answer(
    stream: UnixStream,
    options: &StatusOptions,
    refuse: impl Fn(String) -> Failure,
) -> Result<(), Failure> {
    stream
        .set_read_timeout(Some(PATIENCE))
        .class(FailureKind::Other)?;
    let mut bytes = Vec::new();
    stream
        .take(state::MAX_SIZE as u64)
        .read_to_end(&mut bytes)
        .map_err(|error| {
            refuse(format!(
                "the darc that measures it does not answer: {error}"
            ))
        })?;
    if bytes.is_empty() {
        return Err(refuse(
            "the darc that measures it says nothing: it belongs to another user, or is just ending"
                .to_owned(),
        ));
    }
    let stored = state::read_stored(&bytes)
        .map_err(|error| refuse(format!("what the darc that measures it says: {error}")))?;
    let stdout = std::io::stdout();
    let style = style_of(options.color, &stdout);
    let text = match stored {
        Stored::Report(report) => {
            report::render(&report, options.format, style).class(FailureKind::Other)?
        }
        Stored::Profiles(set) => super::profile::render(&set, options.format, style)?,
    };
    to_stdout(&text).class(FailureKind::File)
}
