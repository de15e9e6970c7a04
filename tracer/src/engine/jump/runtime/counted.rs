//! Routines that count the calls of many functions: how many, how long, in which bucket.
//!
//! They are shared by the stubs of all functions, so that each of these is short. A call's counts are the
//! thread's own (see [`counts`]); nothing here is atomic, and every change of a count is one instruction, so
//! that a signal handler that calls such a function too loses nothing.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings, TOP, field, field32, has_pointer, shadow};
use crate::engine::jump::layout::{HASH, HASH_SHIFT, LIVE, TABLE, block, counts, entry, place};

use super::Labels;
use super::frames::SAME_STACK;

/// Routines that make blocks.
#[derive(Clone, Copy)]
pub struct Threads {
    pub register: CodeLabel,
    pub renew: CodeLabel,
}

/// What the end of a call is noticed by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Noticed {
    /// The stub that its hidden return address led to.
    HiddenReturn,
    /// A patched `ret`.
    Ret,
    /// The stub of its call site.
    BySite,
}

/// Makes rcx the thread's block; rax, rsi are lost. At `miss` rax is the thread pointer, rsi the table offset. A forked child
/// goes to `forked`, from where it may come back to `live`.
fn acquire(
    a: &mut CodeAssembler,
    around: &Surroundings,
    forked: CodeLabel,
    live: &mut CodeLabel,
    miss: CodeLabel,
) -> Emitted<()> {
    a.mov(rcx, around.control + LIVE)?;
    a.cmp(dword_ptr(rcx), 0)?;
    a.je(forked)?;
    a.set_label(live)?;
    a.mov(rax, qword_ptr(0).fs())?;
    a.imul_3(esi, eax, HASH)?;
    a.shr(esi, HASH_SHIFT)?;
    a.shl(esi, 4)?;
    a.mov(rcx, around.control + TABLE)?;
    a.cmp(qword_ptr(rcx + rsi), rax)?;
    a.jne(miss)?;
    a.mov(rcx, qword_ptr(rcx + rsi + 8))
}

/// At `miss` of [`acquire`]: asks a routine; goes `back` or to `unknown`. rdx is kept.
fn acquire_slowly(
    a: &mut CodeAssembler,
    miss: &mut CodeLabel,
    routine: CodeLabel,
    back: CodeLabel,
    unknown: CodeLabel,
) -> Emitted<()> {
    a.set_label(miss)?;
    a.push(rdx)?;
    a.mov(rdx, rsi)?;
    a.call(routine)?;
    a.pop(rdx)?;
    a.test(rcx, rcx)?;
    a.jne(back)?;
    a.jmp(unknown)
}

/// See [`super::Runtime::count_in`]. The clock is not read here: that comes last of all.
pub fn enter(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    threads: Threads,
    slow: CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [
        mut miss,
        mut known,
        mut renew,
        mut same,
        mut again,
        mut older,
    ] = std::array::from_fn(|_| a.create_label());
    let [mut fresh, mut full, mut pass, mut below, mut wanted] =
        std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    let mut live = a.create_label();
    acquire(a, around, pass, &mut live, miss)?;
    a.set_label(&mut known)?;
    if let Some(offset) = around.tid_offset {
        // A new thread may have the thread pointer of one that is gone.
        a.mov(eax, dword_ptr(offset).fs())?;
        a.cmp(eax, field32(block::TID))?;
        a.jne(renew)?;
        a.set_label(&mut same)?;
    }
    // The instruction before has a label already.
    a.nop()?;
    a.set_label(&mut again)?;
    a.mov(rsi, field(block::TOP))?;
    a.cmp(rdi, shadow(TOP, entry::SLOT))?;
    a.jae(older)?;
    a.set_label(&mut fresh)?;
    a.cmp(rsi, field(block::LIMIT))?;
    a.jae(full)?;
    a.cmp(dword_ptr(rdx + place::PARENT as i32), 0)?;
    a.jne(below)?;
    a.set_label(&mut wanted)?;
    // Complete before it counts, for a signal handler may come in between and look at it; and written again
    // afterwards, for one that came earlier may have used the same room.
    for pushed in [false, true] {
        if pushed {
            a.add(field(block::TOP), entry::SIZE as i32)?;
        }
        a.mov(shadow(0, entry::PLACE), rdx)?;
        a.mov(shadow(0, entry::SLOT), rdi)?;
        a.mov(shadow(0, entry::START), 0)?;
    }
    a.mov(rax, qword_ptr(rdi))?;
    a.mov(shadow(0, entry::RETURN_TO), rax)?;
    a.mov(rax, field(block::CURRENT))?;
    a.mov(shadow(0, entry::SAVED), rax)?;
    a.mov(eax, dword_ptr(rdx + place::FUNCTION as i32))?;
    a.mov(edx, dword_ptr(rdx + place::LOCAL as i32))?;
    a.mov(rdi, field(block::RING))?;
    a.inc(qword_ptr(rdi + rax * 8 + counts::BEGUN as i32))?;
    a.add(rdx, rdi)?;
    a.mov(rdi, field(block::STOLEN))?;
    a.mov(rcx, rdx)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    acquire_slowly(a, &mut miss, threads.register, known, pass)?;
    if around.tid_offset.is_some() {
        a.set_label(&mut renew)?;
        a.push(rdx)?;
        a.call(threads.renew)?;
        a.pop(rdx)?;
        a.jmp(same)?;
    }
    older_frames(a, &mut older, labels, fresh, pass)?;
    in_parent(a, &mut below, wanted, pass)?;
    // The shadow stack is full, or return addresses were put back for an unwinder.
    let mut uncounted = a.create_label();
    a.set_label(&mut full)?;
    a.push(rdx)?;
    a.call(slow)?;
    a.pop(rdx)?;
    a.je(uncounted)?;
    a.jmp(again)?;
    a.set_label(&mut uncounted)?;
    a.mov(rsi, field(block::RING))?;
    a.mov(eax, dword_ptr(rdx + place::FUNCTION as i32))?;
    a.inc(qword_ptr(rsi + rax * 8 + counts::BEGUN as i32))?;
    a.mov(eax, dword_ptr(rdx + place::LOCAL as i32))?;
    a.inc(qword_ptr(rsi + rax + counts::MISSED as i32))?;
    a.set_label(&mut pass)?;
    a.or(eax, 1)?;
    a.ret()
}

