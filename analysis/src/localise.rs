//! Where in the function at a path's end the time goes: places at which its threads were seen, in ops of the peak and
//! in the calls on the path only.
//!
//! DARC (SIGMETRICS 2008, section 3.3) narrows a root cause down to a basic block by instrumenting blocks. Here blocks are
//! told by samples of where a thread was: what costs nothing in a block also disturbs none. A sample counts when it fell
//! into the longest call of the fnode in an op of the peak, which is what the decision was made from.

use std::collections::{BTreeMap, HashMap, VecDeque};

use darc_record::{FnodeId, Op, Tsc};

/// Samples that are kept for each thread until the ops that they fell into are known.
const KEPT: usize = 1 << 14;
/// Calls that wait for their samples.
const MOST_HELD: usize = 1 << 16;

/// A place in the program, as the session numbers them.
pub type Spot = u64;

/// The end of a root-cause path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The peak.
    pub peak: u32,
    /// The fnode.
    pub fnode: FnodeId,
}

/// Samples and calls on their way to one another.
#[derive(Debug)]
pub struct Narrowing {
    ends: Vec<End>,
    found: Vec<BTreeMap<Spot, u64>>,
    /// In order of time.
    samples: HashMap<i32, VecDeque<(Tsc, Spot)>>,
    /// Calls whose samples may be yet to come: the end, the thread, from when, until when.
    held: VecDeque<(usize, i32, Tsc, Tsc)>,
}

impl Narrowing {
    /// For these ends.
    #[must_use]
    pub fn new(ends: Vec<End>) -> Narrowing {
        Narrowing {
            found: vec![BTreeMap::new(); ends.len()],
            ends,
            samples: HashMap::new(),
            held: VecDeque::new(),
        }
    }

    /// The ends.
    #[must_use]
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// A thread was seen somewhere. Of one thread they come in order.
    pub fn sample(&mut self, tid: i32, at: Tsc, spot: Spot) {
        let samples = self.samples.entry(tid).or_default();
        if samples.len() >= KEPT {
            samples.pop_front();
        }
        samples.push_back((at, spot));
    }

    /// An op of a peak.
    pub fn op(&mut self, op: &Op, peak: u32) {
        for (index, end) in self.ends.iter().enumerate() {
            if end.peak != peak || self.held.len() >= MOST_HELD {
                continue;
            }
            let window = match end.fnode {
                FnodeId::ROOT => Some((op.start, op.end)),
                fnode => op
                    .touched
                    .iter()
                    .find(|touched| touched.fnode == fnode)
                    .map(|it| (it.max_start, Tsc(it.max_start.0.saturating_add(it.max.0)))),
            };
            if let Some((from, to)) = window {
                self.held.push_back((index, op.tid, from, to));
            }
        }
    }

    /// All samples until then have come.
    pub fn settle(&mut self, complete: Tsc) {
        let waiting = self.held.len();
        for _ in 0..waiting {
            let Some((index, tid, from, to)) = self.held.pop_front() else {
                break;
            };
            if to > complete {
                self.held.push_back((index, tid, from, to));
                continue;
            }
            let Some(samples) = self.samples.get(&tid) else {
                continue;
            };
            let first = samples.partition_point(|&(at, _)| at < from);
            for &(_, spot) in samples.range(first..).take_while(|(at, _)| *at < to) {
                *self.found[index].entry(spot).or_default() += 1;
            }
        }
    }

    /// Where the threads were at an end, and how often.
    #[must_use]
    pub fn found(&self, end: usize) -> &BTreeMap<Spot, u64> {
        &self.found[end]
    }

    /// The samples of the end that has fewest.
    #[must_use]
    pub fn fewest(&self) -> u64 {
        let sums = self.found.iter().map(|found| found.values().sum());
        sums.min().unwrap_or(0)
    }
}

/// The blocks of a function and the loops that they are in.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Structure {
    /// By block: the innermost loop around it.
    pub innermost: Vec<Option<usize>>,
    /// By loop: the smallest loop around it.
    pub parents: Vec<Option<usize>>,
}

/// A part of a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// A loop.
    Loop(usize),
    /// A block.
    Block(usize),
}

