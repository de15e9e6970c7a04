//! Coroutines of C++: an op is the life of one, its resumes by whatever threads, and what it waited for between them.

use std::path::PathBuf;
use std::process::Command;

use darc_testprogs::{Opt, program};

use crate::futures::{marked, number, of_a_run, told_apart};
use crate::harness::{Target, Task, Verdict, darc, execute, levels, measured, not_tested};
use crate::report::Report;

/// As it is named in the source; the body is another function.
const F0: &str = "serve(unsigned long)";
/// As many coroutines in one run.
const COROUTINES: u64 = 1600;
const SOURCE: &str = include_str!("../testprogs/cxx/coroutines.cpp");

fn task<'a>(engine: &'a str, f0: &'a str) -> Task<'a> {
    Task::new(engine, f0).options(&["--start-ops", "100000"])
}

/// No probes change while the program runs, so that none of the resumes may go unseen.
#[test]
fn every_coroutine_is_counted_and_every_life_is_timed() {
    for &opt in levels() {
        for ends in ["owned", "detached"] {
            let task = task("jump", F0);
            let analysis = task.run(
                &program("coroutines", opt),
                &[&COROUTINES.to_string(), ends],
            );
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            let report = analysis.report();
            let truth = analysis.darc.stdout.split_whitespace();
            let truth: Vec<u64> = truth.map(|it| it.parse().expect("a number")).collect();
            let [returned, destroyed, lives] = truth[..] else {
                panic!("{truth:?}");
            };
            assert_eq!(returned, COROUTINES * 15 / 16);
            let of = |what: &str| number(&report, &format!("/futures/{what}"));
            assert_eq!(of("dropped"), destroyed, "{:#}", report.at("/futures"));
            assert_eq!((of("begun_before"), of("lost"), of("forgotten")), (0, 0, 0));
            // Of one that ends by itself that is known when another one is in its place.
            assert_eq!(report.ops() + of("under_way"), returned);
            let most_under_way = if ends == "owned" { 0 } else { returned / 5 };
            assert!(of("under_way") <= most_under_way, "{ends}");
            if ends == "owned" {
                let hz = number(&report, "/clock/hz") as f64;
                let total = number(&report, "/profile/total") as f64 * 1e9 / hz;
                let part = total / lives as f64;
                assert!(
                    (0.98..1.02).contains(&part),
                    "{total} ns, and {lives} by its own clock"
                );
            }
        }
    }
}

/// The optimised `read` waits at a place that is not found in its code, and at its end passes control to who awaits it.
#[test]
fn places_need_not_be_found_in_the_code() {
    let program = program("coroutines", Opt::O2);
    let analysis = task("jump", "read(unsigned long)").run(&program, &["320", "owned"]);
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    let report = analysis.report();
    let of = |what: &str| number(&report, &format!("/futures/{what}"));
    assert_eq!((of("begun_before"), of("lost"), of("dropped")), (0, 0, 0));
    assert_eq!(report.ops(), 300, "{:#}", report.at("/futures"));
    // The waits are of whole lives: 200 µs and more of each of an eighth of them.
    let hz = number(&report, "/clock/hz");
    assert!(number(&report, "/profile/total") > hz / 1000 * 7);
}

/// What each kind takes its time for, and nothing else, is told.
fn kinds_are_told_apart(report: &Report) -> Verdict {
    let at = |mark| format!("co_await coroutines.cpp:{}", marked(SOURCE, mark));
    let [prepare, parse] = ["prepare", "parse"].map(|name| format!("{name}(unsigned long)"));
    told_apart(report, [&prepare, &at("FIRST"), &parse, &at("SECOND")])
}

#[test]
fn the_awaits_and_functions_that_take_the_time_are_told() {
    for &opt in levels() {
        measured(|| {
            let target = Target::start("coroutines", opt, &["owned"]);
            of_a_run(target, F0, kinds_are_told_apart)
        });
    }
}

