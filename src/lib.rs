//! darc
pub mod analysis;
pub mod report;
