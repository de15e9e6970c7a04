//! From the ftree to the probes: which sites the target is to carry, and what a call through each is.

use std::collections::{BTreeMap, BTreeSet};

use darc_analysis::{Callee, Fnode, FnodeId, Ftree, SiteId};
use darc_disasm::CallSite;
use darc_process::code::Scanned;
use darc_process::modules::{CodeRef, Modules};
use darc_process::plt::Destination;
use darc_process::{Process, ProcessError};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{EngineKind, Refused};
use darc_tracer::plan::{Edge, Plan, PlannedFunction};

use crate::session::catalog::{Catalog, Reach};
use crate::session::descent::caveats;
use crate::session::descent::expansion::{Passage, passage};
use crate::session::descent::goroutines::NOT_TOLD;
use crate::session::descent::investigation::Investigation;

/// What planning looks things up in.
pub struct Sources<'a> {
    /// The files, where they lie, and their code.
    pub process: &'a Process<'a>,
    /// What the ids stand for.
    pub catalog: &'a Catalog,
    /// f0.
    pub f0: CodeRef,
}

impl Sources<'_> {
    /// Where the function of an fnode begins, behind any PLT stub.
    ///
    /// # Errors
    /// Why that cannot be told, for people.
    pub fn entry(&self, fnode: &Fnode) -> Result<TargetAddr, String> {
        match self.destination(fnode)? {
            Destination::Known(entry) | Destination::Expected(entry) => Ok(entry),
            Destination::Unbound => {
                Err("which function it is will be known after its first call".to_owned())
            }
        }
    }

    /// What is behind the PLT stub of an fnode's function, or the function itself where there is none.
    ///
    /// # Errors
    /// Why there is no such function in the process, for people.
    pub fn destination(&self, fnode: &Fnode) -> Result<Destination, String> {
        let place = match fnode.callee {
            _ if fnode.id == FnodeId::ROOT => self.f0,
            Callee::Function(callee) => self.catalog.callee_at(callee),
            Callee::Syscall(_) => return Err("it is in the kernel".to_owned()),
            Callee::Unknown => return Err("which function it is was not seen".to_owned()),
            Callee::Absence(_) => return Err("it is no function".to_owned()),
        };
        self.process.destination(place)
    }

    /// The function of an fnode, scanned.
    ///
    /// # Errors
    /// Why its code cannot be had.
    pub fn scan(&self, fnode: &Fnode) -> Result<std::sync::Arc<Scanned>, String> {
        self.process.scan(self.entry(fnode)?)
    }
}

/// A plan, and what it has to do without for now.
pub struct Planned {
    /// What can have its probes.
    pub plan: Plan,
    /// Fnodes of which calls have none, since the function is known only when it has been called.
    pub unplaced: BTreeSet<FnodeId>,
    /// Sites that must not be measured, each with the reason: an earlier run, with another engine, may have measured them.
    pub refused: BTreeMap<SiteId, String>,
}

