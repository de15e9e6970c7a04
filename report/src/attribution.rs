//! The time of all ops, attributed to the calls that took it: what flame graphs and call graphs show.
//!
//! Every op is in the profile, but an fnode's calls are measured in some ops only, while the descent stands
//! there. So the time of a peak is exact, and is divided at each fnode in the proportions that were
//! measured there: own time and callees together are always the whole.

use std::collections::BTreeMap;

use darc_analysis::Hz;

use super::model::{FnodePeak, FtreeNode, PeakEntry, ProfileTable, Report};
use super::words;

/// The ops of one peak.
pub(super) struct Share<'a> {
    /// Which function was analysed.
    pub(super) analysed: Analysed,
    /// The functions above it; none where it is the outermost one of a stack.
    pub(super) above: &'a [String],
    /// Which ops.
    pub(super) ops: Ops<'a>,
    /// What they did.
    pub(super) root: Call<'a>,
}

/// Which function was analysed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Analysed {
    /// f0.
    F0,
    /// One that the time of f0 goes to.
    Below,
}

/// Which ops.
#[derive(Clone, Copy)]
pub(super) enum Ops<'a> {
    /// Those of a peak, in a profile of this resolution.
    OfPeak(&'a PeakEntry, u32),
    /// Those of no peak.
    OfNoPeak,
}

/// A call in the context of its path, with its part of the time.
pub(super) struct Call<'a> {
    /// The fnode.
    pub(super) node: &'a FtreeNode,
    /// How many calls (estimated, for all but the root).
    pub(super) calls: u64,
    /// Cycles of all of them.
    pub(super) total: u64,
    /// Cycles that no callee took.
    pub(super) own: u64,
    /// The callees that took any time.
    pub(super) callees: Vec<Call<'a>>,
}

impl Ops<'_> {
    /// What the ops are called.
    pub(super) fn name(self, hz: Option<Hz>) -> String {
        match self {
            Ops::OfPeak(peak, resolution) => match words::range(hz, peak, resolution) {
                Some(range) => format!("peak {} ({range})", peak.peak),
                None => format!("peak {}", peak.peak),
            },
            Ops::OfNoPeak => "no peak".to_owned(),
        }
    }
}

/// The time of every peak of every analysis in the report.
pub(super) fn of(report: &Report) -> Vec<Share<'_>> {
    let mut shares = Vec::new();
    attribute(
        (Analysed::F0, &[]),
        &report.profile,
        &report.peaks,
        &report.ftree,
        &mut shares,
    );
    for focus in &report.focus {
        let above = focus
            .path
            .split_last()
            .map_or(&[] as &[String], |(_, above)| above);
        attribute(
            (Analysed::Below, above),
            &focus.profile,
            &focus.peaks,
            &focus.ftree,
            &mut shares,
        );
    }
    shares
}

fn attribute<'a>(
    (analysed, above): (Analysed, &'a [String]),
    profile: &ProfileTable,
    peaks: &'a [PeakEntry],
    ftree: &'a FtreeNode,
    shares: &mut Vec<Share<'a>>,
) {
    let (mut ops_left, mut time_left) = (profile.ops, profile.total);
    for peak in peaks {
        ops_left = ops_left.saturating_sub(peak.ops);
        time_left = time_left.saturating_sub(peak.total);
        shares.push(Share {
            analysed,
            above,
            ops: Ops::OfPeak(peak, profile.resolution),
            root: of_peak(ftree, peak),
        });
    }
    if ops_left > 0 {
        let root = Call {
            node: ftree,
            calls: ops_left,
            total: time_left,
            own: time_left,
            callees: Vec::new(),
        };
        shares.push(Share {
            analysed,
            above,
            ops: Ops::OfNoPeak,
            root,
        });
    }
}

/// The time of one peak, from f0 down.
pub(super) fn of_peak<'a>(ftree: &'a FtreeNode, peak: &PeakEntry) -> Call<'a> {
    call(ftree, peak, peak.ops, peak.total)
}

