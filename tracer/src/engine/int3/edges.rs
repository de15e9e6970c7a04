//! The ftree as the probes need it: which fnode a call through a site is.

use std::collections::{HashMap, HashSet};

use crate::addr::TargetAddr;
use crate::engine::{NewTarget, Sink};
use crate::plan::Edge;
use darc_record::{FnodeId, SiteId};

/// The edges that leave one fnode through one site.
#[derive(Clone, Default, Debug)]
struct Exits {
    any_target: Option<FnodeId>,
    by_target: HashMap<TargetAddr, FnodeId>,
    /// Targets that have no fnode of their own.
    declined: HashMap<TargetAddr, NewTarget>,
}

/// Look-up from (fnode, site, target) to the child fnode.
#[derive(Default, Debug)]
pub struct Edges {
    exits: HashMap<(FnodeId, SiteId), Exits>,
    expanded: HashSet<FnodeId>,
}

impl Edges {
    /// Indexes the edges of a plan.
    #[must_use]
    pub fn new(edges: &[Edge]) -> Edges {
        let mut index = Edges::default();
        for edge in edges {
            let exits = index.exits.entry((edge.parent, edge.site)).or_default();
            match edge.target {
                Some(target) => drop(exits.by_target.insert(target, edge.child)),
                None => exits.any_target = Some(edge.child),
            }
            index.expanded.insert(edge.parent);
        }
        index
    }

    /// Whether sites inside this fnode are measured.
    #[must_use]
    pub fn is_expanded(&self, fnode: FnodeId) -> bool {
        self.expanded.contains(&fnode)
    }

    /// The fnode of a call that has one possible callee.
    #[must_use]
    pub fn child(&self, parent: FnodeId, site: SiteId) -> Option<FnodeId> {
        self.exits.get(&(parent, site))?.any_target
    }

    /// The fnode of a call whose callee is known only now; a new callee is announced to the sink.
    pub fn child_of_target(
        &mut self,
        parent: FnodeId,
        site: SiteId,
        target: TargetAddr,
        sink: &mut dyn Sink,
    ) -> Option<FnodeId> {
        let exits = self.exits.get_mut(&(parent, site))?;
        if let Some(&child) = exits.by_target.get(&target) {
            return Some(child);
        }
        let answer = exits
            .declined
            .entry(target)
            .or_insert_with(|| sink.new_target(parent, site, target));
        match *answer {
            NewTarget::Fnode(child) => {
                exits.declined.remove(&target);
                exits.by_target.insert(target, child);
                Some(child)
            }
            NewTarget::AnyTarget => exits.any_target,
            NewTarget::Unmeasured => None,
        }
    }
}
