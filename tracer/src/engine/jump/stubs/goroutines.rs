//! The same stubs for programs whose threads run goroutines (Go's register-based calling convention, since 1.17).
//!
//! A goroutine's stack is as small as its functions need it, moves, and is read by the run-time, which must find nothing of
//! ours there. So these stubs use none: they run on a stack in the goroutine's block, found by the goroutine's descriptor in
//! r14, and keep everything but r12, r13 and the flags, which nobody expects to keep at any of these places (Go's
//! `src/cmd/compile/abi-internal.md`). Frames are told apart by their distance from the end of the stack, which stays the same
//! when it moves. A goroutine cannot be preempted in a stub: the run-time does so only in code that it knows.

use darc_disasm::Operand;
use iced_x86::Instruction;
use iced_x86::code_asm::*;

use crate::engine::jump::asm::{
    Emitted, FLAGS, Surroundings, TOP, field, hash, restore, save, shadow, stack_end, top, tsc,
};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{
    BLOCKS, DESCRIPTORS, GOROUTINES, HASH, HASH_SHIFT, HEADER, LIVE, TABLE, TABLE_BYTES, block,
    entry, header, place, ring,
};
use crate::engine::jump::runtime::{Runtime, nested};
use crate::plan::Goroutines;

use super::builder::{Builder, PlaceData, Returns};
use super::entries::begin_op;
use super::later::Later;
use super::sites::{ReturnAddress, register, site_place};
use super::{Callee, F0, Landing, Region, Site, Stub};

/// r12 becomes the goroutine's block, or control goes to `unknown`. r13 and the flags are lost.
fn find(a: &mut CodeAssembler, control: u64, unknown: CodeLabel) -> Emitted<()> {
    let [mut again, mut found] = std::array::from_fn(|_| a.create_label());
    a.mov(r12, control + TABLE)?;
    a.imul_3(r13d, r14d, HASH)?;
    a.shr(r13d, HASH_SHIFT)?;
    a.shl(r13d, 4)?;
    a.set_label(&mut again)?;
    a.cmp(qword_ptr(r12 + r13), r14)?;
    a.je(found)?;
    a.cmp(qword_ptr(r12 + r13), 0)?;
    a.je(unknown)?;
    a.add(r13d, 16)?;
    a.and(r13d, (TABLE_BYTES - 1) as i32)?;
    a.jmp(again)?;
    a.set_label(&mut found)?;
    a.mov(r12, qword_ptr(r12 + r13 + 8))
}

// The search above ends: the table has free entries, and none is longer looked for than a new one's place was.
const _: () = assert!((GOROUTINES as u64) * 32 <= TABLE_BYTES);

/// From here on the stub has the block's stack, and all registers are kept: rcx is the block, rsi its first free entry.
fn begin(a: &mut CodeAssembler) -> Emitted<()> {
    a.mov(qword_ptr(r12 + block::STACK_POINTER as i32), rsp)?;
    a.lea(rsp, qword_ptr(r12 + block::PRIVATE_STACK as i32))?;
    save(a, Flags::Overwritten)?;
    a.mov(rcx, r12)?;
    top(a)
}

/// Undoes [`begin`].
fn end(a: &mut CodeAssembler) -> Emitted<()> {
    restore(a, Flags::Overwritten)?;
    a.mov(rsp, qword_ptr(r12 + block::STACK_POINTER as i32))
}

/// The slot of a return address that is `above` the stack pointer: how far it is from the end of the stack, which is
/// negative, so that slots compare as addresses do.
fn slot(a: &mut CodeAssembler, register: AsmRegister64, above: i32) -> Emitted<()> {
    a.mov(register, field(block::STACK_POINTER))?;
    a.sub(register, stack_end())?;
    a.lea(register, qword_ptr(register + above))
}

