//! From what the plan wants to stubs, and from where in the text control is to come to them.
//!
//! Stubs are written while the target runs; nothing leads to them yet.

use crate::error::Result;
use crate::memory::Memory;
use crate::plan::Mark;

use super::asm::{Emitted, Surroundings};
use super::flags::{self, Flags};
use super::function::{Function, Purpose};
use super::installed::Installed;
use super::jumps::Diversion;
use super::runtime::Runtime;
use super::spans::NoRoom;
use super::stubs::{self, Callee, Counter, Item, Kind, Site, SiteFlags, Stub, Unwinding};
use super::tree::Tree;

/// Room that any stub fits in, with its displaced instructions.
pub const STUB_ROOM: u64 = 8 << 10;

/// Why something is not instrumented, for people.
pub type Reason = String;

/// What the entry of a function that is not f0 is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hook {
    /// It has to do with unwinding.
    Unwinding(Unwinding),
    /// Its calls are counted.
    Counted(Counter),
    /// By it the program says when it is to be measured.
    Marker(Mark),
    /// By it an op hands a request over.
    Enqueue,
    /// By it goroutines stop and go on.
    Statuses,
    /// By it unwinders find what is known of an address of code.
    Finder,
}

/// A stub, and from where control is to come to it.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// From where.
    pub diversion: Diversion,
    /// Copied system calls: the address behind each copy, and the one behind the original.
    pub behind_syscalls: Vec<(u64, u64)>,
}

/// Emits stubs into the arenas.
pub struct Stubs<'a> {
    /// The mappings.
    pub installed: &'a mut Installed,
    /// The target's memory.
    pub memory: &'a Memory,
    /// Where sites get their names.
    pub tree: &'a mut Tree,
}

impl Stubs<'_> {
    fn place(
        &mut self,
        near: u64,
        emit: impl FnOnce(u64, &Surroundings, &Runtime) -> Emitted<Stub>,
    ) -> Result<std::result::Result<Stub, Reason>> {
        let around = self.installed.around;
        let Some(code) = self.installed.arena_near(near, STUB_ROOM) else {
            return Ok(Err(self.installed.lack(near)));
        };
        match emit(code.arena.next().0, &around, &code.runtime) {
            Ok(stub) => {
                code.place(self.memory, &stub.bytes, &stub.frames)?;
                Ok(Ok(stub))
            }
            Err(error) => Ok(Err(format!("its instructions cannot be moved: {error}"))),
        }
    }

    /// What becomes of the flags around a site.
    fn flags_at(&self, site: &Site) -> SiteFlags {
        let behind = flags::at(self.memory, site.next, None);
        match site.kind {
            Kind::Call(Callee::Direct(to)) => SiteFlags {
                entering: flags::at(self.memory, to, Some(site.next)),
                returning: behind,
            },
            // The kernel gives them back as they were.
            Kind::Syscall { .. } => SiteFlags {
                entering: behind,
                returning: behind,
            },
            Kind::Call(Callee::Indirect(_)) => SiteFlags {
                entering: Flags::Matter,
                returning: behind,
            },
            Kind::Tail(Callee::Direct(to), _) => SiteFlags {
                entering: flags::at(self.memory, to, None),
                returning: Flags::Matter,
            },
            Kind::Tail(Callee::Indirect(_), _) => SiteFlags::default(),
        }
    }

    /// Prepares the group at an address. `hook` says what the entry of a function that is not f0 is for.
    ///
    /// # Errors
    /// When the target is gone; the inner error says why the group is left alone.
    pub fn group(
        &mut self,
        function: &Function,
        at: u64,
        hook: Option<Hook>,
    ) -> Result<std::result::Result<Prepared, Reason>> {
        let Some((mut region, purpose)) = function.region(at, self.tree) else {
            return Ok(Err(NoRoom::NoInstruction.to_string()));
        };
        let Some(original) = function.bytes(at) else {
            return Ok(Err("its bytes are not at hand".to_owned()));
        };
        for item in &mut region.items {
            match item {
                Item::Site(site) => site.flags = self.flags_at(site),
                Item::Landing(landing) => {
                    landing.flags = flags::at(self.memory, landing.addr, None)
                }
                Item::Plain(_) | Item::Ret(_) | Item::End(..) => {}
            }
        }
        let flags = flags::at(self.memory, at, None);
        let Some(root) = self.tree.descriptor(function.ops().tree.root()) else {
            return Ok(Err("there are too many fnodes".to_owned()));
        };
        let stub = self.place(at, |at, around, runtime| match (purpose, hook) {
            (Purpose::Entry, None) => {
                let f0 = stubs::F0 {
                    end: function.end(),
                    ops: function.ops(),
                    root,
                    flags,
                };
                match around.goroutines {
                    Some(_) => {
                        let depth = function.depth();
                        stubs::f0_of_goroutines(at, &region, f0, depth, around, runtime)
                    }
                    None => stubs::f0(at, &region, f0, around, runtime),
                }
            }
            (Purpose::Entry, Some(Hook::Counted(counter))) => {
                stubs::counted(at, &region, function.end(), counter, around, runtime)
            }
            (Purpose::Ret, Some(Hook::Counted(_))) => {
                stubs::counted_returns(at, &region, around, runtime)
            }
            (Purpose::Entry, Some(Hook::Marker(mark))) => {
                stubs::marker(at, &region, mark, around, runtime)
            }
            (Purpose::Entry, Some(Hook::Enqueue)) => {
                let chain = function.ops().chain.as_ref();
                stubs::enqueue(at, &region, chain, around, runtime)
            }
            (Purpose::Entry, Some(Hook::Finder)) => stubs::finder(at, &region, around, runtime),
            (Purpose::Entry, Some(Hook::Statuses)) => {
                stubs::statuses(at, &region, function.depth(), around, runtime)
            }
            (Purpose::Entry, Some(Hook::Unwinding(unwinding))) => {
                stubs::unwinding(at, &region, unwinding, around, runtime)
            }
            (Purpose::Sites | Purpose::Ret, _) => stubs::region(at, &region, around, runtime),
        })?;
        let stub = match stub {
            Ok(stub) => stub,
            Err(reason) => return Ok(Err(reason)),
        };
        let next = match region.items.last() {
            Some(Item::Site(site)) => site.next,
            _ => region.next,
        };
        let behind_syscalls = stub
            .behind_syscalls
            .iter()
            .map(|&copy| (copy, next))
            .collect();
        Ok(Ok(Prepared {
            diversion: Diversion {
                at,
                original,
                before: function.bytes_before(at),
                to: stub.entry,
                arrival: region.arrival,
                moved: stub.moved,
                next,
                landings: region.landings(),
            },
            behind_syscalls,
        }))
    }
}
