//! The code at a function's entry, and at the returns of f0.

use darc_record::{Field, Second};
use iced_x86::code_asm::*;
use iced_x86::{FlowControl, Instruction};

use crate::engine::jump::asm::{
    Emitted, RAX, SAVED, Surroundings, TOP, field, field32, restore, save, shadow, thread, top, tsc,
};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{DESCRIPTORS, LIVE, block, entry, place, ring};
use crate::engine::jump::ops::{Calls, HandsOver, Ops, OpsOf};
use crate::engine::jump::runtime::{Runtime, nested};

use super::builder::{Builder, PlaceData, Returns};
use super::enqueue::{note, read_chain};
use super::later::Later;
use super::sites::return_from_anywhere;
use super::{Region, Stub};

/// What the end of f0 is noticed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum F0End {
    /// Its return address is replaced.
    HiddenReturn,
    /// Its `ret` instructions are patched, all of them, and the jumps by which it leaves where these end it, too; see [`ret`].
    PatchedReturns,
}

/// What makes a call of f0 an op, and what ends it.
#[derive(Clone, Copy, Debug)]
pub struct F0<'a> {
    /// What its end is noticed by.
    pub end: F0End,
    /// Which calls are ops, and of what.
    pub ops: &'a Ops,
    /// The descriptor of the root of their ftree.
    pub root: u64,
    /// What becomes of the flags behind the entry.
    pub flags: Flags,
}

/// Emits the stub of f0's entry.
pub fn f0(
    at: u64,
    region: &Region,
    F0 {
        end,
        ops,
        root,
        flags,
    }: F0<'_>,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let [mut start, mut pass, busy, mut go, mut inside] = std::array::from_fn(|_| b.label());
    let ignored = b.place(PlaceData {
        return_to: 0,
        kind: place::IGNORED,
        function: 0,
        local: 0,
        above: 0,
    });
    let op = b.place(PlaceData {
        return_to: 0,
        kind: ops.tree.kind(),
        function: 0,
        local: 0,
        above: 0,
    });
    b.a.set_label(&mut start)?;
    b.enters(region)?;
    save(&mut b.a, flags)?;
    b.find_own(pass)?;
    top(&mut b.a)?;
    b.a.lea(rdi, qword_ptr(rsp + SAVED))?;
    b.a.cmp(rsi, field(block::BASE))?;
    b.a.jne(busy)?;
    let mut begin = b.label();
    b.a.set_label(&mut begin)?;
    only_of(&mut b, &ops.callers, pass)?;
    begin_op(&mut b, ops, root, pass)?;
    b.enter(op, Returns::BySlot)?;
    if let (Some(noted), OpsOf::F0) = (b.around.field, ops.tree) {
        note_begin(&mut b, noted)?;
    }
    if let HandsOver::Itself(chain) = &ops.hands_over {
        // What a signal handler calls meanwhile finds an op that has begun.
        b.start()?;
        note(&mut b, chain.as_ref())?;
    }
    b.start()?;
    if let OpsOf::Serving(_) = ops.tree {
        b.delay()?;
    }
    b.a.set_label(&mut go)?;
    restore(&mut b.a, flags)?;
    match end {
        F0End::PatchedReturns => b.a.jmp(inside)?,
        F0End::HiddenReturn => hidden_return(&mut b, inside)?,
    }
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, flags)?;
    b.a.set_label(&mut inside)?;
    b.a.nop()?;
    b.region(region)?;
    // Entries are awaited already.
    let mut busy = busy;
    let mut ignore = b.label();
    b.a.set_label(&mut busy)?;
    b.a.call(runtime.nested)?;
    b.a.cmp(eax, nested::OP)?;
    b.a.je(begin)?;
    note_nested(&mut b)?;
    b.a.cmp(eax, nested::OP)?;
    b.a.jb(pass)?;
    b.a.set_label(&mut ignore)?;
    b.a.mov(rdx, field(block::CURRENT))?;
    b.a.mov(rax, around.control + DESCRIPTORS)?;
    b.enter(ignored, Returns::BySlot)?;
    b.a.jmp(go)?;
    b.finish(at, start)
}

