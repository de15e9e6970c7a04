//! Ops whose latency is not known well, because much was taken out of it for what measuring took.
//!
//! What a measured call takes is known from calls that do nothing else. Where a program waits for memory the probes run
//! meanwhile, so that less is to be taken out: the true latency is between what is left and what the clock said. Of an op
//! with thousands of short calls that may be a factor of several, and the op would count in a peak that does not exist.
//! Such an op belongs where ops are of whose latency little or nothing was taken out.

use std::collections::HashMap;

use darc_record::{FnodeId, Op, Ticks, Touched};

use crate::descent::Analysis;
use crate::descent::share::LEAST;
use crate::profile::histogram::{Bucket, Profile, Resolution};

/// An op's latency is known well when no more than this part of it was taken out.
const LITTLE: f64 = 0.25;
/// ... or less than this, what some eight calls take: what few calls may be off by is within what measured times may be off by.
const MUCH: Ticks = Ticks(1 << 9);
/// Where ops are this part as frequent as where most are, an op is where its latency says,
const SOME: f64 = 0.01;
/// if they are as many as this: one that an interrupt struck may be anywhere.
const FEW: u64 = 10;
/// Of so many ops of a bucket it is remembered at most how much was taken out of them.
const REMEMBERED: u64 = 256;

/// How well the latencies of ops are known, and where those are that are known well.
#[derive(Clone, Debug)]
pub(crate) struct Blur {
    /// Whether what is taken out is an estimate that may be too much.
    is_estimated: bool,
    /// The ops whose latencies are known well, without the kernel's records of their page faults.
    clear: Profile,
    /// By bucket: of how many recorded ops it is known how much was taken out, and how much that was together.
    taken: HashMap<u32, (u64, Ticks)>,
}

/// What was taken out of an op's latency for its probes.
fn taken_out(op: &Op) -> Ticks {
    Ticks(op.end.0.saturating_sub(op.start.0)).saturating_sub(op.latency)
}

fn is_blurred(latency: Ticks, taken: Ticks) -> bool {
    taken >= MUCH && taken.0 as f64 > LITTLE * latency.0 as f64
}

impl Blur {
    pub(crate) fn new(resolution: Resolution) -> Blur {
        Blur {
            is_estimated: false,
            clear: Profile::new(resolution),
            taken: HashMap::new(),
        }
    }

    pub(crate) fn is_estimated(&self) -> bool {
        self.is_estimated
    }

    /// The latency of an op of which this much was taken out: that of the ops known well that are most frequent among those
    /// that it may be one of.
    fn placed(&self, latency: Ticks, taken: Ticks) -> Ticks {
        let resolution = self.clear.resolution();
        let longest = Ticks(latency.0.saturating_add(taken.0));
        let here = self.clear.bucket(resolution.bucket(latency));
        let may_be = resolution.bucket(latency)..=resolution.bucket(longest);
        let may_be = may_be.map(|bucket| self.clear.bucket(bucket));
        let mean = |bucket: &Bucket| Ticks(bucket.total.0 / bucket.ops);
        let may_be = may_be.filter(|bucket| bucket.ops >= FEW && mean(bucket) <= longest);
        match may_be.max_by_key(|bucket| bucket.ops) {
            Some(most) if here.ops < FEW.max((SOME * most.ops as f64) as u64) => {
                mean(&most).max(latency)
            }
            _ => latency,
        }
    }

    /// The ops of earlier runs tell, too.
    pub(crate) fn go_on_from(&mut self, stored: &Profile) {
        self.clear.clone_from(stored);
    }

    fn remember(&mut self, latency: Ticks, taken: Ticks) {
        let bucket = self.clear.resolution().bucket(latency);
        let (ops, sum) = self.taken.entry(bucket).or_default();
        if *ops >= REMEMBERED {
            (*ops, *sum) = (*ops / 2, Ticks(sum.0 / 2));
        }
        (*ops, *sum) = (*ops + 1, *sum + taken);
    }

    /// What was taken out of recorded ops of this latency, on average; none where none is known.
    fn usually_taken(&self, latency: Ticks) -> Option<Ticks> {
        let bucket = self.clear.resolution().bucket(latency);
        let (ops, sum) = self.taken.get(&bucket)?;
        Some(Ticks(sum.0 / ops))
    }
}

impl Analysis {
    /// What is taken out of latencies for the probes is what they take at most.
    pub fn cost_is_estimated(&mut self) {
        self.blur.is_estimated = true;
    }

    /// The latency with which an op counts, as far as it can be told.
    pub(crate) fn latency_of(&self, op: &Op) -> Ticks {
        let taken = taken_out(op);
        let latency = match self.blur.is_estimated && is_blurred(op.latency, taken) {
            true => self.blur.placed(op.latency, taken),
            false => op.latency,
        };
        self.noise.resolved(latency)
    }

