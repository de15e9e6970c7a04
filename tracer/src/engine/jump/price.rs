//! What stubs take of the target: by their own account, and where they keep none by how much longer ops are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use darc_record::Ticks;

use crate::effort::Price;
use crate::engine::ProbeCost;

/// Calls cost no more cycles at once: some hundreds of seconds.
const MOST_AT_ONCE: f64 = 1e12;
/// What probes take of a call that passes them unmeasured, in cycles: two jumps, and a look at what the thread does,
const PASS: f64 = 10.0;
/// and what they may take, in code that is seldom run, or where a callee is looked up.
const DEAR_PASS: f64 = 30.0;
/// Passes are no more than this part of the ops that they are in, as long as nothing better is known.
const MOST_OF_OP: f64 = 0.5;
/// From so many ops it is known how long they are,
const ENOUGH: u64 = 50;
/// for so long: programs change.
const FRESH: Duration = Duration::from_secs(30);
/// What was learnt of more ops counts for half from then on.
const REMEMBERED: u64 = 1 << 14;
/// One op in so many is longer than the usual ones,
const RARE: u64 = 100;
/// and if by this factor, it counts as if it were not: how often one waits for a disk says nothing of probes.
const LONG: f64 = 4.0;

/// How long ops are: those of as many bits are alike. For each of these how many there are, and how long they are together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Lengths(BTreeMap<u32, (u64, u64)>);

impl Lengths {
    fn add(&mut self, ops: u64, total: u64) {
        let Some(mean) = total.checked_div(ops) else {
            return;
        };
        let bits = u64::BITS - mean.leading_zeros();
        let (alike, together) = self.0.entry(bits).or_default();
        // The target may write any number.
        *alike = alike.saturating_add(ops);
        *together = together.saturating_add(total);
    }

    fn ops(&self) -> u64 {
        let ops = self.0.values().map(|(ops, _)| ops);
        ops.fold(0, |sum, &ops| sum.saturating_add(ops))
    }

    /// Ops longer than which count as if they were not.
    fn long(&self) -> f64 {
        let usual = self.ops() - self.ops() / RARE;
        let mut shorter = 0_u64;
        let longest = self.0.values().find(|(ops, _)| {
            shorter = shorter.saturating_add(*ops);
            shorter >= usual
        });
        let (ops, total) = longest.copied().unwrap_or((1, 0));
        LONG * (total as f64 / ops.max(1) as f64).max(1.0)
    }

    /// How long an op is, in the mean.
    fn mean(&self, long: f64) -> f64 {
        let each = self.0.values();
        let together: f64 = each
            .map(|&(ops, total)| (total as f64).min(ops as f64 * long))
            .sum();
        together / self.ops().max(1) as f64
    }

    fn learn(&mut self, more: &Lengths) {
        for (&bits, &(ops, total)) in &more.0 {
            let (alike, together) = self.0.entry(bits).or_default();
            *alike = alike.saturating_add(ops);
            *together = together.saturating_add(total);
        }
        if self.ops() > REMEMBERED {
            for (ops, total) in self.0.values_mut() {
                (*ops, *total) = (*ops / 2, *total / 2);
            }
        }
    }
}

/// Ops that ended since the last time.
#[derive(Default, Debug)]
pub struct Ops {
    all: u64,
    /// Those with a record of what is measured now: how many, how many calls, and how long together.
    recorded: (u64, u64, u64),
    lengths: Lengths,
    /// Of those whose calls passed.
    passed: Lengths,
    /// What stubs took for calls, by their own account.
    calls: u64,
}

impl Ops {
    /// One with a record, and how many calls are in that if what is measured now was measured in it.
    pub fn add_recorded(&mut self, latency: u64, calls: Option<u64>) {
        if let Some(calls) = calls {
            let (ops, all, total) = self.recorded;
            let total = total.saturating_add(latency);
            self.recorded = (ops + 1, all.saturating_add(calls), total);
        }
        self.all = self.all.saturating_add(1);
        self.lengths.add(1, latency);
    }

    /// Some that were only counted, how long they were together, and whether their calls were measured.
    pub fn add_counted(&mut self, ops: u64, total: u64, measured: bool) {
        self.all = self.all.saturating_add(ops);
        self.lengths.add(ops, total);
        if !measured {
            self.passed.add(ops, total);
        }
    }

    /// How many there are.
    pub fn all(&self) -> u64 {
        self.all
    }
}

/// When ops ended: since the last time it was always so, or else something between these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum While {
    /// Calls were measured where there was room, in no rest.
    Measuring,
    /// There was a rest, in which they passed.
    Passing,
    /// There was a rest, in which they had no probes.
    Away,
    /// They had none, in no rest: the kernel may have recorded what threads did.
    Bare,
    /// Another time.
    Other,
}