/// Whether a report warns of something in words that begin and go on like this.
fn warns(report: &Report, begins: &str, contains: &str) -> bool {
    let mut warnings = report.at("/warnings").as_array().expect("a list").iter();
    warnings.any(|text| {
        let text = text.as_str().expect("text");
        text.starts_with(begins) && text.contains(contains)
    })
}

const ONE_RESUME: &str = "an op is one resume of a coroutine";

#[test]
fn where_lives_cannot_be_put_together_an_op_is_a_resume_and_that_is_said() {
    for (engine, program, why) in [
        (
            "jump",
            program("coroutines_without_debug", Opt::O2),
            "debugging information (-g",
        ),
        (
            "int3",
            program("coroutines", Opt::O2),
            "leave out --engine int3",
        ),
    ] {
        let analysis = task(engine, F0).run(&program, &["160", "owned"]);
        let report = analysis.report();
        assert_eq!(report.0.get("futures"), None);
        assert!(warns(&report, ONE_RESUME, why), "{:#}", report.0);
        assert!(report.ops() >= 320, "{}", report.ops());
    }
}

/// Without its parameters it is the same, though three functions have that name. By its address the function is meant that begins there,
/// which makes coroutines and does nothing else.
#[test]
fn a_name_means_the_coroutine_and_an_address_the_function_that_makes_it() {
    let program = program("coroutines", Opt::O2);
    let by_name = task("jump", "serve").run(&program, &["16", "owned"]);
    let report = by_name.report();
    assert_ne!(report.0.get("futures"), None);
    let body = report.at("/f0/name").as_str().expect("a name").to_owned();
    assert!(body.ends_with("[clone .actor]"), "{body}");
    let symbols = Command::new("nm").arg(&program).output().expect("nm runs");
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let ramp = symbols.lines().find(|line| line.ends_with(" _Z5servem"));
    let ramp = ramp.and_then(|line| line.split(' ').next());
    let ramp = format!("coroutines+0x{}", ramp.expect("a symbol"));
    let report = task("jump", &ramp).run(&program, &["16", "owned"]).report();
    assert_eq!(report.at("/f0/name"), F0);
    assert_eq!(report.ops(), 16);
    assert!(
        warns(
            &report,
            "serve(unsigned long) is a coroutine",
            "--f0 'serve"
        ),
        "{:#}",
        report.0
    );
}

/// Of what another compiler makes the first part is not seen, and that is said.
#[test]
fn coroutines_of_another_compiler_are_measured_by_their_resumes() {
    let folder = tempfile::tempdir().expect("a folder");
    let program: PathBuf = folder.path().join("by_clang");
    let source = folder.path().join("coroutines.cpp");
    std::fs::write(&source, SOURCE).expect("a file");
    let mut clang = Command::new("clang++");
    clang.args(["-std=gnu++20", "-O2", "-g", "-pthread"]);
    match clang.arg(&source).arg("-o").arg(&program).output() {
        Ok(made) if made.status.success() => {}
        Ok(made) => {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            return not_tested(format!("coroutines by clang++, which makes none: {why}"));
        }
        Err(_) => return not_tested("coroutines by clang++, which is not there"),
    }
    let report = task("jump", "serve")
        .run(&program, &["160", "owned"])
        .report();
    assert_eq!(
        report.at("/f0/name"),
        "serve(unsigned long) [clone .resume]"
    );
    assert!(warns(&report, ONE_RESUME, "clang"), "{:#}", report.0);
    assert!(report.ops() >= 160, "{}", report.ops());
}

#[test]
fn results_of_lives_are_not_gone_on_with() {
    let target = Target::start("coroutines", Opt::O2, &["owned"]);
    let task = Task::new("jump", F0).options(&["--start-ops", "100000", "-d", "300ms"]);
    let analysis = task.attach(target.pid());
    let results = analysis.output.to_str().expect("text");
    let pid = target.pid().to_string();
    let tried = execute(&mut darc(&["resume", results, "-p", &pid]));
    assert_ne!(tried.code(), 0, "{tried:#?}");
    assert!(tried.stderr.contains("its ops are lives"), "{tried:#?}");
    assert_eq!(target.finish().code(), 0);
}
