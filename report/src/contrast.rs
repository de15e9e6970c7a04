//! The ftree with the peaks side by side: what slow ops do that fast ops do not.
//!
//! Calls of one function from several sites are one row. Rows stand in the order of the time that they take in any peak, and
//! the parts of a whole never sum to more than it: all are parts of the peak's mean op ([`attribution`]).

use std::collections::HashMap;

use super::attribution::{self, Call};
use super::model::{CalleeKind, DescentState, FnodePeak, FtreeNode, PeakEntry};
use super::words;

/// A line of the table.
pub(super) struct Row<'a> {
    /// The call, or what its caller takes itself.
    pub(super) what: What<'a>,
    /// How far below f0.
    pub(super) depth: usize,
    /// One per peak.
    pub(super) cells: Vec<Cell>,
    /// Whether it is of a call that carries no probe.
    pub(super) is_unmeasured: bool,
}

/// What a line is about.
#[derive(Clone)]
pub(super) enum What<'a> {
    /// A call, or f0, and what tells it from other functions of its name that its caller calls.
    Call(&'a FtreeNode, Option<String>),
    /// A function that does nothing but this system call.
    Wrapper(&'a FtreeNode, &'a FtreeNode),
    /// The own time of the function above.
    Itself,
    /// Its calls that carry no probe, by their names.
    Skipped(Vec<String>),
}

/// So many calls without a probe are named.
const NAMED: usize = 3;

impl What<'_> {
    /// What people read; a system call is in brackets.
    pub(super) fn name(&self) -> String {
        let of = |node: &FtreeNode| match node.kind {
            CalleeKind::Syscall => format!("[{}]", node.name),
            _ => node.name.clone(),
        };
        match self {
            What::Call(node, None) => of(node),
            What::Call(node, Some(which)) => format!("{} ({which})", of(node)),
            What::Wrapper(function, call) => format!("{} → {}", of(function), of(call)),
            What::Itself => "(itself)".to_owned(),
            What::Skipped(names) => {
                let (named, more) = names.split_at(names.len().min(NAMED));
                let more = match more.len() {
                    0 => String::new(),
                    more => format!(", {more} more"),
                };
                named.join(", ") + &more
            }
        }
    }
}

/// What the ops of one peak did there.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Cell {
    /// On a root-cause path of the peak.
    pub(super) is_cause: bool,
    /// The part of the peak's time, 0 to 1; nothing where it was not measured in the peak's ops.
    pub(super) share: Option<f64>,
    /// Calls per op.
    pub(super) calls: Option<f64>,
    /// Cycles per op.
    pub(super) time: Option<u64>,
}

/// How much a report tells.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Rows {
    /// The calls with a part of some peak's time that matters, and causes; of the measuring only what is missing.
    #[default]
    Main,
    /// All calls, latencies in cycles too, and what the measuring did.
    All,
}

/// The rows of a table, f0 first.
pub(super) struct Table<'a> {
    pub(super) rows: Vec<Row<'a>>,
    /// How many were left out.
    pub(super) hidden: usize,
}

/// What has less of each peak's time is left out.
const LEAST: f64 = 0.01;

/// The table.
pub(super) fn table<'a>(ftree: &'a FtreeNode, peaks: &[PeakEntry], wanted: Rows) -> Table<'a> {
    let root = tree(ftree, peaks);
    let mut table = Table {
        rows: Vec::new(),
        hidden: 0,
    };
    root.write(0, wanted, &mut table);
    table
}

/// The calls from f0 down, those of one function from several sites of one caller together.
pub(super) fn tree<'a>(ftree: &'a FtreeNode, peaks: &[PeakEntry]) -> Group<'a> {
    let columns: Vec<Column<'_>> = peaks.iter().map(|peak| Column::of(ftree, peak)).collect();
    let f0 = Site {
        node: ftree,
        caller: None,
    };
    Group::of(vec![f0], &columns)
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

