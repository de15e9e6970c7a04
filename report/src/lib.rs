//! The report: what an analysis found, as data and in each format.
//!
//! [`Report`] has every name resolved and every address written as module and offset, so that a format
//! only lays it out. It also carries all that a later run needs to go on.

mod answer;
pub mod assemble;
mod attribution;
mod by_share;
pub mod callgrind;
mod chrome;
mod contrast;
pub mod difference;
mod doubts;
mod ends;
pub mod escape;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod folded;
pub mod goroutines;
mod handover;
pub mod html;
pub mod json;
mod kept;
mod loops;
mod markup;
pub mod model;
mod names;
mod narrowed;
mod next;
mod off_cpu;
mod oftener;
mod outcome;
pub mod place;
pub mod pprof;
pub mod profiles;
pub mod proof;
mod recursion;
pub mod speedscope;
mod spread;
pub mod state;
pub mod svg;
mod telling;
#[cfg(test)]
mod tests;
pub mod text;
mod waiting;
pub mod words;

use std::path::Path;

pub use model::Report;
pub use next::quoted;
pub use place::Place;

/// How a report is written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Format {
    /// For people; saved, also for a later run.
    #[default]
    Text,
    /// For programs: schema 1. Also for a later run.
    Json,
    /// Folded stacks, for flame graphs.
    Folded,
    /// The file format of speedscope.
    Speedscope,
    /// The file format of Callgrind.
    Callgrind,
    /// The histogram as a picture.
    Svg,
    /// One page that needs nothing beside itself.
    Html,
    /// Chrome trace events.
    Chrome,
    /// The file format of pprof, compressed.
    Pprof,
}

impl Format {
    /// All formats, by the name that the command line has for them.
    pub const NAMES: [(&'static str, Format); 9] = [
        ("text", Format::Text),
        ("json", Format::Json),
        ("folded", Format::Folded),
        ("speedscope", Format::Speedscope),
        ("callgrind", Format::Callgrind),
        ("svg", Format::Svg),
        ("html", Format::Html),
        ("chrome", Format::Chrome),
        ("pprof", Format::Pprof),
    ];

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
            Format::Folded => "folded",
            Format::Speedscope => "speedscope",
            Format::Callgrind => "callgrind",
            Format::Svg => "svg",
            Format::Html => "html",
            Format::Chrome => "chrome",
            Format::Pprof => "pprof",
        }
    }

    /// The file that results of this format go to when none is named.
    #[must_use]
    pub fn default_output(self) -> &'static str {
        match self {
            Format::Text | Format::Json => "out.txt",
            Format::Folded => "out.folded",
            Format::Speedscope => "out.speedscope.json",
            Format::Callgrind => "callgrind.out",
            Format::Svg => "out.svg",
            Format::Html => "out.html",
            Format::Chrome => "out.trace.json",
            Format::Pprof => "out.pb.gz",
        }
    }

    /// The format that the ending of a file's name stands for.
    #[must_use]
    pub fn of_file(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?;
        // The longer endings come first.
        let endings = [
            (".speedscope.json", Format::Speedscope),
            (".trace.json", Format::Chrome),
            (".json", Format::Json),
            (".html", Format::Html),
            (".svg", Format::Svg),
            (".folded", Format::Folded),
            (".pb.gz", Format::Pprof),
            (".txt", Format::Text),
        ];
        let found = endings.iter().find(|(ending, _)| name.ends_with(ending));
        found.map(|&(_, format)| format)
    }

    /// Whether it holds all of the results, so that `darc resume` and `darc report` read them again.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, Format::Text | Format::Json)
    }
}

/// The file of a report in a format; `style` matters to the text, and its rows and its file to HTML.
///
/// # Errors
/// Only when a figure is not finite, which no assembled report has.
pub fn render(
    report: &Report,
    format: Format,
    style: text::Style<'_>,
) -> Result<Vec<u8>, serde_json::Error> {
    Ok(match format {
        Format::Text => text::render(report, style),
        Format::Json => json::render(report)?,
        Format::Folded => folded::render(report),
        Format::Speedscope => speedscope::render(report)?,
        Format::Callgrind => callgrind::render(report),
        Format::Svg => svg::render(report),
        Format::Html => html::render(report, style),
        Format::Chrome => chrome::render(report)?,
        Format::Pprof => return Ok(pprof::render(report)),
    }
    .into_bytes())
}
