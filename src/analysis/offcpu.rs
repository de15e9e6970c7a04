//! Time inside an op in which the thread did not do its work: preempted, interrupted, or blocked (DARC, SIGMETRICS
//! 2008, section 3.6). Pure.
//!
//! Preemption strikes wherever the thread happens to be. It is taken out of the latency of every fnode that was current
//! then, and competes as a callee of f0: under the function that it struck each time it would be many small causes
//! instead of one. Where the thread *waited*, the function that waited is the cause, and keeps the time; what is added
//! is how long it was blocked, how long it could have run and did not, and who woke it.

use std::collections::{BTreeMap, HashMap};

use darc_tracer::record::{FnodeId, Op, Ticks, Touched, Tsc};

use super::descent::Analysis;
use super::ftree::{Absence, Callee, Ftree};

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
    fn len(&self) -> Ticks {
        self.to - self.from
    }
}

/// How an fnode's ops of one peak waited.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Waits {
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

/// How the fnodes of each peak waited.
pub(super) type WaitTable = HashMap<(FnodeId, u32), Waits>;

/// What of an op is left when time away is taken out, and where that time went.
#[derive(Debug)]
struct Apart {
    op: Op,
    /// By fnode: the deepest one that was current, or the absence.
    waits: Vec<(FnodeId, Interval)>,
}

/// The deepest fnode whose longest call holds the interval; f0 when there is none.
fn current(ftree: &Ftree, op: &Op, interval: &Interval) -> FnodeId {
    let holders = op.touched.iter().filter(|touched| holds(touched, interval));
    let depth = |touched: &&Touched| ftree.get(touched.fnode).map_or(0, |fnode| fnode.depth);
    holders
        .max_by_key(depth)
        .map_or(FnodeId::ROOT, |touched| touched.fnode)
}

/// Whether the longest call of an fnode was under way. The probes' own cost is taken out of `max`, so the end is a
/// little later than it seems: what begins within counts.
fn holds(touched: &Touched, interval: &Interval) -> bool {
    touched.max_start <= interval.from
        && interval.from - touched.max_start < touched.max
        && interval.len() <= touched.max
}

fn apart(ftree: &mut Ftree, op: &Op, away: &[Interval]) -> Apart {
    let mut left = Apart {
        op: op.clone(),
        waits: Vec::new(),
    };
    let mut absent: BTreeMap<Absence, (Tsc, Ticks)> = BTreeMap::new();
    for interval in away {
        let kind = match interval.why {
            Away::Preempted { .. } => Absence::Preempted,
            Away::Interrupted(kind) => kind,
            Away::Blocked { .. } => {
                let fnode = current(ftree, op, interval);
                left.waits.push((fnode, *interval));
                continue;
            }
        };
        // Where the calls were is told by the op as it was measured; their time shrinks in the copy.
        for (before, after) in op.touched.iter().zip(&mut left.op.touched) {
            if holds(before, interval) {
                after.max = after.max.saturating_sub(interval.len());
                after.sum = after.sum.saturating_sub(interval.len());
            }
        }
        let (_, sum) = absent.entry(kind).or_insert((interval.from, Ticks(0)));
        *sum = *sum + interval.len();
        left.waits.push((ftree.absence(kind), *interval));
    }
    for (kind, (first, sum)) in absent {
        // All of it together: ten slices taken by another process are one cause.
        let sum = sum.min(op.latency);
        left.op.touched.push(Touched {
            fnode: ftree.absence(kind),
            max: sum,
            max_start: first,
            sum,
            count: 1,
        });
    }
    left
}

impl Analysis {
    /// Time away will be told of: f0 has these callees beside its own, and is measured even if it makes no calls.
    pub fn expect_absences(&mut self) {
        self.ftree.absence(Absence::Preempted);
    }

