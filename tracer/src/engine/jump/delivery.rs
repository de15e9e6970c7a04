//! From the rings to the sink: records become ops, new callees become questions.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use crate::addr::TargetAddr;
use crate::chosen::Chosen;
use crate::effort::Pace;
use crate::engine::{self, Absence, NewTarget, Served, Sink};
use crate::memory::Memory;
use crate::sys;
use darc_record::{Enqueued, FnodeId, Op, Ticks, Touched, Tsc};

use super::function::returns_strangely;
use super::installed::Installed;
use super::layout::{self, place, targets};
use super::owners::Whose;
use super::price::{self, While};
use super::ring::{Item, Record, Rings};
use super::space::Space;
use super::tree::{Place, Tree};
use super::{Jump, Sampling};

/// The account of a thread is read when an op of it has ended, and each time that records were read so many times.
const TURNS: usize = 16;
/// So many records are taken from the rings at once: what the target writes there takes memory here.
const MOST_RECORDS: usize = 1 << 20;

impl Jump {
    /// Delivers what the stubs have recorded since the last time.
    pub(super) fn drain(&mut self, sink: &mut dyn Sink) {
        let Some(space) = &mut self.space else { return };
        let used = space.installed.used_blocks(&self.memory);
        let Space {
            rings,
            tree,
            installed,
            patches,
            ..
        } = space;
        let ranges = self.filter.len().max(1);
        let budget = match self.sampling {
            Sampling::All => Some(u64::MAX),
            Sampling::Enough if self.pace == Pace::Rest => None,
            Sampling::Enough => Some(layout::ring::BUDGET),
        };
        let (mut records, mut ops) = (Vec::new(), price::Ops::default());
        let mut told = Told::of(&self.filter, &self.spent);
        let threads = self.threads.as_deref();
        if let Some(threads) = threads {
            threads.refresh();
            self.owners.look(threads, rings, used.min(rings.count()));
        }
        let whose = |index| match threads {
            Some(_) => self.owners.whose(index),
            None => Whose::Chosen,
        };
        let read = sys::tsc();
        let rested = std::mem::replace(&mut self.rested, budget.is_none());
        let had_calls = std::mem::replace(&mut self.had_calls, self.has_calls);
        let (memory, prices) = (&self.memory, &mut self.prices);
        self.turn = (self.turn + 1) % TURNS;
        let first = self.turn;
        let mut take = |rings: &mut Rings, index, most| {
            let used_up = told.used_up(rings, index);
            let (had_records, had_ops) = (records.len(), ops.all());
            let before = records.len();
            // The rest is read the next time.
            if records.len() < most {
                rings.drain(index, |record| records.push(record));
            }
            let is_told = whose(index) == Whose::Chosen;
            if is_told {
                told.end_with(&used_up, &records[before..]);
            }
            let measured = !rings.is_spent(index);
            rings.drain_histogram(index, |_, number, total| {
                ops.add_counted(number, total, measured);
                if is_told {
                    self.told = self.told.saturating_add(number);
                    sink.latency_only(engine::Counted {
                        ops: number,
                        total: Ticks(total),
                        // A thread whose ring is new measures until it rests as well.
                        with_calls: had_calls && (measured || !rested),
                    });
                }
            });
            // Of threads whose ops take long some tell each time, in turn.
            let is_active = records.len() > had_records || ops.all() > had_ops;
            let is_next = index % TURNS == first;
            if (is_active || is_next)
                && let Some(so_far) = installed.stolen(memory, index)
            {
                prices.took(&mut ops, index, so_far);
            }
        };
        let used = used.min(rings.count());
        (0..used).for_each(|index| take(rings, index, MOST_RECORDS));
        // All at once, and after all were read: whoever has room again has it as long as the others.
        let mut used_up = BTreeSet::new();
        for index in 0..used {
            let is_others = whose(index) == Whose::Others;
            if !is_others {
                used_up.extend((0..ranges).filter(|&range| rings.is_used_up(index, range)));
            }
            match budget {
                // Others may serve what these hand over.
                Some(budget) if self.serving.is_some() || !is_others => {
                    rings.refill(index, ranges, budget);
                }
                _ => rings.rest(index),
            }
        }
        let refilled = sys::tsc();
        // These become other threads', and are read to their ends.
        self.recycling
            .look(installed, &self.memory, rings, |rings, index| {
                take(rings, index, usize::MAX);
            });

        // After all were read: what has ended by now has met the probes that stand now.
        if !records.is_empty() && patches.are_taken_out(&self.memory, self.watch.code()) {
            self.whole_since = self.generation + 1;
        }
        told.end_at(read, &used_up);
        self.spent = told.spent(refilled);
        for record in &records {
            if let Record::Op {
                items,
                latency,
                generations: (began, ended),
                ..
            } = record
            {
                let is_of_now = began == ended && *ended == self.generation;
                let counts = items.iter().map(|item| item.count);
                let calls = is_of_now.then(|| counts.fold(0, u64::saturating_add));
                ops.add_recorded(*latency, calls);
            }
        }
        // Where probes have just come or gone, or a rest has just begun, ops are of both times. Those that end in a rest are those
        // that were under way, and the long ones are among them.
        let always = (self.has_calls == had_calls, self.has_calls);
        let when = match (budget.is_none(), rested, always) {
            (false, false, (true, true)) => While::Measuring,
            (true, true, (true, true)) => While::Passing,
            (true, true, (true, false)) => While::Away,
            (_, _, (true, false)) => While::Bare,
            _ => While::Other,
        };
        let price = self.prices.of(&ops, when, self.cost);
        let own = &mut self.price;
        own.latencies.0 = own.latencies.0.saturating_add(price.latencies.0);
        own.calls.0 = own.calls.0.saturating_add(price.calls.0);
        own.passes.0 = own.passes.0.saturating_add(price.passes.0);
        if let Some(threads) = threads {
            records.retain(|record| is_told(record, threads, tree, self.serving));
        }
        self.counters.records += records.len() as u64;
        records.sort_by_key(turn);
        let whole = self.whole_since..=self.generation;
        let mut drawn = match self.sampling {
            Sampling::All => Drawn::all(),
            Sampling::Enough => {
                let tell = records.iter().filter(|record| is_whole(record, &whole));
                let ops = tell.filter_map(|record| match record {
                    Record::Op { latency, end, .. } => Some((*latency, *end)),
                    _ => None,
                });
                Drawn::of(ops, &told)
            }
        };
        for record in records {
            match record {
                Record::Op { latency, end, .. } => {
                    // What decides nothing takes nobody's turn.
                    let is_sample = is_whole(&record, &whole)
                        && told.has(latency, end)
                        && drawn.takes(told.range(latency), end);
                    let whole = whole.clone();
                    deliver(record, tree, (self.serving, whole), is_sample, sink);
                }
                Record::Enqueued {
                    tid,
                    at,
                    fnode,
                    arguments,
                } => {
                    if let Some(fnode) = tree.fnode_of_descriptor(fnode) {
                        sink.enqueued(Enqueued {
                            tid,
                            at: Tsc(at),
                            fnode,
                            arguments,
                        });
                    }
                }
                Record::Absence {
                    tid,
                    left,
                    ready,
                    back,
                    thread,
                    waker,
                } => sink.absence(Absence {
                    tid,
                    left: Tsc(left),
                    ready: Tsc(ready),
                    back: Tsc(back),
                    thread,
                    waker: waker.into_iter().map(TargetAddr).collect(),
                }),
                Record::Target {
                    parent,
                    place,
                    callee,
                    answer,
                } => {
                    let found =
                        new_target(&self.memory, installed, tree, parent, place, callee, sink);
                    if tree.is_heap(answer) {
                        // A target that is gone is noticed elsewhere.
                        let _ = self.memory.write_word(TargetAddr(answer), found);
                    }
                }
            }
        }
    }
}

