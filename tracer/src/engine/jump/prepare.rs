//! From what the plan wants to patches: room for the jump, the stub's code, the jump.
//!
//! Stubs are written while the target runs; nothing leads to them yet.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use darc_disasm::{CallSite, Condition, FunctionCode, NoMemory, SiteKind, Target, call_sites};
use iced_x86::{FlowControl, Instruction};

use crate::addr::TargetAddr;
use crate::error::Result;
use crate::memory::Memory;

use super::asm::{Emitted, Surroundings};
use super::installed::{CodeArena, Installed};
use super::patches::Patch;
use super::runtime::Runtime;
use super::spans::{Last, View};
use super::stubs::{self, Callee, Entry, F0End, Hook, Kind, Site, Stub};
use super::tree::{Place, Tree, told_apart};

/// Room that any stub fits in, with its displaced instructions.
pub const STUB_ROOM: u64 = 2048;

/// Why something is not instrumented, for people.
pub type Reason = String;

/// A patch, and what else follows from its stub.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What to write.
    pub patch: Patch,
    /// Copied system calls: the address behind each copy, and the one behind the original.
    pub behind_syscalls: Vec<(u64, u64)>,
}

/// System calls that return somewhere else, twice, or not at all.
const NOT_MEASURED: [(u32, &str); 5] = [
    (15, "rt_sigreturn"),
    (56, "clone"),
    (57, "fork"),
    (58, "vfork"),
    (435, "clone3"),
];

/// Whether calls of this number must be left alone.
#[must_use]
pub fn returns_strangely(number: u64) -> bool {
    NOT_MEASURED.iter().any(|&(known, _)| u64::from(known) == number)
}

/// A function that is instrumented.
#[derive(Debug)]
pub struct Function {
    code: Arc<FunctionCode>,
    view: View,
    calls: HashMap<u64, CallSite>,
}

impl Function {
    /// Looks at a function's code.
    #[must_use]
    pub fn new(code: Arc<FunctionCode>) -> Function {
        let view = View::new(&code);
        let calls = call_sites(&code, &NoMemory).sites;
        let calls = calls.into_iter().map(|call| (call.addr, call)).collect();
        Function { code, view, calls }
    }

    /// Whether it is about the same code.
    #[must_use]
    pub fn is_of(&self, code: &FunctionCode) -> bool {
        *self.code == *code
    }

    /// The bytes that f0's entry patch replaces.
    ///
    /// # Errors
    /// Why there is no room for it.
    pub fn entry_range(&self) -> std::result::Result<(u64, u64), Reason> {
        let range = self.view.at_entry(self.code.entry()).map_err(|reason| reason.to_string())?;
        let instructions = &self.view.instructions()[range];
        Ok((instructions[0].ip(), instructions[instructions.len() - 1].next_ip()))
    }

    fn original(&self, range: &Range<usize>) -> Option<(u64, Vec<u8>)> {
        let instructions = &self.view.instructions()[range.clone()];
        let (first, last) = (instructions.first()?, instructions.last()?);
        let len = usize::try_from(last.next_ip().checked_sub(first.ip())?).ok()?;
        Some((first.ip(), self.code.bytes_at(first.ip(), len)?.to_vec()))
    }

    /// A site as the stub needs it, with the instructions to be replaced.
    fn site(&self, call: &CallSite, place: Place) -> std::result::Result<(Site, Range<usize>), Reason> {
        let (kind, last) = match call.kind {
            SiteKind::Call(target) => (Kind::Call(callee(target)), Last::Included),
            SiteKind::TailJump { target, condition } => {
                let condition = condition.map(Condition::to_iced);
                (Kind::Tail(callee(target), condition), Last::Included)
            }
            SiteKind::Syscall { number } => {
                let strange = NOT_MEASURED.iter().find(|(known, _)| Some(*known) == number);
                if let Some((_, name)) = strange {
                    return Err(format!("{name} does not return like other system calls"));
                }
                let by_number = told_apart(&call.kind);
                (Kind::Syscall { by_number }, Last::Excluded)
            }
        };
        let range = self.view.before(call.addr, last).map_err(|reason| reason.to_string())?;
        let before = match last {
            Last::Included => range.start..range.end - 1,
            Last::Excluded => range.clone(),
        };
        let site = Site {
            function: place.function,
            local: place.local,
            kind,
            before: self.view.instructions()[before].to_vec(),
            next: call.next(),
        };
        Ok((site, range))
    }

