//! The ftree with the peaks side by side: what slow ops do that fast ops do not.

use super::model::{CalleeKind, DescentState, FnodePeak, FtreeNode, PeakEntry};

/// A line of the table.
pub(super) struct Row<'a> {
    /// The call, or what its caller takes itself.
    pub(super) what: What<'a>,
    /// How far below f0.
    pub(super) depth: usize,
    /// One per peak.
    pub(super) cells: Vec<Cell>,
}

impl Row<'_> {
    /// Whether it is of a call that carries no probe.
    pub(super) fn is_unmeasured(&self) -> bool {
        matches!(self.what, What::Call(node) if node.unmeasured && node.count == 0)
    }
}

/// What a line is about.
#[derive(Clone, Copy)]
pub(super) enum What<'a> {
    /// A call, or f0.
    Call(&'a FtreeNode),
    /// The own time of the function above.
    Itself,
    /// So many calls of the function above that no op made.
    NotMade(usize),
}

/// What the ops of one peak did there.
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    /// How often it was among the largest contributors; nothing where no decision was made.
    pub(super) maxcount: Option<u64>,
    /// On a root-cause path of the peak.
    pub(super) is_cause: bool,
    /// Calls per op.
    pub(super) calls: Option<f64>,
    /// Cycles per op.
    pub(super) time: Option<u64>,
}

/// The whole table, f0 first.
pub(super) fn rows<'a>(ftree: &'a FtreeNode, peaks: &[PeakEntry]) -> Vec<Row<'a>> {
    let numbers: Vec<u32> = peaks.iter().map(|peak| peak.peak).collect();
    let mut rows = Vec::new();
    collect(ftree, ftree, None, 0, &numbers, &mut rows);
    rows
}

/// Calls per op for people.
pub(super) fn calls(calls: Option<f64>) -> String {
    match calls {
        Some(calls) if calls >= 99.95 || calls == 0.0 => format!("{calls:.0}"),
        Some(calls) if calls >= 0.05 => format!("{calls:.1}"),
        Some(calls) => format!("{calls:.3}"),
        None => "-".to_owned(),
    }
}

/// Time away below this part of f0's time is no row of its own: interrupts strike everywhere a little.
const LEAST_AWAY: f64 = 0.01;

/// Whether time away is worth a row: a cause, or some part of f0's time in the ops of a peak.
fn matters(node: &FtreeNode, parent: &FtreeNode, f0: &FtreeNode, peaks: &[u32]) -> bool {
    peaks.iter().any(|&peak| {
        let time = |node, parent| per_op(node, parent, peak).map_or(0, |(_, time)| time);
        let whole = time(f0, None) as f64;
        call_cell(node, Some(parent), peak).is_cause
            || time(node, Some(parent)) as f64 > LEAST_AWAY * whole
    })
}

/// The rows of a node and all below it. `parent` is absent for f0.
fn collect<'a>(
    node: &'a FtreeNode,
    f0: &FtreeNode,
    parent: Option<&FtreeNode>,
    depth: usize,
    peaks: &[u32],
    rows: &mut Vec<Row<'a>>,
) {
    rows.push(Row {
        what: What::Call(node),
        depth,
        cells: peaks
            .iter()
            .map(|&peak| call_cell(node, parent, peak))
            .collect(),
    });
    if node.children.is_empty() {
        return;
    }
    let below = depth + 1;
    rows.push(Row {
        what: What::Itself,
        depth: below,
        cells: peaks.iter().map(|&peak| self_cell(node, peak)).collect(),
    });
    // The place of an indirect call's unnamed targets says nothing as long as all targets have names.
    let seen = |child: &&FtreeNode| {
        child.kind != CalleeKind::Unknown || child.count > 0 || child.unmeasured
    };
    let matters = |child: &&FtreeNode| !child.is_away() || matters(child, node, f0, peaks);
    let shown: Vec<&FtreeNode> = node.children.iter().filter(seen).filter(matters).collect();
    // Error paths make up most of the calls of many functions: together they are one row.
    let unused = shown.iter().filter(|child| is_not_made(child)).count();
    let apart = unused <= FEW_NOT_MADE;
    for child in shown {
        if apart || !is_not_made(child) {
            collect(child, f0, Some(node), below, peaks, rows);
        }
    }
    if !apart {
        rows.push(Row {
            what: What::NotMade(unused),
            depth: below,
            cells: vec![Cell::default(); peaks.len()],
        });
    }
}

