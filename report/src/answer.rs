//! The answer in one line for each peak, before all that it rests on.

use std::borrow::Cow;
use std::collections::BTreeMap;

use darc_analysis::Hz;

use crate::attribution;
use crate::ends::{End, by_end, by_whom};
use crate::escape::control;
use crate::loops;
use crate::model::{
    ArgumentEntry, FtreeNode, Kind, PeakEntry, ProfileTable, RootCauseEntry, Status, StopReason,
};
use crate::names::short;
use crate::oftener;
use crate::outcome::status;
use crate::place::Place;
use crate::recursion::{self, Step};
use crate::spread::{MOST, SINGLE, away, is_of_several, no_single_part, together};
use crate::words::{self, percent};

/// So many causes of a peak are named in its line.
const CAUSES: usize = 3;
/// ... and none beside the largest that explains less of the time.
const LITTLE: f64 = 0.05;
/// A cause of a smaller part of a peak's calls is one of few of them.
const SELDOM: f64 = 0.25;
/// As much of what a cause explains is not to be assumed without a word.
const MUCH: f64 = 1.0 / 3.0;
/// As many calls decide at least, where nobody says otherwise.
const FEW: u64 = 20;
/// So many functions of a path are named, the last ones and f0.
const NAMES: usize = 4;

/// `Peak 2  214 µs to 14 ms  14% of calls, 94% of time → fsync ← flush ← serve explains 97%`
pub(super) fn line(
    hz: Option<Hz>,
    peak: &PeakEntry,
    peaks: &[PeakEntry],
    profile: &ProfileTable,
    ftree: &FtreeNode,
) -> String {
    let range = words::range(hz, peak, profile.resolution).unwrap_or_default();
    let head = format!(
        "Peak {}  {range}  {} of calls, {} of time",
        peak.peak,
        percent(peak.share_of_ops),
        percent(peak.share_of_time)
    );
    format!("{head} → {}", answer(peak, peaks, ftree))
}

/// What a peak's calls spend their time on.
fn answer(peak: &PeakEntry, peaks: &[PeakEntry], ftree: &FtreeNode) -> String {
    let ends = by_end(together(peak));
    let Some(first) = ends.first() else {
        return status(peak.status).to_owned();
    };
    let is_single = first.cause.share_of_time >= SINGLE;
    if peak.status == Status::Spread && !is_single {
        let (what, place) = match most(peak) {
            Some(most) => {
                let (share, place) = (percent(most.share_of_time), located(&most, &[]).1);
                let what = format!(
                    "{share} is below {place}, and no single call there explains much of it"
                );
                (what, most.path)
            }
            None => (no_single_part(peak), Vec::new()),
        };
        let largest = largest_part(peak, ftree, &place);
        return format!("no single cause: {what}{largest}{}", away(peak));
    }
    let is_open = !matches!(
        peak.status,
        Status::RootCauseFound | Status::MaxDepthReached
    );
    if let (true, Some(most)) = (is_open && !is_single, most(peak)) {
        let (share, place) = (percent(most.share_of_time), located(&most, &[]).1);
        let largest = end(first, peak, ftree);
        return format!(
            "{}: {share} is below {place}; the largest part of it: {largest}{}",
            status(peak.status),
            away(peak)
        );
    }
    // Of what is spread below a small part nothing more is known than that.
    let is_known = |end: &&End| end.cause.stop != StopReason::Spread;
    let is_any = ends.iter().any(|end| is_known(&end));
    let mut told = ends.iter().filter(|end| !is_any || is_known(end));
    let largest = told.next().into_iter();
    let is_much = |cause: &RootCauseEntry| cause.known_from == 0 || cause.share_of_time >= LITTLE;
    let others = told.filter(|end| is_much(&end.cause));
    let mut parts: Vec<String> = largest
        .chain(others)
        .take(CAUSES)
        .map(|end| self::end(end, peak, ftree) + &oftener(end, peak, peaks, ftree))
        .collect();
    let more = ends.len().saturating_sub(parts.len());
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    let parts = parts.join(", and ");
    match peak.status {
        Status::RootCauseFound | Status::MaxDepthReached => parts,
        Status::Spread => {
            format!("{}: {parts}; the rest is spread", status(Status::Spread))
        }
        open => {
            let known = as_far_as_known(peak);
            format!("{}{known}: {parts}{}", status(open), away(peak))
        }
    }
}

