//! The calls of f0 that are in progress, read from the stacks.

use std::collections::BTreeMap;

use darc_analysis::Callee;
use darc_record::FnodeId;
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;
use darc_tracer::stacks;

use super::Survey;
use crate::session::SessionError;
use crate::session::code::Scanned;
use crate::session::investigation::Investigation;
use crate::session::modules::CodeRef;
use crate::session::stacks::{StackFrame, Unwinder};

impl Survey<'_> {
    /// Finds the frames of f0 and of what it has called on the stacks, and makes them running fnodes.
    pub(super) fn find_frames(&mut self, engine: &dyn Engine) -> Result<(), SessionError> {
        let Ok(f0) = self.investigation.find_f0() else {
            return Ok(());
        };
        let Ok((stacks, pause)) = stacks::snapshot(self.pid) else {
            return Ok(());
        };
        self.investigation.counters.pauses.push(pause);
        let below: Vec<Vec<StackFrame>> = {
            let mut unwinder = Unwinder::new(&self.investigation.modules);
            stacks
                .iter()
                .filter_map(|stack| {
                    below_f0(unwinder.frames(&self.investigation.modules, stack), f0)
                })
                .collect()
        };
        for frames in below {
            self.follow(engine, &frames);
        }
        Ok(())
    }

    /// Follows the frames from f0 (the first) inwards, as far as each was called by a known site.
    fn follow(&mut self, engine: &dyn Engine, frames: &[StackFrame]) {
        let mut fnode = FnodeId::ROOT;
        for pair in frames.windows(2) {
            let [caller, callee] = pair else { continue };
            let Ok(entry) = self.entry(engine, fnode) else {
                return;
            };
            let Ok(scanned) = self.code.scan(entry, &self.investigation.modules, engine) else {
                return;
            };
            self.expand(engine, fnode);
            let Some(site) = site_before(&scanned, caller.at) else {
                return;
            };
            let Some(place) = self.investigation.modules.place(TargetAddr(site)) else {
                return;
            };
            let catalog = &mut self.investigation.catalog;
            let Some(id) = catalog.known_site(place) else {
                return;
            };
            let function = Callee::Function(catalog.callee(callee.function));
            // A direct site that names another function reached this one by a jump.
            let known = self.totals.ftree().fnode(fnode).children.clone();
            let direct = known.iter().find(|&&child| {
                let child = self.totals.ftree().fnode(child);
                child.site == Some(id) && child.callee != Callee::Unknown
            });
            fnode = match direct {
                Some(&child) => {
                    let through = self.entry(engine, child).ok();
                    let actual = self.investigation.modules.locate(callee.function);
                    if through.is_none() || through != actual {
                        return;
                    }
                    child
                }
                None => self.totals.add_child(fnode, id, function),
            };
            self.totals.set_running(fnode);
        }
    }
}

/// The frames from the outermost one of f0 inwards.
fn below_f0(mut frames: Vec<StackFrame>, f0: CodeRef) -> Option<Vec<StackFrame>> {
    let at = frames.iter().rposition(|frame| frame.function == f0)?;
    frames.truncate(at + 1);
    frames.reverse();
    Some(frames)
}

/// The call site behind which `return_to` is.
fn site_before(scanned: &Scanned, return_to: TargetAddr) -> Option<u64> {
    let site = scanned
        .sites
        .iter()
        .find(|site| site.next() == return_to.0)?;
    Some(site.addr)
}

/// Whether f0 is on a stack of the process: by thread, the stack pointer of its outermost call there.
#[must_use]
pub fn calls_in_progress(pid: i32, investigation: &Investigation) -> BTreeMap<i32, u64> {
    let (Some(f0), Ok((stacks, _))) = (investigation.f0, stacks::snapshot(pid)) else {
        return BTreeMap::new();
    };
    let mut unwinder = Unwinder::new(&investigation.modules);
    let calls = stacks.iter().filter_map(|stack| {
        let frames = below_f0(unwinder.frames(&investigation.modules, stack), f0)?;
        Some((stack.tid, frames.first()?.sp))
    });
    calls.collect()
}