/// Makes for `pass` unless the call is one of these callers', given by where they are returned to; all are wanted when there
/// are none. The slot of the return address is in rdi.
fn only_of(b: &mut Builder<'_>, callers: &[u64], pass: CodeLabel) -> Emitted<()> {
    if callers.is_empty() {
        return Ok(());
    }
    let mut wanted = b.label();
    b.a.mov(rax, qword_ptr(rdi))?;
    for &caller in callers {
        b.a.mov(rdx, caller)?;
        b.a.cmp(rax, rdx)?;
        b.a.je(wanted)?;
    }
    b.a.jmp(pass)?;
    b.a.set_label(&mut wanted)?;
    Ok(())
}

/// Begins an op unless nothing is to be measured: arguments, and under which descriptor calls are looked for. Leaves the
/// descriptor in rax.
pub fn begin_op(b: &mut Builder<'_>, ops: &Ops, root: u64, pass: CodeLabel) -> Emitted<()> {
    let around = b.around;
    b.a.mov(rax, around.control + LIVE)?;
    b.a.mov(eax, dword_ptr(rax))?;
    b.a.test(eax, eax)?;
    b.a.je(pass)?;
    b.a.mov(field32(block::GENERATION), eax)?;
    b.a.mov(rax, field(block::REAL_LIMIT))?;
    b.a.mov(field(block::LIMIT), rax)?;
    // A signal handler may have jumped away from a record that was being written.
    b.a.mov(field32(block::BUSY), 0)?;
    b.a.inc(field(block::EPOCH))?;
    if around.goroutines.is_some() {
        b.a.mov(field32(block::ABSENCES), 0)?;
        b.a.mov(field32(block::WAITS), 0)?;
        b.a.mov(field(block::UNTOLD_READY), 0)?;
        b.a.mov(field(block::LEFT), 0)?;
        b.a.mov(field(block::READY), 0)?;
        thread(&mut b.a, around)?;
        b.a.mov(field(block::FIELD), rax)?;
    }
    keep_arguments(b)?;
    if let Some(chain) = &ops.chain {
        let mut unread = b.label();
        b.a.mov(field32(block::READ_WELL), 0)?;
        b.a.mov(rax, field(block::ARGUMENTS + 8 * chain.argument as u64))?;
        read_chain(b, chain, unread)?;
        b.a.mov(field(block::READ), rax)?;
        b.a.mov(field32(block::READ_WELL), 1)?;
        b.a.set_label(&mut unread)?;
        b.a.nop()?;
    }
    // Nothing touched, nothing missed: two fields at once.
    b.a.mov(field(block::TOUCHED), 0)?;
    if ops.calls == Calls::OfRecorded {
        b.a.mov(rax, field(block::RING))?;
        b.a.cmp(qword_ptr(rax + ring::SPENT as i32), 0)?;
    }
    b.a.mov(rdx, around.control + DESCRIPTORS)?;
    b.a.mov(field(block::CURRENT), rdx)?;
    b.a.lea(
        rax,
        qword_ptr(rdx + (root - around.control - DESCRIPTORS) as i32),
    )?;
    if ops.calls == Calls::OfRecorded {
        let mut recorded = b.label();
        b.a.je(recorded)?;
        // Under the descriptor of no fnode all calls pass.
        b.a.mov(rax, rdx)?;
        b.a.mov(field32(block::TAINTED), block::BARE as i32)?;
        b.a.set_label(&mut recorded)?;
    }
    Ok(())
}

/// Where in the block it is noted what else there is beside the field as an op begins.
const SECOND: u64 = block::FIELD + 4;