    /// The displaced instructions of the entry; a call among them keeps its own return address, and is
    /// a site of the tree.
    fn entry(&self, tree: &mut Tree) -> std::result::Result<(Entry, Range<usize>), Reason> {
        let range = self.view.at_entry(self.code.entry()).map_err(|reason| reason.to_string())?;
        let displaced = self.view.instructions()[range.clone()].to_vec();
        let last = displaced.last().expect("a jump takes some bytes");
        let calls = matches!(last.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        let leaves = self.calls.get(&last.ip()).filter(|call| !matches!(call.kind, SiteKind::Syscall { .. }));
        let site = match leaves {
            Some(call) => {
                let place = tree.place(self.code.entry(), call.addr);
                let kind = match call.kind {
                    SiteKind::Call(target) => Kind::Call(callee(target)),
                    SiteKind::TailJump { target, condition } => {
                        Kind::Tail(callee(target), condition.map(Condition::to_iced))
                    }
                    SiteKind::Syscall { .. } => return Err("it begins with a system call".to_owned()),
                };
                Some(Site {
                    function: place.function,
                    local: place.local,
                    kind,
                    before: Vec::new(),
                    next: call.next(),
                })
            }
            None if calls => return Err("it begins with a call that cannot be moved".to_owned()),
            None => None,
        };
        let next = last.next_ip();
        Ok((Entry { displaced, site, next }, range))
    }

    /// The `ret` instructions with what is displaced before each, if the end of every call can be
    /// noticed by them.
    fn returns(&self) -> Option<Vec<Range<usize>>> {
        let instructions = self.view.instructions();
        let (start, _) = self.entry_range().ok()?;
        // A jump to the entry is no new call, which only a hidden return address tells.
        let plain = !self.view.is_target(start)
            && !self.view.is_target(self.code.entry())
            && instructions.iter().all(|i| !i.is_invalid())
            && !self.calls.values().any(|call| matches!(call.kind, SiteKind::TailJump { .. }));
        if !plain {
            return None;
        }
        let entry = self.view.at_entry(self.code.entry()).ok()?;
        let ends = instructions.iter().filter(|i| i.flow_control() == FlowControl::Return);
        let ranges: Vec<_> = ends
            .map(|ret| self.view.before(ret.ip(), Last::Included).ok())
            .collect::<Option<_>>()?;
        let apart = ranges.iter().all(|range| range.start >= entry.end || range.end <= entry.start);
        (apart && !ranges.is_empty()).then_some(ranges)
    }
}

fn callee(target: Target) -> Callee {
    match target {
        Target::Direct(to) => Callee::Direct(to),
        Target::Indirect(operand) => Callee::Indirect(operand),
    }
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
        let Some(CodeArena { arena, runtime }) = self.installed.arena_near(near, STUB_ROOM) else {
            return Ok(Err("there is no memory left near it for the probe's code".to_owned()));
        };
        match emit(arena.next().0, &around, runtime) {
            Ok(stub) => {
                arena.place(self.memory, &stub.bytes)?;
                Ok(Ok(stub))
            }
            Err(error) => Ok(Err(format!("its instructions cannot be moved: {error}"))),
        }
    }

