//! What the subcommands are told that show something.

use std::path::PathBuf;

use super::{ColorChoice, Condition, Format, Method, Query};

/// `darc report`: show results that a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportOptions {
    /// The file with the results.
    pub file: PathBuf,
    /// The format they are shown in.
    pub format: Format,
    /// Where to: stdout when `None`.
    pub output: Option<PathBuf>,
    /// Whether calls with little of the time are shown, too.
    pub all: bool,
    /// Whether the file is opened for the person: a page.
    pub open: bool,
    /// Whether colours are used.
    pub color: ColorChoice,
}

/// `darc compare`: how two results differ.
#[derive(Clone, PartialEq, Debug)]
pub struct CompareOptions {
    /// The file with the earlier results.
    pub before: PathBuf,
    /// The file with the later results.
    pub after: PathBuf,
    /// What profiles are rated by.
    pub method: Method,
    /// What makes the exit code tell.
    pub fail_on: Vec<Condition>,
    /// The format of the comparison.
    pub format: ListingFormat,
    /// Whether colours are used.
    pub color: ColorChoice,
}

/// `darc list`: the functions that can be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListOptions {
    /// Whose functions.
    pub source: ListSource,
    /// Which, and how.
    pub query: Query,
    /// The format of the list.
    pub format: ListingFormat,
}

/// Whose functions are listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListSource {
    /// Those of everything that a process has loaded.
    Pid(i32),
    /// Those of a program or library.
    File(PathBuf),
}

/// `darc cleanup`: take away what a killed darc left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CleanupOptions {
    /// The process that it measured, if one is to be looked into.
    pub pid: Option<i32>,
    /// Where its results were to go.
    pub output: Option<PathBuf>,
}

/// `darc status`: where an analysis stands that another darc conducts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusOptions {
    /// The process that is analysed; all when `None`.
    pub pid: Option<i32>,
    /// The format it is shown in.
    pub format: Format,
    /// Whether colours are used.
    pub color: ColorChoice,
}

/// `darc doctor`: what works on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoctorOptions {
    /// What is looked at beside the machine.
    pub subject: Subject,
    /// The format of what is said.
    pub format: ListingFormat,
}

/// What `darc doctor` looks at beside the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Nothing.
    Machine,
    /// A program or library.
    File(PathBuf),
    /// All that a process has mapped.
    Process(i32),
}

/// The format of what is not the report of an analysis.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ListingFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

impl From<ListingFormat> for Format {
    fn from(format: ListingFormat) -> Self {
        match format {
            ListingFormat::Text => Format::Text,
            ListingFormat::Json => Format::Json,
        }
    }
}
