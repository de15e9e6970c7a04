//! The code at the entry of the function by which an op hands a request to another thread.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, SAVED, Surroundings, field, restore, save};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{LIVE, block, entry, place};
use crate::engine::jump::runtime::Runtime;
use darc_record::Chain;

use super::builder::Builder;
use super::{Region, Stub};

/// Emits the stub: a call inside an op of f0 on this thread is recorded with what it was called with, any other is not
/// (call-path filtering; DARC, SIGMETRICS 2008, section 3.7).
pub fn enqueue(
    at: u64,
    region: &Region,
    chain: Option<&Chain>,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let [mut start, mut pass] = std::array::from_fn(|_| b.label());
    b.a.set_label(&mut start)?;
    b.enters(region)?;
    save(&mut b.a, Flags::Matter)?;
    b.block(pass)?;
    // The oldest entry is the op, if there is one.
    b.a.mov(rdx, field(block::BASE))?;
    b.a.cmp(rdx, rsi)?;
    b.a.je(pass)?;
    b.a.mov(rax, qword_ptr(rdx + entry::PLACE as i32))?;
    b.a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    b.a.jne(pass)?;
    b.a.mov(rax, around.control + LIVE)?;
    b.a.cmp(dword_ptr(rax), 0)?;
    b.a.je(pass)?;
    note(&mut b, chain)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, Flags::Matter)?;
    b.region(region)?;
    b.finish(at, start)
}

/// Records what the function was called with. The frame is saved, rcx is the thread's block; rax and rdx are lost.
pub fn note(b: &mut Builder<'_>, chain: Option<&Chain>) -> Emitted<()> {
    /// Six registers, and the word read with whether it could be.
    const NOTED: i32 = 64;
    b.a.push(0)?;
    b.a.push(0)?;
    b.a.push(r9)?;
    b.a.push(r8)?;
    // Where `save` has put rdi, rsi, rdx and rcx; the last is pushed first, and the stack grows meanwhile.
    for _ in 0..4 {
        b.a.push(qword_ptr(rsp + 32 + 24))?;
    }
    if let Some(chain) = chain {
        let mut unread = b.label();
        b.a.mov(rax, qword_ptr(rsp + 8 * chain.argument as i32))?;
        read_chain(b, chain, unread)?;
        b.a.mov(qword_ptr(rsp + 48), rax)?;
        b.a.mov(qword_ptr(rsp + 56), 1)?;
        b.a.set_label(&mut unread)?;
    }
    b.a.mov(rdx, rsp)?;
    b.a.call(b.runtime.enqueued)?;
    b.a.lea(rsp, qword_ptr(rsp + NOTED))
}

/// rax the register that the chain begins at → the word at its end, or to `unread`. Changes nothing else.
pub fn read_chain(b: &mut Builder<'_>, chain: &Chain, unread: CodeLabel) -> Emitted<()> {
    for &offset in &chain.offsets {
        b.a.add(rax, offset)?;
        b.a.call(b.runtime.read)?;
        b.a.jne(unread)?;
    }
    Ok(())
}

const _: () = assert!(SAVED == 48, "the offsets above are those of the frame");
