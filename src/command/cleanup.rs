//! `darc cleanup`: take away what a darc that was killed left, in a process and in the kernel.
//!
//! A process goes on correctly with what was left; this frees the memory and makes its code the file's again. An instance of
//! the kernel's tracing records the system calls of the process for ever.

use std::path::Path;

use darc_tracer::engine::jump::{Cleared, clear_leftovers};
use darc_tracer::system_calls::remove_abandoned;

use crate::command::shared::target::checked;
use crate::command::shared::target::claim;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::CleanupOptions;
use crate::output::{left_behind, to_stdout};
use crate::terminal::warning::{self, one_line};

/// Does it.
///
/// # Errors
/// When the process cannot be traced or restored.
pub fn execute(options: &CleanupOptions) -> Result<ExitStatus, Failure> {
    // These are there whatever has become of the process.
    let tracing = abandoned_tracing();
    let partial = partial_results(options.output.as_deref());
    let cleared = match options.pid {
        Some(pid) => clear(pid),
        None if tracing.is_empty() => Ok(NO_TRACING.to_owned()),
        None => Ok(String::new()),
    };
    let said = cleared.as_deref().unwrap_or_default();
    let told = to_stdout(format!("{said}{tracing}{partial}")).class(FailureKind::File);
    cleared?;
    told.map(|()| ExitStatus::Done)
}

/// Clears a process; what came of it, as it is told.
fn clear(pid: i32) -> Result<String, Failure> {
    let pid = checked(pid, |note| warning::print(&note.to_string()))?;
    let _claim = claim(pid)?;
    let cleared = clear_leftovers(pid).class(FailureKind::Target)?;
    let said = match cleared {
        Cleared::Nothing => "nothing of an earlier darc is in it",
        Cleared::Patches => {
            "its code is the file's again; some memory stays mapped, for a call in it has not returned yet"
        }
        Cleared::Everything => "its code is the file's again, and all memory was given back",
    };
    Ok(format!("process {pid}: {said}\n"))
}

/// What is said where there was none, and no process is named.
const NO_TRACING: &str =
    "no tracing of a killed darc is left; darc cleanup -p PID looks into a process\n";

/// Removes the tracing of system calls that killed darcs have left in the kernel; a line each.
fn abandoned_tracing() -> String {
    let lines = remove_abandoned().into_iter().map(|it| {
        let folder = it.folder.display();
        let line = match it.removed {
            Ok(()) => format!("{folder}: tracing of a killed darc, removed"),
            Err(error) => format!("{folder}: tracing of a killed darc, cannot be removed: {error}"),
        };
        one_line(&line) + "\n"
    });
    lines.collect()
}

/// What killed darcs have left where results were to go, a line each.
fn partial_results(output: Option<&Path>) -> String {
    let left = left_behind(folder(output)).into_iter().map(|path| {
        let line = format!(
            "{}: results that a killed darc did not put in place; remove it, or look at it with darc report",
            path.display()
        );
        one_line(&line) + "\n"
    });
    left.collect()
}

/// Where results were to go.
fn folder(output: Option<&Path>) -> &Path {
    let folder = output.and_then(Path::parent);
    folder
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
