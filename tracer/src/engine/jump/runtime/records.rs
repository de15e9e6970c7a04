//! Routines that write records to the ring.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings, field, field32, shadow, thread, tsc};
use crate::engine::jump::layout::{
    HEADER, LIVE, block, entry, filter, header, node, place, record, ring, targets,
};

use super::accounts::latency;
use super::{Labels, none};

pub fn reserve(a: &mut CodeAssembler, start: &mut CodeLabel) -> Emitted<()> {
    let [mut fits, mut write, mut full] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.cmp(field32(block::BUSY), 0)?;
    a.jne(full)?;
    a.mov(r10, field(block::RING))?;
    a.mov(r9, field(block::HEAD))?;
    a.mov(r8, r9)?;
    a.sub(r8, qword_ptr(r10 + ring::TAIL as i32))?;
    a.mov(rdx, r9)?;
    a.and(edx, (ring::DATA_BYTES - 1) as i32)?;
    a.lea(r11, qword_ptr(rdx + rax))?;
    a.cmp(r11, ring::DATA_BYTES as i32)?;
    a.mov(r11d, 0)?;
    a.jbe(fits)?;
    a.mov(r11d, ring::DATA_BYTES as i32)?;
    a.sub(r11d, edx)?;
    a.set_label(&mut fits)?;
    a.add(r8, r11)?;
    a.add(r8, rax)?;
    a.cmp(r8, ring::DATA_BYTES as i32)?;
    a.ja(full)?;
    a.mov(field32(block::BUSY), 1)?;
    a.lea(r8, qword_ptr(r10 + rdx + ring::DATA as i32))?;
    a.test(r11d, r11d)?;
    a.je(write)?;
    a.mov(dword_ptr(r8 + record::LEN as i32), r11d)?;
    a.mov(dword_ptr(r8 + record::KIND as i32), record::PADDING as i32)?;
    a.add(r9, r11)?;
    a.lea(r8, qword_ptr(r10 + ring::DATA as i32))?;
    a.set_label(&mut write)?;
    a.add(r9, rax)?;
    a.ret()?;
    a.set_label(&mut full)?;
    a.mov(r10, field(block::RING))?;
    a.inc(qword_ptr(r10 + ring::DROPPED as i32))?;
    a.xor(r8d, r8d)?;
    a.ret()
}

/// Makes what was written at r8 visible to the reader; r10 is the ring, r9 the new head.
fn publish(a: &mut CodeAssembler) -> Emitted<()> {
    a.mov(field(block::HEAD), r9)?;
    a.mov(qword_ptr(r10 + ring::HEAD as i32), r9)?;
    a.mov(field32(block::BUSY), 0)
}

fn to_record(offset: u64) -> AsmMemoryOperand {
    qword_ptr(r8 + offset as i32)
}

fn to_record32(offset: u64) -> AsmMemoryOperand {
    dword_ptr(r8 + offset as i32)
}