    /// An op that counts in this bucket, where another latency is meant than its own: too much was taken out of it. That is given
    /// back to it, and to what it called, by how many calls were made in each. None where what was taken out of f0's own part
    /// is more than there was, or where ops as short as it are known well, too.
    pub(crate) fn given_back(&self, op: &Op, bucket: u32) -> Option<Op> {
        let here = self
            .blur
            .clear
            .bucket(self.blur.clear.resolution().bucket(op.latency));
        let is_clear = bucket == self.bucket(op.latency) || here.ops >= FEW;
        if is_clear || self.is_unresolved(op) {
            return None;
        }
        let back = self.latency_of(op).saturating_sub(op.latency).0 as f64;
        let all: u64 = op
            .touched
            .iter()
            .fold(0, |sum, at| sum.saturating_add(at.count));
        let within = self.calls_within(op);
        let parent = |at: FnodeId| self.ftree.get(at).and_then(|fnode| fnode.parent);
        let times = op.touched.iter().map(|at| (at.fnode, at.sum));
        let times: HashMap<FnodeId, Ticks> = times.collect();
        let mut left = op.clone();
        left.latency = op.latency + Ticks(back as u64);
        let mut called = Ticks(0);
        for touched in &mut left.touched {
            let caller = parent(touched.fnode);
            let of_caller = caller
                .and_then(|at| times.get(&at))
                .copied()
                .unwrap_or(op.latency);
            // A probe takes time in the call and before it, of which the call has its share.
            let share = (touched.sum.0 as f64 / of_caller.0.max(1) as f64).min(1.0);
            let made = within.get(&touched.fnode).copied().unwrap_or(0) as f64;
            let more = back * (made + touched.count as f64 * share) / all.max(1) as f64;
            touched.sum = touched.sum + Ticks(more as u64);
            // Of that each call has the same.
            let more = Ticks((more / touched.count.max(1) as f64) as u64);
            touched.max = (touched.max + more).min(touched.sum);
            let is_long = touched.count == 1 && touched.max >= Touched::LONG;
            touched.long = if is_long { touched.max } else { touched.long };
            if caller == Some(FnodeId::ROOT) {
                called = called + touched.sum;
            }
        }
        let most = left.latency.0 as f64 * (1.0 + LEAST) + self.noise.of(op).0 as f64;
        (called.0 as f64 <= most).then_some(left)
    }

    /// How many calls were made in those of each function.
    fn calls_within(&self, op: &Op) -> HashMap<FnodeId, u64> {
        let mut within: HashMap<FnodeId, u64> = HashMap::new();
        let parent = |at: &FnodeId| self.ftree.get(*at).and_then(|fnode| fnode.parent);
        for touched in &op.touched {
            for caller in std::iter::successors(parent(&touched.fnode), parent) {
                let calls = within.entry(caller).or_default();
                *calls = calls.saturating_add(touched.count);
            }
        }
        within
    }

    /// Learns from a recorded op, which is so long without the kernel's records.
    pub(crate) fn learn_of_clear(&mut self, op: &Op, without_records: Ticks) {
        if !self.blur.is_estimated {
            return;
        }
        let taken = taken_out(op);
        self.blur.remember(op.latency, taken);
        if !is_blurred(op.latency, taken) {
            self.blur.clear.add(without_records);
        }
    }

    /// The latency with which ops count that were not recorded; learns from them where no calls were measured in them.
    pub(crate) fn latency_of_unrecorded(
        &mut self,
        latency: Ticks,
        content: Bucket,
        with_calls: bool,
    ) -> Ticks {
        if !self.blur.is_estimated {
            return latency;
        }
        let taken = match with_calls {
            true => self.blur.usually_taken(latency),
            false => Some(Ticks(0)),
        };
        match taken {
            Some(taken) if is_blurred(latency, taken) => self.blur.placed(latency, taken),
            Some(_) => {
                let bucket = self.blur.clear.resolution().bucket(latency);
                self.blur.clear.put(bucket, content);
                latency
            }
            None => latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use darc_record::{Arguments, Tsc};

    use super::*;
    use crate::{Params, Request, Status};

    /// An op that takes so long; of what its calls take so much too much is taken out.
    fn op(number: u64, latency: u64, calls: &[(FnodeId, u64)], too_much: u64) -> Op {
        const EACH: u64 = 50;
        let start = 10_000_000 * number;
        let count: u64 = calls.iter().map(|(_, count)| count).sum();
        let touched = calls.iter().map(|&(fnode, count)| Touched {
            fnode,
            max: Ticks(5),
            max_start: Tsc(start),
            long: Ticks(0),
            sum: Ticks(3 * count),
            count,
        });
        Op {
            arguments: Arguments::default(),
            tid: 1,
            start: Tsc(start),
            end: Tsc(start + latency + EACH * count - too_much * count),
            latency: Ticks(latency - too_much * count),
            touched: touched.collect(),
        }
    }

    /// Half of the ops make 10,000 calls, which take 30 cycles less than calls do that do nothing else.
    fn analysed(is_estimated: bool) -> Analysis {
        let mut analysis = Analysis::new(Params::default());
        if is_estimated {
            analysis.cost_is_estimated();
        }
        let mut calls: Vec<(FnodeId, u64)> = Vec::new();
        for number in 0..2_000 {
            let one = match number % 2 {
                0 => op(number, 1_000 + number % 50, &[], 0),
                _ => op(number, 400_000 + number, &calls, 30),
            };
            let delivered = match &analysis.filter[..] {
                [] => true,
                ranges => ranges.iter().any(|range| range.contains(&one.latency)),
            };
            match delivered {
                true => analysis.op(&one),
                false => {
                    let latency = one.latency;
                    analysis.add_unrecorded(1, latency, !calls.is_empty());
                }
            }
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    let callee = crate::Callee::Unknown;
                    let child = analysis.add_child(fnode, darc_record::SiteId(1), callee);
                    calls = vec![(child, 10_000)];
                    analysis.expanded(fnode, Tsc(10_000_000 * number + 1));
                }
            }
        }
        analysis
    }

