//! The analysis: profile, peaks, ftree and descent, on ids and ticks alone.
//!
//! Owns the method of DARC (SIGMETRICS 2008, section 3) and of OSprof (OSDI 2006, section 3). What an
//! engine measured comes in as [`Op`](darc_record::Op)s; what is to be done to the target goes
//! out as [`Request`]s. Nothing here knows a process, an address, a symbol or a clock to read, so every
//! decision can be repeated in a test.

pub mod descent;
pub mod lives;
pub mod localise;
pub mod off_cpu;
pub mod profile;
pub mod proof;
pub mod requests;
#[cfg(any(test, feature = "simulate"))]
pub mod simulate;
#[cfg(test)]
mod tests;
pub mod totals;
pub mod values;

pub use darc_record::{FnodeId, Hz, Nanos, SiteId, Ticks, Tsc};
pub use descent::ftree::{Absence, Callee, CalleeId, Fnode, Ftree};
pub use descent::params::{Params, PeakChoice};
pub use descent::peak_record::{Outcome, PathState, PeakRecord, Stats, Stop};
pub use descent::range::Range;
pub use descent::resume::{ResumeError, Stored};
pub use descent::root_cause::{CauseKind, PeakStatus, RootCause, Status};
pub use descent::share::Part;
pub use descent::stall::Stall;
pub use descent::{Analysis, Request};
pub use profile::histogram::{Profile, Resolution};
pub use profile::peaks::{Peak, find_peaks, least_noticed};
