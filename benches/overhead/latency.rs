//! How long the target stands still, and how soon the root causes are found.

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::darc::{Done, until_found};
use crate::quantile::{Spread, quantile};
use crate::target::Target;

const ATTACHES: usize = 20;
/// The kernel goes on for so long to take a darc's tracepoints back, and lets nobody else have any meanwhile.
pub const SETTLED: Duration = Duration::from_millis(1500);
/// After this an analysis has not found the causes.
const PATIENCE: &str = "5s";

/// Prints what was measured.
pub fn run(folder: &Path) {
    println!("\nPauses and the time to the root causes: {ATTACHES} attaches each, --engine jump\n");
    println!(
        "| target | pause, median of the p50s | 90% of the largest pauses below | attach to root causes | found |"
    );
    println!("|---|---|---|---|---|");
    for (mode, f0, shown) in [
        ("sites", "many_sites", "50 call sites in f0"),
        (
            "descent",
            "serve",
            "4 levels, 1,400 ops/s in each of 2 peaks",
        ),
    ] {
        let target = Target::start("bench_latency", &[mode]);
        // Until it is past the dynamic linker.
        thread::sleep(Duration::from_millis(100));
        let mut typical = Vec::new();
        let mut largest = Vec::new();
        let mut took = Vec::new();
        for _ in 0..ATTACHES {
            thread::sleep(SETTLED);
            match until_found(target.pid(), f0, "jump", &["-d", PATIENCE], folder) {
                Ok(Done { ended, results, .. }) => {
                    let pauses = &results["probes"]["pause_us"];
                    typical.extend(pauses["p50"].as_f64());
                    largest.extend(pauses["max"].as_f64());
                    if results["status"] == "root-cause-found" {
                        took.push(ended.took.as_secs_f64());
                    }
                }
                Err(error) => eprintln!("{shown}: {error}"),
            }
        }
        println!(
            "| {shown} | {} | {} | {} | {} of {ATTACHES} |",
            Spread::text(Spread::of(&typical), 0, " µs"),
            quantile(largest, 0.9).map_or("–".to_owned(), |most| format!("{most:.0} µs")),
            Spread::text(Spread::of(&took), 2, " s"),
            took.len(),
        );
    }
}
