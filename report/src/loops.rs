//! Which calls loops make, and how many.

use std::collections::BTreeMap;

use darc_analysis::Hz;

use crate::escape::control;
use crate::model::{
    CalleeKind, DescentState, FnodePeak, FtreeNode, Kind, RootCauseEntry, StopReason,
};
use crate::names::short;
use crate::place::Place;
use crate::words::{percent, time};

/// All calls of one function that another one makes, in the ops of a peak.
pub(super) struct Called {
    /// The function.
    pub(super) name: String,
    /// How many in an op of those that the caller is called in, on average.
    pub(super) each: f64,
    /// The part of the ops that are such, 0 to 1; all where it is nearly all.
    ops: f64,
    /// The caller, where it is called in some of the ops only.
    caller: Option<String>,
    /// All of them, in cycles.
    time: u64,
    count: u64,
    /// What they took as a part of their caller, in cycles of the ops that decided about it: a loop's short calls are none.
    part: Option<u64>,
}

impl Called {
    /// `less, 4000 in an op, 66 ns each`
    fn told(&self, hz: Option<Hz>) -> String {
        let mean = time(hz, self.time / self.count.max(1));
        let of = self.of();
        format!("{}, {:.0} in an op{of}, {mean} each", self.name, self.each)
    }

    /// `200 calls of less in an op that calls sort`
    pub(super) fn in_an_op(&self) -> String {
        let (each, name) = (self.each, &self.name);
        match &self.caller {
            Some(_) => format!("{each:.0} calls of {name} in an op{}", self.of()),
            None => format!("{each:.0} calls of {name} an op"),
        }
    }

    /// Of which ops, where not of all.
    fn of(&self) -> String {
        let caller = self.caller.iter();
        caller
            .map(|caller| format!(" that calls {caller}"))
            .collect()
    }

    /// The time of those that are the caller's loop, in cycles: nothing where next to all of it is a part of its own.
    fn repeated(&self, caller: &FnodePeak) -> f64 {
        let time = self.time as f64;
        let is_itself = matches!(
            caller.state,
            DescentState::DecidedSelf | DescentState::DecidedBoth
        );
        let (true, Some(of)) = (is_itself, caller.decision) else {
            return time;
        };
        // Of an earlier portion of the caller's calls it has none.
        let part = self.part.map_or(time, |part| {
            part as f64 * caller.measured_time as f64 / of.time.max(1) as f64
        });
        let left = time - part;
        if left >= MUCH * time { left } else { 0.0 }
    }
}

/// The calls that take the time of a loop, and those in loops on the way to the cause, a sentence each.
pub(super) fn in_loops(
    cause: &RootCauseEntry,
    peak: u32,
    ftree: &FtreeNode,
    hz: Option<Hz>,
) -> Vec<String> {
    let on_the_way = on_path(cause, peak, ftree).into_iter();
    let mut told: Vec<String> = on_the_way
        .map(|called| format!("in calls of {}", called.told(hz)))
        .collect();
    let callees = callees(cause, peak, ftree);
    if !callees.is_empty() {
        let callees: Vec<String> = callees.iter().map(|called| called.told(hz)).collect();
        told.push(format!("mostly calls of {}", callees.join("; of ")));
    }
    if let Some((callee, part)) = mostly(cause, peak, ftree) {
        told.push(format!(
            "{callee} takes {} of what is not in calls of itself, at the depths that were looked at",
            percent(part)
        ));
    }
    told
}

/// What a function that calls itself spends its time on, as `qsort` on comparisons: what takes most of it beside its calls of
/// itself, and which part. Each depth counts by the part of an op that it takes.
pub(super) fn mostly(
    cause: &RootCauseEntry,
    peak: u32,
    ftree: &FtreeNode,
) -> Option<(String, f64)> {
    let path = walk(cause, peak, ftree).filter(|_| cause.stop == StopReason::Recursion)?;
    let is_recursive = |name: &String| cause.path.iter().filter(|at| *at == name).count() > 1;
    let mut beside: BTreeMap<&str, f64> = BTreeMap::new();
    let mut all = 0.0;
    for node in path.iter().filter(|node| is_recursive(&node.name)) {
        let Some(seen) = node.peaks.get(&peak).filter(|it| it.decision_ops > 0) else {
            continue;
        };
        let called = node.children.iter().filter(|child| is_call(child));
        for child in called.filter(|child| !is_recursive(&child.name)) {
            let sum = child.peaks.get(&peak).map_or(0, |child| child.sum);
            let each = sum as f64 / seen.measured_ops.max(1) as f64;
            *beside.entry(&child.name).or_default() += each;
            all += each;
        }
        // The time of short calls that are repeated is the callees', here.
        let own = seen.self_time.saturating_sub(seen.loop_time);
        all += own as f64 / seen.decision_ops as f64;
    }
    let most = beside
        .into_iter()
        .max_by(|one, other| one.1.total_cmp(&other.1));
    let (name, time) = most.filter(|(_, time)| *time > all / 2.0)?;
    Some((control(&short(name)).into_owned(), time / all))
}

