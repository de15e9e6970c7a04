//! Functions that are known only when they have been called: what the dynamic linker binds lazily, and no name tells
//! before. Until then their calls have no probes, and no op decides where their time goes.

use std::collections::BTreeSet;

use darc_analysis::{FnodeId, Request, Tsc};
use darc_process::plt::Destination;
use darc_process::{Process, ProcessError};

use crate::session::Session;
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::Investigation;

/// What became of the request to measure the calls of an fnode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expansion {
    /// They are its children.
    Done,
    /// It is asked again when the function is known.
    AfterFirstCall,
}

/// What waits for the first calls of functions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unbound {
    /// To be expanded.
    requests: Vec<FnodeId>,
    /// Without all of their probes, by the newest plan.
    unplaced: BTreeSet<FnodeId>,
    /// Those for which ops do not count.
    left_out: BTreeSet<FnodeId>,
}

impl Unbound {
    /// The requests that have waited.
    pub fn take(&mut self) -> Vec<Request> {
        self.requests.drain(..).map(Request::Expand).collect()
    }

    /// A request is to wait.
    pub fn expand_later(&mut self, fnode: FnodeId) {
        self.requests.push(fnode);
    }

    /// A plan was made that has not all the probes of these.
    pub fn planned(&mut self, unplaced: BTreeSet<FnodeId>) {
        self.unplaced = unplaced;
    }
}

impl Investigation {
    /// The target has the probes of the newest plan since `now`.
    pub fn account_for_unplaced(&mut self, now: Tsc) {
        let Unbound {
            unplaced, left_out, ..
        } = &mut self.unbound;
        for &fnode in left_out.difference(unplaced) {
            self.analysis.placed(fnode, now);
        }
        for &fnode in unplaced.iter() {
            self.analysis.unplaced(fnode);
        }
        left_out.clone_from(unplaced);
    }

    /// Answers the request to expand an fnode: its calls have had their probes since `now`, if they could be placed.
    pub fn expanded(&mut self, fnode: FnodeId, now: Tsc) {
        self.analysis.expanded(fnode, now);
        if self.unbound.unplaced.contains(&fnode) {
            self.analysis.unplaced(fnode);
        }
    }
}

impl Session<'_> {
    /// Sets the probes that have waited for a function's first call, once it has come.
    pub(super) fn place_what_is_bound(&mut self) -> Result<(), ProcessError> {
        let serving = self.serving.iter().map(|serving| &serving.investigation);
        let mut both = std::iter::once(&*self.investigation).chain(serving);
        match both.any(|investigation| investigation.is_one_bound(&self.process, self.catalog)) {
            true => self.instrument(),
            false => Ok(()),
        }
    }
}

impl Investigation {
    fn is_one_bound(&self, process: &Process<'_>, catalog: &Catalog) -> bool {
        let unplaced = &self.unbound.unplaced;
        let sources = self.sources(process, catalog);
        let Some(sources) = sources.filter(|_| !unplaced.is_empty()) else {
            return false;
        };
        let ftree = self.analysis.ftree();
        unplaced.iter().any(|&fnode| {
            let destination = sources.destination(ftree.fnode(fnode));
            matches!(destination, Ok(Destination::Known(_)))
        })
    }
}

#[cfg(test)]
mod tests {
    use darc_analysis::{Callee, CalleeId, Params};
    use darc_record::{Arguments, Op, SiteId, Ticks, Touched};
    use darc_symbols::NameSpec;

    use super::*;

    fn op(at: u64, fnode: FnodeId) -> Op {
        Op {
            arguments: Arguments::default(),
            tid: 1,
            start: Tsc(1_000 * at),
            end: Tsc(1_000 * at + 1_000),
            latency: Ticks(1_000),
            touched: vec![Touched {
                fnode,
                max: Ticks(900),
                max_start: Tsc(1_000 * at),
                long: Ticks(0),
                sum: Ticks(900),
                count: 1,
            }],
        }
    }

    #[test]
    fn ops_do_not_count_until_the_probes_are_there() {
        let spec = NameSpec::parse("serve").unwrap();
        let params = Params {
            start_ops: 1,
            decision_ops: 5,
            ..Params::default()
        };
        let mut investigation = Investigation::new(spec, params);
        for at in 0..10 {
            investigation.analysis.op(&op(at, FnodeId(99)));
        }
        let asked = investigation.analysis.requests();
        assert!(asked.contains(&Request::Expand(FnodeId::ROOT)));
        let callee = Callee::Function(CalleeId(1));
        let analysis = &mut investigation.analysis;
        let child = analysis.add_child(FnodeId::ROOT, SiteId(1), callee);
        let maxcount = |investigation: &Investigation| {
            let ftree = investigation.analysis.ftree();
            ftree.fnode(child).record(1).maxcount
        };
        // The plan has not all of its probes, also where this is known before the answer to the request.
        let root = BTreeSet::from([FnodeId::ROOT]);
        investigation.unbound.planned(root);
        investigation.account_for_unplaced(Tsc(50_000));
        investigation.expanded(FnodeId::ROOT, Tsc(50_000));
        for at in 100..140 {
            investigation.analysis.op(&op(at, child));
        }
        assert_eq!(maxcount(&investigation), 0);
        investigation.unbound.planned(BTreeSet::new());
        investigation.account_for_unplaced(Tsc(500_000));
        for at in (400..440).chain(500..503) {
            investigation.analysis.op(&op(at, child));
        }
        assert_eq!(maxcount(&investigation), 3);
    }

    #[test]
    fn requests_wait_and_are_asked_once() {
        let mut unbound = Unbound::default();
        unbound.expand_later(FnodeId(3));
        assert_eq!(unbound.take(), [Request::Expand(FnodeId(3))]);
        assert_eq!(unbound.take(), []);
    }
}
