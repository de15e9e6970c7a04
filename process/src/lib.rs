//! One process that is measured, seen through its files: what is loaded where, what a name means in it, what code a
//! function has, how far the process has started, and how it ends.
//!
//! Brings files (`darc_symbols`), instructions (`darc_disasm`) and engines (`darc_tracer`) together. Knows nothing of what is
//! measured for what.

#[cfg(test)]
mod assembled;
pub mod called;
pub mod claim;
pub mod clock;
pub mod code;
pub mod coroutines;
pub mod coverage;
mod ending;
pub mod entry_points;
pub mod futures;
pub mod goroutines;
pub mod hooks;
pub mod jit;
mod limits;
pub mod lookup;
pub mod modules;
pub mod plt;
mod process;
pub mod python;
mod restartable;
pub mod return_address;
pub mod stacks;
mod startup;
pub mod target_files;
mod verify;

pub use ending::{Ending, ProcessError, guarded};
pub use limits::{Given, Interrupts, Level, Limits};
pub use process::{Event, Process, goroutines_of, is_dynamic_program, is_go_program};
pub use startup::{Changes, Libraries, Program, end};
