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
use super::layout::{DESCRIPTORS, LIVE, TABLE, block, descriptor, entry, place, targets};
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The function, as descriptors name it.
    pub function: u32,
    /// The site's index in the function.
    pub local: u32,
    /// What it does.
    pub kind: Kind,
    /// The address of its instruction.
    pub addr: u64,
    /// The address of the instruction behind it.
    pub next: u64,
}

/// One instruction that a patch displaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// Nothing is to be noticed at it.
    Plain(Instruction),
    /// A site.
    Site(Site),
    /// A `ret` of an f0 whose ends are noticed by them.
    Ret(Instruction),
}

impl Item {
    fn addr(&self) -> u64 {
        match self {
            Item::Plain(instruction) | Item::Ret(instruction) => instruction.ip(),
            Item::Site(site) => site.addr,
        }
    }
}

/// What a patch displaces: instructions in a row of which only the last may be a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// The instructions.
    pub items: Vec<Item>,
    /// The address behind them, where the rest goes on.
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
    Lookup {
        at: CodeLabel,
        back: CodeLabel,
        unknown: CodeLabel,
    },
    /// As `Lookup`, for threads that may be new.
    Register {
        at: CodeLabel,
        back: CodeLabel,
        unknown: CodeLabel,
    },
    /// Calls a routine and goes on.
    Call {
        at: CodeLabel,
        routine: u64,
        back: CodeLabel,
    },
    /// Calls a routine; with the zero flag goes one way, else the other.
    Choose {
        at: CodeLabel,
        routine: u64,
        zero: CodeLabel,
        other: CodeLabel,
    },
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

    /// Appends the copy of what a patch displaces, and the way back to the rest.
    fn region(&mut self, region: &Region) -> Emitted<()> {
        for (index, item) in region.items.iter().enumerate() {
            let mut at = self.label();
            self.a.set_label(&mut at)?;
            // The assembler takes one label an instruction, and what follows may bring its own.
            self.a.nop()?;
            self.moved.push((item.addr(), at));
            let last = index + 1 == region.items.len();
            match item {
                Item::Plain(instruction) => self.a.add_instruction(*instruction)?,
                Item::Ret(instruction) => ret(self, *instruction)?,
                Item::Site(site) => {
                    let after = self.label();
                    append_site(self, site, if last { None } else { Some(after) })?;
                    if !last {
                        let mut after = after;
                        self.a.set_label(&mut after)?;
                        self.a.nop()?;
                    }
                }
            }
        }
        self.a.jmp(region.next)
    }

    /// rcx becomes the thread's block and rsi its first free entry; unknown threads go to `unknown`.
    /// Returns the label where rsi is read.
    fn block(&mut self, unknown: CodeLabel) -> Emitted<CodeLabel> {
        let (miss, mut back) = (self.label(), self.label());
        acquire(&mut self.a, self.around.control + TABLE, miss)?;
        self.a.set_label(&mut back)?;
        top(&mut self.a)?;
        self.later.push(Later::Lookup {
            at: miss,
            back,
            unknown,
        });
        Ok(back)
    }

    fn place(&mut self, data: PlaceData) -> CodeLabel {
        let at = self.label();
        self.places.push((at, data, None));
        at
    }

    /// Here measured calls of the last place return to, instead of to the program's return address.
    fn returns_here(&mut self) -> Emitted<()> {
        let mut here = self.label();
        self.a.set_label(&mut here)?;
        if let Some((_, _, hidden)) = self.places.last_mut() {
            *hidden = Some(here);
        }
        Ok(())
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
        let behind_syscalls = self
            .behind_syscalls
            .iter()
            .map(address)
            .collect::<Emitted<Vec<_>>>()?;
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
        Ok(Stub {
            bytes,
            entry,
            moved,
            behind_syscalls,
        })
    }

    fn later(&mut self, later: Later) -> Emitted<()> {
        let a = &mut self.a;
        match later {
            Later::Lookup {
                mut at,
                back,
                unknown,
            } => {
                a.set_label(&mut at)?;
                a.call(self.runtime.lookup)?;
                a.test(rcx, rcx)?;
                a.jne(back)?;
                a.jmp(unknown)
            }
            Later::Register {
                mut at,
                back,
                unknown,
            } => {
                a.set_label(&mut at)?;
                a.call(self.runtime.register)?;
                a.test(rcx, rcx)?;
                a.jne(back)?;
                a.jmp(unknown)
            }
            Later::Call {
                mut at,
                routine,
                back,
            } => {
                a.set_label(&mut at)?;
                a.call(routine)?;
                a.jmp(back)
            }
            Later::Choose {
                mut at,
                routine,
                zero,
                other,
            } => {
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
    fn child(
        &mut self,
        site: &Site,
        place: CodeLabel,
        callee: Option<i32>,
        pass: CodeLabel,
    ) -> Emitted<()> {
        let local = i32::try_from(site.local).unwrap_or(i32::MAX / 8) * 8;
        let a = &mut self.a;
        a.mov(rdx, field(block::CURRENT))?;
        a.cmp(
            dword_ptr(rdx + descriptor::FUNCTION as i32),
            site.function as i32,
        )?;
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
        a.cmp(
            qword_ptr(rax + rdi + (targets::SLOTS + 8) as i32),
            targets::UNMEASURED as i32,
        )?;
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
        let [stale, slow, mut fresh] = std::array::from_fn(|_| self.label());
        let again = self.block(pass)?;
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
        self.later.push(Later::Call {
            at: stale,
            routine: self.runtime.stale,
            back: fresh,
        });
        self.later.push(Later::Choose {
            at: slow,
            routine: self.runtime.slow,
            zero: pass,
            other: again,
        });
        Ok(())
    }

    /// The way out of a measured call, up to taking the entry off; the frame is saved already and
    /// the clock's reading is the first thing taken. rsi is left at the entry, rdi is lost.
    fn way_out(&mut self, slot: i32, unknown: CodeLabel, lost: CodeLabel) -> Emitted<()> {
        let [search, mut matched, accumulate, credited, first] =
            std::array::from_fn(|_| self.label());
        tsc(&mut self.a)?;
        self.a.mov(rdi, rax)?;
        self.block(unknown)?;
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
        self.later.push(Later::Choose {
            at: search,
            routine: self.runtime.find,
            zero: matched,
            other: lost,
        });
        self.later.push(Later::Call {
            at: first,
            routine: self.runtime.first,
            back: accumulate,
        });
        Ok(())
    }
}

/// Emits the stub of a patch in the middle of a function.
pub fn region(at: u64, region: &Region, around: &Surroundings, runtime: &Runtime) -> Emitted<Stub> {
    let mut b = Builder::new(around, runtime)?;
    let mut start = b.label();
    if let [Item::Site(site)] = &region.items[..] {
        // By far the most frequent case.
        b.a.set_label(&mut start)?;
        append_site(&mut b, site, None)?;
    } else {
        b.a.set_label(&mut start)?;
        b.a.nop()?;
        b.region(region)?;
    }
    b.finish(at, start)
}

/// Appends a site; a conditional jump that is not taken goes on at `after`, or in the text.
fn append_site(b: &mut Builder<'_>, site: &Site, after: Option<CodeLabel>) -> Emitted<()> {
    match site.kind {
        Kind::Call(Callee::Direct(to)) => direct_call(b, site, to),
        Kind::Call(Callee::Indirect(operand)) => indirect_call(b, site, operand),
        Kind::Tail(callee, condition) => tail_jump(b, site, callee, condition, after),
        Kind::Syscall { by_number } => system_call(b, site, by_number),
    }
}

fn site_place(b: &mut Builder<'_>, site: &Site, return_to: u64) -> CodeLabel {
    b.place(PlaceData {
        return_to,
        kind: place::CALL,
        function: site.function,
        local: site.local,
    })
}

fn direct_call(b: &mut Builder<'_>, site: &Site, to: u64) -> Emitted<()> {
    const SLOT: i32 = SAVED - 8;
    let [mut pass, mut leave, mut balanced] = std::array::from_fn(|_| b.label());
    let place = site_place(b, site, site.next);
    save(&mut b.a)?;
    b.way_in(site, place, SLOT, None, pass)?;
    restore(&mut b.a)?;
    b.a.call(to)?;
    b.returns_here()?;
    save(&mut b.a)?;
    b.way_out(SLOT, leave, leave)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a)?;
    // Calls, so that the processor's stack of return addresses stays balanced.
    b.a.call(balanced)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut balanced)?;
    b.a.lea(rsp, qword_ptr(rsp + 8))?;
    b.a.push(qword_ptr(place))?;
    b.a.jmp(to)
}

