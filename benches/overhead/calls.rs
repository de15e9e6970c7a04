//! What a measured call costs.

use std::io;
use std::path::Path;
use std::time::Duration;

use darc_testprogs::{Opt, program};

use crate::darc::{self, Done};
use crate::quantile::Spread;
use crate::target::{Clock, Copy, Phase, Target};
use crate::uprobes::Uprobes;

const ROUNDS: usize = 5;
const PHASE: Duration = Duration::from_millis(500);
/// From the start of a tool until its probes are surely in place (its results are checked for it).
const SETTLE: Duration = Duration::from_millis(2000);
/// Breakpoints take 100 ops as well until the children are measured, but slow ones.
const SETTLE_INT3: Duration = Duration::from_millis(4000);

/// An op of the target program.
struct Scene {
    name: &'static str,
    shown: &'static str,
    threads: usize,
    /// Functions below one another, f0 included.
    depth: usize,
    /// Measured calls of an op, f0 included.
    calls: f64,
    /// What kernel probes go to; nothing when the comparison is left out.
    functions: &'static [&'static str],
}

const LEAVES: [&str; 3] = ["leaf_a", "leaf_b", "leaf_c"];
const DEEP: [&str; 6] = [
    "probed_deep",
    "probed_level1",
    "probed_level2",
    "probed_level3",
    "probed_level4",
    "probed_level5",
];

const fn scene(
    name: &'static str,
    shown: &'static str,
    calls: f64,
    functions: &'static [&'static str],
) -> Scene {
    Scene {
        name,
        shown,
        threads: 1,
        depth: 2,
        calls,
        functions,
    }
}

const SCENES: [Scene; 9] = [
    scene(
        "direct",
        "f0 + 3 children",
        4.0,
        &["probed_direct", LEAVES[0], LEAVES[1], LEAVES[2]],
    ),
    Scene {
        threads: 4,
        ..scene("direct", "f0 + 3 children", 4.0, &[])
    },
    Scene {
        depth: 6,
        ..scene("deep", "f0 + five levels", 6.0, &DEEP)
    },
    Scene {
        depth: 6,
        threads: 4,
        ..scene("deep", "f0 + five levels", 6.0, &[])
    },
    scene(
        "indirect",
        "f0 + 3 by pointer",
        4.0,
        &["probed_indirect", LEAVES[0], LEAVES[1], LEAVES[2]],
    ),
    scene("plt", "f0 + 3 through the PLT", 4.0, &[]),
    scene("stat", "f0 + stat(2)", 2.0, &[]),
    scene("pread", "f0 + pread, 4 KiB cached", 2.0, &[]),
    scene("long", "f0 + 100 µs of work", 2.0, &[]),
];

/// A way to measure: rounds of (uninstrumented, floor, measured) nanoseconds per op.
#[derive(Default)]
struct Rounds {
    figures: Vec<[f64; 3]>,
    /// The part of the records for which the ring had no room.
    dropped: Vec<f64>,
}

impl Rounds {
    fn take(&mut self, bare: &Phase, attached: &Phase, clock: Clock) {
        let figures = (
            bare.op_ns(Copy::Bare, clock),
            attached.op_ns(Copy::Floor, clock),
        );
        if let ((Some(bare), Some(floor)), Some(probed)) =
            (figures, attached.op_ns(Copy::Probed, clock))
        {
            self.figures.push([bare, floor, probed]);
        }
    }

    fn spread(&self, figure: impl Fn(&[f64; 3]) -> f64) -> Option<Spread> {
        Spread::of(&self.figures.iter().map(figure).collect::<Vec<_>>())
    }
}