/// What a loop mostly calls: the functions that have a fifth of the time of its repeated calls each and most of it together. Nothing where
/// the cause is none, and where that is not known.
pub(super) fn callees(cause: &RootCauseEntry, peak: u32, ftree: &FtreeNode) -> Vec<Called> {
    let path = walk(cause, peak, ftree);
    let (Some(path), Kind::Loop) = (path, cause.kind) else {
        return Vec::new();
    };
    let Some((called, seen)) = called_at(&path, path.len() - 1, peak) else {
        return Vec::new();
    };
    let mut called: Vec<Called> = called.into_values().collect();
    let sum = |of: &[Called]| of.iter().map(|of| of.repeated(seen)).sum::<f64>();
    let all = sum(&called);
    called.retain(|of| of.each >= FEWEST && of.repeated(seen) >= (MUCH * all).max(1.0));
    called.sort_by(|one, other| other.repeated(seen).total_cmp(&one.repeated(seen)));
    match sum(&called) > all / 2.0 {
        true => called,
        false => Vec::new(),
    }
}

/// The functions of a path that are called in loops, from f0 down, if the cause is in most of their calls.
pub(super) fn on_path(cause: &RootCauseEntry, peak: u32, ftree: &FtreeNode) -> Vec<Called> {
    // Time away strikes wherever the thread is.
    let is_called = matches!(
        cause.kind,
        Kind::Function | Kind::Loop | Kind::Syscall | Kind::PageFault
    );
    let path = walk(cause, peak, ftree).filter(|_| is_called);
    let path = path.unwrap_or_default();
    // A page fault is no call: it is where it struck.
    let end = path.iter().rposition(|node| is_call(node));
    let at_end = end.map_or(0.0, |end| in_op(&path, end, peak));
    let steps = path.windows(2).enumerate().filter_map(|(at, pair)| {
        let least = LOOP * in_op(&path, at, peak);
        let (mut called, _) = called_at(&path, at, peak)?;
        let called = called.remove(&key(pair[1]))?;
        let in_all = called.each * called.ops;
        let is_many = called.each >= FEWEST && in_all >= least;
        (is_many && at_end >= in_all / 2.0).then_some(called)
    });
    steps.collect()
}

/// How often a function of a path is called in an op, at this site.
fn in_op(path: &[&FtreeNode], at: usize, peak: u32) -> f64 {
    let caller = at.checked_sub(1).map(|above| path[above]);
    caller.map_or(1.0, |caller| each(path[at], caller, peak))
}

/// The calls from one site in an op of the peak, on average; none where none was measured.
fn each(node: &FtreeNode, caller: &FtreeNode, peak: u32) -> f64 {
    let (Some(seen), Some(of_caller)) = (node.peaks.get(&peak), caller.peaks.get(&peak)) else {
        return 0.0;
    };
    match seen.ops_seen(of_caller) {
        0 => 0.0,
        ops => seen.count as f64 / ops as f64,
    }
}

/// Fewer calls in an op are not worth a word.
const FEWEST: f64 = 2.0;
/// What has this part of the time of a loop's calls is named.
const MUCH: f64 = 0.2;
/// So many calls in one of the caller's are a loop, as in the analysis.
const LOOP: f64 = 10.0;

/// What a function of a path calls, all sites together, and what is known of the function. Several functions may have one name.
fn called_at<'a>(
    path: &[&'a FtreeNode],
    at: usize,
    peak: u32,
) -> Option<(BTreeMap<Key<'a>, Called>, &'a FnodePeak)> {
    let node: &FtreeNode = path.get(at)?;
    let seen = node.peaks.get(&peak)?;
    let above = at
        .checked_sub(1)
        .and_then(|above| path[above].peaks.get(&peak));
    let ops = above.map_or(1.0, |above| part_of_ops(seen, above));
    let mut called = called_by(node, peak);
    for callee in called.values_mut().filter(|_| ops < NEARLY_ALL) {
        callee.each /= ops;
        callee.ops = ops;
        callee.caller = Some(control(&short(&node.name)).into_owned());
    }
    Some((called, seen))
}