/// Why a peak is not decided though all of its paths end: the kernel kept threads from running.
fn as_far_as_known(peak: &PeakEntry) -> String {
    let kept = peak.kept_from_running.map(|part| {
        format!(
            " (the kernel kept threads from running for {} of the time); as far as is known",
            percent(part)
        )
    });
    kept.unwrap_or_default()
}

/// The part of the time that the largest part below a place has.
fn largest_part(peak: &PeakEntry, ftree: &FtreeNode, place: &[String]) -> String {
    let largest = attribution::largest(ftree, peak, place).into_iter().next();
    match largest {
        Some((_, share)) if share > 0.0 => format!(" (largest part {})", percent(share)),
        _ => String::new(),
    }
}

/// Where most of the time is that the causes take together, though none has much of it: the last function on their paths below
/// which half of the time is, with how much that is. Nothing where that is f0.
fn most(peak: &PeakEntry) -> Option<RootCauseEntry> {
    let mut places = BTreeMap::new();
    for cause in &peak.root_causes {
        for at in 1..cause.frames.len().min(cause.path.len()) {
            let (_, by_calls) = places
                .entry(functions(cause, at))
                .or_insert_with(|| (above(cause, at), BTreeMap::new()));
            by_calls.insert(calls(cause, at), cause.frames[at].share_of_time);
        }
    }
    let places = places
        .into_values()
        .map(|(above, by_calls)| RootCauseEntry {
            share_of_time: by_calls.values().sum::<f64>().min(1.0),
            ..above
        });
    let large = places.filter(|above| above.share_of_time >= MOST);
    large.max_by(|one, other| {
        let by_depth = one.path.len().cmp(&other.path.len());
        by_depth.then(one.share_of_time.total_cmp(&other.share_of_time))
    })
}

/// A path as far as one of its frames.
fn above(cause: &RootCauseEntry, at: usize) -> RootCauseEntry {
    RootCauseEntry {
        path: cause.path[..=at].to_vec(),
        frames: cause.frames[..=at].to_vec(),
        kind: Kind::Function,
        arguments: Vec::new(),
        ..cause.clone()
    }
}

/// The functions of a path as far as one of its frames.
fn functions(cause: &RootCauseEntry, at: usize) -> Vec<(&str, Option<&str>, Option<u64>)> {
    let frames = cause.path.iter().zip(&cause.frames).take(at + 1);
    let functions = frames.map(|(name, frame)| (&name[..], frame.module.as_deref(), frame.offset));
    functions.collect()
}

/// The call sites of a path as far as one of its frames.
fn calls(cause: &RootCauseEntry, at: usize) -> Vec<Option<&Place>> {
    let frames = cause.frames.iter().take(at + 1).skip(1);
    frames.map(|frame| frame.call_site.as_ref()).collect()
}

/// What a cause's path calls more often than usual calls do, where the line does not say yet how often.
fn oftener(end: &End, of: &PeakEntry, peaks: &[PeakEntry], ftree: &FtreeNode) -> String {
    let cause = &end.cause;
    let is_told = cause.kind != Kind::Loop && !repeated(cause, of.peak, ftree).is_empty();
    match is_told || !end.by.is_empty() {
        true => String::new(),
        false => oftener::told(cause, of, peaks, ftree),
    }
}

/// A cause, of one path or of several.
fn end(end: &End, of: &PeakEntry, ftree: &FtreeNode) -> String {
    if end.by.is_empty() {
        return cause(&end.cause, of, ftree);
    }
    let (_, place) = located(&end.cause, &[]);
    format!(
        "{place} explains {}{}{}{}",
        percent(end.cause.share_of_time),
        assumed(&end.cause),
        ready(&end.cause, of),
        by_whom(end, &short(&ftree.name))
    )
}

