//! Samples that fall into ops of f0, told apart by the op's latency. Pure.
//!
//! Samples come from the kernel, ops from the probes, each a little late and both on the cycle counter's time line once
//! the samples' times are converted. A sample belongs to the op of its own thread that was in progress when it was taken.

use std::collections::{HashMap, VecDeque};

use darc_record::{Ticks, Tsc};
use darc_tracer::perf::clock::Clock;

use super::counts::Spot;
use super::processes::InstanceId;

/// An op: where it was on the time line, and how long it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The thread.
    pub tid: i32,
    /// When f0 was entered.
    pub start: Tsc,
    /// When it returned.
    pub end: Tsc,
    /// The bucket of its latency.
    pub bucket: u32,
}

/// Different stacks that are kept.
const MOST_STACKS: usize = 100_000;
/// Samples of one thread that wait for an op to be known.
const MOST_WAITING: usize = 1 << 16;

/// A sample whose op is not known yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    nanos: u64,
    stack: usize,
    kept: Kept,
}

/// How much of a stack is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Whole,
    /// The innermost instruction: there were too many different stacks.
    Innermost,
}

/// What was sampled in ops of one bucket.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Samples.
    pub samples: u64,
    /// Those so close to the beginning or end of their op that the clocks' error may have moved them.
    pub at_edges: u64,
    /// Those whose stack was cut to its innermost instruction.
    pub cut: u64,
}

/// Samples and the ops that they fall into.
#[derive(Debug, Default)]
pub struct DuringOps {
    numbers: HashMap<(InstanceId, Box<[Spot]>), usize>,
    stacks: Vec<(InstanceId, Box<[Spot]>)>,
    waiting: HashMap<i32, VecDeque<Waiting>>,
    windows: VecDeque<Window>,
    inside: HashMap<(u32, usize), u64>,
    tallies: HashMap<u32, Tally>,
    outside: u64,
    ops: u64,
}

impl DuringOps {
    /// Takes a sample: its thread, its time on the clock of the samples, its stack with the innermost instruction first.
    pub fn sample(&mut self, tid: i32, nanos: u64, instance: InstanceId, stack: &[Spot]) {
        let Some((stack, kept)) = self.number(instance, stack) else {
            self.outside += 1;
            return;
        };
        let waiting = self.waiting.entry(tid).or_default();
        if waiting.len() >= MOST_WAITING {
            waiting.pop_front();
            self.outside += 1;
        }
        waiting.push_back(Waiting { nanos, stack, kept });
    }

    fn number(&mut self, instance: InstanceId, stack: &[Spot]) -> Option<(usize, Kept)> {
        let mut key = (instance, Box::from(stack));
        let mut kept = Kept::Whole;
        if let Some(&known) = self.numbers.get(&key) {
            return Some((known, kept));
        }
        if self.stacks.len() >= MOST_STACKS && stack.len() != 1 {
            // The innermost instruction matters most.
            key.1 = Box::from(stack.get(..1)?);
            kept = Kept::Innermost;
            if let Some(&known) = self.numbers.get(&key) {
                return Some((known, kept));
            }
        }
        self.stacks.push(key.clone());
        self.numbers.insert(key, self.stacks.len() - 1);
        Some((self.stacks.len() - 1, kept))
    }

    /// Takes an op. Those of one thread come in the order in which they were.
    pub fn op(&mut self, window: Window) {
        self.ops += 1;
        self.windows.push_back(window);
    }

    /// Brings ops and samples together, as far as all samples until `complete` are known.
    pub fn settle(&mut self, clock: &Clock, complete: u64) {
        let (until, error) = (clock.tsc(complete), clock.error());
        let mut later = VecDeque::new();
        for window in std::mem::take(&mut self.windows) {
            match window.end < until || complete == u64::MAX {
                true => self.assign(window, clock, error),
                false => later.push_back(window),
            }
        }
        self.windows = later;
    }

    fn assign(&mut self, window: Window, clock: &Clock, error: Ticks) {
        let Some(waiting) = self.waiting.get_mut(&window.tid) else {
            return;
        };
        // Ops of a thread do not overlap: what was before this one was in none.
        while let Some(first) = waiting.front().copied() {
            let at = clock.tsc(first.nanos);
            if at > window.end {
                break;
            }
            waiting.pop_front();
            if at < window.start {
                self.outside += 1;
                continue;
            }
            *self.inside.entry((window.bucket, first.stack)).or_default() += 1;
            let tally = self.tallies.entry(window.bucket).or_default();
            tally.samples += 1;
            if (at - window.start).min(window.end - at) < error {
                tally.at_edges += 1;
            }
            if first.kept == Kept::Innermost {
                tally.cut += 1;
            }
        }
    }

