//! `--budget`: what measuring takes is kept below it by measuring less, and the report says so.

use darc_testprogs::Opt;

use crate::harness::{Target, Task, Unfinished, Wrong, measured, run_darc};

/// An analysis that never has ops enough, of a function that is called without rest: it is over any budget soon.
#[test]
fn what_is_over_the_budget_is_left_out() {
    measured(|| {
        let target = Target::start("two_peaks", Opt::O2, &[]);
        let options = "--budget 0.1% --decision-ops 100000000 -d 3s";
        let options: Vec<&str> = options.split(' ').collect();
        let task = Task::new("jump", "serve").options(&options);
        let analysis = task.attach(target.pid());
        let report = analysis.report();
        let effort = &report.0["probes"]["effort"];
        let of = |key: &str| effort[key].as_f64().unwrap_or(-1.0);
        if of("budget") != 0.001 || of("elapsed") <= 0.0 || of("reading") <= 0.0 {
            return Err(Wrong(format!("{effort:#}")));
        }
        if of("rested") <= 0.1 {
            // So little was measured on a busy machine that it stayed below.
            return Err(Unfinished(format!("{effort:#}")));
        }
        let warnings = report.0["warnings"].to_string();
        match warnings.contains("--budget") {
            true => Ok(()),
            false => Err(Wrong(warnings)),
        }
    });
}

#[test]
fn budgets_that_make_no_sense_are_refused() {
    for budget in ["0%", "-1%", "101%", "much", ""] {
        let failure = run_darc(&["attach", "1", "-f", "serve", "--budget", budget]);
        assert_eq!(failure.code(), 2, "{budget}: {failure:#?}");
    }
    let breakpoints = ["run", "--engine", "int3", "--budget", "1%", "--", "true"];
    let failure = run_darc(&breakpoints);
    assert!(failure.failure(2).contains("--engine int3"), "{failure:#?}");
}
