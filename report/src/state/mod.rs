//! The result file (`out.txt`): written for people, read again by `resume` and `report`.
//!
//! ```text
//! darc 1                        what the file is, and the version of its format
//! report-lines 61               so many lines follow that are for people; they are not read again
//! ...
//! report schema=1 darc="0.1.0"  the same as data: one record a line, every figure labelled,
//!   f0 name="put" ...           parts indented below the whole
//!   - peaks peak=1 ...          `-`: one item of a list
//! checksum fnv1a-64 0011223344556677    of all bytes before this line
//! ```
//!
//! A set of profiles (`darc profile`) is written in the same way, its data below `profiles`.
//!
//! The files of strangers are read too, so reading checks the checksum first, has limits for everything,
//! and refuses what contradicts itself. JSON results (schema 1) are read as well; those have no checksum.

mod checksum;
mod document;
pub mod error;
mod fitting;
mod json;
mod outline;
#[cfg(test)]
mod requests_tests;
pub mod restore;
#[cfg(test)]
mod tests;
mod validate;

pub use document::{VERSION, parse, write, write_profiles};
pub use error::StateError;
pub use fitting::{Fitting, fitting};
pub use restore::Ids;
pub use validate::profile;

use crate::Report;
use crate::profiles::ProfileSet;

/// Files larger than this are refused, in bytes.
pub const MAX_SIZE: usize = 32 << 20;
/// Files of more records than this are refused.
const MAX_RECORDS: usize = 500_000;
/// The table of all fnodes by all peaks has so many cells at most.
const MAX_CELLS: usize = 2_000_000;
/// The longest path from f0 down that is accepted, in fnodes.
const MAX_DEPTH: usize = darc_analysis::descent::params::MAX_DEPTH;
/// Records are nested this deep at most: the report, an analysis in it, and the ftree.
const MAX_NESTING: usize = MAX_DEPTH + 4;

/// What a file may hold.
#[derive(Clone, PartialEq, Debug)]
pub enum Stored {
    /// An analysis.
    Report(Box<Report>),
    /// Profiles that were measured together.
    Profiles(Box<ProfileSet>),
}

/// Reads the result of an analysis in either format.
///
/// # Errors
/// When it is no such result, is damaged, has another version, or contradicts itself.
pub fn read_any(bytes: &[u8]) -> Result<Report, StateError> {
    match read_stored(bytes)? {
        Stored::Report(report) => Ok(*report),
        Stored::Profiles(_) => Err(StateError::Profiles),
    }
}

/// Reads a result of either kind in either format.
///
/// # Errors
/// As [`read_any`].
pub fn read_stored(bytes: &[u8]) -> Result<Stored, StateError> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        json::parse(bytes)
    } else {
        document::parse_stored(bytes)
    }
}
