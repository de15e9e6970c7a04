//! Why a file cannot be read as a result.

use thiserror::Error;

use darc_analysis::ResumeError;

/// Why a file cannot be read as a result. Texts from the file are escaped.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
pub enum StateError {
    /// It is something else.
    #[error("not a darc file")]
    NotDarc,
    /// It is the other kind of result.
    #[error("a set of profiles, not an analysis")]
    Profiles,
    /// It is of another version.
    #[error("a darc file of version {found}, this program reads version {known}")]
    Version {
        /// Which one.
        found: u64,
        /// The one that is read.
        known: u64,
    },
    /// It was changed or cut off after it was written.
    #[error("damaged at line {line}: {what}")]
    Damaged {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// It is larger than any result.
    #[error("{size} bytes are more than a result has ({limit})")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The largest size that is read.
        limit: usize,
    },
    /// f0 is at an address that means nothing in another run.
    #[error("{0} was code that the program had made while it ran; start a new analysis")]
    MadeCode(String),
    /// What it says cannot be.
    #[error("not a valid result: {0}")]
    Invalid(String),
}

impl From<ResumeError> for StateError {
    fn from(error: ResumeError) -> Self {
        StateError::Invalid(error.to_string())
    }
}
