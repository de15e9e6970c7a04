//! From a result back to an analysis that goes on with it.

use std::collections::BTreeMap;

use darc_analysis::requests::in_flight::{Counts, InFlight};
use darc_analysis::requests::of_ops::{Handed, OpRequests};
use darc_analysis::{
    Absence, Analysis, Callee, CalleeId, FnodeId, Ftree, Outcome, Params, Part, PathState,
    PeakRecord, Profile, SiteId, Stats, Stop, Stored, Ticks,
};

use super::{StateError, validate};
use crate::model::{
    CalleeKind, DescentState, FnodePeak, FtreeNode, HandOver, PartEntry, ProfileTable, StopReason,
};
use crate::{Place, Report};

/// The session's ids for places of code; the same place always has the same id.
pub trait Ids {
    /// The id of a call site.
    fn site(&mut self, place: &Place) -> SiteId;
    /// The id of a function that begins at a place.
    fn function(&mut self, name: &str, place: &Place) -> CalleeId;
    /// What time away is called.
    fn absence(&mut self, _absence: Absence, _name: &str) {}
}

/// The parameters that the result was found with.
///
/// # Errors
/// When they make no sense.
pub fn params(report: &Report) -> Result<Params, StateError> {
    let profile = validate::profile(&report.profile)?;
    validate::params(&report.parameters, profile.resolution())
}

/// The analysis goes on from the result, with parameters that may be others than it was found with (the
/// resolution excepted).
///
/// # Errors
/// When the result contradicts itself or the parameters.
pub fn restore(report: &Report, params: Params, ids: &mut dyn Ids) -> Result<Analysis, StateError> {
    validate::report(report)?;
    let stored = Stored {
        profile: validate::profile(&report.profile)?,
        fine: fine(&report.profile)?,
        peaks: report
            .peaks
            .iter()
            .map(|peak| (peak.first_bucket, peak.last_bucket))
            .collect(),
        ftree: ftree(&report.ftree, ids)?,
    };
    Ok(Analysis::resume(params, stored)?)
}

/// The profile at the resolution of percentiles, and the longest latency, where they are stored.
fn fine(table: &ProfileTable) -> Result<Option<(Profile, Ticks)>, StateError> {
    let Some(percentiles) = table.percentiles else {
        return Ok(None);
    };
    let fine = validate::fine(table)?;
    Ok(Some((fine, Ticks(percentiles.max))))
}

/// The requests of earlier runs. Those that were in flight are never seen to be served.
///
/// # Errors
/// When the figures contradict themselves.
pub fn requests(handover: &HandOver) -> Result<InFlight, StateError> {
    let waits = validate::profile(&handover.waits)?;
    let mut by_peak = BTreeMap::new();
    for of in &handover.peaks {
        let handed = Handed {
            ops: of.ops,
            requests: of.requests,
            waits: validate::profile(&of.waits)?,
            services: validate::profile(&of.services)?,
        };
        by_peak.insert(of.peak, handed);
    }
    let of_ops = OpRequests::resumed(waits.resolution(), by_peak, handover.of_unknown_ops);
    let counts = Counts {
        enqueued: handover.enqueued,
        served: handover.served,
        others: handover.others,
        expired: handover.expired.saturating_add(handover.in_flight),
        crowded_out: handover.crowded_out,
        unread: handover.unread,
    };
    Ok(InFlight::resumed(waits, of_ops, counts))
}

fn ftree(root: &FtreeNode, ids: &mut dyn Ids) -> Result<Ftree, StateError> {
    let mut tree = Ftree::new();
    let mut below = vec![(root, FnodeId::ROOT)];
    while let Some((node, id)) = below.pop() {
        let portion = node.portion.saturating_sub(1) as usize;
        tree.set_batches(id, node.portions as usize, portion);
        let peaks = node.peaks.keys();
        let peaks = peaks
            .chain(node.maxcount.keys())
            .chain(node.self_maxcount.keys());
        for &peak in peaks {
            tree.set_record(id, peak, record(node, peak));
        }
        // Ids are handed out here in the order of the file, and taken from the end of the list.
        let first = below.len();
        for child in &node.children {
            if let Some(absence) = absence(child) {
                let nodes = tree.len();
                let child_id = tree.absence(id, absence);
                ids.absence(absence, &child.name);
                if tree.len() == nodes {
                    return Err(invalid("the same call is there twice"));
                }
                below.push((child, child_id));
                continue;
            }
            let site = child.site.as_ref().map(|place| ids.site(place));
            let site = site.ok_or_else(|| invalid("an fnode has no call site"))?;
            let nodes = tree.len();
            let child_id = tree.add_child(id, site, callee(child, ids)?);
            if tree.len() == nodes {
                return Err(invalid("the same call is there twice"));
            }
            if child.unmeasured {
                tree.refuse_one(child_id);
            }
            below.push((child, child_id));
        }
        below[first..].reverse();
    }
    Ok(tree)
}