    /// Records one op, with the times in which its thread did not do its work, in order. Requests may be waiting
    /// afterwards.
    pub fn op_with(&mut self, op: &Op, away: &[Interval]) {
        if away.is_empty() {
            self.op(op);
            return;
        }
        let Apart { op, waits } = apart(&mut self.ftree, op, away);
        self.op(&op);
        let bucket = self
            .profile
            .resolution()
            .bucket(self.noise.resolved(op.latency));
        let Some(peak) = self.peak_of(bucket) else {
            return;
        };
        for (fnode, interval) in waits {
            let waits = self.waits.entry((fnode, peak)).or_default();
            let len = interval.len();
            match interval.why {
                Away::Preempted { by } => {
                    waits.preempted = waits.preempted + len;
                    waits.met(by, len);
                }
                Away::Interrupted(_) => waits.preempted = waits.preempted + len,
                Away::Blocked { woken, by } => {
                    let woken =
                        woken.map_or(interval.to, |at| at.max(interval.from).min(interval.to));
                    let blocked = woken - interval.from;
                    waits.blocked = waits.blocked + blocked;
                    waits.runnable = waits.runnable + (interval.to - woken);
                    waits.met(by, blocked);
                }
            }
        }
    }

    /// How the longest calls of an fnode waited in the ops of a peak; nothing where that was not seen.
    #[must_use]
    pub fn waits(&self, fnode: FnodeId, peak: u32) -> Option<&Waits> {
        self.waits.get(&(fnode, peak))
    }
}

/// Whether an fnode stands for time away.
#[must_use]
pub fn is_absence(callee: Callee) -> bool {
    matches!(callee, Callee::Absence(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{CalleeId, CauseKind, Params, Request, Status, Stop};
    use darc_tracer::record::SiteId;

    fn interval(from: u64, to: u64, why: Away) -> Interval {
        Interval {
            from: Tsc(from),
            to: Tsc(to),
            why,
        }
    }

    const BY: Away = Away::Preempted {
        by: Some(OtherId(7)),
    };

    fn touched(fnode: FnodeId, start: u64, max: u64) -> Touched {
        Touched {
            fnode,
            max: Ticks(max),
            max_start: Tsc(start),
            sum: Ticks(max),
            count: 1,
        }
    }

    fn op(latency: u64, touched: Vec<Touched>) -> Op {
        Op {
            tid: 1,
            start: Tsc(1_000),
            end: Tsc(1_000 + latency),
            latency: Ticks(latency),
            arguments: darc_tracer::record::Arguments::default(),
            touched,
        }
    }

    fn tree() -> (Ftree, FnodeId, FnodeId) {
        let mut ftree = Ftree::new();
        let callee = Callee::Function(CalleeId(1));
        let g = ftree.add_child(FnodeId::ROOT, SiteId(1), callee);
        let h = ftree.add_child(g, SiteId(2), callee);
        (ftree, g, h)
    }

    #[test]
    fn preemption_is_taken_out_of_all_that_were_current() {
        let (mut ftree, g, h) = tree();
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 8_000), touched(h, 3_000, 6_000)],
        );
        // In h; in g after h; in f0 before both.
        let away = [
            interval(4_000, 8_000, BY),
            interval(9_500, 9_600, BY),
            interval(1_100, 1_150, BY),
        ];
        let left = apart(&mut ftree, &measured, &away);
        let preempted = ftree.absence(Absence::Preempted);
        let of = |fnode| {
            left.op
                .touched
                .iter()
                .find(|touched| touched.fnode == fnode)
                .unwrap()
        };
        assert_eq!(of(h).max, Ticks(2_000));
        assert_eq!(of(g).max, Ticks(3_900));
        assert_eq!(of(preempted).max, Ticks(4_150));
        assert_eq!(left.op.latency, measured.latency);
        assert_eq!(ftree.fnode(preempted).parent, Some(FnodeId::ROOT));
    }

    #[test]
    fn a_wait_stays_with_the_deepest_that_waited() {
        let (mut ftree, g, h) = tree();
        let measured = op(
            10_000,
            vec![touched(g, 2_000, 8_000), touched(h, 3_000, 6_000)],
        );
        let blocked = Away::Blocked {
            woken: Some(Tsc(7_500)),
            by: Some(OtherId(3)),
        };
        let left = apart(&mut ftree, &measured, &[interval(4_000, 8_000, blocked)]);
        assert_eq!(left.op, measured, "nothing is taken out");
        assert_eq!(left.waits[0].0, h);
        let early = apart(&mut ftree, &measured, &[interval(2_100, 2_200, blocked)]);
        assert_eq!(early.waits[0].0, g);
        let outside = apart(&mut ftree, &measured, &[interval(1_100, 1_200, blocked)]);
        assert_eq!(outside.waits[0].0, FnodeId::ROOT);
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
