//! From a plan to the diversions that it wants, one part of the plan after the other. What comes first has the bytes that
//! two need.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use darc_disasm::CallSite;

use crate::addr::TargetAddr;
use crate::engine::Refused;
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::{Asynchronous, Noticed, Plan};

use super::super::function::{self, Hiding, Landings, Part};
use super::super::jumps::{Diversion, NO_PAGE};
use super::super::layout::counts;
use super::super::ops::{Calls, HandsOver, Ops, OpsOf};
use super::super::patches::Unpatched;
use super::super::prepare::{Hook, Stubs};
use super::super::stubs::{Counter, Unwinding};
use super::Space;

/// What a plan has come to so far.
pub(super) struct Wanted<'a> {
    /// The target's.
    pub(super) memory: &'a Memory,
    /// By address.
    pub(super) diversions: BTreeMap<u64, Diversion>,
    /// Addresses of groups to which no jump was found.
    pub(super) unplaced: &'a BTreeSet<u64>,
    /// What cannot be instrumented.
    pub(super) refused: &'a mut Vec<Refused>,
    /// Whether a function was divided anew, so that the diversions are those of other groups.
    pub(super) is_outdated: bool,
    /// Why no return address may be hidden.
    pub(super) shown: Option<&'static str>,
}

impl Wanted<'_> {
    fn refuse(&mut self, addr: u64, reason: String) {
        self.refused.push(Refused {
            addr: TargetAddr(addr),
            reason,
        });
    }
}

/// The function whose calls are ops.
fn f0(plan: &Plan) -> Option<u64> {
    plan.f0.as_ref().map(|f0| f0.entry())
}

/// The function that hands requests over, where it is f0.
fn by_itself(plan: &Plan) -> Option<&Noticed> {
    let path = plan.asynchronous.as_ref();
    let enqueue = path.and_then(|path| path.enqueue.as_ref());
    enqueue.filter(|enqueue| f0(plan) == Some(enqueue.code.entry()))
}

/// Functions at which the engine has to act.
fn hooks(plan: &Plan) -> impl Iterator<Item = (u64, Hook)> {
    let begins = Hook::Unwinding(Unwinding::Begins);
    let unwinders = plan.unwinders.iter().map(move |addr| (addr.0, begins));
    let arrived = Hook::Unwinding(Unwinding::Arrived);
    let catchers = plan.catchers.iter().map(move |addr| (addr.0, arrived));
    let finders = plan.finders.iter().map(|addr| (addr.0, Hook::Finder));
    unwinders.chain(catchers).chain(finders)
}

/// Whether a plan has nothing but an f0 all of whose calls are ops.
fn is_plain(plan: &Plan) -> bool {
    let hooked = [&plan.unwinders, &plan.catchers, &plan.finders];
    plan.callers.is_empty()
        && plan.chain.is_none()
        && plan.field.is_none()
        && plan.asynchronous.is_none()
        && plan.running.is_empty()
        && plan.counted.is_empty()
        && plan.counted_sites.is_empty()
        && plan.markers.is_empty()
        && hooked.iter().all(|hooks| hooks.is_empty())
}

fn is_hooked(plan: &Plan, entry: u64) -> bool {
    hooks(plan).any(|(addr, _)| addr == entry)
}

/// Whether a function begins with Go's stack check.
fn is_checked(memory: &Memory, entry: u64) -> bool {
    let mut bytes = [0; function::goroutines::CHECK];
    if memory.read(TargetAddr(entry), &mut bytes).is_err() {
        return false;
    }
    function::goroutines::is_checked(&bytes, entry)
}

/// Why nothing is hidden in the stacks of some programs.
const COPIED: &str = "its end shows only by a return address of ours, and the program may copy its stacks (greenlets and their like are loaded), which would keep that";

/// Why nothing is hidden where nobody would put it back.
const NOT_PUT_BACK: &str = "its end shows only by a return address of ours, and no probe can be placed at an unwinder, which would put it back";

/// Why nothing is hidden where nobody knows who unwinds.
const UNNAMED: &str = "its end shows only by a return address of ours, and a file has an unwinder without names, at which nobody would put it back";

/// Why nothing may be hidden, as far as a plan tells.
pub(super) fn shown(plan: &Plan) -> Option<&'static str> {
    let unnamed = plan.unnamed_unwinder.is_some().then_some(UNNAMED);
    plan.copies_stacks.then_some(COPIED).or(unnamed)
}

/// Why a function is left alone at which return addresses are put back.
const UNWINDS: &str = "it unwinds the stack, where return addresses are put back first";

