//! `darc compare`: how two stored results differ.

use std::path::Path;

use super::stored;
use crate::analysis::Profile;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{CompareOptions, ListingFormat};
use crate::output::to_stdout;
use crate::report::Report;
use crate::report::difference::{self, Difference, Set};
use crate::report::text;
use crate::state;
use crate::terminal::{self, Color};

/// Shows the difference on stdout; whether a condition holds is in the exit status.
///
/// # Errors
/// When a file is none of darc's or holds no ops, or the resolutions differ.
pub fn execute(options: CompareOptions) -> Result<ExitStatus, Failure> {
    let difference = difference(&options)?;
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
    Ok(status(&difference))
}

fn status(difference: &Difference) -> ExitStatus {
    if difference.failed_on.is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Differs
    }
}

fn difference(options: &CompareOptions) -> Result<Difference, Failure> {
    let before = read(&options.before)?;
    let after = read(&options.after)?;
    difference::of(
        &set(&options.before, &before),
        &set(&options.after, &after),
        options.method,
        &options.fail_on,
    )
    .map_err(|error| {
        let files = format!("{:?} and {:?}", options.before, options.after);
        let advice = "analyse both with the same --resolution";
        Failure::message(FailureKind::File, format!("{files}: {error}; {advice}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ColorChoice, Condition, Method};
    use crate::report::sample;

    /// Compares the sample with what `change` makes of it.
    fn compare(
        change: impl FnOnce(&mut Report),
        fail_on: Vec<Condition>,
    ) -> Result<ExitStatus, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut report = sample::report(30_000);
        std::fs::write(path("before"), state::write(&report)).unwrap();
        change(&mut report);
        std::fs::write(path("after"), state::write(&report)).unwrap();
        difference(&CompareOptions {
            before: path("before"),
            after: path("after"),
            method: Method::Emd,
            fail_on,
            format: ListingFormat::Json,
            color: ColorChoice::Never,
        })
        .map(|difference| status(&difference))
    }

    #[test]
    fn the_exit_status_tells_whether_a_condition_holds() {
        let limit = |limit| vec![Condition::AtLeast(Method::Emd, limit)];
        assert_eq!(compare(|_| (), limit(0.1)).unwrap(), ExitStatus::Done);
        assert_eq!(compare(|_| (), limit(0.0)).unwrap(), ExitStatus::Differs);
    }

    #[test]
    fn results_that_cannot_be_compared_are_refused_in_one_line() {
        let finer = |report: &mut Report| report.profile.resolution = 2;
        let empty = |report: &mut Report| *report = sample::report(0);
        for (refused, part) in [
            (compare(finer, Vec::new()), "resolutions differ: 1 and 2"),
            (compare(empty, Vec::new()), "nothing to compare"),
        ] {
            let failure = refused.unwrap_err();
            assert_eq!(failure.kind(), FailureKind::File);
            assert!(failure.line().contains(part), "{}", failure.line());
        }
    }
}