/// A part of a peak's time for people.
pub(super) fn share(share: Option<f64>) -> String {
    match share {
        Some(share) if share <= 0.0 => "0%".to_owned(),
        Some(share) if share < 0.001 => "<0.1%".to_owned(),
        Some(share) => format!("{:.1}%", 100.0 * share),
        None => "-".to_owned(),
    }
}

/// The sentence about rows that were left out.
pub(super) fn left_out(rows: usize) -> String {
    let (rows, are) = match rows {
        1 => ("one row".to_owned(), "is"),
        _ => (format!("{rows} rows"), "are"),
    };
    format!(
        "{rows} with less than 1% of each peak's time, or with time away that is told above, {are} left out: darc report --all"
    )
}

/// One peak: how its time is divided.
struct Column<'a> {
    peak: &'a PeakEntry,
    by_node: HashMap<*const FtreeNode, Parts>,
}

/// What a call takes of a peak's time, in cycles of all its ops.
struct Parts {
    total: u64,
    own: u64,
}

impl<'a> Column<'a> {
    fn of(ftree: &'a FtreeNode, peak: &'a PeakEntry) -> Self {
        let mut by_node = HashMap::new();
        let mut open = vec![attribution::of_peak(ftree, peak)];
        while let Some(Call {
            node,
            total,
            own,
            callees,
            ..
        }) = open.pop()
        {
            by_node.insert(std::ptr::from_ref(node), Parts { total, own });
            open.extend(callees);
        }
        Self { peak, by_node }
    }

    fn parts(&self, node: &FtreeNode) -> Option<&Parts> {
        self.by_node.get(&std::ptr::from_ref(node))
    }

    /// Time of all ops as a cell.
    fn cell(&self, time: u64, calls: Option<f64>, is_cause: bool) -> Cell {
        Cell {
            is_cause,
            share: Some(time as f64 / self.peak.total.max(1) as f64),
            calls,
            time: time.checked_div(self.peak.ops),
        }
    }

    /// What a call from one site does.
    fn call(&self, site: Site<'_>) -> Cell {
        let peak = self.peak.peak;
        let record = site.node.peaks.get(&peak);
        let is_cause = record.is_some_and(|record| record.state != DescentState::NotChosen);
        let nothing = Cell {
            is_cause,
            ..Cell::default()
        };
        let Some((calls, time)) = per_op(site, peak) else {
            return nothing;
        };
        // Of time away it is known in which ops there was some, and not how often in each.
        let calls = (!site.node.is_away()).then_some(calls);
        match self.parts(site.node) {
            Some(parts) => self.cell(parts.total, calls, is_cause),
            // Time away is no part of its caller's.
            None => self.cell(time.saturating_mul(self.peak.ops), calls, is_cause),
        }
    }

    /// What a function takes itself.
    fn itself(&self, node: &FtreeNode) -> Cell {
        let record = node.peaks.get(&self.peak.peak);
        let measured = record.filter(|record| record.measured_ops > 0);
        match (measured, self.parts(node)) {
            (Some(record), Some(parts)) => {
                let is_cause = matches!(
                    record.state,
                    DescentState::DecidedSelf | DescentState::DecidedBoth
                );
                self.cell(parts.own, None, is_cause)
            }
            _ => Cell::default(),
        }
    }
}

impl Cell {
    /// Both together.
    fn and(self, other: Cell) -> Cell {
        fn sum<T: std::ops::Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one + other),
                (one, other) => one.or(other),
            }
        }
        Cell {
            is_cause: self.is_cause || other.is_cause,
            share: sum(self.share, other.share),
            calls: sum(self.calls, other.calls),
            time: match (self.time, other.time) {
                (Some(one), Some(other)) => Some(one.saturating_add(other)),
                (one, other) => one.or(other),
            },
        }
    }

    fn matters(self) -> bool {
        self.is_cause || self.share.is_some_and(|share| share >= LEAST)
    }
}

/// A call, where it is made.
#[derive(Clone, Copy)]
struct Site<'a> {
    node: &'a FtreeNode,
    /// Absent for f0.
    caller: Option<&'a FtreeNode>,
}

