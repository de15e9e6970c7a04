//! Whether what a file says can be: figures that contradict one another are refused before anybody
//! computes with them.

use std::collections::BTreeSet;

use darc_analysis::{
    Params, PeakChoice, Profile, Range, Resolution, Ticks, profile::histogram::Bucket,
};

use super::{MAX_CELLS, MAX_DEPTH, MAX_RECORDS, StateError};
use crate::Report;
use crate::model::CalleeKind;
use crate::model::{
    BucketEntry, DescentState, FnodePeak, FtreeNode, HandOver, HandedOver, Parameters, PeakEntry,
    ProfileTable, SCHEMA,
};
use crate::profiles::{KIND, ProfileSet};

/// More ops than this nobody has counted.
const MOST_OPS: u64 = 1 << 60;

/// An experiment's histogram has so many columns at most.
const MOST_COLUMNS: usize = 1 << 10;

/// A path of the time table begins where a thread did, and a stack that runs may be deep.
const LONGEST_PATH: usize = 1 << 13;

/// Checks a whole report.
pub(super) fn report(report: &Report) -> Result<(), StateError> {
    ensure(report.schema == SCHEMA, || {
        format!("schema {} is not known", report.schema)
    })?;
    let resolution = profile(&report.profile)?.resolution();
    fine(&report.profile)?;
    params(&report.parameters, resolution)?;
    analysis(&report.profile, &report.peaks, &report.ftree)?;
    let values = report.values.iter();
    for contrast in values.chain(report.focus.iter().flat_map(|focus| &focus.values)) {
        share("share", contrast.share)?;
        for value in contrast.values.iter().flat_map(|side| &side.values) {
            share("share", value.share)?;
        }
    }
    for part in report.time.iter().flat_map(|table| &table.parts) {
        share("share_of_time", part.share_of_time)?;
        ensure(part.path.len() <= LONGEST_PATH, || {
            "a path of the time table is too long".to_owned()
        })?;
    }
    for focus in &report.focus {
        share("share_of_time", focus.share_of_time)?;
        profile(&focus.profile)?;
        fine(&focus.profile)?;
        if let Some(handover) = &focus.handover {
            handed_over(handover, report)?;
        }
        analysis(&focus.profile, &focus.peaks, &focus.ftree)?;
    }
    if let Some(comparison) = &report.comparison {
        for value in [
            comparison.chi_square,
            comparison.ops,
            comparison.mean_latency,
            comparison.total_latency,
        ] {
            share("comparison", value)?;
        }
        let distance = comparison.earth_movers_distance.unwrap_or(0.0);
        let longest = 64.0;
        ensure((0.0..=longest).contains(&distance), || {
            format!("earth_movers_distance {distance} cannot be")
        })?;
    }
    proofs(report)?;
    let pauses = report.probes.pause_us;
    ensure(pauses.p50 >= 0.0 && pauses.max >= 0.0, || {
        "a pause is negative".to_owned()
    })?;
    let effort = report.probes.effort.unwrap_or_default();
    let times = [effort.budget, effort.elapsed, effort.reading];
    let times = times.iter().chain([
        &effort.calls,
        &effort.latencies,
        &effort.records,
        &effort.rested,
    ]);
    ensure(times.copied().all(|time| time >= 0.0), || {
        "measuring took a negative time".to_owned()
    })?;
    let modules: BTreeSet<_> = report
        .modules
        .iter()
        .map(|at| (&at.path, &at.build_id))
        .collect();
    ensure(modules.len() == report.modules.len(), || {
        "a module is listed twice".to_owned()
    })
}

