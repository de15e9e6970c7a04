//! Routines for frames that do not simply return: left by longjmp or an exception, walked by an
//! unwinder, waiting on another stack, entered again.
//!
//! An entry that is given up gets its return address put back, so that a wrong guess costs a
//! measurement and never the program. A call that was left without a return has lasted until the first
//! event that shows it, which is when its entry is given up.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{
    Emitted, Surroundings, TOP, field, field32, shadow, stack_end, tsc,
};
use crate::engine::jump::layout::{LIVE, block, descriptor, entry, place, ring};

use super::{Labels, nested};

/// How far apart two slots may be and still be taken for frames of one stack when one of them decides
/// that the other is gone. Wrong guesses cost measurements, never the target's correctness.
pub const SAME_STACK: i32 = 64 << 10;

/// The same for goroutines: all entries of a block are of one stack.
fn same_stack(around: &Surroundings) -> i32 {
    match around.goroutines {
        Some(_) => i32::MAX,
        None => SAME_STACK,
    }
}

/// How far above the stack pointer frames of the same stack are looked for before an unwind.
pub const DEEPEST_STACK: i32 = 8 << 20;

/// Tells by the zero flag whether the word at rax can be read; all registers are kept.
///
/// The kernel reads the new mask before it looks at what is to be done with it (rt_sigprocmask(2)),
/// so a request that makes no sense fails with EFAULT exactly when the address is bad.
pub fn readable(a: &mut CodeAssembler, start: &mut CodeLabel) -> Emitted<()> {
    const NO_REQUEST: i32 = -1;
    const MASK_BYTES: i32 = 8;
    let scratch = [rax, rcx, rdx, rsi, rdi, r10, r11];
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.mov(rsi, rax)?;
    a.mov(edi, NO_REQUEST)?;
    a.xor(edx, edx)?;
    a.mov(r10d, MASK_BYTES)?;
    a.mov(eax, libc::SYS_rt_sigprocmask as i32)?;
    a.syscall()?;
    a.cmp(eax, -libc::EINVAL)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// An op that is left for another stack, in the middle of it: what is measured there, or passes, is not its own.
pub fn switched(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let mut done = a.create_label();
    a.set_label(start)?;
    a.or(field32(block::TAINTED), block::UNSEEN as i32)?;
    a.push(rdx)?;
    // A forked child shares the ring with its parent.
    a.mov(rdx, around.control + LIVE)?;
    a.cmp(dword_ptr(rdx), 0)?;
    a.je(done)?;
    a.mov(rdx, field(block::RING))?;
    a.inc(qword_ptr(rdx + ring::SWITCHED as i32))?;
    a.set_label(&mut done)?;
    a.pop(rdx)?;
    a.ret()
}

/// Notes that the thread is on another stack when the top entry's slot is farther from the one in rax than a stack is deep.
/// Changes rax.
fn note_switch(a: &mut CodeAssembler, labels: &Labels, around: &Surroundings) -> Emitted<()> {
    let mut near = a.create_label();
    // All slots of goroutines are of one stack.
    if around.goroutines.is_none() {
        // Neither a window nor the sentinel is on a stack.
        a.cmp(shadow(TOP, entry::SLOT), 0)?;
        a.jl(near)?;
        a.sub(rax, shadow(TOP, entry::SLOT))?;
        a.add(rax, DEEPEST_STACK)?;
        a.cmp(rax, 2 * DEEPEST_STACK)?;
        a.jbe(near)?;
        a.call(labels.switched)?;
    }
    a.set_label(&mut near)?;
    a.nop()
}

pub fn give_up(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [
        mut off,
        mut not_op,
        mut not_counted,
        mut not_call,
        mut seen,
        mut known,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(rdi)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    a.jne(not_op)?;
    // A forked child shares the ring with its parent.
    a.mov(rdx, around.control + LIVE)?;
    a.cmp(dword_ptr(rdx), 0)?;
    a.je(not_op)?;
    a.mov(rdx, field(block::RING))?;
    a.inc(qword_ptr(rdx + ring::ENDED_OTHERWISE as i32))?;
    a.set_label(&mut not_op)?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::COUNTED as i32)?;
    a.jne(not_counted)?;
    a.call(labels.abandon)?;
    a.set_label(&mut not_counted)?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::CALL as i32)?;
    a.jne(not_call)?;
    // Where its return address was put back it may have returned long ago.
    a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    a.je(seen)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.jne(seen)?;
    // The unwinder itself has ended where it arrived.
    a.mov(rdx, shadow(0, entry::SLOT))?;
    a.cmp(rdx, field(block::UNWINDER))?;
    a.je(seen)?;
    a.or(field32(block::TAINTED), block::UNSEEN as i32)?;
    a.set_label(&mut seen)?;
    tsc(a)?;
    a.mov(rdi, rax)?;
    a.call(labels.count)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.set_label(&mut not_call)?;
    // Should the frame be there after all, it returns without us: no stub is waited for by nobody's entry.
    a.mov(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    a.mov(rdx, qword_ptr(rax + place::HIDDEN as i32))?;
    a.test(rdx, rdx)?;
    a.je(off)?;
    a.test(rdi, rdi)?;
    a.jne(known)?;
    a.mov(rdi, shadow(0, entry::RETURN_TO))?;
    a.set_label(&mut known)?;
    a.mov(rax, shadow(0, entry::SLOT))?;
    a.call(labels.readable)?;
    a.jne(off)?;
    a.cmp(qword_ptr(rax), rdx)?;
    a.jne(off)?;
    a.mov(qword_ptr(rax), rdi)?;
    a.set_label(&mut off)?;
    a.mov(rdx, shadow(0, entry::SAVED))?;
    a.mov(field(block::CURRENT), rdx)?;
    a.mov(field(block::TOP), rsi)?;
    a.pop(rdi)?;
    a.ret()
}

/// What an entry is that has the slot of the new frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SameSlot {
    /// Dead: its frame has returned, and the slot is used anew.
    Dead,
    /// That of the frame which a tail call replaces.
    Replaced,
}

