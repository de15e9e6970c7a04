//! Routines for functions that run already: their time is cut into windows, each of which is an op.
//!
//! A window begins at the first site of such a function that a thread comes to, and ends with the first
//! return to it after [`WINDOW_CYCLES`]; the next one begins at that instant, so that no time is lost
//! between them. It is an entry at the bottom of the shadow stack that no return can match.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings, TOP, field, field32, shadow, tsc};
use crate::engine::jump::layout::{LIVE, WINDOW_CYCLES, block, descriptor, entry};

use super::none;

/// rax the running function's descriptor, rdx its function, rsi top. Zero flag: a window is open and that
/// function current, so the site is worth another look; else pass.
pub fn window(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    open: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let [mut there, mut yes, mut pass] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    // Its calls may have been retired while this stub was on its way.
    a.cmp(dword_ptr(rax + descriptor::FUNCTION as i32), edx)?;
    a.jne(pass)?;
    a.cmp(rsi, field(block::BASE))?;
    a.jne(there)?;
    a.mov(rdx, around.control + LIVE)?;
    a.cmp(dword_ptr(rdx), 0)?;
    a.je(pass)?;
    a.push(r8)?;
    a.mov(r8, rax)?;
    tsc(a)?;
    a.call(open)?;
    a.pop(r8)?;
    a.jmp(yes)?;
    // Only the window itself is awaited: the thread is in another of the functions that run already.
    a.set_label(&mut there)?;
    a.cmp(shadow(TOP, entry::SLOT), entry::WINDOW_SLOT)?;
    a.jne(pass)?;
    a.mov(field(block::CURRENT), rax)?;
    a.set_label(&mut yes)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut pass)?;
    a.or(eax, 1)?;
    a.ret()
}

/// r8 descriptor, rax clock reading, rsi free entry: opens a window there. Changes rax, rdx.
pub fn open(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    place: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    a.set_label(start)?;
    a.mov(shadow(0, entry::START), rax)?;
    a.sub(rax, field(block::STOLEN))?;
    a.mov(shadow(0, entry::ADJUSTED), rax)?;
    a.mov(rax, around.control + LIVE)?;
    a.mov(eax, dword_ptr(rax))?;
    a.mov(field32(block::GENERATION), eax)?;
    a.mov(rax, field(block::REAL_LIMIT))?;
    a.mov(field(block::LIMIT), rax)?;
    // A signal handler may have jumped away from a record that was being written.
    a.mov(field32(block::BUSY), 0)?;
    a.inc(field(block::EPOCH))?;
    a.mov(field(block::TOUCHED), 0)?;
    a.mov(rdx, none(around))?;
    a.mov(shadow(0, entry::SAVED), rdx)?;
    a.mov(shadow(0, entry::CHILD), r8)?;
    a.mov(shadow(0, entry::SLOT), entry::WINDOW_SLOT)?;
    a.mov(shadow(0, entry::RETURN_TO), 0)?;
    a.lea(rax, ptr(place))?;
    a.mov(shadow(0, entry::PLACE), rax)?;
    a.lea(rax, qword_ptr(rsi + entry::SIZE as i32))?;
    a.mov(field(block::TOP), rax)?;
    a.mov(field(block::CURRENT), r8)?;
    a.ret()
}

/// rax the running function's descriptor, rsi top: a call returned to it. Delivers the window when it is
/// old enough, and opens the next. Changes rax, rdx, rdi; rsi is lost.
pub fn cut(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    open: CodeLabel,
    end: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let mut done = a.create_label();
    a.set_label(start)?;
    a.push(r8)?;
    a.push(r9)?;
    a.mov(r8, rax)?;
    tsc(a)?;
    a.mov(rdx, rax)?;
    a.sub(rdx, shadow(TOP, entry::START))?;
    a.cmp(rdx, WINDOW_CYCLES)?;
    a.jb(done)?;
    a.mov(r9, rax)?;
    a.mov(rdi, rax)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.call(end)?;
    a.mov(rax, around.control + LIVE)?;
    a.cmp(dword_ptr(rax), 0)?;
    a.je(done)?;
    a.mov(rax, r9)?;
    a.call(open)?;
    a.set_label(&mut done)?;
    a.pop(r9)?;
    a.pop(r8)?;
    a.ret()
}