/// Why code is left alone that others watch.
const BREAKPOINT: &str = "a breakpoint of somebody else is in it";

/// Why code that was divided otherwise before is left alone.
const COME_BACK_TO: &str =
    "a thread that is still in an earlier probe may go on in the middle of its bytes";

fn taken() -> String {
    "it is instrumented for another purpose".to_owned()
}

impl Space {
    pub(super) fn want_f0(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        let Some(code) = &plan.f0 else { return Ok(()) };
        if self.installed.around.goroutines.is_some() && !is_plain(plan) {
            let reason =
                "in a Go program all calls of one function can be measured, and nothing else";
            wanted.refuse(code.entry(), reason.to_owned());
            return Ok(());
        }
        if self.installed.around.field != plan.field {
            let reason =
                "what is noted of its calls was not known when the first probes were put in";
            wanted.refuse(code.entry(), reason.to_owned());
            return Ok(());
        }
        if is_hooked(plan, code.entry()) {
            wanted.refuse(code.entry(), UNWINDS.to_owned());
            return Ok(());
        }
        self.look_at(wanted.memory, code, Part::F0, Landings::Noticed);
        self.notice_ends(code.entry(), plan.f0_ends);
        self.set_ops(
            code.entry(),
            Ops {
                tree: OpsOf::F0,
                callers: plan.callers.iter().map(|caller| caller.0).collect(),
                chain: plan.chain.clone(),
                calls: match (&plan.asynchronous, plan.field) {
                    (None, None) => Calls::OfRecorded,
                    _ => Calls::OfAll,
                },
                hands_over: match by_itself(plan) {
                    Some(enqueue) => HandsOver::Itself(enqueue.chain.clone()),
                    None => HandsOver::Nothing,
                },
            },
        );
        self.want_entry(code.entry(), None, wanted)
    }

    /// The functions between which requests are followed.
    pub(super) fn want_path(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        let Some(Asynchronous {
            enqueue,
            serve,
            root,
        }) = &plan.asynchronous
        else {
            return Ok(());
        };
        let serving = OpsOf::Serving(*root);
        self.want_noticed(plan, serve, serving, Part::F0, None, wanted)?;
        match enqueue {
            Some(enqueue) if by_itself(plan).is_none() => {
                let hook = Some(Hook::Enqueue);
                self.want_noticed(plan, enqueue, OpsOf::F0, Part::Entered, hook, wanted)
            }
            Some(_) | None => Ok(()),
        }
    }

    fn want_noticed(
        &mut self,
        plan: &Plan,
        noticed: &Noticed,
        tree: OpsOf,
        part: Part,
        hook: Option<Hook>,
        wanted: &mut Wanted<'_>,
    ) -> Result<()> {
        let entry = noticed.code.entry();
        if f0(plan) == Some(entry) || is_hooked(plan, entry) {
            wanted.refuse(entry, taken());
            return Ok(());
        }
        self.look_at(wanted.memory, &noticed.code, part, Landings::Noticed);
        let ops = Ops {
            tree,
            callers: Vec::new(),
            chain: noticed.chain.clone(),
            calls: Calls::OfAll,
            hands_over: HandsOver::Nothing,
        };
        self.set_ops(entry, ops);
        self.want_entry(entry, hook, wanted)
    }

    pub(super) fn want_hooks(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        for (addr, hook) in hooks(plan) {
            let others = wanted.refused.len();
            self.want_hook(plan, addr, hook, wanted)?;
            let is_refused = wanted.refused.len() > others;
            if is_refused && hook == Hook::Unwinding(Unwinding::Begins) {
                wanted.shown = wanted.shown.or(Some(NOT_PUT_BACK));
            }
        }
        Ok(())
    }

    fn want_hook(
        &mut self,
        plan: &Plan,
        addr: u64,
        hook: Hook,
        wanted: &mut Wanted<'_>,
    ) -> Result<()> {
        let mut measured = plan.functions.iter().map(|function| &function.code);
        if let Some(code) = measured.find(|code| code.entry() == addr) {
            // Its calls are measured, too: its code is divided for both.
            self.look_at(wanted.memory, code, Part::Entered, Landings::Noticed);
        }
        if let Entry::Vacant(vacant) = self.functions.entry(addr) {
            match function::beginning(wanted.memory, TargetAddr(addr)) {
                Some(function) => drop(vacant.insert(function)),
                // Its library is gone already, and with it who would unwind.
                None if !wanted.memory.has_mapped(TargetAddr(addr)) => return Ok(()),
                None => {
                    wanted.refuse(addr, "its code cannot be read".to_owned());
                    return Ok(());
                }
            }
        }
        self.want_entry(addr, Some(hook), wanted)
    }

