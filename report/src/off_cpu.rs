//! From the analysis' account of time away to the report's: with names, and others of one name together.

use std::collections::BTreeMap;

use darc_analysis::off_cpu::{OffCpu, Waits};
use darc_analysis::{Analysis, PeakStatus};

use super::assemble::Names;
use super::model::{DoingEntry, OffCpuEntry, OtherEntry, OtherProcess, WaitPlace, WaitsEntry};

/// Nobody reads more places than this,
const MOST_PLACES: usize = 8;
/// or more stacks of one waker.
const MOST_STACKS: usize = 3;

/// Where the threads of a peak's ops were.
pub(super) fn off_cpu(
    analysis: &Analysis,
    peak: u32,
    all: &OffCpu,
    names: &dyn Names,
) -> OffCpuEntry {
    let places = analysis.waited_in(peak).into_iter();
    OffCpuEntry {
        ops: all.ops,
        time: all.time.0,
        blocked: all.blocked.0,
        runnable: all.runnable.0,
        preempted: all.preempted.0,
        interrupted: all.interrupted.0,
        page_faults: all.faulting.0,
        signal_handlers: all.handling.0,
        struck_ops: all.struck_ops,
        is_of_struck_ops: analysis.peak_status(peak) == PeakStatus::Undecided
            && analysis.is_of_struck_ops(peak),
        waits: places
            .take(MOST_PLACES)
            .map(|(fnode, waits)| WaitPlace {
                path: names.path(analysis.ftree(), &analysis.ftree().path(fnode)),
                waits: waits_entry(waits, names),
            })
            .collect(),
    }
}

#[derive(Default)]
struct Gathered {
    tids: Vec<Option<i32>>,
    processes: Vec<Option<OtherProcess>>,
    count: u64,
    time: u64,
    doing: BTreeMap<Vec<String>, u64>,
}

/// How the longest calls of an fnode waited.
pub(super) fn waits_entry(waits: &Waits, names: &dyn Names) -> WaitsEntry {
    let mut others: BTreeMap<String, Gathered> = BTreeMap::new();
    for (&other, &(count, time)) in &waits.others {
        let other = names.other(other);
        let of_name = others.entry(other.name).or_default();
        if !of_name.tids.contains(&other.tid) {
            of_name.tids.push(other.tid);
        }
        if !of_name.processes.contains(&other.process) {
            of_name.processes.push(other.process);
        }
        of_name.count += count;
        of_name.time = of_name.time.saturating_add(time.0);
        if !other.doing.is_empty() {
            *of_name.doing.entry(other.doing).or_default() += count;
        }
    }
    let mut others: Vec<OtherEntry> = others
        .into_iter()
        .map(|(name, mut of_name)| OtherEntry {
            name,
            tid: match of_name.tids.as_slice() {
                &[one] => one,
                _ => None,
            },
            process: match of_name.processes.as_mut_slice() {
                [one] => one.take(),
                _ => None,
            },
            doing: doing(of_name.doing),
            count: of_name.count,
            time: of_name.time,
        })
        .collect();
    others.sort_by_key(|other| std::cmp::Reverse(other.time));
    WaitsEntry {
        count: waits.count,
        blocked: waits.blocked.0,
        runnable: waits.runnable.0,
        preempted: waits.preempted.0,
        others,
    }
}

fn doing(stacks: BTreeMap<Vec<String>, u64>) -> Vec<DoingEntry> {
    let mut doing: Vec<DoingEntry> = stacks
        .into_iter()
        .map(|(functions, count)| DoingEntry { functions, count })
        .collect();
    doing.sort_by_key(|entry| std::cmp::Reverse(entry.count));
    doing.truncate(MOST_STACKS);
    doing
}