/// What experiments say: figures that can be drawn.
fn proofs(report: &Report) -> Result<(), StateError> {
    let known = (1..=report.peaks.len() as u32).collect::<BTreeSet<_>>();
    let peaks = report.proofs.iter().map(|proof| (proof.peak, &proof.path));
    let effects = report
        .effects
        .iter()
        .map(|effect| (effect.peak, &effect.path));
    for (peak, path) in peaks.chain(effects) {
        ensure(
            known.contains(&peak) && (1..=MAX_DEPTH).contains(&path.len()),
            || format!("experiments: there is no peak {peak}, or its path is too long"),
        )?;
    }
    for proof in &report.proofs {
        if let Some(measured) = &proof.measured {
            share("added_share", measured.added_share)?;
        }
        let Some(compared) = &proof.latencies else {
            continue;
        };
        let columns = compared.without.len();
        let counts = compared.without.iter().chain(&compared.with);
        ensure(
            (1..=MOST_COLUMNS).contains(&columns)
                && compared.with.len() == columns
                && counts.copied().all(|count| count < MOST_OPS)
                && compared.from_ns >= 0.0
                && compared.width_ns > 0.0,
            || "experiments: the latencies make no histogram".to_owned(),
        )?;
    }
    Ok(())
}

/// What became of requests: by peaks that f0 has, and no more of them served than handed over.
fn handed_over(handover: &HandOver, report: &Report) -> Result<(), StateError> {
    let table = |table: &ProfileTable| {
        ensure(table.resolution == report.profile.resolution, || {
            "requests: their times have another resolution than the profile".to_owned()
        })?;
        profile(table).map(drop)
    };
    table(&handover.waits)?;
    let counts = [
        handover.enqueued,
        handover.served,
        handover.in_flight,
        handover.expired,
        handover.crowded_out,
        handover.others,
        handover.unread,
        handover.of_unknown_ops,
    ];
    let of_peaks = handover.peaks.iter().map(|of| of.requests);
    // Room for what a resumed analysis adds.
    ensure(
        counts.into_iter().chain(of_peaks).all(|it| it < MOST_OPS),
        || "requests: there cannot be so many".to_owned(),
    )?;
    let last = report.peaks.len() as u32;
    // What belongs to no peak comes last.
    let order = |of: &HandedOver| of.peak.unwrap_or(u32::MAX);
    let ascending = handover
        .peaks
        .windows(2)
        .all(|pair| order(&pair[0]) < order(&pair[1]));
    ensure(ascending, || "requests: peaks are out of order".to_owned())?;
    for of in &handover.peaks {
        table(&of.waits)?;
        table(&of.services)?;
        ensure(
            of.peak.is_none_or(|peak| (1..=last).contains(&peak)),
            || format!("requests: there is no peak {}", order(of)),
        )?;
        ensure(
            of.waits.ops == of.services.ops
                && of.waits.ops <= of.requests
                && of.ops <= of.requests
                && (of.ops > 0 || of.requests == 0),
            || "requests: more were served than handed over".to_owned(),
        )?;
    }
    Ok(())
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), StateError> {
    if holds {
        Ok(())
    } else {
        Err(StateError::Invalid(what()))
    }
}

fn share(name: &str, share: f64) -> Result<(), StateError> {
    // Sums of shares may be off by a rounding.
    ensure((0.0..=1.0 + 1e-9).contains(&share), || {
        format!("{name} {share} is not between 0 and 1")
    })
}

/// The parameters that a report names.
pub(super) fn params(from: &Parameters, resolution: Resolution) -> Result<Params, StateError> {
    let invalid = |error: &dyn std::fmt::Display| StateError::Invalid(error.to_string());
    let params = Params {
        start_ops: from.start_ops,
        decision_ops: from.decision_ops,
        max_depth: usize::try_from(from.max_depth).map_err(|error| invalid(&error))?,
        resolution,
        peak: from.peak.map_or(PeakChoice::All, PeakChoice::One),
        range: from.range.map(|range| match range.above {
            Some(percentile) => Range::Above(percentile),
            None => Range::Between(Ticks(range.from), Ticks(range.to)),
        }),
    };
    params.validate().map_err(|error| invalid(&error))?;
    Ok(params)
}

