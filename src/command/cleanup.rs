//! `darc cleanup`: take away what a darc that was killed left in a process.
//!
//! A process goes on correctly with what was left; this frees the memory and makes its code the file's again.

use std::path::Path;

use darc_tracer::engine::jump::{Cleared, clear_leftovers};

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
    let pid = checked(options.pid, |note| warning::print(&note.to_string()))?;
    let _claim = claim(pid)?;
    let cleared = clear_leftovers(pid).class(FailureKind::Target)?;
    let said = match cleared {
        Cleared::Nothing => "nothing of an earlier darc is in it",
        Cleared::Patches => {
            "its code is the file's again; some memory stays mapped, for a call in it has not returned yet"
        }
        Cleared::Everything => "its code is the file's again, and all memory was given back",
    };
    let mut lines = format!("process {pid}: {said}\n");
    for path in left_behind(folder(options.output.as_deref())) {
        let line = format!(
            "{}: results that a killed darc did not put in place; remove it, or look at it with darc report",
            path.display()
        );
        lines.push_str(&one_line(&line));
        lines.push('\n');
    }
    to_stdout(&lines).class(FailureKind::File)?;
    Ok(ExitStatus::Done)
}

/// Where results were to go.
fn folder(output: Option<&Path>) -> &Path {
    let folder = output.and_then(Path::parent);
    folder
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
