//! Causes that end in the same calls, on several paths from f0.

use std::cmp::Ordering;

use super::model::{Kind, RootCauseEntry, StopReason};
use super::recursion::steps;
use super::spread::add;
use super::words::{blocked, percent};

/// So many paths to one end are told as one cause. Two fit into the line of a peak as they are.
const SEVERAL: usize = 3;
/// So many of the functions are named that lead to the end.
const NAMED: usize = 3;

/// What is told as one cause.
#[derive(PartialEq, Debug)]
pub(super) struct End {
    /// Where the time is, and what it explains: the functions that all of the paths end in, and the shares of all.
    pub(super) cause: RootCauseEntry,
    /// What each function explains that leads to them, the largest first; empty where there is one path.
    pub(super) by: Vec<(String, f64)>,
}

/// The causes of a peak, those of several paths to one end as one; the largest first.
pub(super) fn by_end(causes: Vec<RootCauseEntry>) -> Vec<End> {
    let mut groups: Vec<Vec<RootCauseEntry>> = Vec::new();
    for cause in causes {
        let is_same = |group: &&mut Vec<RootCauseEntry>| is_one_end(&group[0], &cause);
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(cause),
            None => groups.push(vec![cause]),
        }
    }
    let ends = groups.into_iter().flat_map(|group| match group.len() {
        SEVERAL.. => vec![as_one(&group)],
        _ => group.into_iter().map(alone).collect(),
    });
    let mut ends: Vec<End> = ends.collect();
    ends.sort_by(|one, other| larger_first(one.cause.share_of_time, other.cause.share_of_time));
    ends
}

/// `, on paths from save by body 20.9%, index 20.3%, header 19.5% and 2 more`; nothing where there is one path.
pub(super) fn by_whom(end: &End, f0: &str) -> String {
    if end.by.is_empty() {
        return String::new();
    }
    let named = end.by.iter().take(NAMED);
    let named: Vec<String> = named
        .map(|(name, share)| format!("{name} {}", percent(*share)))
        .collect();
    let more = match end.by.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(", on paths from {f0} by {}{more}", named.join(", "))
}

fn larger_first(one: f64, other: f64) -> Ordering {
    other.total_cmp(&one)
}

fn alone(cause: RootCauseEntry) -> End {
    End {
        cause,
        by: Vec::new(),
    }
}

/// Whether two causes are the same function or system call, and known to take the time.
fn is_one_end(one: &RootCauseEntry, other: &RootCauseEntry) -> bool {
    let is_found = |cause: &RootCauseEntry| {
        matches!(cause.kind, Kind::Function | Kind::Loop | Kind::Syscall)
            && matches!(cause.stop, StopReason::SelfTime | StopReason::NoCalls)
            && cause.known_from > 0
            && blocked(cause).is_none()
    };
    let last = |cause: &RootCauseEntry| names(cause).pop();
    is_found(one) && is_found(other) && one.kind == other.kind && last(one) == last(other)
}

/// What people read of a path, f0 first.
fn names(cause: &RootCauseEntry) -> Vec<String> {
    steps(cause).iter().map(|step| step.shown()).collect()
}

/// Several paths to one end.
fn as_one(group: &[RootCauseEntry]) -> End {
    let paths: Vec<Vec<String>> = group.iter().map(names).collect();
    let shortest = paths.iter().map(Vec::len).min().unwrap_or(0);
    let from_end = |path: &'_ [String], at: usize| path.get(path.len() - 1 - at).cloned();
    let is_common = |at: &usize| {
        let mut all = paths.iter().map(|path| from_end(path, *at));
        let first = all.next();
        all.all(|name| Some(name) == first)
    };
    // Where one of the paths is the end of all others it begins at f0: that is who calls.
    let common = (0..shortest).take_while(is_common).count();
    let common = common.min(shortest.saturating_sub(1)).max(1);
    let mut by: Vec<(String, f64)> = Vec::new();
    for (path, cause) in paths.iter().zip(group) {
        let name = from_end(path, common.min(path.len() - 1)).unwrap_or_default();
        match by.iter_mut().find(|(known, _)| *known == name) {
            Some((_, share)) => *share += cause.share_of_time,
            None => by.push((name, cause.share_of_time)),
        }
    }
    by.sort_by(|(_, one), (_, other)| larger_first(*one, *other));
    let mut cause = group[0].clone();
    group[1..].iter().for_each(|other| add(&mut cause, other));
    let first = steps(&group[0]);
    let from = first[first.len() - common].first;
    cause.path.drain(..from);
    cause.frames.drain(..from.min(cause.frames.len()));
    End { cause, by }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn cause(path: &str, share_of_time: f64) -> RootCauseEntry {
        RootCauseEntry {
            path: path.split(' ').map(str::to_owned).collect(),
            share_of_time,
            kind: Kind::Function,
            stop: StopReason::NoCalls,
            known_from: 20,
            frames: Vec::new(),
            blocked: None,
            ..fixture::report(1_000).peaks[0].root_causes[0].clone()
        }
    }

    #[test]
    fn several_paths_to_one_end_are_one_cause() {
        let causes = vec![
            cause("save parse", 0.25),
            cause("save body put sync", 0.2),
            cause("save index put sync", 0.2),
            cause("save flush header put sync", 0.15),
            cause("save close header put sync", 0.1),
        ];
        let ends = by_end(causes);
        let [sync, parse] = &ends[..] else {
            panic!("{ends:?}");
        };
        assert_eq!(parse.cause.path, ["save", "parse"]);
        assert_eq!(sync.cause.path, ["put", "sync"]);
        assert!((sync.cause.share_of_time - 0.65).abs() < 1e-9);
        assert_eq!(
            by_whom(sync, "save"),
            ", on paths from save by header 25.0%, body 20.0%, index 20.0%"
        );
        assert_eq!(by_whom(parse, "save"), "");
    }

    #[test]
    fn several_paths_to_one_loop_or_to_one_function_that_hardly_waits_are_one_cause() {
        let of = |kind, blocked| {
            let paths = ["save a hash", "save b hash", "save c hash"];
            let causes = paths.map(|path| RootCauseEntry {
                kind,
                blocked,
                ..cause(path, 0.2)
            });
            by_end(causes.into()).len()
        };
        assert_eq!(of(Kind::Loop, None), 1);
        assert_eq!(of(Kind::Function, Some(0.0)), 1);
    }

    #[test]
    fn a_path_that_is_the_end_of_others_is_told_by_f0() {
        let causes = vec![
            cause("save sync", 0.3),
            cause("save a save sync", 0.2),
            cause("save b sync", 0.2),
        ];
        let ends = by_end(causes);
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert_eq!(ends[0].cause.path, ["sync"]);
    }

    #[test]
    fn two_paths_and_what_is_not_known_stay_apart() {
        let two = vec![cause("save a sync", 0.3), cause("save b sync", 0.2)];
        assert_eq!(by_end(two).len(), 2);
        let waiting = ["save a sync", "save b sync", "save c sync"].map(|path| RootCauseEntry {
            blocked: Some(0.9),
            ..cause(path, 0.2)
        });
        assert_eq!(by_end(waiting.into()).len(), 3);
        let open = ["save a sync", "save b sync", "save c sync"].map(|path| RootCauseEntry {
            stop: StopReason::StillDescending,
            ..cause(path, 0.2)
        });
        assert_eq!(by_end(open.into()).len(), 3);
    }
}
