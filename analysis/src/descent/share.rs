//! Which parts of a time are causes of it, and whether enough ops are known to say so.
//!
//! A function's time divides among parts: itself, and each function that it calls. A part's share of the time is a ratio
//! of two sums over ops, with the interval of a ratio estimate (Cochran, Sampling Techniques, 3rd edition 1977, section
//! 6.4); the part of the ops in which it is a main contributor has Wilson's interval (J. Am. Stat. Assoc. 22, 1927). Both are
//! 97% intervals, looked at whenever the ops are a quarter more. Its part of the variance (Huang, Mozafari and Wenisch, Statistical
//! Analysis of Latency Through Semantic Profiling, EuroSys 2017) tells of a seldom part that makes ops longer than the others of
//! their peak. `docs/method.md` is the whole rule on a page.

use darc_record::Ticks;

/// The quantile of the normal distribution: more than that of 95% intervals, for several parts are looked at, more than
/// once.
const Z: f64 = 2.2;
/// What certainly has more than this is a cause.
pub(crate) const LEAST: f64 = 0.1;
/// What certainly has less than this is none, unless the larger ones leave most unexplained.
pub(crate) const ALWAYS: f64 = 0.2;
/// Causes are named until they explain this part together.
const EXPLAINED: f64 = 0.8;
/// Where the largest part is below this, the time has no single cause.
pub(crate) const SINGLE: f64 = 0.3;
/// What makes this part of the variance makes the differences between ops,
const MOST_VARIANCE: f64 = 0.5;
/// ... if these vary by this part of their mean,
const VARYING: f64 = 0.1;
/// ... and it has this part of the time,
pub(crate) const SOME_TIME: f64 = 0.05;
/// ... and certainly this part of the ops.
const SOME_OPS: f64 = 0.01;
/// What may be in so many of the ops is waited for until that is certain.
const MAY_BE_SOME_OPS: f64 = 0.05;
/// How far the interval of the largest part may reach beyond [`SINGLE`], on either side.
const SINGLE_MARGIN: f64 = 0.05;
/// So many times the mean an op may be long in which a part takes the time that has not occurred yet, where its peak may have such.
const UNSEEN: f64 = 2.5;
/// So many calls of one function are gone on with where it has all of a peak's time.
const MOST_SITES: f64 = 12.0;
/// At most so many times the least number of ops decide.
const MOST_OPS: u64 = 20;
/// So many times the least number of ops are waited for where long ones are missing: among a hundred of them there is one of what is
/// 5% of the ops.
pub(crate) const LONG_OPS: u64 = 5;

/// The time of one part of a function, summed over ops.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Part {
    /// The sum.
    pub time: Ticks,
    /// The sum of the squares, in square ticks.
    pub squares: f64,
    /// The sum of the products with the function's time in the same op, in square ticks.
    pub products: f64,
}

/// A value, and between what it lies with 97% confidence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// Not less.
    pub low: f64,
    /// The estimate.
    pub at: f64,
    /// Not more.
    pub high: f64,
}

/// What is known of a part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Estimate {
    /// Its share of the time.
    pub time: Interval,
    /// The part of the ops in which it is a main contributor.
    pub ops: Interval,
    /// Its part of the variance of the time; 0 where the ops are alike.
    pub variance: f64,
}

/// What is decided about the parts of a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// No single one: the time is spread.
    None,
    /// For each part whether it is a cause.
    Causes(Vec<bool>),
}

/// What a function has of a peak.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Weight {
    /// Its part of the time.
    pub time: f64,
    /// The part of the ops in which it is a cause.
    pub ops: f64,
}

impl Named {
    /// What is left of several causes of a function's time when each is to matter for the peak: has a tenth of its time or
    /// of its ops, or makes the differences between them. Where none does, the time of a small part of the peak is spread.
    pub(crate) fn of_peak(self, parts: &[Estimate], weight: &Weight) -> Named {
        let Named::Causes(mut named) = self else {
            return self;
        };
        let count = |named: &[bool]| named.iter().filter(|&&is_cause| is_cause).count();
        if count(&named) <= 1 {
            return Named::Causes(named);
        }
        for (is_cause, part) in named.iter_mut().zip(parts) {
            let (time, ops) = (weight.time * part.time.at, weight.ops * part.ops.at);
            let is_difference = part.makes_differences()
                && weight.time >= MOST_VARIANCE
                && time >= SOME_TIME
                && weight.ops * part.ops.low >= SOME_OPS;
            *is_cause &= time >= LEAST || ops >= LEAST || is_difference;
        }
        match count(&named) {
            0 => Named::None,
            _ => Named::Causes(named),
        }
    }
}

