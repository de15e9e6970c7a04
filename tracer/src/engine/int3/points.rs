//! The breakpoints: which addresses are armed, what stands for each, and the program's own bytes.

use std::collections::HashMap;

use darc_disasm::CallSite;

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::ledger::{Debt, Ledger};
use crate::memory::Memory;
use crate::plan::Plan;
use darc_record::SiteId;

/// The breakpoint instruction, `int3`.
pub const INT3: u8 = 0xcc;

/// Copies of a `syscall` instruction outside the program's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyscallCopies {
    /// `syscall; int3`: the trap ends the measurement.
    pub measured: TargetAddr,
    /// `syscall; jmp back`.
    pub plain: TargetAddr,
}

/// An instrumented call site.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its id in the plan.
    pub id: SiteId,
    /// The instruction.
    pub call: CallSite,
    /// The address ranges of the function that it is in; jumps inside are no calls.
    pub function: Vec<(u64, u64)>,
    /// For a system call.
    pub syscall: Option<SyscallCopies>,
}

/// What a breakpoint stands for; one address can stand for several things.
#[derive(Clone, Default, Debug)]
pub struct Roles {
    /// The entry of f0.
    pub f0: bool,
    /// A call site.
    pub site: Option<Site>,
    /// A function that unwinds or walks the stack.
    pub unwinder: bool,
    /// A function that runs when an exception has been caught.
    pub catcher: bool,
    /// The dynamic linker's notification.
    pub loader: bool,
}

impl Roles {
    /// Whether the breakpoint's instruction is executed elsewhere instead of being emulated.
    #[must_use]
    pub fn needs_continuation(&self) -> bool {
        self.site.is_none()
    }
}

/// What the plan wants at each address (sites without their system call copies yet).
#[must_use]
pub fn wanted(plan: &Plan) -> HashMap<TargetAddr, Roles> {
    let mut wanted: HashMap<TargetAddr, Roles> = HashMap::new();
    if let Some(f0) = &plan.f0 {
        wanted.entry(TargetAddr(f0.entry())).or_default().f0 = true;
    }
    for function in &plan.functions {
        let ranges: Vec<_> = function
            .code
            .parts()
            .iter()
            .map(|part| (part.start, part.start + part.bytes.len() as u64))
            .collect();
        for (id, call) in &function.sites {
            let site = Site {
                id: *id,
                call: *call,
                function: ranges.clone(),
                syscall: None,
            };
            wanted.entry(TargetAddr(call.addr)).or_default().site = Some(site);
        }
    }
    for &addr in &plan.unwinders {
        wanted.entry(addr).or_default().unwinder = true;
    }
    for &addr in &plan.catchers {
        wanted.entry(addr).or_default().catcher = true;
    }
    if let Some(addr) = plan.loader {
        wanted.entry(addr).or_default().loader = true;
    }
    wanted
}

/// An armed breakpoint.
#[derive(Clone, Debug)]
pub struct Point {
    /// What it stands for.
    pub roles: Roles,
    original: u8,
    ledger: Option<u32>,
}

/// All breakpoints of the target.
#[derive(Default, Debug)]
pub struct Points {
    armed: HashMap<TargetAddr, Point>,
    /// Breakpoints that were taken out, with the program's own bytes.
    retired: HashMap<TargetAddr, u8>,
    differing: u64,
}

impl Points {
    /// The breakpoint at an address.
    #[must_use]
    pub fn get(&self, addr: TargetAddr) -> Option<&Point> {
        self.armed.get(&addr)
    }

