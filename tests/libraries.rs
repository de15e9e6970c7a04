//! f0 in a shared library, also one that is loaded later; programs without symbols.

use std::process::Command;

use darc_testprogs::{Opt, ground_truth, program};
use serde_json::Value;

use crate::harness::{Target, Task, Unfinished, Wrong, for_all, measured, native};
use crate::report::{Cause, Report, is_path};
use crate::untouched::ProcessState;

/// The library can be named.
#[test]
fn a_library_is_named() {
    for_all(|engine, opt| {
        let path = program("shared_library", opt);
        let native = native::<&str>(&path, &[]);
        measured(|| {
            let task = Task::new(engine, "libserve.so:library_serve");
            let report = task.run_like(&native, &path, &[]).report();
            let judged = report.judge(ground_truth("shared_library"));
            assert!(
                report
                    .at("/f0/module")
                    .as_str()
                    .expect("text")
                    .ends_with("libserve.so")
            );
            judged
        })
    });
}

/// The plugin is there when darc attaches.
#[test]
fn a_plugin_that_is_loaded() {
    for_all(|engine, opt| {
        measured(|| {
            let mut target = Target::start("plugin_host", opt, &[]);
            target.poke();
            crate::harness::wait_until("the plugin", || {
                let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid()))
                    .expect("it lives");
                maps.lines()
                    .any(|line| line.contains("libserve.so") && line.contains(" r-xp "))
            });
            let analysis = Task::new(engine, "library_serve").attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            crate::untouched::check_released(target.pid());
            crate::untouched::check_text(target.pid());
            let judged = analysis.report().judge(ground_truth("plugin_host"));
            assert!(target.finish().status.success());
            judged
        })
    });
}

/// What looks at its return address is not measured through a pointer, so its time is not said to be its caller's own.
#[test]
fn a_library_that_is_opened_through_a_pointer() {
    let task = Task::new("jump", "serve");
    task.answers_are(&program("opens_libraries", Opt::O2), |report| {
        let causes: Vec<_> = report.peaks().iter().flat_map(Report::causes).collect();
        let is_load = |cause: &&Cause| is_path(&cause.path, &["serve", "load"]);
        let at_load: Vec<&Cause> = causes.iter().filter(is_load).collect();
        match at_load.iter().all(|cause| cause.stop == "partly-measured") {
            false => Err(Wrong(format!("{:#}", report.0))),
            true if at_load.is_empty() => Err(Unfinished(format!("{:#}", report.0))),
            true => Ok(()),
        }
    });
}

/// The plugin is not there: the error says which libraries are, and the process is left alone.
#[test]
fn a_plugin_that_is_not_loaded() {
    for_all(|engine, opt| {
        let target = Target::start("plugin_host", opt, &[]);
        let before = ProcessState::of(target.pid());
        for f0 in ["library_serve", "libserve.so:library_serve"] {
            let analysis = Task::new(engine, f0).attach(target.pid());
            let line = analysis.darc.failure(4);
            assert!(
                line.contains("library_serve") || line.contains("libserve"),
                "{line}"
            );
            before.check_unchanged(target.pid());
        }
    });
}

/// A library that is named may come later; when it never does, that is said at the end.
#[test]
fn a_library_that_never_comes() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "no_such_library.so:serve");
        let analysis = task.run_like_native(&program("two_peaks", opt), &["100"]);
        assert!(
            analysis.darc.stderr.contains("no_such_library.so"),
            "{analysis:#?}"
        );
        assert!(
            analysis.darc.stderr.contains("never called"),
            "{analysis:#?}"
        );
    });
}

/// The plugin is unloaded and loaded again: nothing is written where it used to be.
#[test]
fn a_plugin_that_comes_and_goes() {
    for_all(|engine, opt| {
        let (path, args) = (program("plugin_host", opt), ["reload", "1600", "brisk"]);
        let native = native(&path, &args);
        // A busy machine may let it be gone each time before it is seen.
        measured(|| {
            let task = Task::new(engine, "libserve.so:library_serve");
            let analysis = task.run_like(&native, &path, &args);
            match analysis.report().ops() {
                0 => Err(Unfinished(format!("{analysis:#?}"))),
                _ => Ok(()),
            }
        });
    });
}

/// f0 is in the program, and the plugin that it calls is unloaded and loaded again in every call or every few: as long as that is
/// not seen nothing of it has probes. What was not measured then is nobody's own time; nothing need be found.
#[test]
fn a_plugin_that_comes_and_goes_inside_of_f0() {
    for_all(|engine, opt| {
        for every in ["1", "6"] {
            let analysis = Task::new(engine, "serve_by_plugin")
                .run_like_native(&program("plugin_host", opt), &["inside", "300", every]);
            let report = analysis.report();
            for cause in report.peaks().iter().flat_map(Report::causes) {
                let has_ended = ["self", "no-calls"].contains(&cause.stop.as_str());
                let path: Vec<&str> = cause.path.iter().map(String::as_str).collect();
                let calls_what_does = matches!(
                    path[..],
                    ["serve_by_plugin"] | ["serve_by_plugin", "library_rebuild"]
                );
                let is_wrong = cause.kind == "function" && has_ended && calls_what_does;
                assert!(!is_wrong, "every {every}: {cause:#?} {analysis:#?}");
            }
        }
    });
}

