//! darc
pub mod analysis;