/// Emits the stub of f0's beginning, behind its stack check; its return address is `depth` bytes above the stack pointer.
pub fn f0(
    at: u64,
    region: &Region,
    f0: F0<'_>,
    depth: i32,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let [mut start, mut unknown, mut known, mut pass, mut out] = std::array::from_fn(|_| b.label());
    let [mut renew, mut same, mut busy, mut begin_label] = std::array::from_fn(|_| b.label());
    let of_kind = |kind| PlaceData {
        return_to: 0,
        kind,
        function: 0,
        local: 0,
        parent: 0,
    };
    let ignored = b.place(of_kind(place::IGNORED));
    let op = b.place(of_kind(f0.ops.tree.kind()));
    b.a.set_label(&mut start)?;
    find(&mut b.a, around.control, unknown)?;
    begin(&mut b.a)?;
    b.a.set_label(&mut known)?;
    let number = around.goroutines.map_or(0, |Goroutines { number }| number);
    b.a.mov(rax, qword_ptr(r14 + number))?;
    b.a.cmp(rax, field(block::GOROUTINE))?;
    b.a.jne(renew)?;
    b.a.set_label(&mut same)?;
    slot(&mut b.a, rdi, depth)?;
    b.a.cmp(rsi, field(block::BASE))?;
    b.a.jne(busy)?;
    b.a.set_label(&mut begin_label)?;
    begin_op(&mut b, f0.ops, f0.root, pass)?;
    b.enter(op, Returns::ToPlace)?;
    // By which it is seen later whether the frame is still there.
    b.a.mov(rax, stack_end())?;
    b.a.mov(rax, qword_ptr(rdi + rax))?;
    b.a.mov(shadow(TOP, entry::RETURN_TO), rax)?;
    b.start()?;
    b.a.set_label(&mut pass)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    b.a.nop()?;
    b.region(region)?;
    // Another goroutine has the descriptor: what is awaited is of one that has ended.
    b.a.set_label(&mut renew)?;
    b.a.mov(field(block::GOROUTINE), rax)?;
    b.a.call(runtime.renew)?;
    b.a.jne(pass)?;
    top(&mut b.a)?;
    b.a.jmp(same)?;
    // Entries are awaited already.
    b.a.set_label(&mut busy)?;
    b.a.call(runtime.nested)?;
    b.a.cmp(eax, nested::OP)?;
    b.a.je(begin_label)?;
    b.a.jb(pass)?;
    b.a.mov(rdx, field(block::CURRENT))?;
    b.a.mov(rax, around.control + DESCRIPTORS)?;
    b.enter(ignored, Returns::ToPlace)?;
    b.a.jmp(pass)?;
    b.a.set_label(&mut unknown)?;
    adopt(&mut b, known, pass, out)?;
    b.finish(at, start)
}

/// Gives the goroutine a block and goes on at `known`, as behind [`begin`]; without one makes for `out`, or for `pass` with
/// a block that is lost.
fn adopt(b: &mut Builder<'_>, known: CodeLabel, pass: CodeLabel, out: CodeLabel) -> Emitted<()> {
    let (control, rings) = (b.around.control, b.around.rings);
    let adopt = b.runtime.adopt;
    let mut full = b.label();
    let a = &mut b.a;
    // A forked child registers nobody: the ring is not its own.
    a.mov(r12, control + LIVE)?;
    a.cmp(dword_ptr(r12), 0)?;
    a.je(out)?;
    a.mov(r12, control + HEADER)?;
    a.mov(r13d, 1)?;
    a.lock()
        .xadd(dword_ptr(r12 + header::NEXT_BLOCK as i32), r13d)?;
    a.cmp(r13d, dword_ptr(r12 + header::BLOCKS as i32))?;
    a.jae(full)?;
    a.imul_3(r13, r13, block::SIZE as i32)?;
    a.mov(r12, control + BLOCKS)?;
    a.add(r12, r13)?;
    begin(a)?;
    a.mov(rax, r13)?;
    a.xor(edx, edx)?;
    a.mov(edi, block::SIZE as i32)?;
    a.div(rdi)?;
    a.mov(r13, rax)?;
    a.mov(rax, r14)?;
    hash(a)?;
    a.call(adopt)?;
    a.test(rcx, rcx)?;
    a.je(pass)?;
    top(a)?;
    a.jmp(known)?;
    a.set_label(&mut full)?;
    a.lock().dec(dword_ptr(r12 + header::NEXT_BLOCK as i32))?;
    a.mov(r12, rings)?;
    a.lock().inc(qword_ptr(r12 + ring::UNREGISTERED as i32))?;
    a.jmp(out)
}

