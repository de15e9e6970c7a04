//! How much two profiles differ (OSprof, OSDI 2006, sections 3.2 and 5.3).
//!
//! The Earth Mover's Distance was the most reliable of the paper's measures (2% of false classifications;
//! latency 3%, operations 4%, chi-square 5%), since it alone knows that neighbouring buckets are alike.

use crate::profile::histogram::{Profile, ProfileError};
use crate::profile::peaks::{Peak, find_peaks};

/// From this distance on two profiles are said to differ: a fifth of all ops moved by a doubling.
pub const EMD_THRESHOLD: f64 = 0.2;

/// Peaks, tails and means may differ by chance up to so many standard deviations,
const DEVIATIONS: f64 = 3.0;
/// ... and up to this factor from one run of a program to the next: on a busy machine other threads come in bursts.
const FACTOR: f64 = 4.0;
/// ... of a tail, which is mostly of them.
const TAIL_FACTOR: f64 = 10.0;
/// ... which begins so many doublings elsewhere at most.
const TAIL_DOUBLINGS: u32 = 3;
/// Means differ from run to run up to this normalised difference: a half more.
const MEANS: f64 = 1.0 / 3.0;
/// The part of the ops that is no tail.
const BODY: f64 = 0.99;
/// Within a bucket of resolution 1 latencies vary by this part of their mean.
const IN_BUCKET: f64 = 0.2;

/// Totals this close (normalised difference) are not looked at further.
const NEAR_EQUAL: f64 = 0.05;

/// Everything that was compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The Earth Mover's Distance between the normalised histograms: one unit is all ops moved by one
    /// doubling of the latency, whatever the profiles' resolution.
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
    /// Whether a peak appeared, by more than chance.
    pub has_new_peak: bool,
    /// Whether few ops make another distribution of it, by more than chance: a peak appeared or vanished, or the mean or the
    /// slowest hundredth is another one. The distance hardly sees them.
    pub differs_in_few: bool,
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
        let peaks = peak_changes(before, after);
        let is_new = |change: &&PeakChange| matches!(change, PeakChange::Appeared(_));
        let is_certain = |change: &PeakChange| is_certain(before, after, change);
        Ok(Self {
            has_new_peak: peaks.iter().filter(is_new).any(is_certain),
            emd: earth_movers_distance(before, after)?,
            chi_square: chi_square(before, after)?,
            ops: normalised_difference(before.count() as f64, after.count() as f64),
            mean_latency: normalised_difference(mean(before), mean(after)),
            total_latency: normalised_difference(before.total().0 as f64, after.total().0 as f64),
            differs_in_few: peaks.iter().any(is_certain)
                || is_another_mean(before, after)
                || is_another_tail(before, after),
            peaks,
        })
    }

    /// Whether the distribution is to be called another one. How many ops there are matters only for what may be chance.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.emd >= EMD_THRESHOLD || self.differs_in_few
    }
}

fn mean(profile: &Profile) -> f64 {
    profile.total().0 as f64 / profile.count().max(1) as f64
}

/// Whether a peak appeared or vanished by more than chance.
#[must_use]
pub fn is_certain(before: &Profile, after: &Profile, change: &PeakChange) -> bool {
    match change {
        PeakChange::Appeared(peak) | PeakChange::Vanished(peak) => differ_within(
            (before, after),
            (peak.first_bucket, peak.last_bucket),
            FACTOR,
        ),
        PeakChange::Moved(..) => false,
    }
}

