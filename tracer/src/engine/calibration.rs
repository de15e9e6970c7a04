//! What the calibrations of the engines have in common: a child process that does nothing but call, and figures of many
//! calls.

use std::fmt::Display;

use darc_disasm::{CodePart, FunctionCode};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::error::{Error, Result};
use crate::sys::{self, CodePage};
use darc_record::Ticks;

use super::Refused;

/// Why there is no calibration.
pub fn failed(why: impl Display) -> Error {
    Error::Unsuitable(format!("cannot calibrate: {why}"))
}

/// # Errors
/// When something was refused, for then nothing can be measured.
pub fn all_accepted(refused: &[Refused]) -> Result<()> {
    refused
        .first()
        .map_or(Ok(()), |refused| Err(failed(&refused.reason)))
}

/// Why a child tells nothing.
pub fn no_progress() -> Error {
    failed("the test process made no progress")
}

/// After so much time of a processor a child has been forgotten, in seconds. No calibration takes as much.
const LIFETIME: u64 = 30;

/// Measures a child process that does `work`, for ever, and ends it. It does not outlive this process.
///
/// # Errors
/// When no child can be made, and those of `measure`.
pub fn of_child<T>(work: impl FnOnce(), measure: impl FnOnce(i32) -> Result<T>) -> Result<T> {
    let parent = std::process::id().cast_signed();
    let pid = sys::fork_into(|| {
        sys::die_with_parent(parent);
        sys::limit_processor_time(LIFETIME);
        work();
    })
    .map_err(|errno| Error::Os {
        operation: "make a process to calibrate with",
        source: errno.into(),
    })?;
    let outcome = measure(pid);
    sys::kill_and_reap(pid);
    outcome
}

/// The value below which `share` of all values are; zero where there are none.
pub fn quantile(values: &[Ticks], share: f64) -> Ticks {
    let mut values = values.to_vec();
    let index = (values.len() as f64 * share) as usize;
    match values.len() {
        0 => Ticks(0),
        len => *values.select_nth_unstable(index.min(len - 1)).1,
    }
}

/// A program of a few functions, in a page of its own.
pub struct Program(CodePage);

impl Program {
    /// One without functions yet.
    ///
    /// # Errors
    /// When no memory can be mapped.
    pub fn new() -> Result<Program> {
        CodePage::new().map(Program).map_err(|errno| Error::Os {
            operation: "map memory to calibrate with",
            source: errno.into(),
        })
    }

    /// Puts a function at an offset into the page.
    ///
    /// # Errors
    /// When it cannot be assembled.
    pub fn put(
        &self,
        offset: u64,
        emit: impl FnOnce(&mut CodeAssembler) -> std::result::Result<(), IcedError>,
    ) -> Result<FunctionCode> {
        let start = self.0.start() + offset;
        let assembled = CodeAssembler::new(64).and_then(|mut a| {
            emit(&mut a)?;
            a.assemble(start)
        });
        let bytes = assembled.map_err(failed)?;
        self.0.write(start, &bytes);
        FunctionCode::new(vec![CodePart { start, bytes }]).ok_or_else(|| failed("no code"))
    }

    /// Puts a function with a stack frame, which calls `callee` so many times.
    ///
    /// # Errors
    /// As [`Program::put`].
    pub fn put_caller(&self, offset: u64, times: u64, callee: u64) -> Result<FunctionCode> {
        self.put(offset, |a| {
            a.push(rbx)?;
            a.sub(rsp, 16)?;
            for _ in 0..times {
                a.call(callee)?;
            }
            a.add(rsp, 16)?;
            a.pop(rbx)?;
            a.ret()
        })
    }

    /// Puts a function as Go's compiler makes them, with a check of its stack and a frame of so many bytes. It calls `callee` so
    /// many times, and reads a word of its frame behind each call.
    ///
    /// # Errors
    /// As [`Program::put`].
    pub fn put_goroutines(
        &self,
        offset: u64,
        frame: i32,
        (times, callee): (u64, u64),
    ) -> Result<FunctionCode> {
        self.put(offset, |a| {
            let [mut start, mut grow] = std::array::from_fn(|_| a.create_label());
            a.set_label(&mut start)?;
            a.cmp(rsp, qword_ptr(r14 + 16))?;
            a.jbe(grow)?;
            if frame > 0 {
                a.sub(rsp, frame)?;
            }
            for _ in 0..times {
                a.call(callee)?;
                a.mov(rax, qword_ptr(rsp + 8))?;
            }
            if frame > 0 {
                a.add(rsp, frame)?;
            }
            a.ret()?;
            a.set_label(&mut grow)?;
            a.jmp(start)
        })
    }

    /// Puts the descriptor of a goroutine that has all of a stack; its number is at `number`. Returns its address.
    ///
    /// # Errors
    /// As [`Program::put`].
    pub fn put_descriptor(&self, offset: u64, number: u32) -> Result<u64> {
        /// Above all stacks.
        const END: u64 = 0x7fff_ffff_f000;
        let mut words = vec![0; number as usize / 8 + 1];
        words[1] = END;
        words[number as usize / 8] = 1;
        Ok(self.put(offset, |a| a.dq(&words))?.entry())
    }

    /// Puts a loop that calls these, and never ends; of goroutines with the address of a descriptor. Measures a child that runs
    /// it.
    ///
    /// # Errors
    /// As [`Program::put`] and [`of_child`].
    pub fn measured_calling<T>(
        &self,
        offset: u64,
        descriptor: Option<u64>,
        callees: &[&FunctionCode],
        measure: impl FnOnce(i32) -> Result<T>,
    ) -> Result<T> {
        let main = self.put(offset, |a| {
            if let Some(descriptor) = descriptor {
                a.mov(r14, descriptor)?;
            }
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            for callee in callees {
                a.call(callee.entry())?;
            }
            a.jmp(again)
        })?;
        of_child(|| self.0.run(main.entry()), measure)
    }
}
