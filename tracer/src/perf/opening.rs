//! Which events are opened to follow a process: on the whole machine where that is allowed, else on its threads.

use crate::threads;

use super::attributes::{Attributes, Fault, Follow};
use super::collector::{Collector, Group};
use super::refusal::Refusal;
use super::tracepoints::{NoTracepoints, Tracepoints};
use super::wakings::Wakings;

/// More events than this are not opened: a descriptor each.
const MOST_EVENTS: usize = 1 << 13;

/// Tries whether the kernel's tracepoints can be read.
///
/// # Errors
/// Why they cannot.
pub fn try_tracepoints() -> Result<(), NoTracepoints> {
    let tracepoints = Tracepoints::find()?;
    let mut collector = Collector::new(Attributes::switches())?;
    let waking = tracepoints.waking().map(|(waking, _)| waking);
    for event in tracepoints.of_cpus().chain(waking) {
        collector.add_system_event(event)?;
    }
    Ok(())
}

pub(super) fn watch_machine() -> Result<Collector, Refusal> {
    let mut collector = Collector::new(Attributes::switches())?;
    collector.add_system()?;
    Ok(collector)
}

/// Watches all threads of a process, and those that they make.
pub(super) fn watch_process(event: Attributes, pid: i32) -> Result<Collector, Refusal> {
    let mut collector = Collector::new(event.follow(Follow::Children))?;
    watch_threads(&mut collector, pid, &[event])?;
    Ok(collector)
}

/// Interrupts of the whole machine, page faults of the process, and wakings of its threads; the events of these two.
pub(super) fn watch_tracepoints(
    collector: &mut Collector,
    tracepoints: &Tracepoints,
    pid: i32,
) -> Result<(Group, Option<Wakings>), Refusal> {
    for event in tracepoints.of_cpus() {
        collector.add_system_event(event)?;
    }
    // What the CPUs tell first: events of many threads may take all descriptors that are left.
    let wakings = match tracepoints.waking() {
        Some((waking, stacks)) => Some(Wakings::open(collector, pid, waking, stacks)?),
        None => None,
    };
    let faults = collector.begin_group();
    match watch_threads(collector, pid, &fault_events(tracepoints)) {
        // Of so many threads only what the CPUs tell.
        Ok(()) | Err(Refusal::Descriptors) => {}
        Err(refusal) => return Err(refusal),
    }
    Ok((faults, wakings))
}

/// The beginning and the end of a page fault.
pub(super) fn fault_events(tracepoints: &Tracepoints) -> Vec<Attributes> {
    let events = tracepoints.fault().into_iter().flat_map(|begin| {
        let end = [Fault::Minor, Fault::Major].map(Attributes::faulted);
        std::iter::once(begin).chain(end)
    });
    events.collect()
}

/// Opens these events on all threads of a process; those that they make inherit them.
pub(super) fn watch_threads(
    collector: &mut Collector,
    pid: i32,
    events: &[Attributes],
) -> Result<(), Refusal> {
    // A thread that is made meanwhile by one without events yet is listed the next time; one that inherits them is too,
    // and then tells everything twice, which does no harm.
    let mut known = std::collections::HashSet::new();
    for _ in 0..4 {
        let Ok(listed) = threads::list(pid) else {
            return Ok(());
        };
        let new: Vec<i32> = listed
            .into_iter()
            .filter(|&tid| known.insert(tid))
            .collect();
        if new.is_empty() {
            break;
        }
        if known.len() * collector.cpus() * events.len() > MOST_EVENTS {
            return Err(Refusal::Descriptors);
        }
        for tid in new {
            for event in events {
                collector.add_thread_event(tid, event.follow(Follow::Children))?;
            }
        }
    }
    Ok(())
}
