//! `darc report`: show results that a file holds.

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::ReportOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ReportOptions) -> Result<ExitStatus, Failure> {
    let _ = options;
    Err(Failure::message(
        FailureKind::Other,
        "report: not available in this build",
    ))
}