/// When a record has its turn. What was called is learnt first: ops that know it not yet must not decide without. The others
/// come as they happened, whichever thread wrote them: many of one thread in a row would decide alone.
fn turn(record: &Record) -> u64 {
    match record {
        Record::Target { .. } => 0,
        Record::Op { end, .. } => *end,
        Record::Enqueued { at, .. } => *at,
        Record::Absence { back, .. } => *back,
    }
}

/// Until when all threads wrote records of their ops. When one may write no more, the ops of the others tell no longer what
/// ops do: those of a thread that has few would weigh more than those of one that has many.
#[derive(Debug)]
struct Told {
    /// For each range of latencies, both ends included: from when on, and until when.
    ranges: Vec<((u64, u64), Range<u64>)>,
}

/// A range of latencies of which some thread could write no more, until then.
pub(super) type Spent = ((u64, u64), Tsc);

impl Told {
    fn of(filter: &[(u64, u64)], spent: &[Spent]) -> Told {
        let ranges = match filter {
            [] => &[(0, u64::MAX)],
            ranges => ranges,
        };
        let from = |range| {
            let spent = spent.iter().find(|(known, _)| *known == range);
            spent.map_or(0, |(_, until)| until.0)
        };
        let ranges = ranges.iter();
        Told {
            ranges: ranges
                .map(|&range| (range, from(range)..u64::MAX))
                .collect(),
        }
    }