/// The calls with the most time of their own in the ops of a peak, each by the names of its path, with the part of the
/// peak's time that it is, from all sites; those at and below `place`, the largest first.
pub(super) fn largest(
    ftree: &FtreeNode,
    peak: &PeakEntry,
    place: &[String],
) -> Vec<(Vec<String>, f64)> {
    let mut found: BTreeMap<Vec<String>, f64> = BTreeMap::new();
    let mut below = vec![(Vec::new(), of_peak(ftree, peak))];
    while let Some((mut path, call)) = below.pop() {
        path.push(call.node.name.clone());
        if path
            .iter()
            .zip(place)
            .any(|(name, of_place)| name != of_place)
        {
            continue;
        }
        if path.len() >= place.len() {
            let own = call.own as f64 / peak.total.max(1) as f64;
            *found.entry(path.clone()).or_default() += own;
        }
        below.extend(
            call.callees
                .into_iter()
                .map(|callee| (path.clone(), callee)),
        );
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    found
}

/// Divides `total` cycles between the function itself and its callees.
fn call<'a>(node: &'a FtreeNode, peak: &PeakEntry, calls: u64, total: u64) -> Call<'a> {
    let none = FnodePeak::default();
    let record = |node: &'a FtreeNode| node.peaks.get(&peak.peak);
    let here = record(node).unwrap_or(&none);
    // Time away is in that of f0, and taken out of all that f0 calls.
    let (away, below): (Vec<_>, Vec<_>) = node
        .children
        .iter()
        .filter_map(|child| Some((child, record(child)?)))
        .partition(|(child, _)| child.is_away() && node.site.is_some());
    let away = away
        .iter()
        .fold(0, |sum: u64, (_, child)| sum.saturating_add(child.sum));
    let below = below.into_iter();
    let measured = below
        .clone()
        .map(|(_, callee)| u128::from(callee.sum_in_all(here)))
        .sum::<u128>();
    let time = here.measured_time.saturating_sub(away);
    let whole = measured.max(u128::from(time)).max(1);
    let mut own = total;
    let callees = below
        .filter(|(_, callee)| callee.sum > 0)
        .map(|(child, callee)| {
            let part = scale(total, u128::from(callee.sum_in_all(here)), whole);
            let calls = scale(
                peak.ops,
                u128::from(callee.count),
                u128::from(callee.ops_seen(here).max(1)),
            );
            own = own.saturating_sub(part);
            call(child, peak, calls, part)
        })
        .collect();
    Call {
        node,
        calls,
        total,
        own,
        callees,
    }
}

/// `value · part / whole`, rounded down.
fn scale(value: u64, part: u128, whole: u128) -> u64 {
    // Parts that come from a file may be larger than 64 bits together, never alone.
    u64::try_from(u128::from(value).saturating_mul(part) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::model::CalleeKind;

    fn own(call: &Call<'_>) -> u64 {
        call.own + call.callees.iter().map(own).sum::<u64>()
    }

    #[test]
    fn nothing_is_lost_and_nothing_invented() {
        for ops in [0, 50, 330, 30_000] {
            let report = fixture::report(ops);
            let shares = of(&report);
            let total: u64 = shares.iter().map(|share| own(&share.root)).sum();
            assert_eq!(total, report.profile.total, "{ops}");
        }
    }

    #[test]
    fn the_slow_peak_is_its_system_call() {
        let report = fixture::report(30_000);
        let shares = of(&report);
        let slow = &shares[1].root;
        let lock = &slow.callees[1];
        let futex = &lock.callees[0];
        assert_eq!(futex.node.name, "futex");
        assert!(futex.own as f64 > 0.95 * slow.total as f64);
        assert_eq!(futex.calls, slow.calls);
    }

    #[test]
    fn page_faults_are_part_of_who_touches_the_memory_and_preemption_is_not() {
        let parts = |kind| {
            let mut report = fixture::report(30_000);
            let lock = &mut report.ftree.children[1];
            lock.children[0].kind = kind;
            let slow = of(&report).swap_remove(1).root;
            let lock = slow.callees.into_iter().nth(1);
            lock.map_or(0, |lock| lock.callees.len())
        };
        assert_eq!(parts(CalleeKind::PageFault), 2);
        assert_eq!(parts(CalleeKind::Preemption), 1);
    }

    #[test]
    fn what_was_measured_in_a_portion_of_the_ops_is_attributed_to_all() {
        let mut report = fixture::report(30_000);
        let whole = of(&report)[0].root.callees[0].total;
        let ops = report.ftree.peaks[&1].measured_ops;
        let hash = report.ftree.children[0].peaks.get_mut(&1).unwrap();
        let missed = ops / 2;
        (hash.missed_ops, hash.sum) = (missed, hash.sum * (ops - missed) / ops);
        assert!(of(&report)[0].root.callees[0].total.abs_diff(whole) < whole / 1_000);
    }

    #[test]
    fn callees_never_take_more_than_there_is() {
        let mut report = fixture::report(30_000);
        for child in &mut report.ftree.children {
            for record in child.peaks.values_mut() {
                record.sum = u64::MAX;
            }
        }
        let shares = of(&report);
        let total: u64 = shares.iter().map(|share| own(&share.root)).sum();
        assert_eq!(total, report.profile.total);
    }
}
