//! `darc resume`: go on with an analysis that a file holds.

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::ResumeOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ResumeOptions) -> Result<ExitStatus, Failure> {
    let _ = options;
    Err(Failure::message(
        FailureKind::Other,
        "resume: not available in this build",
    ))
}
