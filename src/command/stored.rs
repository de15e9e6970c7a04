//! Stored results, read from the file that the person named.

use std::fs::Metadata;
use std::path::Path;

use crate::exit::{Failure, FailureKind};
use crate::input::read_bounded;
use crate::report::Report;
use crate::state;

/// The results in `path`, and what the kernel says about the file.
///
/// # Errors
/// Class [`FailureKind::File`]: it cannot be read, is no result, or is damaged.
pub fn read(path: &Path) -> Result<(Report, Metadata), Failure> {
    let refuse = |why: String| Failure::message(FailureKind::File, format!("{path:?}: {why}"));
    let (bytes, metadata) =
        read_bounded(path, state::MAX_SIZE).map_err(|error| refuse(error.to_string()))?;
    let report = state::read_any(&bytes)
        .map_err(|error| refuse(format!("{error}; name a file that darc wrote with -o")))?;
    Ok((report, metadata))
}