/// Ends the op of the entry at rsi, which returned at rdi. What is not written in full is counted in
/// the ring's histogram, so that the profile misses nothing.
pub fn end(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [mut off, mut range, mut next_range, mut found, mut sampled] =
        std::array::from_fn(|_| a.create_label());
    let [
        mut count,
        mut item,
        mut fits,
        mut items,
        mut full,
        mut op,
        mut write,
        mut used_up,
        mut some_left,
        mut none_left,
    ] = std::array::from_fn(|_| a.create_label());
    let scratch = [r8, r9, r10, r11, rbx];
    a.set_label(start)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    a.je(op)?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::SERVED as i32)?;
    a.jne(off)?;
    a.set_label(&mut op)?;
    // Nothing that a signal handler calls from here on belongs to the op.
    a.mov(rax, none(around))?;
    a.mov(field(block::CURRENT), rax)?;
    a.mov(shadow(0, entry::END), rdi)?;
    latency(a, around.inside_f0)?;
    a.mov(rax, around.control + LIVE)?;
    a.cmp(dword_ptr(rax), 0)?;
    a.je(off)?;
    // Whether a served request is of interest is not a question of its latency.
    a.mov(rdx, shadow(0, entry::PLACE))?;
    a.cmp(dword_ptr(rdx + place::KIND as i32), place::SERVED as i32)?;
    a.je(write)?;
    // The last range is for all latencies.
    a.add(rax, (HEADER + header::FILTER - LIVE) as i32)?;
    a.set_label(&mut range)?;
    a.cmp(rdi, qword_ptr(rax + filter::FIRST as i32))?;
    a.jb(next_range)?;
    a.cmp(rdi, qword_ptr(rax + filter::LAST as i32))?;
    a.jbe(found)?;
    a.set_label(&mut next_range)?;
    a.add(rax, filter::SIZE as i32)?;
    a.jmp(range)?;
    a.set_label(&mut found)?;
    a.mov(rdx, qword_ptr(rax + filter::BUDGET as i32))?;
    a.mov(rax, field(block::RING))?;
    a.test(edx, edx)?;
    a.je(count)?;
    a.test(field32(block::TAINTED), block::BARE as i32)?;
    a.jne(sampled)?;
    a.cmp(qword_ptr(rax + rdx), 0)?;
    a.je(sampled)?;
    a.dec(qword_ptr(rax + rdx))?;
    a.jne(write)?;
    // The last of its range; there may be others. The range for all other latencies has none.
    a.push(r8)?;
    a.mov(rdx, around.control + HEADER + header::FILTER)?;
    a.set_label(&mut used_up)?;
    a.mov(r8, qword_ptr(rdx + filter::BUDGET as i32))?;
    a.test(r8, r8)?;
    a.je(none_left)?;
    a.cmp(qword_ptr(rax + r8), 0)?;
    a.jne(some_left)?;
    a.add(rdx, filter::SIZE as i32)?;
    a.jmp(used_up)?;
    a.set_label(&mut none_left)?;
    a.mov(qword_ptr(rax + ring::SPENT as i32), 1)?;
    a.set_label(&mut some_left)?;
    a.pop(r8)?;
    a.set_label(&mut write)?;
    // The record.
    for register in scratch {
        a.push(register)?;
    }
    a.mov(eax, field32(block::TOUCHED))?;
    a.imul_3(rax, rax, record::ITEM as i32)?;
    a.add(rax, record::HEAD as i32)?;
    a.call(labels.reserve)?;
    a.test(r8, r8)?;
    a.je(full)?;
    a.mov(to_record32(record::LEN), eax)?;
    a.mov(to_record32(record::KIND), record::OP as i32)?;
    a.mov(rax, shadow(0, entry::START))?;
    a.mov(to_record(record::START), rax)?;
    a.mov(rax, shadow(0, entry::END))?;
    a.mov(to_record(record::END), rax)?;
    a.mov(to_record(record::LATENCY), rdi)?;
    a.mov(eax, field32(block::GENERATION))?;
    a.mov(to_record32(record::BEGAN), eax)?;
    a.mov(rax, around.control + LIVE)?;
    a.mov(eax, dword_ptr(rax))?;
    a.mov(to_record32(record::ENDED), eax)?;
    a.mov(eax, field32(block::TAINTED))?;
    a.mov(to_record32(record::TAINTED), eax)?;
    a.mov(eax, field32(block::TID))?;
    a.mov(to_record32(record::TID), eax)?;
    for word in (0..48).step_by(8) {
        a.mov(rax, field(block::ARGUMENTS + word))?;
        a.mov(to_record(record::ARGUMENTS + word), rax)?;
    }
    a.mov(rax, field(block::READ))?;
    a.mov(to_record(record::READ), rax)?;
    a.mov(eax, field32(block::READ_WELL))?;
    a.mov(to_record32(record::READ_WELL), eax)?;
    a.mov(rax, field(block::FIELD))?;
    a.mov(to_record(record::FIELD), rax)?;
    a.mov(rax, shadow(0, entry::CHILD))?;
    a.mov(to_record(record::FNODE), rax)?;
    a.mov(r11d, field32(block::TOUCHED))?;
    a.mov(to_record32(record::ITEMS), r11d)?;
    a.lea(rdx, qword_ptr(rcx + block::TOUCH as i32))?;
    a.add(r8, record::HEAD as i32)?;
    a.set_label(&mut item)?;
    a.test(r11d, r11d)?;
    a.je(items)?;
    a.mov(eax, dword_ptr(rdx))?;
    a.mov(to_record32(record::ITEM_NODE), eax)?;
    a.mov(rbx, qword_ptr(rcx + rax + node::LONG as i32))?;
    a.shr(rbx, record::ITEM_LONG_BITS)?;
    a.mov(to_record32(record::ITEM_LONG), ebx)?;
    a.shr(rbx, 32)?;
    a.je(fits)?;
    a.mov(to_record32(record::ITEM_LONG), -1)?;
    a.set_label(&mut fits)?;
    for (word, offset) in [node::COUNT, node::SUM, node::MAX, node::MAX_START]
        .into_iter()
        .enumerate()
    {
        a.mov(rbx, qword_ptr(rcx + rax + offset as i32))?;
        a.mov(to_record(record::ITEM_VALUES + 8 * word as u64), rbx)?;
    }
    a.add(rdx, 4)?;
    a.add(r8, record::ITEM as i32)?;
    a.dec(r11d)?;
    a.jmp(item)?;
    a.set_label(&mut items)?;
    publish(a)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.set_label(&mut off)?;
    a.mov(rax, shadow(0, entry::SAVED))?;
    a.mov(field(block::CURRENT), rax)?;
    a.mov(field(block::TOP), rsi)?;
    a.ret()?;
    a.set_label(&mut full)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    // The histogram is that of f0.
    a.mov(rdx, shadow(0, entry::PLACE))?;
    a.cmp(dword_ptr(rdx + place::KIND as i32), place::SERVED as i32)?;
    a.je(off)?;
    a.mov(rax, field(block::RING))?;
    a.jmp(count)?;
    a.set_label(&mut sampled)?;
    a.inc(qword_ptr(rax + ring::SAMPLED as i32))?;
    a.set_label(&mut count)?;
    a.inc(qword_ptr(rax + ring::COUNTED as i32))?;
    bucket(a)?;
    a.inc(qword_ptr(rax + rdx + ring::HISTOGRAM as i32))?;
    a.add(qword_ptr(rax + rdx + (ring::HISTOGRAM + 8) as i32), rdi)?;
    a.jmp(off)
}

