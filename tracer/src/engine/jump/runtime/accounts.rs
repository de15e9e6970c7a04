//! Routines and sequences that credit calls to their fnodes.

use darc_record::Touched;
use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings, field, field32, shadow};
use crate::engine::jump::layout::{block, entry, node};

/// As an instruction has it.
const LONG: i32 = Touched::LONG.0 as i32;

pub fn first(a: &mut CodeAssembler, start: &mut CodeLabel) -> Emitted<()> {
    a.set_label(start)?;
    a.mov(qword_ptr(rax + node::EPOCH as i32), rdx)?;
    a.mov(qword_ptr(rax + node::COUNT as i32), 1)?;
    a.mov(qword_ptr(rax + node::SUM as i32), rdi)?;
    a.mov(qword_ptr(rax + node::MAX as i32), rdi)?;
    a.mov(edx, 0)?;
    a.cmp(rdi, LONG)?;
    a.cmovae(rdx, rdi)?;
    a.mov(qword_ptr(rax + node::LONG as i32), rdx)?;
    a.mov(rdx, shadow(0, entry::START))?;
    a.mov(qword_ptr(rax + node::MAX_START as i32), rdx)?;
    // Each accumulator is entered once an op, so the list cannot overflow.
    a.mov(edx, field32(block::TOUCHED))?;
    a.sub(eax, ecx)?;
    a.mov(dword_ptr(rcx + rdx * 4 + block::TOUCH as i32), eax)?;
    a.inc(edx)?;
    a.mov(field32(block::TOUCHED), edx)?;
    a.ret()
}

/// The latency of the entry at rsi that ended at rdi, in rdi; rdx is lost.
pub fn latency(a: &mut CodeAssembler, cost: i32) -> Emitted<()> {
    a.sub(rdi, field(block::STOLEN))?;
    a.sub(rdi, shadow(0, entry::ADJUSTED))?;
    a.mov(edx, 0)?;
    a.sub(rdi, cost)?;
    a.cmovs(rdi, rdx)
}

/// Credits the latency in rdi to the accumulator at rax. The first call of an op goes to `begin`, where
/// [`first`] does all of it, and comes back to `done`. rax and rdx are lost.
pub fn credit(a: &mut CodeAssembler, mut done: CodeLabel, begin: CodeLabel) -> Emitted<()> {
    let mut short = a.create_label();
    a.mov(rdx, field(block::EPOCH))?;
    a.cmp(rdx, qword_ptr(rax + node::EPOCH as i32))?;
    a.jne(begin)?;
    a.inc(qword_ptr(rax + node::COUNT as i32))?;
    a.add(qword_ptr(rax + node::SUM as i32), rdi)?;
    a.cmp(rdi, LONG)?;
    a.jb(short)?;
    a.add(qword_ptr(rax + node::LONG as i32), rdi)?;
    a.set_label(&mut short)?;
    a.cmp(qword_ptr(rax + node::MAX as i32), rdi)?;
    a.jae(done)?;
    a.mov(qword_ptr(rax + node::MAX as i32), rdi)?;
    a.mov(rdx, shadow(0, entry::START))?;
    a.mov(qword_ptr(rax + node::MAX_START as i32), rdx)?;
    a.set_label(&mut done)
}

pub fn count(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    first: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let (done, mut begin) = (a.create_label(), a.create_label());
    a.set_label(start)?;
    a.push(rdi)?;
    latency(a, around.inside)?;
    a.add(field(block::STOLEN), around.outside)?;
    a.mov(rax, shadow(0, entry::CHILD))?;
    a.mov(eax, dword_ptr(rax))?;
    a.add(rax, rcx)?;
    credit(a, done, begin)?;
    a.pop(rdi)?;
    a.ret()?;
    a.set_label(&mut begin)?;
    a.call(first)?;
    a.jmp(done)
}
