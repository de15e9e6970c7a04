//! The set of profiles that a session measured, with names.

use std::time::Duration;

use darc_analysis::{Hz, Resolution};
use darc_process::modules::Modules;
use darc_report::assemble;
use darc_report::model::{Function, Target};
use darc_report::profiles::{
    self, FunctionProfile, NotProfiled, Pauses, ProfileSet, Segment, SegmentProfile, Source,
};
use darc_tracer::engine::jump::Counts;

use crate::session::catalog::{Catalog, Naming};
use crate::session::profiling::{Measured, Member, profile};

/// Puts together what was measured.
#[must_use]
pub fn set(
    modules: &Modules,
    measured: &Measured,
    resolution: Resolution,
    target: Target,
    hz: Hz,
) -> ProfileSet {
    let catalog = Catalog::default();
    let naming = Naming {
        catalog: &catalog,
        modules,
        f0: None,
    };
    let (begin, end) = measured.period.unwrap_or_default();
    let mut segments = Vec::new();
    let mut start = begin;
    for &end in &measured.segments {
        segments.push(Segment {
            start: (start - begin).0,
            length: (end - start).0,
        });
        start = end;
    }
    let called = |member: &&Member| member.counts.begun > 0;
    let length = (end - begin).0;
    let mut all: Vec<FunctionProfile> = measured
        .members
        .iter()
        .filter(called)
        .map(|member| function_profile(member, &naming, resolution, length, &segments))
        .collect();
    all.sort_by(|a, b| {
        let key = |one: &FunctionProfile| (one.profile.total, one.calls);
        key(b)
            .cmp(&key(a))
            .then_with(|| a.function.name.cmp(&b.function.name))
    });
    let not_profiled = measured.refused.iter().map(|(&at, reason)| NotProfiled {
        name: modules.name(at),
        module: modules.get(at.module).path.clone(),
        reason: reason.clone(),
    });
    let unprobed = |member: &&Member| measured.refused.contains_key(&member.place);
    let silent = measured.members.iter().filter(|member| !called(member));
    ProfileSet {
        profiles: all,
        segments,
        not_profiled: not_profiled.collect(),
        never_called: silent.filter(|member| !unprobed(member)).count() as u64,
        cost_inside: measured.cost.inside.0,
        cost_outside: measured.cost.outside.0,
        pauses: pauses(&measured.pauses),
        bytes_differing_after_detach: measured.bytes_differing,
        warnings: measured.warnings.clone(),
        ..ProfileSet::empty(Source::Functions, target, hz, resolution, length)
    }
}

fn function_profile(
    member: &Member,
    naming: &Naming<'_>,
    resolution: Resolution,
    length: u64,
    segments: &[Segment],
) -> FunctionProfile {
    let concurrency = |busy: u64, of: u64| busy as f64 / of.max(1) as f64;
    FunctionProfile {
        function: naming.function_at(member.place),
        concurrency: concurrency(member.busy.0, length),
        segments: member
            .segments
            .iter()
            .map(|counted| SegmentProfile {
                segment: counted.number as u64,
                calls: counted.begun,
                concurrency: segments
                    .get(counted.number)
                    .map_or(0.0, |segment| concurrency(counted.busy.0, segment.length)),
                buckets: assemble::profile(&counted.profile).buckets,
            })
            .collect(),
        ..counted(&member.counts, resolution)
    }
}

/// What was counted, of a function that has no name yet.
pub(in crate::session) fn counted(counts: &Counts, resolution: Resolution) -> FunctionProfile {
    let whole = profile(counts, resolution);
    FunctionProfile {
        function: Function::default(),
        calls: counts.begun,
        unfinished: counts.active,
        ended_otherwise: counts.abandoned,
        missed: counts.missed,
        max: counts.max.0,
        concurrency: 0.0,
        peaks: profiles::assemble::peaks(&whole),
        profile: assemble::profile(&whole),
        segments: Vec::new(),
    }
}

pub(in crate::session) fn pauses(pauses: &[Duration]) -> Option<Pauses> {
    let mut micros: Vec<f64> = pauses
        .iter()
        .map(|pause| pause.as_secs_f64() * 1e6)
        .collect();
    micros.sort_by(f64::total_cmp);
    Some(Pauses {
        count: micros.len() as u64,
        p50_us: *micros.get(micros.len() / 2)?,
        max_us: *micros.last()?,
    })
}