    /// The ranges of which some thread could write no more, until it was given room again.
    fn spent(&self, until: Tsc) -> Vec<Spent> {
        let spent = self.ranges.iter().filter(|(_, told)| told.end != u64::MAX);
        spent.map(|(range, _)| (*range, until)).collect()
    }

    fn range(&self, latency: u64) -> Option<usize> {
        let mut ranges = self.ranges.iter();
        ranges.position(|((first, last), _)| (first..=last).contains(&&latency))
    }

    /// The ranges of which a ring has no more records than it has now.
    fn used_up(&self, rings: &Rings, index: usize) -> Vec<usize> {
        let ranges = 0..self.ranges.len();
        ranges.filter(|&at| rings.is_used_up(index, at)).collect()
    }

    /// These are the records of such a ring.
    fn end_with(&mut self, used_up: &[usize], records: &[Record]) {
        for &at in used_up {
            let ends = records.iter().filter_map(|record| match record {
                Record::Op { latency, end, .. } if self.range(*latency) == Some(at) => Some(*end),
                _ => None,
            });
            if let Some(last) = ends.max() {
                let told = &mut self.ranges[at].1;
                told.end = last.min(told.end);
            }
        }
    }

    /// Somewhere no more could be written of these ranges, at some time after this.
    fn end_at(&mut self, at: Tsc, ranges: &BTreeSet<usize>) {
        for &range in ranges {
            let told = &mut self.ranges[range].1;
            told.end = told.end.min(at.0);
        }
    }

    fn has(&self, latency: u64, end: u64) -> bool {
        let told = self.range(latency).map(|at| &self.ranges[at].1);
        told.is_none_or(|told| (told.start..=told.end).contains(&end))
    }
}

/// Whether all of an op is known, under one of these plans.
fn is_whole(record: &Record, plans: &RangeInclusive<u32>) -> bool {
    match record {
        Record::Op {
            start,
            end,
            generations: (began, ended),
            tainted,
            ..
        } => {
            let is_of_plan = began == ended && began % 2 == 0 && plans.contains(began);
            is_of_plan && !tainted && end >= start
        }
        _ => false,
    }
}

/// Which ops of one reading decide. Those that follow one another are often alike, as a program does much of one thing and then of
/// another, and so are those at fixed distances: some of each range are drawn, so that a decision has ops of several readings
/// (selection sampling: Knuth, The Art of Computer Programming, volume 2, 3.4.2, algorithm S).
#[derive(Debug)]
struct Drawn {
    /// For each range how many ops are to come, and how many of them are to be taken.
    ranges: Vec<(u64, u64)>,
}

impl Drawn {
    /// So many are taken of a range.
    const TAKEN: u64 = 8;

    fn all() -> Drawn {
        Drawn { ranges: Vec::new() }
    }

    /// Of these ops: their latencies and when they ended.
    fn of(ops: impl Iterator<Item = (u64, u64)>, told: &Told) -> Drawn {
        let mut ranges = vec![(0, Self::TAKEN); told.ranges.len()];
        for (latency, _) in ops.filter(|&(latency, end)| told.has(latency, end)) {
            if let Some(range) = told.range(latency) {
                ranges[range].0 += 1;
            }
        }
        Drawn { ranges }
    }

