//! darc
