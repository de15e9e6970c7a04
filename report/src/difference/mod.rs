//! How two results differ: the profiles of each, paired, compared and rated (OSprof, OSDI 2006, section 3.2).
//!
//! A result is a set of profiles: f0's, and those of the functions below an f0 that was running already. In
//! sets of several the pairs that cannot matter are left out first; f0s are always shown.

mod set;
pub mod text;

use darc_analysis::profile::compare::{self, Comparison, PeakChange};
use darc_analysis::profile::histogram::ProfileError;
use darc_analysis::{Hz, Peak};
use serde::Serialize;
use set::Member;

use super::model::{PeakEntry, Percentiles, SCHEMA};
use super::words;
pub use set::Set;

/// Pairs with a smaller share of the time of both sets are left out.
const NEGLIGIBLE: f64 = 0.01;
/// Rates of two clocks that differ by more are those of different machines.
const CLOCK_TOLERANCE: f64 = 0.01;

/// What profiles are rated by (see [`Comparison`]).
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The Earth Mover's Distance.
    #[default]
    Emd,
    /// The chi-square distance.
    ChiSquare,
    /// The normalised difference of the numbers of ops.
    Ops,
    /// The normalised difference of the total latencies.
    Latency,
}

impl Method {
    /// All methods, by name.
    pub const NAMES: [(&'static str, Method); 4] = [
        ("emd", Method::Emd),
        ("chi-square", Method::ChiSquare),
        ("ops", Method::Ops),
        ("latency", Method::Latency),
    ];

    /// The method of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::NAMES.into_iter().find(|&(known, _)| known == name);
        found.map(|(_, method)| method)
    }

    /// The method's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Emd => "emd",
            Method::ChiSquare => "chi-square",
            Method::Ops => "ops",
            Method::Latency => "latency",
        }
    }

    /// Infinity where a profile is compared with nothing.
    fn rate(self, comparison: &Comparison) -> f64 {
        match self {
            Method::Emd => comparison.emd,
            Method::ChiSquare => comparison.chi_square,
            Method::Ops => comparison.ops,
            Method::Latency => comparison.total_latency,
        }
    }
}

/// A difference that the exit code tells.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Condition {
    /// Some profile has a peak where it had none, by more than chance.
    NewPeak,
    /// Some pair is rated so high, or higher.
    AtLeast(Method, f64),
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Condition::NewPeak => f.write_str("new-peak"),
            Condition::AtLeast(method, limit) => write!(f, "{}={limit}", method.name()),
        }
    }
}

impl Condition {
    fn holds(self, comparison: &Comparison) -> bool {
        match self {
            Condition::NewPeak => comparison.has_new_peak,
            Condition::AtLeast(method, limit) => method.rate(comparison) >= limit,
        }
    }
}

/// How two results differ.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Difference {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The earlier result.
    pub before: Side,
    /// The later result.
    pub after: Side,
    /// What pairs are rated by.
    pub method: Method,
    /// The pairs, from the highest rating to the lowest.
    pub pairs: Vec<Pair>,
    /// Pairs with near-equal totals or a negligible share of the time.
    pub left_out: usize,
    /// Profiles that only the earlier result has.
    pub only_before: Vec<String>,
    /// Profiles that only the later result has.
    pub only_after: Vec<String>,
    /// The conditions that were asked about and hold.
    pub failed_on: Vec<String>,
    /// What the person should know.
    pub warnings: Vec<String>,
}

/// One of the two results.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Side {
    /// The file.
    pub file: String,
    /// The function that was analysed; absent for sets of profiles.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub f0: String,
    /// Cycles per second.
    pub hz: u64,
}

/// Two profiles of the same function.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Pair {
    /// The function, with those above it where it is not f0.
    pub name: String,
    /// The rating by the method; absent when one profile is empty.
    pub rating: Option<f64>,
    /// Whether the distribution is another one.
    pub changed: bool,
    /// Absent when one of the profiles is empty.
    pub earth_movers_distance: Option<f64>,
    /// 0 to 1.
    pub chi_square: f64,
    /// Normalised difference, 0 to 1.
    pub ops: f64,
    /// Normalised difference, 0 to 1.
    pub mean_latency: f64,
    /// Normalised difference, 0 to 1.
    pub total_latency: f64,
    /// The earlier profile.
    pub before: Totals,
    /// The later profile.
    pub after: Totals,
    /// Ops of each bucket that has any.
    pub buckets: Vec<BucketPair>,
    /// Buckets per doubling.
    pub resolution: u32,
    /// Peaks that appeared, vanished or moved.
    pub peaks: Vec<PeakDifference>,
}