/// Writes that a request is handed over. rdx points to what the function was called with: six registers, and the
/// word at the end of the chain with whether that could be read.
pub fn enqueued(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let scratch = [r8, r9, r10, r11, rdi];
    let mut full = a.create_label();
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.mov(rdi, rdx)?;
    a.mov(eax, record::HEAD as i32)?;
    a.call(labels.reserve)?;
    a.test(r8, r8)?;
    a.je(full)?;
    a.mov(to_record32(record::LEN), eax)?;
    a.mov(to_record32(record::KIND), record::ENQUEUED as i32)?;
    tsc(a)?;
    a.mov(to_record(record::START), rax)?;
    a.mov(eax, field32(block::TID))?;
    a.mov(to_record32(record::TID), eax)?;
    a.mov(rax, field(block::CURRENT))?;
    a.mov(to_record(record::FNODE), rax)?;
    let words = (0..48).step_by(8).map(|word| record::ARGUMENTS + word);
    for (from, to) in (0..).step_by(8).zip(words.chain([record::READ])) {
        a.mov(rax, qword_ptr(rdi + from))?;
        a.mov(to_record(to), rax)?;
    }
    a.mov(eax, dword_ptr(rdi + 56))?;
    a.mov(to_record32(record::READ_WELL), eax)?;
    publish(a)?;
    a.set_label(&mut full)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// Writes that the goroutine did not run from rsi to now, and could have from rdi on. Nothing where its ring is half full: ops
/// come first. Where it could have all along that is added up.
pub fn absence(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    around: &Surroundings,
    labels: &Labels,
) -> Emitted<()> {
    let [mut full, mut done] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.mov(r10, field(block::RING))?;
    a.mov(r9, field(block::HEAD))?;
    a.sub(r9, qword_ptr(r10 + ring::TAIL as i32))?;
    a.cmp(r9, (ring::DATA_BYTES / 2) as i32)?;
    a.ja(full)?;
    a.mov(eax, record::HEAD as i32)?;
    a.call(labels.reserve)?;
    a.test(r8, r8)?;
    a.je(done)?;
    a.mov(to_record32(record::LEN), eax)?;
    a.mov(to_record32(record::KIND), record::ABSENCE as i32)?;
    a.mov(to_record(record::START), rsi)?;
    a.mov(to_record(record::READY), rdi)?;
    tsc(a)?;
    a.mov(to_record(record::END), rax)?;
    a.mov(eax, field32(block::TID))?;
    a.mov(to_record32(record::TID), eax)?;
    thread(a, around)?;
    a.mov(to_record32(record::THREAD), eax)?;
    for word in (0..record::WAKER_WORDS).map(|index| 8 * index) {
        a.mov(rax, field(block::WAKER + word))?;
        a.mov(to_record(record::WAKER + word), rax)?;
    }
    publish(a)?;
    a.set_label(&mut done)?;
    a.ret()?;
    a.set_label(&mut full)?;
    a.cmp(rsi, rdi)?;
    a.jne(done)?;
    a.inc(qword_ptr(r10 + ring::UNTOLD as i32))?;
    tsc(a)?;
    a.sub(rax, rsi)?;
    a.add(field(block::UNTOLD_READY), rax)?;
    a.ret()
}

/// The offset in the histogram of the latency in rdi, in rdx: eight an octave and exact below sixteen.
fn bucket(a: &mut CodeAssembler) -> Emitted<()> {
    a.push(rcx)?;
    a.mov(rdx, rdi)?;
    a.mov(rcx, rdi)?;
    // Below sixteen the octave is that of eight, and nothing is shifted.
    a.or(rcx, 8)?;
    a.bsr(rcx, rcx)?;
    a.sub(ecx, 3)?;
    a.shr(rdx, cl)?;
    a.lea(rdx, qword_ptr(rdx + rcx * 8))?;
    a.pop(rcx)?;
    a.shl(edx, 4)
}

pub fn target(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let scratch = [r8, r9, r10, r11, rbx];
    let [
        mut again,
        mut next,
        mut known,
        mut any,
        mut report,
        mut written,
        mut done,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.mov(rbx, rax)?;
    a.mov(r9, rdx)?;
    a.shr(r9, 4)?;
    a.mov(r11d, targets::COUNT as i32)?;
    a.set_label(&mut again)?;
    a.and(r9d, (targets::COUNT - 1) as i32)?;
    a.mov(r10d, r9d)?;
    a.shl(r10d, 4)?;
    a.lea(r10, qword_ptr(rbx + r10 + targets::SLOTS as i32))?;
    a.cmp(qword_ptr(r10), rdx)?;
    a.je(known)?;
    a.xor(eax, eax)?;
    a.cmp(qword_ptr(r10), rax)?;
    a.jne(next)?;
    a.lock().cmpxchg(qword_ptr(r10), rdx)?;
    a.je(report)?;
    a.cmp(rax, rdx)?;
    a.je(known)?;
    a.set_label(&mut next)?;
    a.inc(r9d)?;
    a.dec(r11d)?;
    a.jne(again)?;
    a.set_label(&mut any)?;
    a.mov(rax, qword_ptr(rbx + targets::ANY as i32))?;
    a.set_label(&mut done)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    a.set_label(&mut known)?;
    a.mov(rax, qword_ptr(r10 + 8))?;
    a.cmp(rax, targets::UNMEASURED as i32)?;
    a.ja(done)?;
    a.jb(any)?;
    a.xor(eax, eax)?;
    a.jmp(done)?;
    // Nobody has asked about this callee yet. Until there is an answer it is one among others.
    a.set_label(&mut report)?;
    a.mov(rax, around.control + LIVE)?;
    a.cmp(dword_ptr(rax), 0)?;
    a.je(any)?;
    a.push(rdx)?;
    a.push(r10)?;
    a.mov(eax, record::HEAD as i32)?;
    a.call(labels.reserve)?;
    a.pop(r11)?;
    a.pop(rdx)?;
    a.test(r8, r8)?;
    a.jne(written)?;
    a.mov(qword_ptr(r11), 0)?;
    a.jmp(any)?;
    a.set_label(&mut written)?;
    a.mov(to_record32(record::LEN), record::HEAD as i32)?;
    a.mov(to_record32(record::KIND), record::TARGET as i32)?;
    a.mov(rax, field(block::CURRENT))?;
    a.mov(to_record(record::PARENT), rax)?;
    a.mov(to_record(record::PLACE), rsi)?;
    a.mov(to_record(record::CALLEE), rdx)?;
    a.add(r11, 8)?;
    a.mov(to_record(record::ANSWER), r11)?;
    publish(a)?;
    a.jmp(any)
}
