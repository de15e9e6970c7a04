//! Routines that find, make and renew the blocks of threads.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings, field, field32, shadow};
use crate::engine::jump::layout::{
    BLOCKS, HEADER, LIVE, NO_THREAD, PROBES, STACKS, STACKS_SHIFT, TABLE, TABLE_BYTES,
    TABLE_DELETED, block, entry, header, place, ring,
};

use super::{Labels, none};

pub fn lookup(a: &mut CodeAssembler, start: &mut CodeLabel, around: &Surroundings) -> Emitted<()> {
    let [mut again, mut next, mut unknown, mut found] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(r8)?;
    a.push(r9)?;
    a.mov(r9, around.control + TABLE)?;
    a.mov(r8d, PROBES)?;
    a.set_label(&mut again)?;
    a.cmp(qword_ptr(r9 + rdx), 0)?;
    a.je(unknown)?;
    a.cmp(qword_ptr(r9 + rdx), rax)?;
    a.jne(next)?;
    a.mov(rcx, qword_ptr(r9 + rdx + 8))?;
    // The reader takes a block away before it deletes the entry.
    a.cmp(field(block::THREAD), rax)?;
    a.je(found)?;
    a.set_label(&mut next)?;
    a.add(edx, 16)?;
    a.and(edx, (TABLE_BYTES - 1) as i32)?;
    a.dec(r8d)?;
    a.jne(again)?;
    a.set_label(&mut unknown)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut found)?;
    a.pop(r9)?;
    a.pop(r8)?;
    a.ret()
}