    /// Samples that fell into ops with a latency of these buckets.
    #[must_use]
    pub fn tally(&self, holds: impl Fn(u32) -> bool) -> Tally {
        let chosen = self.tallies.iter().filter(|(bucket, _)| holds(**bucket));
        chosen.fold(Tally::default(), |sum, (_, tally)| Tally {
            samples: sum.samples + tally.samples,
            at_edges: sum.at_edges + tally.at_edges,
            cut: sum.cut + tally.cut,
        })
    }

    /// Ops that were taken.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// Samples in no op that was seen, those that still wait for one among them.
    #[must_use]
    pub fn outside(&self) -> u64 {
        let waiting = self.waiting.values().map(|waiting| waiting.len() as u64);
        self.outside + waiting.sum::<u64>()
    }

    /// The stacks in ops with a latency of these buckets, each with its count.
    pub fn stacks(
        &self,
        holds: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (InstanceId, &[Spot], u64)> {
        self.inside
            .iter()
            .filter(move |((bucket, _), _)| holds(*bucket))
            .filter_map(|((_, stack), &count)| {
                let (instance, stack) = self.stacks.get(*stack)?;
                Some((*instance, stack.as_ref(), count))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recording::Recording;
    use super::*;
    use darc_tracer::perf::clock::Pair;

    /// Two cycles a nanosecond, from 1000 on; known to 10 cycles.
    fn clock() -> Clock {
        let pair = |tsc, nanos| Pair {
            tsc: Tsc(tsc),
            nanos,
            within: Ticks(10),
        };
        Clock::of(vec![pair(1000, 0), pair(3000, 1000)])
    }

    fn window(tid: i32, start: u64, end: u64, bucket: u32) -> Window {
        Window {
            tid,
            start: Tsc(start),
            end: Tsc(end),
            bucket,
        }
    }

    #[test]
    fn samples_fall_into_the_ops_of_their_own_thread() {
        let mut during = DuringOps::default();
        let stack = |at| [Spot::Nowhere(at)];
        // Before the op, in it, at its edge, in the next; another thread at the same time.
        for (tid, nanos, at) in [
            (1, 10, 1),
            (1, 100, 2),
            (1, 199, 3),
            (1, 300, 4),
            (2, 100, 5),
        ] {
            during.sample(tid, nanos, InstanceId(0), &stack(at));
        }
        during.op(window(1, 1100, 1400, 8));
        during.op(window(1, 1500, 1700, 20));
        // Samples are known until 220 ns: the first op can be told, the second not yet.
        during.settle(&clock(), 220);
        assert_eq!(during.tally(|_| true).samples, 2);
        during.settle(&clock(), u64::MAX);
        let of = |range: std::ops::RangeInclusive<u32>| {
            let mut found: Vec<_> = during
                .stacks(|bucket| range.contains(&bucket))
                .map(|(_, stack, count)| (stack[0], count))
                .collect();
            found.sort();
            found
        };
        assert_eq!(of(8..=8), [(Spot::Nowhere(2), 1), (Spot::Nowhere(3), 1)]);
        assert_eq!(of(9..=20), [(Spot::Nowhere(4), 1)]);
        assert_eq!(
            during.tally(|bucket| bucket == 8),
            Tally {
                samples: 2,
                at_edges: 1,
                cut: 0
            }
        );
        assert_eq!(
            during.outside(),
            2,
            "before the op, and of the other thread"
        );
    }

    #[test]
    fn stacks_that_were_cut_are_counted() {
        let mut during = DuringOps::default();
        for at in 0..MOST_STACKS as u64 {
            during.sample(1, at, InstanceId(0), &[Spot::Kernel(at), Spot::Kernel(0)]);
        }
        let nanos = MOST_STACKS as u64;
        // One too many, one that is known, one that has no callers anyway; the last is in no op.
        for stack in [&[9, 9][..], &[7, 0], &[5], &[9, 9]] {
            let stack: Vec<Spot> = stack.iter().map(|&at| Spot::Kernel(at)).collect();
            during.sample(2, nanos, InstanceId(0), &stack);
        }
        during.sample(3, nanos, InstanceId(0), &[Spot::Kernel(9), Spot::Kernel(9)]);
        during.op(window(2, 0, u64::MAX, 3));
        during.settle(&clock(), u64::MAX);
        let tally = during.tally(|bucket| bucket == 3);
        assert_eq!((tally.samples, tally.cut), (4, 2));
        let mut recording = Recording::default();
        recording.keep(&during, |bucket| bucket == 3);
        assert_eq!(recording.counts.cut(), 2);
    }

    #[test]
    fn what_waits_is_bounded_and_nothing_is_lost_from_the_sum() {
        let mut during = DuringOps::default();
        let all = MOST_WAITING as u64 + 5;
        for nanos in 0..all {
            during.sample(1, nanos, InstanceId(0), &[Spot::Kernel(1)]);
        }
        assert_eq!(during.outside(), all);
        during.op(window(1, 0, u64::MAX, 3));
        during.settle(&clock(), u64::MAX);
        assert_eq!(
            (during.outside(), during.tally(|_| true).samples),
            (5, MOST_WAITING as u64)
        );
    }
}
