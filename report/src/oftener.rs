//! What the calls of a peak do more often than the usual ones, each time as long.

use super::contrast::{self, Cell, Group};
use super::escape::control;
use super::loops;
use super::model::{FtreeNode, Kind, PeakEntry, RootCauseEntry};
use super::names::short;

/// As many times as in the usual calls is more often.
const MORE: f64 = 1.5;
/// A call that takes so many times as long as in the usual ones is a longer one.
const LONGER: f64 = 1.5;
/// What usual calls make less often than this an op they do not always make.
const ALWAYS: f64 = 0.95;

/// `, in 3.0 calls of build an op (peak 1: 1.0)`: the outermost function on the way to a cause that the peak's calls call more often
/// than those of the peak with most calls do, while a call of it takes no longer. Nothing where there is none.
pub(super) fn told(
    cause: &RootCauseEntry,
    peak: &PeakEntry,
    peaks: &[PeakEntry],
    ftree: &FtreeNode,
) -> String {
    let usual = peaks.iter().max_by_key(|peak| peak.ops);
    let Some(usual) = usual.filter(|usual| usual.peak != peak.peak) else {
        return String::new();
    };
    let is_called = matches!(cause.kind, Kind::Function | Kind::Loop | Kind::Syscall);
    let both = [peak.clone(), usual.clone()];
    let mut group = contrast::tree(ftree, &both);
    let mut names: Vec<String> = cause.path.iter().skip(1).cloned().collect();
    let callees = loops::callees(cause, peak.peak, ftree).into_iter();
    names.extend(callees.take(1).map(|called| called.name));
    for name in names.iter().filter(|_| is_called) {
        let callees = std::mem::take(&mut group.callees).into_iter();
        let Some(next) = callees.into_iter().find(|next| is_named(next, name)) else {
            break;
        };
        if let [Some(more), Some(usually)] = [0, 1].map(|at| next.cells[at].calls)
            && is_more(&next.cells)
        {
            let name = control(&short(name)).into_owned();
            return format!(
                ", in {} calls of {name} an op (peak {}: {})",
                contrast::calls(Some(more)),
                usual.peak,
                contrast::calls(Some(usually))
            );
        }
        group = next;
    }
    String::new()
}

/// Whether a call has this name, as it is or as people read it.
fn is_named(group: &Group<'_>, name: &str) -> bool {
    let own = &group.node.name;
    own == name || control(&short(own)) == name
}

/// Whether the first of two peaks has more of the calls, and each is as long as in the other.
fn is_more(cells: &[Cell]) -> bool {
    let [of, usual] = cells else { return false };
    let each = |cell: &Cell| Some(cell.time? as f64 / cell.calls.filter(|&calls| calls > 0.0)?);
    let (Some(calls), Some(usually)) = (of.calls, usual.calls) else {
        return false;
    };
    let is_longer = match (each(of), each(usual)) {
        (Some(one), Some(other)) => one > LONGER * other,
        _ => true,
    };
    usually >= ALWAYS && calls >= MORE * usually && !is_longer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(calls: f64, time: u64) -> Cell {
        Cell {
            calls: Some(calls),
            time: Some(time),
            ..Cell::default()
        }
    }

    #[test]
    fn calls_are_more_or_longer() {
        assert!(is_more(&[cell(3.0, 3_000), cell(1.0, 1_000)]));
        assert!(!is_more(&[cell(3.0, 9_000), cell(1.0, 1_000)]), "longer");
        assert!(!is_more(&[cell(1.2, 1_200), cell(1.0, 1_000)]), "as often");
        assert!(!is_more(&[cell(1.0, 1_000), cell(0.1, 100)]), "seldom");
        assert!(!is_more(&[cell(3.0, 3_000), Cell::default()]), "unknown");
    }
}
