//! `darc compare`: how two stored results differ.

use std::path::Path;

use super::stored;
use crate::analysis::Profile;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{CompareOptions, ListingFormat};
use crate::output::to_stdout;
use crate::report::Report;
use crate::report::difference::{self, Set};
use crate::report::text;
use crate::state;
use crate::terminal::{self, Color};

/// Shows the difference on stdout; whether a condition holds is in the exit status.
///
/// # Errors
/// When a file is none of darc's or holds no ops, or the resolutions differ.
pub fn execute(options: CompareOptions) -> Result<ExitStatus, Failure> {
    let before = read(&options.before)?;
    let after = read(&options.after)?;
    let difference = difference::of(
        &set(&options.before, &before),
        &set(&options.after, &after),
        options.method,
        &options.fail_on,
    )
    .map_err(|error| {
        let files = format!("{:?} and {:?}", options.before, options.after);
        let advice = "analyse both with the same --resolution";
        Failure::message(FailureKind::File, format!("{files}: {error}; {advice}"))
    })?;
    let shown = match options.format {
        ListingFormat::Text => {
            let stdout = std::io::stdout();
            let style = text::Style {
                width: terminal::width(&stdout),
                color: match Color::of(options.color, &stdout) {
                    Color::Ansi => text::Color::Always,
                    Color::Plain => text::Color::Never,
                },
            };
            difference::text::render(&difference, style)
        }
        ListingFormat::Json => {
            let json = serde_json::to_string_pretty(&difference).class(FailureKind::Other)?;
            json + "\n"
        }
    };
    to_stdout(&shown).class(FailureKind::File)?;
    Ok(match difference.failed_on.is_empty() {
        true => ExitStatus::Done,
        false => ExitStatus::Differs,
    })
}

/// A result with its profiles.
struct Stored {
    report: Report,
    profiles: Vec<Profile>,
}

fn read(path: &Path) -> Result<Stored, Failure> {
    let refuse = |why: &str| Failure::message(FailureKind::File, format!("{path:?}: {why}"));
    let (report, _) = stored::read(path)?;
    let tables =
        std::iter::once(&report.profile).chain(report.focus.iter().map(|focus| &focus.profile));
    let profiles: Result<Vec<Profile>, _> = tables.map(state::profile).collect();
    let profiles = profiles.map_err(|error| refuse(&error.to_string()))?;
    if profiles.iter().all(|profile| profile.count() == 0) {
        return Err(refuse(
            "no op completed, so there is nothing to compare; name other results",
        ));
    }
    Ok(Stored { report, profiles })
}

fn set<'a>(path: &Path, stored: &'a Stored) -> Set<'a> {
    Set {
        file: path.display().to_string(),
        report: &stored.report,
        profiles: stored.profiles.clone(),
    }
}
