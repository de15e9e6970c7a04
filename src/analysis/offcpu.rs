//! Times inside an op in which the thread did not do its work: preempted, interrupted, or blocked (DARC, SIGMETRICS
//! 2008, section 3.6). Pure.
//!
//! Preemption, interrupts and page faults strike wherever the thread happens to be. Their time is taken out of the
//! latency of every fnode that was current then, and competes at each fnode that is investigated, as the sum of all
//! that struck there or below: first as a callee of f0, and, when the descent goes on in a callee all the same, there
//! once more with what struck in it. What is a cause of the peak further up does not compete again below.
//! Where the thread *waited*, the function that waited is the cause, and keeps the time; what is added
//! is how long it was blocked, how long it could have run and did not, and who woke it.

use std::collections::{BTreeMap, HashMap};

use darc_tracer::record::{FnodeId, Op, Ticks, Touched, Tsc};

use super::apart::{Apart, apart};
use super::descent::Analysis;
use super::ftree::{Absence, Callee};
use super::peak_record::PathState;

/// A thread that ran instead or woke another, as the session numbers them; opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OtherId(pub u32);

/// Why a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Away {
    /// It could have gone on, but another one ran.
    Preempted {
        /// Who, where that is known.
        by: Option<OtherId>,
    },
    /// It waited.
    Blocked {
        /// From when on it could have run again, where that is known.
        woken: Option<Tsc>,
        /// Who woke it, where that is known.
        by: Option<OtherId>,
    },
    /// Its CPU served an interrupt.
    Interrupted(Absence),
}

/// A time in which a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// When it stopped.
    pub from: Tsc,
    /// When it went on.
    pub to: Tsc,
    /// Why.
    pub why: Away,
}

impl Interval {
    pub(super) fn len(&self) -> Ticks {
        self.to - self.from
    }

    /// Of a wait: until it was over, and from then on.
    fn halves(&self) -> (Ticks, Ticks) {
        let woken = match self.why {
            Away::Blocked { woken, .. } => woken.unwrap_or(self.to),
            _ => self.to,
        };
        let woken = woken.max(self.from).min(self.to);
        (woken - self.from, self.to - woken)
    }
}

/// How an fnode's ops of one peak waited.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Waits {
    /// How often it waited, or was struck.
    pub count: u64,
    /// Waiting for something.
    pub blocked: Ticks,
    /// Woken, but not running yet.
    pub runnable: Ticks,
    /// Preempted or interrupted.
    pub preempted: Ticks,
    /// Who ran instead (for an absence) or woke the thread: how often, and the time of it.
    pub others: BTreeMap<OtherId, (u64, Ticks)>,
}

impl Waits {
    fn met(&mut self, other: Option<OtherId>, time: Ticks) {
        if let Some(other) = other {
            let (count, sum) = self.others.entry(other).or_default();
            *count += 1;
            *sum = *sum + time;
        }
    }
}

/// Where the threads of all ops of one peak were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OffCpu {
    /// The ops that the kernel's records were there for.
    pub ops: u64,
    /// Their latencies together.
    pub time: Ticks,
    /// The part of it in which they waited for something,
    pub blocked: Ticks,
    /// in which they could have gone on after that, but did not run,
    pub runnable: Ticks,
    /// in which another thread ran instead,
    pub preempted: Ticks,
    /// in which their CPU served interrupts, or did their deferred work,
    pub interrupted: Ticks,
    /// and in which pages were brought in.
    pub faulting: Ticks,
}

/// What the kernel told.
#[derive(Clone, Default, Debug)]
pub(super) struct OffCpuTable {
    /// How the fnodes of each peak waited.
    waits: HashMap<(FnodeId, u32), Waits>,
    /// All ops of each peak.
    peaks: HashMap<u32, OffCpu>,
    /// The calls of the op at hand before anything was taken out of them; kept to save allocations.
    measured: Vec<Touched>,
}

impl OffCpu {
    fn add(&mut self, interval: &Interval) {
        let len = interval.len();
        let part = match interval.why {
            Away::Preempted { .. } => &mut self.preempted,
            Away::Interrupted(Absence::PageFault) => &mut self.faulting,
            Away::Interrupted(_) => &mut self.interrupted,
            Away::Blocked { .. } => {
                let (blocked, runnable) = interval.halves();
                self.runnable = self.runnable + runnable;
                self.blocked = self.blocked + blocked;
                return;
            }
        };
        *part = *part + len;
    }
}