pub fn stale(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    same_slot: SameSlot,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [mut other, mut done] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.mov(rax, rdi)?;
    a.sub(rax, shadow(TOP, entry::SLOT))?;
    // A top entry that is older (or on another stack) makes a huge unsigned number.
    a.cmp(rax, same_stack(around))?;
    a.ja(other)?;
    if same_slot == SameSlot::Replaced {
        a.test(rax, rax)?;
        a.je(done)?;
    }
    a.call(labels.give_up)?;
    a.jmp(*start)?;
    a.set_label(&mut other)?;
    a.mov(rax, rdi)?;
    note_switch(a, labels, around)?;
    a.set_label(&mut done)?;
    a.ret()
}

pub fn resync(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [mut below, mut rest, mut hide, mut next, mut known, mut done] =
        std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.mov(rdx, field(block::REAL_LIMIT))?;
    a.mov(field(block::LIMIT), rdx)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut below)?;
    a.mov(rax, rdi)?;
    a.sub(rax, shadow(TOP, entry::SLOT))?;
    a.cmp(rax, DEEPEST_STACK)?;
    a.ja(rest)?;
    a.call(labels.give_up)?;
    a.jmp(below)?;
    a.set_label(&mut rest)?;
    // From the oldest on: in this order two entries of one slot were hidden.
    a.mov(rsi, field(block::BASE))?;
    a.set_label(&mut hide)?;
    a.cmp(rsi, field(block::TOP))?;
    a.jae(done)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    a.je(next)?;
    a.mov(rdx, qword_ptr(rax + place::RETURN_TO as i32))?;
    a.test(rdx, rdx)?;
    a.jne(known)?;
    a.mov(rdx, shadow(0, entry::RETURN_TO))?;
    a.set_label(&mut known)?;
    a.mov(rax, shadow(0, entry::SLOT))?;
    a.call(labels.readable)?;
    a.jne(next)?;
    a.cmp(qword_ptr(rax), rdx)?;
    a.jne(next)?;
    a.mov(rdx, shadow(0, entry::PLACE))?;
    a.mov(rdx, qword_ptr(rdx + place::HIDDEN as i32))?;
    a.mov(qword_ptr(rax), rdx)?;
    a.set_label(&mut next)?;
    a.add(rsi, entry::SIZE as i32)?;
    a.jmp(hide)?;
    a.set_label(&mut done)?;
    a.ret()
}