    #[test]
    fn ops_of_which_too_much_was_taken_out_stay_in_their_peak() {
        let analysis = analysed(true);
        let peaks = analysis.peaks();
        let ops: Vec<u64> = peaks.iter().map(|peak| peak.content.ops).collect();
        assert_eq!(ops, [1_000, 1_000], "{peaks:?}");
        assert_eq!(analysis.status(), Status::RootCauseFound);
        // What is exact is believed: with breakpoints each call is stopped for, and these are other ops.
        let peaks = analysed(false).peaks();
        assert!(peaks.iter().any(|peak| peak.content.ops < 990), "{peaks:?}");
    }

    /// 300 of 400 thousand cycles were taken out too many: of f0's call of `a`, and of 10,000 calls in that.
    #[test]
    fn what_was_taken_out_too_much_is_given_back_to_where_calls_were() {
        let mut analysis = Analysis::new(Params::default());
        analysis.cost_is_estimated();
        let callee = |id| crate::Callee::Function(crate::CalleeId(id));
        let mut child =
            |parent, id| analysis.add_child(parent, darc_record::SiteId(id), callee(id));
        let (a, c) = (child(FnodeId::ROOT, 1), child(FnodeId::ROOT, 2));
        let b = child(a, 3);
        for _ in 0..FEW {
            analysis.blur.clear.add(Ticks(400_000));
        }
        let call = |fnode, sum: u64, count: u64| Touched {
            fnode,
            max: Ticks(sum / count),
            max_start: Tsc(0),
            long: Ticks(0),
            sum: Ticks(sum),
            count,
        };
        let measured = |of_a| Op {
            end: Tsc(500_000),
            touched: vec![
                call(a, of_a, 1),
                call(b, 40_000, 10_000),
                call(c, 10_000, 1),
            ],
            ..op(0, 100_000, &[], 0)
        };
        let given_back = |one: &Op| analysis.given_back(one, analysis.bucket_of(one));
        let left = given_back(&measured(80_000)).expect("it tells");
        assert_eq!(left.latency, Ticks(400_000));
        let sums: Vec<u64> = left.touched.iter().map(|at| at.sum.0).collect();
        let near = |sum: u64, known: u64| sum.abs_diff(known) < 200;
        // Half of what `a` takes, as was measured.
        assert!(near(sums[0], 380_000) && near(sums[1], 190_000), "{sums:?}");
        assert!(near(sums[2], 10_000), "{sums:?}");
        assert_eq!(given_back(&measured(150_000)), None, "more than there was");
        // What is where it counts stays what it is.
        let clear = op(0, 400_000, &[(a, 1)], 0);
        assert_eq!(given_back(&clear), None);
    }

