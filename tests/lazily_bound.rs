//! Functions of libraries whose PLT slots are filled at their first call, in each process anew: an analysis that takes several
//! processes finds what is in them all the same.

use darc_testprogs::{Opt, ground_truth, program};

use crate::harness::{Task, Unfinished, darc, engines, execute, measured};
use crate::report::Report;

/// The function is known by its name, or (where two libraries have that name) when it has been called.
const PROGRAMS: [&str; 2] = ["lazily_bound", "lazily_bound_shadowed"];

/// In so few ops a process, what `library_rebuild` calls is known in one process, and decided in a later one.
const FEW: &str = "60";

/// After so many ops an analysis is at `library_rebuild`, or before it.
const CUT_SHORT: &str = "120";

fn for_each(check: impl Fn(&str, &str)) {
    for engine in engines() {
        for name in PROGRAMS {
            eprintln!("{name} with --engine {engine}");
            check(engine, name);
        }
    }
}

/// The path to the library's function, not further: that is never the end.
fn ends_too_early(report: &Report) -> bool {
    let mut causes = report.peaks().iter().flat_map(Report::causes);
    causes.any(|cause| cause.path == ["handle", "library_rebuild"])
        && report.status() == "root-cause-found"
}

#[test]
fn runs_are_repeated() {
    for_each(|engine, name| {
        measured(|| {
            let task = Task::new(engine, "handle").options(&["--repeat", "20"]);
            let analysis = task.run(&program(name, Opt::O2), &[FEW]);
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            let runs = analysis.darc.stdout.lines().count();
            assert!((2..=20).contains(&runs), "{analysis:#?}");
            let report = analysis.report();
            assert!(!ends_too_early(&report), "{:#}", report.0);
            report.judge(ground_truth(name))?;
            match runs {
                20 => Err(Unfinished(format!("{runs} runs: {analysis:#?}"))),
                _ => Ok(()),
            }
        });
    });
}

/// The time that is given is that of all runs together.
#[test]
fn runs_end_when_the_time_is_over() {
    let options = ["--repeat", "100", "-d", "2s", "--decision-ops", "1000000"];
    let task = Task::new("jump", "handle").options(&options);
    let analysis = task.run(&program(PROGRAMS[0], Opt::O2), &[FEW]);
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    let runs = analysis.darc.stdout.lines().count();
    assert!((1..100).contains(&runs), "{analysis:#?}");
}

/// What is open is asked for when the libraries are there, not at the first instruction of the program.
#[test]
fn a_resumed_analysis_waits_for_the_libraries() {
    for_each(|engine, name| {
        let path = program(name, Opt::O2);
        measured(|| {
            let first = Task::new(engine, "handle").run(&path, &[CUT_SHORT]);
            let mut report = first.report();
            for _ in 0..20 {
                if report.status() == "root-cause-found" {
                    break;
                }
                let mut command = darc(&["resume"]);
                command.arg(&first.output);
                command.args(["--format", "json", "-o"]);
                command.arg(&first.output).arg("--").arg(&path).arg(FEW);
                let resumed = execute(&mut command);
                assert_eq!(resumed.code(), 0, "{resumed:#?}");
                report = Report::read(&first.output, &resumed);
                assert!(!ends_too_early(&report), "{:#}", report.0);
            }
            report.judge(ground_truth(name))
        });
    });
}
