//! Brings the breakpoints to a plan.

use std::collections::HashMap;

use darc_disasm::SiteKind;

use crate::addr::TargetAddr;
use crate::engine::{Refused, TAKES_ARGUMENTS};
use crate::error::{Error, Result};
use crate::maps::{self, SharedCode};
use crate::plan::Plan;

use super::Int3;
use super::edges::Edges;
use super::points::{self, Roles};

impl Int3 {
    /// Brings breakpoints to the plan.
    pub(super) fn bring_to(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        if plan.asynchronous.is_some() {
            return Err(Error::Unsuitable(
                "breakpoints cannot follow requests from one thread to another".to_owned(),
            ));
        }
        if plan.copies_stacks && !plan.is_empty() {
            return Err(Error::Unsuitable(format!(
                "process {} may copy its stacks (greenlets and their like are loaded), and with them the return addresses of breakpoints; leave out --engine int3",
                self.pid
            )));
        }
        if let Some(file) = &plan.unnamed_unwinder
            && !plan.is_empty()
        {
            return Err(Error::Unsuitable(format!(
                "process {} would not survive an exception: {file} has an unwinder without names, at which no breakpoint can be set; leave out --engine int3",
                self.pid
            )));
        }
        self.chain = plan.chain.clone();
        let wanted = points::wanted(plan);
        let near = plan
            .f0
            .as_ref()
            .map(|f0| TargetAddr(f0.entry()))
            .or_else(|| wanted.keys().min().copied());
        let Some(near) = near else {
            return Ok(Vec::new());
        };
        self.prepare_arena(near)?;
        if !self.dumps_core.is_empty() {
            return Ok(Vec::new());
        }
        let unwanted: Vec<_> = self
            .points
            .addresses()
            .filter(|addr| !wanted.contains_key(addr))
            .collect();
        for addr in unwanted {
            self.points.disarm(&self.memory, &mut self.ledger, addr)?;
        }
        // The edges come first: a site that is armed already must find the new tree.
        self.edges = Edges::new(&plan.edges);
        self.generation += 1;
        self.arm_all(plan, wanted)
    }

    /// Arms what a plan wants, the unwinders first: nothing may be hidden from one at which nobody puts it back. Returns what is refused.
    fn arm_all(&mut self, plan: &Plan, wanted: HashMap<TargetAddr, Roles>) -> Result<Vec<Refused>> {
        let mut refused = Vec::new();
        let shared = SharedCode::among(&maps::read(self.pid)?);
        let (unwinders, others): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(_, roles)| roles.unwinder);
        for (addr, roles) in unwinders.into_iter().chain(others) {
            let is_unwinder = roles.unwinder;
            let f0 = plan.f0.as_ref().filter(|_| roles.f0);
            let reason = match shared.refusal(addr.0) {
                Some(reason) => reason,
                None if f0.is_some_and(|f0| f0.takes_arguments()) => TAKES_ARGUMENTS.to_owned(),
                None => match self.arm(addr, roles, plan) {
                    Ok(()) => continue,
                    Err(error) => error.to_string(),
                },
            };
            // In a library that was just unloaded nobody unwinds.
            if is_unwinder && !plan.is_empty() && self.memory.has_mapped(addr) {
                return Err(Error::Unsuitable(format!(
                    "process {} unwinds its stack where no breakpoint can be set, and would not survive an exception ({reason}); leave out --engine int3",
                    self.pid
                )));
            }
            refused.push(Refused { addr, reason });
        }
        refused.sort_by_key(|refused| refused.addr);
        Ok(refused)
    }

    /// Makes one address stand for what the plan wants there.
    fn arm(&mut self, addr: TargetAddr, mut roles: Roles, plan: &Plan) -> Result<()> {
        let expected = planned(plan, addr, &roles);
        if let Some(site) = &mut roles.site
            && matches!(site.call.kind, SiteKind::Syscall { .. })
        {
            site.syscall = Some(self.syscall_copies(addr, TargetAddr(site.call.next()))?);
        }
        if roles.needs_continuation() {
            // What cannot be continued must not be armed.
            self.continuation(addr)?;
        }
        if self.points.get(addr).is_some() {
            self.points.reassign(addr, roles);
            return Ok(());
        }
        self.points
            .arm(&self.memory, &mut self.ledger, addr, expected, roles)
    }
}

