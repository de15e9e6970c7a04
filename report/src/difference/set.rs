//! A result as a set of profiles that can be paired with those of another.

use std::collections::HashMap;

use darc_analysis::Profile;

use crate::Report;
use crate::model::{Engine, PeakEntry, Percentiles};
use crate::profiles::ProfileSet;

/// One result: its name, and its profiles.
pub struct Set<'a> {
    /// The file, as the person named it.
    pub(super) file: String,
    /// The function that was analysed; empty for sets of profiles.
    pub(super) f0: String,
    /// Cycles per second.
    pub(super) hz: u64,
    /// How the target was instrumented, where there is a choice.
    pub(super) engine: Option<Engine>,
    /// Whether f0's ops are lives of futures.
    pub(super) has_lives: bool,
    /// The threads whose ops were measured, where not all were.
    pub(super) threads: &'a [String],
    /// The profiles that hold ops.
    pub(super) members: Vec<Member<'a>>,
}

/// A profile of a set.
pub(super) struct Member<'a> {
    pub(super) name: String,
    /// Tells functions of one name apart: the module, and which one of those in it.
    distinction: (String, usize),
    pub(super) is_f0: bool,
    pub(super) profile: Profile,
    /// Where the result tells them.
    pub(super) percentiles: Option<Percentiles>,
    pub(super) peaks: &'a [PeakEntry],
}

impl Member<'_> {
    /// f0s belong together whatever they are called.
    pub(super) fn is_same(&self, other: &Member<'_>) -> bool {
        let same = || self.name == other.name && self.distinction == other.distinction;
        self.is_f0 == other.is_f0 && (self.is_f0 || same())
    }
}

impl<'a> Set<'a> {
    /// An analysis: `profiles` are f0's, then those of the report's `focus`.
    #[must_use]
    pub fn of_report(file: String, report: &'a Report, profiles: Vec<Profile>) -> Set<'a> {
        let f0 = (
            report.f0.name.clone(),
            true,
            &report.profile,
            report.peaks.as_slice(),
        );
        let below = report.focus.iter().map(|focus| {
            let name = focus.path.join(" → ");
            (name, false, &focus.profile, focus.peaks.as_slice())
        });
        let named = std::iter::once(f0).chain(below).zip(profiles);
        let members = named.map(|((name, is_f0, table, peaks), profile)| Member {
            name,
            distinction: (String::new(), 0),
            is_f0,
            profile,
            percentiles: table.percentiles,
            peaks,
        });
        Set {
            file,
            f0: report.f0.name.clone(),
            hz: report.clock.hz,
            engine: Some(report.engine),
            has_lives: report.futures.is_some(),
            threads: &report.target.threads,
            members: members
                .filter(|member| member.profile.count() > 0)
                .collect(),
        }
    }

    /// A set of profiles, `profiles` being its members' in their order.
    #[must_use]
    pub fn of_profiles(file: String, set: &'a ProfileSet, profiles: Vec<Profile>) -> Set<'a> {
        let mut seen: HashMap<(String, String), usize> = HashMap::new();
        let members = set.profiles.iter().zip(profiles).map(|(entry, profile)| {
            let name = entry.function.name.clone();
            let path = &entry.function.module;
            let module = path.rsplit('/').next().unwrap_or_default().to_owned();
            let number = seen.entry((module.clone(), name.clone())).or_default();
            *number += 1;
            Member {
                name,
                distinction: (module, *number),
                is_f0: false,
                profile,
                percentiles: None,
                peaks: &[],
            }
        });
        Set {
            file,
            f0: String::new(),
            hz: set.clock.hz,
            engine: None,
            has_lives: false,
            threads: &[],
            members: members
                .filter(|member| member.profile.count() > 0)
                .collect(),
        }
    }

    /// Whether there is nothing in it to be compared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The time of all ops, in cycles.
    pub(super) fn time(&self) -> u64 {
        self.members.iter().fold(0, |sum, member| {
            sum.saturating_add(member.profile.total().0)
        })
    }
}
