//! From the rings to the sink: records become ops, new callees become questions.

use crate::addr::TargetAddr;
use crate::effort::{Pace, Price};
use crate::engine::{NewTarget, ProbeCost, Served, Sink};
use crate::memory::Memory;
use darc_record::{Enqueued, FnodeId, Op, Ticks, Touched, Tsc};

use super::function::returns_strangely;
use super::installed::Installed;
use super::layout::{self, place, targets};
use super::ring::{Record, Rings};
use super::space::Space;
use super::tree::{Place, Tree};
use super::{Jump, Sampling};

/// Calls cost no more cycles at once: some hundreds of seconds.
const MOST_AT_ONCE: f64 = 1e12;
/// No call takes fewer cycles, without what its probes take: it is at least a call, a return, and what is between.
const SHORTEST_CALL: f64 = 4.0;

impl Jump {
    /// Delivers what the stubs have recorded since the last time.
    pub(super) fn drain(&mut self, sink: &mut dyn Sink) {
        let Some(space) = &mut self.space else { return };
        let used = space.installed.used_blocks(&self.memory);
        let Space {
            rings,
            tree,
            installed,
            ..
        } = space;
        let ranges = self.filter.len().max(1);
        let budget = match self.sampling {
            Sampling::All => Some(u64::MAX),
            Sampling::Enough if self.pace == Pace::Rest => None,
            Sampling::Enough => Some(layout::ring::BUDGET),
        };
        let (mut records, mut counted) = (Vec::new(), Counted::default());
        let mut take = |rings: &mut Rings, index| {
            rings.drain(index, |record| records.push(record));
            let measured = !rings.is_spent(index);
            rings.drain_histogram(index, |bucket, ops, total| {
                counted.add(ops, total, measured);
                sink.latency_only(Ticks(layout::bucket_start(bucket)), ops, Ticks(total));
            });
        };
        for index in 0..used.min(rings.count()) {
            take(rings, index);
            match budget {
                Some(budget) => rings.refill(index, ranges, budget),
                None => rings.rest(index),
            }
        }
        self.recycling.look(installed, &self.memory, rings, take);
        let price = price(&records, &counted, self.cost, &mut self.calls_per_op);
        self.price.latencies.0 += price.latencies.0;
        self.price.calls.0 += price.calls.0;
        self.counters.records += records.len() as u64;
        // What was called is learnt first: ops of other threads, before it in this list, may not know it yet, and must not
        // decide without.
        let (targets, others): (Vec<Record>, Vec<Record>) = records
            .into_iter()
            .partition(|record| matches!(record, Record::Target { .. }));
        for record in targets.into_iter().chain(others) {
            match record {
                Record::Op { .. } => deliver(record, tree, self.generation, self.serving, sink),
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

/// Ops that were only counted.
#[derive(Default)]
struct Counted {
    all: u64,
    /// Those whose calls were measured, alike in latency: how many, and how long together.
    measured: Vec<(u64, Ticks)>,
}

impl Counted {
    fn add(&mut self, ops: u64, total: u64, measured: bool) {
        self.all = self.all.saturating_add(ops);
        if measured {
            self.measured.push((ops, Ticks(total)));
        }
    }
}

/// What these ops and those that were only counted took of the target: calls as many as in the recorded ones, if they had
/// the time for that.
fn price(records: &[Record], counted: &Counted, cost: ProbeCost, calls_per_op: &mut f64) -> Price {
    let (mut ops, mut calls) = (0, 0_u64);
    for record in records {
        if let Record::Op { items, .. } = record {
            ops += 1;
            // The target may write any number.
            let counts = items.iter().map(|item| item.count);
            calls = counts.fold(calls, u64::saturating_add);
        }
    }
    if ops > 0 {
        *calls_per_op = calls as f64 / f64::from(ops);
    }
    let calls_of = |&(ops, total): &(u64, Ticks)| {
        let most = total.0 as f64 / SHORTEST_CALL;
        (ops as f64 * *calls_per_op).min(most)
    };
    let counted_calls: f64 = counted.measured.iter().map(calls_of).sum();
    let each = (cost.inside + cost.outside).0 as f64;
    // More at once is not to be believed.
    let price = |number: f64| Ticks((number * each).min(MOST_AT_ONCE) as u64);
    Price {
        latencies: price(f64::from(ops) + counted.all as f64),
        calls: price(calls as f64 + counted_calls),
    }
}

fn deliver(
    record: Record,
    tree: &Tree,
    generation: u32,
    serving: Option<FnodeId>,
    sink: &mut dyn Sink,
) {
    let Record::Op {
        tid,
        start,
        end,
        latency,
        generations: (began, ended),
        tainted,
        arguments,
        root,
        items,
    } = record
    else {
        return;
    };
    let latency = Ticks(latency.min(end.wrapping_sub(start)));
    let touched: Option<Vec<Touched>> = items
        .iter()
        .map(|item| {
            Some(Touched {
                fnode: tree.fnode(item.index).filter(|_| item.index > 1)?,
                max: Ticks(item.max),
                max_start: Tsc(item.max_start),
                sum: Ticks(item.sum),
                count: item.count,
            })
        })
        .collect();
    let whole = began == ended && began % 2 == 0 && began <= generation && !tainted && end >= start;
    let touched = touched.filter(|_| whole);
    let known = touched.is_some();
    let op = Op {
        tid,
        start: Tsc(start),
        end: Tsc(end),
        latency,
        arguments,
        touched: touched.unwrap_or_default(),
    };
    let served = serving.is_some() && tree.fnode_of_descriptor(root) == serving;
    match (served, known) {
        (false, true) => sink.op(op),
        (false, false) => sink.partly(op),
        (true, true) => sink.served(Served::Whole(op)),
        (true, false) => sink.served(Served::Partly(op)),
    }
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
    use crate::engine::jump::ring::Item;

    #[test]
    fn short_ops_have_no_time_for_the_calls_of_long_ones() {
        let item = Item {
            index: 2,
            count: 1000,
            sum: 0,
            max: 0,
            max_start: 0,
        };
        let long = Record::Op {
            tid: 1,
            start: 0,
            end: 0,
            latency: 0,
            generations: (0, 0),
            tainted: false,
            arguments: Default::default(),
            root: 0,
            items: vec![item],
        };
        let cost = ProbeCost {
            inside: Ticks(20),
            outside: Ticks(30),
            ..ProbeCost::default()
        };
        let mut counted = Counted::default();
        counted.add(1_000_000, 3_000_000, true);
        counted.add(5, 1_000_000, true);
        counted.add(7, 1_000_000, false);
        let price = price(&[long], &counted, cost, &mut 0.0);
        assert_eq!(price.latencies, Ticks(50 * 1_000_013));
        assert_eq!(price.calls, Ticks(50 * (1000 + 750_000 + 5 * 1000)));
    }
}
