//! What speaks against the causes that a peak has, or makes their shares others: said beside them.

use darc_analysis::{Hz, Nanos, Ticks};

use crate::model::{CalleeKind, FtreeNode, Kind, PeakEntry, RootCauseEntry, StopReason};
use crate::words::{percent, time};

/// By how much a measured call may make its surroundings longer beside what is taken out, in nanoseconds: a reading of the
/// clock waits for memory accesses that began before the one ahead of it, which nothing in the program need wait for. As
/// measured with stores to random pages of 64 MiB (the median of a processor of 2023 that others used as well).
const WAIT_FOR_MEMORY: f64 = 200.0;
/// Longer ops, in nanoseconds, are mostly long for another reason.
const SHORT_OP: f64 = 5_000.0;

/// What speaks against the causes of a peak, or makes their shares others.
pub(crate) fn doubts(peak: &PeakEntry, ftree: &FtreeNode, hz: Option<Hz>) -> Vec<String> {
    let doubts = [
        kept(peak),
        too_short(peak, ftree, hz),
        unlike(peak, ftree, hz),
    ];
    doubts.into_iter().flatten().collect()
}

/// That threads did not run for much of the time, in whatever function they were then.
fn kept(peak: &PeakEntry) -> Option<String> {
    let part = peak.kept_from_running?;
    Some(format!(
        "as far as is known: the kernel kept threads from running for {} of the time in which they would have run, and much of what functions \
         take themselves here may be that",
        percent(part)
    ))
}

/// The ops that tell are as long as others of their peak, or differ by no more than this.
const ALIKE: f64 = 0.6;

/// That the ops which tell how a peak's time divides are shorter or longer than its ops are on the whole: of the others it may not be
/// known when their threads ran.
fn unlike(peak: &PeakEntry, ftree: &FtreeNode, hz: Option<Hz>) -> Option<String> {
    let known = ftree.peaks.get(&peak.peak)?;
    if known.measured_ops == 0 || peak.ops == 0 || peak.root_causes.is_empty() {
        return None;
    }
    let (told, all) = (
        known.measured_time / known.measured_ops,
        peak.total / peak.ops,
    );
    let is_alike = told as f64 >= ALIKE * all as f64 && all as f64 >= ALIKE * told as f64;
    (!is_alike).then(|| {
        format!(
            "the {} ops that tell of callees took {} each on average, all of this peak {}: the shares are of ops that are {}",
            known.measured_ops,
            time(hz, told),
            time(hz, all),
            if told < all { "shorter" } else { "longer" }
        )
    })
}

/// That what takes the time in a peak's ops may be the effect of measuring them; nothing where every function that is told to
/// take the time itself takes more than that can be.
fn too_short(peak: &PeakEntry, ftree: &FtreeNode, hz: Option<Hz>) -> Option<String> {
    let is_own = |cause: &&RootCauseEntry| {
        let runs = cause.blocked.is_none_or(|part| part < 0.5);
        runs && matches!(cause.kind, Kind::Function | Kind::Loop)
            && !matches!(cause.stop, StopReason::Spread | StopReason::StillDescending)
    };
    let own = peak.root_causes.iter().filter(is_own);
    let least = own.map(|cause| cause.share_of_time).reduce(f64::min)?;
    let ops = ftree.peaks.get(&peak.peak)?.measured_ops;
    if ops == 0 || peak.ops == 0 {
        return None;
    }
    let calls = measured_calls(ftree, peak.peak) as f64 / ops as f64;
    let effect = calls * WAIT_FOR_MEMORY;
    let mean = hz?.nanos(Ticks(peak.total)).0 / peak.ops as f64;
    (mean < SHORT_OP && least * mean < effect).then(|| {
        format!(
            "what takes less than {} of them may be due to measuring: a reading of the clock waits for memory that the \
             program need not wait for",
            Nanos(effect)
        )
    })
}

/// The calls below f0 that were measured in the ops of a peak.
fn measured_calls(node: &FtreeNode, peak: u32) -> u64 {
    let is_call = |child: &&FtreeNode| !child.is_away() && child.kind != CalleeKind::Await;
    let calls = node.children.iter().filter(is_call);
    calls.fold(0, |sum, child| {
        let own = child.peaks.get(&peak).map_or(0, |record| record.count);
        sum.saturating_add(own)
            .saturating_add(measured_calls(child, peak))
    })
}

#[cfg(test)]
mod tests {
    use crate::fixture;
    use crate::model::FnodePeak;

    use super::*;

    #[test]
    fn of_parts_of_short_ops_it_is_said_that_measuring_may_take_them() {
        let mut report = fixture::report(4000);
        let peak = &mut report.peaks[0];
        (peak.ops, peak.total) = (100, 100_000);
        peak.root_causes.truncate(1);
        let cause = &mut peak.root_causes[0];
        (cause.kind, cause.stop, cause.blocked) = (Kind::Function, StopReason::SelfTime, None);
        cause.share_of_time = 0.3;
        let calls = |count| FnodePeak {
            measured_ops: 100,
            count,
            ..FnodePeak::default()
        };
        let number = peak.peak;
        report.ftree.peaks = [(number, calls(100))].into();
        report.ftree.children.truncate(1);
        let child = &mut report.ftree.children[0];
        child.children.clear();
        child.peaks = [(number, calls(200))].into();
        let hz = Hz::new(1_000_000_000);
        let said = |report: &crate::model::Report| too_short(&report.peaks[0], &report.ftree, hz);
        let doubt = said(&report).expect("300 ns of two measured calls");
        assert!(doubt.contains("less than 400 ns"), "{doubt}");
        report.peaks[0].root_causes[0].share_of_time = 0.5;
        assert_eq!(said(&report), None);
        report.peaks[0].root_causes[0].share_of_time = 0.01;
        report.peaks[0].total = 1_000_000;
        assert_eq!(said(&report), None, "the op is long");
    }

    #[test]
    fn it_is_said_that_threads_were_kept_from_running() {
        let mut peak = fixture::report(4000).peaks.remove(0);
        assert_eq!(kept(&peak), None);
        peak.kept_from_running = Some(0.4);
        let doubts = doubts(&peak, &FtreeNode::default(), None);
        assert!(doubts[0].contains("for 40.0% of the time"), "{doubts:?}");
    }

    #[test]
    fn it_is_said_when_other_ops_tell_than_there_are() {
        let mut report = fixture::report(4000);
        let peak = &mut report.peaks[0];
        (peak.ops, peak.total) = (1000, 6_000_000_000);
        let known = |time: u64| FnodePeak {
            measured_ops: 47,
            measured_time: 47 * time,
            ..FnodePeak::default()
        };
        let number = peak.peak;
        let hz = Hz::new(1_000_000_000);
        let mut said = |time| {
            report.ftree.peaks = [(number, known(time))].into();
            unlike(&report.peaks[0], &report.ftree, hz)
        };
        assert_eq!(said(5_000_000), None);
        assert_eq!(
            said(3_000_000).as_deref(),
            Some(
                "the 47 ops that tell of callees took 3.0 ms each on average, all of this peak 6.0 ms: the shares are of ops that are shorter"
            )
        );
        assert!(said(11_000_000).is_some_and(|said| said.ends_with("longer")));
    }
}
