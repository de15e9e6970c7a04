//! Stored results, read from the file that the person named.

use std::fs::Metadata;
use std::path::Path;

use darc_report::Report;
use darc_report::state::{self, StateError, Stored};

use crate::exit::{Failure, FailureKind};
use crate::input::read_bounded;

/// The analysis in `path`, and what the kernel says about the file.
///
/// # Errors
/// Class [`FailureKind::File`]: it cannot be read, is no result, or is damaged.
pub fn read(path: &Path) -> Result<(Report, Metadata), Failure> {
    match read_any(path)? {
        (Stored::Report(report), metadata) => Ok((*report, metadata)),
        (Stored::Profiles(_), _) => Err(refuse(path, &StateError::Profiles)),
    }
}

/// The results in `path`, of whichever kind, and what the kernel says about the file.
///
/// # Errors
/// As [`read`].
pub fn read_any(path: &Path) -> Result<(Stored, Metadata), Failure> {
    let (bytes, metadata) = read_bounded(path, state::MAX_SIZE)
        .map_err(|error| Failure::message(FailureKind::File, format!("{path:?}: {error}")))?;
    let stored = state::read_stored(&bytes).map_err(|error| refuse(path, &error))?;
    Ok((stored, metadata))
}

fn refuse(path: &Path, error: &StateError) -> Failure {
    let advice = match error {
        StateError::Profiles => "darc compare and darc report take it",
        _ => "name a file that darc wrote with -o",
    };
    Failure::message(FailureKind::File, format!("{path:?}: {error}; {advice}"))
}
