//! How much two profiles differ (OSprof, OSDI 2006, sections 3.2 and 5.3).
//!
//! The Earth Mover's Distance was the most reliable of the paper's measures (2% of false classifications;
//! latency 3%, operations 4%, chi-square 5%), since it alone knows that neighbouring buckets are alike.

use crate::profile::histogram::{Profile, ProfileError};
use crate::profile::peaks::{Peak, find_peaks};

/// From this distance on two profiles are said to differ: a fifth of all ops moved by one bucket.
pub const EMD_THRESHOLD: f64 = 0.2;

/// Totals this close (normalised difference) are not looked at further.
const NEAR_EQUAL: f64 = 0.05;

/// Everything that was compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The Earth Mover's Distance between the normalised histograms: one unit is all ops moved by one
    /// bucket of resolution 1, whatever the profiles' resolution.
    pub emd: f64,
    /// Chi-square distance of the normalised histograms, 0 (equal) to 1 (nothing in common).
    pub chi_square: f64,
    /// Normalised difference of the number of ops, 0 to 1.
    pub ops: f64,
    /// Normalised difference of the mean latency of an op, 0 to 1.
    pub mean_latency: f64,
    /// Normalised difference of the total latency, 0 to 1.
    pub total_latency: f64,
    /// What became of the peaks.
    pub peaks: Vec<PeakChange>,
}

/// What became of a peak between two profiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeakChange {
    /// There is a peak where there was none.
    Appeared(Peak),
    /// There was a peak where there is none.
    Vanished(Peak),
    /// The peak lies elsewhere: its range before and after.
    Moved(Peak, Peak),
}

impl Comparison {
    /// Compares `before` with `after`.
    ///
    /// # Errors
    /// When the resolutions differ.
    pub fn of(before: &Profile, after: &Profile) -> Result<Self, ProfileError> {
        let mean = |profile: &Profile| profile.total().0 as f64 / profile.count().max(1) as f64;
        Ok(Self {
            emd: earth_movers_distance(before, after)?,
            chi_square: chi_square(before, after)?,
            ops: normalised_difference(before.count() as f64, after.count() as f64),
            mean_latency: normalised_difference(mean(before), mean(after)),
            total_latency: normalised_difference(before.total().0 as f64, after.total().0 as f64),
            peaks: peak_changes(&find_peaks(before), &find_peaks(after)),
        })
    }

    /// Whether the distribution is to be called another one. How many ops there are does not matter.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.emd >= EMD_THRESHOLD
    }
}

/// The first phase over a complete set of profiles, one half: whether a pair may be left out, since its
/// totals are nearly equal.
#[must_use]
pub fn has_equal_totals(before: &Profile, after: &Profile) -> bool {
    normalised_difference(before.total().0 as f64, after.total().0 as f64) < NEAR_EQUAL
        && normalised_difference(before.count() as f64, after.count() as f64) < NEAR_EQUAL
}

/// The other half: whether a pair's share of the time of the whole set is below `negligible` on both sides.
#[must_use]
pub fn is_negligible(
    (before, set_before): (&Profile, u64),
    (after, set_after): (&Profile, u64),
    negligible: f64,
) -> bool {
    let share = |part: &Profile, whole: u64| part.total().0 as f64 / whole.max(1) as f64;
    share(before, set_before) < negligible && share(after, set_after) < negligible
}

/// `|a - b|` as a part of the larger: 0 for equal values, 1 when only one is zero.
#[must_use]
pub fn normalised_difference(a: f64, b: f64) -> f64 {
    let larger = a.abs().max(b.abs());
    if larger > 0.0 {
        (a - b).abs() / larger
    } else {
        0.0
    }
}

/// The least work that turns one normalised histogram into the other. Two empty profiles are equal; an
/// empty and a full one have no distance, which is given as infinity.
///
/// # Errors
/// When the resolutions differ.
pub fn earth_movers_distance(a: &Profile, b: &Profile) -> Result<f64, ProfileError> {
    let Some(pairs) = shares(a, b)? else {
        return Ok(distance_of_emptiness(a, b, f64::INFINITY));
    };
    // On a line the earth that has to cross each border is the difference of what lies left of it.
    let mut carried = 0.0;
    let mut work = 0.0;
    for (a, b) in pairs {
        carried += a - b;
        work += f64::abs(carried);
    }
    Ok(work / f64::from(a.resolution().get()))
}

/// Half of the sum of `(a - b)² / (a + b)` over the buckets of the normalised histograms.
///
/// # Errors
/// When the resolutions differ.
pub fn chi_square(a: &Profile, b: &Profile) -> Result<f64, ProfileError> {
    let Some(pairs) = shares(a, b)? else {
        return Ok(distance_of_emptiness(a, b, 1.0));
    };
    let terms = pairs
        .filter(|(a, b)| a + b > 0.0)
        .map(|(a, b)| (a - b) * (a - b) / (a + b));
    Ok(terms.sum::<f64>() / 2.0)
}

fn distance_of_emptiness(a: &Profile, b: &Profile, one_is_empty: f64) -> f64 {
    if a.count() == b.count() {
        0.0
    } else {
        one_is_empty
    }
}

/// Both histograms, normalised, bucket by bucket; `None` when one of them is empty.
fn shares<'a>(
    a: &'a Profile,
    b: &'a Profile,
) -> Result<Option<impl Iterator<Item = (f64, f64)> + 'a>, ProfileError> {
    if a.resolution() != b.resolution() {
        return Err(ProfileError::Resolution(
            a.resolution().get(),
            b.resolution().get(),
        ));
    }
    if a.count() == 0 || b.count() == 0 {
        return Ok(None);
    }
    let share =
        |profile: &Profile, bucket| profile.bucket(bucket).ops as f64 / profile.count() as f64;
    let buckets = 0..a.resolution().buckets();
    Ok(Some(buckets.map(move |at| (share(a, at), share(b, at)))))
}

