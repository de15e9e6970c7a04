//! Peaks: the humps of a profile that a person would point at on a plot with a logarithmic y-axis.
//!
//! DARC "examines changes between bins" and "takes the logarithmic values of the y-axis into account,
//! mimicking the way a human might identify peaks" (SIGMETRICS 2008, section 3), without giving the rule.
//! This is ours, in two steps.
//!
//! 1. Humps. Buckets with ops are divided where more than one doubling of latency is empty, and where the
//!    valley between two tops is *clearly* lower than both: to the eye (a factor that grows with the height
//!    of the plot, as the same factor is a smaller step on a taller plot, but where both have weight) and beyond chance (two
//!    standard deviations of a count), and both are far from one another or have weight. Everything else, single empty
//!    buckets included, belongs to one hump.
//!    The few slowest ops of a hump that have much of its time are a hump of their own, whatever its shape: "why
//!    are some calls slow" is asked of these, and the ops that decide about the others tell nothing of them.
//! 2. Peaks. A hump of at least three ops is numbered when it is a fair share of the ops, or of the time,
//!    or stands high enough to be noticed beside the tallest. Other humps are shown, not numbered.

use crate::profile::histogram::{Bucket, Profile, Resolution};

/// A valley must be lower than the tops beside it by this factor at least: one step of log2.
const LEAST_DROP: f64 = std::f64::consts::LOG10_2;
/// ... and, where one of them has no weight, by this part of the plot's height: 0.64 decades where the tallest bucket holds 10^8 ops.
const DROP_PER_HEIGHT: f64 = 0.08;
/// ... and by this many standard deviations of the difference of two counts.
const DEVIATIONS: f64 = 2.0;
/// Tops that are not so many doublings apart are of two humps only where both have this part of the ops or of the time,
const CLOSE: usize = 2;
/// ... for on a busy machine a few in a hundred are a little longer than the others,
const SHARE_OF_CLOSE: f64 = 0.05;
/// ... and so many ops.
const LEAST_CLOSE: u64 = 10;
/// Fewer ops than this are outliers, whatever their share.
const LEAST_OPS: u64 = 3;
/// From this share of all ops on a hump is numbered.
const SHARE_OF_OPS: f64 = 0.01;
/// From this share of the time of all ops on a hump is numbered.
const SHARE_OF_TIME: f64 = 0.05;
/// From this part of the tallest bucket's height on (both logarithmic) a hump is numbered.
const SHARE_OF_HEIGHT: f64 = 0.25;

/// The slowest of a hump's ops are apart when they are this part of them at most,
const TAIL_OPS: f64 = 0.01;
/// ... have this part of their time at least,
const TAIL_TIME: f64 = 0.15;
/// ... and are so many.
const LEAST_TAIL: u64 = 20;

/// A contiguous range of buckets that looks like one hump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hump {
    /// The leftmost bucket; it holds ops.
    pub first_bucket: u32,
    /// The rightmost bucket; it holds ops.
    pub last_bucket: u32,
    /// The bucket with the most ops, the leftmost of equals.
    pub top_bucket: u32,
    /// The ops in the range and their latencies together.
    pub content: Bucket,
    /// How many ops the top holds.
    pub top_ops: u64,
    /// How many ops lie within a doubling of latency, wherever that begins, the most that do: where the borders of buckets are in a
    /// hump is chance. So many buckets hold them as a doubling has, and one.
    pub near_ops: u64,
}

/// A hump that is numbered and can be analysed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peak {
    /// Its number: 1 is the leftmost one when peaks are first looked for.
    pub number: u32,
    /// The leftmost bucket.
    pub first_bucket: u32,
    /// The rightmost bucket.
    pub last_bucket: u32,
    /// The ops in the range and their latencies together.
    pub content: Bucket,
}

impl Peak {
    /// Whether a bucket belongs to the peak.
    #[must_use]
    pub fn contains(&self, bucket: u32) -> bool {
        (self.first_bucket..=self.last_bucket).contains(&bucket)
    }
}

/// The peaks of a profile, from left to right. Buckets outside of them are "unassigned".
#[must_use]
pub fn find_peaks(profile: &Profile) -> Vec<Peak> {
    let humps = find_humps(profile);
    let tallest = humps.iter().map(|hump| hump.top_ops).max().unwrap_or(0);
    (1_u32..)
        .zip(
            humps
                .iter()
                .filter(|hump| is_noticed(hump, profile, tallest)),
        )
        .map(|(number, hump)| Peak {
            number,
            first_bucket: hump.first_bucket,
            last_bucket: hump.last_bucket,
            content: hump.content,
        })
        .collect()
}

