//! The table of what the ops of each peak do, as many peaks beside one another as fit.

use super::Page;
use crate::contrast::{self, Cell, Row};
use crate::escape::control;
use crate::model::{FtreeNode, PeakEntry, ValueContrast};
use crate::telling::in_words;

/// Columns of one peak: the part of its time, calls per op, time per op.
const CELL: usize = 9 + 8 + 9;
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
    let table = contrast::table(ftree, peaks, page.rows);
    let names: Vec<String> = table.rows.iter().map(name).collect();
    let indents = table.rows.iter().map(|row| 2 * row.depth);
    let named: Vec<(usize, &String)> = indents.zip(&names).collect();
    let room = page.columns().saturating_sub(2 + LEAST_NAME);
    let per_table = (room / CELL).max(1);
    for (at, columns) in numbers.chunks(per_table).enumerate() {
        let first = at * per_table;
        let name_width = page.columns().saturating_sub(2 + columns.len() * CELL);
        let lengths = named
            .iter()
            .map(|(indent, name)| indent + name.chars().count());
        let longest = lengths.max().unwrap_or(0);
        let name_width = page.room(name_width).min(longest).max(LEAST_NAME);
        page.blank();
        page.heading("What the ops of each peak do (per op; * = on a root-cause path)");
        let mut titles = format!("  {:name_width$}", "");
        let mut heads = format!("  {:name_width$}", "call");
        for number in columns {
            titles.push_str(&format!("{:>CELL$}", format!("--- peak {number} ---")));
            heads.push_str(&format!("{:>8} {:>8}{:>9}", "of time", "calls", "time"));
        }
        page.line(&titles);
        page.line(&heads);
        for (row, (indent, name)) in table.rows.iter().zip(&named) {
            let name = page.fitted(name, name_width.saturating_sub(*indent));
            let mut line = format!("  {:name_width$}", format!("{:indent$}{name}", ""));
            if row.is_unmeasured {
                page.line(&format!("{line}  not measured"));
                continue;
            }
            for cell in &row.cells[first..first + columns.len()] {
                line.push_str(&text(page, *cell));
            }
            page.line(&line);
        }
    }
    if table.hidden > 0 {
        page.sentence(2, &contrast::left_out(table.hidden));
    }
}

/// The call's name.
fn name(row: &Row<'_>) -> String {
    control(&row.what.name()).into_owned()
}

fn text(page: &Page, cell: Cell) -> String {
    let share = contrast::share(cell.share);
    let mark = if cell.is_cause { "*" } else { " " };
    let calls = contrast::calls(cell.calls);
    let time = cell
        .time
        .map_or_else(|| "-".to_owned(), |time| page.time(time));
    format!("{share:>8}{mark}{calls:>8}{time:>9}")
}
