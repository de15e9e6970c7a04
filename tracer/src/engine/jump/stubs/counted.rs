//! The code at the entries and returns of functions whose calls are counted.
//!
//! What comes between the two readings of the clock is what such a call reads too much, so the entry reads
//! it last and the return first.

use iced_x86::Instruction;
use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, SAVED, Surroundings, restore, save, shadow, tsc};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{counts, entry, place};
use crate::engine::jump::runtime::Runtime;

use super::builder::{Builder, Ends, PlaceData};
use super::entries::F0End;
use super::sites::return_from_anywhere;
use super::{Region, Stub};

/// Where a function's calls are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Counter {
    /// Its slot.
    pub slot: u32,
    /// Where the slot's counts are in each thread's memory.
    pub offset: u32,
}

/// How calls at a site are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CountedSite {
    /// Where.
    pub counter: Counter,
    /// The slot that the call of the site's own function must be counted in; none for any.
    pub parent: Option<u32>,
}

/// Emits the stub of the entry of a function whose calls are counted.
pub fn counted(
    at: u64,
    region: &Region,
    end: F0End,
    counter: Counter,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    // A short function's `ret` may be displaced together with its entry.
    b.ends = Ends::CountedCall;
    let [mut start, mut pass, mut inside] = std::array::from_fn(|_| b.label());
    let place = b.place(PlaceData {
        return_to: 0,
        kind: place::COUNTED,
        function: counter.slot,
        local: counter.offset,
        above: 0,
    });
    b.a.set_label(&mut start)?;
    b.enters(region)?;
    save(&mut b.a, Flags::Matter)?;
    b.a.lea(rdi, qword_ptr(rsp + SAVED))?;
    b.a.lea(rdx, ptr(place))?;
    b.a.call(runtime.count_in)?;
    b.a.jne(pass)?;
    tsc(&mut b.a)?;
    b.a.mov(shadow(0, entry::START), rax)?;
    b.a.add(qword_ptr(rcx + counts::STARTS as i32), rax)?;
    b.a.sub(rax, rdi)?;
    b.a.mov(shadow(0, entry::ADJUSTED), rax)?;
    restore(&mut b.a, Flags::Matter)?;
    match end {
        F0End::PatchedReturns => b.a.jmp(inside)?,
        F0End::HiddenReturn => {
            // A call, so that the processor's stack of return addresses stays balanced.
            b.a.lea(rsp, qword_ptr(rsp + 8))?;
            b.a.call(inside)?;
            b.returns_here()?;
            b.a.lea(rsp, qword_ptr(rsp - 8))?;
            save(&mut b.a, Flags::Matter)?;
            let [mut leave, mut lost] = std::array::from_fn(|_| b.label());
            tsc(&mut b.a)?;
            b.a.mov(rdi, rax)?;
            b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
            b.a.call(runtime.count_out)?;
            b.a.jne(lost)?;
            b.a.set_label(&mut leave)?;
            restore(&mut b.a, Flags::Matter)?;
            b.a.ret()?;
            b.a.set_label(&mut lost)?;
            return_from_anywhere(&mut b, leave)?;
        }
    }
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, Flags::Matter)?;
    b.a.set_label(&mut inside)?;
    b.a.nop()?;
    b.region(region)?;
    b.finish(at, start)
}

/// Emits the stub of a patched `ret` of such a function.
pub fn counted_returns(
    at: u64,
    region: &Region,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    b.ends = Ends::CountedCall;
    let mut start = b.label();
    b.a.set_label(&mut start)?;
    b.a.nop()?;
    b.region(region)?;
    b.finish(at, start)
}

/// Appends a `ret` that ends a counted call.
pub fn counted_ret(b: &mut Builder<'_>, ret: Instruction) -> Emitted<()> {
    b.leaves()?;
    save(&mut b.a, Flags::Matter)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.a.lea(rdx, qword_ptr(rsp + SAVED))?;
    b.a.call(b.runtime.count_ret)?;
    restore(&mut b.a, Flags::Matter)?;
    b.copy(ret)
}