/// So many ops in one bucket are a peak beside the tallest bucket, however short they are.
#[must_use]
pub fn least_noticed(tallest: u64) -> u64 {
    let least = 10_f64.powf(SHARE_OF_HEIGHT * height(tallest)) - 1.0;
    (least.ceil() as u64).max(LEAST_OPS)
}

/// Whether a part of a hump would be numbered if it were one alone.
pub(crate) fn is_noticed_range(profile: &Profile, first: u32, last: u32) -> bool {
    let tallest = profile.buckets().map(|(_, at)| at.ops).max().unwrap_or(0);
    let inside: Vec<_> = profile
        .buckets()
        .filter(|(bucket, _)| (first..=last).contains(bucket))
        .collect();
    hump(&inside, profile.resolution()).is_some_and(|hump| is_noticed(&hump, profile, tallest))
}

/// The humps of a profile, from left to right: every bucket with ops lies in exactly one of them.
#[must_use]
pub fn find_humps(profile: &Profile) -> Vec<Hump> {
    let tallest = profile.buckets().map(|(_, at)| at.ops).max().unwrap_or(0);
    let drop = LEAST_DROP.max(DROP_PER_HEIGHT * height(tallest));
    let mut humps: Vec<Hump> = Vec::new();
    for stretch in stretches(profile) {
        for (first, last) in divide(&stretch, drop, profile) {
            let part = &stretch[first..=last];
            let (body, tail) = part.split_at(tail_begins(part));
            humps.extend(hump(body, profile.resolution()));
            humps.extend(hump(tail, profile.resolution()));
        }
    }
    humps
}

/// How high a count stands on the plot; defined for an empty bucket too.
fn height(ops: u64) -> f64 {
    (ops as f64 + 1.0).log10()
}

fn is_noticed(hump: &Hump, profile: &Profile, tallest: u64) -> bool {
    hump.content.ops >= LEAST_OPS
        && (has_weight(&hump.content, profile)
            || height(hump.near_ops) >= SHARE_OF_HEIGHT * height(tallest))
}

/// Whether a part of the profile is a fair share of the ops or of the time.
pub(crate) fn has_weight(content: &Bucket, profile: &Profile) -> bool {
    let (of_ops, of_time) = shares(content, profile);
    of_ops >= SHARE_OF_OPS || of_time >= SHARE_OF_TIME
}

/// Whether a part of the profile may be a hump beside a close one, or behind a shallow valley.
fn has_weight_beside(content: &Bucket, profile: &Profile) -> bool {
    let (of_ops, of_time) = shares(content, profile);
    content.ops >= LEAST_CLOSE && of_ops.max(of_time) >= SHARE_OF_CLOSE
}

/// Which part of the profile's ops, and of their time, a part of it is.
fn shares(content: &Bucket, profile: &Profile) -> (f64, f64) {
    let share = |part: u64, whole: u64| part as f64 / (whole as f64).max(1.0);
    (
        share(content.ops, profile.count()),
        share(content.total.0, profile.total().0),
    )
}

/// The profile cut at wide gaps. Each stretch begins and ends with a bucket that holds ops, and has its
/// empty buckets inside; buckets into which no latency can fall are left out.
fn stretches(profile: &Profile) -> Vec<Vec<(u32, Bucket)>> {
    let resolution = profile.resolution();
    let widest_gap = resolution.get();
    let mut stretches: Vec<Vec<(u32, Bucket)>> = Vec::new();
    for (bucket, content) in profile.buckets() {
        let before = stretches
            .last()
            .and_then(|stretch| stretch.last())
            .map(|&(before, _)| before);
        let gap: Vec<u32> = before
            .map(|before| {
                (before + 1..bucket)
                    .filter(|&empty| resolution.bounds(empty).is_some())
                    .collect()
            })
            .unwrap_or_default();
        match stretches.last_mut() {
            Some(stretch) if gap.len() <= widest_gap as usize => {
                stretch.extend(gap.into_iter().map(|empty| (empty, Bucket::default())));
                stretch.push((bucket, content));
            }
            _ => stretches.push(vec![(bucket, content)]),
        }
    }
    stretches
}