/// Keeps what a field holds, in the block; rax is what the argument is, and is lost.
///
/// It is read at once, not by the kernel. Where an op begins f0 is about to read it itself, before anything else: that was seen in
/// its code. Where it ends, f0 or what it has jumped to at its end has just returned, for which the field is its own until then, and
/// nobody else has run on this thread (for a future that is polled: `&mut`, of Rust, whose state is written as the last thing). So a bad
/// argument is the program's death without us, too.
fn note_field(b: &mut Builder<'_>, noted: Field, at: u64) -> Emitted<()> {
    match noted.size {
        1 => b.a.movzx(eax, byte_ptr(rax + noted.offset))?,
        2 => b.a.movzx(eax, word_ptr(rax + noted.offset))?,
        _ => b.a.mov(eax, dword_ptr(rax + noted.offset))?,
    }
    b.a.mov(field32(at), eax)
}

/// Keeps what the field holds as the op of the last entry begins; rax is lost.
///
/// The argument is taken from the frame, now that the entry is there: a signal handler that has called f0 since the others were kept
/// has left its own in the block. From here on its calls are nested ones. For the end the entry keeps it where the time of the end will be.
fn note_begin(b: &mut Builder<'_>, noted: Field) -> Emitted<()> {
    b.a.mov(rax, qword_ptr(rsp + 8 * noted.argument as i32))?;
    b.a.mov(field(block::ARGUMENTS + 8 * noted.argument as u64), rax)?;
    b.a.mov(shadow(TOP, entry::END), rax)?;
    note_field(b, noted, block::FIELD)?;
    if let Second::Head { .. } = noted.second {
        // What has the field has a beginning.
        b.a.mov(rax, field(block::ARGUMENTS + 8 * noted.argument as u64))?;
        b.a.mov(eax, dword_ptr(rax))?;
        b.a.mov(field32(SECOND), eax)?;
    }
    Ok(())
}

/// Keeps that f0 is called within an op, where that is to be told; rdx is lost. f0 reads the field before anything else in every call.
fn note_nested(b: &mut Builder<'_>) -> Emitted<()> {
    let Some(noted) = b.around.field else {
        return Ok(());
    };
    let Second::Head { new } = noted.second else {
        return Ok(());
    };
    let [mut tell, mut same] = std::array::from_fn(|_| b.label());
    b.a.mov(rdx, qword_ptr(rsp + 8 * noted.argument as i32))?;
    b.a.cmp(rdx, field(block::ARGUMENTS + 8 * noted.argument as u64))?;
    b.a.jne(tell)?;
    b.a.movzx(edx, word_ptr(rdx + noted.offset))?;
    b.a.test(edx, 1)?;
    b.a.jne(tell)?;
    b.a.cmp(edx, i32::from(new))?;
    b.a.ja(same)?;
    b.a.set_label(&mut tell)?;
    b.a.mov(field32(SECOND), Field::NESTED as i32)?;
    b.a.set_label(&mut same)?;
    b.a.nop()
}

/// Keeps what the field of the surroundings holds as an op ends, the entry of which is at rsi; rax is lost. Nested calls of f0 are
/// no ops: their entries keep nothing.
pub(super) fn note_end(b: &mut Builder<'_>) -> Emitted<()> {
    let Some(noted) = b.around.field.filter(|it| it.second == Second::AtEnd) else {
        return Ok(());
    };
    let mut other = b.label();
    // In a child that was forked the entry may be one of its parent's.
    b.a.mov(rax, b.around.control + LIVE)?;
    b.a.cmp(dword_ptr(rax), 0)?;
    b.a.je(other)?;
    b.a.mov(rax, shadow(0, entry::PLACE))?;
    b.a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    b.a.jne(other)?;
    b.a.mov(rax, shadow(0, entry::END))?;
    note_field(b, noted, SECOND)?;
    b.a.set_label(&mut other)?;
    b.a.nop()
}