/// Leaves the callee's address in the frame: at the original rsp - 16.
fn indirect_call(b: &mut Builder<'_>, site: &Site, operand: Operand) -> Emitted<()> {
    /// The frame: two words for the callee, then what `save` saves.
    const FRAME: i32 = SAVED + 16;
    const SLOT: i32 = FRAME - 8;
    const CALLEE: i32 = FRAME - 16;
    let [mut pass, mut leave, mut balanced] = std::array::from_fn(|_| b.label());
    let place = site_place(b, site, site.next);
    b.a.lea(rsp, qword_ptr(rsp - 16))?;
    b.a.push(rax)?;
    load(&mut b.a, operand, 24)?;
    b.a.mov(qword_ptr(rsp + 8), rax)?;
    b.a.pop(rax)?;
    save(&mut b.a)?;
    b.way_in(site, place, SLOT, Some(CALLEE), pass)?;
    restore(&mut b.a)?;
    b.a.lea(rsp, qword_ptr(rsp + 16))?;
    b.a.call(qword_ptr(rsp - 16))?;
    b.returns_here()?;
    save(&mut b.a)?;
    b.way_out(SAVED - 8, leave, leave)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a)?;
    b.a.lea(rsp, qword_ptr(rsp + 16))?;
    b.a.call(balanced)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut balanced)?;
    b.a.lea(rsp, qword_ptr(rsp + 8))?;
    b.a.push(qword_ptr(place))?;
    b.a.jmp(qword_ptr(rsp - 8))
}