impl Part {
    pub(crate) const NOTHING: Part = Part {
        time: Ticks(0),
        squares: 0.0,
        products: 0.0,
    };

    /// Adds an op in which the part took `time` of the function's `whole`.
    pub(crate) fn add(&mut self, time: Ticks, whole: Ticks) {
        let (x, y) = (time.0 as f64, whole.0 as f64);
        self.time = self.time + time;
        self.squares += x * x;
        self.products += x * y;
    }

    /// Adds what was seen in other ops.
    pub(crate) fn include(&mut self, other: &Part) {
        self.time = self.time + other.time;
        self.squares += other.squares;
        self.products += other.products;
    }

    /// As if it had been seen in so many times the ops.
    pub(crate) fn times(&self, weight: f64) -> Part {
        Part {
            time: Ticks((self.time.0 as f64 * weight).round() as u64),
            squares: self.squares * weight,
            products: self.products * weight,
        }
    }

    /// Its share of the whole, which is summed over the same `ops`.
    pub(crate) fn share(&self, whole: &Part, ops: u64) -> Interval {
        let (sum, ops) = (whole.time.0 as f64, ops as f64);
        if sum <= 0.0 {
            return Interval::EMPTY;
        }
        let at = self.time.0 as f64 / sum;
        let residuals = self.squares - 2.0 * at * self.products + at * at * whole.squares;
        let error = (residuals.max(0.0) * ops / (ops - 1.0).max(1.0)).sqrt() / sum;
        Interval::around(at, at, Z * error)
    }

    /// Its part of the variance of the whole, which is summed over the same `ops`: the covariance of the two to the variance.
    /// That of all parts together is 1.
    pub(crate) fn share_of_variance(&self, whole: &Part, ops: u64) -> f64 {
        let n = (ops as f64).max(1.0);
        let (mean, of_whole) = (self.time.0 as f64 / n, whole.time.0 as f64 / n);
        let variance = whole.squares / n - of_whole * of_whole;
        match variance > (VARYING * of_whole).powi(2) {
            true => (self.products / n - mean * of_whole) / variance,
            false => 0.0,
        }
    }
}

impl Interval {
    pub(crate) const EMPTY: Interval = Interval {
        low: 0.0,
        at: 0.0,
        high: 0.0,
    };

    fn around(at: f64, centre: f64, margin: f64) -> Interval {
        Interval {
            low: (centre - margin).max(0.0),
            at,
            high: (centre + margin).min(1.0),
        }
    }

    /// The part of `ops` in which something is so that was so in `hits` of them (Wilson's interval).
    pub(crate) fn of_ops(hits: u64, ops: u64) -> Interval {
        if ops == 0 {
            return Interval::EMPTY;
        }
        let (n, at) = (ops as f64, hits as f64 / ops as f64);
        let scale = 1.0 + Z * Z / n;
        let centre = (at + Z * Z / (2.0 * n)) / scale;
        let margin = Z * (at * (1.0 - at) / n + Z * Z / (4.0 * n * n)).sqrt() / scale;
        Interval::around(at, centre, margin)
    }

    /// The interval of the share of a part that occurred in so many of the ops: it may occur as often as Wilson's interval
    /// allows, each time as long as it was on average. An op is `longest` times the mean at most.
    pub(crate) fn of_occurrences(self, occurred: u64, ops: u64, longest: f64) -> Interval {
        let occurred = occurred.min(ops);
        let length = match occurred {
            0 => longest.clamp(1.0, UNSEEN),
            _ => self.at * ops as f64 / occurred as f64,
        };
        let may_be = length * Interval::of_ops(occurred, ops).high;
        Interval {
            high: self.high.max(may_be.min(1.0)),
            ..self
        }
    }

    /// The interval of a value that is less by this.
    pub(crate) fn less(self, by: f64) -> Interval {
        Interval {
            low: (self.low - by).max(0.0),
            at: (self.at - by).max(0.0),
            high: (self.high - by).max(0.0),
        }
    }

    /// Whether another value is certainly another one, and by more than does not matter.
    pub(crate) fn differs(&self, other: &Interval) -> bool {
        let is_apart = self.low > other.high || other.low > self.high;
        is_apart && (self.at - other.at).abs() >= LEAST
    }

    /// Whether it is too wide to tell which side of the two borders the value is on.
    fn is_across(&self, low: f64, high: f64) -> bool {
        self.low < low && self.high > high
    }

