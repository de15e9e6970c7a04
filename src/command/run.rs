//! `darc run`: start a program and analyse a function of it.

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::RunOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: RunOptions) -> Result<ExitStatus, Failure> {
    let _ = options;
    Err(Failure::message(
        FailureKind::Other,
        "run: not available in this build",
    ))
}
