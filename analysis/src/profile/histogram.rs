//! The profile: how often f0 took how long, in logarithmic buckets (OSprof, OSDI 2006, section 3).

use darc_record::Ticks;
use thiserror::Error;

/// Buckets per doubling of the latency: `r` of OSprof's `bucket = floor(r · log2(latency))`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Resolution(u32);

/// Why a profile is refused.
#[derive(Clone, Copy, PartialEq, Eq, Error, Debug)]
pub enum ProfileError {
    /// The checksum is wrong: the buckets do not add up to the number of ops.
    #[error("the buckets hold {buckets} ops, but {count} were counted")]
    Checksum {
        /// The ops in all buckets together.
        buckets: u64,
        /// The ops that were counted.
        count: u64,
    },
    /// Two profiles of different resolution have no buckets in common.
    #[error("the profiles' resolutions differ: {0} and {1}")]
    Resolution(u32, u32),
    /// No latency falls in a bucket of this number.
    #[error("there is no bucket {0} at this resolution")]
    NoSuchBucket(u32),
}

/// One bucket's content.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bucket {
    /// How many ops fell in it.
    pub ops: u64,
    /// Their latencies together.
    pub total: Ticks,
}

/// A histogram of latencies with their number and sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    resolution: Resolution,
    /// Indexed by bucket number, up to the last one that is not empty.
    buckets: Vec<Bucket>,
    count: u64,
    total: Ticks,
}

impl Default for Resolution {
    fn default() -> Self {
        Self(1)
    }
}

impl Resolution {
    /// Above this neighbouring buckets are 4% apart, finer than latencies repeat.
    pub const MAX: u32 = 16;

    /// That in which peaks are found unless another is asked for: neighbours are 41% apart. Groups of calls of which one takes some
    /// three times as long as the other have a valley between them, which they have not in whole doublings.
    pub const HALVES: Resolution = Resolution(2);

    /// That in which engines count ops that they do not record, and percentiles are told: neighbours are 9% apart.
    pub const FINE: Resolution = Resolution(8);

    /// `r` buckets per doubling; `None` unless `1 <= r <= Resolution::MAX`.
    #[must_use]
    pub fn new(r: u32) -> Option<Self> {
        (1..=Self::MAX).contains(&r).then_some(Self(r))
    }

    /// Buckets per doubling.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// How many buckets there are at most.
    #[must_use]
    pub fn buckets(self) -> u32 {
        64 * self.0
    }

    /// The bucket of a latency: `floor(r · log2(latency))`, and 0 for a latency of 0.
    #[must_use]
    pub fn bucket(self, latency: Ticks) -> u32 {
        let Some(exponent) = latency.0.checked_ilog2() else {
            return 0;
        };
        let mantissa = latency.0 << (63 - exponent);
        // The largest step whose start is not above the latency; step 0 always is.
        let step = (0..self.0)
            .rev()
            .find(|&step| self.step_start(step) <= mantissa)
            .unwrap_or(0);
        exponent * self.0 + step
    }

    /// `2^(step/r)` with 63 binary places: where the steps of one doubling begin.
    fn step_start(self, step: u32) -> u64 {
        let one = (1_u64 << 63) as f64;
        (f64::exp2(f64::from(step) / f64::from(self.0)) * one) as u64
    }

    /// The shortest and the longest latency of a bucket. `None` where no whole number of ticks falls in
    /// it (fine resolutions skip numbers at the left end) or the bucket does not exist.
    ///
    /// A latency of 0 is put in bucket 0 too, which therefore begins at 0.
    #[must_use]
    pub fn bounds(self, bucket: u32) -> Option<(Ticks, Ticks)> {
        if bucket >= self.buckets() {
            return None;
        }
        let first = if bucket == 0 { 0 } else { self.lower(bucket)? };
        let last = match bucket + 1 {
            next if next == self.buckets() => u64::MAX,
            next => self.lower(next)? - 1,
        };
        (first <= last).then_some((Ticks(first), Ticks(last)))
    }

