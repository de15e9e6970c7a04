//! What came of experiments, with names.

use darc_analysis::proof::{self, Histograms, Linear, Refusal, Slope};
use darc_analysis::{Callee, FnodeId, Hz, Ticks};
use darc_report::assemble::Names as _;
use darc_report::model::{
    ComparedOps, EffectEntry, EffectOn, GainEntry, Measured, ProofEntry, Verdict,
};
use darc_report::words::percent;

use crate::options::DelayBy;
use crate::session::catalog::Naming;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::proving::{Cause, Outcome, Proof};

/// The name of what a call reaches.
pub fn name_of(callee: Callee, naming: Naming<'_>) -> String {
    match callee {
        Callee::Function(callee) => naming.function(callee).name,
        Callee::Syscall(number) => naming.syscall(number),
        Callee::Unknown => "(unknown)".to_owned(),
        Callee::Absence(absence) => naming.absence(absence),
    }
}

/// What is told of a test.
pub enum Told {
    /// Of a cause.
    Cause(ProofEntry),
    /// Of probes.
    Effect(EffectEntry),
}

/// What is told of one.
pub fn of(
    proof: &Proof,
    investigation: &Investigation,
    naming: Naming<'_>,
    (clock, by): (Hz, DelayBy),
) -> Told {
    let ftree = investigation.analysis.ftree();
    let named = |at: FnodeId| match at {
        FnodeId::ROOT => naming.f0().name,
        at => name_of(ftree.fnode(at).callee, naming),
    };
    let path_to = |fnode| ftree.path(fnode).into_iter().map(named).collect();
    let (path, elsewhere) = match proof.suspect.cause {
        Cause::Call(fnode) => (path_to(fnode), false),
        Cause::Elsewhere(at) => (vec![naming.f0().name, naming.modules.name(at)], true),
        Cause::Probes(fnode) => {
            return Told::Effect(effect(proof, path_to(fnode), clock));
        }
    };
    let entry = ProofEntry {
        peak: proof.suspect.peak,
        path,
        elsewhere,
        verdict: Verdict::NotTested,
        reason: None,
        measured: None,
        gain: Vec::new(),
        latencies: None,
    };
    Told::Cause(cause(proof, entry, (clock, by)))
}

fn effect(proof: &Proof, path: Vec<String>, clock: Hz) -> EffectEntry {
    let entry = EffectEntry {
        peak: proof.suspect.peak,
        path,
        reason: None,
        ops: None,
        told: None,
        time_ns: 0.0,
    };
    let ns = |ticks: Ticks| clock.nanos(ticks).0;
    match &proof.outcome {
        Outcome::Effect {
            on_ops,
            on_latencies,
            unit,
            time,
        } => {
            let of = |slope: Slope| EffectOn {
                ns: slope.at * ns(*unit),
                interval_ns: [slope.low, slope.high].map(|bound| bound * ns(*unit)),
            };
            EffectEntry {
                ops: on_ops.map(of),
                told: on_latencies.map(of),
                time_ns: ns(*time),
                ..entry
            }
        }
        Outcome::NotTestable(why) => EffectEntry {
            reason: Some(why.clone()),
            ..entry
        },
        Outcome::Tried { .. } | Outcome::Refused(_) => entry,
    }
}

fn cause(proof: &Proof, entry: ProofEntry, (clock, by): (Hz, DelayBy)) -> ProofEntry {
    let ns = |ticks: Ticks| clock.nanos(ticks).0;
    match &proof.outcome {
        Outcome::NotTestable(why) => ProofEntry {
            reason: Some(why.clone()),
            ..entry
        },
        Outcome::Effect { .. } => entry,
        Outcome::Refused(refusal) => ProofEntry {
            reason: Some(in_words(refusal, entry.elsewhere)),
            ..entry
        },
        Outcome::Tried {
            slope: None,
            added,
            time,
            ..
        } => ProofEntry {
            verdict: Verdict::NotDecided,
            reason: Some(format!(
                "too few of these calls came in {}, or those of another peak cannot be told from them; delays took {} of the time",
                clock.nanos(*time),
                percent(added.0 as f64 / time.0.max(1) as f64)
            )),
            ..entry
        },
        Outcome::Tried {
            delay,
            slope: Some(slope),
            gain,
            histograms,
            added,
            time,
        } => ProofEntry {
            latencies: histograms.as_ref().map(|of| compared(of, clock)),
            verdict: verdict(slope.verdict()),
            measured: Some(Measured {
                delay_ns: ns(*delay),
                slept: by == DelayBy::Sleep,
                added_ns: ns(slope.added),
                meant_ns: ns(slope.meant),
                overran: slope.overran(),
                slope: slope.at,
                interval: [slope.low, slope.high],
                linear: match slope.linear() {
                    Linear::Yes => Some(true),
                    Linear::No => Some(false),
                    Linear::NotKnown => None,
                },
                half_slope: slope.half.map(|half| half.at),
                ops_without: slope.without,
                ops_with: slope.with,
                added_share: added.0 as f64 / time.0.max(1) as f64,
                time_ns: ns(*time),
            }),
            gain: gain
                .iter()
                .map(|gain| GainEntry {
                    percentile: (gain.part * 1e4).round() / 1e2,
                    now_ns: ns(gain.now),
                    without_ns: ns(gain.without),
                    without_interval_ns: Some(gain.bounds.map(ns)),
                })
                .collect(),
            ..entry
        },
    }
}

fn compared(histograms: &Histograms, clock: Hz) -> ComparedOps {
    ComparedOps {
        from_ns: clock.nanos(histograms.from).0,
        width_ns: clock.nanos(histograms.width).0,
        without: histograms.without.clone(),
        with: histograms.with.clone(),
    }
}

fn verdict(verdict: proof::Verdict) -> Verdict {
    match verdict {
        proof::Verdict::Proven => Verdict::Proven,
        proof::Verdict::NotLinear => Verdict::NotLinear,
        proof::Verdict::Partly => Verdict::Partly,
        proof::Verdict::NotOnPath => Verdict::NotOnPath,
        proof::Verdict::NotDecided => Verdict::NotDecided,
    }
}

fn in_words(refusal: &Refusal, elsewhere: bool) -> String {
    match refusal {
        Refusal::NotCalled { others: 0 } if elsewhere => {
            "no call of it has begun and ended; --time looks longer, and of a function that runs all the time --cause names one that it calls"
                .to_owned()
        }
        Refusal::NotCalled { others } if elsewhere => format!(
            "calls of it began and ended, {others} of them, but none of them began on another thread in a call of this peak"
        ),
        Refusal::NotCalled { .. } => {
            "no call of it was seen in calls of this peak; --time looks longer".to_owned()
        }
        Refusal::TooFew { expected, needed } => format!(
            "only {expected} calls of this peak with a delay can be expected within --time and --budget, and {needed} are needed"
        ),
        Refusal::TooShort => {
            "its calls are so short, or so many, that a delay in proportion would be shorter than can be made"
                .to_owned()
        }
        Refusal::TooLong => {
            "these calls are so long that there are too few spans of time to compare; --time and --budget allow more"
                .to_owned()
        }
        Refusal::Budget => {
            "it is called so often that a delay within --budget would not be seen".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_at_other_times_does_not_run_all_the_time() {
        let said = |others| in_words(&Refusal::NotCalled { others }, true);
        assert!(said(0).contains("runs all the time"), "{}", said(0));
        assert!(!said(7).contains("runs all the time") && said(7).contains("7 of them"));
    }
}
