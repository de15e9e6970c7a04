//! What the kernel records about threads: samples of what they run, context switches, and the life of
//! processes, through `perf_event_open`.
//!
//! Owns the events and their rings. Knows no symbols. Everything that comes out of a ring is parsed as
//! hostile input ([`parsing`]); times are those of `CLOCK_MONOTONIC_RAW`, which [`clock`] converts to the
//! cycle counter. Source: perf_event_open(2), the kernel's `include/uapi/linux/perf_event.h`.

pub mod attributes;
pub(crate) mod calls;
pub mod clock;
mod collector;
pub mod cpu_time;
mod fault_cost;
pub mod off_cpu;
pub mod opening;
mod parsing;
mod point;
pub mod record;
mod refusal;
pub mod sample_cost;
mod services;
pub mod switches;
pub mod tracepoints;
mod wakings;
pub mod whereabouts;

pub use attributes::{Attributes, Chains, Scope};
pub use collector::{Collector, Drained};
pub use record::{Mode, Record, Stamp};
pub use refusal::Refusal;

pub use crate::sys::pidfd;
