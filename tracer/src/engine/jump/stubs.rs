//! The code that patched places lead to. Pure: bytes for an address, from values.
//!
//! Every stub keeps all registers, the flags and the red zone. A call that is not measured gets the
//! program's own return address; one that is measured returns to its stub.

use darc_disasm::{Gpr, Operand, Segment};
use iced_x86::code_asm::*;
use iced_x86::{ConditionCode, Instruction};

use super::asm::{
    Code, Emitted, SAVED, Surroundings, TOP, acquire, field, field32, restore, save, shadow, top,
    tsc,
};
use super::layout::{
    DESCRIPTORS, LIVE, TABLE, block, descriptor, entry, place, targets,
};
use super::runtime::{self, Runtime, nested};

/// What the ABI lets a function keep below its stack pointer (System V ABI for AMD64, 3.2.2).
const RED_ZONE: i32 = 128;

/// What a site enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// This address.
    Direct(u64),
    /// What the operand holds when the site is reached.
    Indirect(Operand),
}

/// What kind of site it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A call.
    Call(Callee),
    /// A jump out of the function, taken under the condition.
    Tail(Callee, Option<ConditionCode>),
    /// A system call, by a number that is always the same or not.
    Syscall {
        /// Whether calls are told apart by their number.
        by_number: bool,
    },
}

/// An instrumented site.
#[derive(Clone, Debug)]
pub struct Site {
    /// The function, as descriptors name it.
    pub function: u32,
    /// The site's index in the function.
    pub local: u32,
    /// What it does.
    pub kind: Kind,
    /// Instructions before it that the patch displaces too.
    pub before: Vec<Instruction>,
    /// The address of the instruction behind it.
    pub next: u64,
}

/// A stub ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Its code.
    pub bytes: Vec<u8>,
    /// Where the patch leads.
    pub entry: u64,
    /// For every displaced instruction where its copy is: (original, copy).
    pub moved: Vec<(u64, u64)>,
    /// A copied `syscall` instruction: the addresses behind the copies, which threads blocked in them have.
    pub behind_syscalls: Vec<u64>,
}

/// The labels and data of one stub under construction.
struct Builder<'a> {
    a: CodeAssembler,
    around: &'a Surroundings,
    runtime: &'a Runtime,
    moved: Vec<(u64, CodeLabel)>,
    behind_syscalls: Vec<CodeLabel>,
    /// Places to be written behind the code: where, the place's words, the label that is hidden there.
    places: Vec<(CodeLabel, PlaceData, Option<CodeLabel>)>,
    /// Code behind the common case.
    later: Vec<Later>,
}

#[derive(Clone, Copy)]
struct PlaceData {
    return_to: u64,
    kind: u32,
    function: u32,
    local: u32,
}

/// Code that is rarely run, placed behind the rest.
enum Later {
    /// Finds the block of a thread that is not at its first table position.
    Lookup { at: CodeLabel, back: CodeLabel, unknown: CodeLabel },
    /// As `Lookup`, for threads that may be new.
    Register { at: CodeLabel, back: CodeLabel, unknown: CodeLabel },
    /// Calls a routine and goes on.
    Call { at: CodeLabel, routine: u64, back: CodeLabel },
    /// Calls a routine; with the zero flag goes one way, else the other.
    Choose { at: CodeLabel, routine: u64, zero: CodeLabel, other: CodeLabel },
}

