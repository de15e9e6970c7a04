//! `darc cleanup`: take away what a darc that was killed left, in a process and in the kernel.
//!
//! A process goes on correctly with what was left; this frees the memory and makes its code the file's again. An instance of
//! the kernel's tracing records the system calls of the process for ever.

use std::path::Path;

use darc_tracer::engine::jump::{Cleared, clear_leftovers};
use darc_tracer::system_calls::{Abandoned, remove_abandoned};

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
    let found = remove_abandoned();
    let tracing: String = found.iter().flatten().filter_map(removed).collect();
    let partial = partial_results(options.output.as_deref());
    let cleared = match options.pid {
        Some(pid) => clear(pid),
        None if matches!(&found, Ok(found) if found.is_empty()) => Ok(NO_TRACING.to_owned()),
        None => Ok(String::new()),
    };
    let said = cleared.as_deref().unwrap_or_default();
    let told = to_stdout(format!("{said}{tracing}{partial}")).class(FailureKind::File);
    cleared?;
    told?;
    match found {
        Ok(found) => found.into_iter().try_for_each(|it| of_kept(&it))?,
        // Who cleans up after himself has left none where he may not look.
        Err(_) if options.pid.is_some() => {}
        Err(closed) => return Err(of_closed(&closed)),
    }
    Ok(ExitStatus::Done)
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

/// The line of tracing of system calls that a killed darc had left in the kernel, and that is gone.
fn removed(found: &Abandoned) -> Option<String> {
    let line = format!(
        "{}: tracing of a killed darc, removed",
        found.folder.display()
    );
    found.removed.is_ok().then(|| one_line(&line) + "\n")
}

/// The failure where it cannot be seen whether there is any.
fn of_closed(folder: &Path) -> Failure {
    let folder = folder.display();
    let line = format!(
        "{folder}: may not be looked into, so it is not known whether a killed darc has left tracing there; run as root"
    );
    Failure::message(FailureKind::Other, line)
}

/// The failure of what is still there.
fn of_kept(found: &Abandoned) -> Result<(), Failure> {
    let folder = found.folder.display();
    let kept = |error| format!("{folder}: tracing of a killed darc, cannot be removed: {error}");
    let removed = found.removed.as_ref();
    removed
        .map(|&()| ())
        .map_err(|error| Failure::message(FailureKind::Other, kept(error)))
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