/// A top of a stretch and the lowest place between it and the next top.
struct Top {
    at: usize,
    valley_after: Option<usize>,
}

/// Divides a stretch at its clear valleys, of which those between tops of weight need not be as deep; the parts' first and last
/// indices. What stands close beside a top and has no weight is its flank: the ops that took a little longer than the others.
fn divide(stretch: &[(u32, Bucket)], drop: f64, profile: &Profile) -> Vec<(usize, usize)> {
    let ops = |at: usize| stretch[at].1.ops;
    let mut tops = local_tops(stretch);
    // Take away the shallowest valley that is not clear, until all are.
    loop {
        let shallowest = (0..tops.len())
            .filter_map(|index| Some((index, tops[index].valley_after?, tops.get(index + 1)?.at)))
            .filter(|&(index, valley, right)| {
                let have_weight = have_weight(stretch, &tops, index, profile);
                let is_close = right - tops[index].at < closest(profile);
                let drop = if have_weight { LEAST_DROP } else { drop };
                !is_clear(ops(tops[index].at).min(ops(right)), ops(valley), drop)
                    || (is_close && !have_weight)
            })
            .min_by(|a, b| {
                let depth = |&(index, valley, right): &(usize, usize, usize)| {
                    height(ops(tops[index].at).min(ops(right))) - height(ops(valley))
                };
                depth(a).total_cmp(&depth(b))
            });
        let Some((left, valley, _)) = shallowest else {
            break;
        };
        let right = tops.remove(left + 1);
        let lower = |a: usize, b: usize| if ops(b) < ops(a) { b } else { a };
        // The valleys on both sides of the lower top stay; the one between the two is gone. Where the
        // lower top was the left one, the valley before it may be shallower than the one taken away.
        if ops(right.at) > ops(tops[left].at) {
            tops[left].at = right.at;
            if left > 0
                && let Some(before) = tops[left - 1].valley_after
            {
                tops[left - 1].valley_after = Some(lower(before, valley));
            }
            tops[left].valley_after = right.valley_after;
        } else {
            tops[left].valley_after = right.valley_after.map(|after| lower(valley, after));
        }
    }
    let mut parts = Vec::new();
    let mut first = 0;
    for valley in tops.iter().filter_map(|top| top.valley_after) {
        // The valley goes to the side with the gentler slope.
        let slope = |beside: usize| height(ops(beside)) - height(ops(valley));
        let end = if slope(valley - 1) <= slope(valley + 1) {
            valley
        } else {
            valley - 1
        };
        parts.push((first, end));
        first = end + 1;
    }
    parts.push((first, stretch.len() - 1));
    parts
}

/// Whether a top and the next one have weight of their own: what is between the valleys around each of them.
fn have_weight(stretch: &[(u32, Bucket)], tops: &[Top], index: usize, profile: &Profile) -> bool {
    let Some(valley) = tops[index].valley_after else {
        return false;
    };
    let before = index.checked_sub(1).and_then(|at| tops[at].valley_after);
    let first = before.map_or(0, |at| at + 1);
    let end = tops[index + 1].valley_after.unwrap_or(stretch.len());
    let has_weight = |part: &[(u32, Bucket)]| match part {
        [(first, _), .., (last, _)] => has_weight_beside(&profile.range(*first, *last), profile),
        [(only, _)] => has_weight_beside(&profile.range(*only, *only), profile),
        [] => false,
    };
    has_weight(&stretch[first..valley]) && has_weight(&stretch[valley + 1..end])
}

/// Tops that are so many buckets apart are not close.
fn closest(profile: &Profile) -> usize {
    CLOSE * profile.resolution().get() as usize
}

/// Where the heavy tail of a part of a stretch begins: behind the lowest valley, and where there is none the longest one. Its end if
/// it has none.
fn tail_begins(part: &[(u32, Bucket)]) -> usize {
    let content = |part: &[(u32, Bucket)]| {
        let all = part.iter();
        all.fold((0_u64, 0_u64), |(ops, time), (_, at)| {
            (ops.saturating_add(at.ops), time.saturating_add(at.total.0))
        })
    };
    let (ops, time) = content(part);
    let is_heavy = |&at: &usize| {
        let (tail_ops, tail_time) = content(&part[at..]);
        tail_ops >= LEAST_TAIL
            && tail_ops as f64 <= TAIL_OPS * ops as f64
            && tail_time as f64 >= TAIL_TIME * time as f64
    };
    let begins = (1..part.len()).filter(is_heavy);
    let rises = |at: &usize| part[*at].1.ops > part[at - 1].1.ops;
    let valley = begins
        .clone()
        .filter(rises)
        .min_by_key(|&at| part[at - 1].1.ops);
    valley.or(begins.clone().next()).unwrap_or(part.len())
}