/// Runs the chosen scenes, all when none is named, and prints two tables.
pub fn run(chosen: &[String], folder: &Path) {
    let is_chosen = |word: &str| chosen.iter().any(|other| other == word);
    let all = !SCENES.iter().any(|scene| is_chosen(scene.name));
    let mut added = Vec::new();
    let mut ops = Vec::new();
    for scene in SCENES.iter().filter(|scene| all || is_chosen(scene.name)) {
        let [jump, int3, kernel] = measure(scene, folder, &is_chosen);
        let calls = scene.calls;
        let per_call = |rounds: &Rounds| rounds.spread(|[bare, _, probed]| (probed - bare) / calls);
        let name = format!(
            "{}, {} thread{}",
            scene.shown,
            scene.threads,
            if scene.threads == 1 { "" } else { "s" }
        );
        added.push(format!(
            "| {name} | {} | {} | {} | {} | {} | {} |",
            Spread::text(
                jump.spread(|[bare, floor, _]| (floor - bare) / calls),
                0,
                " ns"
            ),
            Spread::text(per_call(&jump), 0, " ns"),
            Spread::text(
                jump.spread(|[bare, floor, probed]| (probed - bare) / (floor - bare)),
                2,
                " ×"
            ),
            Spread::text(Spread::of(&jump.dropped), 0, " %"),
            Spread::text(per_call(&kernel), 0, " ns"),
            Spread::text(per_call(&int3), 0, " ns"),
        ));
        let whole = |rounds: &Rounds| rounds.spread(|[bare, _, probed]| probed / bare);
        ops.push(format!(
            "| {name} | {} | {} | {} | {} | {} |",
            Spread::text(jump.spread(|[bare, ..]| *bare), 0, " ns"),
            Spread::text(jump.spread(|[bare, floor, _]| floor / bare), 2, " ×"),
            Spread::text(whole(&jump), 2, " ×"),
            Spread::text(whole(&kernel), 0, " ×"),
            Spread::text(whole(&int3), 0, " ×"),
        ));
        eprintln!("{}\n{}", added[added.len() - 1], ops[ops.len() - 1]);
    }
    println!("\nAdded per measured call: median (least–largest) of {ROUNDS} rounds\n");
    println!(
        "| op | inline floor | jump | jump / floor | records dropped | uprobe + uretprobe | int3 |\n|---|---|---|---|---|---|---|"
    );
    println!("{}", added.join("\n"));
    println!("\nTime of a whole op, against the same op uninstrumented\n");
    println!(
        "| op | uninstrumented | inline floor | jump | uprobe + uretprobe | int3 |\n|---|---|---|---|---|---|"
    );
    println!("{}", ops.join("\n"));
}

fn measure(scene: &Scene, folder: &Path, is_chosen: &impl Fn(&str) -> bool) -> [Rounds; 3] {
    let target = Target::start("bench_calls", &[scene.name, &scene.threads.to_string()]);
    let f0 = format!("probed_{}", scene.name);
    let [mut jump, mut int3, mut kernel] =
        [Rounds::default(), Rounds::default(), Rounds::default()];
    let mut kernel_works = !scene.functions.is_empty() && !is_chosen("no-uprobes");
    for round in 0..ROUNDS {
        let detached = target.phase(PHASE);
        match under_darc(scene, &target, &f0, "jump", folder) {
            // The bare copy of the same phase: nothing of it is instrumented.
            Ok((attached, dropped)) => {
                jump.take(&attached, &attached, Clock::Cpu);
                jump.dropped.push(100.0 * dropped);
            }
            Err(error) => eprintln!("{}: jump: {error}", scene.shown),
        }
        // A trap takes so long that the order of magnitude is soon known; the path to deep calls is not.
        if round < 2 && scene.threads == 1 && scene.depth == 2 && !is_chosen("no-int3") {
            match under_darc(scene, &target, &f0, "int3", folder) {
                Ok((attached, _)) => int3.take(&attached, &attached, Clock::Wall),
                Err(error) => eprintln!("{}: int3: {error}", scene.shown),
            }
        }
        if kernel_works {
            match Uprobes::attach(
                target.pid(),
                &program("bench_calls", Opt::O2),
                scene.functions,
            ) {
                Ok(probes) => {
                    target.phase(SETTLE);
                    // The copies share some of these functions: compared with the phase before.
                    kernel.take(&detached, &target.phase(PHASE), Clock::Cpu);
                    drop(probes);
                }
                Err(error) => {
                    eprintln!("{}: kernel probes are left out: {error}", scene.shown);
                    kernel_works = false;
                }
            }
        }
    }
    [jump, int3, kernel]
}

/// The slices of a phase in which all calls are measured all the time.
fn under_darc(
    scene: &Scene,
    target: &Target,
    f0: &str,
    engine: &str,
    folder: &Path,
) -> io::Result<(Phase, f64)> {
    let darc = match scene.depth {
        2 => darc::endless(target.pid(), f0, engine, folder)?,
        depth => darc::endless_below(target.pid(), f0, engine, depth - 1, folder)?,
    };
    target.phase(if engine == "int3" {
        SETTLE_INT3
    } else {
        SETTLE
    });
    let phase = target.phase(PHASE);
    let Done { results, .. } = darc.stop()?;
    let (sites, expected) = (
        results["probes"]["sites"].as_f64().unwrap_or(0.0),
        scene.calls - 1.0,
    );
    if sites < expected {
        return Err(io::Error::other(format!(
            "{sites} of {expected} sites were instrumented: {}",
            results["probes"]
        )));
    }
    if results["probes"]["bytes_differing_after_detach"] != 0 {
        return Err(io::Error::other("the code was not restored"));
    }
    let [records, dropped] =
        ["records", "dropped"].map(|name| results["probes"][name].as_f64().unwrap_or(0.0));
    Ok((phase, dropped / (records + dropped).max(1.0)))
}
