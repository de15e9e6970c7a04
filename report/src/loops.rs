//! Which calls loops make, and how many.

use std::collections::BTreeMap;

use darc_analysis::Hz;

use crate::escape::control;
use crate::model::{CalleeKind, FtreeNode, Kind, RootCauseEntry};
use crate::names::short;
use crate::words::time;

/// All calls of one function that another one makes, in the ops of a peak in which it does.
pub(super) struct Called {
    /// The function.
    pub(super) name: String,
    /// How many in an op.
    pub(super) each: f64,
    /// All of them, in cycles.
    time: u64,
    count: u64,
}

impl Called {
    /// `less, 4000 in an op, 66 ns each`
    fn told(&self, hz: Option<Hz>) -> String {
        let mean = time(hz, self.time / self.count.max(1));
        format!("{}, {:.0} in an op, {mean} each", self.name, self.each)
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
    told
}

/// What a loop mostly calls: the functions that have a fifth of the time of its calls each and most of it together. Nothing where
/// the cause is none, and where that is not known.
pub(super) fn callees(cause: &RootCauseEntry, peak: u32, ftree: &FtreeNode) -> Vec<Called> {
    let path = walk(cause, peak, ftree);
    let (Some(path), Kind::Loop) = (path, cause.kind) else {
        return Vec::new();
    };
    let mut called = called_by(path[path.len() - 1], peak);
    let sum = |of: &[Called]| of.iter().map(|of| of.time as f64).sum::<f64>();
    let all = sum(&called);
    called.retain(|of| of.each >= FEWEST && of.time as f64 >= MUCH * all);
    called.sort_by_key(|of| std::cmp::Reverse(of.time));
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
    let in_op = |node: &FtreeNode| {
        let seen = node.peaks.get(&peak);
        seen.map_or(1.0, |seen| seen.count as f64 / seen.ops.max(1) as f64)
    };
    // A page fault is no call: it is where it struck.
    let end = path.iter().rfind(|node| is_call(node));
    let at_end = end.map_or(0.0, |end| in_op(end));
    let steps = path.windows(2).filter_map(|pair| {
        let least = LOOP * in_op(pair[0]).max(1.0);
        let mut called = called_by(pair[0], peak).into_iter();
        called.find(|of| {
            let is_most = at_end >= of.each / 2.0;
            of.name == told_name(pair[1]) && of.each >= least && is_most
        })
    });
    steps.collect()
}

/// Fewer calls in an op are not worth a word.
const FEWEST: f64 = 2.0;
/// What has this part of the time of a loop's calls is named.
const MUCH: f64 = 0.2;
/// So many calls in one of the caller's are a loop, as in the analysis.
const LOOP: f64 = 10.0;

/// What a function calls, all sites together.
fn called_by(node: &FtreeNode, peak: u32) -> Vec<Called> {
    let mut called: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for child in &node.children {
        if let (true, Some(seen)) = (is_call(child), child.peaks.get(&peak)) {
            let (time, count, ops) = called.entry(&child.name).or_default();
            *time = time.saturating_add(seen.sum);
            *count = count.saturating_add(seen.count);
            *ops = seen.ops.max(*ops);
        }
    }
    let called = called.into_iter();
    let told = called.map(|(name, (time, count, ops))| Called {
        name: control(&short(name)).into_owned(),
        each: count as f64 / ops.max(1) as f64,
        time,
        count,
    });
    told.collect()
}

fn is_call(node: &FtreeNode) -> bool {
    matches!(node.kind, CalleeKind::Function | CalleeKind::Syscall)
}

fn told_name(node: &FtreeNode) -> String {
    control(&short(&node.name)).into_owned()
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
