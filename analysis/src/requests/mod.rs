//! Requests that an op hands to another thread: on their way, and by the op that handed them over.

pub mod in_flight;
pub mod of_ops;
