//! The report: what an analysis found, as data and in each format.
//!
//! [`Report`] has every name resolved and every address written as module and offset, so that a format
//! only lays it out. It also carries all that a later run needs to go on.
#![forbid(unsafe_code)]

pub mod assemble;
mod contrast;
pub mod escape;
#[cfg(test)]
mod golden_tests;
pub mod json;
pub mod model;
pub mod place;
#[cfg(test)]
pub(crate) mod sample;
pub mod text;
mod words;

pub use assemble::Names;
pub use model::Report;
pub use place::Place;

/// How a report is written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Format {
    /// For people; saved, also for a later run.
    #[default]
    Text,
    /// For programs: schema 1.
    Json,
}

impl Format {
    /// All formats, by the name that the command line has for them.
    pub const NAMES: [(&'static str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

    /// The format of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .into_iter()
            .find(|&(known, _)| known == name)
            .map(|(_, format)| format)
    }

    /// The format's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }
}
