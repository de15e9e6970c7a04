//! What it costs to count calls for `darc profile`: added per call, and inside of the measured window.

use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::darc::command;
use crate::quantile::{Spread, quantile};
use crate::target::{Clock, Copy, Target};

/// Rounds, each with an attach and a detach of its own.
const ROUNDS: usize = 7;
/// How long each is measured.
const TIME: Duration = Duration::from_secs(3);
/// So long until the probes are in place.
const ARRIVAL: Duration = Duration::from_millis(700);

/// An op, the functions of it that are profiled, and how many calls an op makes of them.
const SCENES: [(&str, &[&str], f64, &str); 3] = [
    (
        "direct",
        &["probed_direct"],
        1.0,
        "1 function, no calls in calls",
    ),
    (
        "deep",
        &["probed_deep", "probed_level?"],
        6.0,
        "6 functions, each inside the other",
    ),
    ("stat", &["probed_stat"], 1.0, "1 function around stat(2)"),
];

/// Prints what was measured.
pub fn run(folder: &Path) {
    let read = tsc_read();
    println!("\nProfiles: added per counted call, CPU time, {ROUNDS} rounds\n");
    println!("A read of the cycle counter takes {read:.0} cycles here.\n");
    println!(
        "| profiled | added per call | in cycles | above two reads | floor, per call | inside of the window | above one read | calls counted |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (scene, functions, calls, shown) in SCENES {
        let threads = ["1"];
        let target = Target::start("bench_calls", &[&[scene][..], &threads].concat());
        let mut added = Vec::new();
        let mut floors = Vec::new();
        let mut inside = Vec::new();
        let (mut hz, mut counted) = (0.0, 0);
        for _ in 0..ROUNDS {
            let file = folder.join("profiles.json");
            let mut darc = command(&["profile", "-q", "--format", "json", "-d", "5s", "-o"]);
            darc.arg(&file)
                .args(["-p", &target.pid().to_string()])
                .args(functions);
            let mut darc = darc.stdin(Stdio::null()).spawn().expect("darc starts");
            thread::sleep(ARRIVAL);
            let phase = target.phase(TIME);
            if !darc.wait().is_ok_and(|status| status.success()) {
                eprintln!("{shown}: darc failed");
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let results: Value = serde_json::from_str(&text).unwrap_or_default();
            let op = |copy| phase.op_ns(copy, Clock::Cpu);
            if let (Some(bare), Some(probed), Some(floor)) =
                (op(Copy::Bare), op(Copy::Probed), op(Copy::Floor))
            {
                added.push((probed - bare) / calls);
                // The floor measures f0 and its three callees where f0 alone is profiled.
                let measured = if scene == "direct" {
                    4.0
                } else if scene == "stat" {
                    2.0
                } else {
                    calls
                };
                floors.push((floor - bare) / measured);
            }
            inside.extend(results["cost_inside"].as_f64());
            hz = results["clock"]["hz"].as_f64().unwrap_or(0.0);
            let profiles = results["profiles"].as_array();
            let calls = profiles
                .into_iter()
                .flatten()
                .filter_map(|p| p["calls"].as_u64());
            counted += calls.sum::<u64>();
        }
        let cycles = |ns: &[f64], less: f64| -> Vec<f64> {
            ns.iter().map(|ns| ns * hz / 1e9 - less).collect()
        };
        let text = |values: &[f64], unit| Spread::text(Spread::of(values), 0, unit);
        println!(
            "| {shown} | {} | {} | {} | {} | {} | {} | {counted} |",
            text(&added, " ns"),
            text(&cycles(&added, 0.0), ""),
            text(&cycles(&added, 2.0 * read), ""),
            text(&floors, " ns"),
            text(&inside, " cycles"),
            text(
                &inside
                    .iter()
                    .map(|cycles| cycles - read)
                    .collect::<Vec<_>>(),
                ""
            ),
        );
    }
}

/// The cycles from one read of the counter to the next, by a low quantile.
fn tsc_read() -> f64 {
    const READS: u64 = 1000;
    let round = || {
        let first = darc_tracer::tsc();
        for _ in 1..READS {
            std::hint::black_box(darc_tracer::tsc());
        }
        (darc_tracer::tsc() - first).0 as f64 / READS as f64
    };
    let rounds: Vec<f64> = (0..2000).map(|_| round()).collect();
    quantile(rounds, 0.1).unwrap_or(0.0)
}
