//! What the kernel's tracepoints say of a process's system calls, through an instance of its own in tracefs.
//!
//! Owns the instance, which is removed whatever happens, and the parsing of its buffers. Time stamps are
//! those of the cycle counter (`trace_clock` `x86-tsc`). Source: the kernel's Documentation/trace/ftrace.rst,
//! and include/linux/ring_buffer.h for the pages.

mod format;
mod instance;
mod page;
mod place;
mod syscalls;

pub(crate) use format::Format;
pub use instance::{Abandoned, Refusal, remove_abandoned};
pub(crate) use place::{numbers_are_the_machines, place};
pub use syscalls::SyscallTrace;
