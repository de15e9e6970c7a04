//! Peaks that are known, and what becomes of them when they are looked for again.

use crate::descent::{Analysis, PeakAnalysis};
use crate::profile::peaks::{Peak, is_noticed_range};
use crate::values::Values;

impl Analysis {
    /// Looks for peaks at `start_ops` ops and whenever their number has doubled: rare slow ops appear
    /// late. Peaks that are known keep their number, for maxcounts belong to it. Each belongs to the hump
    /// that holds most of its ops; a hump of which a peak has only the edge, for a few stray ops stood there
    /// when that was found, is a peak of its own over the rest, with the next number.
    pub(crate) fn look_for_peaks(&mut self) {
        if self.finished || self.profile.count() < self.next_look {
            return;
        }
        while self.next_look <= self.profile.count() && self.next_look < u64::MAX {
            self.next_look = self.next_look.saturating_mul(2);
        }
        if let Some(range) = self.params.range {
            self.look_in_range(range);
            return;
        }
        let found = self.find_peaks();
        let of_known: Vec<Option<usize>> = self
            .peaks
            .iter()
            .map(|at| self.hump_of(&at.peak, &found))
            .collect();
        for (hump, found) in found.iter().enumerate() {
            let is_known = |index: &usize| of_known.get(*index) == Some(&Some(hump));
            let known: Vec<usize> = (0..of_known.len()).filter(is_known).collect();
            if known.is_empty() {
                self.add_peak(found);
            }
            for index in known {
                self.grow(index, found);
            }
        }
        self.begin_descents();
    }

    /// Which of the humps holds most of a known peak's ops; the left one of equals, none when it is in none.
    pub(crate) fn hump_of(&self, peak: &Peak, found: &[Peak]) -> Option<usize> {
        let shared = |hump: &Peak| {
            let first = hump.first_bucket.max(peak.first_bucket);
            let last = hump.last_bucket.min(peak.last_bucket);
            match first <= last {
                true => self.profile.range(first, last).ops,
                false => 0,
            }
        };
        let shares = found.iter().map(shared).enumerate();
        let held = shares.filter(|&(_, ops)| ops > 0);
        held.rev().max_by_key(|&(_, ops)| ops).map(|(hump, _)| hump)
    }

    /// A hump that no known peak belongs to is a new one, as far as its buckets are of no peak. A rest that
    /// would not be noticed alone is left unassigned.
    fn add_peak(&mut self, found: &Peak) {
        let mut rests: Vec<(u32, u32)> = Vec::new();
        for bucket in found.first_bucket..=found.last_bucket {
            if self.peak_of(bucket).is_some() {
                continue;
            }
            match rests.last_mut() {
                Some((_, last)) if *last + 1 == bucket => *last = bucket,
                _ => rests.push((bucket, bucket)),
            }
        }
        let whole = (found.first_bucket, found.last_bucket);
        let content = |&(first, last): &(u32, u32)| self.profile.range(first, last);
        let Some((first_bucket, last_bucket)) =
            rests.into_iter().max_by_key(|rest| content(rest).ops)
        else {
            return;
        };
        let range = (first_bucket, last_bucket);
        if range != whole && !is_noticed_range(&self.profile, first_bucket, last_bucket) {
            return;
        }
        let number = self.peaks.len() as u32 + 1;
        let peak = Peak {
            number,
            first_bucket,
            last_bucket,
            content: content(&range),
        };
        tracing::debug!(
            target: "descent",
            peak = number,
            first_bucket,
            last_bucket,
            ops = peak.content.ops,
            of = self.profile.count(),
            "found a peak"
        );
        self.push_peak(peak);
    }

    /// A peak of which nothing is known yet.
    pub(crate) fn push_peak(&mut self, peak: Peak) {
        self.peaks.push(PeakAnalysis {
            peak,
            open: None,
            unresolved: 0,
            values: Values::default(),
            example: None,
        });
    }

