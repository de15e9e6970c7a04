//! What measuring costs, as ratios within one run: `cargo bench --bench overhead`.
//!
//! Each target runs three copies of its op in turn, in slices of 3 ms: one that nothing measures, one
//! that darc (or perf) is attached to, and one that measures itself in the cheapest way. Only figures
//! of the same phase are divided by each other (`sampling` has a way of its own). Arguments choose parts: `calls`, `pauses`, `symbols`,
//! `sampling`, `profile`, `watch`, `stops`, `coverage`;
//! the names of ops behind `calls` choose among those, and `no-int3` and `no-uprobes` leave comparisons out; numbers behind
//! `stops` are those of the target's threads.

#![allow(missing_docs, reason = "a program")]

mod calls;
mod changes;
mod child;
mod coverage;
mod darc;
mod events;
mod latency;
mod profiles;
mod quantile;
mod sampling;
mod stops;
mod symbols;
mod target;
mod units;
mod uprobes;

use std::env;

fn main() {
    let chosen: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let wanted = |part: &str| chosen.is_empty() || chosen.iter().any(|word| word == part);
    let folder = tempfile::tempdir().expect("there is a folder for results");
    if wanted("calls") {
        calls::run(&chosen, folder.path());
    }
    if wanted("pauses") {
        latency::run(folder.path());
    }
    if wanted("profile") {
        profiles::run(folder.path());
    }
    if wanted("watch") {
        changes::run(folder.path());
    }
    if wanted("stops") {
        stops::run(&chosen, folder.path());
    }
    if wanted("symbols") {
        symbols::run(folder.path());
    }
    if wanted("coverage") {
        coverage::run(folder.path());
    }
    if wanted("sampling") {
        sampling::run(folder.path());
    }
}