impl<'a> Builder<'a> {
    fn new(around: &'a Surroundings, runtime: &'a Runtime) -> Emitted<Builder<'a>> {
        Ok(Builder {
            a: CodeAssembler::new(64)?,
            around,
            runtime,
            moved: Vec::new(),
            behind_syscalls: Vec::new(),
            places: Vec::new(),
            later: Vec::new(),
        })
    }

    fn label(&mut self) -> CodeLabel {
        self.a.create_label()
    }

    fn displace(&mut self, instructions: &[Instruction]) -> Emitted<()> {
        for instruction in instructions {
            let mut at = self.label();
            self.a.set_label(&mut at)?;
            self.a.add_instruction(*instruction)?;
            self.moved.push((instruction.ip(), at));
        }
        Ok(())
    }

    /// rcx becomes the thread's block; unknown threads go to `unknown`.
    fn block(&mut self, unknown: CodeLabel) -> Emitted<()> {
        let (miss, mut back) = (self.label(), self.label());
        acquire(&mut self.a, self.around.control + TABLE, miss)?;
        self.a.set_label(&mut back)?;
        self.later.push(Later::Lookup { at: miss, back, unknown });
        Ok(())
    }

    /// A place; `hidden` is the label of the return address that stands in for the program's.
    fn place(&mut self, data: PlaceData, hidden: Option<CodeLabel>) -> CodeLabel {
        let at = self.label();
        self.places.push((at, data, hidden));
        at
    }

    fn finish(mut self, at: u64, entry: CodeLabel) -> Emitted<Stub> {
        for later in std::mem::take(&mut self.later) {
            self.later(later)?;
        }
        for (label, data, _) in &mut self.places {
            self.a.set_label(label)?;
            let words = [
                data.return_to,
                0,
                u64::from(data.kind) | u64::from(data.function) << 32,
                u64::from(data.local),
            ];
            self.a.dq(&words)?;
        }
        let code = Code::assemble(&mut self.a, at)?;
        let address = |label: &CodeLabel| code.address(label);
        let moved = self
            .moved
            .iter()
            .map(|(from, to)| Ok((*from, address(to)?)))
            .collect::<Emitted<Vec<_>>>()?;
        let behind_syscalls =
            self.behind_syscalls.iter().map(address).collect::<Emitted<Vec<_>>>()?;
        let hidden = self
            .places
            .iter()
            .filter_map(|(label, _, hidden)| hidden.as_ref().map(|hidden| (label, hidden)))
            .map(|(label, hidden)| Ok((address(label)? - at + place::HIDDEN, address(hidden)?)))
            .collect::<Emitted<Vec<_>>>()?;
        let entry = address(&entry)?;
        let mut bytes = code.bytes();
        for (offset, hidden) in hidden {
            bytes[offset as usize..offset as usize + 8].copy_from_slice(&hidden.to_le_bytes());
        }
        Ok(Stub { bytes, entry, moved, behind_syscalls })
    }

    fn later(&mut self, later: Later) -> Emitted<()> {
        let a = &mut self.a;
        match later {
            Later::Lookup { mut at, back, unknown } => {
                a.set_label(&mut at)?;
                a.call(self.runtime.lookup)?;
                a.test(rcx, rcx)?;
                a.jne(back)?;
                a.jmp(unknown)
            }
            Later::Register { mut at, back, unknown } => {
                a.set_label(&mut at)?;
                a.call(self.runtime.register)?;
                a.test(rcx, rcx)?;
                a.jne(back)?;
                a.jmp(unknown)
            }
            Later::Call { mut at, routine, back } => {
                a.set_label(&mut at)?;
                a.call(routine)?;
                a.jmp(back)
            }
            Later::Choose { mut at, routine, zero, other } => {
                a.set_label(&mut at)?;
                a.call(routine)?;
                a.je(zero)?;
                a.jmp(other)
            }
        }
    }

    /// Leaves the child's descriptor in rax, or goes to `pass`. rdx is the current descriptor.
    ///
    /// For callees told apart at run time `callee` is where in the frame the callee's address is.
    fn child(&mut self, site: &Site, place: CodeLabel, callee: Option<i32>, pass: CodeLabel) -> Emitted<()> {
        let local = i32::try_from(site.local).unwrap_or(i32::MAX / 8) * 8;
        let a = &mut self.a;
        a.mov(rdx, field(block::CURRENT))?;
        a.cmp(dword_ptr(rdx + descriptor::FUNCTION as i32), site.function as i32)?;
        a.jne(pass)?;
        a.mov(rax, qword_ptr(rdx + descriptor::CHILDREN as i32))?;
        a.mov(rax, qword_ptr(rax + local))?;
        a.test(rax, rax)?;
        a.je(pass)?;
        let Some(callee) = callee else { return Ok(()) };
        // The first position of the target table is looked at here, the others by the routine.
        let (mut slow, mut known) = (a.create_label(), a.create_label());
        a.mov(rdx, qword_ptr(rsp + callee))?;
        a.push(rdi)?;
        a.mov(rdi, rdx)?;
        a.shr(rdi, 4)?;
        a.and(edi, (targets::COUNT - 1) as i32)?;
        a.shl(edi, 4)?;
        a.cmp(qword_ptr(rax + rdi + targets::SLOTS as i32), rdx)?;
        a.jne(slow)?;
        a.cmp(qword_ptr(rax + rdi + (targets::SLOTS + 8) as i32), targets::UNMEASURED as i32)?;
        a.jbe(slow)?;
        a.mov(rax, qword_ptr(rax + rdi + (targets::SLOTS + 8) as i32))?;
        a.pop(rdi)?;
        a.jmp(known)?;
        a.set_label(&mut slow)?;
        a.pop(rdi)?;
        a.push(rsi)?;
        a.lea(rsi, ptr(place))?;
        a.call(self.runtime.target)?;
        a.pop(rsi)?;
        a.test(rax, rax)?;
        a.je(pass)?;
        a.set_label(&mut known)?;
        a.mov(rdx, field(block::CURRENT))
    }

    /// Puts an entry on the shadow stack: rdx the current descriptor, rax the child's, rdi the slot.
    fn enter(&mut self, place: CodeLabel) -> Emitted<()> {
        let a = &mut self.a;
        a.add(field(block::TOP), entry::SIZE as i32)?;
        a.mov(shadow(0, entry::SAVED), rdx)?;
        a.mov(shadow(0, entry::CHILD), rax)?;
        a.mov(shadow(0, entry::SLOT), rdi)?;
        a.mov(field(block::CURRENT), rax)?;
        a.lea(rax, ptr(place))?;
        a.mov(shadow(0, entry::PLACE), rax)
    }

    /// Starts the clock of the entry at rsi.
    fn start(&mut self) -> Emitted<()> {
        let a = &mut self.a;
        tsc(a)?;
        a.mov(shadow(0, entry::START), rax)?;
        a.sub(rax, field(block::STOLEN))?;
        a.mov(shadow(0, entry::ADJUSTED), rax)
    }

    /// The whole way in of a measured call, up to [`Builder::start`]; the frame is saved already.
    fn way_in(
        &mut self,
        site: &Site,
        place: CodeLabel,
        slot: i32,
        callee: Option<i32>,
        pass: CodeLabel,
    ) -> Emitted<()> {
        let [stale, slow, mut again, mut fresh] = std::array::from_fn(|_| self.label());
        self.block(pass)?;
        self.a.set_label(&mut again)?;
        top(&mut self.a)?;
        self.a.lea(rdi, qword_ptr(rsp + slot))?;
        self.a.cmp(rdi, shadow(TOP, entry::SLOT))?;
        match site.kind {
            // The frame that a tail call replaces has the same slot.
            Kind::Tail(..) => self.a.ja(stale)?,
            _ => self.a.jae(stale)?,
        }
        self.a.set_label(&mut fresh)?;
        self.child(site, place, callee, pass)?;
        self.a.cmp(rsi, field(block::LIMIT))?;
        self.a.jae(slow)?;
        self.enter(place)?;
        if let Kind::Tail(..) = site.kind {
            self.a.mov(rax, qword_ptr(rdi))?;
            self.a.mov(shadow(0, entry::RETURN_TO), rax)?;
        }
        self.start()?;
        self.later.push(Later::Call { at: stale, routine: self.runtime.stale, back: fresh });
        self.later.push(Later::Choose { at: slow, routine: self.runtime.slow, zero: pass, other: again });
        Ok(())
    }

    /// The way out of a measured call, up to taking the entry off; the frame is saved already and
    /// the clock's reading is the first thing taken. rsi is left at the entry, rdi is lost.
    fn way_out(&mut self, slot: i32, unknown: CodeLabel, lost: CodeLabel) -> Emitted<()> {
        let [search, mut matched, accumulate, credited, first] = std::array::from_fn(|_| self.label());
        tsc(&mut self.a)?;
        self.a.mov(rdi, rax)?;
        self.block(unknown)?;
        top(&mut self.a)?;
        self.a.lea(rdx, qword_ptr(rsp + slot))?;
        self.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
        self.a.jne(search)?;
        self.a.set_label(&mut matched)?;
        self.a.sub(rsi, entry::SIZE as i32)?;
        self.a.mov(rax, shadow(0, entry::CHILD))?;
        runtime::latency(&mut self.a, self.around.inside)?;
        self.a.add(field(block::STOLEN), self.around.outside)?;
        self.a.mov(eax, dword_ptr(rax + descriptor::NODE as i32))?;
        self.a.add(rax, rcx)?;
        runtime::credit(&mut self.a, accumulate, credited, first)?;
        self.a.mov(rdx, shadow(0, entry::SAVED))?;
        self.a.mov(field(block::CURRENT), rdx)?;
        self.a.mov(field(block::TOP), rsi)?;
        self.later.push(Later::Choose { at: search, routine: self.runtime.find, zero: matched, other: lost });
        self.later.push(Later::Call { at: first, routine: self.runtime.first, back: accumulate });
        Ok(())
    }
}