    /// Half of a peak's ops make thousands of calls, of which too much is taken out.
    #[test]
    fn ops_of_which_too_much_was_taken_out_have_their_share() {
        let mut analysis = Analysis::new(Params::default());
        analysis.cost_is_estimated();
        let mut children: Vec<FnodeId> = Vec::new();
        for number in 0..4_000 {
            let calls = |times| children.get(number as usize % 2).map(|&at| (at, times));
            let mut one = match number % 2 {
                0 => op(number, 400_000, calls(10_000).as_slice(), 30),
                _ => op(number, 400_000, calls(1).as_slice(), 0),
            };
            for touched in &mut one.touched {
                // All of it is in the callee.
                touched.sum = one.latency;
                touched.max = Ticks(one.latency.0 / touched.count);
            }
            analysis.op(&one);
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    let callee = |id| crate::Callee::Function(crate::CalleeId(id));
                    let mut child =
                        |id| analysis.add_child(fnode, darc_record::SiteId(id), callee(id));
                    if fnode == FnodeId::ROOT {
                        children = vec![child(1), child(2)];
                    }
                    analysis.expanded(fnode, Tsc(10_000_000 * number + 1));
                }
            }
        }
        let causes = analysis.root_causes(1);
        let shares: Vec<f64> = causes.iter().map(|cause| cause.share).collect();
        let is_half = |share: &f64| (0.4..0.6).contains(share);
        assert!(
            shares.len() == 2 && shares.iter().all(is_half),
            "{causes:?}"
        );
    }

    #[test]
    fn a_few_ops_that_are_known_well_do_not_tell_where_others_are() {
        let mut blur = Blur::new(crate::Resolution::default());
        let add = |blur: &mut Blur, latency, times| {
            for _ in 0..times {
                blur.clear.add(Ticks(latency));
            }
        };
        add(&mut blur, 580_000, 40);
        let placed = |blur: &Blur| blur.placed(Ticks(480_000), Ticks(400_000));
        add(&mut blur, 450_000, FEW - 1);
        assert_eq!(placed(&blur), Ticks(580_000));
        add(&mut blur, 450_000, 1);
        assert_eq!(placed(&blur), Ticks(480_000));
    }

    #[test]
    fn of_a_peak_ops_are_asked_for_that_may_be_shorter() {
        let analysis = analysed(true);
        let filter = |analysis: &mut Analysis| {
            analysis.filter.clear();
            analysis.peaks.iter_mut().for_each(|at| at.open = Some(1));
            analysis.filter_ops();
            analysis.filter.clone()
        };
        let [fast, slow] = &filter(&mut analysis.clone())[..] else {
            panic!("two peaks");
        };
        assert_eq!(fast.start(), &Ticks(0));
        assert_eq!(slow.start().0, fast.end().0 + 1);
        // What a person names is what is asked for.
        let mut named = analysis.clone();
        named.params.range = Some(crate::Range::Between(Ticks(400_000), Ticks(u64::MAX)));
        named.peaks.truncate(1);
        named.peaks[0].peak.first_bucket = 36;
        named.peaks[0].peak.last_bucket = 127;
        assert_eq!(filter(&mut named), [Ticks(1 << 18)..=Ticks(u64::MAX)]);
    }

    #[test]
    fn an_op_is_where_ops_are_that_are_known_well() {
        let mut blur = Blur::new(Resolution::default());
        for _ in 0..100 {
            blur.clear.add(Ticks(5_000));
        }
        let placed = |blur: &Blur, latency, taken| blur.placed(Ticks(latency), Ticks(taken)).0;
        assert_eq!(placed(&blur, 1_000, 5_000), 5_000);
        let beyond = "these are longer than the clock said";
        assert_eq!(placed(&blur, 3_500, 1_000), 3_500, "{beyond}");
        assert_eq!(placed(&blur, 1_000, 1_500), 1_000, "nothing is there");
        // Where ops are known well, it may be one of them.
        for _ in 0..FEW {
            blur.clear.add(Ticks(1_000));
        }
        assert_eq!(placed(&blur, 1_000, 5_000), 1_000);
        // One op tells nothing.
        blur.clear.add(Ticks(50_000));
        assert_eq!(placed(&blur, 20_000, 60_000), 20_000);
        assert_eq!(placed(&blur, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn ops_that_were_only_counted_are_as_those_that_were_recorded() {
        let mut analysis = Analysis::new(Params::default());
        analysis.cost_is_estimated();
        analysis.add_unrecorded(10, Ticks(4_000_000), false);
        let one = op(1, 400_000, &[(FnodeId(2), 10_000)], 30);
        analysis.learn_of_clear(&one, one.latency);
        analysis.add_unrecorded(10, Ticks(1_000_000), true);
        let known: Vec<_> = analysis.profile().buckets().collect();
        assert_eq!(known.len(), 1, "{known:?}");
        // Some that an engine counts in one bucket stand where recorded ones do, on both sides of a border of half doublings.
        for latency in [1_450_000, 1_500_000] {
            let mut one = Analysis::new(Params::default());
            let mut other = one.clone();
            one.add_unrecorded(10, Ticks(10 * latency), false);
            other.profile.add(Ticks(latency));
            let bucket = |it: &Analysis| it.profile().buckets().next().unwrap().0;
            assert_eq!(bucket(&one), bucket(&other));
        }
        // Without calls it is what it is.
        analysis.add_unrecorded(10, Ticks(1_000_000), false);
        assert_eq!(analysis.profile().buckets().count(), 2);
    }
}
