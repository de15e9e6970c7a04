//! The report of an investigation.

use std::collections::BTreeMap;
use std::time::Duration;

use darc_tracer::engine::Counters;

use crate::analysis::Hz;
use crate::report::assemble::{self, Names as _};
use crate::report::model::{
    Clock, ClockUnit, Engine, Focus, Module, Pause, ProbeCost, Probes, Report, SCHEMA, SkippedSite,
    Status, Target, TimeTable,
};

use super::catalog::Naming;
use super::investigation::Investigation;
use super::modules::CodeRef;
use super::survey::Arrival;

/// What was found of an f0 that runs already.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Where its time goes.
    pub time: &'a TimeTable,
    /// The functions below it, each with how the descent arrived at it.
    pub functions: &'a [(&'a Arrival, &'a Investigation)],
}

/// Puts together what is known, with names.
#[must_use]
pub fn report(
    investigation: &Investigation,
    found: Option<Found<'_>>,
    engine: Engine,
    target: Target,
    hz: Hz,
) -> Report {
    let naming = investigation.naming();
    let analysis = &investigation.analysis;
    let modules = investigation.modules.known();
    let focus: Vec<Focus> = found
        .iter()
        .flat_map(|found| found.functions.iter().map(|below| focus(&naming, below)))
        .collect();
    Report {
        schema: SCHEMA,
        darc: env!("CARGO_PKG_VERSION").to_owned(),
        engine,
        status: match &found {
            Some(found) => overall(found, &focus),
            None => assemble::status(analysis),
        },
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
        values: assemble::values(analysis),
        ftree: assemble::ftree(analysis, &naming),
        time: found.map(|found| found.time.clone()),
        focus,
        probes: probes(investigation, found),
        warnings: investigation.warnings.clone(),
    }
}

/// Every function below has to be explained, and there has to be something to explain.
fn overall(found: &Found<'_>, focus: &[Focus]) -> Status {
    let is = |status| focus.iter().any(|focus| focus.status == status);
    if found.time.windows == 0 || is(Status::InProgress) {
        Status::InProgress
    } else if is(Status::MaxDepthReached) {
        Status::MaxDepthReached
    } else {
        Status::RootCauseFound
    }
}

fn focus(naming: &Naming<'_>, (arrival, investigation): &(&Arrival, &Investigation)) -> Focus {
    let analysis = &investigation.analysis;
    let own = Naming {
        catalog: &investigation.catalog,
        modules: naming.modules,
        f0: investigation.f0,
    };
    Focus {
        path: arrival.path.clone(),
        function: naming.function_at(arrival.function),
        callers: arrival
            .callers
            .iter()
            .map(|&caller| naming.place(caller))
            .collect(),
        status: assemble::status(analysis),
        share_of_time: arrival.share,
        calls: arrival.calls,
        profile: assemble::profile(analysis.profile()),
        peaks: assemble::peaks(analysis, &own),
        values: assemble::values(analysis),
        ftree: assemble::ftree(analysis, &own),
    }
}

fn probes(investigation: &Investigation, found: Option<Found<'_>>) -> Probes {
    let naming = investigation.naming();
    let below = found.iter().flat_map(|found| found.functions);
    let all: Vec<&Investigation> = std::iter::once(investigation)
        .chain(below.map(|(_, investigation)| *investigation))
        .collect();
    let skipped: BTreeMap<CodeRef, &String> = all
        .iter()
        .flat_map(|one| &one.skipped)
        .map(|(&at, reason)| (at, reason))
        .collect();
    let sum = |count: fn(&Counters) -> u64| all.iter().map(|one| count(&one.counters)).sum();
    let pauses: Vec<Duration> = all
        .iter()
        .flat_map(|one| one.counters.pauses.iter().copied())
        .collect();
    Probes {
        sites: all.iter().map(|one| one.sites as u64).max().unwrap_or(0),
        skipped: skipped
            .into_iter()
            .map(|(at, reason)| SkippedSite {
                site: naming.place(at),
                reason: reason.clone(),
            })
            .collect(),
        cost_cycles: ProbeCost {
            inside: investigation.cost.inside.0,
            outside: investigation.cost.outside.0,
        },
        records: sum(|counters| counters.records),
        dropped: sum(|counters| counters.dropped),
        sampled: sum(|counters| counters.sampled),
        pause_us: pause(&pauses),
        bytes_differing_after_detach: sum(|counters| counters.bytes_differing),
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
