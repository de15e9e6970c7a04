//! What a watched function did from one moment to the next.

use std::collections::VecDeque;

use darc_analysis::{Ticks, Tsc};
use darc_tracer::engine::jump::{BucketCount, Counts};

/// So many samples are kept: some minutes.
const KEPT: usize = 600;

/// What happened between two moments.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// How long it was.
    pub passed: Ticks,
    /// Calls that began.
    pub calls: u64,
    /// The mean number of calls in progress, weighted by time.
    pub concurrency: f64,
    /// Latencies that half, nine tenths and ninety-nine hundredths of the calls that returned did not exceed;
    /// none when no call returned.
    pub percentiles: Option<[Ticks; 3]>,
}

/// The last samples of a function.
#[derive(Default, Debug)]
pub struct History {
    /// From the oldest to the newest.
    pub samples: VecDeque<Sample>,
    before: Option<Before>,
}

/// What had been counted at the last look.
#[derive(Debug)]
struct Before {
    at: Tsc,
    counts: Counts,
    busy: Ticks,
}

impl History {
    /// Takes what has been counted so far. What was counted before the first look belongs to nobody.
    pub fn take(&mut self, counts: &Counts, now: Tsc) {
        let busy = counts.busy(now);
        if let Some(before) = &self.before {
            let inside = busy.saturating_sub(before.busy);
            let passed = now - before.at;
            self.samples.push_back(Sample {
                passed,
                calls: counts.begun.saturating_sub(before.counts.begun),
                concurrency: inside.0 as f64 / passed.0.max(1) as f64,
                percentiles: percentiles(&since(&counts.buckets, &before.counts.buckets)),
            });
            if self.samples.len() > KEPT {
                self.samples.pop_front();
            }
        }
        let counts = counts.clone();
        self.before = Some(Before {
            at: now,
            counts,
            busy,
        });
    }

    /// Whether there was a look at it.
    pub fn has_begun(&self) -> bool {
        self.before.is_some()
    }
}

/// The calls that are not among the earlier ones.
fn since(now: &[BucketCount], before: &[BucketCount]) -> Vec<BucketCount> {
    let new = now.iter().filter_map(|bucket| {
        let old = before.iter().find(|old| old.from == bucket.from);
        let (calls, total) = old.map_or((0, Ticks(0)), |old| (old.calls, old.total));
        let calls = bucket.calls.saturating_sub(calls);
        (calls > 0).then(|| BucketCount {
            from: bucket.from,
            calls,
            total: bucket.total.saturating_sub(total),
        })
    });
    new.collect()
}

/// The mean latency of the buckets that the percentiles lie in.
fn percentiles(buckets: &[BucketCount]) -> Option<[Ticks; 3]> {
    let all: u64 = buckets.iter().map(|bucket| bucket.calls).sum();
    let at = |share: f64| {
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        buckets
            .iter()
            .find(|bucket| {
                seen += bucket.calls;
                seen >= wanted
            })
            .map(|bucket| Ticks(bucket.total.0 / bucket.calls.max(1)))
    };
    Some([at(0.5)?, at(0.9)?, at(0.99)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(from: u64, calls: u64) -> BucketCount {
        BucketCount {
            from: Ticks(from),
            calls,
            total: Ticks(from * calls),
        }
    }

    #[test]
    fn a_sample_is_what_is_new() {
        let mut history = History::default();
        let mut counts = Counts {
            begun: 100,
            buckets: vec![bucket(16, 100)],
            ..Counts::default()
        };
        assert!(!history.has_begun());
        history.take(&counts, Tsc(1000));
        assert!(history.has_begun() && history.samples.is_empty());
        counts.begun = 120;
        counts.buckets = vec![bucket(16, 118), bucket(128, 2)];
        history.take(&counts, Tsc(2000));
        let sample = history.samples[0];
        assert_eq!(sample.calls, 20);
        assert_eq!(sample.percentiles, Some([Ticks(16), Ticks(16), Ticks(128)]));
        // 18 · 16 + 2 · 128 cycles inside of 1000.
        assert!((sample.concurrency - 0.544).abs() < 1e-9);
        history.take(&counts, Tsc(3000));
        assert_eq!(
            (history.samples[1].calls, history.samples[1].percentiles),
            (0, None)
        );
    }
}
