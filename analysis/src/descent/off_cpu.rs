//! Ops with the times in which their thread did not do its work.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use darc_record::{FnodeId, Op, Ticks, Touched};

use crate::descent::ftree::{Absence, Callee};
use crate::descent::peak_record::Stop;
use crate::descent::root_cause::{CauseKind, RootCause, root_causes};
use crate::descent::share::LEAST;
use crate::descent::{Analysis, PeakAnalysis};
use crate::off_cpu::apart::{Apart, apart};
use crate::off_cpu::{Away, Interval, OffCpu, Waits, is_absence};

/// The part of a peak's time that is to be explained by functions, for what strikes them to matter.
const LEAST_OWN: f64 = 0.3;
/// So many ops of a peak tell which part of its time is time away.
const ENOUGH: u64 = 200;
/// Functions cannot take more of a peak's time than its threads ran. The two are known from different ops, and may differ by so
/// much.
const MUCH: f64 = 0.2;

/// What the kernel told.
#[derive(Clone, Default, Debug)]
pub(crate) struct OffCpuTable {
    /// How the fnodes of each peak waited.
    waits: HashMap<(FnodeId, u32), Waits>,
    /// How long the calls were together that these are of: the longest of each op.
    longest: HashMap<(FnodeId, u32), Ticks>,
    /// All ops of each peak.
    peaks: HashMap<u32, OffCpu>,
    /// How long the op at hand waited in which fnode.
    blocked: Vec<(FnodeId, Ticks)>,
    /// The calls of the op at hand before anything was taken out of them; kept to save allocations.
    measured: Vec<Touched>,
    /// How a function waited is told by what it calls.
    by_calls: bool,
}

impl OffCpuTable {
    /// Gives peaks other numbers, or forgets them.
    pub(crate) fn renumber_peaks(&mut self, now: impl Fn(u32) -> Option<u32>) {
        let waits = std::mem::take(&mut self.waits).into_iter();
        self.waits = waits
            .filter_map(|((fnode, peak), waits)| Some(((fnode, now(peak)?), waits)))
            .collect();
        let longest = std::mem::take(&mut self.longest).into_iter();
        self.longest = longest
            .filter_map(|((fnode, peak), time)| Some(((fnode, now(peak)?), time)))
            .collect();
        let peaks = std::mem::take(&mut self.peaks).into_iter();
        self.peaks = peaks
            .filter_map(|(peak, all)| Some((now(peak)?, all)))
            .collect();
    }
}

impl Analysis {
    /// Time away will be told of: f0 has these callees beside its own, and is measured even if it makes no calls.
    pub fn expect_absences(&mut self) {
        self.ftree.absence(FnodeId::ROOT, Absence::Preempted);
        self.off_cpu.get_or_insert_default();
    }

    /// How a function waited is told by what it calls, as of goroutines.
    pub fn tells_waits_by_calls(&mut self) {
        self.off_cpu.get_or_insert_default().by_calls = true;
    }

