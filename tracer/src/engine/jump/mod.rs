//! The `jump` engine: call sites and f0's entry become jumps to stubs in memory near them. No traps.

mod asm;
mod layout;
mod runtime;
#[cfg(test)]
mod stub_tests;
mod stubs;