/// A cause: where it is, and how much of the time it explains.
fn cause(cause: &RootCauseEntry, of: &PeakEntry, ftree: &FtreeNode) -> String {
    let peak = of.peak;
    let callees = loops::callees(cause, peak, ftree).into_iter();
    let callees: Vec<String> = callees.map(|called| called.name).collect();
    let (within, place) = located(cause, &callees);
    let repeated = repeated(cause, peak, ftree);
    let share = Some(cause.share_of_time).filter(|&share| cause.known_from > 0 && share > 0.0);
    if let Some(away) = words::blocked(cause) {
        let (share, away) = (share.map(percent), percent(away));
        let share = share.map_or_else(String::new, |share| format!("{share} is "));
        let ready = ready(cause, of);
        return format!(
            "{share}in or below {place}, whose thread did not run for {away} of that{ready}"
        );
    }
    match (within, share) {
        (Some(within), Some(share)) => {
            let mostly = loops::mostly(cause, peak, ftree);
            let mostly = mostly.map_or_else(String::new, |(name, _)| format!(", mostly in {name}"));
            let (share, assumed) = (percent(share), assumed(cause));
            let few = few(cause);
            let (unmeasured, calls) = (unmeasured(cause), of_the_calls(cause));
            format!(
                "{share} is {within} {place}{calls}{unmeasured}{assumed}{repeated}{mostly}{few}"
            )
        }
        (Some(within), None) => format!("{within} {place}{repeated}"),
        (None, Some(share)) => format!(
            "{place} explains {}{}{}{}{repeated}{}",
            percent(share),
            of_the_calls(cause),
            assumed(cause),
            ready(cause, of),
            seldom(cause, of)
        ),
        (None, None) => place + &repeated,
    }
}

/// What the calls of a loop explain, where the function's own code has a part in it.
fn of_the_calls(cause: &RootCauseEntry) -> String {
    words::mixed(cause).map_or_else(String::new, |part| {
        format!(" (these calls: {})", percent(part * cause.share_of_time))
    })
}

/// Which part of what a cause explains was not seen there, where that is a third or more: it is taken to be as what was.
fn assumed(cause: &RootCauseEntry) -> String {
    match cause.assumed / cause.share_of_time {
        part if part >= MUCH => format!(
            ", {} of that at call sites that were not looked into",
            percent(part.min(1.0))
        ),
        _ => String::new(),
    }
}

/// Which calls of the last function could not be measured, where the time may be in these.
fn unmeasured(cause: &RootCauseEntry) -> String {
    match (&cause.unmeasured, cause.stop) {
        (Some(calls), StopReason::PartlyMeasured) if calls.sites > 0 => {
            let of = match &calls.callees[..] {
                [one] => format!(" ({})", control(&short(one))),
                _ => String::new(),
            };
            let (sites, all) = (calls.sites, calls.of_sites);
            format!(", of whose {all} call sites {sites}{of} could not be measured")
        }
        _ => String::new(),
    }
}

/// From how many calls it is known where an undecided path leads, where these are few.
fn few(cause: &RootCauseEntry) -> String {
    match (cause.stop, cause.known_from) {
        (StopReason::StillDescending | StopReason::TooRare, 1) => {
            ", known from one call".to_owned()
        }
        (StopReason::StillDescending | StopReason::TooRare, ops @ 2..FEW) => {
            format!(", known from {ops} calls")
        }
        _ => String::new(),
    }
}

/// That the thread was kept from running, and did not wait for so long, or that it was kept by a limit.
fn ready(cause: &RootCauseEntry, of: &PeakEntry) -> &'static str {
    match words::was_ready(cause, of) {
        _ if words::is_held_back(cause) => ", by a limit of CPU time on its control group",
        true => ", most of its wait ready to run but not running",
        false => "",
    }
}

