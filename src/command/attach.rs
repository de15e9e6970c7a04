//! `darc attach`: analyse a function of a running process.

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::AttachOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: AttachOptions) -> Result<ExitStatus, Failure> {
    let _ = options;
    Err(Failure::message(
        FailureKind::Other,
        "attach: not available in this build",
    ))
}
