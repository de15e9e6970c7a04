//! Reads what the stubs wrote to the rings. The target can write anything there, so every number is
//! checked before it is used.

use crate::engine::Counters;
use crate::sys::SharedWords;
use darc_record::Arguments;

use super::layout::{FNODES, block, header, node, record, ring};

/// What one fnode did in an op, by the fnode's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Index of the fnode.
    pub index: u32,
    /// Number of calls.
    pub count: u64,
    /// All latencies.
    pub sum: u64,
    /// The largest.
    pub max: u64,
    /// When that began.
    pub max_start: u64,
    /// The latencies of long calls.
    pub long: u64,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// An op.
    Op {
        /// The thread.
        tid: i32,
        /// Entry of f0.
        start: u64,
        /// Return of f0.
        end: u64,
        /// Without what the stubs took.
        latency: u64,
        /// Generation of the plan when it began and ended.
        generations: (u32, u32),
        /// Whether something of it was not seen.
        tainted: bool,
        /// What it was called with.
        arguments: Arguments,
        /// Address of the descriptor of its ftree's root.
        root: u64,
        /// What its fnodes did.
        items: Vec<Item>,
    },
    /// A request was handed over.
    Enqueued {
        /// The thread.
        tid: i32,
        /// When.
        at: u64,
        /// Address of the descriptor that was current.
        fnode: u64,
        /// What the function was called with.
        arguments: Arguments,
    },
    /// A goroutine did not run for a while.
    Absence {
        /// The goroutine, as in its ops.
        tid: i32,
        /// When it stopped,
        left: u64,
        /// could go on,
        ready: u64,
        /// and did.
        back: u64,
        /// On which thread it did, zero where that is not known.
        thread: i32,
        /// Return addresses on the stack of who let it go on, the innermost first.
        waker: Vec<u64>,
    },
    /// A callee seen first at an indirect site.
    Target {
        /// Address of the fnode's descriptor.
        parent: u64,
        /// Address of the site's place.
        place: u64,
        /// The callee.
        callee: u64,
        /// Where the answer goes.
        answer: u64,
    },
}

/// What has been delivered of a histogram.
#[derive(Clone, Default, Debug)]
struct Seen {
    /// Ops.
    counted: u64,
    /// The number and the sum of each bucket.
    buckets: Vec<(u64, u64)>,
}

/// The rings of all threads, as the tracer sees them.
#[derive(Debug)]
pub struct Rings {
    words: SharedWords,
    count: usize,
    /// Bytes from one to the next.
    stride: usize,
    /// For each ring what has been delivered already.
    seen: Vec<Seen>,
    tails: Vec<u64>,
}

impl Rings {
    /// Takes charge of `count` rings, each in `stride` bytes of its own.
    #[must_use]
    pub fn new(words: SharedWords, count: usize, stride: u64) -> Rings {
        Rings {
            words,
            count,
            stride: stride as usize,
            seen: vec![Seen::default(); count],
            tails: vec![0; count],
        }
    }

    /// How many rings there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes from one to the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Tells others no longer that this tracer lives.
    pub fn end_presence(&mut self) {
        self.words.end_presence();
    }

    /// The memory itself.
    #[must_use]
    pub fn words(&self) -> &SharedWords {
        &self.words
    }

    /// Takes all records of one ring. A ring that makes no sense is emptied without reading on.
    pub fn drain(&mut self, index: usize, mut take: impl FnMut(Record)) {
        let base = index * self.stride;
        // Words are read from the tail on, and the head is the next tail.
        let head = self.words.load(base + ring::HEAD as usize) & !7;
        let mut tail = self.tails[index];
        let pending = head.wrapping_sub(tail);
        if pending == 0 {
            return;
        }
        if pending > ring::DATA_BYTES {
            tail = head;
        }
        while tail != head {
            let left = head.wrapping_sub(tail);
            match self.record(base, tail, left) {
                Some((len, found)) => {
                    if let Some(found) = found {
                        take(found);
                    }
                    tail = tail.wrapping_add(len);
                }
                None => tail = head,
            }
        }
        self.tails[index] = tail;
        self.words.store(base + ring::TAIL as usize, tail);
    }

