//! Where programs spend their time, by sampling the program counter (SLEEPY, sections 2 and 3).
//!
//! [`recording`] counts samples by process instance and stack, [`adding`] makes a [`profile`] of them: sums by
//! instruction, line, function, program and system; both are pure. [`world`] is what they ask of the machine:
//! processes, files with code, names.

pub mod adding;
pub mod counts;
pub mod during;
pub mod kernel;
mod listing;
pub mod processes;
pub mod profile;
pub mod python;
pub mod recording;
pub mod stacks;
pub mod text;
pub mod world;
