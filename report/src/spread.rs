//! Whether the causes of a peak explain its time, in words.

use super::attribution;
use super::ends::by_end;
use super::escape::control;
use super::model::{ArgumentEntry, FtreeNode, PeakEntry, RootCauseEntry, Status, StopReason};
use super::names::short;
use super::recursion;
use super::words::{path, percent};

/// A cause that explains less of a peak's time than this is not the cause of it.
pub(super) const SINGLE: f64 = 0.3;
/// Causes that explain less together leave most of the time unexplained.
pub(super) const MOST: f64 = 0.5;
/// So many of the largest parts of the time are named where no part is large.
const NAMED: usize = 3;
/// ... and none beside the largest that has less of it.
const LITTLE: f64 = 0.01;

/// The causes of a peak, the largest first; those whose paths differ in their call sites alone, or in the depth of a recursion, are
/// one, with all of their shares.
pub(super) fn together(peak: &PeakEntry) -> Vec<RootCauseEntry> {
    let mut causes = merged(peak, |one, other| names(one) == names(other));
    causes.sort_by(|one, other| other.share_of_time.total_cmp(&one.share_of_time));
    causes
}

/// The causes of a peak in their order; those that differ in the depth of a recursion alone are one, with all of their shares.
pub(super) fn without_depths(peak: &PeakEntry) -> Vec<RootCauseEntry> {
    merged(peak, |one, other| {
        let steps = names(one);
        steps == names(other) && steps.iter().any(|(_, is_recursive)| *is_recursive)
    })
}

/// The functions of a path, each once, as they are told apart, and whether they call themselves.
fn names(cause: &RootCauseEntry) -> Vec<(String, bool)> {
    let steps = recursion::steps(cause).into_iter();
    steps
        .map(|step| (step.shown(), step.is_recursive))
        .collect()
}

/// The causes of a peak, with those of one end put together that are the same.
fn merged(
    peak: &PeakEntry,
    is_same: impl Fn(&RootCauseEntry, &RootCauseEntry) -> bool,
) -> Vec<RootCauseEntry> {
    let mut causes: Vec<RootCauseEntry> = Vec::new();
    for cause in &peak.root_causes {
        let is_known = |known: &&mut RootCauseEntry| {
            (known.kind, known.stop) == (cause.kind, cause.stop) && is_same(known, cause)
        };
        match causes.iter_mut().find(is_known) {
            Some(known) => add(known, cause),
            None => causes.push(cause.clone()),
        }
    }
    causes
}

/// Puts a cause to one of the same end: what they explain is added up.
pub(super) fn add(known: &mut RootCauseEntry, cause: &RootCauseEntry) {
    known.in_calls = in_calls(known, cause);
    known.share_of_time = (known.share_of_time + cause.share_of_time).min(1.0);
    known.assumed = (known.assumed + cause.assumed).min(1.0);
    known.known_from = known.known_from.max(cause.known_from);
    let last = known.frames.last_mut().zip(cause.frames.last());
    if let Some((known, of_cause)) = last {
        let share = known.share_of_time + of_cause.share_of_time;
        known.share_of_time = share.min(1.0);
    }
    add_arguments(&mut known.arguments, &cause.arguments);
    known.share_of_ops = in_ops(known.share_of_ops, cause.share_of_ops);
}

/// In which part of the ops one of two causes is one, at most; 0 where that is not known of both.
fn in_ops(one: f64, other: f64) -> f64 {
    match one > 0.0 && other > 0.0 {
        true => (one + other).min(1.0),
        false => 0.0,
    }
}

/// Whether a cause is several of the peak's that were put together.
pub(super) fn is_of_several(cause: &RootCauseEntry, peak: &PeakEntry) -> bool {
    let is_same = |one: &&RootCauseEntry| {
        (one.kind, one.stop) == (cause.kind, cause.stop) && names(one) == names(cause)
    };
    let same = peak.root_causes.iter().filter(is_same);
    same.clone().count() > 1 && !same.clone().any(|one| one == cause)
}

/// The part of what two loops explain that is in their calls.
fn in_calls(one: &RootCauseEntry, other: &RootCauseEntry) -> Option<f64> {
    let together = one.share_of_time + other.share_of_time;
    let of = |cause: &RootCauseEntry| cause.in_calls.map(|part| part * cause.share_of_time);
    let time = of(one)? + of(other)?;
    Some(if together > 0.0 { time / together } else { 1.0 })
}

/// Adds what further calls were called with; nothing is known of all where it is not of some.
fn add_arguments(known: &mut Vec<ArgumentEntry>, more: &[ArgumentEntry]) {
    let calls = |entries: &[ArgumentEntry]| entries.first().map_or(0, |entry| entry.of);
    let of = calls(known).saturating_add(calls(more));
    if calls(known) == 0 || calls(more) == 0 {
        known.clear();
        return;
    }
    for entry in more {
        match known.iter_mut().find(|at| at.value == entry.value) {
            Some(at) => at.count = at.count.saturating_add(entry.count),
            None => known.push(entry.clone()),
        }
    }
    known.iter_mut().for_each(|entry| entry.of = of);
    known.sort_by_key(|entry| std::cmp::Reverse(entry.count));
}