/// Whether the share of the ops in these buckets is another one: by a factor, and by more than chance.
fn differ_within((a, b): (&Profile, &Profile), (first, last): (u32, u32), factor: f64) -> bool {
    let inside = [a, b].map(|profile| profile.range(first, last).ops as f64);
    let all = [a, b].map(|profile| profile.count() as f64);
    if all.contains(&0.0) {
        return false;
    }
    let share = [inside[0] / all[0], inside[1] / all[1]];
    let is_factor = share[0].max(share[1]) >= factor * share[0].min(share[1]);
    // If nothing has changed, each op of these is one of `a` with this probability.
    let (together, part) = (inside[0] + inside[1], all[0] / (all[0] + all[1]));
    let deviation = (together * part * (1.0 - part)).sqrt();
    is_factor && (inside[0] - together * part).abs() - 0.5 > DEVIATIONS * deviation
}

/// Whether the slowest hundredth begins clearly elsewhere.
fn is_another_tail(a: &Profile, b: &Profile) -> bool {
    let (Some(one), Some(other)) = (tail_bucket(a), tail_bucket(b)) else {
        return false;
    };
    let beyond = one.min(other) + TAIL_DOUBLINGS * a.resolution().get();
    let slow = (beyond + 1, a.resolution().buckets() - 1);
    one.max(other) > beyond && differ_within((a, b), slow, TAIL_FACTOR)
}

/// The bucket that the slowest hundredth of the ops begins in.
fn tail_bucket(profile: &Profile) -> Option<u32> {
    let mut seen = 0_u64;
    let mut buckets = profile.buckets();
    let found = buckets.find(|(_, content)| {
        seen = seen.saturating_add(content.ops);
        seen as f64 >= BODY * profile.count() as f64
    });
    found.map(|(bucket, _)| bucket)
}

/// Whether the mean is another one: by a half, and by more than a few long ops tell.
fn is_another_mean(a: &Profile, b: &Profile) -> bool {
    let (one, other) = (mean(a), mean(b));
    let ops = [a, b].map(|profile| profile.count() as f64);
    let error = (variance(a, b) * (1.0 / ops[0] + 1.0 / ops[1])).sqrt();
    normalised_difference(one, other) >= MEANS && (one - other).abs() > DEVIATIONS * error
}