    /// The record at `tail`, of which at most `left` bytes are written, and its length.
    fn record(&self, base: usize, tail: u64, left: u64) -> Option<(u64, Option<Record>)> {
        let offset = tail & (ring::DATA_BYTES - 1);
        let room = left.min(ring::DATA_BYTES - offset);
        let at = base + (ring::DATA + offset) as usize;
        let word = |offset: u64| self.words.load(at + offset as usize);
        let halves = |offset: u64| {
            let value = word(offset);
            (value as u32, (value >> 32) as u32)
        };
        let (len, kind) = halves(record::LEN);
        let len = u64::from(len);
        if len < 8 || len > room || !len.is_multiple_of(8) {
            return None;
        }
        if kind == record::PADDING {
            return Some((len, None));
        }
        if len < record::HEAD {
            return None;
        }
        let arguments = || Arguments {
            registers: std::array::from_fn(|index| word(record::ARGUMENTS + 8 * index as u64)),
            read: (halves(record::READ_WELL).0 == 1).then(|| word(record::READ)),
            field: halves(record::FIELD),
        };
        let found = match kind {
            record::OP => {
                let (items, tainted) = halves(record::ITEMS);
                if u64::from(items) * record::ITEM + record::HEAD != len {
                    return None;
                }
                let items = (0..u64::from(items))
                    .map(|index| item(&word, record::HEAD + index * record::ITEM))
                    .collect::<Option<Vec<_>>>()?;
                Record::Op {
                    tid: halves(record::TID).0 as i32,
                    start: word(record::START),
                    end: word(record::END),
                    latency: word(record::LATENCY),
                    generations: halves(record::BEGAN),
                    tainted: tainted != 0,
                    arguments: arguments(),
                    root: word(record::FNODE),
                    items,
                }
            }
            record::ENQUEUED => Record::Enqueued {
                tid: halves(record::TID).0 as i32,
                at: word(record::START),
                fnode: word(record::FNODE),
                arguments: arguments(),
            },
            record::ABSENCE => Record::Absence {
                tid: halves(record::TID).0 as i32,
                left: word(record::START),
                ready: word(record::READY),
                back: word(record::END),
                thread: halves(record::THREAD).0 as i32,
                waker: (0..record::WAKER_WORDS)
                    .map(|index| word(record::WAKER + 8 * index))
                    .take_while(|&addr| addr != 0)
                    .collect(),
            },
            record::TARGET => Record::Target {
                parent: word(record::PARENT),
                place: word(record::PLACE),
                callee: word(record::CALLEE),
                answer: word(record::ANSWER),
            },
            _ => return None,
        };
        Some((len, Some(found)))
    }

    /// Allows `budget` more records of each of the first `ranges` latency ranges.
    pub fn refill(&self, index: usize, ranges: usize, budget: u64) {
        let base = index * self.stride + ring::BUDGETS as usize;
        for at in (base..).step_by(8).take(ranges.min(header::FILTERS)) {
            if self.words.load(at) != budget {
                self.words.store(at, budget);
            }
        }
        let spent = index * self.stride + ring::SPENT as usize;
        if self.words.load(spent) != 0 {
            self.words.store(spent, 0);
        }
    }

    /// Whether no more records of a latency range may be written.
    #[must_use]
    pub fn is_used_up(&self, index: usize, range: usize) -> bool {
        self.words
            .load(index * self.stride + ring::BUDGETS as usize + 8 * range)
            == 0
    }

    /// Has the calls of the ops that begin from now on pass unmeasured. One that is under way is recorded yet.
    pub fn rest(&self, index: usize) {
        let spent = index * self.stride + ring::SPENT as usize;
        if self.words.load(spent) == 0 {
            self.words.store(spent, 1);
        }
    }

    /// Whether the calls of ops that begin now pass unmeasured.
    #[must_use]
    pub fn is_spent(&self, index: usize) -> bool {
        self.words.load(index * self.stride + ring::SPENT as usize) != 0
    }

    /// The thread that has a block.
    #[must_use]
    pub fn owner(&self, index: usize) -> Option<i32> {
        let state = self.words.load(index * self.stride + ring::STATE as usize);
        // One is a block that a thread is just taking.
        i32::try_from(state).ok().filter(|&tid| tid > 1)
    }

    /// Takes a block from a thread that has ended; false when another took it over.
    pub fn reclaim(&self, index: usize, tid: i32) -> bool {
        let at = index * self.stride + ring::STATE as usize;
        self.words.exchange(at, tid as u32 as u64, ring::RECLAIMED)
    }

    /// Lets other threads take a reclaimed block.
    pub fn free(&self, index: usize) {
        let at = index * self.stride + ring::STATE as usize;
        self.words.exchange(at, ring::RECLAIMED, ring::FREE);
        self.words.increment(ring::FREE_BLOCKS as usize);
    }

