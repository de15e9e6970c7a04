//! The table of what the ops of each peak do, as many peaks beside one another as fit.

use super::{Page, shorten};
use crate::contrast::{Cell, Row, What, calls, rows};
use crate::escape::control;
use crate::model::{FtreeNode, PeakEntry, ValueContrast};
use crate::telling::in_words;

/// Columns of one peak: maxcount, calls per op, time per op.
const CELL: usize = 9 + 9 + 9;
/// Names get at least this much room.
const LEAST_NAME: usize = 24;

pub(super) fn write(
    page: &mut Page,
    ftree: &FtreeNode,
    peaks: &[PeakEntry],
    values: &[ValueContrast],
) {
    if peaks.is_empty() {
        return;
    }
    table(page, ftree, peaks);
    if !values.is_empty() {
        page.blank();
        page.heading("Which arguments tell the peaks apart");
        for contrast in values {
            page.line(&format!("  {}", in_words(contrast)));
        }
    }
}

fn table(page: &mut Page, ftree: &FtreeNode, peaks: &[PeakEntry]) {
    let numbers: Vec<u32> = peaks.iter().map(|peak| peak.peak).collect();
    let rows = rows(ftree, peaks);
    let names: Vec<String> = rows.iter().map(name).collect();
    let room = page.width.saturating_sub(2 + LEAST_NAME);
    let per_table = (room / CELL).max(1);
    for (table, columns) in numbers.chunks(per_table).enumerate() {
        let first = table * per_table;
        let name_width = page.width.saturating_sub(2 + columns.len() * CELL);
        let longest = names.iter().map(|name| name.chars().count()).max();
        let name_width = name_width.min(longest.unwrap_or(0)).max(LEAST_NAME);
        page.blank();
        page.heading("What the ops of each peak do (per op; * = on a root-cause path)");
        let mut titles = format!("  {:name_width$}", "");
        let mut heads = format!("  {:name_width$}", "call");
        for number in columns {
            titles.push_str(&format!("{:>CELL$}", format!("--- peak {number} ---")));
            heads.push_str(&format!("{:>9}{:>9}{:>9}", "maxcount", "calls", "time"));
        }
        page.line(&titles);
        page.line(&heads);
        for (row, name) in rows.iter().zip(&names) {
            let mut line = format!("  {:name_width$}", shorten(name, name_width));
            if row.is_unmeasured() {
                page.line(&format!("{line}  not measured"));
                continue;
            }
            for cell in &row.cells[first..first + columns.len()] {
                line.push_str(&text(page, *cell));
            }
            page.line(&line);
        }
    }
}

/// The call's name, indented as deep as it stands below f0.
fn name(row: &Row<'_>) -> String {
    let indent = 2 * row.depth;
    match row.what {
        What::Call(node) => format!("{:indent$}{}", "", control(&node.name)),
        What::Itself => format!("{:indent$}(itself)", ""),
        What::NotMade(count) => format!("{:indent$}({count} not made)", ""),
    }
}

fn text(page: &Page, cell: Cell) -> String {
    let maxcount = match (cell.maxcount, cell.is_cause) {
        (Some(count), true) => format!("{count}*"),
        (Some(count), false) => format!("{count} "),
        (None, true) => "*".to_owned(),
        (None, false) => "- ".to_owned(),
    };
    let calls = calls(cell.calls);
    let time = cell
        .time
        .map_or_else(|| "-".to_owned(), |time| page.time(time));
    format!("{maxcount:>9}{calls:>9}{time:>9}")
}
