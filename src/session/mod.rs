//! Experiments with one process, each from the first look at it to the moment it is let go.
//!
//! The order is start → plan → instrument → drain → decide → restore. The engine records, the analysis
//! decides, and a session carries requests and answers between them.

pub mod asynchronous;
pub mod catalog;
pub mod descent;
pub mod effort;
pub mod markers;
pub mod onlooker;
pub mod profiling;
pub mod summary;
pub mod survey;
pub mod watching;

use std::time::Duration;

pub use descent::{Others, Session};

/// How long the engine may serve the target before a session looks at its other duties.
const SLICE: Duration = Duration::from_millis(20);
/// The same while it waits for ops: there is little to do.
const LONG_SLICE: Duration = Duration::from_millis(100);