fn tail_jump(
    b: &mut Builder<'_>,
    site: &Site,
    callee: Callee,
    condition: Option<ConditionCode>,
    after: Option<CodeLabel>,
) -> Emitted<()> {
    let [mut pass, mut leave, mut lost, mut end, mut taken] = std::array::from_fn(|_| b.label());
    if let Some(condition) = condition {
        jump_if(&mut b.a, condition, taken)?;
        match after {
            Some(after) => b.a.jmp(after)?,
            None => b.a.jmp(site.next)?,
        }
        b.a.set_label(&mut taken)?;
    }
    let place = site_place(b, site, 0);
    // An indirect jump's callee is kept at the original rsp - 16; a direct one needs no room.
    let room = match callee {
        Callee::Direct(_) => 0,
        Callee::Indirect(operand) => {
            b.a.lea(rsp, qword_ptr(rsp - 16))?;
            b.a.push(rax)?;
            load(&mut b.a, operand, 24)?;
            b.a.mov(qword_ptr(rsp + 8), rax)?;
            b.a.pop(rax)?;
            16
        }
    };
    save(&mut b.a)?;
    let told_apart = (room != 0).then_some(SAVED);
    b.way_in(site, place, SAVED + room, told_apart, pass)?;
    restore(&mut b.a)?;
    b.a.lea(rsp, qword_ptr(rsp + (room + 8)))?;
    match callee {
        Callee::Direct(to) => b.a.call(to)?,
        Callee::Indirect(_) => b.a.call(qword_ptr(rsp - 24))?,
    }
    b.returns_here()?;
    b.a.lea(rsp, qword_ptr(rsp - 8))?;
    save(&mut b.a)?;
    b.way_out(SAVED, lost, lost)?;
    b.a.mov(rax, shadow(0, entry::RETURN_TO))?;
    b.a.mov(qword_ptr(rsp + SAVED), rax)?;
    // The replaced frame returns by the same slot. Where that is f0 without a hidden return address,
    // nothing else will notice.
    b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    b.a.je(end)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a)?;
    b.a.ret()?;
    b.a.set_label(&mut end)?;
    let hides = b.label();
    let runtime = b.runtime;
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    b.a.jne(hides)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.a.sub(rsi, entry::SIZE as i32)?;
    b.a.call(runtime.end)?;
    let mut hides = hides;
    b.a.set_label(&mut hides)?;
    b.a.jmp(leave)?;
    b.a.set_label(&mut lost)?;
    return_from_anywhere(b, leave)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a)?;
    match callee {
        Callee::Direct(to) => b.a.jmp(to),
        Callee::Indirect(_) => {
            b.a.lea(rsp, qword_ptr(rsp + 16))?;
            b.a.jmp(qword_ptr(rsp - 16))
        }
    }
}

