//! `darc guardian`: restore the target's code should darc be killed.

use std::fs::File;

use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::GuardianOptions;

/// Does it.
///
/// # Errors
/// When the descriptors are not those that darc hands over.
pub fn execute(options: GuardianOptions) -> Result<ExitStatus, Failure> {
    // Opened anew through /proc: taking over a bare number would need unsafe code.
    let open = |fd: i32| File::open(format!("/proc/self/fd/{fd}")).class(FailureKind::Usage);
    let (ledger, life) = (open(options.ledger_fd)?, open(options.life_fd)?);
    darc_tracer::guardian::watch(options.pid, &ledger, life).class(FailureKind::Target)?;
    Ok(ExitStatus::Done)
}
