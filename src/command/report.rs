//! `darc report`: show results that a file holds.

use super::{saved, stored};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::ReportOptions;
use crate::output::{Output, to_stdout};
use crate::report::{self, text};
use crate::terminal::{self, Color};

/// Shows the results on stdout, or writes them to a file.
///
/// # Errors
/// When the file is none of darc's, or the output cannot be written.
pub fn execute(options: ReportOptions) -> Result<ExitStatus, Failure> {
    let (report, _) = stored::read(&options.file)?;
    match &options.output {
        Some(path) => {
            let results = saved::contents(&report, options.format)?;
            Output::open(path)
                .class(FailureKind::File)?
                .write(results.as_bytes())
                .class(FailureKind::File)?;
        }
        None => {
            let stdout = std::io::stdout();
            let style = text::Style {
                width: terminal::width(&stdout),
                color: match Color::of(options.color, &stdout) {
                    Color::Ansi => text::Color::Always,
                    Color::Plain => text::Color::Never,
                },
            };
            let text = report::render(&report, options.format, style).class(FailureKind::Other)?;
            to_stdout(&text).class(FailureKind::File)?;
        }
    }
    Ok(ExitStatus::Done)
}