    /// Whether it is rather above the two borders than below.
    fn is_above(&self, low: f64, high: f64) -> bool {
        match (self.low >= low, self.high <= high) {
            (true, false) => true,
            (false, true) => false,
            _ => self.at >= (low + high) / 2.0,
        }
    }
}

impl Estimate {
    /// Of a part with exactly this share of the time, of whose ops nothing is known.
    pub(crate) fn of_time(at: f64) -> Estimate {
        Estimate {
            time: Interval {
                low: at,
                at,
                high: at,
            },
            ops: Interval::EMPTY,
            variance: 0.0,
        }
    }

    fn is_clear(&self) -> bool {
        let may_be_cause = self.time.is_across(LEAST, ALWAYS)
            || self.ops.is_across(LEAST, ALWAYS)
            || (self.may_make_differences() && self.ops.is_across(SOME_OPS, MAY_BE_SOME_OPS));
        !may_be_cause
    }

    fn is_always_named(&self) -> bool {
        self.time.is_above(LEAST, ALWAYS)
            || self.ops.is_above(LEAST, ALWAYS)
            || self.makes_differences()
    }

    /// Whether some ops are longer than the others for it, seldom as it may be: a group of ops in the hump of others.
    fn makes_differences(&self) -> bool {
        self.may_make_differences() && self.time.at >= SOME_TIME && self.ops.low >= SOME_OPS
    }

    /// Whether it is a cause for that alone, with little of the time and of the ops: what struck some ops by chance looks like it.
    pub(crate) fn is_small_difference(&self) -> bool {
        self.makes_differences() && self.time.at < LEAST && self.ops.at < LEAST
    }

    fn may_make_differences(&self) -> bool {
        self.variance >= MOST_VARIANCE && self.time.high >= SOME_TIME && self.ops.at > 0.0
    }

    /// Whether it may be the single cause.
    fn is_single(&self) -> bool {
        let (low, high) = (SINGLE - SINGLE_MARGIN, SINGLE + SINGLE_MARGIN);
        self.time.is_above(low, high) || self.ops.is_above(LEAST, ALWAYS)
    }

    fn is_clearly_single_or_not(&self) -> bool {
        !self
            .time
            .is_across(SINGLE - SINGLE_MARGIN, SINGLE + SINGLE_MARGIN)
    }
}

/// Whether it is time to look whether the ops decide: at `least` of them, and whenever they are a quarter more.
pub(crate) fn is_look(ops: u64, least: u64) -> bool {
    let looks = std::iter::successors(Some(least.max(1)), |&at| at.checked_add((at / 4).max(1)));
    looks.take_while(|&at| at <= ops).last() == Some(ops) || ops >= limit(least)
}

/// After so many ops the estimates decide.
pub(crate) fn limit(least: u64) -> u64 {
    least.max(1).saturating_mul(MOST_OPS)
}

/// Which parts of a time are causes of it; nothing where more ops are needed to tell. The estimates decide `at_last`.
pub(crate) fn named(parts: &[Estimate], at_last: bool) -> Option<Named> {
    let most = parts.iter().map(|part| part.time.at);
    let most = most.fold(0.0, f64::max);
    let has_largest = |part: &Estimate| part.time.at >= most;
    let is_open =
        |part: &Estimate| !part.is_clear() || has_largest(part) && !part.is_clearly_single_or_not();
    if !at_last && parts.iter().any(is_open) {
        return None;
    }
    Some(match parts.iter().any(Estimate::is_single) {
        true => Named::Causes(causes(parts)),
        false => Named::None,
    })
}

/// Those that are always named, and the largest others until most of the time is explained.
fn causes(parts: &[Estimate]) -> Vec<bool> {
    let mut by_share: Vec<usize> = (0..parts.len()).collect();
    by_share.sort_by(|&one, &other| parts[other].time.at.total_cmp(&parts[one].time.at));
    let mut named = vec![false; parts.len()];
    let mut explained = 0.0;
    for index in by_share {
        let part = &parts[index];
        let is_needed = explained < EXPLAINED && part.time.at >= LEAST;
        if is_needed || part.is_always_named() {
            named[index] = true;
            explained += part.time.at;
        }
    }
    named
}