/// A return address was hidden by another thread, or by nobody who is known: asks all threads.
fn return_from_anywhere(b: &mut Builder<'_>, leave: CodeLabel) -> Emitted<()> {
    b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
    b.a.call(b.runtime.anywhere)?;
    b.a.mov(qword_ptr(rsp + SAVED), rax)?;
    b.a.jmp(leave)
}

fn system_call(b: &mut Builder<'_>, site: &Site, by_number: bool) -> Emitted<()> {
    /// Below the red zone nothing else has this address as long as the call lasts.
    const SLOT: i32 = SAVED - 8;
    /// Where `save` put rax, the number.
    const NUMBER: i32 = SAVED - 8;
    let [mut pass, mut leave] = std::array::from_fn(|_| b.label());
    let place = site_place(b, site, site.next);
    b.a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    save(&mut b.a)?;
    b.way_in(site, place, SLOT, by_number.then_some(NUMBER), pass)?;
    restore(&mut b.a)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))?;
    b.a.syscall()?;
    let mut measured = b.label();
    b.a.set_label(&mut measured)?;
    b.behind_syscalls.push(measured);
    b.a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    save(&mut b.a)?;
    b.way_out(SLOT, leave, leave)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))?;
    // The instruction leaves the address behind it in rcx.
    b.a.mov(rcx, site.next)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))?;
    b.a.syscall()?;
    let mut plain = b.label();
    b.a.set_label(&mut plain)?;
    b.behind_syscalls.push(plain);
    b.a.mov(rcx, site.next)?;
    b.a.jmp(site.next)
}

/// Loads the operand into rax; `pushed` bytes have been pushed since the program's own code, and rax
/// still has the program's value.
fn load(a: &mut CodeAssembler, operand: Operand, pushed: i32) -> Emitted<()> {
    let register = |gpr: Gpr| -> AsmRegister64 {
        [
            rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
        ][gpr as usize]
    };
    let memory = match operand {
        Operand::Register(Gpr::Rsp) => return a.lea(rax, qword_ptr(rsp + pushed)),
        Operand::Register(gpr) => return a.mov(rax, register(gpr)),
        Operand::Memory(memory) => memory,
    };
    let shift = if memory.base == Some(Gpr::Rsp) {
        i64::from(pushed)
    } else {
        0
    };
    let displacement = memory.displacement.wrapping_add(shift);
    let at = match (memory.base, memory.index) {
        (None, None) if memory.segment == Segment::None => {
            a.mov(rax, displacement)?;
            return a.mov(rax, qword_ptr(rax));
        }
        (Some(base), Some((index, scale))) => {
            register(base) + register(index) * i32::from(scale) + displacement
        }
        (Some(base), None) => register(base) + displacement,
        (None, Some((index, scale))) => register(index) * i32::from(scale) + displacement,
        (None, None) => return a.mov(rax, segment(qword_ptr(displacement), memory.segment)),
    };
    a.mov(rax, segment(qword_ptr(at), memory.segment))
}

