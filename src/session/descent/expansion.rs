//! From a function's code to the calls that can be measured in it.

use std::collections::BTreeMap;

use darc_analysis::{Callee, SiteId};
use darc_disasm::{CallSite, Cfg, FunctionCode, Loops, Memory, Operand, SiteKind, Target};
use darc_process::code::Unpatched;
use darc_process::hooks::{self, OfUnwinder};
use darc_process::modules::Modules;
use darc_process::{Process, return_address};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::EngineKind;

use crate::session::catalog::{Catalog, Reach};
use crate::session::descent::investigation::Investigation;

/// The calls of a function.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Calls {
    /// Those that can be measured.
    pub measurable: Vec<(SiteId, Callee)>,
    /// The others.
    pub unmeasurable: Vec<(SiteId, Callee)>,
}

/// The calls of the function that begins at `entry`. Those that cannot be measured are noted as skipped.
///
/// # Errors
/// Why its code cannot be had, for people.
pub fn calls(
    entry: TargetAddr,
    process: &Process<'_>,
    catalog: &mut Catalog,
    investigation: &mut Investigation,
) -> Result<Calls, String> {
    let modules = process.modules();
    let place = modules.place(entry);
    let is_told_whole = match place.and_then(|place| hooks::of_unwinder(modules, place)) {
        Some(OfUnwinder::CallingBack) => {
            return Err("it belongs to the unwinder, and calls the program back".to_owned());
        }
        Some(OfUnwinder::ByItself) => true,
        None => is_provided_by_kernel(entry, modules) || process.is_opaque(entry),
    };
    if is_told_whole {
        return Ok(Calls::default());
    }
    let scanned = process.scan(entry)?;
    let mut calls = Calls::default();
    for site in &scanned.sites {
        let Some(at) = modules.place(TargetAddr(site.addr)) else {
            continue;
        };
        if matches!(site.kind, SiteKind::Call(Target::Direct(to)) if process.is_of_caller(TargetAddr(to)))
        {
            continue;
        }
        let id = catalog.site(at, Reach::of(&site.kind));
        let passage = passage(site, process);
        if let Err(reason) = &passage {
            investigation.skip(at, reason.clone());
        }
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
        match passage {
            Ok(Passage::Returns) => calls.measurable.push((id, callee)),
            Ok(Passage::LooksBack) => {
                calls.measurable.push((id, callee));
                // Known from the start, for what is met at run time is refused: nobody knows by then that this site hides nothing.
                let through = bound_at(site, process).and_then(|to| modules.place(to));
                let callee = through.map(|place| Callee::Function(catalog.callee(place)));
                calls.measurable.extend(callee.map(|callee| (id, callee)));
            }
            Err(_) => calls.unmeasurable.push((id, callee)),
        }
    }
    let sites = scanned.sites.len() + scanned.skipped.len();
    if let Some(function) = modules.place(entry) {
        investigation.call_sites.insert(function, sites as u64);
    }
    tracing::debug!(
        target: "descent",
        function = %entry,
        sites,
        measurable = calls.measurable.len(),
        "looked for calls"
    );
    for skipped in &scanned.skipped {
        if let Some(at) = modules.place(TargetAddr(skipped.addr)) {
            investigation.skip(at, skipped.reason.to_string());
            let site = catalog.site(at, Reach::Any);
            calls.unmeasurable.push((site, Callee::Unknown));
        }
    }
    Ok(calls)
}

/// What a site calls through a slot of the global offset table, which the linker has filled.
fn bound_at(site: &CallSite, process: &Process<'_>) -> Option<TargetAddr> {
    let SiteKind::Call(Target::Indirect(Operand::Memory(slot))) = site.kind else {
        return None;
    };
    let is_fixed = slot.base.is_none() && slot.index.is_none();
    let memory = Unpatched(process.engine());
    let bound = is_fixed.then(|| memory.read_u64(slot.displacement as u64));
    bound.flatten().map(TargetAddr)
}

/// What a site calls, as far as the address is concerned that it returns to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passage {
    /// It only returns there.
    Returns,
    /// It looks at it: that must stay the program's own.
    LooksBack,
}

/// How a site can be measured without harm to what it calls.
///
/// # Errors
/// Why it cannot be, for people.
pub fn passage(site: &CallSite, process: &Process<'_>) -> Result<Passage, String> {
    let is_left_alone = site.is_call() && process.engine().kind() == EngineKind::Jump;
    match return_address::is_used_at(process.modules(), site) {
        None => Ok(Passage::Returns),
        Some(used) if used.is_only_looked_at && is_left_alone => Ok(Passage::LooksBack),
        Some(used) => Err(used.why),
    }
}

/// Whether a function is the kernel's own code in the process (vdso(7)): it calls nothing of the program.
fn is_provided_by_kernel(entry: TargetAddr, modules: &Modules) -> bool {
    let place = modules.place(entry);
    place.is_some_and(|place| modules.get(place.module).path.starts_with("[v"))
}

/// Divides calls of a function by its blocks: first those outside of all loops, then those of each loop, outer loops first;
/// no batch has more than `most`. `addr` tells where a site is.
#[must_use]
pub fn by_blocks(
    code: &FunctionCode,
    calls: Vec<(SiteId, Callee)>,
    most: usize,
    process: &Process<'_>,
    addr: impl Fn(SiteId) -> Option<u64>,
) -> Vec<Vec<(SiteId, Callee)>> {
    let cfg = Cfg::build(code, &Unpatched(process.engine()));
    let loops = Loops::new(&cfg);
    let mut groups: BTreeMap<Option<usize>, Vec<(SiteId, Callee)>> = BTreeMap::new();
    for (site, callee) in calls {
        let block = addr(site).and_then(|addr| cfg.block_of(addr));
        let inside = block.and_then(|block| loops.innermost(block));
        groups.entry(inside).or_default().push((site, callee));
    }
    let chunks = groups.values().flat_map(|group| chunks(group, most));
    chunks.collect()
}

/// Divides calls into batches of `most` at most, with all calls of a site in one.
#[must_use]
pub fn chunks(calls: &[(SiteId, Callee)], most: usize) -> Vec<Vec<(SiteId, Callee)>> {
    let mut chunks: Vec<Vec<(SiteId, Callee)>> = Vec::new();
    for site in calls.chunk_by(|one, next| one.0 == next.0) {
        match chunks.last_mut() {
            Some(last) if last.len() + site.len() <= most => last.extend(site),
            _ => chunks.push(site.to_vec()),
        }
    }
    chunks
}
