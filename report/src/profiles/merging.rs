//! Fewer segments: neighbours become one.

use super::{ProfileSet, Segment, SegmentProfile};
use crate::model::BucketEntry;

impl ProfileSet {
    /// The same set with segments twice as long: of every two neighbours one is made. Calls, buckets and time inside are
    /// those of both together.
    #[must_use]
    pub fn with_half_the_segments(&self) -> ProfileSet {
        let pairs = self.segments.chunks(2);
        let segments: Vec<Segment> = pairs
            .map(|pair| Segment {
                start: pair[0].start,
                length: pair
                    .iter()
                    .fold(0, |sum, part| part.length.saturating_add(sum)),
            })
            .collect();
        let length = |segments: &[Segment], number: u64| {
            let segment = usize::try_from(number).ok().and_then(|at| segments.get(at));
            segment.map_or(0, |segment| segment.length)
        };
        let mut set = self.clone();
        for profile in &mut set.profiles {
            let mut merged: Vec<SegmentProfile> = Vec::new();
            for mut part in std::mem::take(&mut profile.segments) {
                let number = part.segment / 2;
                let share = length(&self.segments, part.segment) as f64
                    / length(&segments, number).max(1) as f64;
                part.concurrency *= share;
                part.segment = number;
                match merged.last_mut() {
                    Some(last) if last.segment == number => last.add(part),
                    _ => merged.push(part),
                }
            }
            profile.segments = merged;
        }
        set.segments = segments;
        set
    }
}

impl SegmentProfile {
    fn add(&mut self, other: SegmentProfile) {
        self.calls = self.calls.saturating_add(other.calls);
        self.concurrency += other.concurrency;
        for entry in other.buckets {
            match self
                .buckets
                .binary_search_by_key(&entry.bucket, |known| known.bucket)
            {
                Ok(at) => self.buckets[at].add(&entry),
                Err(at) => self.buckets.insert(at, entry),
            }
        }
    }
}

impl BucketEntry {
    fn add(&mut self, other: &BucketEntry) {
        self.ops = self.ops.saturating_add(other.ops);
        self.total = self.total.saturating_add(other.total);
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture;

    #[test]
    fn two_segments_are_one_with_the_calls_of_both() {
        let set = fixture::segments(1, 3, 2);
        let merged = set.with_half_the_segments();
        let starts: Vec<_> = merged
            .segments
            .iter()
            .map(|it| (it.start, it.length))
            .collect();
        assert_eq!(starts, [(0, 200), (200, 100)]);
        let [first, last] = &merged.profiles[0].segments[..] else {
            panic!("{merged:#?}");
        };
        assert_eq!((first.segment, first.calls, first.concurrency), (0, 4, 0.5));
        assert_eq!((last.segment, last.calls, last.concurrency), (1, 2, 0.5));
        let ops: Vec<_> = first.buckets.iter().map(|it| (it.bucket, it.ops)).collect();
        assert_eq!(ops, [(3, 2), (4, 2)]);
        // A segment without a call is left out, and counts as one in which nothing was in progress.
        let mut rare = fixture::segments(1, 2, 1);
        rare.profiles[0].segments.pop();
        let merged = rare.with_half_the_segments();
        assert_eq!(merged.profiles[0].segments[0].concurrency, 0.25);
    }
}
