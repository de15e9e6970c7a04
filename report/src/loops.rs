//! Which calls a loop makes.

use std::collections::BTreeMap;

use crate::escape::control;
use crate::model::{CalleeKind, FtreeNode, Kind, RootCauseEntry};
use crate::names::short;

/// What a loop over short calls mostly calls; nothing where the cause is none, where no function has most of it, and where that is
/// not known.
pub(super) fn in_loop(cause: &RootCauseEntry, peak: u32, ftree: &FtreeNode) -> Option<String> {
    if cause.kind != Kind::Loop || cause.path.first() != Some(&ftree.name) {
        return None;
    }
    let node = at(ftree, cause.path.get(1..)?, peak)?;
    let mut called: BTreeMap<&str, Called> = BTreeMap::new();
    for child in &node.children {
        let is_call = matches!(child.kind, CalleeKind::Function | CalleeKind::Syscall);
        if let (true, Some(seen)) = (is_call, child.peaks.get(&peak)) {
            let of = called.entry(&child.name).or_default();
            of.time = of.time.saturating_add(seen.sum);
            of.count = of.count.saturating_add(seen.count);
            of.ops = of.ops.max(seen.ops);
        }
    }
    let all = called
        .values()
        .fold(0_u64, |all, of| all.saturating_add(of.time));
    let (name, most) = called.into_iter().max_by_key(|(_, of)| of.time)?;
    let each = most.count as f64 / most.ops.max(1) as f64;
    (most.time > all / 2 && each >= FEWEST).then(|| {
        let name = short(name);
        format!("mostly calls of {}, {each:.0} in an op", control(&name))
    })
}

/// Fewer calls in an op are not worth a word.
const FEWEST: f64 = 2.0;

/// All calls of one function in a loop.
#[derive(Default)]
struct Called {
    time: u64,
    count: u64,
    ops: u64,
}

/// The call of this path that is on a root-cause path of the peak.
fn at<'a>(node: &'a FtreeNode, path: &[String], peak: u32) -> Option<&'a FtreeNode> {
    let Some((name, below)) = path.split_first() else {
        return Some(node);
    };
    let is_on = |child: &&FtreeNode| child.name == *name && child.root_cause_of.contains(&peak);
    let mut on = node.children.iter().filter(is_on);
    on.find_map(|child| at(child, below, peak))
}
