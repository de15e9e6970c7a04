//! From a function's code to the calls that can be measured in it.

use darc_disasm::{SiteKind, Target};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;

use crate::analysis::{Callee, SiteId};

use super::catalog::Reach;
use super::code::CodeCache;
use super::investigation::{Investigation, returns_twice};

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
        if let Some(name) = returning_twice(investigation, &site.kind) {
            let reason =
                format!("{name} remembers where it returns to, which a probe must not disturb");
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
    tracing::debug!(
        function = %entry,
        sites = scanned.sites.len() + scanned.skipped.len(),
        measurable = calls.len(),
        "looked for calls"
    );
    for skipped in &scanned.skipped {
        investigation.skip(TargetAddr(skipped.addr), skipped.reason.to_string());
    }
    Ok(calls)
}

/// The name of a directly called function that remembers its return address.
fn returning_twice(investigation: &Investigation, kind: &SiteKind) -> Option<String> {
    let (SiteKind::Call(Target::Direct(to))
    | SiteKind::TailJump {
        target: Target::Direct(to),
        ..
    }) = kind
    else {
        return None;
    };
    let place = investigation.modules.place(TargetAddr(*to))?;
    let name = investigation.naming().name(place);
    returns_twice(&name).then_some(name)
}
