//! The code around a call that is counted at its site: what one function calls, whoever else calls it.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, SAVED, restore, save, shadow, tsc};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{counts, entry, place};

use super::builder::{Builder, PlaceData};
use super::counted::CountedSite;
use super::sites::{call_for_the_program, hold_callee};
use super::{Callee, Site};

/// Appends a counted call. An indirect callee's address is left at the original rsp - 16.
pub fn counted_call(
    b: &mut Builder<'_>,
    site: &Site,
    callee: Callee,
    counted: CountedSite,
) -> Emitted<()> {
    let [mut pass, mut leave] = std::array::from_fn(|_| b.label());
    let place = b.place(PlaceData {
        return_to: site.next,
        kind: place::COUNTED,
        function: counted.counter.slot,
        local: counted.counter.offset,
        above: counted.parent.map_or(0, |parent| parent + 1),
    });
    let room = match callee {
        Callee::Direct(_) => 0,
        Callee::Indirect(operand) => {
            hold_callee(&mut b.a, operand)?;
            16
        }
    };
    save(&mut b.a, Flags::Matter)?;
    b.a.lea(rdi, qword_ptr(rsp + (SAVED + room - 8)))?;
    b.a.lea(rdx, ptr(place))?;
    b.a.call(b.runtime.count_in)?;
    b.a.jne(pass)?;
    tsc(&mut b.a)?;
    b.a.mov(shadow(0, entry::START), rax)?;
    b.a.add(qword_ptr(rcx + counts::STARTS as i32), rax)?;
    b.a.sub(rax, rdi)?;
    b.a.mov(shadow(0, entry::ADJUSTED), rax)?;
    restore(&mut b.a, Flags::Matter)?;
    match callee {
        Callee::Direct(to) => b.a.call(to)?,
        Callee::Indirect(_) => {
            b.a.lea(rsp, qword_ptr(rsp + room))?;
            b.a.call(qword_ptr(rsp - 16))?;
        }
    }
    b.returns_here()?;
    save(&mut b.a, Flags::Matter)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.a.lea(rdx, qword_ptr(rsp + (SAVED - 8)))?;
    b.a.call(b.runtime.count_back)?;
    b.a.set_label(&mut leave)?;
    restore(&mut b.a, Flags::Matter)?;
    b.a.jmp(site.next)?;
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, Flags::Matter)?;
    if room != 0 {
        b.a.lea(rsp, qword_ptr(rsp + room))?;
    }
    call_for_the_program(b, site, place, callee)
}