    /// Records one op, with the times in which its thread did not do its work, in order. Requests may be waiting
    /// afterwards.
    pub fn op_with(&mut self, op: &Op, away: &[Interval]) {
        if self.off_cpu.is_none() {
            self.op(op);
            return;
        }
        let latency = op.latency;
        self.as_measured(&op.touched);
        let Apart { op, waits } = apart(&mut self.ftree, op, away, self.noise.long());
        if let Some(table) = &mut self.off_cpu {
            let blocked = waits.iter().filter(|(_, interval)| is_wait(interval));
            table.blocked.clear();
            table
                .blocked
                .extend(blocked.map(|(fnode, interval)| (*fnode, interval.len())));
        }
        self.op(&op);
        self.as_measured(&[]);
        let tells_of_peak = self.tells_of_time_away(&op, away);
        let (Some(peak), Some(table)) = (self.peak_of_op(&op), &mut self.off_cpu) else {
            return;
        };
        if tells_of_peak {
            table.peaks.entry(peak).or_default().add_op(latency, away);
        }
        let calls = op.touched.iter().map(|call| (call.fnode, call.max));
        for (fnode, time) in calls.chain([(FnodeId::ROOT, op.latency)]) {
            let longest = table.longest.entry((fnode, peak)).or_default();
            *longest = *longest + time;
        }
        for (fnode, interval) in waits {
            let waits = table.waits.entry((fnode, peak)).or_default();
            waits.count += 1;
            match interval.why {
                Away::Preempted { by } => {
                    waits.preempted = waits.preempted + interval.len();
                    waits.met(by, interval.len());
                }
                Away::Interrupted(_) => waits.preempted = waits.preempted + interval.len(),
                Away::Faulted { blocked, by } => {
                    let blocked = blocked.min(interval.len());
                    waits.preempted = waits.preempted + interval.len();
                    waits.blocked = waits.blocked + blocked;
                    waits.met(by.filter(|_| blocked > Ticks(0)), blocked);
                }
                Away::Blocked { by, .. } => {
                    let (blocked, runnable) = interval.halves();
                    waits.blocked = waits.blocked + blocked;
                    waits.runnable = waits.runnable + runnable;
                    waits.met(by, blocked);
                }
            }
        }
    }

    /// Whether an op is one of all of its peak, and its latency is known: where the ops of another peak are asked for, those of
    /// this one that are like them come along, which time away has made long.
    fn tells_of_time_away(&self, op: &Op, away: &[Interval]) -> bool {
        let is_clear = self.bucket_of(op) == self.bucket(op.latency);
        // How long page faults are is an estimate.
        let is_known = |interval: &&Interval| !matches!(interval.why, Away::Faulted { .. });
        let together = away.iter().filter(is_known).map(Interval::len);
        let together = together.fold(Ticks(0), |sum, len| sum + len);
        let of_peak = |at: &&PeakAnalysis| at.peak.contains(self.bucket_of(op));
        let bounds = |bucket| self.params.resolution.bounds(bucket);
        let comes_along = self.peaks.iter().find(of_peak).is_some_and(|at| {
            let (first, last) = (bounds(at.peak.first_bucket), bounds(at.peak.last_bucket));
            let (Some((first, _)), Some((_, last))) = (first, last) else {
                return false;
            };
            let is_part = |range: &RangeInclusive<Ticks>| {
                range.contains(&op.latency) && (*range.start() > first || *range.end() < last)
            };
            self.filter.iter().any(is_part)
        });
        is_clear && !comes_along && together <= op.latency
    }

    /// How the longest calls of an fnode waited in the ops of a peak; nothing where that was not seen.
    #[must_use]
    pub fn waits(&self, fnode: FnodeId, peak: u32) -> Option<&Waits> {
        self.off_cpu.as_ref()?.waits.get(&(fnode, peak))
    }

    /// Tells of functions that take the time themselves which part of it they waited. Of those without calls it is known for their
    /// longest calls; of others where nothing was called twice; and of all of them together by how long the peak's threads ran.
    pub(crate) fn tell_waits(&self, peak: u32, causes: &mut [RootCause]) {
        let Some(table) = self.off_cpu.as_ref().filter(|table| !table.by_calls) else {
            return;
        };
        let is_without_calls = |cause: &&mut RootCause| {
            cause.kind == CauseKind::Function && cause.stop == Stop::NoCalls
        };
        for cause in causes.iter_mut().filter(is_without_calls) {
            let last = (cause.path.last().copied().unwrap_or(FnodeId::ROOT), peak);
            let Some(of) = table.longest.get(&last) else {
                continue;
            };
            let waits = table.waits.get(&last);
            let waited = waits.map_or(Ticks(0), |waits| waits.blocked + waits.runnable);
            cause.blocked = Some((waited.0 as f64 / of.0.max(1) as f64).min(1.0));
        }
        self.tell_waits_beyond(peak, causes);
    }

