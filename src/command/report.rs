//! `darc report`: show results that a file holds.

use std::io::{self, Write};

use super::stored;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{Format, ReportOptions};
use crate::output::Output;
use crate::report::text::{self, Style};
use crate::report::{Report, json};
use crate::state;
use crate::terminal::{self, Color};

/// Shows the results on stdout, or writes them to a file, which `darc resume` can read in either format.
///
/// # Errors
/// When the file is none of darc's, or the output cannot be written.
pub fn execute(options: ReportOptions) -> Result<ExitStatus, Failure> {
    let (report, _) = stored::read(&options.file)?;
    match &options.output {
        Some(path) => {
            let text = match options.format {
                Format::Text => state::write(&report),
                Format::Json => json::render(&report).class(FailureKind::Other)?,
            };
            Output::open(path)
                .class(FailureKind::File)?
                .write(text.as_bytes())
                .class(FailureKind::File)?;
        }
        None => show(&report, &options)?,
    }
    Ok(ExitStatus::Done)
}

fn show(report: &Report, options: &ReportOptions) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    let text = match options.format {
        Format::Text => {
            let color = match Color::of(options.color, &stdout) {
                Color::Ansi => text::Color::Always,
                Color::Plain => text::Color::Never,
            };
            text::render(
                report,
                Style {
                    width: terminal::width(&stdout),
                    color,
                },
            )
        }
        Format::Json => json::render(report).class(FailureKind::Other)?,
    };
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // Whoever read it had enough, as in `darc report out.txt | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result
            .map_err(|error| anyhow::Error::new(error).context("stdout"))
            .class(FailureKind::File),
    }
}
