//! What a tracepoint's record holds, from bytes to values. Pure; the bytes are hostile.
//!
//! Source: perf_event_open(2), PERF_RECORD_SAMPLE with PERF_SAMPLE_RAW, PERF_SAMPLE_REGS_USER and PERF_SAMPLE_STACK_USER.

use super::parsing::Fields;
use super::record::Stamp;

/// The kernel passed a tracepoint, or ended a page fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// When, where, in whose name.
    pub stamp: Stamp,
    /// The event as the tracepoint's `format` describes it, beginning with its number; zeros for a page fault's end.
    pub raw: Vec<u8>,
    /// Where the program was, where that was asked for.
    pub program: Option<UserStack>,
}

/// A program's registers and the top of its stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserStack {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, where one is kept.
    pub bp: u64,
    /// The bytes from the stack pointer on.
    pub bytes: Vec<u8>,
}

/// Everything that writes into such a ring begins alike; what is left after the raw data are registers and stack.
pub(super) fn parse(mut fields: Fields<'_>) -> Option<Point> {
    let (pid, tid) = (fields.id()?, fields.id()?);
    let time = fields.u64()?;
    let cpu = fields.u32()?;
    fields.u32()?;
    let len = fields.u32()? as usize;
    let raw = fields.bytes(len)?.to_vec();
    Some(Point {
        stamp: Stamp {
            time,
            pid,
            tid,
            cpu,
        },
        raw,
        program: user_stack(fields),
    })
}

/// Absent when the thread has no user part: a kernel thread.
fn user_stack(mut fields: Fields<'_>) -> Option<UserStack> {
    if fields.u64()? == 0 {
        return None;
    }
    let (bp, sp, ip) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let len = usize::try_from(fields.u64()?).ok()?;
    let bytes = fields.bytes(len)?;
    // How much of it could be copied stands behind it.
    let copied = fields.u64().map_or(0, |copied| copied.min(len as u64));
    Some(UserStack {
        ip,
        sp,
        bp,
        bytes: bytes[..copied as usize].to_vec(),
    })
}