    /// Tells of functions of which nothing else is known how they waited: the least that each did, as all take more than the time in
    /// which the threads ran.
    fn tell_waits_beyond(&self, peak: u32, causes: &mut [RootCause]) {
        let enough = self.params.decision_ops;
        let Some(all) = self.off_cpu(peak).filter(|all| all.ops >= enough) else {
            return;
        };
        let waited = (all.blocked + all.runnable).0 as f64 / all.time.0.max(1) as f64;
        let ran = |cause: &RootCause| {
            let ran = cause.share * (1.0 - cause.blocked.unwrap_or(0.0));
            ran.min(self.own_share(cause))
        };
        let beyond = causes.iter().map(ran).sum::<f64>() - (1.0 - waited) - MUCH;
        // Of an analysis that goes on the shares are also of earlier ops.
        if causes.iter().any(|cause| cause.known_from > all.ops) {
            return;
        }
        let is_unknown =
            |cause: &&mut RootCause| cause.blocked.is_none() && self.own_share(cause) > 0.0;
        let unknown: Vec<&mut RootCause> = causes.iter_mut().filter(is_unknown).collect();
        let together: f64 = unknown.iter().map(|cause| self.own_share(cause)).sum();
        for cause in unknown {
            let own = self.own_share(cause);
            let least = (beyond - (together - own)).min(own);
            if least > 0.0 {
                cause.blocked = Some(least / cause.share);
            }
        }
    }

    /// The part of a peak's time that a cause says is a function's own, and no part of a call in which it may wait.
    fn own_share(&self, cause: &RootCause) -> f64 {
        let last = cause.path.last().copied().unwrap_or(FnodeId::ROOT);
        let is_own = matches!(cause.stop, Stop::SelfTime | Stop::NoCalls)
            && self.ftree.sites(last).unmeasured.is_empty();
        match cause.kind {
            CauseKind::Function if is_own => cause.share,
            CauseKind::Loop if is_own => cause.share * (1.0 - cause.in_calls.unwrap_or(1.0)),
            _ => 0.0,
        }
    }

    /// How long the op at hand waited in an fnode itself, as far as its longest call goes; nothing where that is not asked
    /// for.
    pub(crate) fn blocked_in(&self, fnode: FnodeId) -> Option<Ticks> {
        let table = self.off_cpu.as_ref().filter(|table| !table.by_calls)?;
        let here = table.blocked.iter().filter(|(at, _)| *at == fnode);
        Some(here.fold(Ticks(0), |sum, &(_, time)| sum + time))
    }

    /// Where the threads of a peak's ops were; nothing where that was not asked for.
    #[must_use]
    pub fn off_cpu(&self, peak: u32) -> Option<&OffCpu> {
        self.off_cpu.as_ref()?.peaks.get(&peak)
    }

    /// Whether a peak is of ops that were struck, and its functions are said to take time that they take only then: what it takes
    /// to go to an interrupt and back, and what is lost with it, the kernel does not tell.
    #[must_use]
    pub fn is_of_struck_ops(&self, peak: u32) -> bool {
        let Some(table) = &self.off_cpu else {
            return false;
        };
        let mut others = OffCpu::default();
        for (_, all) in table.peaks.iter().filter(|(other, _)| **other != peak) {
            others.exposed = others.exposed + all.exposed;
            others.struck += all.struck;
        }
        let own = table.peaks.get(&peak);
        let explained: f64 = root_causes(&self.ftree, peak)
            .iter()
            .filter(|cause| matches!(cause.kind, CauseKind::Function | CauseKind::Loop))
            .map(|cause| cause.share)
            .sum();
        explained >= LEAST_OWN && own.is_some_and(|own| own.is_struck_beyond(&others))
    }

