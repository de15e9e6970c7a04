//! Where the probes' own variation drowns what they measure.
//!
//! A probe's cost is taken out of every latency, but what is left of it varies from call to call. The window of
//! a measured call is exact to the variation of the probe within it. What lies between two probes, which is a
//! function's own time, may be off by more, once for each call that it makes: with the `int3` engine the
//! moment at which a call site was reached is an estimate. An op that is shorter than these errors together
//! tells nothing about who took its time: it counts in the profile and for no decision, and a peak of such
//! ops is reported as one that the engine cannot resolve instead of with a cause that is a roll of dice.

use darc_record::{Op, Ticks};

use crate::descent::{Analysis, MOST_UNEXPLAINED};
use crate::profile::histogram::Resolution;
use crate::profile::peaks::{Peak, find_peaks};

/// Calls are long that take so many times what one of them may be off by: the mean of ten is off by a third of that.
const CLEARLY: u64 = 5;
/// ... and this at least, some microsecond: some calls of the callee take a few times what a probe costs.
const LONG: Ticks = Ticks(1 << 11);

/// How far measured times may be off.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Noise {
    window: Ticks,
    of_caller: Ticks,
    /// What is said of a peak that cannot be resolved.
    remedy: String,
}

impl Noise {
    /// The latency of one call may be off by `window`, and its own time by `of_caller` for each measured call
    /// that it makes; `remedy` tells the person what to do about it.
    #[must_use]
    pub fn new(window: Ticks, of_caller: Ticks, remedy: String) -> Self {
        Self {
            window,
            of_caller,
            remedy,
        }
    }

    /// By how much a function's own time may be off for each measured call that it makes.
    #[must_use]
    pub fn of_caller(&self) -> Ticks {
        self.of_caller
    }

    /// Calls of this length or more are worth looking into, however many there are: measuring what they call is a small part of
    /// their time.
    pub(crate) fn long(&self) -> Ticks {
        Ticks(self.window.0.saturating_mul(CLEARLY)).max(LONG)
    }

    /// What is said of a peak that cannot be resolved.
    pub(crate) fn remedy(&self) -> &str {
        &self.remedy
    }

    /// The latency of an op as far as it can be told: never shorter than what one probe may be off by.
    #[must_use]
    pub fn resolved(&self, latency: Ticks) -> Ticks {
        latency.max(self.window).max(self.of_caller)
    }

    /// By how much an op's latency may be off: independent errors add up by their squares.
    #[must_use]
    pub fn of(&self, op: &Op) -> Ticks {
        let calls: u64 = op
            .touched
            .iter()
            .fold(0, |sum: u64, touched| sum.saturating_add(touched.count));
        let (window, of_caller) = (self.window.0 as f64, self.of_caller.0 as f64);
        let squares = window * window + of_caller * of_caller * calls as f64;
        Ticks(squares.sqrt() as u64)
    }
}

impl Analysis {
    /// Tells how far measured times may be off.
    pub fn set_noise(&mut self, noise: Noise) {
        self.noise = noise;
    }

    /// What is known by now of how far measured times may be off.
    pub fn set_resolution(&mut self, window: Ticks, of_caller: Ticks) {
        (self.noise.window, self.noise.of_caller) = (window, of_caller);
    }

    /// How far measured times may be off.
    #[must_use]
    pub fn noise(&self) -> &Noise {
        &self.noise
    }

    /// The latency from which on ops can be told from one another; all shorter ones share a bucket. Nothing where none is
    /// shorter.
    #[must_use]
    pub fn told_from(&self) -> Option<Ticks> {
        let bucket = Resolution::FINE.bucket(self.noise.resolved(Ticks(0)));
        let (_, last) = Resolution::FINE.bounds(bucket)?;
        let shortest = self.bucket(Ticks(0));
        let some = self.profile.range(shortest, shortest).ops > 0;
        (last > Ticks(1) && some).then_some(Ticks(last.0.saturating_add(1)))
    }

    /// The humps that are peaks. Ops that cannot be told from one another are none, unless there is nothing else, or much of the
    /// time may be in them.
    pub(crate) fn find_peaks(&self) -> Vec<Peak> {
        let untold = self.bucket(Ticks(0));
        let mut found = find_peaks(&self.profile);
        let much = MOST_UNEXPLAINED * self.profile.total().0 as f64;
        let is_told = |peak: &Peak| peak.last_bucket > untold || peak.content.total.0 as f64 > much;
        if found.iter().any(|peak| peak.last_bucket > untold) {
            found.retain(is_told);
        }
        for (peak, number) in found.iter_mut().zip(1..) {
            peak.number = number;
        }
        found
    }

