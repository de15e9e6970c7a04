//! `darc report`: show results that a file holds.

use darc_report as report;
use darc_report::state::{self, Stored};
use darc_report::text::{Rows, Style};

use crate::command::shared::style::style_of;
use crate::command::shared::{saved, stored};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{Format, ReportOptions};
use crate::output::{Output, opener, to_stdout};
use crate::terminal::warning;

/// Shows the results on stdout, or writes them to a file.
///
/// # Errors
/// When the file is none of darc's, or the output cannot be written.
pub fn execute(options: ReportOptions) -> Result<ExitStatus, Failure> {
    let (stored, _) = stored::read_any(&options.file)?;
    let rows = match options.all {
        true => Rows::All,
        false => Rows::Main,
    };
    let style = Style {
        rows,
        file: options.file.to_str(),
        ..Style::default()
    };
    match &options.output {
        Some(path) => {
            let results = match &stored {
                Stored::Report(report) => saved::contents(report, options.format, style)?,
                Stored::Profiles(set) => match options.format {
                    Format::Text => state::write_profiles(set).into_bytes(),
                    format => super::profile::render(set, format, Style::default())?.into_bytes(),
                },
            };
            Output::open(path)
                .class(FailureKind::File)?
                .write(&results)
                .class(FailureKind::File)?;
            if options.open
                && let Err(why) = opener::open(path)
            {
                // The page is there all the same.
                let page = path.canonicalize().unwrap_or_else(|_| path.clone());
                warning::print(&format!("{page:?}: {why}; open it in a browser"));
            }
        }
        None => {
            let stdout = std::io::stdout();
            let style = Style {
                rows,
                file: style.file,
                ..style_of(options.color, &stdout)
            };
            let shown = match &stored {
                Stored::Report(report) => {
                    report::render(report, options.format, style).class(FailureKind::Other)?
                }
                Stored::Profiles(set) => {
                    super::profile::render(set, options.format, style)?.into_bytes()
                }
            };
            to_stdout(&shown).class(FailureKind::File)?;
        }
    }
    Ok(ExitStatus::Done)
}
