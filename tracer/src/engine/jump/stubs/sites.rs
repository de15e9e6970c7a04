//! The code around a call, a jump out of the function, a system call.

use darc_disasm::{Gpr, Operand, Segment};
use iced_x86::ConditionCode;
use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, SAVED, TOP, restore, save, shadow, tsc};
use crate::engine::jump::layout::{entry, place};

use super::builder::{Builder, PlaceData};
use super::counted_sites::counted_call;
use super::entries::note_end;
use super::goroutines;
use super::{CallReturns, Callee, Kind, Site};

/// What the ABI lets a function keep below its stack pointer (System V ABI for AMD64, 3.2.2).
pub const RED_ZONE: i32 = 128;

/// Where the program's return address of a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReturnAddress {
    /// On the stack: a call in the text has pushed it.
    Pushed,
    /// Where the processor predicts returns: what a call in the text has pushed was taken off the stack.
    Predicted,
    /// Nowhere.
    Missing,
}

/// Appends a site; a conditional jump that is not taken goes on at `after`, or in the text.
pub fn append_site(
    b: &mut Builder<'_>,
    site: &Site,
    after: Option<CodeLabel>,
    return_address: ReturnAddress,
) -> Emitted<()> {
    if let (Kind::Call(callee), Some(_)) = (site.kind, b.around.goroutines) {
        return goroutines::call(b, site, callee, return_address);
    }
    // Jumps and system calls are not counted.
    if let (Kind::Call(callee), Some(counted)) = (site.kind, site.counted) {
        return counted_call(b, site, callee, counted);
    }
    match site.kind {
        Kind::Call(callee) if site.returns == CallReturns::ToLanding => {
            landing_call(b, site, callee, return_address)
        }
        Kind::Call(Callee::Direct(to)) => direct_call(b, site, to),
        Kind::Call(Callee::Indirect(operand)) => indirect_call(b, site, operand),
        Kind::Tail(callee, condition) => tail_jump(b, site, callee, condition, after),
        Kind::Syscall { by_number } => system_call(b, site, by_number),
    }
}

pub fn site_place(b: &mut Builder<'_>, site: &Site, return_to: u64) -> CodeLabel {
    b.place(PlaceData {
        return_to,
        kind: place::CALL,
        function: site.function,
        local: site.local,
        above: site.distance.unwrap_or(place::NOT_KNOWN) as u32,
    })
}

fn direct_call(b: &mut Builder<'_>, site: &Site, to: u64) -> Emitted<()> {
    const SLOT: i32 = SAVED - 8;
    let [mut pass, mut leave] = std::array::from_fn(|_| b.label());
    let flags = site.flags;
    let place = site_place(b, site, site.next);
    save(&mut b.a, flags.entering)?;
    b.way_in(site, place, SLOT, None, pass)?;
    restore(&mut b.a, flags.entering)?;
    b.a.call(to)?;
    b.returns_here()?;
    save(&mut b.a, flags.returning)?;
    b.way_out(site, SLOT, leave, leave)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, flags.returning)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, flags.entering)?;
    call_for_the_program(b, site, place, Callee::Direct(to))
}

/// A call that returns to its landing: on the stack there is never another return address than the program's own.
fn landing_call(
    b: &mut Builder<'_>,
    site: &Site,
    callee: Callee,
    return_address: ReturnAddress,
) -> Emitted<()> {
    let mut pass = b.label();
    let place = site_place(b, site, site.next);
    match return_address {
        ReturnAddress::Pushed => {}
        ReturnAddress::Predicted => b.a.push(qword_ptr(place))?,
        ReturnAddress::Missing => push_for_the_program(b, site, place)?,
    }
    // An indirect call's callee is kept below the return address.
    let room = match callee {
        Callee::Direct(_) => 0,
        Callee::Indirect(operand) => {
            b.a.lea(rsp, qword_ptr(rsp - 8))?;
            load_callee(&mut b.a, operand)?;
            8
        }
    };
    let flags = site.flags.entering;
    save(&mut b.a, flags)?;
    let told_apart = (room != 0).then_some(SAVED);
    b.way_in(site, place, SAVED + room, told_apart, pass)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, flags)?;
    match callee {
        Callee::Direct(to) => b.a.jmp(to),
        Callee::Indirect(_) => {
            b.a.lea(rsp, qword_ptr(rsp + room))?;
            b.a.jmp(qword_ptr(rsp - 8))
        }
    }
}

/// Makes the call as the program would, with its own return address; an indirect callee's address is at rsp - 16.
pub fn call_for_the_program(
    b: &mut Builder<'_>,
    site: &Site,
    place: CodeLabel,
    callee: Callee,
) -> Emitted<()> {
    push_for_the_program(b, site, place)?;
    match callee {
        Callee::Direct(to) => b.a.jmp(to),
        Callee::Indirect(_) => b.a.jmp(qword_ptr(rsp - 8)),
    }
}

/// Pushes the program's own return address.
///
/// It calls, so that the processor's stack of return addresses stays balanced.
fn push_for_the_program(b: &mut Builder<'_>, site: &Site, place: CodeLabel) -> Emitted<()> {
    let mut balanced = b.label();
    b.a.call(balanced)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut balanced)?;
    b.a.lea(rsp, qword_ptr(rsp + 8))?;
    b.a.push(qword_ptr(place))
}