/// So many calls of a function that were not made are rows of their own.
const FEW_NOT_MADE: usize = 3;

/// Whether no op of any peak made the call.
fn is_not_made(node: &FtreeNode) -> bool {
    node.count == 0
        && !node.unmeasured
        && node.root_cause_of.is_empty()
        && node.maxcount.values().all(|&count| count == 0)
        && node.children.iter().all(is_not_made)
}

/// What the ops of one peak do at a call.
fn call_cell(node: &FtreeNode, parent: Option<&FtreeNode>, peak: u32) -> Cell {
    let record = node.peaks.get(&peak);
    let (calls, time) = per_op(node, parent, peak).unzip();
    Cell {
        // f0 competes with nobody.
        maxcount: parent
            .filter(|parent| !node.unmeasured && is_decided_on(parent, peak))
            .map(|_| node.maxcount.get(&peak).copied().unwrap_or(0)),
        is_cause: record.is_some_and(|record| record.state != DescentState::NotChosen),
        calls,
        time,
    }
}

/// What a function takes itself.
fn self_cell(node: &FtreeNode, peak: u32) -> Cell {
    let Some(record) = node.peaks.get(&peak) else {
        return Cell::default();
    };
    let below = node
        .children
        .iter()
        .filter_map(|child| child.peaks.get(&peak))
        .fold(0_u64, |sum, child| {
            sum.saturating_add(child.sum_in_all(record))
        });
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
    if node.unmeasured && node.count == 0 {
        return None;
    }
    let none = FnodePeak::default();
    let record = node.peaks.get(&peak);
    let (record, ops) = match parent {
        Some(parent) => {
            let record = record.unwrap_or(&none);
            (record, record.ops_seen(parent.peaks.get(&peak)?))
        }
        None => (record?, record?.ops),
    };
    Some((
        record.count as f64 / ops.max(1) as f64,
        record.sum.checked_div(ops)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use darc_analysis::simulate::{Program, Run, Session, call as callee};
    use darc_analysis::{Analysis, Params};

    /// A function with one call that was made and five that were not.
    #[test]
    fn calls_that_were_not_made_are_one_row() {
        let call = |name: &str, count| FtreeNode {
            name: name.to_owned(),
            count,
            ..FtreeNode::default()
        };
        let mut f0 = call("f0", 9);
        f0.children = vec![call("error", 0); 5];
        f0.children.insert(2, call("work", 9));
        let names = |f0: &FtreeNode| -> Vec<String> {
            let name = |row: Row<'_>| match row.what {
                What::Call(node) => node.name.clone(),
                What::Itself => "itself".to_owned(),
                What::NotMade(count) => format!("{count} not made"),
            };
            rows(f0, &[]).into_iter().map(name).collect()
        };
        assert_eq!(names(&f0), ["f0", "itself", "work", "5 not made"]);
        f0.children.truncate(3);
        assert_eq!(names(&f0), ["f0", "itself", "error", "error", "work"]);
    }

    #[test]
    fn calls_that_were_measured_in_portions_have_the_figures_of_their_portion() {
        let sites = [1, 2, 3, 4, 5, 6].map(|id| (id, callee(id)));
        let f0 = |run: &mut Run<'_>| {
            run.work(40_000);
            (1..=6).for_each(|id| run.call(id, id));
        };
        let program = Program::default().function(0, "f", &sites, f0);
        let tenth = |run: &mut Run<'_>| run.work(10_000);
        let program = (1..=6).fold(program, |program, id| {
            program.function(id, "tenth", &[], tenth)
        });
        for most in [2, usize::MAX] {
            let analysis = Analysis::new(Params::default());
            let mut session = Session::in_portions(program.clone(), analysis, most);
            session.run(1_000);
            let report = fixture::of(&session);
            let rows = rows(&report.ftree, &report.peaks);
            let times = rows.iter().map(|row| row.cells[0].time.unwrap_or(0));
            let times: Vec<u64> = times.collect();
            assert_eq!(times[..2], [100_000, 40_000], "at most {most} at once");
            assert_eq!(times[2..], [10_000; 6]);
            assert!(rows[2..].iter().all(|row| row.cells[0].calls == Some(1.0)));
        }
    }
}
