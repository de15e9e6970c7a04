//! What became of the requests of each of f0's peaks, as the rows of a table and in words.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use darc_analysis::{Hz, Resolution};

use super::model::{HandOver, HandedOver, PeakEntry, ProfileTable};
use super::words;

/// Stands where there are no requests.
pub(super) const NONE: &str = "-";

/// A row of the table.
pub(super) struct Row {
    /// What its cells are.
    pub label: String,
    /// One for each of [`HandOver::peaks`].
    pub cells: Vec<Cell>,
}

/// What a row says of one peak.
pub(super) enum Cell {
    /// One figure.
    Whole(String),
    /// How long requests waited, and how long they were served.
    Halves([String; 2]),
}

/// The heading of a peak's columns.
pub(super) fn title(of: &HandedOver) -> String {
    match of.peak {
        Some(peak) => format!("peak {peak}"),
        None => "no peak".to_owned(),
    }
}

/// What became of requests beside being served, in one line; `None` when there is nothing to say.
pub(super) fn rest(handover: &HandOver) -> Option<String> {
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
        (
            handover.of_unknown_ops,
            "of ops that were not seen to end by returning",
        ),
    ];
    let rest = rest.iter().filter(|(count, _)| *count > 0);
    let rest: Vec<String> = rest
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    (!rest.is_empty()).then(|| rest.join(", "))
}

/// The table: how many, how long on average, and how often in each bucket.
pub(super) fn rows(hz: Option<Hz>, handover: &HandOver) -> Vec<Row> {
    let row = |label: &str, cell: &dyn Fn(&HandedOver) -> Cell| Row {
        label: label.to_owned(),
        cells: handover.peaks.iter().map(cell).collect(),
    };
    let count = |label: &str, count: fn(&HandedOver) -> u64| {
        row(label, &|of| Cell::Whole(count(of).to_string()))
    };
    let average = |table: &ProfileTable| match mean(table) {
        Some(mean) => words::time(hz, mean),
        None => NONE.to_owned(),
    };
    let mut rows = vec![
        count("ops that handed over", |of| of.ops),
        count("their requests", |of| of.requests),
        count("seen to be served", |of| of.waits.ops),
        row("on average", &|of| {
            Cell::Halves([average(&of.waits), average(&of.services)])
        }),
    ];
    let resolution = Resolution::new(handover.waits.resolution).unwrap_or_default();
    let tables = handover.peaks.iter();
    let tables = tables.flat_map(|of| [&of.waits, &of.services]);
    let buckets: BTreeSet<u32> = tables
        .flat_map(|table| table.buckets.iter().map(|entry| entry.bucket))
        .collect();
    for bucket in buckets {
        let Some((first, last)) = resolution.bounds(bucket) else {
            continue;
        };
        let range = format!(
            "{} - {}",
            words::time(hz, first.0),
            words::time(hz, last.0.saturating_add(1))
        );
        let ops = |table: &ProfileTable| {
            let entry = table.buckets.iter().find(|entry| entry.bucket == bucket);
            entry.map_or_else(|| NONE.to_owned(), |entry| entry.ops.to_string())
        };
        rows.push(row(&range, &|of| {
            Cell::Halves([ops(&of.waits), ops(&of.services)])
        }));
    }
    rows
}

/// A line for each peak but the fastest: how much longer than there its ops take, and its requests wait and are served.
pub(super) fn in_words(hz: Option<Hz>, handover: &HandOver, peaks: &[PeakEntry]) -> Vec<String> {
    let mut known: Vec<(u64, u64, u64, &HandedOver)> = handover
        .peaks
        .iter()
        .filter_map(|of| {
            let entry = peaks.iter().find(|entry| Some(entry.peak) == of.peak)?;
            let latency = entry.total.checked_div(entry.ops)?;
            Some((latency, mean(&of.waits)?, mean(&of.services)?, of))
        })
        .collect();
    known.sort_by_key(|&(latency, ..)| latency);
    let Some(((fast, waited, served, of), others)) = known.split_first() else {
        return Vec::new();
    };
    let each = |of: &HandedOver| of.requests as f64 / of.ops as f64;
    let line = |(latency, waits, services, other): &(u64, u64, u64, &HandedOver)| {
        let longer = |one, other| against(hz, one, other);
        let several = match (each(of) - each(other)).abs() > 0.05 {
            true => format!(
                "; there are {:.1} of them an op, {:.1} in {}",
                each(other),
                each(of),
                title(of)
            ),
            false => String::new(),
        };
        format!(
            "on average an op of {} takes {} than one of {}; its requests wait {} and are served {}{several}",
            title(other),
            longer(*latency, *fast),
            title(of),
            longer(*waits, *waited),
            longer(*services, *served),
        )
    };
    others.iter().map(line).collect()
}

fn mean(table: &ProfileTable) -> Option<u64> {
    table.total.checked_div(table.ops)
}

fn against(hz: Option<Hz>, one: u64, other: u64) -> String {
    let time = words::time(hz, one.abs_diff(other));
    match one.cmp(&other) {
        Ordering::Greater => format!("{time} longer"),
        Ordering::Less => format!("{time} shorter"),
        Ordering::Equal => "as long".to_owned(),
    }
}
