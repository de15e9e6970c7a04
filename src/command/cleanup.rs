//! `darc cleanup`: take away what a darc that was killed left in a process.
//!
//! A process goes on correctly with what was left; this frees the memory and makes its code the file's again.

use darc_tracer::engine::jump::{Cleared, clear_leftovers};
use darc_tracer::preflight;

use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::terminal::warning;

use super::conduct::claim;

/// Does it.
///
/// # Errors
/// When the process cannot be traced or restored.
pub fn execute(pid: i32) -> Result<ExitStatus, Failure> {
    let found = preflight::check(pid).class(FailureKind::Target)?;
    for note in &found.notes {
        warning::print(&note.to_string());
    }
    let _claim = claim(found.pid)?;
    let cleared = clear_leftovers(found.pid).class(FailureKind::Target)?;
    let said = match cleared {
        Cleared::Nothing => "nothing of an earlier darc is in it",
        Cleared::Patches => {
            "its code is the file's again; some memory stays mapped, for a call in it has not returned yet"
        }
        Cleared::Everything => "its code is the file's again, and all memory was given back",
    };
    println!("process {}: {said}", found.pid);
    Ok(ExitStatus::Done)
}