    /// The fnodes in which ops of a peak waited, the longest time first. Ops from before an fnode's calls were measured
    /// count for the fnode itself.
    #[must_use]
    pub fn waited_in(&self, peak: u32) -> Vec<(FnodeId, &Waits)> {
        let waits = self.off_cpu.iter().flat_map(|table| &table.waits);
        let mut found: Vec<(FnodeId, &Waits)> = waits
            .filter(|((fnode, of), _)| *of == peak && !is_absence(self.ftree.fnode(*fnode).callee))
            .map(|((fnode, _), waits)| (*fnode, waits))
            .collect();
        found.sort_by_key(|(fnode, waits)| (std::cmp::Reverse(waits.blocked), *fnode));
        found
    }

    /// Whether an fnode stands for time away that is no tenth of the time of all ops of the peak by now, whatever it was of
    /// those that were decided with: what else the machine does comes in bursts.
    pub(crate) fn is_small_in_all(&self, fnode: FnodeId, peak: u32) -> bool {
        let Callee::Absence(kind) = self.ftree.fnode(fnode).callee else {
            return false;
        };
        let all = self.off_cpu(peak).filter(|all| all.ops >= ENOUGH);
        all.is_some_and(|all| {
            let part = match kind {
                Absence::Preempted => all.preempted,
                Absence::PageFault => all.faulting,
                Absence::Signal(_) => all.handling,
                // The kernel tells nothing of it.
                Absence::Awaiting(_) => return false,
                Absence::Interrupt(_) | Absence::LocalInterrupt(_) | Absence::SoftInterrupt(_) => {
                    all.interrupted
                }
            };
            (part.0 as f64) < LEAST * all.time.0 as f64
        })
    }

    /// Takes the calls of an op as they were measured.
    pub(crate) fn as_measured(&mut self, touched: &[Touched]) {
        if let Some(table) = &mut self.off_cpu {
            table.measured.clear();
            table.measured.extend_from_slice(touched);
        }
    }

    /// A call of an fnode with all that was taken out of it again: what its callees and the time away in it compete for.
    pub(crate) fn whole(&self, call: &Touched) -> Touched {
        let table = self.off_cpu.iter();
        let mut measured = table.flat_map(|table| &table.measured);
        let whole = measured.find(|whole| whole.fnode == call.fnode);
        *whole.unwrap_or(call)
    }
}

