//! Instruments a running process and measures calls in it.
//!
//! Owns threads, memory and code of the target. Knows no symbols: everything here is an address
//! in the running target, and every name is somebody else's business.

pub mod addr;
mod arena;
pub mod cgroup;
pub mod child_signal;
pub mod children;
pub mod chosen;
pub mod effort;
pub mod engine;
mod error;
mod event;
mod gadgets;
pub mod ground;
pub mod guardian;
mod guests;
pub mod identity;
#[cfg(test)]
mod killed;
pub mod launch;
mod ledger;
mod limits;
pub mod maps;
pub mod memory;
#[cfg(test)]
mod patience;
pub mod perf;
pub mod plan;
pub mod preflight;
pub mod proc;
mod remote_call;
pub mod stacks;
pub mod stopped;
mod sys;
pub mod system_calls;
pub mod threads;
mod tracefs;
pub mod users;
mod way_back;
mod windows;

pub use error::{Error, Result};
pub use sys::tsc;
