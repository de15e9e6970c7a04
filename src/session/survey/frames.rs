//! The calls of f0 that are in progress, read from the stacks.

use std::collections::{BTreeMap, BTreeSet};

use darc_analysis::Callee;
use darc_process::Process;
use darc_process::code::Scanned;
use darc_process::modules::{CodeRef, Modules};
use darc_process::stacks::StackFrame;
use darc_record::FnodeId;
use darc_tracer::addr::TargetAddr;

use crate::session::descent::investigation::Investigation;
use crate::session::survey::Division;
use crate::session::survey::began::first;
use crate::session::survey::stacks::Stacks;
use crate::session::survey::waiting::{is_waiting_call, is_waiting_function, may_wait};

impl Division<'_> {
    /// Finds the frames of f0 and of what it has called on the stacks, and makes them running fnodes.
    pub(super) fn find_frames(&mut self, process: &Process<'_>, f0: CodeRef) {
        let modules = process.modules();
        let read = Stacks::new(modules).read(process.pid(), self.investigation, |_| true);
        let Some((stacks, pause)) = read else {
            return;
        };
        self.investigation.counters.pauses.push(pause);
        for stack in stacks {
            if let Some(frames) = below_f0(stack.frames, f0) {
                self.follow(process, stack.tid, &frames);
                let function = |frame: &StackFrame| frame.function;
                let waits = |frame: &StackFrame| is_waiting_function(modules, frame.function);
                // What a function that waits is made of says nothing of those who call it.
                let waits = frames.iter().position(waits);
                // Where the functions have no names the kernel tells.
                let is_in_call = || stack.call.is_some_and(is_waiting_call);
                let waits = waits.or_else(|| is_in_call().then(|| frames.len().checked_sub(1))?);
                if let Some(waits) = waits {
                    let outwards = frames[..=waits].iter().map(function);
                    self.seen_to_wait.extend(outwards);
                }
                let innermost = frames.last().map(|frame| modules.name(frame.function));
                if waits.is_some() || innermost.is_some_and(|name| may_wait(&name)) {
                    self.idle.insert(stack.tid);
                }
            }
        }
    }

    /// Follows the frames from f0 (the first) inwards, as far as each was called by a known site.
    fn follow(&mut self, process: &Process<'_>, tid: i32, frames: &[StackFrame]) {
        let mut fnode = FnodeId::ROOT;
        self.totals.set_running(tid, fnode);
        for pair in frames.windows(2) {
            let [caller, callee] = pair else { continue };
            if caller.called_generated {
                return;
            }
            let scanned = self.entry(process, fnode);
            let Ok(scanned) = scanned.and_then(|entry| process.scan(entry)) else {
                return;
            };
            self.expand(process, fnode);
            let Some(site) = site_before(&scanned, caller.at) else {
                return;
            };
            let Some(place) = process.modules().place(TargetAddr(site)) else {
                return;
            };
            let catalog = &mut *self.catalog;
            let Some(id) = catalog.known_site(place) else {
                return;
            };
            let function = Callee::Function(catalog.callee(callee.function));
            // A direct site that names another function reached this one by a jump. One that names nobody may have called
            // another function on another stack.
            let known = self.totals.ftree().fnode(fnode).children.clone();
            let at_site = |callee: Callee| {
                let is = |child: &&FnodeId| {
                    let child = self.totals.ftree().fnode(**child);
                    child.site == Some(id) && child.callee == callee
                };
                known.iter().find(is)
            };
            let direct = match at_site(Callee::Unknown) {
                Some(_) => at_site(function),
                None => known
                    .iter()
                    .find(|&&child| self.totals.ftree().fnode(child).site == Some(id)),
            };
            fnode = match direct {
                Some(&child) => {
                    let through = self.entry(process, child).ok();
                    let actual = process.modules().locate(callee.function);
                    match through {
                        Some(_) if through == actual => child,
                        // What was called has gone on there by a jump.
                        Some(_) => {
                            match self.behind_jumps(process, child, callee.function, JUMPS) {
                                Some(child) => child,
                                None => return,
                            }
                        }
                        None => return,
                    }
                }
                None => self.totals.add_child(fnode, id, function),
            };
            self.totals.set_running(tid, fnode);
        }
    }

    /// The call of `actual` at which the function of `through` ends, or one that it goes on in, after so many jumps at most: by a
    /// jump that names it, or by the only one that names nobody.
    fn behind_jumps(
        &mut self,
        process: &Process<'_>,
        through: FnodeId,
        actual: CodeRef,
        most: usize,
    ) -> Option<FnodeId> {
        let jumps = self.jumps(process, through)?;
        let function = Callee::Function(self.catalog.callee(actual));
        let at = process.modules().locate(actual);
        // A jump that names a PLT stub leads to what is behind that.
        let direct = jumps.iter().find(|&&jump| {
            let entry = self.entry(process, jump).ok();
            entry.is_some() && entry == at
        });
        if let Some(&direct) = direct {
            return Some(direct);
        }
        let ftree = self.totals.ftree();
        let (unnamed, named): (Vec<FnodeId>, Vec<FnodeId>) = jumps
            .into_iter()
            .partition(|&jump| ftree.fnode(jump).callee == Callee::Unknown);
        if most > 1 {
            let mut named = named.into_iter();
            let found = named.find_map(|jump| self.behind_jumps(process, jump, actual, most - 1));
            if found.is_some() {
                return found;
            }
        }
        let [jump] = unnamed[..] else { return None };
        let site = self.totals.ftree().fnode(jump).site?;
        Some(self.totals.add_child(through, site, function))
    }

    /// The calls of a function that are jumps.
    fn jumps(&mut self, process: &Process<'_>, of: FnodeId) -> Option<Vec<FnodeId>> {
        self.expand(process, of);
        let entry = self.entry(process, of).ok()?;
        let scanned = process.scan(entry).ok()?;
        let jumps = scanned.sites.iter().filter(|site| !site.is_call());
        let places = jumps.filter_map(|site| process.modules().place(TargetAddr(site.addr)));
        let ids: Vec<_> = places
            .filter_map(|place| self.catalog.known_site(place))
            .collect();
        let ftree = self.totals.ftree();
        let children = ftree.fnode(of).children.iter().copied();
        let is_jump = |child: &FnodeId| {
            let site = ftree.fnode(*child).site;
            site.is_some_and(|site| ids.contains(&site))
        };
        Some(children.filter(is_jump).collect())
    }
}