/// The account of one target.
#[derive(Default, Debug)]
pub struct Prices {
    /// What stubs have taken of each thread for calls ([`super::layout::block::STOLEN`]).
    stolen: Vec<u64>,
    /// How long ops are in which no call has a probe, in rests, and when that was learnt last.
    plain: Lengths,
    learnt: Option<Instant>,
    /// Ops in which calls were measured, how many these were, and how long the ops together.
    measured: (u64, u64, u64),
}

impl Prices {
    /// Stubs have taken so much of this thread until now. Of another program nothing is known.
    pub fn took(&mut self, ops: &mut Ops, thread: usize, so_far: u64) {
        if self.stolen.len() <= thread {
            self.stolen.resize(thread + 1, 0);
        }
        let before = std::mem::replace(&mut self.stolen[thread], so_far);
        let since = so_far.saturating_sub(before);
        ops.calls = ops.calls.saturating_add(since);
    }

    /// What stubs took since the last time, when these ops ended.
    pub fn of(&mut self, ops: &Ops, when: While, cost: ProbeCost) -> Price {
        let passes = match when {
            While::Measuring => {
                self.count(ops.recorded);
                self.passes(&ops.passed, PASS)
            }
            While::Other => self.passes(&ops.passed, PASS),
            While::Bare => 0.0,
            While::Passing => self.longer(&ops.passed),
            While::Away => {
                if ops.lengths.ops() > 0 {
                    self.plain.learn(&ops.lengths);
                    self.learnt = Some(Instant::now());
                }
                0.0
            }
        };
        let each = (cost.inside + cost.outside).0 as f64;
        // More at once is not to be believed.
        let price = |cycles: f64| Ticks(cycles.min(MOST_AT_ONCE) as u64);
        Price {
            latencies: price(ops.all as f64 * each),
            calls: price(ops.calls as f64),
            passes: price(passes),
        }
    }

    fn count(&mut self, (ops, calls, total): (u64, u64, u64)) {
        let (all, in_them, together) = self.measured;
        let sum = |one: u64, other: u64| one.saturating_add(other);
        let now = (sum(all, ops), sum(in_them, calls), sum(together, total));
        self.measured = match now.0 > 4 * ENOUGH {
            true => (now.0 / 2, now.1 / 2, now.2 / 2),
            false => now,
        };
    }

    /// What calls that passed have taken, as many as in measured ops, at so many cycles each. Ops that are shorter than measured ones had
    /// no time for as many.
    fn passes(&self, passed: &Lengths, each: f64) -> f64 {
        let (ops, calls, total) = self.measured;
        let per_op = calls as f64 / ops.max(1) as f64;
        let per_tick = calls as f64 / total.max(1) as f64;
        let parts = passed.0.values().map(|&(ops, total)| {
            let calls = (ops as f64 * per_op).min(total as f64 * per_tick);
            (calls * each).min(MOST_OF_OP * total as f64)
        });
        parts.sum()
    }