impl Structure {
    /// From the function down to the block: each part that most of the samples are in, with their number. `samples` are by
    /// block. It ends where no part has more than half of all.
    #[must_use]
    pub fn descend(&self, samples: &BTreeMap<usize, u64>) -> Vec<(Part, u64)> {
        let all: u64 = samples.values().sum();
        let mut steps: Vec<(Part, u64)> = Vec::new();
        let mut around = None;
        loop {
            let mut parts: BTreeMap<Part, u64> = BTreeMap::new();
            for (&block, &count) in samples {
                if let Some(part) = self.below(around, block) {
                    *parts.entry(part).or_default() += count;
                }
            }
            let largest = parts.into_iter().max_by_key(|&(_, count)| count);
            let Some((part, count)) = largest.filter(|&(_, count)| count * 2 > all) else {
                return steps;
            };
            steps.push((part, count));
            match part {
                Part::Loop(inner) if steps.len() <= self.parents.len() => around = Some(inner),
                _ => return steps,
            }
        }
    }

    /// The part right below a loop (or the function) that a block is in, if it is in that loop at all.
    fn below(&self, around: Option<usize>, block: usize) -> Option<Part> {
        let mut part = Part::Block(block);
        let mut outer = *self.innermost.get(block)?;
        // Loops are nested no deeper than there are loops.
        for _ in 0..=self.parents.len() {
            if outer == around {
                return Some(part);
            }
            let inner = outer?;
            part = Part::Loop(inner);
            outer = *self.parents.get(inner)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use darc_record::{Arguments, Ticks, Touched};

    use super::*;

    fn op(tid: i32, start: u64, end: u64, touched: Vec<Touched>) -> Op {
        Op {
            tid,
            start: Tsc(start),
            end: Tsc(end),
            latency: Ticks(end - start),
            arguments: Arguments::default(),
            touched,
        }
    }

    #[test]
    fn only_samples_in_the_longest_call_of_ops_of_the_peak_count() {
        let root = End {
            peak: 1,
            fnode: FnodeId::ROOT,
        };
        let below = End {
            peak: 2,
            fnode: FnodeId(5),
        };
        let mut narrowing = Narrowing::new(vec![root, below]);
        for at in [100, 150, 250, 310, 350, 390] {
            narrowing.sample(7, Tsc(at), at);
        }
        narrowing.sample(8, Tsc(120), 1);
        narrowing.op(&op(7, 90, 200, Vec::new()), 1);
        let touched = Touched {
            fnode: FnodeId(5),
            max: Ticks(60),
            max_start: Tsc(300),
            long: Ticks(0),
            sum: Ticks(80),
            count: 3,
        };
        narrowing.op(&op(7, 240, 400, vec![touched]), 2);
        narrowing.op(&op(7, 500, 600, Vec::new()), 3);
        narrowing.settle(Tsc(200));
        assert_eq!(narrowing.found(0), &BTreeMap::from([(100, 1), (150, 1)]));
        assert!(narrowing.found(1).is_empty());
        narrowing.settle(Tsc(1000));
        assert_eq!(narrowing.found(1), &BTreeMap::from([(310, 1), (350, 1)]));
        assert_eq!(narrowing.fewest(), 2);
    }

    /// Blocks 0 (none), 1 (loop 0), 2 and 3 (loop 1 in loop 0), 4 (loop 2).
    fn nested() -> Structure {
        Structure {
            innermost: vec![None, Some(0), Some(1), Some(1), Some(2)],
            parents: vec![None, Some(0), None],
        }
    }

    #[test]
    fn loops_are_entered_while_one_has_more_than_half() {
        let steps = |counts: [u64; 5]| {
            let samples = counts.into_iter().enumerate().collect();
            nested().descend(&samples)
        };
        let (outer, inner) = (Part::Loop(0), Part::Loop(1));
        assert_eq!(
            steps([1, 2, 3, 90, 4]),
            [(outer, 95), (inner, 93), (Part::Block(3), 90)]
        );
        assert_eq!(steps([10, 10, 30, 30, 20]), [(outer, 70), (inner, 60)]);
        assert_eq!(steps([50, 0, 0, 0, 50]), []);
        assert_eq!(steps([90, 0, 0, 0, 5]), [(Part::Block(0), 90)]);
        assert_eq!(steps([0; 5]), []);
    }
}