    /// The addresses of all armed breakpoints.
    pub fn addresses(&self) -> impl Iterator<Item = TargetAddr> + '_ {
        self.armed.keys().copied()
    }

    /// The addresses of those that stand for something of this kind.
    #[must_use]
    pub fn addresses_where(&self, is_meant: impl Fn(&Roles) -> bool) -> Vec<TargetAddr> {
        let meant = self
            .armed
            .iter()
            .filter(|(_, point)| is_meant(&point.roles));
        meant.map(|(&addr, _)| addr).collect()
    }

    /// Whether a breakpoint is here, or was once: a thread may still be about to report it.
    #[must_use]
    pub fn was_armed(&self, addr: TargetAddr) -> bool {
        self.armed.contains_key(&addr) || self.retired.contains_key(&addr)
    }

    /// How many bytes were not the program's own after they had been put back.
    #[must_use]
    pub fn bytes_differing(&self) -> u64 {
        self.differing
    }

    /// Puts the program's own bytes into a copy of its code that was read at `addr`.
    pub fn hide_from(&self, addr: TargetAddr, code: &mut [u8]) {
        for (at, point) in &self.armed {
            let offset = at.0.wrapping_sub(addr.0);
            if let Some(byte) = usize::try_from(offset)
                .ok()
                .and_then(|offset| code.get_mut(offset))
            {
                *byte = point.original;
            }
        }
    }

    /// Changes what an armed breakpoint stands for; the text stays as it is.
    pub fn reassign(&mut self, addr: TargetAddr, roles: Roles) {
        if let Some(point) = self.armed.get_mut(&addr) {
            point.roles = roles;
        }
    }

    /// Writes a breakpoint. `expected` is what the plan saw there of the instruction, as far as it is known.
    ///
    /// The one-byte write is atomic for threads that run through it (Intel SDM volume 3, 10.1.3, as
    /// the kernel's text_poke relies on), so nobody needs to be stopped.
    ///
    /// # Errors
    /// When the text is not what was planned for, or cannot be written.
    pub fn arm(
        &mut self,
        memory: &Memory,
        ledger: &mut Ledger,
        addr: TargetAddr,
        expected: &[u8],
        roles: Roles,
    ) -> Result<()> {
        let mut byte = [0];
        memory.read(addr, &mut byte)?;
        if byte[0] == INT3 {
            return Err(Error::Unsuitable(format!(
                "there is a breakpoint of somebody else at {addr}"
            )));
        }
        let changed =
            || Error::Unsuitable(format!("the code at {addr} has changed since it was read"));
        if expected
            .first()
            .is_some_and(|&expected| expected != byte[0])
        {
            return Err(changed());
        }
        let debt = ledger.enter(Debt::Text {
            addr: addr.0,
            original: byte[0],
        });
        memory.write(addr, &[INT3])?;
        // The program runs, and may write its code: asked when nothing of the instruction can change unnoticed any more.
        let mut rest = vec![0; expected.len().saturating_sub(1)];
        memory.read(addr.offset(1), &mut rest)?;
        if expected.get(1..).is_some_and(|expected| expected != rest) {
            restore(memory, addr, byte[0])?;
            if let Some(index) = debt {
                ledger.strike(index);
            }
            // A thread may have met it.
            self.retired.insert(addr, byte[0]);
            return Err(changed());
        }
        self.retired.remove(&addr);
        self.armed.insert(
            addr,
            Point {
                roles,
                original: byte[0],
                ledger: debt,
            },
        );
        Ok(())
    }

    /// Puts the program's byte back, if the breakpoint is still there: code that the program has
    /// rewritten meanwhile is left alone.
    ///
    /// # Errors
    /// When the text cannot be read or written though the target lives: the breakpoint is known as before.
    pub fn disarm(&mut self, memory: &Memory, ledger: &mut Ledger, addr: TargetAddr) -> Result<()> {
        let Some(point) = self.armed.get(&addr) else {
            return Ok(());
        };
        let (original, debt) = (point.original, point.ledger);
        if unless_gone(restore(memory, addr, original))? == Some(false) {
            self.differing += 1;
        }
        self.armed.remove(&addr);
        if let Some(index) = debt {
            ledger.strike(index);
        }
        self.retired.insert(addr, original);
        Ok(())
    }

    /// Puts every byte back in a copy of the target's memory (a forked child's).
    pub fn restore_copy(&self, memory: &Memory) {
        // A breakpoint may have been taken out of the parent since the copy was made.
        let armed = self
            .armed
            .iter()
            .map(|(&addr, point)| (addr, point.original));
        let retired = self
            .retired
            .iter()
            .map(|(&addr, &original)| (addr, original));
        for (addr, original) in armed.chain(retired) {
            let _ = restore(memory, addr, original);
        }
    }

    /// Forgets everything: the memory that the breakpoints were in is gone.
    pub fn forget(&mut self, ledger: &mut Ledger) {
        for (_, point) in self.armed.drain() {
            if let Some(index) = point.ledger {
                ledger.strike(index);
            }
        }
        self.retired.clear();
    }
}

/// Writes the original byte over a breakpoint; true when the text is the program's own afterwards.
fn restore(memory: &Memory, addr: TargetAddr, original: u8) -> Result<bool> {
    let mut byte = [0];
    if let Err(error) = memory.read(addr, &mut byte) {
        return match memory.has_mapped(addr) {
            true => Err(error),
            // Unmapped meanwhile (dlclose): nothing of ours is left there.
            false => Ok(true),
        };
    }
    if byte[0] == INT3 {
        memory.write(addr, &[original])?;
        memory.read(addr, &mut byte)?;
    }
    Ok(byte[0] == original)
}

#[cfg(test)]
mod tests {
    use crate::remote_call::tests::{call_in, who_waits};
    use crate::sys;

    use super::*;

    /// Nobody else would take it away: neither the next attempt nor the guardian.
    #[test]
    fn a_breakpoint_that_cannot_be_taken_out_stays_known() {
        const PAGE: u64 = sys::PAGE as u64;
        let mut target = who_waits();
        let pid = target.id() as i32;
        let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
        let page = call_in(pid, libc::SYS_mmap, [0, PAGE, data, shared, u64::MAX, 0]);
        let protect = |to| call_in(pid, libc::SYS_mprotect, [page, PAGE, to, 0, 0, 0]);
        let memory = Memory::open(pid).unwrap();
        let (mut points, mut ledger) = (Points::default(), Ledger::create().unwrap());
        let at = TargetAddr(page);
        let roles = Roles::default();
        points.arm(&memory, &mut ledger, at, &[0], roles).unwrap();
        protect(libc::PROT_READ as u64);
        assert!(points.disarm(&memory, &mut ledger, at).is_err());
        assert!(points.get(at).is_some());
        assert_eq!(crate::ledger::read(ledger.file()).len(), 1);
        protect(data);
        points.disarm(&memory, &mut ledger, at).unwrap();
        assert!(points.get(at).is_none() && crate::ledger::read(ledger.file()).is_empty());
        assert_eq!(memory.read_word(at).unwrap(), 0);
        target.kill().unwrap();
        target.wait().unwrap();
    }
}