/// The newest entry's slot is not above the new one: it is of this call's own frame, or was left.
fn older_frames(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    fresh: CodeLabel,
    pass: CodeLabel,
) -> Emitted<()> {
    let [mut next, mut gone] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(rdx)?;
    a.set_label(&mut next)?;
    a.mov(rax, rdi)?;
    a.sub(rax, shadow(TOP, entry::SLOT))?;
    // A top entry that is older (or on another stack) makes a huge unsigned number.
    a.cmp(rax, SAME_STACK)?;
    let [mut other, mut came_here, mut round] = std::array::from_fn(|_| a.create_label());
    a.ja(other)?;
    a.test(rax, rax)?;
    a.jne(gone)?;
    // The same slot: the call that the entry stands for has jumped here, or the slot has been used anew,
    // as it always has where a site is about to use it.
    a.mov(rax, qword_ptr(rsp))?;
    a.cmp(qword_ptr(rax + place::RETURN_TO as i32), 0)?;
    a.jne(gone)?;
    a.mov(rax, shadow(TOP, entry::PLACE))?;
    a.mov(rdx, qword_ptr(rax + place::HIDDEN as i32))?;
    a.test(rdx, rdx)?;
    a.je(gone)?;
    a.cmp(qword_ptr(rdi), rdx)?;
    a.je(came_here)?;
    a.set_label(&mut gone)?;
    a.call(labels.give_up)?;
    a.jmp(next)?;
    a.set_label(&mut came_here)?;
    a.pop(rdx)?;
    // A jump to its own entry is no new call.
    a.cmp(rax, rdx)?;
    a.jne(fresh)?;
    a.jmp(round)?;
    a.set_label(&mut other)?;
    a.pop(rdx)?;
    a.jmp(fresh)?;
    a.set_label(&mut round)?;
    a.jmp(pass)
}

/// Goes to `wanted` when the call of the site's function is counted in the slot that the place at rdx wants,
/// else to `pass`. rax is lost.
fn in_parent(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    wanted: CodeLabel,
    pass: CodeLabel,
) -> Emitted<()> {
    let [mut next, mut found, mut other] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(r8)?;
    a.mov(r8, rsi)?;
    a.set_label(&mut next)?;
    a.sub(r8, entry::SIZE as i32)?;
    a.cmp(r8, field(block::BASE))?;
    a.jb(other)?;
    a.mov(rax, qword_ptr(r8 + entry::PLACE as i32))?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::COUNTED as i32)?;
    a.jne(other)?;
    a.mov(eax, dword_ptr(rax + place::FUNCTION as i32))?;
    a.inc(eax)?;
    a.cmp(eax, dword_ptr(rdx + place::PARENT as i32))?;
    a.je(found)?;
    // One call may be counted at its site and at the callee's entry: both entries have its slot.
    a.mov(rax, qword_ptr(r8 + entry::SLOT as i32))?;
    a.cmp(rax, qword_ptr(r8 + (TOP + entry::SLOT as i32)))?;
    a.je(next)?;
    a.set_label(&mut other)?;
    a.pop(r8)?;
    a.jmp(pass)?;
    a.set_label(&mut found)?;
    a.pop(r8)?;
    a.jmp(wanted)
}

