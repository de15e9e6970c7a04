//! darc: finds out why some calls of a function are slow, in a running process.
//!
//! The direction of use is `cli → command → session → {analysis, tracer, report}`.

pub mod analysis;
pub mod cli;
pub mod command;
pub mod config;
pub mod diagnosis;
pub mod duration;
pub mod exit;
pub mod input;
pub mod listing;
pub mod options;
pub mod output;
pub mod report;
pub mod sampling;
pub mod session;
pub mod state;
pub mod target_name;
pub mod terminal;