fn segment(operand: AsmMemoryOperand, segment: Segment) -> AsmMemoryOperand {
    match segment {
        Segment::None => operand,
        Segment::Fs => operand.fs(),
        Segment::Gs => operand.gs(),
    }
}

fn jump_if(a: &mut CodeAssembler, condition: ConditionCode, to: CodeLabel) -> Emitted<()> {
    match condition {
        ConditionCode::o => a.jo(to),
        ConditionCode::no => a.jno(to),
        ConditionCode::b => a.jb(to),
        ConditionCode::ae => a.jae(to),
        ConditionCode::e => a.je(to),
        ConditionCode::ne => a.jne(to),
        ConditionCode::be => a.jbe(to),
        ConditionCode::a => a.ja(to),
        ConditionCode::s => a.js(to),
        ConditionCode::ns => a.jns(to),
        ConditionCode::p => a.jp(to),
        ConditionCode::np => a.jnp(to),
        ConditionCode::l => a.jl(to),
        ConditionCode::ge => a.jge(to),
        ConditionCode::le => a.jle(to),
        ConditionCode::g => a.jg(to),
        ConditionCode::None => a.jmp(to),
    }
}

/// What the end of f0 is noticed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum F0End {
    /// Its return address is replaced.
    HiddenReturn,
    /// Its `ret` instructions are patched, all of them; see [`ret`].
    PatchedReturns,
}

/// Emits the stub of f0's entry.
pub fn f0(
    at: u64,
    f0: &Region,
    end: F0End,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(around, runtime)?;
    let [
        mut start,
        miss,
        mut known,
        mut pass,
        busy,
        mut go,
        mut inside,
        mut leave,
    ] = std::array::from_fn(|_| b.label());
    let ignored = b.place(PlaceData {
        return_to: 0,
        kind: place::IGNORED,
        function: 0,
        local: 0,
    });
    let op = b.place(PlaceData {
        return_to: 0,
        kind: place::F0,
        function: 0,
        local: 0,
    });
    b.a.set_label(&mut start)?;
    save(&mut b.a)?;
    acquire(&mut b.a, around.control + TABLE, miss)?;
    b.a.set_label(&mut known)?;
    b.later.push(Later::Register {
        at: miss,
        back: known,
        unknown: pass,
    });
    if let Some(offset) = around.tid_offset {
        // A new thread may have the thread pointer of one that is gone.
        let (renew, mut same) = (b.label(), b.label());
        b.a.mov(eax, dword_ptr(offset).fs())?;
        b.a.cmp(eax, field32(block::TID))?;
        b.a.jne(renew)?;
        b.a.set_label(&mut same)?;
        b.later.push(Later::Call {
            at: renew,
            routine: runtime.renew,
            back: same,
        });
    }
    top(&mut b.a)?;
    b.a.lea(rdi, qword_ptr(rsp + SAVED))?;
    b.a.cmp(rsi, field(block::BASE))?;
    b.a.jne(busy)?;
    let mut begin = b.label();
    b.a.set_label(&mut begin)?;
    b.a.mov(rax, around.control + LIVE)?;
    b.a.mov(eax, dword_ptr(rax))?;
    b.a.test(eax, eax)?;
    b.a.je(pass)?;
    b.a.mov(field32(block::GENERATION), eax)?;
    b.a.mov(rax, field(block::REAL_LIMIT))?;
    b.a.mov(field(block::LIMIT), rax)?;
    b.a.inc(field(block::EPOCH))?;
    // Nothing touched, nothing missed: two fields at once.
    b.a.mov(field(block::TOUCHED), 0)?;
    b.a.mov(rdx, around.control + DESCRIPTORS)?;
    b.a.lea(rax, qword_ptr(rdx + descriptor::SIZE as i32))?;
    b.enter(op)?;
    b.a.mov(rax, qword_ptr(rdi))?;
    b.a.mov(shadow(0, entry::RETURN_TO), rax)?;
    b.start()?;
    b.a.set_label(&mut go)?;
    restore(&mut b.a)?;
    match end {
        F0End::PatchedReturns => b.a.jmp(inside)?,
        F0End::HiddenReturn => {
            b.a.lea(rsp, qword_ptr(rsp + 8))?;
            b.a.call(inside)?;
            let mut here = b.label();
            b.a.set_label(&mut here)?;
            for (_, data, hidden) in &mut b.places {
                if data.kind != place::CALL {
                    *hidden = Some(here);
                }
            }
            b.a.lea(rsp, qword_ptr(rsp - 8))?;
            save(&mut b.a)?;
            let [mut matched, search, mut lost] = std::array::from_fn(|_| b.label());
            tsc(&mut b.a)?;
            b.a.mov(rdi, rax)?;
            b.block(lost)?;
            b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
            b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
            b.a.jne(search)?;
            b.a.set_label(&mut matched)?;
            b.a.sub(rsi, entry::SIZE as i32)?;
            b.a.mov(rax, shadow(0, entry::RETURN_TO))?;
            b.a.mov(qword_ptr(rsp + SAVED), rax)?;
            b.a.call(runtime.end)?;
            b.a.set_label(&mut leave)?;
            restore(&mut b.a)?;
            b.a.ret()?;
            b.later.push(Later::Choose {
                at: search,
                routine: runtime.find,
                zero: matched,
                other: lost,
            });
            b.a.set_label(&mut lost)?;
            return_from_anywhere(&mut b, leave)?;
        }
    }
    b.a.set_label(&mut pass)?;
    restore(&mut b.a)?;
    b.a.set_label(&mut inside)?;
    b.a.nop()?;
    b.region(f0)?;
    // Entries are awaited already.
    let mut busy = busy;
    let mut ignore = b.label();
    b.a.set_label(&mut busy)?;
    b.a.call(runtime.nested)?;
    b.a.cmp(eax, nested::OP)?;
    b.a.je(begin)?;
    b.a.jb(pass)?;
    b.a.set_label(&mut ignore)?;
    b.a.mov(rdx, field(block::CURRENT))?;
    b.a.mov(rax, around.control + DESCRIPTORS)?;
    b.enter(ignored)?;
    b.a.mov(rax, qword_ptr(rdi))?;
    b.a.mov(shadow(0, entry::RETURN_TO), rax)?;
    b.a.jmp(go)?;
    b.finish(at, start)
}