/// Keeps the first six words that are passed in registers, in the order of the calling convention (System V ABI for AMD64,
/// 3.2.3; Go's `src/cmd/compile/abi-internal.md`).
fn keep_arguments(b: &mut Builder<'_>) -> Emitted<()> {
    /// Where `save` has put them.
    const FRAME: [i32; 4] = [0, 8, 16, 24];
    let [rdi_at, rsi_at, rdx_at, rcx_at] = FRAME;
    let saved = |at| (Some(at), rax);
    let kept = |register| (None, register);
    let arguments = match b.around.goroutines {
        Some(_) => [
            saved(RAX),
            kept(rbx),
            saved(rcx_at),
            saved(rdi_at),
            saved(rsi_at),
            kept(r8),
        ],
        None => [
            saved(rdi_at),
            saved(rsi_at),
            saved(rdx_at),
            saved(rcx_at),
            kept(r8),
            kept(r9),
        ],
    };
    for (index, (saved, register)) in (0..).zip(arguments) {
        if let Some(at) = saved {
            b.a.mov(register, qword_ptr(rsp + at))?;
        }
        b.a.mov(field(block::ARGUMENTS + 8 * index), register)?;
    }
    Ok(())
}

/// Calls the function at `inside` in place of its caller; behind that, ends the op and returns to the caller.
fn hidden_return(b: &mut Builder<'_>, inside: CodeLabel) -> Emitted<()> {
    let (runtime, mut leave) = (b.runtime, b.label());
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
    save(&mut b.a, Flags::Matter)?;
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
    note_end(b)?;
    b.a.call(runtime.end)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, Flags::Matter)?;
    b.a.ret()?;
    b.later.push(Later::Choose {
        at: search,
        routine: runtime.find,
        zero: matched,
        other: lost,
    });
    b.a.set_label(&mut lost)?;
    return_from_anywhere(b, leave)
}

/// Appends a `ret` of f0 that ends the op, or a jump out of it that does.
pub fn ret(b: &mut Builder<'_>, ret: Instruction) -> Emitted<()> {
    let [mut matched, search, mut leave] = std::array::from_fn(|_| b.label());
    let runtime = b.runtime;
    b.leaves()?;
    save(&mut b.a, Flags::Matter)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.block(leave)?;
    b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    b.a.jne(search)?;
    b.a.set_label(&mut matched)?;
    // A measured call that leads here shares the slot; it notices its return by itself.
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(dword_ptr(rax + place::KIND as i32), place::CALL as i32)?;
    b.a.je(leave)?;
    b.a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    match ret.flow_control() {
        // It is noticed behind it.
        FlowControl::Return => b.a.jne(leave)?,
        // What it jumps to returns to f0's caller.
        _ => {
            let mut plain = b.label();
            b.a.je(plain)?;
            b.a.mov(rax, shadow(TOP, entry::RETURN_TO))?;
            b.a.mov(qword_ptr(rsp + SAVED), rax)?;
            b.a.set_label(&mut plain)?;
        }
    }
    b.a.sub(rsi, entry::SIZE as i32)?;
    note_end(b)?;
    b.a.call(runtime.end)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, Flags::Matter)?;
    b.copy(ret)?;
    b.later.push(Later::Choose {
        at: search,
        routine: runtime.find,
        zero: matched,
        other: leave,
    });
    Ok(())
}

/// A function that has to do with unwinding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unwinding {
    /// Walks or unwinds the stack: all return addresses are put back first.
    Begins,
    /// Runs where an unwind arrived.
    Arrived,
}

/// Emits the stub of the entry of such a function.
pub fn unwinding(
    at: u64,
    hooked: &Region,
    unwinding: Unwinding,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(hooked.start(), around, runtime)?;
    let [mut start, mut pass] = std::array::from_fn(|_| b.label());
    b.a.set_label(&mut start)?;
    b.enters(hooked)?;
    save(&mut b.a, Flags::Matter)?;
    b.block(pass)?;
    b.a.lea(rdi, qword_ptr(rsp + SAVED))?;
    b.a.call(match unwinding {
        Unwinding::Begins => runtime.reveal,
        Unwinding::Arrived => runtime.caught,
    })?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, Flags::Matter)?;
    b.region(hooked)?;
    b.finish(at, start)
}
