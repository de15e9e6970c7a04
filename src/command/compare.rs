//! `darc compare`: how two stored results differ.

use std::path::Path;

use darc_analysis::Profile;
use darc_report::difference::{self, Difference, Set};
use darc_report::model::ProfileTable;
use darc_report::state::{self, Stored};

use crate::command::shared::stored;
use crate::command::shared::style::style_of;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{CompareOptions, ListingFormat};
use crate::output::to_stdout;

/// Shows the difference on stdout; whether a condition holds is in the exit status.
///
/// # Errors
/// When a file is none of darc's or holds no ops, or the resolutions differ.
pub fn execute(options: CompareOptions) -> Result<ExitStatus, Failure> {
    let difference = difference(&options)?;
    let shown = match options.format {
        ListingFormat::Text => {
            let stdout = std::io::stdout();
            let style = style_of(options.color, &stdout);
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
    let files = format!("{:?} and {:?}", options.before, options.after);
    let before = read(&options.before)?;
    let after = read(&options.after)?;
    if before.is_set() != after.is_set() {
        return Err(Failure::message(
            FailureKind::File,
            format!("{files}: one is an analysis, the other a set of profiles; name two of a kind"),
        ));
    }
    difference::of(
        &before.set(&options.before)?,
        &after.set(&options.after)?,
        options.method,
        &options.fail_on,
    )
    .map_err(|error| {
        let advice = "measure both with the same --resolution";
        Failure::message(FailureKind::File, format!("{files}: {error}; {advice}"))
    })
}

/// A result with its profiles.
struct Compared {
    stored: Stored,
    profiles: Vec<Profile>,
}

fn read(path: &Path) -> Result<Compared, Failure> {
    let refuse = |why: &str| Failure::message(FailureKind::File, format!("{path:?}: {why}"));
    let (stored, _) = stored::read_any(path)?;
    let tables: Vec<&ProfileTable> = match &stored {
        Stored::Report(report) => std::iter::once(&report.profile)
            .chain(report.focus.iter().map(|focus| &focus.profile))
            .collect(),
        Stored::Profiles(set) => set.profiles.iter().map(|entry| &entry.profile).collect(),
    };
    let profiles: Result<Vec<Profile>, _> = tables.into_iter().map(state::profile).collect();
    let profiles = profiles.map_err(|error| refuse(&error.to_string()))?;
    Ok(Compared { stored, profiles })
}

impl Compared {
    fn is_set(&self) -> bool {
        matches!(self.stored, Stored::Profiles(_))
    }

    fn set(&self, path: &Path) -> Result<Set<'_>, Failure> {
        let (file, profiles) = (path.display().to_string(), self.profiles.clone());
        let set = match &self.stored {
            Stored::Report(report) => Set::of_report(file, report, profiles),
            Stored::Profiles(set) => Set::of_profiles(file, set, profiles),
        };
        match set.is_empty() {
            true => Err(Failure::message(
                FailureKind::File,
                format!(
                    "{path:?}: no op completed, so there is nothing to compare; name other results"
                ),
            )),
            false => Ok(set),
        }
    }
}

#[cfg(test)]
mod tests {
    use darc_report::{Report, fixture};

    use super::*;
    use crate::options::{ColorChoice, Condition, Method};

    /// Compares the sample with what `change` makes of it.
    fn compare(
        change: impl FnOnce(&mut Report),
        fail_on: Vec<Condition>,
    ) -> Result<ExitStatus, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut report = fixture::report(30_000);
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
        let empty = |report: &mut Report| *report = fixture::report(0);
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
