//! `darc guardian`: restore the target's code should darc be killed.

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::GuardianOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: GuardianOptions) -> Result<ExitStatus, Failure> {
    let _ = options;
    Err(Failure::message(
        FailureKind::Other,
        "guardian: not available in this build",
    ))
}
