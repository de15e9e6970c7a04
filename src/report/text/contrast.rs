//! The ftree with the peaks side by side: what slow ops do that fast ops do not.

use super::{Page, shorten};
use crate::report::escape::control;
use crate::report::model::{CalleeKind, DescentState, FtreeNode, PeakEntry};

/// Columns of one peak: maxcount, calls per op, time per op.
const CELL: usize = 9 + 9 + 9;
/// Names get at least this much room.
const LEAST_NAME: usize = 24;

/// A line of the table: a call, or what a function takes itself.
struct Row {
    name: String,
    /// One per peak.
    cells: Vec<Cell>,
}

/// What the ops of one peak did there.
#[derive(Clone, Copy, Default)]
struct Cell {
    maxcount: Option<u64>,
    /// On a root-cause path of the peak.
    is_cause: bool,
    /// Calls per op.
    calls: Option<f64>,
    /// Cycles per op.
    time: Option<u64>,
}

pub(super) fn write(page: &mut Page, ftree: &FtreeNode, peaks: &[PeakEntry]) {
    if peaks.is_empty() {
        return;
    }
    let numbers: Vec<u32> = peaks.iter().map(|peak| peak.peak).collect();
    let mut rows = Vec::new();
    collect(ftree, None, 0, &numbers, &mut rows);
    let room = page.width.saturating_sub(2 + LEAST_NAME);
    let per_table = (room / CELL).max(1);
    for (table, columns) in numbers.chunks(per_table).enumerate() {
        let first = table * per_table;
        let name_width = page.width.saturating_sub(2 + columns.len() * CELL);
        let longest = rows.iter().map(|row| row.name.chars().count()).max();
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
        for row in &rows {
            let mut line = format!("  {:name_width$}", shorten(&row.name, name_width));
            for cell in &row.cells[first..first + columns.len()] {
                line.push_str(&text(page, *cell));
            }
            page.line(&line);
        }
    }
}

fn text(page: &Page, cell: Cell) -> String {
    let maxcount = match (cell.maxcount, cell.is_cause) {
        (Some(count), true) => format!("{count}*"),
        (Some(count), false) => format!("{count} "),
        (None, true) => "*".to_owned(),
        (None, false) => "- ".to_owned(),
    };
    let calls = match cell.calls {
        Some(calls) if calls >= 99.95 || calls == 0.0 => format!("{calls:.0}"),
        Some(calls) if calls >= 0.05 => format!("{calls:.1}"),
        Some(calls) => format!("{calls:.3}"),
        None => "-".to_owned(),
    };
    let time = cell
        .time
        .map_or_else(|| "-".to_owned(), |time| page.time(time));
    format!("{maxcount:>9}{calls:>9}{time:>9}")
}

/// The rows of a node and all below it. `parent` is absent for f0.
fn collect(
    node: &FtreeNode,
    parent: Option<&FtreeNode>,
    indent: usize,
    peaks: &[u32],
    rows: &mut Vec<Row>,
) {
    rows.push(Row {
        name: format!("{:indent$}{}", "", control(&node.name)),
        cells: peaks
            .iter()
            .map(|&peak| call_cell(node, parent, peak))
            .collect(),
    });
    if node.children.is_empty() {
        return;
    }
    let below = indent + 2;
    rows.push(Row {
        name: format!("{:below$}(itself)", ""),
        cells: peaks.iter().map(|&peak| self_cell(node, peak)).collect(),
    });
    // The place of an indirect call's unnamed targets says nothing as long as all targets have names.
    let seen = |child: &&FtreeNode| child.kind != CalleeKind::Unknown || child.count > 0;
    for child in node.children.iter().filter(seen) {
        collect(child, Some(node), below, peaks, rows);
    }
}

fn call_cell(node: &FtreeNode, parent: Option<&FtreeNode>, peak: u32) -> Cell {
    let record = node.peaks.get(&peak);
    let (calls, time) = per_op(node, parent, peak).unzip();
    Cell {
        // f0 competes with nobody.
        maxcount: parent
            .filter(|parent| is_decided_on(parent, peak))
            .map(|_| node.maxcount.get(&peak).copied().unwrap_or(0)),
        is_cause: record.is_some_and(|record| record.state != DescentState::NotChosen),
        calls,
        time,
    }
}

fn self_cell(node: &FtreeNode, peak: u32) -> Cell {
    let Some(record) = node.peaks.get(&peak) else {
        return Cell::default();
    };
    let below = node
        .children
        .iter()
        .filter_map(|child| child.peaks.get(&peak))
        .fold(0_u64, |sum, child| sum.saturating_add(child.sum));
    Cell {
        maxcount: is_decided_on(node, peak)
            .then(|| node.self_maxcount.get(&peak).copied().unwrap_or(0)),
        is_cause: matches!(
            record.state,
            DescentState::DecidedSelf | DescentState::DecidedBoth
        ),
        calls: None,
        time: record
            .measured_time
            .saturating_sub(below)
            .checked_div(record.measured_ops),
    }
}

/// Whether ops of the peak have been counted for a decision at this node.
fn is_decided_on(node: &FtreeNode, peak: u32) -> bool {
    node.peaks
        .get(&peak)
        .is_some_and(|record| record.decision_ops > 0)
}

/// Calls and cycles in an op of the peak; nothing where the call was not measured in such ops.
fn per_op(node: &FtreeNode, parent: Option<&FtreeNode>, peak: u32) -> Option<(f64, u64)> {
    let record = node.peaks.get(&peak);
    let ops = match parent {
        Some(parent) => parent.peaks.get(&peak)?.measured_ops,
        None => record?.ops,
    };
    let (count, sum) = record.map_or((0, 0), |record| (record.count, record.sum));
    Some((count as f64 / ops.max(1) as f64, sum.checked_div(ops)?))
}