impl Analysis {
    /// Time away will be told of: f0 has these callees beside its own, and is measured even if it makes no calls.
    pub fn expect_absences(&mut self) {
        self.ftree.absence(FnodeId::ROOT, Absence::Preempted);
        self.off_cpu.get_or_insert_default();
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
        let Apart { op, waits } = apart(&mut self.ftree, op, away);
        self.op(&op);
        self.as_measured(&[]);
        let (Some(peak), Some(table)) = (self.peak_of_op(&op), &mut self.off_cpu) else {
            return;
        };
        let all = table.peaks.entry(peak).or_default();
        all.ops += 1;
        all.time = all.time + latency;
        for interval in away {
            all.add(interval);
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
                Away::Blocked { by, .. } => {
                    let (blocked, runnable) = interval.halves();
                    waits.blocked = waits.blocked + blocked;
                    waits.runnable = waits.runnable + runnable;
                    waits.met(by, blocked);
                }
            }
        }
    }

    /// How the longest calls of an fnode waited in the ops of a peak; nothing where that was not seen.
    #[must_use]
    pub fn waits(&self, fnode: FnodeId, peak: u32) -> Option<&Waits> {
        self.off_cpu.as_ref()?.waits.get(&(fnode, peak))
    }

    /// Where the threads of a peak's ops were; nothing where that was not asked for.
    #[must_use]
    pub fn off_cpu(&self, peak: u32) -> Option<&OffCpu> {
        self.off_cpu.as_ref()?.peaks.get(&peak)
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

    /// Takes the calls of an op as they were measured.
    pub(super) fn as_measured(&mut self, touched: &[Touched]) {
        if let Some(table) = &mut self.off_cpu {
            table.measured.clear();
            table.measured.extend_from_slice(touched);
        }
    }

    /// A call of an fnode with all that was taken out of it again: what its callees and the time away in it compete for.
    pub(super) fn whole(&self, call: &Touched) -> Touched {
        let table = self.off_cpu.iter();
        let mut measured = table.flat_map(|table| &table.measured);
        let whole = measured.find(|whole| whole.fnode == call.fnode);
        *whole.unwrap_or(call)
    }

    /// Whether an fnode stands for time away that is a cause of the peak further up already.
    pub(super) fn is_told_above(&self, fnode: FnodeId, peak: u32) -> bool {
        let fnode = self.ftree.fnode(fnode);
        let (Callee::Absence(kind), Some(parent)) = (fnode.callee, fnode.parent) else {
            return false;
        };
        let above = std::iter::successors(self.ftree.fnode(parent).parent, |&at| {
            self.ftree.fnode(at).parent
        });
        above
            .filter_map(|at| self.ftree.known_absence(at, kind))
            .any(|id| self.ftree.fnode(id).record(peak).state != PathState::NotChosen)
    }
}

/// Whether an fnode stands for time away.
#[must_use]
pub fn is_absence(callee: Callee) -> bool {
    matches!(callee, Callee::Absence(_))
}

#[cfg(test)]
mod tests {
    use super::super::apart::tests::{BY, interval, op, touched};
    use super::*;
    use crate::analysis::{CalleeId, CauseKind, Params, Request, Status, Stop};
    use darc_tracer::record::SiteId;

    /// Preemption in a callee that is investigated competes there too, against what that callee does.
    #[test]
    fn preemption_competes_where_it_struck() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        let callee = Callee::Function(CalleeId(1));
        let mut fnodes = Vec::new();
        // f0 takes 100 µs, g in it nearly all; in g are ten calls of h, 4 µs each, and 30 µs of another thread.
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
            let away = [interval(40_000, 70_000, BY)];
            analysis.op_with(&op(100_000, called), &away);
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
        // 61 of g's 65 µs are its own; 30 µs are no contributor. g as a whole is what f0 sees, without the preemption.
        let taken = analysis.ftree().fnode(g).record(1).stats.mean();
        assert_eq!(taken, Ticks(65_000));
        assert_eq!(
            analysis.ftree().fnode(g).record(1).measured_time.0 % 95_000,
            0
        );
        let all = analysis.off_cpu(1).expect("told");
        assert_eq!(all.preempted.0, 30_000 * all.ops);
        let there = there.id;
        assert!(!analysis.is_told_above(there, 1));
        // As a cause of the peak at f0 it is not told again below.
        let above = analysis
            .ftree()
            .known_absence(FnodeId::ROOT, Absence::Preempted);
        analysis.begin_path(above.expect("an fnode in f0"), 1);
        assert!(analysis.is_told_above(there, 1));
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
            analysis.op_with(&op(latency, called.into_iter().collect()), away);
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

    #[test]
    fn a_function_without_calls_says_so_all_the_same() {
        let mut analysis = Analysis::new(Params::default());
        analysis.expect_absences();
        for _ in 0..1_000 {
            analysis.op_with(&op(1_000, Vec::new()), &[]);
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