/// The variance of latencies, of both together: few ops need not have the long ones.
fn variance(a: &Profile, b: &Profile) -> f64 {
    let ops = a.count() as f64 + b.count() as f64;
    let mean = (a.total().0 as f64 + b.total().0 as f64) / ops;
    let within = IN_BUCKET / f64::from(a.resolution().get());
    let squares = a.buckets().chain(b.buckets()).map(|(_, content)| {
        let here = content.total.0 as f64 / content.ops as f64;
        content.ops as f64 * ((here - mean).powi(2) + (within * here).powi(2))
    });
    squares.sum::<f64>() / ops
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

/// The least work that turns one normalised histogram into the other. The ops of a bucket lie at its mean latency: many that
/// lie close to the border of two buckets may be on the other side of it in the next run, and have hardly moved. Two empty
/// profiles are equal; an empty and a full one have no distance, which is given as infinity.
///
/// # Errors
/// When the resolutions differ.
pub fn earth_movers_distance(a: &Profile, b: &Profile) -> Result<f64, ProfileError> {
    if shares(a, b)?.is_none() {
        return Ok(distance_of_emptiness(a, b, f64::INFINITY));
    }
    let mut piles: Vec<(f64, f64)> = piles_of(a).collect();
    piles.extend(piles_of(b).map(|(place, share)| (place, -share)));
    piles.sort_by(|one, other| one.0.total_cmp(&other.0));
    // On a line the earth that has to cross each place is the difference of what lies left of it.
    let mut carried = 0.0;
    let mut work = 0.0;
    for (pile, next) in piles.iter().zip(&piles[1..]) {
        carried += pile.1;
        work += f64::abs(carried) * (next.0 - pile.0);
    }
    Ok(work)
}

/// Where on the logarithmic axis the ops of each bucket lie, in doublings, and which part of all they are.
fn piles_of(profile: &Profile) -> impl Iterator<Item = (f64, f64)> {
    let all = profile.count() as f64;
    profile.buckets().map(move |(_, content)| {
        let mean = content.total.0 as f64 / content.ops as f64;
        (mean.max(1.0).log2(), content.ops as f64 / all)
    })
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

/// Which peaks appeared, vanished or moved. Each peak of `before` is at most one of `after`, one whose range meets its own:
/// first those whose mean latencies are closest. What is left over of a hump that only divides in two, or does no
/// longer, is no change.
#[must_use]
pub fn peak_changes(before: &Profile, after: &Profile) -> Vec<PeakChange> {
    let (old, new) = (find_peaks(before), find_peaks(after));
    let same = counterparts(&old, &new);
    let is_alone = |peak: &Peak, others: &[Peak]| !others.iter().any(|other| meet(peak, other));
    let gone = (0..old.len()).filter(|at| !same.iter().any(|pair| pair.0 == *at));
    let come = (0..new.len()).filter(|at| !same.iter().any(|pair| pair.1 == *at));
    let gone = gone.map(|at| (PeakChange::Vanished(old[at]), is_alone(&old[at], &new)));
    let come = come.map(|at| (PeakChange::Appeared(new[at]), is_alone(&new[at], &old)));
    let moved = same.iter().map(|&(one, other)| (old[one], new[other]));
    let range = |peak: &Peak| (peak.first_bucket, peak.last_bucket);
    let moved = moved.filter(|(old, new)| range(old) != range(new));
    let moved = moved.map(|(old, new)| (PeakChange::Moved(old, new), true));
    let changes = gone.chain(moved).chain(come);
    let is_told = |change: &PeakChange, is_alone| is_alone || is_certain(before, after, change);
    changes
        .filter(|(change, is_alone)| is_told(change, *is_alone))
        .map(|(change, _)| change)
        .collect()
}

fn meet(a: &Peak, b: &Peak) -> bool {
    a.first_bucket <= b.last_bucket && b.first_bucket <= a.last_bucket
}

/// Pairs of peaks that are the same one, by their places among the old and the new.
fn counterparts(old: &[Peak], new: &[Peak]) -> Vec<(usize, usize)> {
    let place = |peak: &Peak| {
        let mean = peak.content.total.0 as f64 / peak.content.ops.max(1) as f64;
        mean.max(1.0).log2()
    };
    let pairs = (0..old.len()).flat_map(|one| (0..new.len()).map(move |other| (one, other)));
    let mut pairs: Vec<_> = pairs
        .filter(|&(one, other)| meet(&old[one], &new[other]))
        .map(|(one, other)| ((place(&old[one]) - place(&new[other])).abs(), one, other))
        .collect();
    pairs.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut same: Vec<(usize, usize)> = Vec::new();
    for (_, one, other) in pairs {
        if !same.iter().any(|pair| pair.0 == one || pair.1 == other) {
            same.push((one, other));
        }
    }
    same.sort_unstable();
    same
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
            let total = Ticks(ops * profile.resolution().bounds(bucket).unwrap().0.0.max(1));
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

    /// Each op at 3/2 of its bucket's begin.
    fn real(counts: &[(u32, u64)]) -> Profile {
        let mut profile = Profile::new(Resolution::default());
        for &(bucket, ops) in counts {
            let total = Ticks(((1_u64 << bucket) + (1_u64 << bucket >> 1)) * ops);
            profile.add_bucket(bucket, Bucket { ops, total }).unwrap();
        }
        profile
    }

    fn is_changed(before: &[(u32, u64)], after: &[(u32, u64)]) -> bool {
        let (before, after) = (real(before), real(after));
        let changed = Comparison::of(&before, &after).unwrap().is_changed();
        let back = Comparison::of(&after, &before).unwrap().is_changed();
        assert_eq!(changed, back, "it is the same the other way round");
        changed
    }

    #[test]
    fn few_ops_that_take_much_longer_are_another_distribution() {
        let before = [(12, 9_000), (13, 1_000)];
        assert!(is_changed(&before, &[(12, 8_900), (13, 1_000), (22, 100)]));
        // The slowest hundredth alone.
        let before = [(12, 9_700), (13, 280), (14, 20)];
        let slower_tail = [
            (12, 9_600),
            (13, 230),
            (14, 30),
            (15, 20),
            (17, 60),
            (18, 60),
        ];
        assert!(is_another_tail(&real(&before), &real(&slower_tail)));
        assert!(is_changed(&before, &slower_tail));
        let busy = [(12, 9_600), (13, 230), (14, 65), (15, 60), (16, 45)];
        assert!(!is_changed(&before, &busy), "as other threads do it");
        // More than ten times the time in a tail of one peak.
        let tail = [
            (12, 99_000),
            (14, 400),
            (16, 250),
            (18, 120),
            (20, 60),
            (22, 30),
        ];
        assert!(is_changed(&[(12, 99_000), (14, 400), (16, 250)], &tail));
    }

    #[test]
    fn what_differs_from_run_to_run_is_no_other_distribution() {
        let before = [(12, 9_000), (13, 1_000)];
        // The border of two buckets, a few that were preempted, three that make a peak of a hundred.
        assert!(!is_changed(&before, &[(12, 8_000), (13, 2_000)]));
        assert!(!is_changed(&before, &[(12, 9_000), (13, 995), (23, 5)]));
        assert!(!is_changed(&[(12, 97), (16, 3)], &[(12, 100)]));
        // One in a hundred on both sides, of which one counts as a peak.
        assert!(!is_changed(
            &[(12, 99_050), (20, 950)],
            &[(12, 98_900), (20, 1_100)]
        ));
        // Seldom ops need not be among few.
        assert!(!is_changed(&[(12, 999_900), (26, 100)], &[(12, 1_000)]));
    }

    #[test]
    fn ops_at_a_border_of_buckets_have_hardly_moved() {
        let around = |mean: f64| {
            let mut profile = Profile::new(Resolution::default());
            for op in 0..1_000 {
                profile.add(Ticks((mean * (0.9 + 0.0002 * f64::from(op))) as u64));
            }
            profile
        };
        let comparison = Comparison::of(&around(4_000.0), &around(4_200.0)).unwrap();
        let crossed = comparison.chi_square;
        assert!(crossed > 0.05, "{crossed}");
        assert!(comparison.emd < 0.1 && !comparison.is_changed());
        let twice = Comparison::of(&around(4_000.0), &around(8_000.0)).unwrap();
        assert!((twice.emd - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_new_peak_beside_one_that_became_narrower_is_new() {
        let before = real(&[(10, 20), (11, 800), (12, 100), (13, 30), (14, 5)]);
        let after = real(&[(10, 20), (11, 700), (14, 1), (15, 40), (16, 200)]);
        let comparison = Comparison::of(&before, &after).unwrap();
        assert!(comparison.has_new_peak, "{comparison:?}");
        // By chance, or since a hump is divided that was not.
        assert!(
            !Comparison::of(&real(&[(12, 100)]), &real(&[(12, 97), (16, 3)]))
                .unwrap()
                .has_new_peak
        );
        let whole = real(&[(10, 400), (11, 250), (12, 300)]);
        let divided = real(&[(10, 440), (11, 100), (12, 410)]);
        let comparison = Comparison::of(&whole, &divided).unwrap();
        assert!(!comparison.has_new_peak);
        assert_eq!(find_peaks(&divided).len(), 2);
        assert!(
            !comparison
                .peaks
                .iter()
                .any(|it| matches!(it, PeakChange::Appeared(_)))
        );
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
        let before = profile(1, 8, &[50, 9, 0, 0, 30, 0, 0, 0, 20]);
        let after = profile(1, 8, &[50, 9, 0, 0, 0, 0, 0, 0, 20, 20, 0, 0, 9]);
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