    /// The smallest latency that is not left of `bucket`.
    fn lower(self, bucket: u32) -> Option<u64> {
        let shift = 63_u32.checked_sub(bucket / self.0)?;
        let start = self.step_start(bucket % self.0);
        let rounded_up = u64::from(start & ((1_u64 << shift) - 1) != 0);
        Some((start >> shift) + rounded_up)
    }
}

impl Profile {
    /// An empty profile.
    #[must_use]
    pub fn new(resolution: Resolution) -> Self {
        Self {
            resolution,
            buckets: Vec::new(),
            count: 0,
            total: Ticks(0),
        }
    }

    /// Counts one op and returns its bucket.
    pub fn add(&mut self, latency: Ticks) -> u32 {
        let bucket = self.resolution.bucket(latency);
        let one = Bucket {
            ops: 1,
            total: latency,
        };
        self.put(bucket, one);
        bucket
    }

    /// Counts ops that somebody else has put in a bucket already.
    ///
    /// # Errors
    /// [`ProfileError::NoSuchBucket`].
    pub fn add_bucket(&mut self, bucket: u32, content: Bucket) -> Result<(), ProfileError> {
        if self.resolution.bounds(bucket).is_none() {
            return Err(ProfileError::NoSuchBucket(bucket));
        }
        self.put(bucket, content);
        Ok(())
    }

