//! From f0 to another thread: how long requests wait in between, and what became of those of each peak.

use super::{Page, histogram, path};
use crate::escape::control;
use crate::handover::{Cell, NONE, in_words, rest, rows, title};
use crate::model::{Focus, HandOver, PeakEntry};
use crate::outcome;

/// Columns of one peak: waited, served.
const CELL: usize = 2 * HALF;
const HALF: usize = 10;

/// The hand-over, and the heading of what serves. `peaks` are f0's.
pub(super) fn write(page: &mut Page, focus: &Focus, handover: &HandOver, peaks: &[PeakEntry]) {
    page.heading(&format!(
        "Handed over by {} ({}): {} requests, {} seen to be served",
        control(&handover.enqueue.name),
        control(&handover.enqueued_object),
        handover.enqueued,
        handover.served
    ));
    if let Some(rest) = rest(handover) {
        page.line(&format!("  {rest}"));
    }
    if let Some(mean) = handover.waits.total.checked_div(handover.waits.ops) {
        page.line(&format!(
            "  from the hand-over to the call that serves: {} on average",
            page.time(mean)
        ));
        histogram::buckets(page, &handover.waits, &[]);
    }
    table(page, handover);
    for line in in_words(page.hz, handover, peaks) {
        page.line(&format!("  {line}"));
    }
    page.blank();
    page.heading(&format!(
        "Served by {} ({}): {}",
        path(&focus.path),
        control(&handover.served_object),
        outcome::status(focus.status)
    ));
}

/// Peaks beside one another, as many as fit.
fn table(page: &mut Page, handover: &HandOver) {
    let rows = rows(page.hz, handover);
    let label = rows.iter().map(|row| row.label.chars().count()).max();
    let label = label.unwrap_or(0);
    let per_table = (page.width.saturating_sub(2 + label) / CELL).max(1);
    let numbers: Vec<usize> = (0..handover.peaks.len()).collect();
    for columns in numbers.chunks(per_table) {
        page.blank();
        page.heading("How long the requests of each peak's ops waited, and were served");
        let mut titles = format!("  {:label$}", "");
        let mut heads = titles.clone();
        for &column in columns {
            let title = format!("--- {} ---", title(&handover.peaks[column]));
            titles.push_str(&format!("{title:>CELL$}"));
            heads.push_str(&format!("{:>HALF$}{:>HALF$}", "waited", "served"));
        }
        page.line(&titles);
        page.line(&heads);
        for row in &rows {
            let is_empty = |&column: &usize| match &row.cells[column] {
                Cell::Halves(halves) => halves.iter().all(|half| half == NONE),
                Cell::Whole(_) => false,
            };
            if columns.iter().all(is_empty) {
                continue;
            }
            let mut line = format!("  {:>label$}", row.label);
            for &column in columns {
                match &row.cells[column] {
                    Cell::Whole(text) => line.push_str(&format!("{text:>CELL$}")),
                    Cell::Halves([waited, served]) => {
                        line.push_str(&format!("{waited:>HALF$}{served:>HALF$}"));
                    }
                }
            }
            page.line(&line);
        }
    }
}
