//! From the windows that an engine measured to the totals.

use darc_analysis::Callee;
use darc_analysis::totals::Totals;
use darc_process::modules::Modules;
use darc_record::{FnodeId, Op, SiteId};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{Counted, NewTarget, Sink};

use crate::session::catalog::Catalog;
use crate::session::descent::investigation::{Learnt, learn};
use crate::session::survey::numbers::Numbers;

/// Takes windows to the totals.
pub(super) struct Windows<'a> {
    pub(super) modules: &'a Modules,
    pub(super) catalog: &'a mut Catalog,
    pub(super) totals: &'a mut Totals,
    pub(super) numbers: &'a mut Numbers,
}

impl Sink for Windows<'_> {
    fn op(&mut self, op: Op) {
        let tid = self.numbers.here(op.tid);
        self.totals.window(&Op { tid, ..op });
    }

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, parent: FnodeId, site: SiteId, target: TargetAddr) -> NewTarget {
        let learnt = learn(self.modules, self.totals.ftree(), parent, site, target);
        let callee = match learnt {
            Learnt::Callee(place) => Callee::Function(self.catalog.callee(place)),
            Learnt::Syscall(number) => Callee::Syscall(Some(number)),
            Learnt::Unmeasured(..) => return NewTarget::Unmeasured,
            Learnt::Other(answer) => return answer,
        };
        NewTarget::Fnode(self.totals.add_child(parent, site, callee))
    }
}
