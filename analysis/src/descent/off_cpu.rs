//! Ops with the times in which their thread did not do its work.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use darc_record::{FnodeId, Op, Ticks, Touched};

use crate::descent::ftree::{Absence, Callee};
use crate::descent::peak_record::Stop;
use crate::descent::root_cause::{CauseKind, RootCause, root_causes};
use crate::descent::share::LEAST;
use crate::descent::{Analysis, PeakAnalysis};
use crate::off_cpu::apart::{Apart, apart};
use crate::off_cpu::records::without_records;
use crate::off_cpu::{Away, Interval, Kept, OffCpu, Waits, is_absence};

/// The part of a peak's time that is to be explained by functions, for what strikes them to matter.
const LEAST_OWN: f64 = 0.3;
/// So many ops of a peak tell which part of its time is time away.
const ENOUGH: u64 = 200;
/// Functions cannot take more of a peak's time than its threads ran. The two are known from different ops, and may differ by so
/// much.
const MUCH: f64 = 0.2;

/// Where threads were kept from running for this part of the time in which they would have run, and of the own time of a peak's
/// functions, nobody knows whose time that is.
const MUCH_KEPT: f64 = 1.0 / 3.0;
/// As much of a peak's own time may have been it where a person is to be told.
const MAY_BE_KEPT: f64 = 0.5;
/// A thread that was kept from running for a smaller part of an op than this did not make it long.
const NOTICEABLE: f64 = 0.1;
/// Where it is known of all but this part of a peak's ops when their threads were kept from running, sums say nothing of it.
const FEW: f64 = 0.1;

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
    /// How threads were kept from running, where only that is known.
    kept: Kept,
    /// Of each peak, where that is known of some ops: of how many, and of how many it is not.
    known: HashMap<u32, [u64; 2]>,
    /// Functions of which it is known that they do not run in their time: they make a system call, or let others run.
    others: BTreeSet<FnodeId>,
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
        let known = std::mem::take(&mut self.known).into_iter();
        self.known = known
            .filter_map(|(peak, ops)| Some((now(peak)?, ops)))
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

    /// Threads were kept from running so, and when that was is not known. The time of `others` is none in which they would have run.
    pub fn kept_from_running(&mut self, kept: Kept, others: BTreeSet<FnodeId>) {
        let table = self.off_cpu.get_or_insert_default();
        (table.kept, table.others) = (kept, others);
    }

    /// When its thread was kept from running is known of an op, or is not. Where that is known of a peak's ops,
    /// [`Analysis::kept_from_running`] is of others.
    pub fn knows_when_kept(&mut self, op: &Op, is_known: bool) {
        if let (Some(peak), Some(table)) = (self.peak_of_op(op), &mut self.off_cpu) {
            table.known.entry(peak).or_default()[usize::from(!is_known)] += 1;
        }
    }

    /// Whether a peak is of time that functions take themselves, much of which may be time in which threads were kept from running: the
    /// part of all time for which they were, where that is so.
    #[must_use]
    pub fn kept_from_deciding(&self, peak: u32) -> Option<f64> {
        let kept = self.off_cpu.as_ref()?.kept;
        let is_much = kept.part >= MUCH_KEPT && self.may_be_of(kept, peak, MUCH_KEPT);
        is_much.then_some(kept.part)
    }

    /// Whether there is a peak of whose own time much may be time in which threads were kept from running, though that was little
    /// of all time.
    #[must_use]
    pub fn may_be_kept_from_running(&self) -> bool {
        let kept = self.off_cpu.as_ref().map(|table| table.kept);
        let peaks = self.peaks();
        let mut peaks = peaks.iter();
        kept.is_some_and(|kept| peaks.any(|peak| self.may_be_of(kept, peak.number, MAY_BE_KEPT)))
    }

    /// Whether so large a part of the own time of a peak's functions may be time in which threads were kept from running, and one such
    /// time is noticeable in an op of the peak.
    fn may_be_of(&self, kept: Kept, peak: u32, part: f64) -> bool {
        let known = self.off_cpu.as_ref().and_then(|it| it.known.get(&peak));
        if known.is_some_and(|&[known, not]| (not as f64) < FEW * (known + not) as f64) {
            return false;
        }
        let content = self.peaks().into_iter().find(|at| at.number == peak);
        let Some(content) = content.map(|at| at.content).filter(|all| all.ops > 0) else {
            return false;
        };
        let (own, total) = (self.own_part(peak), content.total.0 as f64);
        own >= LEAST_OWN
            && kept.time.0 as f64 >= part * own * total
            && kept.turn.0 as f64 >= NOTICEABLE * total / content.ops as f64
    }

    /// The part of a peak's time that functions are said to take themselves, and did not wait in as far as is known.
    fn own_part(&self, peak: u32) -> f64 {
        let Some(table) = &self.off_cpu else {
            return 0.0;
        };
        let waits = |fnode: FnodeId| {
            let waits = table.waits.get(&(fnode, peak));
            let of = table
                .longest
                .get(&(fnode, peak))
                .map_or(1, |of| of.0.max(1));
            waits.is_some_and(|it| (it.blocked + it.runnable).0 as f64 > 0.5 * of as f64)
        };
        let causes = self.root_causes(peak);
        let own = causes.iter().filter(|cause| {
            let is_own = matches!(cause.kind, CauseKind::Function | CauseKind::Loop);
            let last = cause.path.last();
            is_own && !last.is_some_and(|&last| table.others.contains(&last) || waits(last))
        });
        own.map(|cause| cause.share).sum()
    }

    /// The kernel's records of a page fault take so long.
    pub fn faults_are_recorded(&mut self, each: Ticks) {
        self.fault_records = each;
    }

    /// Records one op, with the times in which its thread did not do its work, in order. Requests may be waiting
    /// afterwards.
    pub fn op_with(&mut self, op: &Op, away: &[Interval]) {
        let cut = without_records(&self.ftree, op, away, self.fault_records);
        let place = self.counted(op, cut.as_ref().map_or(op.latency, |left| left.op.latency));
        if self.off_cpu.is_none() {
            self.learn_from(place.given_back.as_ref().unwrap_or(op), &place);
            return;
        }
        let tells_of_peak = place.is_clear && self.tells_of_time_away(op, away);
        let cut = match &place.given_back {
            Some(op) => without_records(&self.ftree, op, away, self.fault_records),
            None => cut,
        };
        let op = place.given_back.as_ref().unwrap_or(op);
        let (op, away) = match &cut {
            Some(left) => (&left.op, &left.away[..]),
            None => (op, away),
        };
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
        self.learn_from(&op, &place);
        self.as_measured(&[]);
        let (Some(peak), Some(table)) = (self.peak_of(place.bucket), &mut self.off_cpu) else {
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

    /// Whether an op is one of all of its peak: where the ops of another peak are asked for, those of
    /// this one that are like them come along, which time away has made long.
    fn tells_of_time_away(&self, op: &Op, away: &[Interval]) -> bool {
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
        !comes_along && together <= op.latency
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
        let explained: f64 = root_causes(&self.ftree, peak, Ticks(0))
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
mod tests;