/// The shares of a peak's time that its causes explain, where that is known; the largest first.
fn shares(peak: &PeakEntry) -> Vec<f64> {
    let causes = together(peak).into_iter();
    let known = causes.filter(|cause| cause.known_from > 0);
    known.map(|cause| cause.share_of_time).collect()
}

/// Where a peak stands: it has no single cause where all were found and explain little, the largest and as many as are named together.
pub(super) fn of_found(peak: &PeakEntry) -> Status {
    if !matches!(
        peak.status,
        Status::RootCauseFound | Status::MaxDepthReached
    ) {
        return peak.status;
    }
    let ends = by_end(together(peak)).into_iter();
    let known = ends.filter(|end| end.cause.known_from > 0);
    let shares: Vec<f64> = known.map(|end| end.cause.share_of_time).collect();
    let largest = shares.first().copied();
    let named: f64 = shares.iter().take(NAMED).sum();
    match largest.is_some_and(|largest| largest < SINGLE) && named < MOST {
        true => Status::Spread,
        false => peak.status,
    }
}

/// What is known where a peak has no single cause: only what a function itself and each of its calls take was looked at, of the
/// function that ends the path with most of the time.
pub(super) fn no_single_part(peak: &PeakEntry) -> String {
    let ends = peak.root_causes.iter();
    let ends = ends.filter(|cause| cause.stop == StopReason::Spread);
    let below = |cause: &RootCauseEntry| cause.frames.last().map_or(0.0, |at| at.share_of_time);
    let end = ends.max_by(|one, other| below(one).total_cmp(&below(other)));
    match end.and_then(|cause| cause.path.last()) {
        Some(name) => format!(
            "neither {} nor any single call that it makes has much of the time",
            control(&short(name))
        ),
        None => "no part that was found has much of the time".to_owned(),
    }
}

/// That threads waited, did not run, or that memory was brought in, for much of a peak's time, as far as that was looked at: nothing
/// where they did not.
pub(super) fn away(peak: &PeakEntry) -> String {
    let Some(all) = peak.off_cpu.as_ref().filter(|all| all.time > 0) else {
        return String::new();
    };
    let of = match peak.status {
        Status::InProgress | Status::Undecided => {
            format!("the time of {} of its calls", all.ops)
        }
        _ => "the peak's time".to_owned(),
    };
    let parts = [
        ("its threads were blocked for", all.blocked),
        ("its threads were ready but did not run for", all.runnable),
        ("others ran in place of its threads for", all.preempted),
        ("page faults took", all.page_faults),
    ];
    let shares = parts.map(|(what, part)| (what, part as f64 / all.time as f64));
    let large = shares.into_iter().filter(|&(_, share)| share >= SINGLE);
    large
        .map(|(what, share)| format!("; {what} {} of {of}", percent(share)))
        .collect()
}