pub fn slow(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let mut revealed = a.create_label();
    a.set_label(start)?;
    // Whatever the reason, some call of this op goes or went unseen.
    a.or(field32(block::TAINTED), block::UNSEEN as i32)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.je(revealed)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut revealed)?;
    let mut unwinding = a.create_label();
    in_unwinder(a, unwinding)?;
    a.call(labels.resync)?;
    a.or(eax, 1)?;
    a.ret()?;
    a.set_label(&mut unwinding)?;
    a.cmp(eax, eax)?;
    a.ret()
}

/// Goes to `unwinding` when the slot at rdi is that of a call that an unwinder makes: it goes on reading the
/// stack afterwards, so that no return address may be hidden again. Changes rax.
fn in_unwinder(a: &mut CodeAssembler, unwinding: CodeLabel) -> Emitted<()> {
    a.mov(rax, field(block::UNWINDER))?;
    a.sub(rax, rdi)?;
    a.cmp(rax, DEEPEST_STACK)?;
    a.jb(unwinding)
}

/// Goes to `still` where the unwinder for which return addresses are put back at the moment need not have ended: the slot at rdi is not
/// above it on its stack. Changes rax.
fn unless_above_unwinder(a: &mut CodeAssembler, still: CodeLabel) -> Emitted<()> {
    a.mov(rax, rdi)?;
    a.sub(rax, field(block::UNWINDER))?;
    a.cmp(rax, DEEPEST_STACK)?;
    a.ja(still)
}

pub fn caught(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let mut still = a.create_label();
    a.set_label(start)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.jne(labels.resync)?;
    unless_above_unwinder(a, still)?;
    a.jmp(labels.resync)?;
    // What an unwinder has called, or a signal handler that interrupted it, has caught an exception of its own.
    a.set_label(&mut still)?;
    a.or(field32(block::TAINTED), block::UNSEEN as i32)?;
    a.ret()
}

/// What an entry is found by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Its slot.
    Slot,
    /// Its slot, and where the call returns to: rdi.
    SlotAndLanding,
}

pub fn find(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    by: By,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [mut again, mut lost, mut above, mut done] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(r8)?;
    a.mov(rax, rsi)?;
    a.set_label(&mut again)?;
    a.sub(rax, entry::SIZE as i32)?;
    a.cmp(rax, field(block::BASE))?;
    a.jb(lost)?;
    a.cmp(rdx, qword_ptr(rax + entry::SLOT as i32))?;
    a.jne(again)?;
    if by == By::SlotAndLanding {
        a.mov(r8, qword_ptr(rax + entry::PLACE as i32))?;
        a.cmp(rdi, qword_ptr(r8 + place::RETURN_TO as i32))?;
        a.jne(again)?;
    }
    // What lies above was left without a return, or waits on another stack.
    a.lea(r8, qword_ptr(rax + entry::SIZE as i32))?;
    a.set_label(&mut above)?;
    a.cmp(rsi, r8)?;
    a.jbe(done)?;
    a.mov(rax, qword_ptr(r8 + (TOP + entry::SLOT as i32)))?;
    note_switch(a, labels, around)?;
    a.call(labels.give_up)?;
    a.jmp(above)?;
    a.set_label(&mut done)?;
    a.pop(r8)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut lost)?;
    a.pop(r8)?;
    a.or(eax, 1)?;
    a.ret()
}