/// A profile's size.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Totals {
    /// How many ops.
    pub ops: u64,
    /// Their latencies together, in cycles.
    pub total: u64,
    /// The latencies that parts of the ops do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentiles: Option<Percentiles>,
}

impl Totals {
    /// The mean latency, in cycles; nothing without ops.
    pub(super) fn mean(self) -> Option<u64> {
        self.total.checked_div(self.ops)
    }
}

/// One bucket of both profiles.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct BucketPair {
    /// Its number.
    pub bucket: u32,
    /// Ops before.
    pub before: u64,
    /// Ops after.
    pub after: u64,
}

/// What became of a peak.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is new.
    Appeared,
    /// It is no more.
    Vanished,
    /// Its range is another one.
    Moved,
}

/// A peak that is not as it was.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct PeakDifference {
    /// What became of it.
    pub change: Change,
    /// First and last bucket before.
    pub before: Option<[u32; 2]>,
    /// First and last bucket after.
    pub after: Option<[u32; 2]>,
    /// Whether it has so few ops that it may have appeared or vanished by chance.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_be_chance: bool,
    /// What takes the time of its ops, in words, where that was found out: of the later result, or of the
    /// earlier one when the peak vanished.
    pub root_causes: Vec<Cause>,
}

/// A root cause in words.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Cause {
    /// The functions' names, f0 first.
    pub path: Vec<String>,
    /// What takes the time, escaped for a terminal.
    pub words: String,
    /// The part of the peak's time that it explains; 0 where that is not known.
    #[serde(skip)]
    pub(super) share_of_time: f64,
}

/// Compares two results.
///
/// # Errors
/// When the resolutions differ.
pub fn of(
    before: &Set<'_>,
    after: &Set<'_>,
    method: Method,
    conditions: &[Condition],
) -> Result<Difference, ProfileError> {
    let (time_before, time_after) = (before.time(), after.time());
    let (old, new) = (&before.members, &after.members);
    let mut pairs: Vec<(f64, Pair)> = Vec::new();
    let mut holds = vec![false; conditions.len()];
    let mut left_out = 0;
    for one in old {
        let Some(other) = new.iter().find(|other| one.is_same(other)) else {
            continue;
        };
        let comparison = Comparison::of(&one.profile, &other.profile)?;
        let sides = ((&one.profile, time_before), (&other.profile, time_after));
        // What takes no time to speak of has peaks by chance.
        if !one.is_f0 && compare::is_negligible(sides.0, sides.1, NEGLIGIBLE) {
            left_out += 1;
            continue;
        }
        for (holds, condition) in holds.iter_mut().zip(conditions) {
            *holds |= condition.holds(&comparison);
        }
        if !one.is_f0 && compare::has_equal_totals(&one.profile, &other.profile) {
            left_out += 1;
        } else {
            pairs.push((
                method.rate(&comparison),
                pair(one, other, &comparison, method),
            ));
        }
    }
    pairs.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let only = |here: &[Member<'_>], there: &[Member<'_>]| {
        let missing = here
            .iter()
            .filter(|one| !there.iter().any(|other| one.is_same(other)));
        missing.map(|one| one.name.clone()).collect()
    };
    let failed = conditions.iter().zip(holds).filter(|&(_, holds)| holds);
    Ok(Difference {
        schema: SCHEMA,
        before: side(before),
        after: side(after),
        method,
        pairs: pairs.into_iter().map(|(_, pair)| pair).collect(),
        left_out,
        only_before: only(old, new),
        only_after: only(new, old),
        failed_on: failed.map(|(condition, _)| condition.to_string()).collect(),
        warnings: warnings(before, after),
    })
}

fn side(set: &Set<'_>) -> Side {
    Side {
        file: set.file.clone(),
        f0: set.f0.clone(),
        hz: set.hz,
    }
}

/// That two clocks do not count the same cycles in a second, where they do not.
#[must_use]
pub fn clocks_differ(before: u64, after: u64) -> Option<String> {
    let hz = [before as f64, after as f64];
    let [before, after] = hz.map(|hz| hz / 1e9);
    (compare::normalised_difference(hz[0], hz[1]) > CLOCK_TOLERANCE)
        .then(|| format!("the clocks differ ({before:.2} and {after:.2} GHz)"))
}

