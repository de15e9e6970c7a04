//! Arguments of f0 whose values tell the peaks apart.

use darc_testprogs::program;

use crate::harness::{Task, Unfinished, Wrong, for_all, measured, native, run_darc};

#[test]
fn the_argument_that_makes_ops_slow_is_named() {
    for_all(|engine, opt| {
        let path = program("argument_value", opt);
        let native = native(&path, &["1000"]);
        measured(|| {
            let analysis = Task::new(engine, "reply").run_like(&native, &path, &["1000"]);
            let report = analysis.report();
            let all = || format!("{:#}", report.0);
            let found = report.0["values"].as_array().cloned().unwrap_or_default();
            let arguments: Vec<_> = found.iter().map(|found| &found["expression"]).collect();
            if arguments.is_empty() {
                return Err(Unfinished(all()));
            }
            if arguments.iter().any(|argument| *argument != "arg2") {
                return Err(Wrong(all()));
            }
            let [fast, slow] = [0, 1].map(|side| &found[0]["values"][side]);
            if fast["values"][0]["value"] != 512 || slow["lowest"] != 65536 {
                return Err(Wrong(all()));
            }
            let shown = run_darc(&["report", analysis.output.to_str().expect("UTF-8")]).stdout;
            assert!(shown.contains("arg2 is 512 in the one"), "{shown}");
            Ok(())
        });
    });
}

#[test]
fn an_expression_takes_the_place_of_the_arguments() {
    let path = program("argument_value", darc_testprogs::Opt::O2);
    let native = native(&path, &["1000"]);
    measured(|| {
        let task = Task::new("jump", "reply").options(&["--value", "arg2>>16"]);
        let report = task.run_like(&native, &path, &["1000"]).report();
        let found = &report.0["values"][0];
        match found["expression"] == "arg2>>16"
            && found["values"][0]["values"][0]["value"] == 0
            && found["values"][1]["values"][0]["value"] == 1
        {
            true => Ok(()),
            false if found.is_null() => Err(Unfinished(format!("{:#}", report.0))),
            false => Err(Wrong(format!("{:#}", report.0))),
        }
    });
    let refused = run_darc(&["run", "--value", "rdi", "--", "true"]);
    assert_eq!(refused.code(), 2, "{refused:#?}");
    assert!(refused.stderr.contains("arg1"), "{refused:#?}");
}