    /// What they have taken in a rest: what ops are longer than without probes, and no more than passes may take.
    fn longer(&self, passed: &Lengths) -> f64 {
        let is_known = self.plain.ops() >= ENOUGH
            && self.learnt.is_some_and(|learnt| learnt.elapsed() < FRESH);
        let most = self.passes(passed, DEAR_PASS);
        if !is_known {
            return most;
        }
        let long = self.plain.long();
        let longer = passed.mean(long) - self.plain.mean(long);
        most.min(passed.ops() as f64 * longer.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: ProbeCost = ProbeCost {
        inside: Ticks(20),
        outside: Ticks(30),
        resolution: Ticks(0),
        of_caller: Ticks(0),
    };

    fn counted(ops: u64, each: u64, measured: bool) -> Ops {
        let mut all = Ops::default();
        all.add_counted(ops, ops * each, measured);
        all
    }

    /// It is known how long ops are, and how many calls they make.
    fn known(each: u64, calls: u64) -> Prices {
        let mut prices = Prices::default();
        prices.of(&counted(10_000, each, false), While::Away, COST);
        let mut recorded = Ops::default();
        recorded.add_recorded(0, Some(calls));
        // Began before there were probes.
        recorded.add_recorded(0, None);
        prices.of(&recorded, While::Measuring, COST);
        prices
    }

    #[test]
    fn what_stubs_took_is_added_up_thread_by_thread() {
        let mut prices = Prices::default();
        let mut since = |thread, so_far| {
            let mut ops = Ops::default();
            prices.took(&mut ops, thread, so_far);
            prices.of(&ops, While::Measuring, COST).calls
        };
        assert_eq!((since(2, 100), since(0, 7)), (Ticks(100), Ticks(7)));
        assert_eq!((since(2, 140), since(0, 7)), (Ticks(40), Ticks(0)));
        // Another program's.
        assert_eq!((since(2, 30), since(2, 35)), (Ticks(0), Ticks(5)));
    }

    #[test]
    fn each_op_costs_what_its_own_probes_take() {
        let mut ops = counted(1000, 5, true);
        ops.add_recorded(2_000, Some(1000));
        let price = Prices::default().of(&ops, While::Away, COST);
        assert_eq!(price.latencies, Ticks(50 * 1001));
        assert_eq!((price.calls, price.passes), (Ticks(0), Ticks(0)));
    }

    /// However long the ops seem whose calls were measured: probes may seem to have taken more than they did.
    #[test]
    fn passes_take_what_ops_of_a_rest_are_longer_than_without_probes() {
        let mut prices = known(2_000, 100);
        let mut passes = |each| {
            let ops = counted(1_000, each, false);
            prices.of(&ops, While::Passing, COST).passes
        };
        assert_eq!(passes(4_500), Ticks(2_250 * 1_000));
        assert_eq!(passes(3_000), Ticks(1_000 * 1_000));
        assert_eq!(passes(2_000), Ticks(0));
        assert_eq!(passes(1_000), Ticks(0));
        // So much is no pass.
        assert_eq!(passes(90_000), Ticks(1_000 * 100 * 30));
        let measured = counted(1_000, 4_500, true);
        assert_eq!(prices.of(&measured, While::Passing, COST).passes, Ticks(0));
    }

    /// Two of five ops are a thousand times as long as the others, and make all the calls.
    #[test]
    fn long_ops_tell_what_passes_take_where_they_are_usual() {
        let ops = |long: u64| {
            let mut ops = counted(600, 3_000, false);
            ops.add_counted(400, 400 * long, false);
            ops
        };
        let mut prices = known(3_000, 4_000);
        prices.of(&ops(3_000_000), While::Away, COST);
        prices.plain = ops(3_000_000).lengths;
        let passes = prices.of(&ops(3_120_000), While::Passing, COST).passes;
        assert_eq!(passes, Ticks(400 * 120_000));
    }

    #[test]
    fn short_ops_have_no_time_for_the_calls_of_long_ones() {
        let mut prices = Prices::default();
        let mut recorded = Ops::default();
        recorded.add_recorded(1_000_000, Some(10_000));
        prices.of(&recorded, While::Measuring, COST);
        let passes = |prices: &mut Prices, each| {
            let ops = counted(100, each, false);
            prices.of(&ops, While::Measuring, COST).passes
        };
        assert_eq!(passes(&mut prices, 1_000_000), Ticks(100 * 10_000 * 10));
        assert_eq!(passes(&mut prices, 5_000), Ticks(100 * 50 * 10));
    }

    #[test]
    fn ops_that_wait_do_not_tell_what_passes_take() {
        let mut prices = known(2_000, 100);
        let mut ops = counted(10_000, 2_000, false);
        ops.add_counted(1, 1 << 40, false);
        let passes = prices.of(&ops, While::Passing, COST).passes;
        assert!(passes.0 <= 4 * 2_000, "{passes:?}");
    }

    #[test]
    fn while_it_is_not_known_how_long_ops_are_passes_are_half_of_them_at_most() {
        let mut prices = known(2_000, 10);
        let mut passes = |each, when| {
            let ops = counted(100, each, false);
            prices.of(&ops, when, COST).passes
        };
        assert_eq!(passes(2_000, While::Measuring), Ticks(100 * 10 * 10));
        assert_eq!(passes(100, While::Other), Ticks(100 * 50));
        let long_ago = Instant::now().checked_sub(2 * FRESH);
        prices.learnt = long_ago;
        let ops = counted(100, 2_000, false);
        let passes = prices.of(&ops, While::Passing, COST).passes;
        assert_eq!(passes, Ticks(100 * 10 * 30));
    }

    #[test]
    fn what_a_target_writes_does_no_harm() {
        let mut prices = Prices::default();
        let mut ops = Ops::default();
        for _ in 0..3 {
            ops.add_counted(u64::MAX, u64::MAX, false);
            ops.add_recorded(u64::MAX, Some(u64::MAX));
            prices.took(&mut ops, 0, u64::MAX);
        }
        use While::{Away, Bare, Measuring, Other, Passing};
        for when in [Away, Measuring, Passing, Other, Bare, Passing] {
            let price = prices.of(&ops, when, COST);
            for part in [price.latencies, price.calls, price.passes] {
                assert!(part.0 <= 1_000_000_000_000, "{when:?}: {price:?}");
            }
        }
    }
}
