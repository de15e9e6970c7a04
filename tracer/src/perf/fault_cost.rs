//! What a page fault takes beyond what the kernel's two records enclose, which is the processor's way in and out and a part of the
//! records; and what the records take. Measured on darc's own pages.

use std::fs::File;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::gettid;

use crate::sys::{self, SharedWords};
use darc_record::{Ticks, Tsc};

use super::attributes::Attributes;
use super::clock::Clock;
use super::collector::Collector;
use super::record::Record;
use super::refusal::Refusal;
use super::services::Services;
use super::tracepoints::{Event, Service, Tracepoints};

/// Pages that are used for the first time, without records and with them.
const PAGES: usize = 128;
/// Fewer faults than this say nothing.
const FEWEST: usize = PAGES / 2;

/// What page faults of a thread take that is recorded, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct FaultCost {
    /// More than their records say,
    pub(super) untold: Ticks,
    /// and more than without them.
    pub(super) records: Ticks,
}

/// What faults of a thread with these events take: medians of some of the calling thread's. `None` when too few of them were told.
///
/// # Errors
/// When the kernel refuses the events.
pub(super) fn measure(
    tracepoints: &mut Tracepoints,
    events: &[Attributes],
    clock: &Clock,
) -> Result<Option<FaultCost>, Refusal> {
    let mut collector = Collector::new(Attributes::switches())?;
    let own = gettid().as_raw();
    for &event in events {
        collector.add_thread_event(own, event)?;
    }
    let memory = unused_memory().map_err(|source| Refusal::Os { source })?;
    let touch = |page: usize| {
        let before = sys::tsc();
        memory.store(page * sys::PAGE, 1);
        (sys::tsc() - before).0
    };
    let bare = median((0..PAGES).map(touch).collect());
    collector.enable();
    let recorded = median((PAGES..2 * PAGES).map(touch).collect());
    collector.disable();
    let told = told(&collector.read_rest().records, tracepoints, clock);
    Ok((told.len() >= FEWEST).then(|| FaultCost {
        untold: Ticks(recorded.saturating_sub(median(told))),
        records: Ticks(recorded.saturating_sub(bare)),
    }))
}

fn unused_memory() -> Result<SharedWords, Errno> {
    let file = File::from(memfd_create(c"darc-faults", MFdFlags::MFD_CLOEXEC)?);
    let len = 2 * PAGES * sys::PAGE;
    file.set_len(len as u64)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
    SharedWords::map(&file, len)
}

/// What the records say of each fault, in cycles.
fn told(records: &[Record], tracepoints: &mut Tracepoints, clock: &Clock) -> Vec<u64> {
    let mut services = Services::default();
    let mut told = Vec::new();
    for record in records {
        let Record::Point(point) = record else {
            continue;
        };
        let at: Tsc = clock.tsc(point.stamp.time);
        let (cpu, tid) = (point.stamp.cpu, point.stamp.tid);
        let piece = match tracepoints.event(&point.raw) {
            Some(Event::Fault { .. }) => services.begin(at, cpu, tid, Service::PageFault),
            Some(Event::End(Service::PageFault)) => services.end(at, cpu, tid, Service::PageFault),
            _ => None,
        };
        told.extend(piece.map(|piece| (piece.to - piece.from).0));
    }
    told
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_takes_more_than_its_records_say() {
        let Ok(mut tracepoints) = Tracepoints::find() else {
            return;
        };
        let events = super::super::opening::fault_events(&tracepoints);
        match measure(&mut tracepoints, &events, &Clock::calibrate()) {
            Ok(cost) => {
                let is_known = |cost: FaultCost| cost.untold > Ticks(0);
                assert!(cost.is_none_or(is_known), "{cost:?}");
            }
            Err(refusal) => eprintln!("not tested: {refusal}"),
        }
    }
}
