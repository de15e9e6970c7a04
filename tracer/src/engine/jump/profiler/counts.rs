//! Reads what the stubs counted. The target can write anything there: numbers may be nonsense, but none of
//! them is an address or a length.

use darc_record::{Ticks, Tsc};

use super::super::layout::{bucket_start, counts};
use super::super::ring::Rings;

/// A thread changes its counts while they are read: how often to try again.
const ATTEMPTS: u32 = 8;

/// What was counted of one function, by all threads together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Calls that began.
    pub begun: u64,
    /// Calls that returned, as the stubs counted them beside the buckets.
    pub returned: u64,
    /// Calls that ended otherwise than by returning.
    pub abandoned: u64,
    /// Calls that began so deep in recursion that they were not followed.
    pub missed: u64,
    /// Calls in progress.
    pub active: u64,
    /// When these began, added up (wrapping).
    pub starts: u64,
    /// The longest call.
    pub max: Ticks,
    /// The buckets that are not empty, from short latencies to long ones.
    pub buckets: Vec<BucketCount>,
}

/// The calls of one bucket: eight an octave, exact below sixteen ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketCount {
    /// The shortest latency that belongs to it.
    pub from: Ticks,
    /// How many calls.
    pub calls: u64,
    /// Their latencies together.
    pub total: Ticks,
}

impl Counts {
    /// The calls in all buckets together: the same as those that returned, unless counts were lost.
    #[must_use]
    pub fn in_buckets(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, bucket| sum.wrapping_add(bucket.calls))
    }

    /// The latency of all calls that returned.
    #[must_use]
    pub fn total(&self) -> Ticks {
        self.buckets
            .iter()
            .fold(Ticks(0), |sum, bucket| sum + bucket.total)
    }

    /// The time that has been spent inside until `now`, by the calls in progress too. Its growth between two
    /// moments, divided by the time between them, is the concurrency: the time-weighted mean number of calls
    /// in progress.
    #[must_use]
    pub fn busy(&self, now: Tsc) -> Ticks {
        let open = self.active.wrapping_mul(now.0).wrapping_sub(self.starts);
        // A call that was just being counted makes nonsense of the two.
        let sane = open <= self.active.saturating_mul(now.0);
        self.total() + Ticks(if sane { open } else { 0 })
    }

    fn merge(&mut self, other: &Counts) {
        self.begun = self.begun.wrapping_add(other.begun);
        self.returned = self.returned.wrapping_add(other.returned);
        self.abandoned = self.abandoned.wrapping_add(other.abandoned);
        self.missed = self.missed.wrapping_add(other.missed);
        self.active = self.active.wrapping_add(other.active);
        self.starts = self.starts.wrapping_add(other.starts);
        self.max = self.max.max(other.max);
        for bucket in &other.buckets {
            match self.buckets.binary_search_by_key(&bucket.from, |b| b.from) {
                Ok(at) => {
                    let known = &mut self.buckets[at];
                    known.calls = known.calls.wrapping_add(bucket.calls);
                    known.total = known.total + bucket.total;
                }
                Err(at) => self.buckets.insert(at, *bucket),
            }
        }
    }
}

/// Reads the counts of the first `used` threads' memory, merged, by slot.
pub fn read(rings: &Rings, used: usize, slots: u32) -> Vec<(u32, Counts)> {
    let mut found: Vec<(u32, Counts)> = Vec::new();
    for slot in 0..slots {
        let mut merged = Counts::default();
        for thread in 0..used.min(rings.count()) {
            if let Some(counts) = thread_counts(rings, thread, slot, slots) {
                merged.merge(&counts);
            }
        }
        if merged.begun > 0 {
            found.push((slot, merged));
        }
    }
    found
}

/// One thread's counts of one function; `None` when no call began, whose memory is better not touched.
fn thread_counts(rings: &Rings, thread: usize, slot: u32, slots: u32) -> Option<Counts> {
    let words = rings.words();
    let base = thread * rings.stride();
    let begun = || words.load(base + counts::BEGUN as usize + slot as usize * 8);
    if begun() == 0 {
        return None;
    }
    let at = base + counts::slot(slot, slots) as usize;
    let word = |offset: u64| words.load(at + offset as usize);
    // Of the words that belong together first those that change first.
    let progress = || {
        let read = || {
            [
                begun(),
                word(counts::RETURNED),
                word(counts::ABANDONED),
                word(counts::MISSED),
                word(counts::STARTS),
            ]
        };
        let mut before = read();
        for _ in 0..ATTEMPTS {
            let again = read();
            if again == before {
                break;
            }
            before = again;
        }
        before
    };
    let mut buckets = Vec::new();
    for _ in 0..ATTEMPTS {
        let before = word(counts::RETURNED);
        buckets = (0..counts::BUCKET_COUNT)
            .map(|bucket| (bucket, counts::BUCKETS + bucket * 16))
            .map(|(bucket, offset)| BucketCount {
                from: Ticks(bucket_start(bucket)),
                calls: word(offset),
                total: Ticks(word(offset + 8)),
            })
            .filter(|bucket| bucket.calls > 0)
            .collect();
        if word(counts::RETURNED) == before {
            break;
        }
    }
    let [begun, returned, abandoned, missed, starts] = progress();
    let ended = returned.wrapping_add(abandoned).wrapping_add(missed);
    let active = begun.wrapping_sub(ended);
    // Nonsense between the two changes of a call that begins or ends.
    let (active, starts) = match active > i64::MAX as u64 {
        true => (0, 0),
        false => (active, starts),
    };
    Some(Counts {
        begun,
        returned,
        abandoned,
        missed,
        active,
        starts,
        max: Ticks(word(counts::MAX)),
        buckets,
    })
}