    /// How many blocks are free that threads have had.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.words.load(ring::FREE_BLOCKS as usize)
    }

    /// Adds what the threads counted that is no op of the profile, or not written in full.
    pub fn add_to(&self, counters: &mut Counters) {
        let sum = |field: u64| {
            let at = |index| index * self.stride + field as usize;
            let words = (0..self.count).map(|index| self.words.load(at(index)));
            words.fold(0, u64::wrapping_add)
        };
        counters.unregistered = counters
            .unregistered
            .saturating_add(self.words.load(ring::UNREGISTERED as usize));
        counters.sampled = counters.sampled.saturating_add(sum(ring::SAMPLED));
        counters.dropped = counters.dropped.saturating_add(sum(ring::DROPPED));
        counters.untold_absences = counters.untold_absences.saturating_add(sum(ring::UNTOLD));
        counters.switched_stacks = counters.switched_stacks.saturating_add(sum(ring::SWITCHED));
        counters.ended_otherwise = counters
            .ended_otherwise
            .saturating_add(sum(ring::ENDED_OTHERWISE));
    }

    /// Takes the ops that were only counted since the last time: (bucket, number, sum).
    pub fn drain_histogram(&mut self, index: usize, mut take: impl FnMut(u64, u64, u64)) {
        let base = index * self.stride;
        let counted = self.words.load(base + ring::COUNTED as usize);
        let seen = &mut self.seen[index];
        if seen.counted == counted {
            return;
        }
        seen.counted = counted;
        seen.buckets.resize(ring::BUCKETS as usize, (0, 0));
        for (bucket, (ops, total)) in seen.buckets.iter_mut().enumerate() {
            let at = base + ring::HISTOGRAM as usize + bucket * 16;
            let now = self.words.load(at);
            let new = now.wrapping_sub(*ops);
            if new == 0 {
                continue;
            }
            // The sum may lag behind by the op that is being counted; the next time makes up for it.
            let sum = self.words.load(at + 8);
            take(bucket as u64, new, sum.wrapping_sub(*total));
            (*ops, *total) = (now, sum);
        }
    }
}

fn item(word: &impl Fn(u64) -> u64, at: u64) -> Option<Item> {
    let node_and_long = word(at + record::ITEM_NODE);
    let offset = (node_and_long & u64::from(u32::MAX)).checked_sub(block::NODES)?;
    let index = offset / node::SIZE;
    if !offset.is_multiple_of(node::SIZE) || index >= FNODES {
        return None;
    }
    let value = |index: u64| word(at + record::ITEM_VALUES + 8 * index);
    Some(Item {
        index: index as u32,
        count: value(0),
        sum: value(1),
        max: value(2),
        max_start: value(3),
        long: node_and_long >> 32 << record::ITEM_LONG_BITS,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rings() -> (SharedWords, Rings) {
        let fd =
            nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(ring::SIZE).unwrap();
        let map = || SharedWords::map(&file, ring::SIZE as usize).unwrap();
        (map(), Rings::new(map(), 1, ring::SIZE))
    }

    fn drained(rings: &mut Rings) -> Vec<Record> {
        let mut records = Vec::new();
        rings.drain(0, |record| records.push(record));
        records
    }

    #[test]
    fn an_op_is_read_with_its_items() {
        let (target, mut rings) = rings();
        let data = ring::DATA as usize;
        let words: [u64; 22] = [
            176 | u64::from(record::OP) << 32,
            100,
            300,
            190,
            3 | 4 << 32,
            1,
            77,
            11,
            12,
            13,
            14,
            15,
            16,
            17,
            1,
            4096,
            3 | 5 << 32,
            (block::NODES + 2 * node::SIZE) | 3 << 32,
            5,
            50,
            20,
            110,
        ];
        for (index, word) in words.into_iter().enumerate() {
            target.store(data + 8 * index, word);
        }
        target.store(ring::HEAD as usize, 176);
        let item = Item {
            index: 2,
            count: 5,
            sum: 50,
            max: 20,
            max_start: 110,
            long: 3 << record::ITEM_LONG_BITS,
        };
        let op = Record::Op {
            tid: 77,
            start: 100,
            end: 300,
            latency: 190,
            generations: (3, 4),
            tainted: false,
            arguments: Arguments {
                registers: [11, 12, 13, 14, 15, 16],
                read: Some(17),
                field: (3, 5),
            },
            root: 4096,
            items: vec![item],
        };
        assert_eq!(drained(&mut rings), [op]);
        assert_eq!(target.load(ring::TAIL as usize), 176);
        assert!(drained(&mut rings).is_empty());
    }

    #[test]
    fn a_histogram_is_delivered_once() {
        let (target, mut rings) = rings();
        let at = ring::HISTOGRAM as usize + 16 * 20;
        target.store(at, 3);
        target.store(at + 8, 70);
        target.store(ring::COUNTED as usize, 3);
        let mut found = Vec::new();
        rings.drain_histogram(0, |bucket, ops, sum| found.push((bucket, ops, sum)));
        rings.drain_histogram(0, |bucket, ops, sum| found.push((bucket, ops, sum)));
        assert_eq!(found, [(20, 3, 70)]);
    }

    proptest! {
        #[test]
        fn nonsense_is_survived(
            heads in prop::collection::vec(prop_oneof![any::<u64>(), 0..2 * ring::DATA_BYTES, 0..64_u64], 2..8),
            words in prop::collection::vec(any::<u64>(), 1..64),
            len in 0_u64..512,
        ) {
            let (target, mut rings) = rings();
            for (index, word) in words.iter().enumerate() {
                target.store(ring::DATA as usize + 8 * index, *word);
            }
            target.store(ring::DATA as usize, len | (words[0] & 3) << 32);
            for head in heads {
                target.store(ring::HEAD as usize, head);
                drained(&mut rings);
            }
        }
    }
}
