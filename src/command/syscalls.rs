//! `darc profile --syscalls`.

use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::ProfileOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(_options: &ProfileOptions) -> Result<ExitStatus, Failure> {
    Err(Failure::message(
        FailureKind::Target,
        "system calls cannot be profiled by this build",
    ))
}
