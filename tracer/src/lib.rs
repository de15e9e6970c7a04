//! Instruments a running process and measures calls in it.
//!
//! Owns threads, memory and code of the target. Knows no symbols: everything here is an address
//! in the running target, and every name is somebody else's business.

pub mod addr;
pub mod plan;
pub mod record;
