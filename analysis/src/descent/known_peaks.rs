//! Peaks that are known, and what becomes of them when they are looked for again.

use darc_record::Ticks;

use crate::descent::looking_on::{Looking, MOST};
use crate::descent::params::PeakChoice;
use crate::descent::share::LEAST;
use crate::descent::{Analysis, PeakAnalysis};
use crate::profile::histogram::Bucket;
use crate::profile::peaks::{Peak, has_weight, is_noticed_range};
use crate::values::Values;

/// Where ops come slowly a tenth of `start_ops` is looked at first,
const TENTH: u64 = 10;
/// ... if these took longer: a second or less.
const SECOND: Ticks = Ticks(1 << 31);

impl Analysis {
    /// How many ops are looked at first where they come slowly.
    pub(crate) fn first_look(start_ops: u64) -> u64 {
        (start_ops / TENTH).max(1)
    }

    /// Looks for peaks at `start_ops` ops and whenever their number has doubled: rare slow ops appear
    /// late. What is known of a peak stays with it. Each belongs to the hump
    /// that holds most of its ops; a hump of which a peak has only the edge, for a few stray ops stood there
    /// when that was found, is a peak of its own over the rest, with the next number.
    ///
    /// Where ops come slowly, the first few are looked at, and the peaks are cut anew whenever there are more, until there are enough.
    /// Later ones that hold two humps by then are divided, until they have their answers.
    pub(crate) fn look_for_peaks(&mut self) {
        let (ops, enough) = (self.profile.count(), self.params.start_ops.max(1));
        // A number that the person gave, or was asked for, is that of a peak among enough.
        let are_all = self.params.peak == PeakChoice::All && self.params.range.is_none();
        let is_slow = || are_all && self.side_by_side.measured() >= SECOND;
        if self.finished || ops < self.next_look || ops < enough && !is_slow() {
            return;
        }
        // What is known of stored peaks, in the file too, keeps to their numbers.
        let is_known = self.stored.is_some() || self.is_answered() || self.is_checking();
        let are_few = self.next_look <= enough && are_all && !is_known;
        while self.next_look <= ops && self.next_look < u64::MAX {
            let next = self.next_look.saturating_mul(2);
            self.next_look = match self.next_look < enough {
                true => next.min(enough),
                false => next,
            };
        }
        if let Some(range) = self.params.range {
            self.look_in_range(range);
            return;
        }
        let found = self.find_peaks();
        let mut of_known = self.humps_of_known(&found);
        if are_few && self.cut_among_few(&found, &of_known) {
            return;
        }
        let is_later = matches!(self.looking, Looking::Enough | Looking::Checked);
        let may_divide = !are_few && are_all && !is_known && !is_later;
        if may_divide && self.divide(&found, &of_known) {
            of_known = self.humps_of_known(&found);
        }
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

    /// For each known peak which hump holds most of its ops.
    fn humps_of_known(&self, found: &[Peak]) -> Vec<Option<usize>> {
        let known = self.peaks.iter();
        known.map(|at| self.hump_of(&at.peak, found)).collect()
    }

    /// Known peaks inside of which further humps stand by now are divided among these. What is left of one is that peak where it has
    /// nearly all of its ops and of its time; of others nothing may be known that would be lost. Whether any was divided.
    fn divide(&mut self, found: &[Peak], of_known: &[Option<usize>]) -> bool {
        let mut parts: Vec<(Peak, Option<usize>)> = Vec::new();
        for (index, (at, own)) in self.peaks.iter().zip(of_known).enumerate() {
            let known = at.peak;
            let others = (0..found.len()).filter(|hump| !of_known.contains(&Some(*hump)));
            let within = others.filter(|&hump| self.is_within(&found[hump], &known));
            let mut within: Vec<(Peak, Option<usize>)> =
                within.map(|hump| (found[hump], None)).collect();
            let own = own.map(|own| (own, self.is_nearly_all(&found[own], &known)));
            // An answer is replaced by a better one only when all ops are looked at together.
            let is_kept = |&(_, is_same): &(usize, bool)| is_same || at.open != Some(0);
            let Some((own, is_same)) = own.filter(is_kept).filter(|_| !within.is_empty()) else {
                parts.push((known, Some(index)));
                continue;
            };
            within.push((found[own], is_same.then_some(index)));
            within.sort_by_key(|(hump, _)| hump.first_bucket);
            // Each has the buckets up to the next one.
            let ends = within.iter().skip(1).map(|(next, _)| next.first_bucket - 1);
            let ends: Vec<u32> = ends.chain([known.last_bucket]).collect();
            let mut first_bucket = known.first_bucket;
            for ((hump, kept), last_bucket) in within.into_iter().zip(ends) {
                let range = Peak {
                    first_bucket,
                    last_bucket,
                    ..hump
                };
                parts.push((range, kept));
                first_bucket = last_bucket + 1;
            }
        }
        let is_any = parts.len() > self.peaks.len();
        if is_any {
            parts.sort_by_key(|(peak, _)| peak.first_bucket);
            let (peaks, kept): (Vec<Peak>, Vec<Option<usize>>) = parts.into_iter().unzip();
            self.replace_peaks(&peaks, &kept);
        }
        is_any
    }

    /// Whether a hump has nearly all of a known peak: what the others took can have been no cause of it.
    fn is_nearly_all(&self, hump: &Peak, known: &Peak) -> bool {
        let all = self.profile.range(known.first_bucket, known.last_bucket);
        let shared = self.shared(hump, known);
        let is_nearly = |part: u64, of: u64| part as f64 > (1.0 - LEAST) * of as f64;
        is_nearly(shared.ops, all.ops) && is_nearly(shared.total.0, all.total.0)
    }

    /// Whether most of a hump is inside of a known peak, and that is enough for a decision and has weight.
    fn is_within(&self, hump: &Peak, known: &Peak) -> bool {
        let shared = self.shared(known, hump);
        shared.ops as f64 >= MOST * hump.content.ops as f64
            && shared.ops >= self.params.decision_ops
            && has_weight(&shared, &self.profile)
    }

    /// Cuts the peaks of a few ops anew where two of them turn out to be one, or one to be two. What grows stays. Whether it does.
    fn cut_among_few(&mut self, found: &[Peak], of_known: &[Option<usize>]) -> bool {
        let is_in_one = |index: &usize| {
            let holds = |hump: &&Peak| self.shared(&self.peaks[*index].peak, hump).ops > 0;
            found.iter().filter(holds).count() == 1
        };
        let known_of = |hump: usize| {
            let of_hump = |index: &usize| of_known[*index] == Some(hump);
            let mut known = (0..of_known.len()).filter(of_hump);
            let first = known.next().filter(is_in_one);
            first.filter(|_| known.next().is_none())
        };
        let kept: Vec<Option<usize>> = (0..found.len()).map(known_of).collect();
        let is_kept = |index: usize| kept.contains(&Some(index));
        if found.is_empty() || (0..of_known.len()).all(is_kept) {
            return false;
        }
        self.replace_peaks(found, &kept);
        true
    }

    /// Which of the humps holds most of a known peak's ops; the left one of equals, none when it is in none.
    pub(crate) fn hump_of(&self, peak: &Peak, found: &[Peak]) -> Option<usize> {
        let shares = found.iter().map(|hump| self.shared(peak, hump).ops);
        let shares = shares.enumerate();
        let held = shares.filter(|&(_, ops)| ops > 0);
        held.rev().max_by_key(|&(_, ops)| ops).map(|(hump, _)| hump)
    }

    /// The ops that are of both.
    pub(crate) fn shared(&self, one: &Peak, other: &Peak) -> Bucket {
        let first = one.first_bucket.max(other.first_bucket);
        let last = one.last_bucket.min(other.last_bucket);
        match first <= last {
            true => self.profile.range(first, last),
            false => Bucket::default(),
        }
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

    /// An op of as many cycles as is said, after a second.
    fn seldom(ops: &[u64]) -> Vec<(u32, u32)> {
        seldom_after(&mut Analysis::new(Params::default()), ops)
    }

    /// The same for ops that come after others.
    fn seldom_after(analysis: &mut Analysis, ops: &[u64]) -> Vec<(u32, u32)> {
        for (at, &latency) in (analysis.profile.count() + 1..).zip(ops) {
            let start: u64 = at << 33;
            analysis.op(&darc_record::Op {
                tid: 1,
                start: darc_record::Tsc(start),
                end: darc_record::Tsc(start + latency),
                latency: Ticks(latency),
                arguments: darc_record::Arguments::default(),
                touched: Vec::new(),
            });
        }
        let peaks = analysis.peaks();
        let range = |peak: &Peak| (peak.first_bucket, peak.last_bucket);
        peaks.iter().map(range).collect()
    }

    #[test]
    fn few_ops_that_take_long_have_peaks_which_are_cut_anew() {
        let [short, long, longer] = [1 << 20, 1 << 26, 1 << 29];
        let first = [
            short, short, short, short, long, longer, short, longer, long,
        ];
        assert_eq!(seldom(&first), []);
        let ten = [&first[..], &[short]].concat();
        assert_eq!(seldom(&ten), [(40, 40)]);
        // Of twenty five are as long as each other, and three longer.
        let more = [
            long, longer, long, short, short, short, long, short, short, short,
        ];
        let twenty = [&ten[..], &more].concat();
        assert_eq!(seldom(&twenty), [(40, 40), (52, 52), (58, 58)]);
        // What comes between them makes them one.
        let between: Vec<u64> = (0..20).map(|at| long + (longer - long) / 20 * at).collect();
        let forty = [&twenty[..], &between].concat();
        assert_eq!(seldom(&forty), [(40, 40), (52, 58)]);
    }

    #[test]
    fn stored_peaks_keep_their_numbers_among_few_ops() {
        let [short, long, longer] = [1 << 20, 1 << 26, 1 << 29];
        let ten = [
            short, short, short, long, longer, short, longer, long, short, short,
        ];
        let more = [
            long, longer, long, short, short, short, long, short, short, short,
        ];
        let between: Vec<u64> = (0..20).map(|at| long + (longer - long) / 20 * at).collect();
        let mut analysis = Analysis::new(Params::default());
        let known = seldom_after(&mut analysis, &[ten, more].concat());
        assert_eq!(known, [(40, 40), (52, 52), (58, 58)]);
        assert_eq!(seldom_after(&mut analysis.clone(), &between).len(), 2);
        analysis.stored = Some(analysis.profile.clone());
        let grown = [(40, 40), (52, 57), (58, 58)];
        assert_eq!(seldom_after(&mut analysis, &between), grown);
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
    fn a_hump_inside_of_a_known_peak_is_a_peak_of_its_own_once_it_has_weight() {
        let mut analysis = Analysis::new(Params::default());
        let tail = [(10, 93), (11, 3), (12, 2), (13, 1), (14, 1)];
        assert_eq!(after(&mut analysis, &tail), [(10, 14)]);
        // Too few of them.
        assert_eq!(after(&mut analysis, &[(10, 400), (14, 9)]), [(10, 14)]);
        let divided = [(10, 13), (14, 14)];
        assert_eq!(after(&mut analysis, &[(10, 1_100), (14, 90)]), divided);
        // It takes in what comes beside it.
        assert_eq!(
            after(&mut analysis, &[(10, 150_000), (13, 60), (15, 4)]),
            [(10, 13), (14, 15)]
        );
    }

    #[test]
    fn an_answer_is_not_given_up_for_a_part_of_its_peak() {
        let tail = [(10, 93), (11, 3), (12, 2), (13, 1), (14, 1)];
        // With a tenth of the time and more, and with less.
        for (ops, expected) in [(100, vec![(10, 14)]), (40, vec![(10, 13), (14, 14)])] {
            let mut analysis = Analysis::new(Params::default());
            assert_eq!(after(&mut analysis, &tail), [(10, 14)]);
            analysis.peaks[0].open = Some(0);
            // Of another one it is not known yet.
            let mut other = analysis.peaks[0].clone();
            other.open = Some(1);
            other.peak = Peak {
                number: 2,
                first_bucket: 30,
                last_bucket: 30,
                ..other.peak
            };
            analysis.peaks.push(other);
            let ranges = after(&mut analysis, &[(10, 6_000), (14, ops)]);
            assert_eq!(ranges[..ranges.len() - 1], expected, "{ops}");
        }
    }

    #[test]
    fn what_a_person_asked_for_is_not_divided() {
        let params = Params {
            peak: PeakChoice::One(1),
            ..Params::default()
        };
        let mut analysis = Analysis::new(params);
        let tail = [(10, 93), (11, 3), (12, 2), (13, 1), (14, 1)];
        assert_eq!(after(&mut analysis, &tail), [(10, 14)]);
        assert_eq!(after(&mut analysis, &[(10, 1_500), (14, 100)]), [(10, 14)]);
    }

    #[test]
    fn a_known_peak_grows_over_its_hump() {
        let mut analysis = Analysis::new(Params::default());
        assert_eq!(after(&mut analysis, &[(11, 100)]), [(11, 11)]);
        let around = [(9, 40), (10, 400), (11, 800), (12, 300), (13, 30)];
        assert_eq!(after(&mut analysis, &around), [(9, 13)]);
    }
}
