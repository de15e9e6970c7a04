//! The report of an investigation.

use std::time::Duration;

use crate::analysis::Hz;
use crate::report::assemble::{self, Names as _};
use crate::report::model::{
    Clock, ClockUnit, Engine, Module, Pause, ProbeCost, Probes, Report, SCHEMA, SkippedSite, Target,
};

use super::investigation::Investigation;

/// Puts together what is known, with names.
#[must_use]
pub fn report(investigation: &Investigation, engine: Engine, target: Target, hz: Hz) -> Report {
    let naming = investigation.naming();
    let analysis = &investigation.analysis;
    let modules = investigation.modules.known();
    Report {
        schema: SCHEMA,
        darc: env!("CARGO_PKG_VERSION").to_owned(),
        engine,
        status: assemble::status(analysis),
        target,
        f0: naming.f0(),
        clock: Clock {
            unit: ClockUnit::Cycles,
            hz: hz.get(),
        },
        parameters: assemble::parameters(analysis.params()),
        modules: modules
            .iter()
            .map(|module| Module {
                path: module.path.clone(),
                build_id: module.build_id.clone(),
            })
            .collect(),
        profile: assemble::profile(analysis.profile()),
        comparison: analysis.comparison().as_ref().map(assemble::comparison),
        peaks: assemble::peaks(analysis, &naming),
        ftree: assemble::ftree(analysis, &naming),
        focus: Vec::new(),
        probes: probes(investigation),
        warnings: investigation.warnings.clone(),
    }
}

fn probes(investigation: &Investigation) -> Probes {
    let naming = investigation.naming();
    let counters = &investigation.counters;
    Probes {
        sites: investigation.sites as u64,
        skipped: investigation
            .skipped
            .iter()
            .map(|(&at, reason)| SkippedSite {
                site: naming.place(at),
                reason: reason.clone(),
            })
            .collect(),
        cost_cycles: ProbeCost {
            inside: investigation.cost.inside.0,
            outside: investigation.cost.outside.0,
        },
        records: counters.records,
        dropped: counters.dropped,
        pause_us: pause(&counters.pauses),
        bytes_differing_after_detach: counters.bytes_differing,
    }
}

fn pause(pauses: &[Duration]) -> Pause {
    let mut micros: Vec<f64> = pauses
        .iter()
        .map(|pause| pause.as_secs_f64() * 1e6)
        .collect();
    micros.sort_by(f64::total_cmp);
    Pause {
        p50: micros.get(micros.len() / 2).copied().unwrap_or(0.0),
        max: micros.last().copied().unwrap_or(0.0),
    }
}
