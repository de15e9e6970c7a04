//! For how long is looked on when the answers are there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use darc_analysis::Analysis;

use crate::session::descent::investigation::Investigation;

/// From the first op on.
const LEAST: Duration = Duration::from_secs(3);
/// ... while much of the time is in ops of no peak.
const MOST: Duration = Duration::from_secs(6);
/// With so many ops it is enough at once.
const OPS: u64 = 1_000_000;
/// For fewer ops than peaks are to be looked for among is waited so long.
const FEW: Duration = Duration::from_secs(30);
/// For so long decisions are held against later ops at most, or until as many came as peaks are to be looked for among.
const CHECKS: Duration = Duration::from_secs(2);

/// Peaks that were cut anew have as long as the first answers took, and this at least.
const ANEW: Duration = Duration::from_secs(10);
/// In this time so many ops come of peaks that are waited for longer, since there is no answer without them,
const COME: u64 = 5;
/// ... all in all for so long at most, if the person has not said for how long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where no op has come for so long none is waited for,
const IDLE: Duration = Duration::from_secs(2);
/// ... and for so many times as long as it took for one to come before.
const GAPS: u32 = 4;

/// Peaks that have no answer yet.
#[derive(Default, Debug)]
struct Awaited {
    /// When it was looked how many ops of each there had been.
    looked: Option<(Duration, BTreeMap<u32, u64>)>,
    /// Since when they have been waited for.
    since: Option<Duration>,
}

/// When ops began to come, when the last ones did, and when decisions began to be held against them.
#[derive(Default, Debug)]
pub(super) struct LookingOn {
    since: Option<Instant>,
    ops: u64,
    last: Option<Instant>,
    /// The longest time between two ops.
    gap: Duration,
    /// With which op that was.
    checks: Option<(Instant, u64)>,
    /// When there was enough to see, or when decisions had been held against later ops.
    enough: Option<Duration>,
    awaited: Awaited,
    /// Whether the log says that the answers are there.
    is_logged: bool,
    /// Ends with the first answers that much of the time is in.
    is_brief: bool,
}

impl LookingOn {
    /// Looks on only while much of the time is in ops of no peak: one op that was kept from running for long is enough for
    /// that among the first.
    pub(super) fn briefly() -> LookingOn {
        LookingOn {
            is_brief: true,
            ..LookingOn::default()
        }
    }

    /// Tells the analysis when there was enough to see. It ends then, if the person has said so.
    pub(super) fn look(&mut self, investigation: &mut Investigation, end: Option<Instant>) {
        let analysis = &mut investigation.analysis;
        let ops = analysis.profile().count();
        if ops == 0 {
            return;
        }
        let since_last = self.last.map_or(Duration::ZERO, |last| last.elapsed());
        if self.ops != ops {
            self.ops = ops;
            self.last = Some(Instant::now());
            self.gap = self.gap.max(since_last);
        }
        let is_idle = since_last >= IDLE.max(GAPS * self.gap).min(FEW);
        let is_answered = analysis.is_answered();
        let passed = self.since.get_or_insert_with(Instant::now).elapsed();
        let is_told = is_answered || (passed >= MOST && analysis.is_answered_but_for_rare());
        if self.is_brief && analysis.is_looking_on() && is_told {
            if is_idle || passed >= MOST || analysis.is_nearly_all_in_peaks() {
                analysis.stop_looking();
            }
            return;
        }
        let is_over = match self.enough {
            Some(_) => is_idle,
            None => is_idle && analysis.is_looking_on() && is_answered,
        };
        if is_over {
            investigation.analysis.decide_without_long_ops();
            investigation.take_back();
            investigation.analysis.stop_looking();
            return;
        }
        if !is_answered && !analysis.is_checking() && self.is_late(analysis, passed, end) {
            analysis.decide_without_long_ops();
            if analysis.is_answered() || analysis.is_checking() {
                return;
            }
            investigation.take_back();
            investigation.analysis.end_descents();
            return;
        }
        let are_few = ops < analysis.params().start_ops && passed < FEW;
        let is_long = (passed >= LEAST && !are_few) || ops >= OPS;
        // A few ops that were kept from running for long are not waited for.
        let is_answered =
            is_answered || (passed >= MOST && !are_few && analysis.is_answered_but_for_rare());
        if analysis.is_looking_on() && is_answered && (is_long || !self.is_logged) {
            let is_clear = analysis.is_nearly_all_in_peaks() || passed >= MOST;
            if is_clear && !self.is_logged {
                self.is_logged = true;
                tracing::debug!(target: "descent", ops, "answered, and looks on");
            }
            if is_clear && is_long {
                self.enough = Some(passed);
                analysis.seen_enough();
                self.awaited.looked = analysis.awaited_ops().map(|ops| (passed, ops));
            }
        }
        if analysis.is_checking() {
            let (since, first) = *self.checks.get_or_insert_with(|| (Instant::now(), ops));
            let (checked, came) = (since.elapsed(), ops.saturating_sub(first));
            let are_enough = came >= investigation.analysis.params().start_ops;
            let analysis = &mut investigation.analysis;
            if checked >= CHECKS && (are_enough || checked >= FEW) {
                analysis.end_checks();
            }
            // What they begin has its time from their end on, which may come with any op.
            self.enough = Some(passed);
            self.awaited.looked = None;
        }
    }

