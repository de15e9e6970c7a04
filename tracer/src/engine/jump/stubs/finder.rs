//! The code at the entry of the function by which unwinders find what is known of an address of code.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, RAX, Surroundings, restore, save};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{CODE, HEADER, header};
use crate::engine::jump::runtime::Runtime;
use crate::engine::jump::unwinding;

use super::builder::Builder;
use super::{Region, Stub};

/// Emits the stub: of an address in code of ours it answers itself, with the entry of the table that tells of it.
///
/// Source: libgcc's `_Unwind_Find_FDE (void *pc, struct dwarf_eh_bases *bases)`, where `bases` are the addresses that
/// text-relative and data-relative pointers of the entry count from, and the entry's first address.
pub fn finder(at: u64, region: &Region, around: &Surroundings, runtime: &Runtime) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let [
        mut start,
        mut piece,
        mut inside,
        mut next,
        mut found,
        mut pass,
    ] = std::array::from_fn(|_| b.label());
    b.a.set_label(&mut start)?;
    b.enters(region)?;
    let a = &mut b.a;
    save(a, Flags::Matter)?;
    a.mov(rcx, around.control + CODE)?;
    a.mov(
        edx,
        dword_ptr(rcx + ((HEADER + header::CODE) as i64 - CODE as i64)),
    )?;
    a.set_label(&mut piece)?;
    a.sub(edx, 1)?;
    a.jb(pass)?;
    a.mov(rax, rdi)?;
    a.sub(rax, qword_ptr(rcx))?;
    a.cmp(rax, qword_ptr(rcx + 8))?;
    a.jb(inside)?;
    a.add(rcx, 16)?;
    a.jmp(piece)?;
    // The last word is the address of the table.
    a.set_label(&mut inside)?;
    a.mov(rax, qword_ptr(rcx))?;
    a.add(rax, qword_ptr(rcx + 8))?;
    a.mov(rax, qword_ptr(rax - 8))?;
    a.test(rax, rax)?;
    a.je(pass)?;
    a.add(rax, unwinding::COMMON.len() as i32)?;
    a.set_label(&mut next)?;
    a.mov(edx, dword_ptr(rax))?;
    a.test(edx, edx)?;
    a.je(pass)?;
    a.mov(rcx, rdi)?;
    a.sub(rcx, qword_ptr(rax + unwinding::ENTRY_START as i32))?;
    a.cmp(rcx, qword_ptr(rax + unwinding::ENTRY_COUNT as i32))?;
    a.jb(found)?;
    a.lea(rax, qword_ptr(rax + rdx + 4))?;
    a.jmp(next)?;
    a.set_label(&mut found)?;
    a.mov(rdx, qword_ptr(rax + unwinding::ENTRY_START as i32))?;
    a.mov(qword_ptr(rsi), 0)?;
    a.mov(qword_ptr(rsi + 8), 0)?;
    a.mov(qword_ptr(rsi + 16), rdx)?;
    a.mov(qword_ptr(rsp + RAX), rax)?;
    restore(a, Flags::Matter)?;
    a.ret()?;
    a.set_label(&mut pass)?;
    restore(a, Flags::Matter)?;
    b.region(region)?;
    b.finish(at, start)
}
