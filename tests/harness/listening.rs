//! The kernel's tracepoints, listened to as long as the tests run.
//!
//! When the last one stops listening to a tracepoint, the kernel takes some 30 ms to be certain that nobody is in it, one
//! tracepoint after the other, and whoever opens one meanwhile waits (`perf_trace_destroy` in the kernel's
//! kernel/trace/trace_event_perf.c). darc uses two dozen of them, and the tests start one darc after the other.

use darc_tracer::perf::tracepoints::Tracepoints;
use darc_tracer::perf::{Attributes, Collector};

/// Opens what darc opens, and records nothing. Where that is not permitted darc does without, too.
pub fn begin() {
    let Ok(tracepoints) = Tracepoints::find() else {
        return;
    };
    let Ok(mut collector) = Collector::new(Attributes::switches()) else {
        return;
    };
    let waking = tracepoints.waking().map(|(waking, _)| waking);
    for event in tracepoints.of_cpus().chain(waking) {
        let _ = collector.add_system_event(event);
    }
    if let Some(fault) = tracepoints.fault() {
        let _ = collector.add_thread_event(std::process::id().cast_signed(), fault);
    }
    // Until the end of this process.
    std::mem::forget(collector);
}