    /// The function by which goroutines stop and go on.
    pub(super) fn want_statuses(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        // Where it is f0 itself its calls are of more interest.
        let code = plan.statuses.as_ref();
        let Some(code) = code.filter(|code| f0(plan) != Some(code.entry())) else {
            return Ok(());
        };
        let entry = code.entry();
        self.look_at(wanted.memory, code, Part::Entered, Landings::Noticed);
        self.want_entry(entry, Some(Hook::Statuses), wanted)
    }

    /// The functions whose calls are counted.
    pub(super) fn want_counted(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        let slots = self.installed.room.slots;
        for function in &plan.counted {
            let entry = function.code.entry();
            if is_hooked(plan, entry) {
                wanted.refuse(entry, UNWINDS.to_owned());
                continue;
            }
            if function.slot >= slots {
                wanted.refuse(entry, format!("there is room for {slots} functions only"));
                continue;
            }
            self.look_at(wanted.memory, &function.code, Part::F0, Landings::Left);
            self.notice_ends(entry, function.ends);
            let hook = Hook::Counted(Counter {
                slot: function.slot,
                offset: counts::slot(function.slot, slots) as u32,
            });
            self.want_entry(entry, Some(hook), wanted)?;
        }
        Ok(())
    }

    pub(super) fn want_markers(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        for marker in &plan.markers {
            let entry = marker.code.entry();
            if f0(plan) == Some(entry) || is_hooked(plan, entry) {
                wanted.refuse(entry, taken());
                continue;
            }
            let landings = Landings::Left;
            self.look_at(wanted.memory, &marker.code, Part::Entered, landings);
            self.want_entry(entry, Some(Hook::Marker(marker.mark)), wanted)?;
        }
        Ok(())
    }

    pub(super) fn want_counted_sites(
        &mut self,
        plan: &Plan,
        wanted: &mut Wanted<'_>,
    ) -> Result<()> {
        for sites in &plan.counted_sites {
            let entry = sites.code.entry();
            if is_hooked(plan, entry) {
                wanted.refuse(entry, UNWINDS.to_owned());
                continue;
            }
            // Those that are entered by a probe have been looked at.
            let mut counted = plan.counted.iter();
            if !counted.any(|function| function.code.entry() == entry) {
                self.look_at(wanted.memory, &sites.code, Part::Callee, Landings::Left);
            }
            for site in &sites.sites {
                self.want_site(entry, &site.call, Hiding::Allowed, wanted)?;
            }
        }
        Ok(())
    }

    /// The calls that are fnodes.
    pub(super) fn want_sites(&mut self, plan: &Plan, wanted: &mut Wanted<'_>) -> Result<()> {
        if plan.sites_are_away {
            return Ok(());
        }
        // The groups of these have room for their sites, too.
        let path = plan.asynchronous.iter();
        let entered: Vec<u64> = path
            .flat_map(|path| path.codes().map(|code| code.entry()))
            .chain(plan.statuses.iter().map(|code| code.entry()))
            .chain(f0(plan))
            .chain(hooks(plan).map(|(addr, _)| addr))
            .collect();
        for function in &plan.functions {
            let entry = function.code.entry();
            if !entered.contains(&entry) {
                let landings = Landings::Noticed;
                self.look_at(wanted.memory, &function.code, Part::Callee, landings);
            }
            for (id, call) in &function.sites {
                let hiding = match function.seen_through.contains(id) {
                    true => Hiding::Forbidden,
                    false => Hiding::Allowed,
                };
                self.want_site(entry, call, hiding, wanted)?;
            }
        }
        Ok(())
    }

    fn want_site(
        &mut self,
        entry: u64,
        call: &CallSite,
        hiding: Hiding,
        wanted: &mut Wanted<'_>,
    ) -> Result<()> {
        if self.installed.around.goroutines.is_some() {
            let function = self.functions.get_mut(&entry).expect("looked at above");
            let is_checked = |to| is_checked(wanted.memory, to);
            if let Err(reason) = function.ordinary(call, &self.callees, is_checked) {
                wanted.refuse(call.addr, reason.to_owned());
                return Ok(());
            }
        }
        let hiding = match wanted.shown {
            Some(_) => Hiding::Forbidden,
            None => hiding,
        };
        let outcome = match self.functions[&entry].groups_of_site(call, hiding) {
            Ok(groups) => self.want_together(entry, &groups, None, wanted)?,
            Err(reason) => Err(reason),
        };
        let Err(reason) = outcome else { return Ok(()) };
        let function = self.functions.get_mut(&entry).expect("looked at above");
        // With one more arena its landing may be had.
        let may_change = !self.installed.lacking.is_empty();
        if !may_change && hiding == Hiding::Allowed && function.leave_landing(call) {
            // Then its return address is hidden.
            self.prepared.retain(|&(function, _), _| function != entry);
            wanted.is_outdated = true;
        } else {
            wanted.refuse(call.addr, reason);
        }
        Ok(())
    }