fn is_wait(interval: &Interval) -> bool {
    matches!(interval.why, Away::Blocked { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::off_cpu::OtherId;
    use crate::off_cpu::apart::tests::{BY, interval, op, touched};
    use crate::{CalleeId, Params, Request, Status};
    use darc_record::SiteId;
    use darc_record::Tsc;

    /// An op that begins when all others have ended.
    fn follow(analysis: &mut Analysis, mut op: Op, away: &[Interval]) {
        let by = 2 * analysis.profile().total().0;
        let later = |at: Tsc| Tsc(at.0 + by);
        (op.start, op.end) = (later(op.start), later(op.end));
        for touched in &mut op.touched {
            touched.max_start = later(touched.max_start);
        }
        let away = away.iter().map(|it| Interval {
            from: later(it.from),
            to: later(it.to),
            why: match it.why {
                Away::Blocked { woken, by } => Away::Blocked {
                    woken: woken.map(later),
                    by,
                },
                why => why,
            },
        });
        analysis.op_with(&op, &away.collect::<Vec<_>>());
    }

    /// Preemption in a callee that is investigated is no part of that callee: f0 tells it, with all that struck elsewhere.
    #[test]
    fn preemption_below_f0_is_told_at_f0() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        let callee = Callee::Function(CalleeId(1));
        let mut fnodes = Vec::new();
        // f0 takes 100 µs, g in it nearly all; in g are ten calls of h, 4 µs each, and another thread: for 5 µs until g is
        // looked at, for 30 µs in the ops that decide there.
        for _ in 0..5_000 {
            let mut called = Vec::new();
            if let Some(&g) = fnodes.first() {
                called.push(touched(g, 2_000, 95_000));
            }
            if let Some(&h) = fnodes.get(1) {
                let ten = Touched {
                    sum: Ticks(40_000),
                    count: 10,
                    ..touched(h, 3_000, 4_000)
                };
                called.push(ten);
            }
            let taken = if fnodes.len() < 2 { 5_000 } else { 30_000 };
            let away = [interval(40_000, 40_000 + taken, BY)];
            follow(&mut analysis, op(100_000, called), &away);
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    if fnodes.len() < 2 {
                        let site = SiteId(fnodes.len() as u32);
                        fnodes.push(analysis.add_child(fnode, site, callee));
                    }
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        let g = fnodes[0];
        let there = analysis.ftree().known_absence(g, Absence::Preempted);
        let there = analysis.ftree().fnode(there.expect("an fnode in g"));
        assert_eq!(there.parent, Some(g));
        assert_eq!(there.record(1).stats.mean(), Ticks(30_000));
        let causes = analysis.root_causes(1);
        assert!(causes.iter().all(|cause| !cause.path.contains(&there.id)));
        let explained: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!(explained <= 1.0, "{causes:?}");
    }

    /// The ops of the slow peak are asked for, and with them the slowest of the fast one, all of which were interrupted.
    #[test]
    fn ops_that_come_along_tell_nothing_of_time_away() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        let kind = Away::Interrupted(Absence::Interrupt(1));
        for turn in 0..400 {
            let latency = if turn % 5 == 4 { 1_000_000 } else { 1_000 };
            follow(&mut analysis, op(latency, Vec::new()), &[]);
        }
        let fast = analysis.peak_of(analysis.bucket(Ticks(1_000)));
        let fast = fast.expect("a peak");
        let before = analysis.off_cpu(fast).map_or(0, |all| all.ops);
        analysis.filter = vec![Ticks(1_010)..=Ticks(u64::MAX)];
        for _ in 0..100 {
            let away = [interval(1_100, 1_900, kind)];
            follow(&mut analysis, op(1_020, Vec::new()), &away);
        }
        // As much was taken out as if the interrupt had been measured, too.
        analysis.filter.clear();
        follow(
            &mut analysis,
            op(990, Vec::new()),
            &[interval(1_000, 9_000, kind)],
        );
        let all = analysis.off_cpu(fast).copied().unwrap_or_default();
        assert_eq!((all.ops, all.interrupted), (before, Ticks(0)));
    }

    /// Short ops that call g, and far ones in which g was preempted: the far peak's cause is the preemption.
    #[test]
    fn preemption_is_the_cause_of_a_far_peak() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        let mut g = None;
        for turn in 0..5_000 {
            let far = turn % 5 == 4;
            let called = g.map(|g| {
                let took = if far { 1_000_900 } else { 900 };
                touched(g, 1_050, took)
            });
            let latency = if far { 1_001_000 } else { 1_000 };
            let away = [interval(1_500, 1_001_500, BY)];
            let away = if far { &away[..] } else { &[] };
            follow(
                &mut analysis,
                op(latency, called.into_iter().collect()),
                away,
            );
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    if fnode == FnodeId::ROOT {
                        let callee = Callee::Function(CalleeId(1));
                        g = Some(analysis.add_child(fnode, SiteId(1), callee));
                    }
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        assert_eq!(analysis.status(), Status::RootCauseFound);
        let ends = |peak| -> Vec<(CauseKind, usize)> {
            let causes = analysis.root_causes(peak);
            causes
                .iter()
                .map(|cause| (cause.kind, cause.path.len()))
                .collect()
        };
        let far = analysis
            .peaks()
            .iter()
            .max_by_key(|peak| peak.first_bucket)
            .unwrap()
            .number;
        let near = analysis
            .peaks()
            .iter()
            .min_by_key(|peak| peak.first_bucket)
            .unwrap()
            .number;
        assert_eq!(ends(near), [(CauseKind::Function, 2)]);
        assert_eq!(ends(far), [(CauseKind::Preemption, 2)]);
        let cause = &analysis.root_causes(far)[0];
        let waits = analysis.waits(*cause.path.last().unwrap(), far).unwrap();
        assert!(waits.others[&OtherId(7)].0 > 20, "{waits:?}");
    }

    /// g touches new memory in the slow ops alone, and makes no calls: the page faults are told below it, and once.
    #[test]
    fn page_faults_have_a_place() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        let mut g = None;
        let fault = Away::Faulted {
            blocked: Ticks(30_000),
            by: Some(OtherId(7)),
        };
        for turn in 0..5_000 {
            let slow = turn % 5 == 4;
            let (took, latency) = if slow { (48_500, 50_000) } else { (900, 1_000) };
            let called = g.map(|g| touched(g, 1_050, took));
            // The estimate is longer than the call.
            let away = [interval(1_000, 50_000, fault)];
            let away = if slow { &away[..] } else { &[] };
            follow(
                &mut analysis,
                op(latency, called.into_iter().collect()),
                away,
            );
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    if fnode == FnodeId::ROOT {
                        let callee = Callee::Function(CalleeId(1));
                        g = Some(analysis.add_child(fnode, SiteId(1), callee));
                    }
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        assert_eq!(analysis.status(), Status::RootCauseFound);
        let peaks = analysis.peaks();
        let ends = |peak: u32| -> Vec<_> {
            let causes = analysis.root_causes(peak).into_iter();
            causes.map(|it| (it.kind, it.path.len())).collect()
        };
        assert_eq!(ends(peaks[0].number), [(CauseKind::Function, 2)]);
        assert_eq!(ends(peaks[1].number), [(CauseKind::PageFault, 3)]);
        // What they waited for is told with them.
        let causes = analysis.root_causes(peaks[1].number);
        let last = *causes[0].path.last().expect("a path");
        let waits = analysis.waits(last, peaks[1].number).expect("seen");
        assert_eq!(waits.blocked, Ticks(30_000 * waits.count));
        assert_eq!(waits.preempted, Ticks(49_000 * waits.count));
        assert_eq!(waits.others[&OtherId(7)], (waits.count, waits.blocked));
        let cause = &analysis.root_causes(peaks[1].number)[0];
        assert!((0.9..=1.0).contains(&cause.share), "{cause:?}");
    }

    /// Another thread runs for half of each of the first ops, and never again.
    #[test]
    fn a_burst_of_preemption_is_no_cause_in_the_end() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        analysis.look_on();
        let mut g = None;
        for turn in 0..3_000 {
            let called = g.map(|g| touched(g, 1_500, 99_000));
            let away = [interval(20_000, 70_000, BY)];
            let away = if turn < 180 { &away[..] } else { &[] };
            follow(
                &mut analysis,
                op(100_000, called.into_iter().collect()),
                away,
            );
            if turn == 2_000 {
                analysis.seen_enough();
            }
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    if g.is_none() {
                        g = Some(analysis.add_child(
                            fnode,
                            SiteId(1),
                            Callee::Function(CalleeId(1)),
                        ));
                    }
                    analysis.expanded(fnode, Tsc(0));
                }
            }
            if turn == 1_000 {
                let kinds = analysis.root_causes(1).into_iter().map(|cause| cause.kind);
                assert!(kinds.collect::<Vec<_>>().contains(&CauseKind::Preemption));
            }
        }
        let causes = analysis.root_causes(1);
        assert!(analysis.is_finished(), "{causes:?}");
        assert!(
            causes.iter().all(|cause| cause.kind == CauseKind::Function),
            "{causes:?}"
        );
        assert_eq!(analysis.status(), Status::RootCauseFound);
    }

    /// f0 calls g, g calls h, and in h another thread runs for half of the time.
    #[test]
    fn time_away_is_in_the_share_of_no_function() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        let mut below = Vec::new();
        for _ in 0..1_000 {
            let called = below.iter().zip(1..);
            let called = called.map(|(&fnode, depth)| touched(fnode, 1_000 + depth * 10, 99_000));
            let away = [interval(20_000, 70_000, BY)];
            follow(&mut analysis, op(100_000, called.collect()), &away);
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    if below.len() < 2 {
                        let callee = Callee::Function(CalleeId(below.len() as u32));
                        below.push(analysis.add_child(fnode, SiteId(below.len() as u32), callee));
                    }
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        let causes = analysis.root_causes(1);
        let h = causes.iter().find(|cause| cause.path.len() == 3);
        let h = h.unwrap_or_else(|| panic!("{causes:?}"));
        assert!(h.shares[1] > 0.48 && h.shares[2] > 0.48, "{h:?}");
        let shares: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!((0.95..1.0).contains(&shares), "{causes:?}");
    }

    fn prepared() -> Analysis {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        analysis
    }

    fn with_a_call(start: u64, length: u64, away: &[Interval]) -> Analysis {
        with_calls(|g| touched(g, start, length), away)
    }

    fn with_calls(calls: impl Fn(FnodeId) -> Touched, away: &[Interval]) -> Analysis {
        let mut analysis = prepared();
        call(&mut analysis, calls, away);
        analysis
    }

    /// Ops of f0 with such calls of g in each, while the thread is away for these times.
    fn call(analysis: &mut Analysis, calls: impl Fn(FnodeId) -> Touched, away: &[Interval]) {
        let mut g = None;
        for _ in 0..1_000 {
            let called = g.map(&calls);
            let called = called.into_iter().collect();
            follow(analysis, op(100_000, called), away);
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    if fnode == FnodeId::ROOT {
                        let callee = Callee::Function(CalleeId(1));
                        g = Some(analysis.add_child(fnode, SiteId(1), callee));
                    }
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
    }

    const WAIT: Away = Away::Blocked {
        woken: None,
        by: None,
    };

    /// f0 waits itself for a tenth of the op, and for most of it in g, also while only f0 is measured.
    #[test]
    fn a_wait_in_a_callee_is_none_of_the_function_itself() {
        let away = [
            interval(2_000, 12_000, WAIT),
            interval(42_000, 100_000, WAIT),
        ];
        let causes = with_a_call(41_000, 60_000, &away).root_causes(1);
        let itself = causes.iter().find(|cause| cause.path.len() == 1);
        let blocked = itself.and_then(|cause| cause.blocked).expect("seen");
        assert!((blocked - 0.25).abs() < 0.01, "{causes:?}");
    }

    /// The kernel tells of the switch to another thread alone, as where page faults are not told.
    #[test]
    fn a_function_without_calls_that_waits_does_not_take_its_time() {
        for (waited, is_known) in [(90_000, false), (20_000, true)] {
            let away = [interval(5_000, 5_000 + waited, WAIT)];
            let analysis = with_a_call(4_000, 95_000, &away);
            let cause = &analysis.root_causes(1)[0];
            assert_eq!((cause.path.len(), &cause.stop), (2, &Stop::NoCalls));
            let expected = waited as f64 / 95_000.0;
            assert!((cause.blocked.unwrap() - expected).abs() < 0.1, "{cause:?}");
            let is_found = analysis.status() == Status::RootCauseFound;
            assert_eq!(is_found, is_known, "{waited}");
        }
    }

    /// As many as three calls that wait, of which the longest is known alone: the others are as that is.
    #[test]
    fn a_function_that_waits_in_each_of_its_calls_does_not_take_its_time() {
        let three = |g| Touched {
            sum: Ticks(90_000),
            count: 3,
            ..touched(g, 5_000, 30_000)
        };
        for (waited, is_known) in [(27_000, false), (5_000, true)] {
            let call = |begin| interval(begin, begin + waited, WAIT);
            let away = [call(6_000), call(37_000), call(68_000)];
            let analysis = with_calls(three, &away);
            let cause = &analysis.root_causes(1)[0];
            assert_eq!((cause.path.len(), &cause.stop), (2, &Stop::NoCalls));
            let expected = waited as f64 / 30_000.0;
            assert!((cause.blocked.unwrap() - expected).abs() < 0.1, "{cause:?}");
            let is_found = analysis.status() == Status::RootCauseFound;
            assert_eq!(is_found, is_known, "{waited}");
        }
    }

    /// f0 calls g twice, and takes most of the time itself, in which its thread ran or did not: nothing tells of its waits apart.
    #[test]
    fn a_function_that_takes_longer_than_its_thread_ran_does_not_take_its_time() {
        let twice = |g| Touched {
            sum: Ticks(4_000),
            count: 2,
            ..touched(g, 2_000, 2_000)
        };
        for (waited, is_known) in [(80_000, false), (30_000, true)] {
            let analysis = with_calls(twice, &[interval(10_000, 10_000 + waited, WAIT)]);
            let cause = &analysis.root_causes(1)[0];
            assert_eq!((cause.path.len(), cause.kind), (1, CauseKind::Function));
            let is_found = analysis.status() == Status::RootCauseFound;
            assert_eq!(is_found, is_known, "{waited}: {cause:?}");
            assert_eq!(cause.blocked.is_some_and(|part| part > 0.5), !is_known);
        }
    }

    /// g does not wait, so that it is f0 that did, whose waits are not known apart.
    #[test]
    fn a_function_that_ran_has_no_part_in_the_waits_of_others() {
        let twice = |g| Touched {
            sum: Ticks(24_000),
            count: 2,
            ..touched(g, 2_000, 12_000)
        };
        let analysis = with_calls(twice, &[interval(30_000, 94_000, WAIT)]);
        let causes = analysis.root_causes(1);
        let of = |depth| causes.iter().find(|cause| cause.path.len() == depth);
        assert_eq!(of(2).unwrap().blocked, Some(0.0), "{causes:?}");
        assert!(of(1).unwrap().blocked.unwrap() > 0.5, "{causes:?}");
        assert_eq!(analysis.status(), Status::Undecided);
    }

    /// Where what a function waits for is told by what it calls, it is no unknown wait.
    #[test]
    fn who_is_called_to_wait_is_no_unknown() {
        let mut analysis = with_a_call(4_000, 95_000, &[interval(5_000, 95_000, WAIT)]);
        assert_eq!(analysis.status(), Status::Undecided);
        analysis.tells_waits_by_calls();
        assert_eq!(analysis.status(), Status::RootCauseFound);
    }

    /// ... nor is the wait of a function whose call to wait was inlined.
    #[test]
    fn who_was_inlined_to_wait_is_no_unknown() {
        let away = [interval(10_000, 95_000, WAIT)];
        let mut analysis = prepared();
        call(&mut analysis, |g| touched(g, 4_000, 5_000), &away);
        assert_eq!(analysis.status(), Status::Undecided);
        let mut analysis = prepared();
        analysis.tells_waits_by_calls();
        call(&mut analysis, |g| touched(g, 4_000, 5_000), &away);
        assert_eq!(analysis.status(), Status::RootCauseFound);
    }

    #[test]
    fn a_function_without_calls_says_so_all_the_same() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        for _ in 0..1_000 {
            follow(&mut analysis, op(1_000, Vec::new()), &[]);
            for request in analysis.requests() {
                if let Request::Expand(fnode) = request {
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        assert_eq!(analysis.status(), Status::RootCauseFound);
        assert_eq!(analysis.root_causes(1)[0].stop, Stop::NoCalls);
    }
}