impl Site<'_> {
    fn is_unmeasured(&self) -> bool {
        self.node.unmeasured && self.node.count == 0
    }

    /// The place of an indirect call's unnamed targets says nothing as long as all targets have names.
    fn says_something(&self) -> bool {
        self.node.kind != CalleeKind::Unknown || self.node.count > 0 || self.node.unmeasured
    }
}

/// What the same caller calls: one function, or what has one name.
pub(super) struct Group<'a> {
    pub(super) node: &'a FtreeNode,
    /// What tells it from other functions of its name that the same caller calls.
    which: Option<String>,
    is_unmeasured: bool,
    /// Whether it is time away below f0: that is in f0's, too, and no part of its caller's.
    is_told_at_f0: bool,
    /// One per peak.
    pub(super) cells: Vec<Cell>,
    /// What it takes itself; nothing where it calls nothing.
    own: Option<Vec<Cell>>,
    /// Those with most of a peak's time first.
    pub(super) callees: Vec<Group<'a>>,
}

impl<'a> Group<'a> {
    /// Of sites with the same callee, one at least.
    fn of(sites: Vec<Site<'a>>, columns: &[Column<'_>]) -> Self {
        let sum = |cell: &dyn Fn(&Column<'_>, Site<'a>) -> Cell| -> Vec<Cell> {
            let cells = columns.iter().map(|column| {
                let cells = sites.iter().map(|&site| cell(column, site));
                cells.fold(Cell::default(), Cell::and)
            });
            cells.collect()
        };
        let mut callees = Self::callees(&sites, columns);
        callees.sort_by(|one, other| other.largest().total_cmp(&one.largest()));
        let own = !callees.is_empty();
        Self {
            node: sites[0].node,
            which: None,
            is_unmeasured: sites[0].is_unmeasured(),
            is_told_at_f0: sites[0].node.is_away()
                && sites[0].caller.is_some_and(|caller| caller.site.is_some()),
            cells: sum(&|column, site| column.call(site)),
            own: own.then(|| sum(&|column, site| column.itself(site.node))),
            callees,
        }
    }

    fn callees(sites: &[Site<'a>], columns: &[Column<'_>]) -> Vec<Self> {
        let mut groups: Vec<Vec<Site<'a>>> = Vec::new();
        let mut by_callee = HashMap::new();
        for site in sites {
            let caller = Some(site.node);
            let below = site.node.children.iter().map(|node| Site { node, caller });
            for site in below.filter(Site::says_something) {
                let FtreeNode {
                    kind, name, callee, ..
                } = site.node;
                let key = (kind, name, callee, site.is_unmeasured());
                let group = *by_callee.entry(key).or_insert(groups.len());
                match groups.get_mut(group) {
                    Some(group) => group.push(site),
                    None => groups.push(vec![site]),
                }
            }
        }
        let groups = groups.into_iter();
        let mut groups: Vec<Self> = groups.map(|sites| Self::of(sites, columns)).collect();
        let which: Vec<_> = groups.iter().map(|one| one.told_apart(&groups)).collect();
        for (group, which) in groups.iter_mut().zip(which) {
            group.which = which;
        }
        groups
    }

    /// The line or the place of a function, where another one of these has its name.
    fn told_apart(&self, all: &[Self]) -> Option<String> {
        let source =
            |node: &FtreeNode| words::source(node.callee_file.as_deref(), node.callee_line);
        let others = all.iter().map(|other| other.node);
        let others = others.filter(|other| {
            other.name == self.node.name
                && other.callee.is_some()
                && other.callee != self.node.callee
        });
        let others: Vec<Option<String>> = others.map(source).collect();
        let place = self.node.callee.as_ref().filter(|_| !others.is_empty())?;
        let own = source(self.node).filter(|own| !others.contains(&Some(own.clone())));
        Some(own.unwrap_or_else(|| place.to_string()))
    }

    /// The line about it.
    pub(super) fn what(&self) -> What<'a> {
        What::Call(self.node, self.which.clone())
    }

    /// The part of the time of the peak in this column, 0 to 1; 0 where it was not measured.
    pub(super) fn share(&self, column: usize) -> f64 {
        let cell = self.cells.get(column);
        cell.and_then(|cell| cell.share).unwrap_or(0.0)
    }

    /// The largest part of any peak's time.
    fn largest(&self) -> f64 {
        largest(&self.cells)
    }

    fn matters(&self) -> bool {
        !self.is_told_at_f0
            && (self.cells.iter().any(|cell| cell.matters())
                || self.callees.iter().any(Self::matters))
    }

    fn write(&self, depth: usize, wanted: Rows, table: &mut Table<'a>) {
        if let (Rows::Main, Some(call)) = (wanted, self.only_system_call()) {
            let both = self.cells.iter().zip(&call.cells);
            let cells = both.map(|(cell, call)| Cell {
                is_cause: cell.is_cause || call.is_cause,
                ..*cell
            });
            table.rows.push(Row {
                what: What::Wrapper(self.node, call.node),
                depth,
                cells: cells.collect(),
                is_unmeasured: false,
            });
            return;
        }
        table.rows.push(Row {
            what: self.what(),
            depth,
            cells: self.cells.clone(),
            is_unmeasured: self.is_unmeasured,
        });
        let own = self.own.as_deref().unwrap_or_default();
        let has_own = own.iter().any(|cell| cell.matters());
        let mut own = Some(own).filter(|own| !own.is_empty());
        let (skipped, measured): (Vec<&Self>, Vec<&Self>) = self
            .callees
            .iter()
            .partition(|callee| wanted == Rows::Main && callee.is_unmeasured);
        for callee in measured {
            if let Some(cells) = own.filter(|own| largest(own) >= callee.largest()) {
                itself(cells, depth + 1, wanted, table);
                own = None;
            }
            match wanted == Rows::All || callee.matters() {
                true => callee.write(depth + 1, wanted, table),
                false => table.hidden += 1,
            }
        }
        if let Some(cells) = own {
            itself(cells, depth + 1, wanted, table);
        }
        // Time that they may have is the function's own.
        match skipped.as_slice() {
            [] => {}
            calls if has_own => table.rows.push(Row {
                what: What::Skipped(calls.iter().map(|call| call.what().name()).collect()),
                depth: depth + 1,
                cells: Vec::new(),
                is_unmeasured: true,
            }),
            calls => table.hidden += calls.len(),
        }
    }

    /// The system call that has all of its time, and its name.
    fn only_system_call(&self) -> Option<&Self> {
        let mut matter = self.callees.iter().filter(|callee| callee.matters());
        let call = matter.next().filter(|_| matter.next().is_none())?;
        let is_named_so = self.node.name.trim_start_matches('_') == call.node.name;
        let own = self.own.as_deref().unwrap_or_default();
        let has_all = !own.iter().any(|cell| cell.matters());
        (call.node.kind == CalleeKind::Syscall && is_named_so && has_all).then_some(call)
    }
}

