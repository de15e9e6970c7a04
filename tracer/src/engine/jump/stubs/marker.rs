//! The code at the entry of a function by which the program says when it is to be measured.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings, restore, save};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{HEADER, LIVE, header};
use crate::engine::jump::runtime::Runtime;
use crate::plan::Mark;

use super::builder::Builder;
use super::{Region, Stub};

/// Emits the stub of a marker's entry: it counts the call. The end stops all measuring at that instant: no op
/// begins any more, and none that is in progress is recorded.
pub fn marker(
    at: u64,
    region: &Region,
    mark: Mark,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let mut start = b.label();
    b.a.set_label(&mut start)?;
    b.enters(region)?;
    save(&mut b.a, Flags::Matter)?;
    b.a.mov(rax, around.control + HEADER + header::mark(mark))?;
    b.a.lock().inc(qword_ptr(rax))?;
    if mark == Mark::End {
        b.a.mov(rax, around.control + LIVE)?;
        b.a.mov(dword_ptr(rax), 0)?;
    }
    restore(&mut b.a, Flags::Matter)?;
    b.region(region)?;
    b.finish(at, start)
}