    fn want_entry(
        &mut self,
        entry: u64,
        hook: Option<Hook>,
        wanted: &mut Wanted<'_>,
    ) -> Result<()> {
        let goroutines = self.installed.around.goroutines.is_some();
        if goroutines && hook.is_some_and(|hook| hook != Hook::Statuses) {
            // The stubs of all others need the stack.
            wanted.refuse(entry, "goroutines have no stack for its probe".to_owned());
            return Ok(());
        }
        loop {
            if let Some(reason) = wanted.shown
                && self.functions[&entry].hides()
            {
                wanted.refuse(entry, reason.to_owned());
                return Ok(());
            }
            let outcome = match self.functions[&entry].entry_groups() {
                Ok(groups) => self.want_together(entry, &groups, hook, wanted)?,
                Err(reason) => Err(reason),
            };
            let Err(reason) = outcome else { return Ok(()) };
            let function = self.functions.get_mut(&entry).expect("looked at above");
            // With one more arena its ends may be had.
            let may_change = !self.installed.lacking.is_empty();
            if may_change || !function.hide_returns() {
                wanted.refuse(entry, reason);
                return Ok(());
            }
            self.prepared.retain(|&(function, _), _| function != entry);
        }
    }

    /// Prepares groups of which each needs the others: all of them or none.
    fn want_together(
        &mut self,
        entry: u64,
        groups: &[u64],
        hook: Option<Hook>,
        wanted: &mut Wanted<'_>,
    ) -> Result<std::result::Result<(), String>> {
        let mut added = Vec::new();
        for &at in groups {
            let others = wanted.diversions.len();
            let outcome = self.want(entry, at, hook, wanted)?;
            added.extend((wanted.diversions.len() > others).then_some(at));
            if outcome.is_err() {
                for at in added {
                    wanted.diversions.remove(&at);
                }
                return Ok(outcome);
            }
        }
        Ok(Ok(()))
    }

    /// Prepares the group of a function at an address, unless that was done before.
    fn want(
        &mut self,
        entry: u64,
        at: u64,
        hook: Option<Hook>,
        wanted: &mut Wanted<'_>,
    ) -> Result<std::result::Result<(), String>> {
        if wanted.unplaced.contains(&at) {
            return Ok(Err(NO_PAGE.to_owned()));
        }
        let Space {
            installed,
            tree,
            functions,
            prepared,
            patches,
            ends,
            ..
        } = self;
        let outcome = match prepared.entry((entry, at)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let mut stubs = Stubs {
                    installed,
                    memory: wanted.memory,
                    tree,
                };
                let text = Unpatched {
                    memory: wanted.memory,
                    patches,
                };
                let bytes = functions[&entry].bytes(at).unwrap_or_default();
                if text.has_breakpoint(at, &bytes) {
                    // It may be gone the next time.
                    return Ok(Err(BREAKPOINT.to_owned()));
                }
                let made = stubs.group(&functions[&entry], at, hook)?;
                if let Err(reason) = &made
                    && !installed.lacking.is_empty()
                {
                    // With one more arena it may be otherwise.
                    return Ok(Err(reason.clone()));
                }
                if let Ok(prepared) = &made {
                    ends.0.extend(prepared.behind_syscalls.iter().copied());
                }
                vacant.insert(made)
            }
        };
        let diversion = match &*outcome {
            Err(reason) => return Ok(Err(reason.clone())),
            Ok(prepared) => &prepared.diversion,
        };
        if patches.are_come_back_to(&(diversion.at..diversion.end())) {
            return Ok(Err(COME_BACK_TO.to_owned()));
        }
        let mut before = wanted.diversions.range(..diversion.end());
        Ok(match before.next_back() {
            Some((_, other)) if other == diversion => Ok(()),
            Some((_, other)) if other.end() > diversion.at => {
                Err("its bytes are needed for another probe".to_owned())
            }
            _ => {
                let diversion = diversion.clone();
                wanted.diversions.insert(diversion.at, diversion);
                Ok(())
            }
        })
    }
}