/// Leaves an indirect callee's address at the original rsp - 16, and the stack pointer there.
pub fn hold_callee(a: &mut CodeAssembler, operand: Operand) -> Emitted<()> {
    a.lea(rsp, qword_ptr(rsp - 16))?;
    load_callee(a, operand)
}

/// Leaves an indirect callee's address on top of the stack; the stack pointer is the original one less 16.
fn load_callee(a: &mut CodeAssembler, operand: Operand) -> Emitted<()> {
    a.push(rax)?;
    load(a, operand, 24)?;
    a.mov(qword_ptr(rsp + 8), rax)?;
    a.pop(rax)
}

/// Leaves the callee's address in the frame: at the original rsp - 16.
fn indirect_call(b: &mut Builder<'_>, site: &Site, operand: Operand) -> Emitted<()> {
    /// The frame: two words for the callee, then what `save` saves.
    const FRAME: i32 = SAVED + 16;
    const SLOT: i32 = FRAME - 8;
    const CALLEE: i32 = FRAME - 16;
    let [mut pass, mut leave] = std::array::from_fn(|_| b.label());
    let flags = site.flags;
    let place = site_place(b, site, site.next);
    hold_callee(&mut b.a, operand)?;
    save(&mut b.a, flags.entering)?;
    b.way_in(site, place, SLOT, Some(CALLEE), pass)?;
    restore(&mut b.a, flags.entering)?;
    b.a.lea(rsp, qword_ptr(rsp + 16))?;
    b.a.call(qword_ptr(rsp - 16))?;
    b.returns_here()?;
    save(&mut b.a, flags.returning)?;
    b.way_out(site, SAVED - 8, leave, leave)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, flags.returning)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, flags.entering)?;
    b.a.lea(rsp, qword_ptr(rsp + 16))?;
    call_for_the_program(b, site, place, Callee::Indirect(operand))
}

fn tail_jump(
    b: &mut Builder<'_>,
    site: &Site,
    callee: Callee,
    condition: Option<ConditionCode>,
    after: Option<CodeLabel>,
) -> Emitted<()> {
    let [mut pass, mut leave, mut lost, mut end, mut taken] = std::array::from_fn(|_| b.label());
    let flags = site.flags;
    b.leaves()?;
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
            hold_callee(&mut b.a, operand)?;
            16
        }
    };
    save(&mut b.a, flags.entering)?;
    let told_apart = (room != 0).then_some(SAVED);
    b.way_in(site, place, SAVED + room, told_apart, pass)?;
    restore(&mut b.a, flags.entering)?;
    b.a.lea(rsp, qword_ptr(rsp + (room + 8)))?;
    match callee {
        Callee::Direct(to) => b.a.call(to)?,
        Callee::Indirect(_) => b.a.call(qword_ptr(rsp - 24))?,
    }
    b.returns_here()?;
    b.a.lea(rsp, qword_ptr(rsp - 8))?;
    save(&mut b.a, flags.returning)?;
    b.way_out(site, SAVED, lost, lost)?;
    // The replaced frame returns by the same slot. Where that is f0 without a hidden return address,
    // nothing else will notice.
    b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    b.a.je(end)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, flags.returning)?;
    b.a.ret()?;
    b.a.set_label(&mut end)?;
    let hides = b.label();
    let runtime = b.runtime;
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(dword_ptr(rax + place::KIND as i32), place::CALL as i32)?;
    b.a.je(hides)?;
    b.a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    b.a.jne(hides)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.a.sub(rsi, entry::SIZE as i32)?;
    note_end(b)?;
    b.a.call(runtime.end)?;
    let mut hides = hides;
    b.a.set_label(&mut hides)?;
    b.a.jmp(leave)?;
    b.a.set_label(&mut lost)?;
    return_from_anywhere(b, leave)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, flags.entering)?;
    match callee {
        Callee::Direct(to) => b.a.jmp(to),
        Callee::Indirect(_) => {
            b.a.lea(rsp, qword_ptr(rsp + 16))?;
            b.a.jmp(qword_ptr(rsp - 16))
        }
    }
}

/// A return address was hidden by another thread, or by nobody who is known: asks all threads.
pub fn return_from_anywhere(b: &mut Builder<'_>, leave: CodeLabel) -> Emitted<()> {
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
    let flags = site.flags;
    let place = site_place(b, site, site.next);
    b.a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    save(&mut b.a, flags.entering)?;
    b.way_in(site, place, SLOT, by_number.then_some(NUMBER), pass)?;
    restore(&mut b.a, flags.entering)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))?;
    b.a.syscall()?;
    let mut measured = b.label();
    b.a.set_label(&mut measured)?;
    b.behind_syscalls.push(measured);
    b.a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    save(&mut b.a, flags.returning)?;
    b.way_out(site, SLOT, leave, leave)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, flags.returning)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))?;
    // The instruction leaves the address behind it in rcx.
    b.a.mov(rcx, site.next)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, flags.entering)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))?;
    b.a.syscall()?;
    let mut plain = b.label();
    b.a.set_label(&mut plain)?;
    b.behind_syscalls.push(plain);
    b.a.mov(rcx, site.next)?;
    b.a.jmp(site.next)
}

/// A register as the assembler names it.
pub fn register(gpr: Gpr) -> AsmRegister64 {
    [
        rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
    ][gpr as usize]
}

/// Loads the operand into rax; `pushed` bytes have been pushed since the program's own code, and rax
/// still has the program's value.
fn load(a: &mut CodeAssembler, operand: Operand, pushed: i32) -> Emitted<()> {
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
