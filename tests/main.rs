//! Integration tests: the `darc` binary on real programs whose behaviour is known.
//!
//! Each test also checks that the target's output and exit status are as without darc; those that
//! attach check that nothing of it was changed. One test measures at a time, everything else
//! runs beside it ([`harness::measured`]).

mod formats;
mod harness;
mod judge;
mod report;
mod untouched;
mod watchdog;

mod attach;
mod bad_input;
mod bad_results;
mod budget;
mod claims;
mod coroutines;
mod death;
mod documents;
mod exit_status;
mod failed;
mod futures;
mod goroutines;
mod ground_truth;
mod handed_over;
mod hostile_files;
mod jit;
mod lazily_bound;
mod libraries;
mod logged;
mod markers;
mod narrowed;
mod offcpu;
mod on_tokio;
mod other_tools;
mod packaged;
mod processes;
mod profiling;
mod proving;
mod resume;
mod rooms;
mod running;
mod sampling;
mod servers;
mod signals;
mod soak;
mod sqlite;
mod status;
mod synthetic;
mod terminal;
mod threads;
mod transparency;
mod unwinding;
mod values;
mod watching;
