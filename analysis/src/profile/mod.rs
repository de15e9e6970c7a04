//! Profiles of latencies: the histogram, its peaks, and how two of them differ (OSprof, OSDI 2006, section 3).

pub mod compare;
pub mod histogram;
pub mod peaks;