/// The part of the ops in which an fnode was called; all where none was seen.
fn part_of_ops(seen: &FnodePeak, caller: &FnodePeak) -> f64 {
    match (seen.ops, seen.ops_seen(caller)) {
        (0, _) | (_, 0) => 1.0,
        (ops, all) => (ops as f64 / all as f64).min(1.0),
    }
}

/// What is called in this part of the ops is called in all but a few: calls in an op are not told apart there.
const NEARLY_ALL: f64 = 0.9;

/// What a function calls, all sites together, as if each op called it.
fn called_by(node: &FtreeNode, peak: u32) -> BTreeMap<Key<'_>, Called> {
    let mut called = BTreeMap::new();
    for child in &node.children {
        if let (true, Some(seen)) = (is_call(child), child.peaks.get(&peak)) {
            let all = called.entry(key(child)).or_insert_with(|| Called {
                name: control(&short(&child.name)).into_owned(),
                each: 0.0,
                ops: 1.0,
                caller: None,
                time: 0,
                count: 0,
                part: None,
            });
            all.time = all.time.saturating_add(seen.sum);
            all.count = all.count.saturating_add(seen.count);
            if let Some(part) = seen.part {
                all.part = Some(all.part.unwrap_or(0).saturating_add(part.time));
            }
            all.each += each(child, node, peak);
        }
    }
    called
}

/// What tells a function from others that the same one calls.
type Key<'a> = (&'a str, Option<&'a Place>);

fn key(node: &FtreeNode) -> Key<'_> {
    (&node.name, node.callee.as_ref())
}

fn is_call(node: &FtreeNode) -> bool {
    matches!(node.kind, CalleeKind::Function | CalleeKind::Syscall)
}

/// The calls of a cause's path, f0 first.
fn walk<'a>(cause: &RootCauseEntry, peak: u32, ftree: &'a FtreeNode) -> Option<Vec<&'a FtreeNode>> {
    let (f0, below) = cause.path.split_first()?;
    let mut path = vec![ftree];
    (*f0 == ftree.name && goes_on(&mut path, below, peak)).then_some(path)
}