    pub(crate) fn put(&mut self, bucket: u32, content: Bucket) {
        let index = bucket as usize;
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, Bucket::default());
        }
        let at = &mut self.buckets[index];
        at.ops = at.ops.saturating_add(content.ops);
        at.total = at.total + content.total;
        self.count = self.count.saturating_add(content.ops);
        self.total = self.total + content.total;
    }

    /// Adds the ops of another profile.
    ///
    /// # Errors
    /// [`ProfileError::Resolution`] when the buckets do not match.
    pub fn merge(&mut self, other: &Profile) -> Result<(), ProfileError> {
        if self.resolution != other.resolution {
            return Err(ProfileError::Resolution(
                self.resolution.get(),
                other.resolution.get(),
            ));
        }
        for (bucket, content) in other.buckets() {
            self.put(bucket, content);
        }
        Ok(())
    }

    /// The ops that are not in `earlier`, which this profile has grown from.
    #[must_use]
    pub fn since(&self, earlier: &Profile) -> Profile {
        let mut since = Profile::new(self.resolution);
        for (bucket, content) in self.buckets() {
            let before = earlier.bucket(bucket);
            let rest = Bucket {
                ops: content.ops.saturating_sub(before.ops),
                total: content.total.saturating_sub(before.total),
            };
            if rest.ops > 0 {
                since.put(bucket, rest);
            }
        }
        since
    }

    /// The checksum of OSprof: the buckets must add up to the number of ops.
    ///
    /// # Errors
    /// [`ProfileError::Checksum`].
    pub fn verify(&self) -> Result<(), ProfileError> {
        let buckets = self
            .buckets
            .iter()
            .fold(0_u64, |sum, bucket| sum.saturating_add(bucket.ops));
        if buckets == self.count {
            Ok(())
        } else {
            Err(ProfileError::Checksum {
                buckets,
                count: self.count,
            })
        }
    }

    /// Buckets per doubling.
    #[must_use]
    pub fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// How many ops there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All latencies together.
    #[must_use]
    pub fn total(&self) -> Ticks {
        self.total
    }

    /// One bucket's content, empty when nothing was counted there.
    #[must_use]
    pub fn bucket(&self, bucket: u32) -> Bucket {
        self.buckets
            .get(bucket as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The buckets that hold ops, from short latencies to long ones.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, Bucket)> + '_ {
        (0_u32..)
            .zip(self.buckets.iter().copied())
            .filter(|(_, bucket)| bucket.ops > 0)
    }

    /// The latency that this part of the ops (0 to 1) does not exceed: the mean of the bucket that it is in, so it is as
    /// exact as the buckets are narrow. `None` when there are no ops.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<Ticks> {
        let rank = (part.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0_u64;
        let (bucket, content) = self.buckets().find(|(_, content)| {
            below = below.saturating_add(content.ops);
            below >= rank
        })?;
        let (first, last) = self.resolution.bounds(bucket)?;
        Some(Ticks(content.total.0 / content.ops).clamp(first, last))
    }

    /// The ops of a range of buckets, and their latencies together.
    #[must_use]
    pub fn range(&self, first: u32, last: u32) -> Bucket {
        self.buckets()
            .filter(|(bucket, _)| (first..=last).contains(bucket))
            .fold(Bucket::default(), |sum, (_, bucket)| Bucket {
                ops: sum.ops.saturating_add(bucket.ops),
                total: sum.total + bucket.total,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_powers_of_two_at_resolution_one() {
        let one = Resolution::default();
        let cases = [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 1),
            (4, 2),
            (1023, 9),
            (1024, 10),
            (u64::MAX, 63),
        ];
        for (latency, bucket) in cases {
            assert_eq!(one.bucket(Ticks(latency)), bucket, "latency {latency}");
        }
        assert_eq!(one.bounds(10), Some((Ticks(1024), Ticks(2047))));
        assert_eq!(one.bounds(0), Some((Ticks(0), Ticks(1))));
        assert_eq!(one.bounds(63), Some((Ticks(1 << 63), Ticks(u64::MAX))));
        assert_eq!(one.bounds(64), None);
    }

    #[test]
    fn a_finer_resolution_divides_each_doubling() {
        let two = Resolution::new(2).unwrap();
        assert_eq!(two.bucket(Ticks(1024)), 20);
        assert_eq!(two.bucket(Ticks(1448)), 20);
        assert_eq!(two.bucket(Ticks(1449)), 21);
        assert_eq!(two.bounds(20), Some((Ticks(1024), Ticks(1448))));
        // Between 1 and 2 ticks there is nothing.
        assert_eq!(two.bounds(1), None);
        assert_eq!(Resolution::new(0), None);
        assert_eq!(Resolution::new(17), None);
    }

    #[test]
    fn percentiles_are_as_exact_as_the_buckets() {
        let mut profile = Profile::new(Resolution::FINE);
        assert_eq!(profile.percentile(0.5), None);
        for latency in 1..=10_000_u64 {
            profile.add(Ticks(latency));
        }
        for (part, exact) in [
            (0.5, 5_000.0),
            (0.9, 9_000.0),
            (0.99, 9_900.0),
            (0.001, 10.0),
        ] {
            let found = profile.percentile(part).unwrap().0 as f64;
            assert!((found / exact - 1.0).abs() < 0.1, "{part}: {found}");
        }
        assert!(profile.percentile(0.0) < profile.percentile(1.0));
    }

    #[test]
    fn the_checksum_covers_merging_and_ranges() {
        let mut a = Profile::new(Resolution::default());
        for latency in [0, 5, 6, 1000] {
            a.add(Ticks(latency));
        }
        let mut b = Profile::new(Resolution::default());
        b.add(Ticks(7));
        a.merge(&b).unwrap();
        assert_eq!((a.count(), a.total()), (5, Ticks(1018)));
        assert_eq!(a.range(2, 9).ops, 4);
        assert_eq!(a.verify(), Ok(()));
        a.count += 1;
        assert!(a.verify().is_err());
        let finer = Profile::new(Resolution::new(2).unwrap());
        assert_eq!(a.merge(&finer), Err(ProfileError::Resolution(1, 2)));
    }

    proptest! {
        #[test]
        fn every_latency_lies_within_its_bucket(latency: u64, shift in 0_u32..64, r in 1..=Resolution::MAX) {
            let latency = latency >> shift;
            let resolution = Resolution::new(r).unwrap();
            let bucket = resolution.bucket(Ticks(latency));
            let (first, last) = resolution.bounds(bucket).unwrap();
            prop_assert!(first.0 <= latency && latency <= last.0);
            prop_assert_eq!(resolution.bucket(first), bucket);
            prop_assert_eq!(resolution.bucket(last), bucket);
        }
    }
}