    /// Whether the op is too short for its fnodes to mean anything.
    pub(crate) fn is_unresolved(&self, op: &Op) -> bool {
        op.latency < self.noise.of(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Params, PeakStatus, Status, Stop};
    use darc_record::{FnodeId, Touched, Tsc};

    fn op(latency: u64) -> Op {
        Op {
            arguments: darc_record::Arguments::default(),
            tid: 1,
            start: Tsc(0),
            end: Tsc(latency),
            latency: Ticks(latency),
            touched: Vec::new(),
        }
    }

    #[test]
    fn what_cannot_be_told_apart_is_no_peak_beside_others() {
        let mut analysis = Analysis::new(Params::default());
        analysis.set_noise(Noise::new(Ticks(30), Ticks(0), "too short".to_owned()));
        for latency in [1, 7, 1_000, 1_001, 1_100, 1_200]
            .into_iter()
            .cycle()
            .take(300)
        {
            analysis.op(&op(latency));
        }
        let peaks = analysis.peaks();
        assert_eq!(peaks.len(), 1, "{peaks:?}");
        assert_eq!(peaks[0].first_bucket, 19);
        assert_eq!(analysis.told_from(), Some(Ticks(32)));
    }

    #[test]
    fn a_peak_below_the_noise_ends_in_words() {
        let mut analysis = Analysis::new(Params::default());
        analysis.set_noise(Noise::new(Ticks(1_000), Ticks(0), "too short".to_owned()));
        for latency in (1..=400).cycle().take(1_000) {
            analysis.op(&op(latency));
            for request in analysis.requests() {
                if let crate::Request::Expand(fnode) = request {
                    analysis.add_child(fnode, darc_record::SiteId(1), crate::Callee::Unknown);
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        assert_eq!(
            analysis.profile().buckets().count(),
            1,
            "all in the bucket of the resolution"
        );
        assert_eq!(analysis.status(), Status::Undecided);
        assert_eq!(analysis.peak_status(1), PeakStatus::Undecided);
        let causes = analysis.root_causes(1);
        assert_eq!(
            causes[0].stop,
            Stop::NotInstrumentable("too short".to_owned())
        );
    }

    /// One peak descends already when another one stalls where both began.
    #[test]
    fn a_peak_stalls_while_another_one_descends() {
        let mut analysis = Analysis::new(Params::default());
        analysis.set_noise(Noise::new(Ticks(0), Ticks(400), "too short".to_owned()));
        for index in 0..2_000_u64 {
            // When the second peak has been descended into, only ops of the first one come for a while.
            let kind = match index {
                150..700 => 0,
                _ => index % 2,
            };
            let (latency, of_callee) = match kind {
                // The function's own time is the larger part, or the callee's.
                0 => (1_100, 500),
                _ => (1 << 20, 1 << 20),
            };
            let touched = |fnode: u32| Touched {
                fnode: FnodeId(fnode),
                max: Ticks(of_callee),
                max_start: Tsc(index),
                long: Ticks(0),
                sum: Ticks(of_callee),
                count: 1,
            };
            let mut op = op(latency);
            (op.start, op.end) = (Tsc(index), Tsc(index));
            op.touched = match kind {
                0 => vec![touched(2)],
                _ => vec![touched(2), touched(4)],
            };
            analysis.op(&op);
            for request in analysis.requests() {
                if let crate::Request::Expand(fnode) = request {
                    let sites = if fnode == FnodeId::ROOT { 1..=2 } else { 3..=3 };
                    for site in sites.map(darc_record::SiteId) {
                        analysis.add_child(fnode, site, crate::Callee::Unknown);
                    }
                    match fnode {
                        FnodeId(4) => analysis.cannot_expand(fnode, Stop::NoCalls),
                        _ => analysis.expanded(fnode, Tsc(index)),
                    }
                }
            }
        }
        assert_eq!(analysis.status(), Status::RootCauseFound);
        let unresolved = Stop::NotInstrumentable("too short".to_owned());
        assert_eq!(analysis.root_causes(1)[0].stop, unresolved);
        assert_eq!(analysis.root_causes(2)[0].stop, Stop::NoCalls);
    }

    #[test]
    fn calls_make_a_callers_latency_uncertain_and_not_their_own() {
        let noise = Noise::new(Ticks(30), Ticks(400), String::new());
        let mut busy = op(5_000);
        assert_eq!(noise.of(&busy), Ticks(30));
        busy.touched.push(Touched {
            fnode: FnodeId(2),
            max: Ticks(100),
            max_start: Tsc(0),
            long: Ticks(0),
            sum: Ticks(1_000),
            count: 100,
        });
        assert_eq!(noise.of(&busy), Ticks(4_000));
        assert_eq!(noise.resolved(busy.latency), Ticks(5_000));
        assert_eq!(noise.resolved(Ticks(10)), Ticks(400));
        assert_eq!(noise.long(), LONG);
        let noisy = Noise::new(Ticks(1_000), Ticks(400), String::new());
        assert_eq!(noisy.long(), Ticks(5_000));
        assert_eq!(Noise::default().long(), LONG);
    }
}