fn invalid(what: &str) -> StateError {
    StateError::Invalid(what.to_owned())
}

fn callee(node: &FtreeNode, ids: &mut dyn Ids) -> Result<Callee, StateError> {
    Ok(match (node.kind, &node.callee) {
        (CalleeKind::Function, Some(place)) => Callee::Function(ids.function(&node.name, place)),
        (CalleeKind::Function, None) => return Err(invalid("a function has no place")),
        (CalleeKind::Syscall, _) => Callee::Syscall(node.syscall),
        (CalleeKind::Unknown, _) => Callee::Unknown,
        _ => return Err(invalid("time away is no call")),
    })
}

/// What a node stands for that is no call.
fn absence(node: &FtreeNode) -> Option<Absence> {
    let number = node.interrupt.unwrap_or_default();
    match node.kind {
        CalleeKind::Preemption => Some(Absence::Preempted),
        CalleeKind::Interrupt => Some(Absence::Interrupt(number)),
        CalleeKind::LocalInterrupt => Some(Absence::LocalInterrupt(number)),
        CalleeKind::PageFault => Some(Absence::PageFault),
        CalleeKind::Signal => Some(Absence::Signal(number)),
        CalleeKind::Await => Some(Absence::Awaiting(number)),
        CalleeKind::SoftInterrupt => Some(Absence::SoftInterrupt(number)),
        CalleeKind::Function | CalleeKind::Syscall | CalleeKind::Unknown => None,
    }
}

fn record(node: &FtreeNode, peak: u32) -> PeakRecord {
    let none = FnodePeak::default();
    let stored = node.peaks.get(&peak).unwrap_or(&none);
    let count = |counts: &BTreeMap<u32, u64>| counts.get(&peak).copied();
    let sums = stored.decision.unwrap_or_default();
    PeakRecord {
        batch: stored.portion.saturating_sub(1) as usize,
        before: stored.maxcount_before,
        maxcount: count(&node.maxcount).unwrap_or(0),
        self_maxcount: count(&node.self_maxcount).unwrap_or(0),
        least_part: Some(stored.least_part).filter(|&part| part > 0),
        // Ops that were counted in another way count for no decision.
        decision_ops: stored.decision.map_or(0, |_| stored.decision_ops),
        measured_ops: stored.measured_ops,
        measured_time: Ticks(stored.measured_time),
        missed_ops: stored.missed_ops,
        // What was not stored is not waited for.
        longest_bucket: if stored.decision_ops > 0 { u32::MAX } else { 0 },
        whole: Part {
            time: Ticks(sums.time),
            squares: sums.squares,
            products: sums.squares,
        },
        own: Part {
            time: Ticks(stored.self_time),
            squares: sums.own_squares,
            products: sums.own_products,
        },
        part: part(stored.part),
        loop_time: Ticks(stored.loop_time),
        own_seen: Ticks(stored.self_seen),
        own_blocked: Ticks(stored.self_blocked),
        stats: Stats {
            ops: stored.ops,
            max: Ticks(stored.max),
            sum: Ticks(stored.sum),
            count: stored.count,
        },
        state: state(stored),
    }
}

fn part(stored: Option<PartEntry>) -> Part {
    let stored = stored.unwrap_or_default();
    Part {
        time: Ticks(stored.time),
        squares: stored.squares,
        products: stored.products,
    }
}

fn state(stored: &FnodePeak) -> PathState {
    match stored.state {
        DescentState::NotChosen => PathState::NotChosen,
        DescentState::Waiting => PathState::Waiting,
        DescentState::Collecting => PathState::Collecting,
        DescentState::DecidedSelf => PathState::Decided(Outcome::Itself),
        DescentState::DecidedCallees => PathState::Decided(Outcome::Callees),
        DescentState::DecidedBoth => PathState::Decided(Outcome::Both),
        DescentState::DecidedSpread => PathState::Decided(Outcome::Spread),
        DescentState::Ended => PathState::Ended(match stored.stop {
            Some(StopReason::NoCalls) => Stop::NoCalls,
            Some(StopReason::PartlyMeasured) => Stop::PartlyMeasured,
            Some(StopReason::Spread) => Stop::Spread,
            Some(StopReason::Recursion) => Stop::Recursion,
            Some(StopReason::MaxDepth) => Stop::MaxDepth,
            Some(StopReason::NotInstrumentable) => {
                Stop::NotInstrumentable(stored.reason.clone().unwrap_or_default())
            }
            Some(StopReason::TooRare) => Stop::TooRare,
            Some(StopReason::StillDescending) => Stop::StillDescending,
            Some(StopReason::SelfTime) | None => Stop::SelfTime,
        }),
    }
}