/// Appends a `ret` of f0 that ends the op.
fn ret(b: &mut Builder<'_>, ret: Instruction) -> Emitted<()> {
    let [mut matched, search, mut leave] = std::array::from_fn(|_| b.label());
    let runtime = b.runtime;
    save(&mut b.a)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.block(leave)?;
    b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    b.a.jne(search)?;
    b.a.set_label(&mut matched)?;
    // A measured call that leads here shares the slot; it notices its return by itself.
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    b.a.jne(leave)?;
    b.a.sub(rsi, entry::SIZE as i32)?;
    b.a.call(runtime.end)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a)?;
    b.a.add_instruction(ret)?;
    b.later.push(Later::Choose {
        at: search,
        routine: runtime.find,
        zero: matched,
        other: leave,
    });
    Ok(())
}

/// What a hook is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hook {
    /// A function that walks or unwinds the stack: all return addresses are put back first.
    Unwinder,
    /// A function that runs where an unwind arrived.
    Catcher,
}

/// Emits the stub of a hooked entry.
pub fn hook(
    at: u64,
    hooked: &Region,
    hook: Hook,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(around, runtime)?;
    let [mut start, mut pass] = std::array::from_fn(|_| b.label());
    b.a.set_label(&mut start)?;
    save(&mut b.a)?;
    b.block(pass)?;
    b.a.lea(rdi, qword_ptr(rsp + SAVED))?;
    b.a.call(match hook {
        Hook::Unwinder => runtime.reveal,
        Hook::Catcher => runtime.caught,
    })?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a)?;
    b.region(hooked)?;
    b.finish(at, start)
}
