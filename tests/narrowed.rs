//! From the function at a path's end to the loop and the line in it.

use darc_testprogs::{Opt, program};

use crate::harness::{Task, measured, turn};

#[test]
fn one_loop_of_three_is_told_from_the_others() {
    let _turn = turn();
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
            let report = task
                .run_like_native(&program("three_loops", opt), &["2000"])
                .report();
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
                false => Err(format!("{opt:?}: {:#}", report.0)),
            }
        });
    }
}