fn warnings(before: &Set<'_>, after: &Set<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    if before.f0 != after.f0 {
        warnings.push(format!(
            "the analysed functions differ: {} and {}",
            before.f0, after.f0
        ));
    }
    if let Some(differ) = clocks_differ(before.hz, after.hz) {
        warnings.push(format!(
            "{differ}: buckets are cycles, so equal times may lie in different buckets"
        ));
    }
    if before.has_lives != after.has_lives {
        warnings
            .push("the ops of one are lives of futures, those of the other are calls".to_owned());
    }
    if before.threads != after.threads {
        let named = |threads: &[String]| match threads {
            [] => "all threads".to_owned(),
            names => format!("threads {}", names.join(", ")),
        };
        warnings.push(format!(
            "the calls are of different threads: {}, and {}",
            named(before.threads),
            named(after.threads)
        ));
    }
    if let (Some(before), Some(after)) = (before.engine, after.engine)
        && before != after
    {
        warnings.push(format!(
            "the engines differ: {} and {}",
            words::engine(before),
            words::engine(after)
        ));
    }
    warnings
}

fn pair(before: &Member<'_>, after: &Member<'_>, comparison: &Comparison, method: Method) -> Pair {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    let totals = |member: &Member<'_>| Totals {
        ops: member.profile.count(),
        total: member.profile.total().0,
        percentiles: member.percentiles,
    };
    let resolution = before.profile.resolution();
    let buckets = (0..resolution.buckets())
        .map(|bucket| BucketPair {
            bucket,
            before: before.profile.bucket(bucket).ops,
            after: after.profile.bucket(bucket).ops,
        })
        .filter(|pair| pair.before > 0 || pair.after > 0);
    Pair {
        name: after.name.clone(),
        rating: finite(method.rate(comparison)),
        changed: comparison.is_changed(),
        earth_movers_distance: finite(comparison.emd),
        chi_square: comparison.chi_square,
        ops: comparison.ops,
        mean_latency: comparison.mean_latency,
        total_latency: comparison.total_latency,
        before: totals(before),
        after: totals(after),
        buckets: buckets.collect(),
        resolution: resolution.get(),
        peaks: comparison
            .peaks
            .iter()
            .map(|change| peak_difference(change, before, after))
            .collect(),
    }
}

fn peak_difference(change: &PeakChange, before: &Member<'_>, after: &Member<'_>) -> PeakDifference {
    let is_moved = matches!(change, PeakChange::Moved(..));
    let is_certain = is_moved || compare::is_certain(&before.profile, &after.profile, change);
    let (before, after) = (before.peaks, after.peaks);
    let range = |peak: &Peak| Some([peak.first_bucket, peak.last_bucket]);
    let (change, before_range, after_range, causes) = match change {
        PeakChange::Appeared(new) => (Change::Appeared, None, range(new), causes(new, after)),
        PeakChange::Vanished(old) => (Change::Vanished, range(old), None, causes(old, before)),
        PeakChange::Moved(old, new) => (Change::Moved, range(old), range(new), causes(new, after)),
    };
    PeakDifference {
        change,
        before: before_range,
        after: after_range,
        may_be_chance: !is_certain,
        root_causes: causes,
    }
}

/// What was found about the analysed peak that shares the most buckets with this one: a peak of the analysis may
/// have been found when there were fewer ops.
fn causes(peak: &Peak, analysed: &[PeakEntry]) -> Vec<Cause> {
    let common = |entry: &&PeakEntry| {
        let end = peak.last_bucket.min(entry.last_bucket) + 1;
        end.saturating_sub(peak.first_bucket.max(entry.first_bucket))
    };
    let entry = analysed
        .iter()
        .max_by_key(common)
        .filter(|entry| common(entry) > 0);
    let causes = entry.into_iter().flat_map(|entry| {
        let causes = entry.root_causes.iter();
        causes.map(move |cause| (cause, entry))
    });
    causes
        .map(|(cause, entry)| Cause {
            path: cause.path.clone(),
            words: words::in_words(cause, entry),
            share_of_time: cause.share_of_time,
        })
        .collect()
}

/// The rate for showing times of both: that of the later result.
fn hz(difference: &Difference) -> Option<Hz> {
    Hz::new(difference.after.hz)
}

#[cfg(test)]
mod tests;