/// Whether a valley between two tops, of which `top` is the lower one, is a border of two humps.
fn is_clear(top: u64, valley: u64, drop: f64) -> bool {
    let (high, low) = (top as f64, valley as f64);
    height(top) - height(valley) >= drop && high - low > DEVIATIONS * (high + low).sqrt()
}

/// All local maxima (one for a plateau) with the lowest place up to the next.
fn local_tops(stretch: &[(u32, Bucket)]) -> Vec<Top> {
    let ops = |at: usize| stretch[at].1.ops;
    let mut tops: Vec<Top> = Vec::new();
    let mut at = 0;
    while at < stretch.len() {
        let mut end = at;
        while end + 1 < stretch.len() && ops(end + 1) == ops(at) {
            end += 1;
        }
        let rises = at == 0 || ops(at - 1) < ops(at);
        let falls = end + 1 == stretch.len() || ops(end + 1) < ops(at);
        if rises && falls {
            if let Some(before) = tops.last_mut() {
                before.valley_after = (before.at..at).min_by_key(|&between| ops(between));
            }
            tops.push(Top {
                at,
                valley_after: None,
            });
        }
        at = end + 1;
    }
    tops
}

/// The hump that a part of a stretch is, without the empty buckets at its ends.
fn hump(part: &[(u32, Bucket)], resolution: Resolution) -> Option<Hump> {
    let full: Vec<(u32, Bucket)> = part.iter().copied().filter(|(_, at)| at.ops > 0).collect();
    let (&(first_bucket, _), &(last_bucket, _)) = (full.first()?, full.last()?);
    let &(top_bucket, top) = full.iter().rev().max_by_key(|(_, content)| content.ops)?;
    let content = full.iter().fold(Bucket::default(), |all, (_, at)| Bucket {
        ops: all.ops.saturating_add(at.ops),
        total: all.total + at.total,
    });
    let near = |at: usize| {
        let beyond = full[at].0 + resolution.get();
        let within = full[at..]
            .iter()
            .take_while(|&&(bucket, _)| bucket <= beyond);
        within.fold(0, |ops: u64, (_, at)| ops.saturating_add(at.ops))
    };
    Some(Hump {
        first_bucket,
        last_bucket,
        top_bucket,
        content,
        top_ops: top.ops,
        near_ops: (0..full.len()).map(near).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use darc_record::Ticks;
    use proptest::prelude::*;

    /// A profile from the counts of consecutive buckets, each op at 3/2 of its bucket's begin.
    fn profile(first: u32, counts: &[u64]) -> Profile {
        let mut profile = Profile::new(Resolution::default());
        for (bucket, &ops) in (first..).zip(counts) {
            let total = Ticks(((1_u64 << bucket) + (1_u64 << bucket >> 1)).saturating_mul(ops));
            profile.add_bucket(bucket, Bucket { ops, total }).unwrap();
        }
        profile
    }

    /// What it is, the profile, and the ranges of its peaks.
    type Case<'a> = (&'a str, Profile, &'a [(u32, u32)]);

    fn ranges(profile: &Profile) -> Vec<(u32, u32)> {
        find_peaks(profile)
            .iter()
            .map(|peak| (peak.first_bucket, peak.last_bucket))
            .collect()
    }

    #[test]
    fn a_few_ops_with_much_of_the_time_are_a_peak() {
        let long = [90_000, 40_000, 9_000, 1_000, 200, 90, 60, 50, 45, 40, 30];
        assert_eq!(ranges(&profile(15, &long)), [(15, 18), (19, 25)]);
        // What lies between is no clear valley.
        let valley = [90_000, 40_000, 9_000, 1_000, 200, 90, 40, 30, 35, 40, 30];
        assert_eq!(ranges(&profile(15, &valley)), [(15, 22), (23, 25)]);
        // Not much time, and too few ops to tell.
        let usual = [90_000, 40_000, 9_000, 1_000, 200, 90, 60, 50, 30];
        assert_eq!(ranges(&profile(15, &usual)), [(15, 23)]);
        let few = [900, 400, 90, 6, 3, 2, 2, 1, 1];
        assert_eq!(ranges(&profile(15, &few)), [(15, 23)]);
    }

    #[test]
    fn the_shapes_of_the_papers_figures() {
        let cases: &[Case] = &[
            (
                "fork, one process (DARC figure 1, black)",
                profile(15, &[40, 9_000, 5_000, 300, 12]),
                &[(15, 19)],
            ),
            (
                "fork, four processes: the second hump is lock contention (DARC figure 1, white)",
                profile(
                    15,
                    &[30, 4_000, 2_500, 300, 90, 450, 900, 3_000, 2_200, 400, 20],
                ),
                &[(15, 19), (20, 25)],
            ),
            (
                "clone, four processes (OSprof figure 1)",
                profile(14, &[3, 900, 2_100, 400, 45, 9, 60, 700, 1_500, 350, 30]),
                &[(14, 19), (20, 24)],
            ),
            (
                "zero-byte read: return at once, timer interrupt, disk interrupt (DARC figure 7)",
                profile(
                    7,
                    &[
                        90_000_000, 9_000_000, 20_000, 900, 9_000, 8_000, 300, 40, 200, 1_500, 400,
                        30,
                    ],
                ),
                &[(7, 9), (10, 13), (14, 18)],
            ),
            (
                "zero-byte read: preempted ops in the 26th bucket (OSprof figure 3)",
                profile(
                    6,
                    &[
                        150_000_000,
                        40_000_000,
                        800_000,
                        4_000,
                        300,
                        150,
                        9_000,
                        47_000,
                        2_000,
                        60,
                        0,
                        0,
                        0,
                        0,
                        0,
                        0,
                        0,
                        0,
                        0,
                        0,
                        278,
                    ],
                ),
                &[(6, 11), (12, 15), (26, 26)],
            ),
            (
                "readdir under grep, four humps (DARC figure 8)",
                profile(
                    9,
                    &[
                        3_000, 20, 700, 1_800, 900, 60, 0, 400, 150, 60, 130, 350, 600, 220, 9,
                    ],
                ),
                &[(9, 9), (10, 14), (16, 17), (18, 23)],
            ),
            (
                "readdir under grep, four humps with a gap (OSprof figure 7)",
                profile(
                    6,
                    &[
                        2_000, 2_500, 0, 90, 500, 1_900, 800, 120, 7, 0, 350, 120, 50, 110, 320,
                        640, 200, 8,
                    ],
                ),
                &[(6, 7), (9, 14), (16, 17), (18, 23)],
            ),
            (
                "llseek of two processes: lock contention far to the right (OSprof figure 6)",
                profile(
                    6,
                    &[
                        400, 60_000, 12_000, 90, 2, 0, 0, 0, 0, 5, 30, 180, 900, 5_000, 9_000,
                        2_500, 80,
                    ],
                ),
                &[(6, 10), (15, 22)],
            ),
        ];
        for (name, profile, expected) in cases {
            assert_eq!(&ranges(profile), expected, "{name}");
        }
    }

    #[test]
    fn a_hundred_ops_are_enough_and_noise_is_not() {
        let cases: &[Case] = &[
            ("nothing", profile(5, &[]), &[]),
            ("two ops", profile(5, &[2]), &[]),
            ("all in one bucket", profile(11, &[100]), &[(11, 11)]),
            (
                "one hump with a ragged top",
                profile(8, &[4, 22, 17, 24, 19, 9, 5]),
                &[(8, 14)],
            ),
            (
                "one empty bucket in a thin tail",
                profile(8, &[60, 30, 6, 0, 3, 1]),
                &[(8, 13)],
            ),
            (
                "one outlier",
                profile(8, &[60, 39, 0, 0, 0, 0, 0, 1]),
                &[(8, 9)],
            ),
            (
                "two outliers",
                profile(8, &[60, 38, 0, 0, 0, 0, 0, 2]),
                &[(8, 9)],
            ),
            (
                "three slow ops of a hundred",
                profile(8, &[60, 37, 0, 0, 0, 0, 0, 3]),
                &[(8, 9), (15, 15)],
            ),
            (
                "two equal modes",
                profile(8, &[10, 35, 5, 1, 9, 34, 6]),
                &[(8, 11), (12, 14)],
            ),
        ];
        for (name, profile, expected) in cases {
            assert_eq!(&ranges(profile), expected, "{name}");
        }
    }

    #[test]
    fn a_handful_beside_thousands_counts_only_with_a_share_of_the_time() {
        let near = profile(8, &[5_000, 3_000, 20, 0, 0, 5]);
        assert_eq!(ranges(&near), [(8, 10)]);
        assert_eq!(find_humps(&near).len(), 2, "it is shown all the same");
        let far = profile(8, &[5_000, 3_000, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(ranges(&far), [(8, 10), (20, 20)]);
    }

    /// Latencies at half doublings.
    fn halves(counts: &[u64]) -> Profile {
        let mut profile = Profile::new(Resolution::HALVES);
        for (bucket, &ops) in (30..).zip(counts) {
            let latency = profile.resolution().bounds(bucket).unwrap().0.0;
            let total = Ticks(ops * latency);
            profile.add_bucket(bucket, Bucket { ops, total }).unwrap();
        }
        profile
    }

    #[test]
    fn groups_that_are_a_few_times_as_long_are_apart_where_they_have_weight() {
        assert_eq!(ranges(&halves(&[9_000, 200, 300])), [(30, 32)]);
        assert_eq!(ranges(&halves(&[9_000, 40, 300])), [(30, 30), (31, 32)]);
        // Three in a hundred, which are hardly more of the time.
        assert_eq!(ranges(&halves(&[9_000, 30, 180])), [(30, 32)]);
        // A sixth of the time, behind a valley that is no deep one on a plot as high as this; and a fiftieth.
        let far = |short| [short, 90_000, 20_000, 4_100, 4_000, 9_000, 9_000, 200];
        assert_eq!(ranges(&halves(&far(500_000)))[1..], [(35, 37)]);
        assert_eq!(ranges(&halves(&far(5_000_000))).len(), 1);
        assert_eq!(ranges(&halves(&[91, 0, 9])), [(30, 32)]);
        // A flank of some ops that took a little longer.
        assert_eq!(ranges(&halves(&[9_000, 10, 60])), [(30, 32)]);
        assert_eq!(
            ranges(&halves(&[9_000, 10, 0, 0, 60])),
            [(30, 31), (34, 34)]
        );
        assert_eq!(
            ranges(&halves(&[20, 2, 9_000, 10, 60, 30, 800])),
            [(30, 32), (33, 36)]
        );
    }

    #[test]
    fn fine_resolutions_do_not_shatter_a_hump() {
        let mut profile = Profile::new(Resolution::new(8).unwrap());
        for latency in 0..200_u64 {
            profile.add(Ticks(900 + latency * 3));
            profile.add(Ticks(1 + latency % 5));
        }
        assert_eq!(find_peaks(&profile).len(), 2);
    }

    proptest! {
        #[test]
        fn humps_divide_the_ops(counts in prop::collection::vec(0_u64..2_000, 0..40), r in 1_u32..=4) {
            let mut profile = Profile::new(Resolution::new(r).unwrap());
            for (bucket, ops) in (20_u32..).zip(counts) {
                profile.add_bucket(bucket, Bucket { ops, total: Ticks(ops) }).unwrap();
            }
            let humps = find_humps(&profile);
            let ops: u64 = humps.iter().map(|hump| hump.content.ops).sum();
            prop_assert_eq!(ops, profile.count());
            for (bucket, _) in profile.buckets() {
                let owners = humps.iter().filter(|h| h.first_bucket <= bucket && bucket <= h.last_bucket);
                prop_assert_eq!(owners.count(), 1);
            }
            for pair in humps.windows(2) {
                prop_assert!(pair[0].last_bucket < pair[1].first_bucket);
            }
            let peaks = find_peaks(&profile);
            for (number, peak) in (1..).zip(&peaks) {
                prop_assert_eq!(peak.number, number);
                prop_assert!(peak.content.ops >= LEAST_OPS);
                prop_assert!(humps.iter().any(|h| (h.first_bucket, h.last_bucket) == (peak.first_bucket, peak.last_bucket)));
            }
        }
    }
}