/// Appends an instruction before a `ret` of f0, at which the op ends.
pub fn end_op(b: &mut Builder<'_>, instruction: Instruction, depth: i32) -> Emitted<()> {
    let [mut matched, search, mut leave, mut out] = std::array::from_fn(|_| b.label());
    let runtime = b.runtime;
    find(&mut b.a, b.around.control, out)?;
    begin(&mut b.a)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    slot(&mut b.a, rdx, depth)?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    b.a.jne(search)?;
    b.a.set_label(&mut matched)?;
    // A measured call that leads here shares the slot; it notices its return by itself.
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(dword_ptr(rax + place::KIND as i32), place::CALL as i32)?;
    b.a.je(leave)?;
    b.a.sub(rsi, entry::SIZE as i32)?;
    b.a.call(runtime.end)?;
    b.a.set_label(&mut leave)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    b.copy(instruction)?;
    b.later.push(Later::Choose {
        at: search,
        routine: runtime.find,
        zero: matched,
        other: leave,
    });
    Ok(())
}

/// Appends a call that returns to its landing. `return_address` says where the text's own call has left its own. An indirect
/// callee is in a register that stays as it is.
pub fn call(
    b: &mut Builder<'_>,
    site: &Site,
    callee: Callee,
    return_address: ReturnAddress,
) -> Emitted<()> {
    let indirect = match callee {
        Callee::Indirect(Operand::Register(gpr)) => Some(register(gpr)),
        _ => None,
    };
    let [stale, slow, mut fresh, mut pass, mut out] = std::array::from_fn(|_| b.label());
    let place = site_place(b, site, site.next);
    if return_address != ReturnAddress::Pushed {
        b.a.push(qword_ptr(place))?;
    }
    find(&mut b.a, b.around.control, out)?;
    if let Some(register) = indirect {
        b.a.mov(r13, register)?;
    }
    begin(&mut b.a)?;
    if indirect.is_some() {
        b.a.mov(qword_ptr(rsp + FLAGS), r13)?;
    }
    slot(&mut b.a, rdi, 0)?;
    b.a.cmp(rdi, shadow(TOP, entry::SLOT))?;
    b.a.jae(stale)?;
    b.a.set_label(&mut fresh)?;
    b.child(site, place, indirect.map(|_| FLAGS), pass, pass)?;
    b.a.cmp(rsi, field(block::LIMIT))?;
    b.a.jae(slow)?;
    b.enter(place, Returns::ToPlace)?;
    b.start()?;
    b.a.set_label(&mut pass)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    match (callee, indirect) {
        (Callee::Direct(to), _) => b.a.jmp(to)?,
        (Callee::Indirect(_), Some(register)) => b.a.jmp(register)?,
        // Never asked for.
        (Callee::Indirect(_), None) => b.a.ud2()?,
    }
    b.later.push(Later::Call {
        at: stale,
        routine: b.runtime.stale,
        back: fresh,
    });
    // The shadow stack is full: the routine only notes that.
    b.later.push(Later::Call {
        at: slow,
        routine: b.runtime.slow,
        back: pass,
    });
    Ok(())
}

/// Appends the end of the call that has returned to a landing, if one is awaited there. Behind calls that do not keep r14
/// (`is_reset`) the program reads it anew in a moment, and the stub does so before.
pub fn land(b: &mut Builder<'_>, landing: &Landing, is_reset: bool) -> Emitted<()> {
    let [mut pass, later, mut found, mut out] = std::array::from_fn(|_| b.label());
    if is_reset {
        b.a.mov(r14, qword_ptr(-8).fs())?;
    }
    find(&mut b.a, b.around.control, out)?;
    begin(&mut b.a)?;
    // The return address has just been popped.
    slot(&mut b.a, rdx, -8)?;
    b.a.mov(rdi, landing.addr)?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    // What is awaited further out is not awaited here.
    b.a.jb(pass)?;
    b.a.jne(later)?;
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    b.a.jne(pass)?;
    b.a.set_label(&mut found)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.take_off(None)?;
    b.later.push(Later::Choose {
        at: later,
        routine: b.runtime.find_landing,
        zero: found,
        other: pass,
    });
    b.a.set_label(&mut pass)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    b.a.nop()
}