/// The plan for the fnodes whose probes are needed, as far as their code is loaded: everything but f0.
#[must_use]
pub fn plan(
    ftree: &Ftree,
    needed: impl Iterator<Item = FnodeId>,
    sources: &Sources<'_>,
) -> Planned {
    let modules = sources.process.modules();
    let mut plan = sources.process.hooks();
    let mut unplaced = BTreeSet::new();
    let mut refused = BTreeMap::new();
    let mut expected: BTreeMap<TargetAddr, BTreeSet<FnodeId>> = BTreeMap::new();
    let mut wanted: BTreeMap<TargetAddr, BTreeSet<SiteId>> = BTreeMap::new();
    for id in needed {
        let child = ftree.fnode(id);
        let (Some(parent), Some(site)) = (child.parent, child.site) else {
            continue;
        };
        let entry = match sources.destination(ftree.fnode(parent)) {
            Ok(Destination::Known(entry)) => entry,
            Ok(Destination::Expected(entry)) => {
                expected.entry(entry).or_default().insert(parent);
                entry
            }
            Ok(Destination::Unbound) => {
                unplaced.insert(parent);
                continue;
            }
            Err(_) => continue,
        };
        let (_, reach) = sources.catalog.site_at(site);
        let target = match (reach, child.callee) {
            (Reach::One, _) | (Reach::Any, Callee::Unknown) => None,
            (Reach::Any, Callee::Function(callee)) => {
                // A target that is not loaded in this process cannot be called either.
                let Some(target) = modules.locate(sources.catalog.callee_at(callee)) else {
                    continue;
                };
                Some(target)
            }
            (Reach::Any, Callee::Absence(_)) => continue,
            (Reach::Any, Callee::Syscall(number)) => number.map(|number| TargetAddr(number.into())),
        };
        plan.edges.push(Edge {
            parent,
            site,
            target,
            child: id,
        });
        wanted.entry(entry).or_default().insert(site);
    }
    for (entry, ids) in wanted {
        let mut doubtful = expected.remove(&entry).unwrap_or_default();
        let Ok(scanned) = sources.process.scan(entry) else {
            unplaced.append(&mut doubtful);
            continue;
        };
        let all = ids.len();
        let mut sites: Vec<(SiteId, CallSite)> = ids
            .into_iter()
            .filter_map(|id| {
                let addr = modules.locate(sources.catalog.site_at(id).0)?;
                let site = scanned.sites.iter().find(|site| site.addr == addr.0)?;
                Some((id, *site))
            })
            .collect();
        if sites.len() < all {
            unplaced.append(&mut doubtful);
        }
        let mut seen_through = BTreeSet::new();
        sites.retain(|(id, site)| match passage(site, sources.process) {
            Ok(Passage::Returns) => true,
            Ok(Passage::LooksBack) => seen_through.insert(*id),
            Err(reason) => {
                refused.insert(*id, reason);
                false
            }
        });
        plan.functions.push(PlannedFunction {
            code: std::sync::Arc::clone(&scanned.code),
            sites,
            seen_through,
        });
    }
    plan.edges.retain(|edge| !refused.contains_key(&edge.site));
    Planned {
        plan,
        unplaced,
        refused,
    }
}

/// Brings the target's probes to the plan. What is refused counts as skipped, unless nothing can be measured without it.
/// The call sites among it.
///
/// # Errors
/// When that is so, or the target cannot be instrumented at all.
pub fn apply(
    plan: &Plan,
    process: &mut Process<'_>,
    investigation: &mut Investigation,
    catalog: &Catalog,
) -> Result<BTreeSet<SiteId>, ProcessError> {
    let sites = plan.functions.iter().map(|function| function.sites.len());
    investigation.sites = investigation.sites.max(sites.sum());
    let refused = process.apply(plan)?;
    for warning in process.take_warnings() {
        investigation.warn(warning);
    }
    let mut of_sites = BTreeSet::new();
    for Refused { addr, reason } in refused {
        let place = process.modules().place(addr);
        of_sites.extend(place.and_then(|place| catalog.known_site(place)));
        match indispensable(plan, addr, process.modules()) {
            Some(name) => {
                let next = match process.engine().kind() {
                    _ if process.follows_goroutines() => beside(&reason, process, investigation),
                    EngineKind::Jump if !plan.hides_nothing() => {
                        "try --engine int3, or a function that calls it".to_owned()
                    }
                    _ => "try a function that calls it".to_owned(),
                };
                return Err(ProcessError::Unsuitable(format!(
                    "{name} cannot be instrumented: {reason}; {next}"
                )));
            }
            None => {
                let statuses = plan.statuses.as_ref();
                if statuses.is_some_and(|code| code.bytes_at(addr.0, 1).is_some()) {
                    investigation.warn(format!("{NOT_TOLD}: {reason}"));
                }
                if let Some(place) = place {
                    investigation.skip(place, reason);
                }
            }
        }
    }
    Ok(of_sites)
}

/// What to try in place of a Go function that is refused for a reason.
fn beside(reason: &str, process: &Process<'_>, investigation: &Investigation) -> String {
    if !reason.ends_with("does not return") {
        return "try a function that calls it".to_owned();
    }
    match caveats::callees(process, investigation) {
        none if none.is_empty() => "try a function that it calls".to_owned(),
        some => format!("try a function that it calls: {}", some.join(" or ")),
    }
}

/// The name of the function that begins at `addr`, if the plan comes to nothing without it.
fn indispensable(plan: &Plan, addr: TargetAddr, modules: &Modules) -> Option<String> {
    if plan.f0.as_ref().is_some_and(|f0| f0.entry() == addr.0) {
        return Some("f0".to_owned());
    }
    let path = plan.asynchronous.as_ref()?;
    let mut ends = path.codes().map(|code| code.entry());
    ends.any(|entry| entry == addr.0).then(|| {
        let place = modules.place(addr);
        place.map_or_else(|| addr.to_string(), |place| modules.name(place))
    })
}
