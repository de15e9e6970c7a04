//! From the function at a path's end to the loop and the line in it, and functions that are gone over by blocks.

use darc_testprogs::{Opt, program};

use crate::harness::{Task, Unfinished, Wrong, measured};
use crate::report::Report;

#[test]
fn one_loop_of_three_is_told_from_the_others() {
    let source = include_str!("../testprogs/c/three_loops.c");
    let line = |marker: &str| {
        let found = source.lines().position(|line| line.trim() == marker);
        found.expect("it is there") as u64 + 1
    };
    let culprit = line("/* the culprit */")..line("/* its end */");
    for opt in [Opt::O0, Opt::O2] {
        measured(|| {
            let options = ["--blocks", "after", "--decision-ops", "6"];
            let task = Task::new("jump", "crunch").options(&options);
            let report = task.run(&program("three_loops", opt), &["1500"]).report();
            // The last peak is the slow one; of the fast one no loop is to blame.
            let slow = report.peaks().last().map(|peak| &peak["root_causes"][0]);
            let narrowed = slow.map(|cause| &cause["narrowed"]);
            let steps = narrowed.and_then(|it| it["steps"].as_array());
            let found = steps.and_then(|steps| steps.iter().find(|step| step["kind"] == "loop"));
            let right = found.is_some_and(|step| {
                let line = |key: &str| step[key].as_u64().unwrap_or(0);
                culprit.contains(&line("line")) && culprit.contains(&line("last_line"))
            });
            match right && steps.is_some_and(|it| it.iter().any(|step| step["kind"] == "line")) {
                true => Ok(()),
                false if found.is_some() && !right => {
                    Err(Wrong(format!("{opt:?}: {:#}", report.0)))
                }
                false => Err(Unfinished(format!("{opt:?}: {:#}", report.0))),
            }
        });
    }
}

#[test]
fn a_function_with_many_calls_is_gone_over_by_blocks() {
    let ways: [&[&str]; 2] = [&["--max-sites", "3"], &["--blocks", "first"]];
    for (way, most) in ways.into_iter().zip([3, 4]) {
        measured(|| {
            let options = [way, &["--decision-ops", "6"]].concat();
            let task = Task::new("jump", "handle").options(&options);
            let report = task
                .run(&program("many_calls", Opt::O2), &["2500"])
                .report();
            let ends = report.peaks().iter().flat_map(|peak| {
                // Other tests may take the processor from it, which is a cause of its own, or makes a peak of too few ops.
                let causes = Report::causes(peak).into_iter();
                let own = causes
                    .filter(|cause| cause.kind != "preemption" && cause.stop != "still-descending");
                own.map(|mut cause| cause.path.pop().unwrap_or_default())
            });
            let mut ends: Vec<String> = ends.collect();
            ends.dedup();
            let sites = report.at("/probes/sites").as_u64().unwrap_or(u64::MAX);
            match ends == ["parse", "compress"] && sites <= most {
                true => Ok(()),
                false if report.status() == "root-cause-found" => {
                    Err(Wrong(format!("{way:?}: {:#}", report.0)))
                }
                false => Err(Unfinished(format!("{way:?}: {:#}", report.0))),
            }
        });
    }
}