    fn prepared(
        &mut self,
        at: u64,
        original: Vec<u8>,
        emit: impl FnOnce(u64, &Surroundings, &Runtime) -> Emitted<Stub>,
    ) -> Result<std::result::Result<Prepared, Reason>> {
        let stub = match self.place(at, emit)? {
            Ok(stub) => stub,
            Err(reason) => return Ok(Err(reason)),
        };
        let moved = stub.moved.clone();
        Ok(match Patch::jump(at, original, stub.entry, moved) {
            Some(patch) => Ok(Prepared { patch, behind_syscalls: Vec::new() }),
            None => Err("the instructions to be replaced are too long".to_owned()),
        })
    }

    /// Prepares a call site.
    ///
    /// # Errors
    /// When the target is gone; the inner error says why the site is left alone.
    pub fn site(&mut self, function: &Function, call: &CallSite) -> Result<std::result::Result<Prepared, Reason>> {
        let place = self.tree.place(function.code.entry(), call.addr);
        let (site, range) = match function.site(call, place) {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some((at, original)) = function.original(&range) else {
            return Ok(Err("its bytes are not at hand".to_owned()));
        };
        let mut behind = Vec::new();
        let prepared = self.prepared(at, original, |at, around, runtime| {
            let stub = stubs::site(at, &site, around, runtime)?;
            behind = stub.behind_syscalls.iter().map(|&copy| (copy, site.next)).collect();
            Ok(stub)
        })?;
        Ok(prepared.map(|prepared| Prepared { behind_syscalls: behind, ..prepared }))
    }

    /// Prepares f0: its entry, and its returns where they can be patched.
    ///
    /// # Errors
    /// As [`Stubs::site`].
    pub fn f0(&mut self, function: &Function) -> Result<std::result::Result<Vec<Prepared>, Reason>> {
        let (entry, range) = match function.entry(self.tree) {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some((at, original)) = function.original(&range) else {
            return Ok(Err("its bytes are not at hand".to_owned()));
        };
        let mut patches = Vec::new();
        let mut end = F0End::PatchedReturns;
        for range in function.returns().unwrap_or_default() {
            match self.ret(function, &range)? {
                Ok(prepared) => patches.push(prepared),
                Err(_) => end = F0End::HiddenReturn,
            }
        }
        if patches.is_empty() || end == F0End::HiddenReturn {
            (patches, end) = (Vec::new(), F0End::HiddenReturn);
        }
        let prepared = self.prepared(at, original, |at, around, runtime| {
            stubs::f0(at, &entry, end, around, runtime)
        })?;
        Ok(prepared.map(|prepared| {
            // The entry last: an op that has begun must find its end.
            patches.push(prepared);
            patches
        }))
    }

    fn ret(&mut self, function: &Function, range: &Range<usize>) -> Result<std::result::Result<Prepared, Reason>> {
        let Some((at, original)) = function.original(range) else {
            return Ok(Err("its bytes are not at hand".to_owned()));
        };
        let displaced: &[Instruction] = &function.view.instructions()[range.clone()];
        let (ret, before) = displaced.split_last().expect("a range has a last instruction");
        self.prepared(at, original, |at, around, runtime| stubs::ret(at, before, *ret, around, runtime))
    }

    /// Prepares a hook at a function's entry.
    ///
    /// # Errors
    /// As [`Stubs::site`].
    pub fn hook(&mut self, function: &Function, hook: Hook) -> Result<std::result::Result<Prepared, Reason>> {
        let (entry, range) = match function.entry(self.tree) {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some((at, original)) = function.original(&range) else {
            return Ok(Err("its bytes are not at hand".to_owned()));
        };
        self.prepared(at, original, |at, around, runtime| stubs::hook(at, &entry, hook, around, runtime))
    }
}

/// The beginning of a function of which nothing is known but its address.
#[must_use]
pub fn beginning(memory: &Memory, addr: TargetAddr) -> Option<Function> {
    const BYTES: usize = 64;
    let mut bytes = vec![0; BYTES];
    memory.read(addr, &mut bytes).ok()?;
    let part = darc_disasm::CodePart { start: addr.0, bytes };
    FunctionCode::new(vec![part]).map(|code| Function::new(Arc::new(code)))
}