/// The profile that a table describes; its checksum is right.
///
/// # Errors
/// When the buckets are out of order or do not add up.
pub fn profile(table: &ProfileTable) -> Result<Profile, StateError> {
    let refuse = |what: String| StateError::Invalid(format!("profile: {what}"));
    let resolution = Resolution::new(table.resolution)
        .ok_or_else(|| refuse(format!("resolution {} is not known", table.resolution)))?;
    let mut profile = Profile::new(resolution);
    let (mut ops, mut total) = (0_u64, 0_u64);
    for pair in table.buckets.windows(2) {
        ensure(pair[0].bucket < pair[1].bucket, || {
            format!("profile: bucket {} is out of order", pair[1].bucket)
        })?;
    }
    for entry in &table.buckets {
        let too_many = || refuse(format!("bucket {} has too much", entry.bucket));
        ops = ops.checked_add(entry.ops).ok_or_else(too_many)?;
        total = total.checked_add(entry.total).ok_or_else(too_many)?;
        ensure(entry.ops > 0, || {
            format!("profile: bucket {} is empty", entry.bucket)
        })?;
        let content = Bucket {
            ops: entry.ops,
            total: Ticks(entry.total),
        };
        profile
            .add_bucket(entry.bucket, content)
            .map_err(|error| refuse(error.to_string()))?;
    }
    ensure(ops <= MOST_OPS, || "profile: too many ops".to_owned())?;
    ensure((ops, total) == (table.ops, table.total), || {
        format!("profile: the buckets hold {ops} ops, not {}", table.ops)
    })?;
    Ok(profile)
}

/// The profile at the resolution of percentiles that a table describes: of no more ops than the profile has.
pub(super) fn fine(table: &ProfileTable) -> Result<Profile, StateError> {
    let entries = table.fine.iter();
    let sum = |of: fn(&BucketEntry) -> u64| entries.clone().map(of).fold(0, u64::saturating_add);
    let fine = profile(&ProfileTable {
        resolution: Resolution::FINE.get(),
        ops: sum(|entry| entry.ops),
        total: sum(|entry| entry.total),
        buckets: table.fine.clone(),
        percentiles: None,
        told_from: None,
        fine: Vec::new(),
    })?;
    ensure(fine.count() <= table.ops, || {
        "profile: its fine buckets hold more ops than it has".to_owned()
    })?;
    Ok(fine)
}

/// Checks a set of profiles.
pub(super) fn profiles(set: &ProfileSet) -> Result<(), StateError> {
    ensure(set.schema == SCHEMA, || {
        format!("schema {} is not known", set.schema)
    })?;
    ensure(set.kind == KIND, || "it is no set of profiles".to_owned())?;
    let resolution = Resolution::new(set.resolution).ok_or_else(|| {
        StateError::Invalid(format!("resolution {} is not known", set.resolution))
    })?;
    let concurrency = |value: f64| {
        ensure(value.is_finite() && value >= 0.0, || {
            format!("concurrency {value} cannot be")
        })
    };
    for entry in &set.profiles {
        ensure(entry.profile.resolution == set.resolution, || {
            format!(
                "profile: resolution {} of one in {}",
                entry.profile.resolution, set.resolution
            )
        })?;
        profile(&entry.profile)?;
        concurrency(entry.concurrency)?;
        for peak in &entry.peaks {
            share("share_of_ops", peak.share_of_ops)?;
            share("share_of_time", peak.share_of_time)?;
            ensure(peak.first_bucket <= peak.last_bucket, || {
                format!("peak {} ends before it begins", peak.peak)
            })?;
        }
        for part in &entry.segments {
            concurrency(part.concurrency)?;
            ensure(part.segment < set.segments.len() as u64, || {
                format!("there is no segment {}", part.segment)
            })?;
            for bucket in &part.buckets {
                ensure(bucket.bucket < resolution.buckets(), || {
                    format!("there is no bucket {}", bucket.bucket)
                })?;
            }
        }
    }
    Ok(())
}

