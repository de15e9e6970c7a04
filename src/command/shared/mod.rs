//! What several subcommands need.

pub mod answering;
pub mod debuginfod;
pub mod privilege;
pub mod saved;
pub mod started;
pub mod stored;
pub mod style;
pub mod target;