/// In which part of a peak's calls a cause is one, where that is small: most of them are not explained by it.
fn seldom(cause: &RootCauseEntry, of: &PeakEntry) -> String {
    let at_most = if is_of_several(cause, of) {
        "at most "
    } else {
        ""
    };
    match cause.share_of_ops {
        share if share > 0.0 && share < SELDOM => {
            format!(", in {at_most}{} of the calls", percent(share))
        }
        _ => String::new(),
    }
}

/// In how many calls of a function that is called in a loop the time of a cause is: of the last one on the way there.
fn repeated(cause: &RootCauseEntry, peak: u32, ftree: &FtreeNode) -> String {
    match loops::on_path(cause, peak, ftree).pop() {
        Some(called) if cause.kind != Kind::Loop => {
            format!(", in {}", called.in_an_op())
        }
        _ => String::new(),
    }
}

/// Whether nearly all of the calls had this argument.
fn is_most(argument: &ArgumentEntry) -> bool {
    const NEARLY_ALL: f64 = 0.8;
    argument.count as f64 >= NEARLY_ALL * argument.of as f64
}

/// Where a cause is, and how that place bounds it where it is not the function itself. `callees` is what a loop mostly calls.
pub(super) fn located(
    cause: &RootCauseEntry,
    callees: &[String],
) -> (Option<&'static str>, String) {
    let mut steps = recursion::steps(cause);
    // A wrapper and its system call are one to who reads, in whichever file the wrapper is.
    let is_call = |step: &Step<'_>| {
        cause.kind == Kind::Syscall && cause.path.last().is_some_and(|call| call == step.name)
    };
    steps.dedup_by(|next, step| is_call(next) && is_call(step));
    let names = steps.iter().enumerate().map(|(at, step)| {
        let is_last = at + 1 == steps.len();
        match is_last && is_call(step) {
            true => control(&short(step.name)).into_owned().into(),
            false => step.shown().into(),
        }
    });
    let mut names: Vec<Cow<'_, str>> = names.collect();
    names.dedup();
    names.reverse();
    let place = self::place(&names);
    let file = cause.arguments.first().filter(|file| is_most(file));
    let on = file.map_or_else(String::new, |file| {
        format!(" on {}", what_is_open(&file.value))
    });
    let place = match place.split_once(ARROW) {
        Some((last, callers)) => format!("{last}{on}{ARROW}{callers}"),
        None => format!("{place}{on}"),
    };
    let within = match cause.stop {
        StopReason::PartlyMeasured | StopReason::Recursion | StopReason::StillDescending => {
            Some("in or below")
        }
        StopReason::Spread => Some("spread below"),
        StopReason::TooRare | StopReason::MaxDepth | StopReason::NotInstrumentable => Some("below"),
        StopReason::SelfTime | StopReason::NoCalls => None,
    };
    let place = match cause.kind {
        Kind::Loop => {
            let of = match callees {
                [] => String::new(),
                callees => format!(" of {}", callees.join(" and ")),
            };
            match words::mixed(cause) {
                Some(_) => format!("{place} with its many calls{of}"),
                None => format!("many calls{of} in {place}"),
            }
        }
        _ => place,
    };
    (within, place)
}

/// Between a function and the one that calls it.
const ARROW: &str = " ← ";