    /// A known peak takes in the buckets of its hump that belong to no peak yet: with few ops at first its
    /// edges were not seen. What it has, it keeps.
    fn grow(&mut self, index: usize, found: &Peak) {
        let is_free = |bucket: &u32| self.peak_of(*bucket).is_none();
        let Peak {
            first_bucket,
            last_bucket,
            ..
        } = self.peaks[index].peak;
        let first = (found.first_bucket..first_bucket)
            .rev()
            .take_while(is_free)
            .last();
        let last = (last_bucket + 1..found.last_bucket.saturating_add(1))
            .take_while(is_free)
            .last();
        let peak = &mut self.peaks[index].peak;
        if first.is_some() || last.is_some() {
            tracing::debug!(
                target: "descent",
                peak = peak.number,
                first_bucket = first.unwrap_or(first_bucket),
                last_bucket = last.unwrap_or(last_bucket),
                "a peak grew"
            );
        }
        peak.first_bucket = first.unwrap_or(first_bucket);
        peak.last_bucket = last.unwrap_or(last_bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Params;

    /// The ranges of the known peaks after so many more ops in these buckets; the next look is at the end of them.
    fn after(analysis: &mut Analysis, ops: &[(u32, u64)]) -> Vec<(u32, u32)> {
        for &(bucket, ops) in ops {
            let content = crate::profile::histogram::Bucket {
                ops,
                total: crate::Ticks((3 << bucket >> 1) * ops),
            };
            analysis.profile.add_bucket(bucket, content).unwrap();
        }
        analysis.next_look = analysis.profile.count();
        analysis.look_for_peaks();
        let peaks = analysis.peaks();
        let range = |peak: &Peak| (peak.first_bucket, peak.last_bucket);
        peaks.iter().map(range).collect()
    }

    #[test]
    fn a_late_hump_in_the_tail_of_a_known_peak_is_a_peak_of_its_own() {
        let mut analysis = Analysis::new(Params::default());
        let early = [(10, 60), (11, 30), (12, 7), (13, 2), (14, 1)];
        assert_eq!(after(&mut analysis, &early), [(10, 14)]);
        let late = [
            (10, 840),
            (11, 390),
            (12, 53),
            (13, 4),
            (14, 9),
            (15, 30),
            (16, 100),
            (17, 60),
            (18, 14),
        ];
        let found = crate::profile::peaks::find_peaks(&{
            let mut all = analysis.clone();
            after(&mut all, &late);
            all.profile
        });
        let humps: Vec<_> = found
            .iter()
            .map(|it| (it.first_bucket, it.last_bucket))
            .collect();
        assert_eq!(humps, [(10, 12), (13, 18)]);
        assert_eq!(after(&mut analysis, &late), [(10, 14), (15, 18)]);
        // Each keeps to its own from now on.
        assert_eq!(
            after(&mut analysis, &[(10, 900), (9, 20), (16, 90), (19, 9)]),
            [(9, 14), (15, 19)]
        );
    }

    #[test]
    fn a_hump_that_a_known_peak_has_all_of_is_no_new_one() {
        let mut analysis = Analysis::new(Params::default());
        let tail = [(10, 93), (11, 3), (12, 2), (13, 1), (14, 1)];
        assert_eq!(after(&mut analysis, &tail), [(10, 14)]);
        assert_eq!(after(&mut analysis, &[(10, 1_500), (14, 100)]), [(10, 14)]);
        // A few ops beyond would not be noticed alone.
        assert_eq!(
            after(&mut analysis, &[(10, 150_000), (13, 60), (15, 4)]),
            [(10, 14)]
        );
    }

    #[test]
    fn a_known_peak_grows_over_its_hump() {
        let mut analysis = Analysis::new(Params::default());
        assert_eq!(after(&mut analysis, &[(11, 100)]), [(11, 11)]);
        let around = [(9, 40), (10, 400), (11, 800), (12, 300), (13, 30)];
        assert_eq!(after(&mut analysis, &around), [(9, 13)]);
    }
}