/// So many functions may hand a call on by a jump.
pub(in crate::session) const JUMPS: usize = 3;

/// The frames from the outermost one of f0 inwards.
pub(in crate::session) fn below_f0(
    mut frames: Vec<StackFrame>,
    f0: CodeRef,
) -> Option<Vec<StackFrame>> {
    let at = frames.iter().rposition(|frame| frame.function == f0)?;
    frames.truncate(at + 1);
    frames.reverse();
    Some(frames)
}

/// The call site behind which `return_to` is.
pub(in crate::session) fn site_before(scanned: &Scanned, return_to: TargetAddr) -> Option<u64> {
    let site = scanned
        .sites
        .iter()
        .find(|site| site.next() == return_to.0)?;
    Some(site.addr)
}

/// The calls on the stacks from f0 inwards, in words, each once.
pub(super) fn below(
    pid: i32,
    modules: &Modules,
    investigation: &Investigation,
) -> BTreeSet<String> {
    let read = || Stacks::new(modules).read(pid, investigation, |_| true);
    let (Some(f0), Some((stacks, _))) = (investigation.f0, read()) else {
        return BTreeSet::new();
    };
    let stacks = stacks.into_iter().filter_map(|stack| {
        let frames = below_f0(stack.frames, f0)?;
        let names = frames.iter().map(|frame| modules.name(frame.function));
        Some(in_short(names.collect()))
    });
    stacks.collect()
}

/// The names of a stack, in words.
fn in_short(mut names: Vec<String>) -> String {
    /// So many are told of each end.
    const TOLD: usize = 8;
    if names.len() > 2 * TOLD + 1 {
        let left_out = TOLD..names.len() - TOLD;
        let more = format!("{} more", left_out.len());
        names.splice(left_out, [more]);
    }
    names.join(" → ")
}

/// A call of f0 that is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InProgress {
    /// The stack pointer of the outermost one of its thread.
    pub sp: u64,
    /// Whether the thread began with f0, so that it is called once.
    pub is_beginning: bool,
}

/// Whether f0 is on a stack of the process: by thread, the call of it.
#[must_use]
pub fn calls_in_progress(
    pid: i32,
    modules: &Modules,
    investigation: &Investigation,
) -> BTreeMap<i32, InProgress> {
    let read = || Stacks::new(modules).read(pid, investigation, |_| true);
    let (Some(f0), Some((stacks, _))) = (investigation.f0, read()) else {
        return BTreeMap::new();
    };
    let calls = stacks.into_iter().filter_map(|stack| {
        let frames = stack.frames;
        let is_beginning = first(modules, &frames) == Some(f0);
        let sp = below_f0(frames, f0)?.first()?.sp;
        Some((stack.tid, InProgress { sp, is_beginning }))
    });
    calls.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_stack_is_told_in_short() {
        let names = |count: usize| {
            (0..count)
                .map(|index| index.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(in_short(names(3)), "0 → 1 → 2");
        let told = in_short(names(1000));
        assert!(
            told.starts_with("0 → 1 →") && told.ends_with("→ 998 → 999"),
            "{told}"
        );
        assert!(told.contains("7 → 984 more → 992"), "{told}");
    }
}