/// The last function of a path, its nearest callers, f0. Where not all of them fit, those come first that have names, and names
/// that are not a library's own (`__futex_abstimed_wait_common`): these tell who reads a report of their program little.
fn place(names: &[Cow<'_, str>]) -> String {
    let (Some((last, callers)), true) = (names.split_first(), names.len() > NAMES) else {
        return names.join(ARROW);
    };
    let Some((f0, between)) = callers.split_last() else {
        return last.clone().into_owned();
    };
    let is_named = |name: &&Cow<'_, str>| !name.contains("+0x") && !name.starts_with("__");
    let mut parts = vec![last.as_ref()];
    let named = between.iter().filter(is_named).map(AsRef::as_ref);
    parts.extend(named.take(NAMES - 2));
    parts.extend(["…", f0.as_ref()]);
    parts.join(ARROW)
}

/// A file without the number by which the program knows it.
fn what_is_open(value: &str) -> Cow<'_, str> {
    let name = value
        .strip_prefix("fd ")
        .and_then(|rest| rest.split_once(", "));
    control(name.map_or(value, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::model::{FnodePeak, Frame};

    #[test]
    fn a_file_stands_in_the_answer_where_nearly_all_calls_were_of_it() {
        let of = |count| ArgumentEntry {
            value: String::new(),
            count,
            of: 200,
        };
        assert!(is_most(&of(160)) && !is_most(&of(4)));
    }

    #[test]
    fn where_no_part_is_large_the_function_that_has_most_of_them_is_told() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let one = peak.root_causes.remove(0);
        let frame = |share_of_time| Frame {
            share_of_time,
            ..Frame::default()
        };
        let of = |path: &str, shares: &[f64]| RootCauseEntry {
            path: path.split(' ').map(str::to_owned).collect(),
            share_of_time: shares[shares.len() - 1],
            frames: shares.iter().map(|&share| frame(share)).collect(),
            kind: Kind::Function,
            known_from: 100,
            ..one.clone()
        };
        let mut causes = vec![
            of("serve parse", &[1.0, 0.12]),
            of("serve plan join cost", &[1.0, 0.8, 0.6, 0.05]),
            of("serve plan scan", &[1.0, 0.8, 0.06]),
        ];
        peak.root_causes.clone_from(&causes);
        let ftree = tree(
            peak.peak,
            ("serve", 1_000),
            vec![
                tree(peak.peak, ("parse", 120), Vec::new()),
                tree(
                    peak.peak,
                    ("plan", 800),
                    vec![
                        tree(peak.peak, ("scan", 60), Vec::new()),
                        tree(
                            peak.peak,
                            ("join", 600),
                            [150, 150, 50]
                                .map(|sum| tree(peak.peak, ("cost", sum), Vec::new()))
                                .into(),
                        ),
                    ],
                ),
            ],
        );
        peak.status = Status::Undecided;
        let told = answer(&peak, &[], &ftree);
        assert!(
            told.starts_with("not decided: 60.0% is below join ← plan ← serve; "),
            "{told}"
        );
        peak.status = Status::Spread;
        assert_eq!(
            answer(&peak, &[], &ftree),
            "no single cause: 60.0% is below join ← plan ← serve, and no single call there explains much of it (largest part 35.0%)"
        );
        // Little is missing to half of it: that is no reason to withhold what has it.
        peak.root_causes = vec![of("serve send", &[1.0, 0.495]), causes[0].clone()];
        let told = answer(&peak, &[], &ftree);
        assert!(
            told.starts_with("no single cause: send ← serve explains 49.5%"),
            "{told}"
        );
        assert!(told.ends_with("; the rest is spread"), "{told}");
        peak.root_causes = vec![causes.remove(0)];
        assert_eq!(most(&peak), None, "f0 has all of it");
        // What goes to one function by two calls is added up, and by one call once.
        let by = |offset, path: &str| {
            let mut cause = of(path, &[1.0, 0.48, 0.05]);
            cause.frames[1].call_site = Some(Place {
                module: "store".to_owned(),
                offset,
            });
            cause
        };
        peak.root_causes = vec![
            by(1, "serve plan scan"),
            by(1, "serve plan join"),
            by(2, "serve plan cost"),
        ];
        let found = most(&peak).unwrap();
        assert_eq!((&found.path[1][..], found.share_of_time), ("plan", 0.96));
    }

    /// A call that takes so many cycles in the ops of a peak.
    fn tree(peak: u32, (name, sum): (&str, u64), children: Vec<FtreeNode>) -> FtreeNode {
        let seen = FnodePeak {
            measured_ops: 10,
            measured_time: sum,
            ops: 10,
            sum,
            count: 10,
            ..FnodePeak::default()
        };
        FtreeNode {
            name: name.to_owned(),
            peaks: [(peak, seen)].into(),
            children,
            ..FtreeNode::default()
        }
    }

    #[test]
    fn a_cause_of_next_to_nothing_is_counted_and_not_told() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let one = peak.root_causes.remove(0);
        let of = |name: &str, share_of_time| RootCauseEntry {
            path: vec!["serve".to_owned(), name.to_owned()],
            share_of_time,
            known_from: 100,
            ..one.clone()
        };
        let ftree = fixture::report(1_000).ftree;
        peak.root_causes = vec![of("sync", 0.6), of("update", 0.007), of("scan", 0.003)];
        assert!(answer(&peak, &[], &ftree).ends_with(", and 2 more"));
        peak.root_causes[1].share_of_time = 0.2;
        assert!(answer(&peak, &[], &ftree).contains("update"));
    }

    #[test]
    fn what_is_not_decided_for_time_without_a_processor_says_so() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let ftree = fixture::report(1_000).ftree;
        peak.status = Status::Undecided;
        assert!(!answer(&peak, &[], &ftree).contains("as far as is known"));
        peak.kept_from_running = Some(0.97);
        let told = answer(&peak, &[], &ftree);
        let reason = "not decided (the kernel kept threads from running for 97.0% of the time); as far as is known: ";
        assert!(told.starts_with(reason), "{told}");
    }

    #[test]
    fn a_wait_that_was_over_early_is_told_as_one() {
        let mut peak = fixture::report(1_000).peaks.remove(1);
        let ftree = fixture::report(1_000).ftree;
        let waits = |blocked, runnable| crate::model::WaitsEntry {
            count: 100,
            blocked,
            runnable,
            ..crate::model::WaitsEntry::default()
        };
        peak.off_cpu = None;
        peak.root_causes[0].waits = Some(waits(10, 900));
        let told = answer(&peak, &[], &ftree);
        let ready = ", most of its wait ready to run but not running";
        assert!(told.contains(ready), "{told}");
        peak.root_causes[0].waits = Some(waits(900, 10));
        assert!(!answer(&peak, &[], &ftree).contains(ready));
    }

    #[test]
    fn what_was_mostly_assumed_is_told_as_that() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        let ftree = fixture::report(1_000).ftree;
        peak.root_causes.truncate(1);
        let cause = &mut peak.root_causes[0];
        (cause.share_of_time, cause.assumed) = (0.9, 0.63);
        let told = answer(&peak, &[], &ftree);
        assert!(
            told.contains(" explains 90.0%, 70.0% of that at call sites that were not looked into"),
            "{told}"
        );
        peak.root_causes[0].assumed = 0.2;
        assert!(!answer(&peak, &[], &ftree).contains("not looked into"));
        peak.root_causes[0].assumed = 0.5;
        peak.root_causes[0].stop = StopReason::MaxDepth;
        let told = answer(&peak, &[], &ftree);
        assert!(told.contains(", 55.6% of that at call sites"), "{told}");
    }

    #[test]
    fn a_loop_is_told_with_the_functions_own_code_where_that_has_much_of_it() {
        let peak = fixture::report(1_000).peaks.remove(0);
        let ftree = fixture::report(1_000).ftree;
        let mut cause = peak.root_causes[0].clone();
        (cause.kind, cause.stop, cause.share_of_time) = (Kind::Loop, StopReason::SelfTime, 0.9);
        cause.path.truncate(1);
        let told = |in_calls| {
            let cause = RootCauseEntry {
                in_calls,
                ..cause.clone()
            };
            (
                self::cause(&cause, &peak, &ftree),
                words::in_words(&cause, &peak),
            )
        };
        let (answer, words) = told(Some(0.5));
        assert!(answer.starts_with("put with its many calls"), "{answer}");
        assert!(
            answer.contains(" explains 90.0% (these calls: 45.0%)"),
            "{answer}"
        );
        let both = "put takes the time, 50.0% of it in many calls (a loop) and the rest in its own code: 90.0%";
        assert!(words.starts_with(both), "{words}");
        for in_calls in [None, Some(0.9)] {
            let (answer, words) = told(in_calls);
            assert!(answer.starts_with("many calls"), "{answer}");
            assert!(
                words.starts_with("put takes the time, in many calls (a loop)"),
                "{words}"
            );
        }
    }

    #[test]
    fn a_call_that_could_not_be_measured_is_named() {
        let peak = fixture::report(1_000).peaks.remove(0);
        let ftree = fixture::report(1_000).ftree;
        let mut cause = peak.root_causes[0].clone();
        cause.stop = StopReason::PartlyMeasured;
        cause.unmeasured = Some(crate::model::UnmeasuredEntry {
            sites: 1,
            of_sites: 4,
            callees: vec!["encode".to_owned()],
        });
        let told = self::cause(&cause, &peak, &ftree);
        let named = ", of whose 4 call sites 1 (encode) could not be measured";
        assert!(told.contains(named), "{told}");
        // Beside a loop, what is known of that is told.
        let mut looping = cause.clone();
        (looping.kind, looping.in_calls, looping.share_of_time) = (Kind::Loop, Some(0.9), 0.8);
        let told = self::cause(&looping, &peak, &ftree);
        assert!(
            told.starts_with("80.0% is in or below many calls"),
            "{told}"
        );
        assert!(told.contains(named), "{told}");
        let words = words::in_words(&looping, &peak);
        let both = ", 90.0% of it in many calls (a loop) and the rest in its own code, or in what it calls at 1 of its 4 call sites (encode), which could not be measured";
        assert!(words.contains(both), "{words}");
        cause.unmeasured = None;
        assert!(!self::cause(&cause, &peak, &ftree).contains("measured"));
    }

    #[test]
    fn a_cause_of_few_calls_is_told_as_one() {
        let mut peak = fixture::report(1_000).peaks.remove(0);
        peak.root_causes.truncate(1);
        peak.root_causes[0].share_of_ops = 0.061;
        let told = |peak: &PeakEntry| seldom(&together(peak)[0], peak);
        assert_eq!(told(&peak), ", in 6.1% of the calls");
        // From another site, maybe in the same ops.
        let mut other = peak.root_causes[0].clone();
        other.share_of_time = 0.01;
        peak.root_causes.push(other);
        assert_eq!(told(&peak), ", in at most 12.2% of the calls");
        peak.root_causes.truncate(1);
        peak.root_causes[0].share_of_ops = 0.9;
        assert_eq!(told(&peak), "");
    }

    #[test]
    fn a_wrapper_that_has_a_stub_is_one_with_its_system_call() {
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        let frame = |offset| Frame {
            which: Some(format!("store+{offset:#x}")),
            offset: Some(offset),
            ..Frame::default()
        };
        cause.kind = Kind::Syscall;
        cause.arguments.clear();
        cause.path = ["save", "put", "fsync", "fsync", "fsync"]
            .map(str::to_owned)
            .into();
        cause.frames = [1, 2, 3, 4].map(frame).into();
        cause.frames.push(Frame::default());
        for frame in &mut cause.frames[..2] {
            frame.which = None;
        }
        assert_eq!(located(&cause, &[]).1, "fsync ← put ← save");
    }

    #[test]
    fn of_a_long_path_both_ends_and_names_are_shown() {
        let names = |names: &[&'static str]| -> Vec<Cow<'static, str>> {
            names.iter().map(|&name| name.into()).collect()
        };
        assert_eq!(
            place(&names(&["read", "fill", "serve"])),
            "read ← fill ← serve"
        );
        let long = names(&[
            "sync", "a+0x10", "write", "b+0x20", "flush", "commit", "serve",
        ]);
        assert_eq!(place(&long), "sync ← write ← flush ← … ← serve");
        let inside = names(&[
            "futex",
            "__futex_abstimed_wait_common",
            "pthread_cond_wait",
            "wait_result",
            "request",
        ]);
        assert_eq!(
            place(&inside),
            "futex ← pthread_cond_wait ← wait_result ← … ← request"
        );
        assert_eq!(what_is_open("fd 28, /data/log"), "/data/log");
        assert_eq!(what_is_open("a socket"), "a socket");
    }
}
