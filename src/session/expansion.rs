//! From a function's code to the calls that can be measured in it.

use std::collections::BTreeMap;

use darc_disasm::{Cfg, FunctionCode, Loops, SiteKind, Target};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;

use darc_analysis::{Callee, SiteId};

use super::catalog::Reach;
use super::code::{CodeCache, Unpatched};
use super::investigation::Investigation;
use super::return_address;

/// The calls of the function that begins at `entry`. Those that cannot be measured are noted as skipped.
///
/// # Errors
/// Why its code cannot be had, for people.
pub fn calls(
    entry: TargetAddr,
    investigation: &mut Investigation,
    code: &mut CodeCache,
    engine: &dyn Engine,
) -> Result<Vec<(SiteId, Callee)>, String> {
    let scanned = code.scan(entry, &investigation.modules, engine)?;
    let mut calls = Vec::new();
    for site in &scanned.sites {
        if let Some(reason) = return_address::is_used_at(&investigation.modules, site) {
            investigation.skip(TargetAddr(site.addr), reason);
            continue;
        }
        let Investigation {
            catalog, modules, ..
        } = &mut *investigation;
        let Some(at) = modules.place(TargetAddr(site.addr)) else {
            continue;
        };
        let id = catalog.site(at, Reach::of(&site.kind));
        let callee = match &site.kind {
            SiteKind::Syscall {
                number: Some(number),
            } => Callee::Syscall(Some(*number)),
            SiteKind::Call(Target::Direct(to))
            | SiteKind::TailJump {
                target: Target::Direct(to),
                ..
            } => match modules.place(TargetAddr(*to)) {
                Some(place) => Callee::Function(catalog.callee(place)),
                None => continue,
            },
            _ => Callee::Unknown,
        };
        calls.push((id, callee));
    }
    let sites = scanned.sites.len() + scanned.skipped.len();
    if let Some(function) = investigation.modules.place(entry) {
        investigation.call_sites.insert(function, sites as u64);
    }
    tracing::debug!(
        function = %entry,
        sites,
        measurable = calls.len(),
        "looked for calls"
    );
    for skipped in &scanned.skipped {
        investigation.skip(TargetAddr(skipped.addr), skipped.reason.to_string());
    }
    Ok(calls)
}

/// Divides calls of a function by its blocks: first those outside of all loops, then those of each loop, outer loops first;
/// no portion has more than `most`. `addr` tells where a site is.
#[must_use]
pub fn by_blocks(
    code: &FunctionCode,
    calls: Vec<(SiteId, Callee)>,
    most: usize,
    engine: &dyn Engine,
    addr: impl Fn(SiteId) -> Option<u64>,
) -> Vec<Vec<(SiteId, Callee)>> {
    let cfg = Cfg::build(code, &Unpatched(engine));
    let loops = Loops::new(&cfg);
    let mut groups: BTreeMap<Option<usize>, Vec<(SiteId, Callee)>> = BTreeMap::new();
    for (site, callee) in calls {
        let block = addr(site).and_then(|addr| cfg.block_of(addr));
        let inside = block.and_then(|block| loops.innermost(block));
        groups.entry(inside).or_default().push((site, callee));
    }
    let chunks = groups.values().flat_map(|group| group.chunks(most.max(1)));
    chunks.map(<[_]>::to_vec).collect()
}