fn itself(cells: &[Cell], depth: usize, wanted: Rows, table: &mut Table<'_>) {
    match wanted == Rows::All || cells.iter().any(|cell| cell.matters()) {
        true => table.rows.push(Row {
            what: What::Itself,
            depth,
            cells: cells.to_vec(),
            is_unmeasured: false,
        }),
        false => table.hidden += 1,
    }
}

/// The largest part of any peak's time.
fn largest(cells: &[Cell]) -> f64 {
    let shares = cells.iter().filter_map(|cell| cell.share);
    shares.fold(0.0, f64::max)
}

/// Calls and cycles in an op of the peak; nothing where the call was not measured in such ops.
fn per_op(site: Site<'_>, peak: u32) -> Option<(f64, u64)> {
    if site.is_unmeasured() {
        return None;
    }
    let none = FnodePeak::default();
    let record = site.node.peaks.get(&peak);
    let (record, ops) = match site.caller {
        Some(caller) => {
            let record = record.unwrap_or(&none);
            (record, record.ops_seen(caller.peaks.get(&peak)?))
        }
        None => (record?, record?.ops),
    };
    Some((
        record.count as f64 / ops.max(1) as f64,
        record.sum.checked_div(ops)?,
    ))
}

#[cfg(test)]
mod tests;