/// One analysis: peaks that the profile can have, and an ftree of these peaks.
fn analysis(
    profile: &ProfileTable,
    peaks: &[PeakEntry],
    ftree: &FtreeNode,
) -> Result<(), StateError> {
    let buckets = Resolution::new(profile.resolution).map_or(0, Resolution::buckets);
    ensure(peaks.len() <= buckets as usize, || {
        "there are more peaks than buckets".to_owned()
    })?;
    for (number, peak) in (1..).zip(peaks) {
        ensure(peak.peak == number, || format!("peak {number} is missing"))?;
        ensure(peak.first_bucket <= peak.last_bucket, || {
            format!("peak {number} has no range")
        })?;
        share("share_of_ops", peak.share_of_ops)?;
        share("share_of_time", peak.share_of_time)?;
        share(
            "kept_from_running",
            peak.kept_from_running.unwrap_or_default(),
        )?;
        for cause in &peak.root_causes {
            share("share_of_time", cause.share_of_time)?;
            for frame in &cause.frames {
                share("share_of_time", frame.share_of_time)?;
            }
        }
        ensure(
            peak.ops <= profile.ops && peak.total <= profile.total,
            || format!("peak {number} has more ops than the profile"),
        )?;
    }
    ensure(ftree.site.is_none(), || {
        "the ftree does not begin with f0".to_owned()
    })?;
    let last = peaks.len() as u32;
    let mut nodes = 0_usize;
    let mut below = vec![(ftree, 1_usize)];
    while let Some((node, depth)) = below.pop() {
        nodes += 1;
        ensure(depth <= MAX_DEPTH + 1 && nodes <= MAX_RECORDS, || {
            "the ftree is too large".to_owned()
        })?;
        let is_call = matches!(
            node.kind,
            CalleeKind::Function | CalleeKind::Syscall | CalleeKind::Unknown
        );
        ensure(depth == 1 || node.site.is_some() || !is_call, || {
            "an fnode has no call site".to_owned()
        })?;
        let numbers = node
            .maxcount
            .keys()
            .chain(node.self_maxcount.keys())
            .chain(node.peaks.keys())
            .chain(&node.root_cause_of);
        for &peak in numbers {
            ensure((1..=last).contains(&peak), || {
                format!("an fnode speaks of peak {peak}, which does not exist")
            })?;
        }
        for (peak, record) in &node.peaks {
            fnode_peak(record)?;
            let begun = |record: &FnodePeak| record.state != DescentState::NotChosen;
            ensure(
                !begun(record) || ftree.peaks.get(peak).is_some_and(begun),
                || format!("the descent of peak {peak} does not begin at f0"),
            )?;
            ensure(record.portion <= node.portions, || {
                "an fnode's decision is about a portion that does not exist".to_owned()
            })?;
            let maxcount = node.maxcount.get(peak).copied().unwrap_or(0);
            ensure(record.maxcount_before <= maxcount, || {
                "an fnode had a larger maxcount before".to_owned()
            })?;
        }
        ensure(
            !node
                .children
                .iter()
                .any(|child| child.portion > node.portions),
            || "an fnode is in a portion that does not exist".to_owned(),
        )?;
        below.extend(node.children.iter().map(|child| (child, depth + 1)));
    }
    // A small file can name many fnodes and many peaks; what is shown has a cell for each pair.
    ensure(nodes.saturating_mul(peaks.len()) <= MAX_CELLS, || {
        format!("{nodes} fnodes and {} peaks are too many", peaks.len())
    })
}

fn fnode_peak(record: &FnodePeak) -> Result<(), StateError> {
    let sums = record.decision.unwrap_or_default();
    let part = record.part.unwrap_or_default();
    let of_sums = [sums.squares, sums.own_squares, sums.own_products];
    for sum in of_sums.into_iter().chain([part.squares, part.products]) {
        ensure(sum.is_finite() && sum >= 0.0, || {
            format!("{sum} is no sum of squares")
        })?;
    }
    ensure(
        (record.state == DescentState::Ended) == record.stop.is_some(),
        || "an fnode's path ends without a reason, or has one and does not end".to_owned(),
    )
}