/// A signal handler that comes in between may give the thread a second block, which is never used.
pub fn register(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    adopt: &mut CodeLabel,
    lookup: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let [
        mut unknown,
        mut full,
        mut without,
        mut insert,
        mut won,
        mut done,
        mut budget,
        mut claimed,
        mut taken,
        mut search,
        mut occupied,
        mut freed,
        mut refilled,
    ] = std::array::from_fn(|_| a.create_label());
    // A goroutine has got its block in the stub, which has no other stack.
    a.set_label(adopt)?;
    a.push(r8)?;
    a.push(r9)?;
    a.push(r10)?;
    a.push(r11)?;
    a.mov(r10d, r13d)?;
    a.jmp(claimed)?;
    a.set_label(start)?;
    a.push(rdx)?;
    a.call(lookup)?;
    a.pop(rdx)?;
    a.test(rcx, rcx)?;
    a.je(unknown)?;
    a.ret()?;
    a.set_label(&mut unknown)?;
    a.push(r8)?;
    a.push(r9)?;
    a.push(r10)?;
    a.push(r11)?;
    // A forked child registers nobody: the ring is not its own.
    a.mov(r8, around.control + LIVE)?;
    a.cmp(dword_ptr(r8), 0)?;
    a.je(done)?;
    a.mov(r8, around.control + HEADER)?;
    a.mov(ecx, 1)?;
    a.lock()
        .xadd(dword_ptr(r8 + header::NEXT_BLOCK as i32), ecx)?;
    a.cmp(ecx, dword_ptr(r8 + header::BLOCKS as i32))?;
    a.jae(full)?;
    a.mov(r10d, ecx)?;
    a.set_label(&mut claimed)?;
    a.imul_3(r9, r10, block::SIZE as i32)?;
    a.mov(rcx, around.control + BLOCKS)?;
    a.add(rcx, r9)?;
    a.mov(r11, field(block::THREAD))?;
    a.mov(field(block::THREAD), rax)?;
    a.mov(r9, none(around))?;
    a.mov(field(block::CURRENT), r9)?;
    a.lea(r9, qword_ptr(rcx + block::SHADOW as i32))?;
    a.mov(qword_ptr(r9 + entry::SLOT as i32), -1)?;
    a.add(r9, entry::SIZE as i32)?;
    a.mov(field(block::BASE), r9)?;
    a.mov(field(block::TOP), r9)?;
    a.lea(r9, qword_ptr(rcx + block::SHADOW_END as i32))?;
    a.mov(field(block::REAL_LIMIT), r9)?;
    a.mov(field(block::LIMIT), r9)?;
    a.mov(field32(block::BUSY), 0)?;
    a.imul_3(r9, r10, around.ring_bytes as i32)?;
    a.mov(r10, around.rings)?;
    a.add(r9, r10)?;
    a.mov(field(block::RING), r9)?;
    if around.goroutines.is_some() {
        // The budgets go on of one that has ended: there may be any number of short ones.
        a.test(r11, r11)?;
        a.jne(refilled)?;
    }
    a.mov(r10d, header::FILTERS as i32)?;
    a.set_label(&mut budget)?;
    a.mov(
        qword_ptr(r9 + r10 * 8 + (ring::BUDGETS - 8) as i32),
        ring::BUDGET as i32,
    )?;
    a.dec(r10d)?;
    a.jne(budget)?;
    a.set_label(&mut refilled)?;
    match (around.tid_offset, around.goroutines) {
        // No thread has such an id.
        (_, Some(_)) => {
            a.lea(r9d, dword_ptr(r13 + NO_THREAD))?;
            a.mov(field32(block::TID), r9d)?;
        }
        (Some(offset), None) => {
            a.mov(r9d, dword_ptr(offset).fs())?;
            a.mov(field32(block::TID), r9d)?;
        }
        (None, None) => {
            a.push(rax)?;
            a.push(rcx)?;
            a.mov(eax, libc::SYS_gettid as i32)?;
            a.syscall()?;
            a.pop(rcx)?;
            a.mov(field32(block::TID), eax)?;
            a.pop(rax)?;
        }
    }
    a.mov(r9, field(block::RING))?;
    a.mov(r10d, field32(block::TID))?;
    a.mov(qword_ptr(r9 + ring::STATE as i32), r10)?;
    a.mov(r8, around.control + TABLE)?;
    a.mov(r11d, PROBES)?;
    a.set_label(&mut insert)?;
    a.lea(r9, qword_ptr(r8 + rdx))?;
    a.push(rax)?;
    a.mov(rax, qword_ptr(r9))?;
    a.test(rax, !(TABLE_DELETED as i32))?;
    a.jne(taken)?;
    a.mov(r10d, 1)?;
    a.lock().cmpxchg(qword_ptr(r9), r10)?;
    a.set_label(&mut taken)?;
    a.pop(rax)?;
    a.je(won)?;
    a.add(edx, 16)?;
    if around.goroutines.is_none() {
        a.and(edx, (TABLE_BYTES - 1) as i32)?;
    }
    a.dec(r11d)?;
    a.jne(insert)?;
    // The table is crowded; the block is lost, for another thread has counted on by now.
    a.mov(r8, around.control + HEADER)?;
    a.jmp(without)?;
    a.set_label(&mut full)?;
    a.lock().dec(dword_ptr(r8 + header::NEXT_BLOCK as i32))?;
    // Perhaps the reader has given back those of threads that have ended.
    a.mov(r11d, dword_ptr(r8 + header::BLOCKS as i32))?;
    a.mov(r9, around.rings)?;
    a.cmp(qword_ptr(r9 + ring::FREE_BLOCKS as i32), 0)?;
    a.je(without)?;
    a.push(rax)?;
    a.push(rdx)?;
    a.mov(rdx, ring::FREE)?;
    a.mov(r8d, 1)?;
    a.xor(r10d, r10d)?;
    a.set_label(&mut search)?;
    a.mov(rax, rdx)?;
    a.cmp(qword_ptr(r9 + ring::STATE as i32), rax)?;
    a.jne(occupied)?;
    a.lock().cmpxchg(qword_ptr(r9 + ring::STATE as i32), r8)?;
    a.set_label(&mut occupied)?;
    a.je(freed)?;
    a.add(r9, around.ring_bytes as i32)?;
    a.inc(r10d)?;
    a.cmp(r10d, r11d)?;
    a.jb(search)?;
    // None is free any more: others were faster. Nothing is equal.
    a.test(rsp, rsp)?;
    a.set_label(&mut freed)?;
    a.pop(rdx)?;
    a.pop(rax)?;
    a.mov(r8, around.control + HEADER)?;
    a.jne(without)?;
    a.mov(r9, around.rings)?;
    a.lock().dec(qword_ptr(r9 + ring::FREE_BLOCKS as i32))?;
    a.jmp(claimed)?;
    a.set_label(&mut without)?;
    a.mov(r8, around.rings)?;
    a.lock().inc(qword_ptr(r8 + ring::UNREGISTERED as i32))?;
    a.xor(ecx, ecx)?;
    a.jmp(done)?;
    a.set_label(&mut won)?;
    // The block first: whoever sees the key must find it.
    a.mov(qword_ptr(r9 + 8), rcx)?;
    a.mov(qword_ptr(r9), rax)?;
    a.set_label(&mut done)?;
    a.pop(r11)?;
    a.pop(r10)?;
    a.pop(r9)?;
    a.pop(r8)?;
    a.ret()
}