pub fn nested(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [
        mut again,
        mut op,
        mut pass,
        mut other,
        mut returns,
        mut gone,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.jne(again)?;
    a.or(field32(block::TAINTED), block::UNSEEN as i32)?;
    in_unwinder(a, pass)?;
    a.call(labels.resync)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut again)?;
    a.cmp(rsi, field(block::BASE))?;
    a.je(op)?;
    a.mov(rdx, shadow(TOP, entry::SLOT))?;
    a.cmp(rdx, rdi)?;
    a.jne(other)?;
    // The same slot: either the call that the entry stands for has come here (by its site, or round
    // to the entry), or the slot has been used anew.
    a.mov(rdx, shadow(TOP, entry::PLACE))?;
    a.mov(rax, qword_ptr(rdx + place::HIDDEN as i32))?;
    a.test(rax, rax)?;
    a.jne(returns)?;
    a.mov(rax, qword_ptr(rdx + place::RETURN_TO as i32))?;
    a.test(rax, rax)?;
    a.je(gone)?;
    a.set_label(&mut returns)?;
    match around.goroutines {
        // Slots count from the end of the goroutine's stack.
        Some(_) => {
            a.mov(rdx, stack_end())?;
            a.cmp(qword_ptr(rdi + rdx), rax)?;
        }
        None => a.cmp(qword_ptr(rdi), rax)?,
    }
    a.je(pass)?;
    a.set_label(&mut gone)?;
    a.call(labels.give_up)?;
    a.jmp(again)?;
    a.set_label(&mut other)?;
    a.mov(rax, rdi)?;
    a.sub(rax, rdx)?;
    a.cmp(rax, same_stack(around))?;
    a.jbe(gone)?;
    a.mov(rax, rdi)?;
    note_switch(a, labels, around)?;
    if around.goroutines.is_some() {
        // The slot of the op in progress is above this call's, so on the stack. Where it has another return address than the
        // op's own, the op was left by a panic.
        a.mov(rdx, field(block::BASE))?;
        a.mov(rax, qword_ptr(rdx + entry::RETURN_TO as i32))?;
        a.mov(rdx, qword_ptr(rdx + entry::SLOT as i32))?;
        a.add(rdx, stack_end())?;
        a.cmp(rax, qword_ptr(rdx))?;
        a.jne(gone)?;
    }
    a.mov(rax, field(block::CURRENT))?;
    a.cmp(qword_ptr(rax + descriptor::CHILDREN as i32), 0)?;
    a.je(pass)?;
    a.cmp(rsi, field(block::LIMIT))?;
    a.jae(pass)?;
    a.mov(eax, nested::IGNORE)?;
    a.ret()?;
    a.set_label(&mut op)?;
    a.mov(eax, nested::OP)?;
    a.ret()?;
    a.set_label(&mut pass)?;
    a.mov(eax, nested::PASS)?;
    a.ret()
}

pub fn reveal(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [mut first, mut nested, mut again, mut known, mut done] =
        std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.jne(first)?;
    // The outermost one reads the stack for the longest. One that is not close above this may have ended long ago, or reads another stack.
    a.mov(rax, field(block::UNWINDER))?;
    a.sub(rax, rdi)?;
    a.cmp(rax, DEEPEST_STACK)?;
    a.jbe(nested)?;
    a.set_label(&mut first)?;
    a.mov(field(block::UNWINDER), rdi)?;
    a.set_label(&mut nested)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut again)?;
    a.cmp(rsi, field(block::BASE))?;
    a.jbe(done)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.mov(rdx, qword_ptr(rax + place::HIDDEN as i32))?;
    a.test(rdx, rdx)?;
    a.je(again)?;
    a.mov(field(block::LIMIT), 0)?;
    a.mov(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    a.test(rdi, rdi)?;
    a.jne(known)?;
    a.mov(rdi, shadow(0, entry::RETURN_TO))?;
    a.set_label(&mut known)?;
    a.mov(rax, shadow(0, entry::SLOT))?;
    a.call(labels.readable)?;
    a.jne(again)?;
    a.cmp(qword_ptr(rax), rdx)?;
    a.jne(again)?;
    a.mov(qword_ptr(rax), rdi)?;
    a.jmp(again)?;
    a.set_label(&mut done)?;
    a.ret()
}
