//! Where the probes' own variation drowns what they measure.
//!
//! A probe's cost is taken out of every latency, but it varies from call to call. An op that is shorter
//! than this variation, added up over its probes, tells nothing about who took its time: it counts in
//! the profile and for no decision, and a peak of such ops is reported as one that the engine cannot
//! resolve instead of with a cause that is a roll of dice.

use darc_tracer::record::{FnodeId, Op, Ticks};

use super::descent::Analysis;
use super::ftree::{Expansion, PathState, Stop};

/// After so many times `decision_ops` ops without resolution a peak is given up.
const PATIENCE: u64 = 5;

/// The variation of a probe's cost.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Noise {
    per_probe: Ticks,
    /// What is said of a peak that cannot be resolved.
    remedy: String,
}

impl Noise {
    /// A probe's cost varies by this much; `remedy` tells the person what to do about it.
    #[must_use]
    pub fn new(per_probe: Ticks, remedy: String) -> Self {
        Self { per_probe, remedy }
    }

    /// By how much the cost of one probe varies.
    #[must_use]
    pub fn per_probe(&self) -> Ticks {
        self.per_probe
    }

    /// The latency as far as it can be told: never shorter than the variation of one probe.
    #[must_use]
    pub fn resolved(&self, latency: Ticks) -> Ticks {
        latency.max(self.per_probe)
    }

    /// By how much an op's latency may be wrong: independent errors add up by their squares.
    #[must_use]
    pub fn of(&self, op: &Op) -> Ticks {
        let probes = op
            .touched
            .iter()
            .fold(1, |sum: u64, touched| sum.saturating_add(touched.count));
        Ticks((self.per_probe.0 as f64 * (probes as f64).sqrt()) as u64)
    }
}

impl Analysis {
    /// Tells how much the engine's probes vary.
    pub fn set_noise(&mut self, noise: Noise) {
        self.noise = noise;
    }

    /// How much the engine's probes vary.
    #[must_use]
    pub fn noise(&self) -> &Noise {
        &self.noise
    }

    /// Whether the op is too short for its fnodes to mean anything.
    pub(super) fn is_unresolved(&self, op: &Op) -> bool {
        op.latency < self.noise.of(op)
    }

    /// Ends every open path at an fnode whose calls cannot be followed after all, and never measures them again.
    pub fn give_up(&mut self, fnode: FnodeId, why: Stop) {
        self.ftree.fnode_mut(fnode).expansion = Expansion::Impossible(why.clone());
        self.measured.retain(|&measured| measured != fnode);
        let open: Vec<u32> = self
            .ftree
            .fnode(fnode)
            .records()
            .filter(|(_, record)| record.state.is_open())
            .map(|(peak, _)| peak)
            .collect();
        for peak in open {
            self.set_state(fnode, peak, PathState::Ended(why.clone()));
        }
        self.settle();
    }

    /// Counts an unresolved op, and ends the peak's open paths when there is nothing but such ops.
    pub(super) fn give_up_unresolved(&mut self, peak: u32) {
        let at = &mut self.peaks[peak as usize - 1];
        at.unresolved = at.unresolved.saturating_add(1);
        if at.unresolved < PATIENCE.saturating_mul(self.params.decision_ops.max(1)) {
            return;
        }
        let open: Vec<_> = self
            .ftree
            .fnodes()
            .filter(|fnode| fnode.record(peak).state.is_open())
            .map(|fnode| fnode.id)
            .collect();
        if open.is_empty() {
            return;
        }
        for fnode in open {
            let why = Stop::NotInstrumentable(self.noise.remedy.clone());
            self.set_state(fnode, peak, PathState::Ended(why));
        }
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Params, PeakStatus, Status};
    use darc_tracer::record::Tsc;

    fn op(latency: u64) -> Op {
        Op {
            tid: 1,
            start: Tsc(0),
            end: Tsc(latency),
            latency: Ticks(latency),
            touched: Vec::new(),
        }
    }

    #[test]
    fn a_peak_below_the_noise_is_given_up_in_words() {
        let mut analysis = Analysis::new(Params::default());
        analysis.set_noise(Noise::new(Ticks(1_000), "too short".to_owned()));
        for latency in (1..=400).cycle().take(1_000) {
            analysis.op(&op(latency));
            for request in analysis.requests() {
                if let crate::analysis::Request::Expand(fnode) = request {
                    analysis.add_child(
                        fnode,
                        darc_tracer::record::SiteId(1),
                        crate::analysis::Callee::Unknown,
                    );
                    analysis.expanded(fnode, Tsc(0));
                }
            }
        }
        assert_eq!(
            analysis.profile().buckets().count(),
            1,
            "all in the bucket of the resolution"
        );
        assert_eq!(analysis.status(), Status::RootCauseFound);
        assert_eq!(analysis.peak_status(1), PeakStatus::RootCauseFound);
        let causes = analysis.root_causes(1);
        assert_eq!(
            causes[0].stop,
            Stop::NotInstrumentable("too short".to_owned())
        );
    }
}
