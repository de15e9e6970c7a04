//! The view of `darc watch` on a terminal: what is watched as a table, the chosen function as plots over time.
//!
//! [`State`] says what the person is doing and turns keys into wishes; [`draw()`] shows it. Neither knows a
//! process.

mod draw;
mod state;

pub use draw::{Picture, Row, draw};
pub use state::{State, Wish};