/// Which peaks appeared, vanished or moved. Two peaks are the same one when their ranges meet.
#[must_use]
pub fn peak_changes(before: &[Peak], after: &[Peak]) -> Vec<PeakChange> {
    let meet =
        |a: &Peak, b: &Peak| a.first_bucket <= b.last_bucket && b.first_bucket <= a.last_bucket;
    let same =
        |a: &Peak, b: &Peak| (a.first_bucket, a.last_bucket) == (b.first_bucket, b.last_bucket);
    let mut changes = Vec::new();
    for old in before {
        match after.iter().find(|new| meet(old, new)) {
            None => changes.push(PeakChange::Vanished(*old)),
            Some(new) if !same(old, new) => changes.push(PeakChange::Moved(*old, *new)),
            Some(_) => {}
        }
    }
    let appeared = after
        .iter()
        .filter(|new| !before.iter().any(|old| meet(old, new)));
    changes.extend(appeared.map(|new| PeakChange::Appeared(*new)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::histogram::{Bucket, Resolution};
    use darc_record::Ticks;
    use proptest::prelude::*;

    fn profile(r: u32, first: u32, counts: &[u64]) -> Profile {
        let mut profile = Profile::new(Resolution::new(r).unwrap());
        for (bucket, &ops) in (first..).zip(counts) {
            let total = Ticks(ops * 100);
            profile.add_bucket(bucket, Bucket { ops, total }).unwrap();
        }
        profile
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn distances_worked_out_by_hand() {
        // Everything moves by three buckets.
        let a = profile(1, 8, &[10]);
        let b = profile(1, 11, &[40]);
        assert!(near(earth_movers_distance(&a, &b).unwrap(), 3.0));
        assert!(near(chi_square(&a, &b).unwrap(), 1.0));
        // Half of the ops move by one, a quarter by two: 0.5 + 0.5.
        let a = profile(1, 8, &[4]);
        let b = profile(1, 8, &[1, 2, 1]);
        assert!(near(earth_movers_distance(&a, &b).unwrap(), 1.0));
        // ((1 - 1/4)² / (5/4) + 1/2 + 1/4) / 2
        assert!(near(chi_square(&a, &b).unwrap(), 0.6));
        // Two buckets of half the width are one unit.
        let a = profile(2, 20, &[7]);
        let b = profile(2, 22, &[7]);
        assert!(near(earth_movers_distance(&a, &b).unwrap(), 1.0));
    }

    #[test]
    fn totals_are_compared_as_parts_of_the_larger() {
        let comparison = Comparison::of(&profile(1, 8, &[30]), &profile(1, 8, &[40])).unwrap();
        assert!(near(comparison.ops, 0.25));
        assert!(near(comparison.total_latency, 0.25));
        assert!(near(comparison.mean_latency, 0.0));
        assert!(near(comparison.emd, 0.0));
        assert!(!comparison.is_changed());
        assert!(near(normalised_difference(0.0, 0.0), 0.0));
    }

    #[test]
    fn empty_profiles_have_no_distance_to_others() {
        let empty = profile(1, 8, &[]);
        let full = profile(1, 8, &[3]);
        assert!(near(earth_movers_distance(&empty, &empty).unwrap(), 0.0));
        assert!(earth_movers_distance(&empty, &full).unwrap().is_infinite());
        assert!(earth_movers_distance(&profile(2, 8, &[3]), &full).is_err());
    }

    #[test]
    fn peaks_appear_vanish_and_move() {
        let before = find_peaks(&profile(1, 8, &[50, 9, 0, 0, 30, 0, 0, 0, 20]));
        let after = find_peaks(&profile(1, 8, &[50, 9, 0, 0, 0, 0, 0, 0, 20, 20, 0, 0, 9]));
        let changes = peak_changes(&before, &after);
        assert!(matches!(
            changes[..],
            [PeakChange::Vanished(gone), PeakChange::Moved(_, wider), PeakChange::Appeared(new)]
                if gone.first_bucket == 12 && wider.last_bucket == 17 && new.first_bucket == 20
        ));
    }

    #[test]
    fn pairs_that_matter_to_nobody_are_left_out() {
        let small = profile(1, 8, &[1]);
        let large = profile(1, 8, &[900]);
        assert!(has_equal_totals(&large, &large));
        assert!(!has_equal_totals(&small, &large));
        assert!(!is_negligible((&small, 90_000), (&large, 90_000), 0.01));
        let other = profile(1, 8, &[2]);
        assert!(is_negligible((&small, 90_000), (&other, 90_000), 0.01));
    }

    proptest! {
        #[test]
        fn the_earth_movers_distance_is_a_metric(
            a in prop::collection::vec(0_u64..50, 1..20),
            b in prop::collection::vec(0_u64..50, 1..20),
            c in prop::collection::vec(0_u64..50, 1..20),
        ) {
            let full = |counts: &[u64]| {
                let mut counts = counts.to_vec();
                counts[0] += 1;
                profile(1, 5, &counts)
            };
            let (a, b, c) = (full(&a), full(&b), full(&c));
            let emd = |a: &Profile, b: &Profile| earth_movers_distance(a, b).unwrap();
            prop_assert!(near(emd(&a, &a), 0.0));
            prop_assert!(emd(&a, &b) >= 0.0);
            prop_assert!((emd(&a, &b) - emd(&b, &a)).abs() < 1e-9);
            prop_assert!(emd(&a, &c) <= emd(&a, &b) + emd(&b, &c) + 1e-9);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&chi_square(&a, &b).unwrap()));
        }
    }
}
