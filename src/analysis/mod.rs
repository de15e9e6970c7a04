//! The analysis: profile, peaks, ftree and descent, on ids and ticks alone.
//!
//! Owns the method of DARC (SIGMETRICS 2008, section 3) and of OSprof (OSDI 2006, section 3). What an
//! engine measured comes in as [`Op`](darc_tracer::record::Op)s; what is to be done to the target goes
//! out as [`Request`]s. Nothing here knows a process, an address, a symbol or a clock to read, so every
//! decision can be repeated in a test.

mod apart;
pub mod compare;
mod contribute;
mod decision;
pub mod descent;
pub mod expression;
pub mod ftree;
pub mod handover;
pub mod histogram;
mod known_peaks;
pub mod narrow;
pub mod noise;
pub mod offcpu;
pub mod op_requests;
pub mod params;
mod peak_record;
pub mod peaks;
pub mod rare;
mod resume;
pub mod root_cause;
mod rounds;
#[cfg(test)]
mod scenarios;
mod settle;
#[cfg(test)]
pub(crate) mod simulate;
pub mod totals;
pub mod units;
mod vain;
pub mod values;

pub use darc_tracer::record::{FnodeId, SiteId};
pub use descent::{Analysis, Request};
pub use ftree::{Absence, Callee, CalleeId, Fnode, Ftree};
pub use histogram::{Profile, Resolution};
pub use params::{Params, PeakChoice};
pub use peak_record::{Outcome, PathState, PeakRecord, Stats, Stop};
pub use peaks::{Peak, find_peaks};
pub use resume::{ResumeError, Stored};
pub use root_cause::{CauseKind, PeakStatus, RootCause, Status};
pub use units::{Hz, Nanos, Ticks, Tsc};
