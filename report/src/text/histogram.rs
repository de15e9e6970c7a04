//! The profile as a histogram: ranges of latency with a bar on a logarithmic scale.

use darc_analysis::Resolution;

use super::{Page, Rows};
use crate::model::{PeakEntry, ProfileTable, Report};
use crate::words::percent;

pub(super) fn write(page: &mut Page, report: &Report) {
    if report.profile.ops > 0 {
        page.blank();
        buckets(page, &report.profile, &report.peaks);
    }
}

/// Stands for the number of a peak where there is none.
const UNASSIGNED: &str = "-";

/// One bucket's row: what stands left of the bar.
struct Row {
    peak: String,
    cycles: String,
    time: String,
    ops: u64,
}

/// The histogram of one profile; bars are logarithmic as the peaks are found on logarithms.
pub(super) fn buckets(page: &mut Page, profile: &ProfileTable, peaks: &[PeakEntry]) {
    let rows = rows(page, profile, peaks);
    let width = |column: fn(&Row) -> &str, title: &str| {
        let cells = rows.iter().map(|row| column(row).chars().count());
        cells.max().unwrap_or(0).max(title.chars().count())
    };
    // Cycles are the unit where the clock's rate is not known.
    let has_cycles = page.rows == Rows::All && page.hz.is_some();
    let cycles = width(|row| &row.cycles, "cycles");
    let cycles = move |cell: &str| match has_cycles {
        true => format!("{cell:>cycles$}  "),
        false => String::new(),
    };
    let time = width(|row| &row.time, "time");
    let most = rows.iter().map(|row| row.ops).max().unwrap_or(0);
    let ops = most.to_string().len().max("ops".len());
    let share = "share".len().max("<0.01%".len());
    let head = format!(
        "  peak  {}{:>time$}  {:>ops$}  {:>share$}  ",
        cycles("cycles"),
        "time",
        "ops",
        "share"
    );
    let left = head.chars().count();
    let bar = page.width.saturating_sub(left).clamp(10, 60);
    page.line(&format!("{head}distribution (logarithmic)"));
    for row in &rows {
        let length = length(row.ops, most, bar);
        page.line(&format!(
            "  {:>4}  {}{:>time$}  {:>ops$}  {:>share$}  {}",
            row.peak,
            cycles(&row.cycles),
            row.time,
            row.ops,
            percent(row.ops as f64 / profile.ops.max(1) as f64),
            "█".repeat(length)
        ));
    }
    if rows.iter().any(|row| row.peak == UNASSIGNED) {
        page.line(&format!("  {UNASSIGNED:>4}  belongs to no numbered peak"));
    }
}

/// Every bucket from the first to the last with ops; long stretches of empty ones are one row.
fn rows(page: &Page, profile: &ProfileTable, peaks: &[PeakEntry]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut next = None;
    for entry in &profile.buckets {
        let empty = next.unwrap_or(entry.bucket)..entry.bucket;
        if empty.len() > 3 {
            rows.push(Row {
                peak: String::new(),
                cycles: "…".to_owned(),
                time: "…".to_owned(),
                ops: 0,
            });
        } else {
            rows.extend(empty.filter_map(|bucket| row(page, profile, bucket, 0, peaks)));
        }
        rows.extend(row(page, profile, entry.bucket, entry.ops, peaks));
        next = Some(entry.bucket.saturating_add(1));
    }
    rows
}

fn row(
    page: &Page,
    profile: &ProfileTable,
    bucket: u32,
    ops: u64,
    peaks: &[PeakEntry],
) -> Option<Row> {
    let resolution = Resolution::new(profile.resolution).unwrap_or_default();
    let (first, last) = resolution.bounds(bucket)?;
    let end = page.time(last.0.saturating_add(1));
    // Exact to the width of a bucket: what is told begins within this one.
    let is_untold = profile.told_from.is_some_and(|from| from > first.0);
    let peak = peaks
        .iter()
        .find(|peak| (peak.first_bucket..=peak.last_bucket).contains(&bucket))
        .map(|peak| peak.peak.to_string());
    let unassigned = match ops > 0 && !peaks.is_empty() {
        true => UNASSIGNED,
        false => "",
    };
    Some(Row {
        peak: peak.unwrap_or_else(|| unassigned.to_owned()),
        cycles: match is_untold {
            true => format!("0 - {}", last.0),
            false => format!("{} - {}", first.0, last.0),
        },
        time: match is_untold {
            true => format!("below {end}"),
            false => format!("{} - {end}", page.time(first.0)),
        },
        ops,
    })
}

/// The bar's length: a single op is a short bar, none is none.
fn length(ops: u64, most: u64, width: usize) -> usize {
    if ops == 0 {
        return 0;
    }
    let height = |ops: u64| (ops as f64 + 1.0).log2();
    let length = width as f64 * height(ops) / height(most);
    (length.round() as usize).clamp(1, width)
}