    /// Whether the next op of a range is taken, which ended then.
    fn takes(&mut self, range: Option<usize>, end: u64) -> bool {
        let Some((left, wanted)) = range.and_then(|at| self.ranges.get_mut(at)) else {
            return true;
        };
        // The last digits of a time are as good as dice, when all are mixed with them.
        let dice = u128::from((end ^ end >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let is_taken = dice * u128::from(*left) < u128::from(*wanted) << 64;
        *left = left.saturating_sub(1);
        *wanted = wanted.saturating_sub(u64::from(is_taken));
        is_taken
    }
}

/// Whether a record is of a chosen thread, or tells what anybody's does.
fn is_told(record: &Record, threads: &Chosen, tree: &Tree, serving: Option<FnodeId>) -> bool {
    match record {
        Record::Op { root, .. } if is_served(*root, tree, serving) => true,
        Record::Op { tid, .. } => threads.has_own(*tid).unwrap_or_else(|| {
            threads.left_out();
            false
        }),
        Record::Enqueued { tid, .. } => threads.has_own(*tid) == Some(true),
        Record::Absence { .. } | Record::Target { .. } => true,
    }
}

/// Whether an op is a call of the function that serves requests.
fn is_served(root: u64, tree: &Tree, serving: Option<FnodeId>) -> bool {
    serving.is_some() && tree.fnode_of_descriptor(root) == serving
}

fn deliver(
    record: Record,
    tree: &Tree,
    (serving, whole): (Option<FnodeId>, RangeInclusive<u32>),
    is_sample: bool,
    sink: &mut dyn Sink,
) {
    let is_of_plan = is_whole(&record, &whole);
    let Record::Op {
        tid,
        start,
        end,
        latency,
        arguments,
        root,
        items,
        ..
    } = record
    else {
        return;
    };
    let latency = Ticks(latency.min(end.wrapping_sub(start)));
    let touched: Option<Vec<Touched>> = items.iter().map(|item| touched(item, tree)).collect();
    let touched = touched.filter(|_| is_of_plan);
    let served = is_served(root, tree, serving);
    let is_whole = touched.is_some();
    let touched = touched.unwrap_or_else(|| {
        // What calls were delayed by took time whatever else is known.
        let known = items.iter().filter_map(|item| self::touched(item, tree));
        known.filter(|it| it.fnode == engine::DELAYS).collect()
    });
    let op = Op {
        tid,
        start: Tsc(start),
        end: Tsc(end),
        latency,
        arguments,
        touched,
    };
    match (served, is_whole) {
        (false, true) if is_sample => sink.op(op),
        (false, true) => sink.chosen_by_room(op),
        (false, false) => sink.partly(op),
        (true, true) => sink.served(Served::Whole(op)),
        (true, false) => sink.served(Served::Partly(op)),
    }
}

/// What an op tells of an fnode, where that is known.
fn touched(item: &Item, tree: &Tree) -> Option<Touched> {
    Some(Touched {
        fnode: tree.touched(item.index)?,
        max: Ticks(item.max),
        max_start: Tsc(item.max_start),
        sum: Ticks(item.sum),
        count: item.count,
        long: Ticks(item.long.min(item.sum)),
    })
}

/// Asks the sink what calls of a new callee are; the word that the stubs are to find.
fn new_target(
    memory: &Memory,
    installed: &Installed,
    tree: &mut Tree,
    parent: u64,
    place: u64,
    callee: u64,
    sink: &mut dyn Sink,
) -> u64 {
    if !installed.is_code(place) {
        return targets::PENDING;
    }
    let half = |offset| {
        let word = memory.read_word(TargetAddr(place + offset));
        word.unwrap_or(u64::MAX) as u32
    };
    let named = Place {
        function: half(place::FUNCTION),
        local: half(place::LOCAL),
    };
    let (Some(parent), Some(site)) = (tree.fnode_of_descriptor(parent), tree.site(named)) else {
        return targets::PENDING;
    };
    // Nothing is mapped there: it is the number of a system call.
    const LOWEST_CODE: u64 = 0x1000;
    if callee < LOWEST_CODE && returns_strangely(callee) {
        return targets::UNMEASURED;
    }
    if tree.stays_inside(named, callee) {
        return targets::UNMEASURED;
    }
    match sink.new_target(parent, site, TargetAddr(callee)) {
        NewTarget::Fnode(fnode) => tree.descriptor(fnode).unwrap_or(targets::PENDING),
        NewTarget::AnyTarget => tree.any_target(parent, named),
        NewTarget::Unmeasured => targets::UNMEASURED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use darc_record::SiteId;

    fn op_of(tid: i32, end: u64) -> Record {
        Record::Op {
            tid,
            start: 0,
            end,
            latency: 100,
            generations: (0, 0),
            tainted: false,
            arguments: Default::default(),
            root: 0,
            items: Vec::new(),
        }
    }

    #[test]
    fn ops_come_as_they_ended_and_what_was_called_comes_first() {
        let target = Record::Target {
            parent: 0,
            place: 0,
            callee: 0,
            answer: 0,
        };
        let records = [op_of(1, 10), op_of(1, 30), op_of(2, 20), target.clone()];
        let mut sorted = records.to_vec();
        sorted.sort_by_key(turn);
        let [first, last, between, _] = records;
        assert_eq!(sorted, [target, first, between, last]);
    }

    /// Takes what is known of ops in part.
    #[derive(Default)]
    struct Parts(Vec<Vec<FnodeId>>);

    impl Sink for Parts {
        fn op(&mut self, _: Op) {}

        fn latency_only(&mut self, _: engine::Counted) {}

        fn partly(&mut self, op: Op) {
            self.0.push(op.touched.iter().map(|it| it.fnode).collect());
        }

        fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
            NewTarget::AnyTarget
        }
    }

    #[test]
    fn of_an_op_that_is_known_in_part_delays_are_told() {
        let mut tree = Tree::new(0);
        let fnode = FnodeId(77);
        tree.descriptor(fnode).unwrap();
        // Nothing is there, but that it was asked for is noted.
        let own = Memory::open(std::process::id().cast_signed()).unwrap();
        let _ = tree.delay(&own, fnode, Ticks(1), Tsc(1));
        let item = |index| Item {
            index,
            count: 1,
            sum: 5,
            max: 5,
            max_start: 1,
            long: 0,
        };
        let mut record = op_of(1, 200);
        if let Record::Op { items, tainted, .. } = &mut record {
            (*items, *tainted) = (vec![item(0), item(2)], true);
        }
        let mut parts = Parts::default();
        deliver(record, &tree, (None, 0..=8), true, &mut parts);
        assert_eq!(parts.0, [vec![engine::DELAYS]]);
    }

    #[test]
    fn eight_of_many_ops_are_drawn_at_no_fixed_distance() {
        let told = Told::of(&[(50, 99), (100, 199)], &[]);
        let taken = |ops: u64, base: u64| -> Vec<u64> {
            let ends = (0..ops).map(|at| base + at * 2_600_000);
            let mut drawn = Drawn::of(ends.clone().map(|end| (100, end)), &told);
            let is_taken = ends.map(|end| drawn.takes(told.range(100), end));
            let taken = is_taken.zip(0..).filter(|&(is_taken, _)| is_taken);
            taken.map(|(_, at)| at).collect()
        };
        assert_eq!(taken(8, 1), (0..8).collect::<Vec<u64>>());
        let readings = (0..200).map(|reading| taken(64, 123_456_789 * (reading + 1)));
        let drawn: Vec<Vec<u64>> = readings.collect();
        assert!(drawn.iter().all(|taken| taken.len() == 8));
        // Of two things that come in turn both are met, mostly.
        let met = drawn.iter().flatten().filter(|&&at| at % 2 == 0).count();
        assert!((600..1_000).contains(&met), "{met} of 1600");
        let one = |taken: &&Vec<u64>| taken.iter().all(|at| at % 2 == taken[0] % 2);
        assert!(drawn.iter().filter(one).count() < 20);
        // Each place has its turn.
        for place in 0..64 {
            let met = drawn.iter().flatten().filter(|&&at| at == place).count();
            assert!((5..60).contains(&met), "{place}: {met} of 25");
        }
    }

    #[test]
    fn ops_tell_nothing_when_one_thread_may_write_no_more() {
        let mut told = Told::of(&[(50, 99), (100, 199)], &[]);
        told.end_with(&[0, 1], &[op_of(1, 10), op_of(1, 20)]);
        told.end_with(&[1], &[op_of(2, 90)]);
        told.end_with(&[], &[op_of(3, 5)]);
        assert!(told.has(100, 20) && !told.has(100, 21));
        assert!(told.has(60, 1_000) && told.has(300, 1_000));
        // From when on all of them write again.
        let spent = told.spent(Tsc(50));
        let told = Told::of(&[(50, 99), (100, 199)], &spent);
        assert!(told.has(60, 10) && !told.has(100, 49) && told.has(100, 50));
    }
}
