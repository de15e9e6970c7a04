//! What a survey found: where the time goes, and the functions that are called often enough to be analysed.

use std::collections::BTreeSet;

use darc_analysis::totals::{Doing, Share, ShareOf, Totals};
use darc_disasm::SiteKind;
use darc_process::Process;
use darc_process::modules::CodeRef;
use darc_record::FnodeId;
use darc_report::assemble::Names as _;
use darc_report::model::{self, TimePart, TimeTable, Whose};
use darc_tracer::addr::TargetAddr;

use crate::session::catalog::Naming;
use crate::session::descent::investigation::Investigation;
use crate::session::survey::Division;
use crate::session::survey::waiting::doing;

/// A function that the descent arrived at.
#[derive(Clone, PartialEq, Debug)]
pub struct Arrival {
    /// The functions' names from f0 down to it.
    pub path: Vec<String>,
    /// The function.
    pub function: CodeRef,
    /// Where those of its calls return to that were found on this path; empty when that cannot be told.
    pub callers: Vec<CodeRef>,
    /// Its part of the time, 0 to 1.
    pub share: f64,
    /// How often it was called while the descent looked.
    pub calls: u64,
}

/// With more callers in one function they are not told apart: every call compares with all.
const MOST_CALLERS: usize = 16;

impl Division<'_> {
    /// The functions that take much of the time in many calls, the largest share first; those last in which threads may only wait for
    /// something to do.
    pub(super) fn arrive(&self, process: &Process<'_>) -> Vec<Arrival> {
        let naming = (self.investigation).naming(process.modules(), self.catalog);
        let doing = |share: &Share| doing(naming, self.totals, share, &self.seen_to_wait);
        let mut frequent = self.totals.to_analyse(&doing);
        frequent.sort_by_key(|share| doing(share) != Doing::Work);
        let mut arrivals = Vec::new();
        for share in frequent {
            let Ok(entry) = self.entry(process, share.fnodes[0]) else {
                continue;
            };
            let Some(function) = process.modules().place(entry) else {
                continue;
            };
            arrivals.push(Arrival {
                path: path(naming, self.totals, share.fnodes[0]),
                function,
                callers: self.callers(process, &share.fnodes).unwrap_or_default(),
                share: share.share,
                calls: share.total.calls,
            });
        }
        arrivals
    }

    /// Where the calls return to that these fnodes are; `None` when one of them is a jump.
    fn callers(&self, process: &Process<'_>, fnodes: &[FnodeId]) -> Option<Vec<CodeRef>> {
        let mut callers = Vec::new();
        for &fnode in fnodes {
            let known = self.totals.ftree().fnode(fnode);
            let (parent, site) = (known.parent?, known.site?);
            let scanned = process.scan(self.entry(process, parent).ok()?).ok()?;
            let (at, _) = self.catalog.site_at(site);
            let addr = process.modules().locate(at)?;
            let call = scanned.sites.iter().find(|site| site.addr == addr.0)?;
            let SiteKind::Call(_) = call.kind else {
                return None;
            };
            callers.push(process.modules().place(TargetAddr(call.next()))?);
        }
        (callers.len() <= MOST_CALLERS).then_some(callers)
    }
}

/// Threads that do something for a smaller part of the time do next to nothing.
const IDLE: f64 = 0.05;

/// Whether the threads were seen to do next to nothing but wait for something to do.
#[must_use]
pub fn is_idle(naming: Naming<'_>, totals: &Totals) -> bool {
    let (windows, time) = totals.so_far();
    windows > 0 && (work(naming, totals) as f64) < time.0 as f64 * IDLE
}

/// The time in which threads did not wait for something to do. Who may wait for a disk or a peer is of interest.
fn work(naming: Naming<'_>, totals: &Totals) -> u64 {
    let doing = |share: &Share| match doing(naming, totals, share, &BTreeSet::new()) {
        Doing::Waits => Doing::Waits,
        Doing::Work | Doing::MayWait | Doing::SeenToWait => Doing::Work,
    };
    totals.work(&doing).0
}

/// The function that takes most of what is not waiting itself, and its part of that, if one does.
#[must_use]
pub fn itself(naming: Naming<'_>, totals: &Totals) -> Option<(String, f64)> {
    const MOST: f64 = 0.5;
    let shares = totals.shares().into_iter();
    let mut own = shares.filter(|share| share.of == ShareOf::Itself);
    let largest = own.next()?;
    let part = largest.total.time.0 as f64 / work(naming, totals).max(1) as f64;
    let function = path(naming, totals, largest.fnodes[0]).pop()?;
    (part >= MOST).then(|| (function, part.min(1.0)))
}

/// Where the time of a round went, with names.
#[must_use]
pub fn time_table(
    naming: Naming<'_>,
    totals: &Totals,
    survey: model::Survey,
    investigation: &Investigation,
) -> TimeTable {
    let (windows, total) = totals.so_far();
    let nobody = BTreeSet::new();
    let part = |share: Share| {
        let fnode = share.fnodes[0];
        let path = path(naming, totals, fnode);
        let waits = doing(naming, totals, &share, &nobody) == Doing::Waits;
        TimePart {
            whose: match share.of {
                ShareOf::Itself => Whose::Itself,
                _ if waits => Whose::Waiting,
                ShareOf::Frequent | ShareOf::Rare => Whose::Callee,
            },
            path,
            share_of_time: share.share.min(1.0),
            time: share.total.time.0,
            calls: share.total.calls,
            max: share.total.max.0,
            reason: totals.reason(fnode).map(str::to_owned),
        }
    };
    TimeTable {
        windows,
        total: total.0,
        survey,
        share_of_cpu: investigation.share_of_cpu,
        not_running: investigation.not_running,
        parts: totals.shares().into_iter().map(part).collect(),
    }
}

/// The functions' names from f0 down to an fnode.
pub(super) fn path(naming: Naming<'_>, totals: &Totals, fnode: FnodeId) -> Vec<String> {
    let ftree = totals.ftree();
    naming.path(ftree, &ftree.path(fnode))
}