/// The address of a function, as the symbols of the program's twin tell.
fn address_of(name: &str, opt: Opt) -> String {
    address_in("two_peaks", name, opt)
}

/// Where a function of a program lies, for the same program without symbols.
pub fn address_in(twin: &str, name: &str, opt: Opt) -> String {
    let output = Command::new("nm")
        .arg(program(twin, opt))
        .output()
        .expect("nm comes with the compiler");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")))
        .expect("it is there");
    format!(
        "0x{}",
        line.split(' ')
            .next()
            .expect("an address")
            .trim_start_matches('0')
    )
}

/// Without symbols an address does, and names are module and offset.
#[test]
fn a_stripped_program() {
    for_all(|engine, opt| {
        let f0 = address_of("serve", opt);
        let expected = [vec!["serve", "lookup"], vec!["serve", "rebuild", "rehash"]];
        let path = program("two_peaks_stripped", opt);
        let native = native::<&str>(&path, &[]);
        measured(|| {
            let task = Task::new(engine, &f0);
            let report = task.run_like(&native, &path, &[]).report();
            let expected = expected.each_ref().map(|path| {
                let names = path.iter();
                let names =
                    names.map(|name| format!("two_peaks_stripped+{}", address_of(name, opt)));
                names.collect::<Vec<_>>()
            });
            let causes = report.peaks().iter().flat_map(Report::causes);
            let functions = causes.filter(|cause| cause.kind == "function");
            let paths: Vec<_> = functions.map(|cause| cause.path).collect();
            if report.status() != "root-cause-found" {
                return Err(Unfinished(format!("{:#}", report.0)));
            }
            if !paths.iter().all(|path| expected.contains(path)) {
                return Err(Wrong(format!("{:#}", report.0)));
            }
            match expected.iter().all(|path| paths.contains(path)) {
                true => Ok(()),
                false => Err(Unfinished(format!("{:#}", report.0))),
            }
        });
    });
}

/// What the start code hands to the C library is `main`, whatever the symbols say.
#[test]
fn main_of_a_stripped_program_is_known() {
    for opt in Opt::ALL {
        let task = Task::new("jump", "main");
        let analysis = task.run_like_native(&program("two_peaks_stripped", opt), &[]);
        let report = analysis.report();
        assert_eq!(
            report.at("/f0/offset"),
            &address_of("main", opt),
            "{:#}",
            report.0
        );
    }
}

#[test]
fn a_stripped_program_has_no_names() {
    for_all(|engine, opt| {
        let analysis = Task::new(engine, "serve").run(&program("two_peaks_stripped", opt), &[]);
        let line = analysis.darc.failure(4);
        assert!(line.contains("0x"), "says what to do: {line}");
        assert_eq!(analysis.darc.stdout, "", "it has not run");
    });
}

/// Files and lines, from DWARF 5 and DWARF 4.
#[test]
fn lines_of_the_source() {
    for_all(|engine, opt| {
        for name in ["two_peaks", "two_peaks_dwarf4", "two_peaks_debuglink"] {
            let task = Task::new(engine, "serve");
            task.answers_are(&program(name, opt), |report| {
                let peaks = report.peaks().iter();
                let causes = peaks.flat_map(|peak| peak["root_causes"].as_array().expect("a list"));
                causes.for_each(|cause| check_lines(name, cause));
                Ok(())
            });
        }
    });
}

/// Each function on a path of two_peaks is called where its source says.
fn check_lines(name: &str, cause: &Value) {
    let source = include_str!("../testprogs/c/two_peaks.c");
    let line_of = |text: &str| {
        let mut lines = source.lines();
        let before = lines.position(|line| line.contains(text));
        before.expect("it is there") as u64 + 1
    };
    // What took time from the functions has no place in the source.
    let functions = cause["frames"].as_array().expect("a list").iter().skip(1);
    for frame in functions.filter(|frame| frame.get("module").is_some()) {
        let file = frame["file"].as_str();
        let is_source = file.is_some_and(|file| file.ends_with("two_peaks.c"));
        assert!(is_source, "{frame:#}");
        let expected = match frame["name"].as_str().expect("text") {
            "lookup" => line_of("= lookup(key)"),
            "rebuild" => line_of("^= rebuild(key)"),
            "rehash" => line_of("return rehash(table)"),
            other => panic!("{other}"),
        };
        assert_eq!(frame["line"], expected, "{name}: {frame:#}");
    }
}

/// Where calls of f0 are missing because the compiler put its body in their place, the report says so.
#[test]
fn inlined_copies_of_f0_are_told() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&program("inlined_copies", opt), &["400"]);
        let report = analysis.report();
        let warnings = report.at("/warnings").to_string();
        let told = "serve was also inlined at 1 place, first into contains_it";
        assert!(warnings.contains(told), "{warnings}");
    });
}