    /// Whether what has no answer yet had its time, and no more is to be expected, or none is left to hold the answers against later ops.
    fn is_late(&mut self, analysis: &Analysis, passed: Duration, end: Option<Instant>) -> bool {
        let Some(at) = self.enough else { return false };
        if passed < at + at.clamp(ANEW, FEW) {
            return false;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let is_over = match left {
            Some(left) => left <= CHECKS,
            None => passed >= *self.awaited.since.get_or_insert(at) + PATIENCE,
        };
        is_over || !self.awaited.come(passed, || analysis.awaited_ops())
    }
}

impl Awaited {
    /// Whether ops of them come, of how many there were of each by now, as far as it is time to ask for that.
    fn come(&mut self, passed: Duration, ops: impl Fn() -> Option<BTreeMap<u32, u64>>) -> bool {
        match &self.looked {
            Some((at, _)) if passed < *at + ANEW => return true,
            _ => {}
        }
        let Some(now) = ops() else { return false };
        let come = match &self.looked {
            // Of one that has its answer meanwhile, or is new, it is not known.
            Some((_, then)) if now.keys().all(|peak| then.contains_key(peak)) => {
                let came = now.iter().map(|(peak, ops)| ops.saturating_sub(then[peak]));
                came.sum::<u64>() >= COME
            }
            _ => true,
        };
        self.looked = Some((passed, now));
        come
    }
}

impl Investigation {
    /// The process is let go: its answers are those of the peaks that all of its ops have, as far as these were looked into.
    pub(super) fn look_back(&mut self) {
        self.analysis.decide_without_long_ops();
        self.analysis.drop_former_peaks();
        self.analysis.end_checks();
        self.take_back();
    }

    /// Nothing more will be seen: an answer that was being replaced stands, and the report says so.
    pub(super) fn take_back(&mut self) {
        self.renumber();
        if self.analysis.take_back() {
            self.arguments.take_back();
            self.warnings.push(
                "the analysis ended while it looked at the peaks once more, cut by all ops: what is told is its first answer"
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn come(awaited: &mut Awaited, after: u64, ops: &[(u32, u64)]) -> bool {
        awaited.come(Duration::from_secs(after), || {
            (!ops.is_empty()).then(|| ops.iter().copied().collect())
        })
    }

    #[test]
    fn peaks_are_waited_for_while_their_ops_come() {
        let mut awaited = Awaited::default();
        assert!(come(&mut awaited, 20, &[(1, 1_000), (2, 50)]));
        assert!(come(&mut awaited, 29, &[(1, 1_000), (2, 50)]), "too early");
        assert!(come(&mut awaited, 30, &[(1, 1_003), (2, 52)]));
        assert!(come(&mut awaited, 40, &[(2, 57)]), "one has its answer");
        assert!(come(&mut awaited, 50, &[(2, 57), (3, 4)]), "one is new");
        assert!(!come(&mut awaited, 60, &[(2, 61), (3, 4)]), "four came");
        assert!(!come(&mut awaited, 70, &[]), "all have answers");
    }
}