/// See [`super::Runtime::count_out`] and [`super::Runtime::count_ret`].
pub fn leave(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    noticed: Noticed,
    lookup: CodeLabel,
    find: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let [mut miss, mut known, mut search, mut matched, mut lost] =
        std::array::from_fn(|_| a.create_label());
    let [mut largest, mut small, mut done] = std::array::from_fn(|_| a.create_label());
    let [mut forked, mut live] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    acquire(a, around, forked, &mut live, miss)?;
    a.set_label(&mut known)?;
    a.mov(rsi, field(block::TOP))?;
    a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    a.jne(search)?;
    a.set_label(&mut matched)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    match noticed {
        Noticed::HiddenReturn => {
            a.mov(rdx, shadow(0, entry::RETURN_TO))?;
            a.mov(rax, shadow(0, entry::SLOT))?;
            a.mov(qword_ptr(rax), rdx)?;
            a.mov(rax, shadow(0, entry::PLACE))?;
        }
        // A call with a hidden return address that leads here shares the slot; it notices its return by itself.
        Noticed::Ret => {
            a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
            a.jne(lost)?;
        }
        // The stub knows where it goes on.
        Noticed::BySite => {}
    }
    // Everything is taken from the entry before it is given up, for a signal handler may use its room.
    a.mov(rdx, rdi)?;
    a.sub(rdx, field(block::STOLEN))?;
    a.sub(rdx, shadow(0, entry::ADJUSTED))?;
    a.mov(rdi, shadow(0, entry::START))?;
    a.mov(field(block::TOP), rsi)?;
    a.add(field(block::STOLEN), around.counted.1)?;
    a.mov(rcx, field(block::RING))?;
    a.mov(eax, dword_ptr(rax + place::LOCAL as i32))?;
    a.add(rcx, rax)?;
    a.mov(rax, around.control + LIVE)?;
    a.cmp(dword_ptr(rax), 0)?;
    a.je(done)?;
    a.sub(field(counts::STARTS), rdi)?;
    a.xor(eax, eax)?;
    a.sub(rdx, around.counted.0)?;
    a.cmovs(rdx, rax)?;
    a.inc(field(counts::RETURNED))?;
    a.cmp(field(counts::MAX), rdx)?;
    a.jae(largest)?;
    a.mov(field(counts::MAX), rdx)?;
    a.set_label(&mut largest)?;
    a.mov(rdi, rdx)?;
    a.cmp(rdx, 16)?;
    a.jb(small)?;
    a.mov(rsi, rcx)?;
    a.bsr(rcx, rdx)?;
    a.sub(ecx, 3)?;
    a.shr(rdi, cl)?;
    a.lea(rdi, qword_ptr(rdi + rcx * 8))?;
    a.mov(rcx, rsi)?;
    a.set_label(&mut small)?;
    a.shl(edi, 4)?;
    a.inc(qword_ptr(rcx + rdi + counts::BUCKETS as i32))?;
    a.add(qword_ptr(rcx + rdi + (counts::BUCKETS + 8) as i32), rdx)?;
    a.set_label(&mut done)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut forked)?;
    has_pointer(a, around.tells_pointer, lost, live)?;
    acquire_slowly(a, &mut miss, lookup, known, lost)?;
    a.set_label(&mut search)?;
    a.call(find)?;
    a.je(matched)?;
    a.set_label(&mut lost)?;
    a.or(eax, 1)?;
    a.ret()
}

/// See [`Labels::abandon`].
pub fn abandon(a: &mut CodeAssembler, start: &mut CodeLabel, around: &Surroundings) -> Emitted<()> {
    let mut child = a.create_label();
    a.set_label(start)?;
    a.mov(rdx, around.control + LIVE)?;
    a.cmp(dword_ptr(rdx), 0)?;
    a.je(child)?;
    a.mov(edx, dword_ptr(rax + place::LOCAL as i32))?;
    a.add(rdx, field(block::RING))?;
    a.mov(rdi, shadow(0, entry::START))?;
    a.sub(qword_ptr(rdx + counts::STARTS as i32), rdi)?;
    a.inc(qword_ptr(rdx + counts::ABANDONED as i32))?;
    a.set_label(&mut child)?;
    a.ret()
}