/// Whether calls on root-cause paths of the peak go on like this; adds them.
fn goes_on(path: &mut Vec<&FtreeNode>, names: &[String], peak: u32) -> bool {
    let (Some(node), Some((name, below))) = (path.last().copied(), names.split_first()) else {
        return true;
    };
    let is_on = |child: &&FtreeNode| child.name == *name && child.root_cause_of.contains(&peak);
    for child in node.children.iter().filter(is_on) {
        path.push(child);
        if goes_on(path, below, peak) {
            return true;
        }
        path.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::model::{DecisionSums, PartEntry};

    fn node(name: &str, sum: u64, children: Vec<FtreeNode>) -> FtreeNode {
        let seen = FnodePeak {
            decision_ops: 20,
            measured_ops: 20,
            self_time: 100,
            sum,
            ..FnodePeak::default()
        };
        FtreeNode {
            name: name.to_owned(),
            kind: CalleeKind::Function,
            root_cause_of: vec![1],
            peaks: [(1, seen)].into(),
            children,
            ..fixture::report(1_000).ftree
        }
    }

    /// A loop over ten sites that take turns: each is called in a tenth of the ops.
    #[test]
    fn calls_of_sites_that_take_turns_are_not_added_up_as_if_all_were_in_each_op() {
        let site = || {
            let mut site = node("less", 9_000, Vec::new());
            let seen = site.peaks.get_mut(&1).unwrap();
            (seen.ops, seen.count) = (2, 60);
            site
        };
        let mut other = site();
        other.callee = Some(Place {
            module: "other.so".to_owned(),
            offset: 1,
        });
        let sites = (0..10).map(|_| site()).chain([other]);
        let mut sort = node("sort", 100_000, sites.collect());
        let seen = sort.peaks.get_mut(&1).unwrap();
        (seen.ops, seen.count) = (20, 20);
        let ftree = node("serve", 0, vec![sort]);
        let called = called_by(&ftree.children[0], 1).into_values();
        // In twenty ops `sort` made 600 calls, and 60 of another function of that name.
        let each: Vec<f64> = called.map(|of| of.each).collect();
        assert_eq!(each, [30.0, 3.0]);
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        cause.kind = Kind::Loop;
        cause.path = ["serve", "sort"].map(str::to_owned).into();
        let told = in_loops(&cause, 1, &ftree, None);
        assert!(
            told.concat()
                .starts_with("mostly calls of less, 30 in an op, "),
            "{told:?}"
        );
    }

    /// One op in ten makes 200 calls of X, in the only call of `retry`.
    #[test]
    fn calls_are_counted_in_the_ops_that_make_them() {
        let mut called = node("X", 20_000, Vec::new());
        let seen = called.peaks.get_mut(&1).unwrap();
        (seen.ops, seen.count) = (2, 400);
        let mut retry = node("retry", 20_000, vec![called]);
        let seen = retry.peaks.get_mut(&1).unwrap();
        (seen.ops, seen.count) = (2, 2);
        let mut ftree = node("serve", 100_000, vec![retry]);
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        cause.kind = Kind::Function;
        cause.path = ["serve", "retry", "X"].map(str::to_owned).into();
        let told = |ftree: &FtreeNode| in_loops(&cause, 1, ftree, None);
        let some = "in calls of X, 200 in an op that calls retry, 50 cycles each";
        assert_eq!(told(&ftree), [some]);
        let called = on_path(&cause, 1, &ftree).pop().unwrap();
        assert_eq!(
            called.in_an_op(),
            "200 calls of X in an op that calls retry"
        );
        let seen = ftree.children[0].peaks.get_mut(&1).unwrap();
        (seen.ops, seen.count) = (20, 20);
        assert_eq!(told(&ftree), ["in calls of X, 20 in an op, 50 cycles each"]);
    }

    /// A hundred calls of X are the loop; three of Y are a cause of their own, and longer.
    #[test]
    fn what_is_a_part_of_its_own_is_not_told_as_calls_of_the_loop() {
        let called = |name: &str, count, sum, time| {
            let mut called = node(name, sum, Vec::new());
            let seen = called.peaks.get_mut(&1).unwrap();
            (seen.ops, seen.count) = (20, count);
            seen.part = Some(PartEntry {
                time,
                ..PartEntry::default()
            });
            called
        };
        let callees = vec![
            called("X", 2_000, 40_000, 400),
            called("Y", 60, 50_000, 49_000),
        ];
        let mut ftree = node("serve", 100_000, callees);
        let seen = ftree.peaks.get_mut(&1).unwrap();
        seen.state = DescentState::DecidedBoth;
        seen.measured_time = 100_000;
        seen.decision = Some(DecisionSums {
            time: 100_000,
            ..DecisionSums::default()
        });
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        (cause.kind, cause.path) = (Kind::Loop, vec!["serve".to_owned()]);
        let named = |ftree: &FtreeNode| {
            let callees = super::callees(&cause, 1, ftree).into_iter();
            callees.map(|called| called.name).collect::<Vec<_>>()
        };
        assert_eq!(named(&ftree), ["X"]);
        // Files of earlier versions do not tell these apart.
        ftree.peaks.get_mut(&1).unwrap().decision = None;
        assert_eq!(named(&ftree), ["Y", "X"]);
    }

    #[test]
    fn what_a_recursion_calls_beside_itself_is_told() {
        let compare = || node("compare", 2_000, Vec::new());
        let last = node("sort", 3_000, Vec::new());
        let inner = node(
            "sort",
            6_000,
            vec![last, compare(), node("copy", 300, Vec::new())],
        );
        let outer = node("sort", 9_000, vec![inner, compare()]);
        let ftree = node("serve", 0, vec![outer]);
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        cause.stop = StopReason::Recursion;
        cause.path = ["serve", "sort", "sort", "sort"].map(str::to_owned).into();
        let (name, part) = mostly(&cause, 1, &ftree).expect("it is most");
        assert_eq!(name, "compare");
        // 200 of 230 cycles an op, with those of the last depth, which was decided, too.
        assert!((0.85..0.9).contains(&part), "{part}");
        cause.stop = StopReason::SelfTime;
        assert_eq!(mostly(&cause, 1, &ftree), None);
    }
}
