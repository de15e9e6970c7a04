//! From f0 to another thread: how long requests wait in between.

use super::{Page, histogram, path, words};
use crate::report::model::{Focus, HandOver};

/// The hand-over, and the heading of what serves.
pub(super) fn write(page: &mut Page, focus: &Focus, handover: &HandOver) {
    page.heading(&format!(
        "Handed over by {} ({}): {} requests, {} seen to be served",
        handover.enqueue.name, handover.enqueued_object, handover.enqueued, handover.served
    ));
    let rest = [
        (handover.in_flight, "in flight at the end"),
        (handover.expired, "never seen to be served"),
        (
            handover.crowded_out,
            "given up because too many were in flight",
        ),
        (
            handover.others,
            "calls that served what came from elsewhere",
        ),
        (handover.unread, "calls whose request could not be read"),
    ];
    let rest: Vec<String> = rest
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !rest.is_empty() {
        page.line(&format!("  {}", rest.join(", ")));
    }
    let average = |total: u64, ops: u64| total.checked_div(ops).unwrap_or(0);
    if handover.waits.ops > 0 {
        page.line(&format!(
            "  from the hand-over to the call that serves: {} on average",
            page.time(average(handover.waits.total, handover.waits.ops))
        ));
        histogram::buckets(page, &handover.waits, &[]);
    }
    page.blank();
    page.heading(&format!(
        "Served by {} ({}): {}",
        path(&focus.path),
        handover.served_object,
        words::status(focus.status)
    ));
}
