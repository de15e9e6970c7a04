//! The code where measured calls return to, at the program's own return address.
//!
//! Others come there, too: calls that were not measured, and branches. They pass.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, SAVED, TOP, restore, save, shadow, tsc};
use crate::engine::jump::layout::{entry, place};

use super::Landing;
use super::builder::Builder;
use super::later::Later;
use super::sites::RED_ZONE;

/// Appends the end of the call that has returned to a landing, if one is awaited there.
pub fn land(b: &mut Builder<'_>, landing: &Landing) -> Emitted<()> {
    /// The slot of the return address, which has just been popped.
    const SLOT: i32 = RED_ZONE + SAVED - 8;
    let [mut pass, below, later, mut found] = std::array::from_fn(|_| b.label());
    // Who comes by a branch may use it.
    b.a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    save(&mut b.a, landing.flags)?;
    b.block(pass)?;
    b.a.lea(rdx, qword_ptr(rsp + SLOT))?;
    b.a.mov(rdi, landing.addr)?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    // What is awaited further out is not awaited here.
    b.a.jb(below)?;
    b.a.jne(later)?;
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    b.a.jne(pass)?;
    b.a.set_label(&mut found)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.take_off(landing.running)?;
    b.later.push(Later::Below { at: below, pass });
    b.later.push(Later::Choose {
        at: later,
        routine: b.runtime.find_landing,
        zero: found,
        other: pass,
    });
    b.a.set_label(&mut pass)?;
    restore(&mut b.a, landing.flags)?;
    b.a.lea(rsp, qword_ptr(rsp + RED_ZONE))
}
