//! The formats of whole results.

pub(crate) mod golden;
mod schema;