pub fn remember(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    a.set_label(start)?;
    a.lea(rdx, qword_ptr(rsp + 8))?;
    a.shr(rdx, STACKS_SHIFT)?;
    a.movzx(edx, dx)?;
    a.mov(rax, around.control)?;
    a.sub(rcx, rax)?;
    a.mov(dword_ptr(rax + rdx * 4 + STACKS as i32), ecx)?;
    a.add(rcx, rax)?;
    a.ret()
}

/// Zero flag: the block is the thread's now. Else it is about to be another's, or this is a forked child,
/// to which the ring does not belong. What the thread before has left is given up: a stack of it may be another thread's.
pub fn renew(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [mut next, mut idle, mut refused] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.mov(rdx, around.control + LIVE)?;
    a.cmp(dword_ptr(rdx), 0)?;
    a.je(refused)?;
    if let Some(offset) = around.tid_offset {
        a.push(rsi)?;
        a.mov(rsi, field(block::RING))?;
        a.mov(eax, field32(block::TID))?;
        a.mov(edx, dword_ptr(offset).fs())?;
        a.lock().cmpxchg(qword_ptr(rsi + ring::STATE as i32), rdx)?;
        a.pop(rsi)?;
        a.jne(refused)?;
        a.mov(field32(block::TID), edx)?;
    }
    a.push(rsi)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut next)?;
    a.cmp(rsi, field(block::BASE))?;
    a.jbe(idle)?;
    a.call(labels.give_up)?;
    a.jmp(next)?;
    a.set_label(&mut idle)?;
    a.pop(rsi)?;
    a.mov(rdx, none(around))?;
    a.mov(field(block::CURRENT), rdx)?;
    a.mov(rdx, field(block::REAL_LIMIT))?;
    a.mov(field(block::LIMIT), rdx)?;
    a.mov(field32(block::BUSY), 0)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut refused)?;
    a.or(eax, 1)?;
    a.ret()
}

pub fn anywhere(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    /// A callee that takes its arguments off the stack (`ret $n`) returns at most so many bytes above the slot.
    const ARGUMENTS: i32 = 256;
    let scratch = [rcx, rdx, rsi, r8, r9, r10];
    let [
        mut all,
        mut next_block,
        mut again,
        mut advance,
        mut last,
        mut done,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.xor(r10d, r10d)?;
    a.set_label(&mut all)?;
    a.mov(rcx, around.control + HEADER)?;
    a.mov(r8d, dword_ptr(rcx + header::NEXT_BLOCK as i32))?;
    a.mov(r9d, dword_ptr(rcx + header::BLOCKS as i32))?;
    // Threads that find no block count on for a moment.
    a.cmp(r8d, r9d)?;
    a.cmova(r8d, r9d)?;
    a.mov(rcx, around.control + BLOCKS)?;
    a.set_label(&mut next_block)?;
    a.xor(eax, eax)?;
    a.dec(r8d)?;
    a.js(last)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut again)?;
    a.cmp(rsi, field(block::BASE))?;
    a.jbe(advance)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.mov(r9, rdx)?;
    a.sub(r9, shadow(0, entry::SLOT))?;
    a.cmp(r9, r10)?;
    a.ja(again)?;
    a.mov(r9, shadow(0, entry::PLACE))?;
    a.cmp(qword_ptr(r9 + place::RETURN_TO as i32), 0)?;
    a.jne(again)?;
    // The frames that it has replaced by a jump have the same slot: the oldest of them knows the program's own address.
    a.mov(rax, shadow(0, entry::RETURN_TO))?;
    a.mov(rdx, shadow(0, entry::SLOT))?;
    a.xor(r10d, r10d)?;
    a.jmp(again)?;
    a.set_label(&mut advance)?;
    a.test(rax, rax)?;
    a.jne(done)?;
    a.add(rcx, block::SIZE as i32)?;
    a.jmp(next_block)?;
    a.set_label(&mut last)?;
    a.test(r10d, r10d)?;
    a.mov(r10d, ARGUMENTS)?;
    a.je(all)?;
    a.set_label(&mut done)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}