/// How many of these times of calls of one function, the longest first, are gone on with: each that has a tenth of the peak's
/// time, and others until they are most of them all, but none that is small beside the largest, and at most as many as there
/// are twelfths in the function's part of the peak's time, `weight`.
pub(crate) fn leading(times: &[f64], weight: f64) -> usize {
    let all: f64 = times.iter().sum();
    let largest = times.first().copied().unwrap_or(0.0);
    let least = (LEAST * all).min(largest / 4.0);
    let most = (MOST_SITES * weight).ceil().clamp(1.0, MOST_SITES) as usize;
    let mut explained = 0.0;
    let is_needed = |&&time: &&f64| {
        let is_large = time * weight >= LEAST * all && time > 0.0;
        let is_needed = is_large || explained < EXPLAINED * all && time >= least;
        explained += time;
        is_needed
    };
    let needed = times.iter().take_while(is_needed).count();
    needed.clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ops: &[(u64, u64)]) -> (Part, Part) {
        let (mut part, mut whole) = (Part::default(), Part::default());
        for &(time, of) in ops {
            part.add(Ticks(time), Ticks(of));
            whole.add(Ticks(of), Ticks(of));
        }
        (part, whole)
    }

    #[test]
    fn the_interval_of_a_share_is_that_of_a_ratio_estimate() {
        // Always half of the time, however long the op is: no doubt.
        let (half, whole) = part(&[(50, 100), (500, 1_000), (5, 10)]);
        let share = half.share(&whole, 3);
        assert!((share.low - 0.5).abs() < 1e-6 && (share.high - 0.5).abs() < 1e-6);
        // All or nothing in 10 of 20 ops: so many times the root of 0.25 / 19.
        let ops: Vec<(u64, u64)> = (0..20).map(|op| (op % 2 * 100, 100)).collect();
        let (half, whole) = part(&ops);
        let share = half.share(&whole, 20);
        assert!((share.high - 0.5 - Z * (0.25_f64 / 19.0).sqrt()).abs() < 1e-9);
        assert_eq!(Part::default().share(&Part::default(), 0), Interval::EMPTY);
    }

    #[test]
    fn wilsons_interval_is_that_of_its_formula() {
        let none = Interval::of_ops(0, 20);
        assert!(none.low < 1e-9 && (none.high - Z * Z / (20.0 + Z * Z)).abs() < 1e-9);
        // Its ends are where the hypothesis of that value would be rejected just so.
        let some = Interval::of_ops(6, 20);
        for end in [some.low, some.high] {
            let error = (end * (1.0 - end) / 20.0).sqrt();
            assert!(((end - 0.3).abs() - Z * error).abs() < 1e-9);
        }
    }

    #[test]
    fn what_has_not_occurred_yet_is_not_clearly_none() {
        let is_clear = |occurred, ops| {
            let time = Interval::EMPTY.of_occurrences(occurred, ops, UNSEEN);
            let ops = Interval::of_ops(0, ops);
            let variance = 0.0;
            Estimate {
                time,
                ops,
                variance,
            }
            .is_clear()
        };
        assert!(!is_clear(0, 20) && !is_clear(0, 47));
        assert!(is_clear(0, 58));
        // Where all ops are as long as each other, fewer tell.
        let of_narrow = |ops| Interval::EMPTY.of_occurrences(0, ops, 1.2).high;
        assert!(of_narrow(20) > ALWAYS && of_narrow(25) < ALWAYS);
        // What was called and took no time is measured.
        assert!(is_clear(1, 20) && is_clear(20, 20));
        let some = Interval::around(0.05, 0.05, 0.0).of_occurrences(1, 20, UNSEEN);
        assert_eq!(some.high, Interval::of_ops(1, 20).high);
    }

    #[test]
    fn looks_are_a_quarter_apart() {
        let looks: Vec<u64> = (0..60).filter(|&ops| is_look(ops, 20)).collect();
        assert_eq!(looks, [20, 25, 31, 38, 47, 58]);
        assert!(is_look(400, 20) && !is_look(399, 20));
        assert_eq!(limit(u64::MAX), u64::MAX);
        assert!(!is_look(5, u64::MAX));
    }

    fn exactly(time: f64, ops: f64) -> Estimate {
        let at = |at| Interval {
            low: at,
            at,
            high: at,
        };
        Estimate {
            time: at(time),
            ops: at(ops),
            variance: 0.0,
        }
    }

    #[test]
    fn causes_are_named_until_most_is_explained() {
        let parts = [
            (0.5, 1.0),
            (0.12, 0.0),
            (0.19, 0.0),
            (0.11, 0.0),
            (0.08, 0.3),
        ];
        let parts = parts.map(|(time, ops)| exactly(time, ops));
        // 0.5 and 0.19 leave 0.31, so that 0.12 is named and 0.11 is not; a third of the ops is always told.
        let causes = Named::Causes(vec![true, true, true, false, true]);
        assert_eq!(named(&parts, false), Some(causes));
        let equal = [exactly(0.1, 0.0); 10];
        assert_eq!(named(&equal, false), Some(Named::None));
    }

    #[test]
    fn equal_calls_of_a_function_are_all_gone_on_with() {
        assert_eq!(leading(&[1.0; 12], 1.0), 10, "80%");
        assert_eq!(leading(&[1.0; 40], 1.0), 12);
        assert_eq!(leading(&[1.0; 40], 0.25), 3);
        assert_eq!(leading(&[1.0; 40], 0.01), 1);
        assert_eq!(
            leading(&[30.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 7.0], 1.0),
            7
        );
        // What is called once in a while is not waited for.
        assert_eq!(leading(&[70.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0], 1.0), 1);
        assert_eq!(leading(&[], 1.0), 1);
        // What has a tenth of the peak's time may end elsewhere.
        assert_eq!(leading(&[82.0, 18.0], 1.0), 2);
        assert_eq!(leading(&[82.0, 18.0], 0.5), 1);
        assert_eq!(leading(&[70.0, 15.0, 10.0, 5.0], 1.0), 3);
    }

    #[test]
    fn small_parts_of_a_small_part_are_not_told_apart() {
        let parts = [exactly(0.4, 0.0), exactly(0.35, 0.0), exactly(0.25, 0.0)];
        let all = Named::Causes(vec![true; 3]);
        let of = |time, ops| all.clone().of_peak(&parts, &Weight { time, ops });
        assert_eq!(of(1.0, 1.0), all);
        assert_eq!(of(0.3, 0.3), Named::Causes(vec![true, true, false]));
        assert_eq!(of(0.2, 0.2), Named::None);
        // A single one is followed wherever it leads.
        let one = Named::Causes(vec![true, false, false]);
        let nothing = Weight {
            time: 0.0,
            ops: 0.0,
        };
        assert_eq!(one.clone().of_peak(&parts, &nothing), one);
    }

    #[test]
    fn what_makes_some_ops_longer_is_a_cause_however_seldom() {
        let of = |seldom: u64, long: u64| {
            let of = |op: u64| {
                if op % 100 < seldom {
                    (long, 0)
                } else {
                    (0, 100)
                }
            };
            let ops: Vec<(u64, u64)> = (0..200).map(of).collect();
            let whole = |&(slow, usual): &(u64, u64)| slow + usual;
            let slow: Vec<(u64, u64)> = ops.iter().map(|op| (op.0, whole(op))).collect();
            let usual: Vec<(u64, u64)> = ops.iter().map(|op| (op.1, whole(op))).collect();
            let (slow, whole) = part(&slow);
            (slow, part(&usual).0, whole)
        };
        let parts = |seldom, long| {
            let (slow, usual, whole) = of(seldom, long);
            let estimate = |part: &Part, hits| Estimate {
                time: part.share(&whole, 200),
                ops: Interval::of_ops(hits, 200),
                variance: part.share_of_variance(&whole, 200),
            };
            [
                estimate(&usual, 200 - 2 * seldom),
                estimate(&slow, 2 * seldom),
            ]
        };
        let both = Some(Named::Causes(vec![true, true]));
        let first = Some(Named::Causes(vec![true, false]));
        assert_eq!(named(&parts(6, 250), true), both);
        // As long as the others, or hardly ever.
        assert_eq!(named(&parts(6, 100), true), first);
        assert_eq!(named(&parts(1, 600), true), first);
        let [usual, slow] = parts(6, 250);
        assert!(slow.variance > 0.9 && usual.variance < 0.1, "{slow:?}");
        // Of a small part of the peak the differences matter to nobody.
        let of_peak = |time| {
            both.clone()
                .unwrap()
                .of_peak(&[usual, slow], &Weight { time, ops: time })
        };
        assert_eq!(of_peak(0.6), Named::Causes(vec![true, true]));
        assert_eq!(of_peak(0.3), Named::Causes(vec![true, false]));
    }

    #[test]
    fn what_is_not_clear_is_waited_for() {
        let unsure = Estimate {
            time: Interval {
                low: 0.05,
                at: 0.14,
                high: 0.25,
            },
            ops: Interval::EMPTY,
            variance: 0.0,
        };
        let parts = [exactly(0.86, 1.0), unsure];
        assert_eq!(named(&parts, false), None);
        let first = Named::Causes(vec![true, false]);
        assert_eq!(named(&parts, true), Some(first));
    }
}
