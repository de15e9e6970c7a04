//! The list for people: aligned columns on a terminal, columns parted by tabs in a pipe.

use std::path::Path;

use darc_report::escape::control;

use super::{Entry, Listing};

/// Who reads the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// A person: columns are aligned and have titles.
    Person,
    /// A program: one function a line, columns parted by tabs, which no name contains as it is written.
    Program,
}

/// The list, one function a line: size, module, name, source, note; then its inlined copies.
#[must_use]
pub fn render(listing: &Listing, reader: Reader) -> String {
    let rows: Vec<[String; 4]> = listing.functions.iter().map(cells).collect();
    let mut text = String::new();
    let titles = ["size", "module", "function", "source"].map(str::to_owned);
    let width = |column: usize| {
        let cells = rows
            .iter()
            .chain([&titles])
            .map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).min(40)
    };
    let (size, module, name) = (width(0), width(1), width(2));
    let mut line = |row: &[String; 4]| {
        let line = match reader {
            Reader::Person => format!(
                "{:>size$}  {:<module$}  {:<name$}  {}",
                row[0], row[1], row[2], row[3]
            ),
            Reader::Program => row.join("\t"),
        };
        text.push_str(line.trim_end());
        text.push('\n');
    };
    if reader == Reader::Person {
        line(&titles);
    }
    for (entry, row) in listing.functions.iter().zip(&rows) {
        line(row);
        for copy in &entry.inlined {
            let name = format!("  inlined into {}", control(&copy.caller));
            line(&[
                String::new(),
                row[1].clone(),
                name,
                source(copy.file.as_deref(), copy.line),
            ]);
        }
    }
    text
}

fn cells(entry: &Entry) -> [String; 4] {
    let module = Path::new(&entry.module)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let mut last = source(entry.file.as_deref(), entry.line);
    if let Some(note) = entry.note {
        let part = if last.is_empty() { "" } else { " " };
        last = format!("{last}{part}({})", note.words());
    }
    [
        entry
            .size
            .map_or_else(|| "-".to_owned(), |size| size.to_string()),
        control(&module).into_owned(),
        control(&entry.name).into_owned(),
        last,
    ]
}

fn source(file: Option<&str>, line: Option<u32>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{}:{line}", control(file)),
        (Some(file), None) => control(file).into_owned(),
        (None, _) => String::new(),
    }
}