/// What a plan knows of the instruction at an address.
fn planned<'a>(plan: &'a Plan, addr: TargetAddr, roles: &Roles) -> &'a [u8] {
    let len = roles.site.as_ref().map_or(1, |site| site.call.len);
    let functions = plan.functions.iter().map(|function| &function.code);
    let mut codes = plan.f0.iter().chain(functions);
    let bytes = codes.find_map(|code| code.bytes_at(addr.0, len.into()));
    bytes.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::child_signal;
    use crate::engine::Engine as _;
    use crate::engine::Notice;
    use crate::engine::calibration::of_child;
    use crate::engine::int3::Guarding;
    use crate::engine::int3::calibrate::{Calls, empty, plan_of};
    use crate::engine::int3::delivery::{Attention, Noticed};
    use crate::sys;

    use super::*;

    /// The first exception through a hidden return address would be the program's death.
    #[test]
    fn nothing_is_hidden_from_an_unwinder_that_has_anothers_breakpoint() {
        child_signal::block().unwrap();
        let work = || {
            loop {
                empty();
            }
        };
        let (entry, unwinder) = (TargetAddr(empty as *const () as u64), sys::unwinder());
        let unwinder = TargetAddr(unwinder);
        of_child(work, |pid| {
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            let (mut own, mut now) = ([0; 2], [0; 2]);
            let hooks = Plan {
                unwinders: vec![unwinder],
                ..Plan::default()
            };
            let plan = Plan {
                unwinders: vec![unwinder],
                ..plan_of(entry.0, &engine.memory)?
            };
            engine.memory.read(entry, &mut own)?;
            engine.memory.write(unwinder, &[points::INT3])?;
            // As long as nothing is measured that matters to nobody.
            assert_eq!(engine.apply(&hooks)?.len(), 1);
            let error = engine.apply(&plan).unwrap_err();
            assert!(matches!(error, Error::Unsuitable(_)));
            let said = error.to_string();
            assert!(said.contains("breakpoint of somebody else"), "{said}");
            engine.memory.read(entry, &mut now)?;
            assert_eq!(now, own, "nothing is armed");
            engine.finish()
        })
        .unwrap();
    }

    /// What cannot be emulated at an unwinder is left to it, and from then on nobody would put back what is hidden.
    #[test]
    fn nothing_stays_where_an_unwinder_has_lost_its_breakpoint() {
        child_signal::block().unwrap();
        let work = || {
            loop {
                empty();
            }
        };
        let (entry, unwinder) = (TargetAddr(empty as *const () as u64), sys::unwinder());
        let unwinder = TargetAddr(unwinder);
        of_child(work, |pid| {
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            let plan = Plan {
                unwinders: vec![unwinder],
                ..plan_of(entry.0, &engine.memory)?
            };
            let code = |engine: &Int3| -> Result<[[u8; 1]; 2]> {
                let mut code = [[0]; 2];
                engine.memory.read(entry, &mut code[0])?;
                engine.memory.read(unwinder, &mut code[1])?;
                Ok(code)
            };
            let own = code(&engine)?;
            assert_eq!(engine.apply(&plan)?, []);
            assert_eq!(code(&engine)?, [[points::INT3]; 2]);
            engine.with_stopped_thread(|engine, thread| {
                let noticed = Noticed {
                    at: sys::tsc(),
                    attention: Attention::Awake,
                };
                let (mut trap, _) = engine.look_at(thread, noticed)?;
                engine.execute_natively(unwinder, &mut trap)
            })?;
            assert_eq!(code(&engine)?, own);
            let notice = engine.poll(Duration::ZERO, &mut Calls::default())?;
            assert_eq!(notice, Some(Notice::ProbesTakenOut));
            assert_eq!(engine.apply(&plan)?, []);
            engine.finish()
        })
        .unwrap();
    }
}