/// What is to be said of causes that explain little of a peak's time; nothing where they explain most of it, and where it
/// is not known what they explain.
pub(super) fn spread(peak: &PeakEntry, ftree: &FtreeNode) -> Option<String> {
    if peak.status == Status::Spread {
        let parts = attribution::largest(ftree, peak, &[]).into_iter();
        let mut parts = parts.map(|(names, share)| (path(&names), share));
        let first = parts.next().into_iter();
        let others = parts.filter(|&(_, share)| share >= LITTLE);
        let parts: Vec<String> = first
            .chain(others)
            .take(NAMED)
            .map(|(names, share)| format!("{names} {}", percent(share)))
            .collect();
        return Some(format!(
            "no single cause: {}{}; the largest {} {}",
            no_single_part(peak),
            away(peak),
            if parts.len() == 1 {
                "part is"
            } else {
                "parts are"
            },
            parts.join(", ")
        ));
    }
    let shares = shares(peak);
    let together: f64 = shares.iter().sum();
    let is_open = peak.status == Status::InProgress || shares.is_empty();
    let rest = match peak.status {
        Status::Undecided => "what takes the rest is not known",
        _ => "the rest is spread",
    };
    (!is_open && together < MOST).then(|| {
        format!(
            "together that is {} of this peak's time; {rest}",
            percent(together)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::model::OffCpuEntry;

    #[test]
    fn a_time_that_is_spread_is_told_with_what_was_looked_at() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        peak.status = Status::Spread;
        peak.off_cpu = None;
        peak.root_causes.truncate(1);
        peak.root_causes[0].stop = StopReason::SelfTime;
        assert_eq!(
            no_single_part(&peak),
            "no part that was found has much of the time"
        );
        peak.root_causes[0].stop = StopReason::Spread;
        peak.root_causes[0].path = vec!["serve".to_owned(), "plan".to_owned()];
        let told = spread(&peak, &fixture::report(1_000).ftree).unwrap();
        let direct = "no single cause: neither plan nor any single call that it makes has much of the time; the largest parts are";
        assert!(told.starts_with(direct), "{told}");
        let ftree = fixture::report(1_000).ftree;
        let parts = attribution::largest(&ftree, &peak, &[]);
        let large = parts.iter().filter(|(_, share)| *share >= LITTLE).count();
        assert!(large < NAMED.min(parts.len()), "{parts:?}");
        assert_eq!(told.matches('%').count(), large, "{told}");
        let mut all = OffCpuEntry {
            ops: 10,
            time: 1_000,
            blocked: 450,
            page_faults: 290,
            ..OffCpuEntry::default()
        };
        peak.off_cpu = Some(all.clone());
        assert_eq!(
            away(&peak),
            "; its threads were blocked for 45.0% of the peak's time"
        );
        (all.blocked, all.preempted) = (0, 850);
        peak.off_cpu = Some(all.clone());
        peak.status = Status::Undecided;
        assert_eq!(
            away(&peak),
            "; others ran in place of its threads for 85.0% of the time of 10 of its calls"
        );
        (peak.status, all.preempted) = (Status::Spread, 0);
        (all.blocked, all.page_faults) = (100, 600);
        peak.off_cpu = Some(all);
        let told = spread(&peak, &fixture::report(1_000).ftree).unwrap();
        assert!(
            told.contains("; page faults took 60.0% of the peak's time; the largest"),
            "{told}"
        );
    }

    #[test]
    fn many_small_causes_are_no_single_one() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let one = peak.root_causes.remove(0);
        let mut with = |shares: &[f64], end: Option<&str>| {
            let causes = shares.iter().enumerate().map(|(at, &share_of_time)| {
                let path = ["serve".to_owned(), format!("part{at}")].into_iter();
                let path = path.chain(end.map(str::to_owned)).collect();
                RootCauseEntry {
                    path,
                    share_of_time,
                    known_from: 100,
                    frames: Vec::new(),
                    ..one.clone()
                }
            });
            peak.status = Status::RootCauseFound;
            peak.root_causes = causes.collect();
            of_found(&peak) == Status::Spread
        };
        assert!(with(
            &[0.268, 0.04, 0.04, 0.04, 0.04, 0.04, 0.04, 0.04],
            None
        ));
        assert!(!with(&[0.25; 4], None) && !with(&[0.2; 5], None));
        assert!(!with(&[0.35, 0.04, 0.04], None));
        assert!(with(&[0.12; 8], None));
        assert!(!with(&[0.12; 8], Some("write")), "all of them end there");
    }

    #[test]
    fn two_functions_of_one_name_are_two_causes() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let mut one = peak.root_causes.remove(0);
        let last = one.frames.last_mut().unwrap();
        last.which = Some("store.cc:20".to_owned());
        let mut other = one.clone();
        let last = other.frames.last_mut().unwrap();
        (last.offset, last.which) = (Some(0x7000), Some("store.cc:70".to_owned()));
        peak.root_causes = vec![one.clone(), other, one];
        assert_eq!(together(&peak).len(), 2);
    }

    #[test]
    fn calls_that_are_one_cause_have_the_arguments_of_all() {
        let entry = |value: &str, count, of| ArgumentEntry {
            value: value.to_owned(),
            count,
            of,
        };
        let mut known = vec![entry("log", 9, 10)];
        add_arguments(&mut known, &[entry("data", 30, 40), entry("log", 5, 40)]);
        assert_eq!(known, [entry("data", 30, 50), entry("log", 14, 50)]);
        add_arguments(&mut known, &[]);
        assert_eq!(known, [], "of some nothing is known");
    }

    #[test]
    fn a_recursion_of_several_depths_is_one_cause() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let one = peak.root_causes.remove(0);
        let of = |path: &str, share_of_time| RootCauseEntry {
            path: path.split(' ').map(str::to_owned).collect(),
            share_of_time,
            share_of_ops: 0.4,
            frames: Vec::new(),
            ..one.clone()
        };
        peak.root_causes = vec![
            of("serve sort sort compare", 0.2),
            of("serve sort compare", 0.1),
            of("serve sort sort sort compare", 0.3),
            of("serve read", 0.2),
            of("serve read", 0.1),
        ];
        let told = without_depths(&peak);
        let shares: Vec<f64> = told.iter().map(|cause| cause.share_of_time).collect();
        assert_eq!(shares, [0.5, 0.1, 0.2, 0.1]);
        assert_eq!((told[0].share_of_ops, told[1].share_of_ops), (0.8, 0.4));
        let answers = together(&peak).into_iter();
        let shares: Vec<f64> = answers.map(|cause| cause.share_of_time).collect();
        assert!(
            (shares[1] - 0.3).abs() < 1e-9 && shares.len() == 3,
            "{shares:?}"
        );
    }
}
