//! darc: finds out why some calls of a function are slow, in a running process.
//!
//! The direction of use is `cli → command → session → {analysis, tracer, report}`.

pub mod cli;
pub mod command;
mod config;
mod diagnosis;
mod duration;
pub mod exit;
mod input;
mod listing;
pub mod options;
mod output;
mod sampling;
mod session;
mod target_name;
pub mod terminal;
