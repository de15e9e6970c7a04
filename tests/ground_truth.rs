//! Every program of known behaviour, at both optimisation levels: peaks and root-cause paths.

use darc_testprogs::{Opt, ground_truth, ground_truths, program};

use crate::harness::{Task, Unfinished, Wrong, for_all, measured, native};
use crate::report::{Report, is_path};

/// Runs the program under darc, compares what it does with a native run, and the results with the truth.
/// The output does not depend on the number of ops, so that one period is enough natively.
fn check(name: &str) {
    let truth = ground_truth(name);
    for_all(|engine, opt| {
        if engine == "int3" && (LEFT.contains(&name) || LATER.contains(&name)) {
            return;
        }
        let task = Task::of(engine, truth);
        let native = native(&program(name, opt), &["20"]);
        measured(|| {
            let analysis = task.run(&program(name, opt), &[]);
            assert_eq!(analysis.darc.stdout, native.stdout, "{analysis:#?}");
            assert_eq!(analysis.darc.code(), native.code(), "{analysis:#?}");
            let report = analysis.report();
            assert_eq!(report.at("/engine"), engine);
            assert_eq!(report.at("/target/exit_status"), analysis.darc.code());
            report.judge(truth)
        });
    });
}

/// Where calls are left without a return inside of ops: `int3` gives them up, which docs/limits.md says.
const LEFT: [&str; 3] = ["catches", "jumps_out", "panics"];

/// What is seen only after the first answers, with which `int3` ends.
const LATER: [&str; 2] = ["phases", "seldom"];

macro_rules! programs {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name).trim_start_matches("r#"));
            }
        )*

        #[test]
        fn every_ground_truth_is_tested() {
            let tested = [$(stringify!($name)),*].map(|name| name.trim_start_matches("r#"));
            for truth in ground_truths() {
                assert!(tested.contains(&truth.program.as_str()), "{} is not tested", truth.program);
            }
        }
    };
}

programs! {
    blocked_calls
    boxed_forwarders
    cached_and_slow_read
    call
    call_path_filter
    called_often
    cancellation
    catches
    closes_fds
    closures
    cold_split
    computed_jumps
    dead_leader
    deep_path
    equal_callees
    exceptions
    fork_exec
    forwarders
    four_threads
    function_pointers
    halves
    jump_table
    jumps_out
    lazily_bound
    lazily_bound_shadowed
    long_calls_in_loop
    longjmp_out
    r#loop
    in_turn
    loop_over_fast
    many_sites
    mutex_contention
    mutual_recursion
    named_threads
    own_lock
    panics
    phases
    plugin_host
    recursion
    recursion_through_f0
    sandboxed
    seldom
    shared_library
    short_calls
    signals
    slow_callee_in_loop
    tail_calls
    tail_f0
    thread_churn
    two_peaks
    two_peaks_debuglink
    two_peaks_dwarf4
    two_peaks_no_pie
    two_peaks_static
    two_peaks_static_pie
    virtual_calls
    virtual_forwarders
}

/// A path that may not become long enough ends at the maximum depth, and says so.
#[test]
fn a_path_ends_at_the_maximum_depth() {
    let names = [
        "level00", "level01", "level02", "level03", "level04", "level05", "level06", "level07",
    ];
    for_all(|engine, opt| {
        measured(|| {
            let task = Task::new(engine, "level00").options(&["--max-depth", "8"]);
            let analysis = task.run_like_native(&program("deep_path", opt), &[]);
            let report = analysis.report();
            let mut causes = report.peaks().iter().flat_map(Report::causes);
            let Some(slow) = causes.find(|cause| cause.stop == "max-depth") else {
                return Err(Unfinished(format!("{:#}", report.0)));
            };
            match (is_path(&slow.path, &names), report.status()) {
                (true, "max-depth-reached") => Ok(()),
                // Another peak is not explained.
                (true, "undecided" | "in-progress") => Err(Unfinished(format!("{:#}", report.0))),
                _ => Err(Wrong(format!("{:#}", report.0))),
            }
        });
    });
}

/// One peak is analysed, the other is shown and left alone.
#[test]
fn one_peak_is_chosen() {
    let truth = ground_truth("two_peaks");
    let slow = &truth.peaks[1].causes[0].path;
    for_all(|engine, opt| {
        measured(|| {
            let task = Task::new(engine, "serve").options(&["--peak", "2"]);
            let analysis = task.run_like_native(&program("two_peaks", opt), &[]);
            let report = analysis.report();
            for peak in report.peaks().iter().filter(|peak| peak["peak"] != 2) {
                assert_eq!(peak["status"], "not-analysed", "{:#}", report.0);
                assert!(Report::causes(peak).is_empty(), "{:#}", report.0);
            }
            let chosen = report.peaks().iter().find(|peak| peak["peak"] == 2);
            let causes = chosen.map(Report::causes).unwrap_or_default();
            match causes.iter().any(|cause| is_path(&cause.path, slow)) {
                true => Ok(()),
                false => Err(Unfinished(format!("{:#}", report.0))),
            }
        });
    });
}

/// The ops that are named are the one peak.
#[test]
fn a_range_is_named() {
    let truth = ground_truth("two_peaks");
    let slow = &truth.peaks[1].causes[0].path;
    for range in [["--slower-than", "1ms"], ["--above", "p85"]] {
        measured(|| {
            let task = Task::new("jump", "serve").options(&range);
            let analysis = task.run_like_native(&program("two_peaks", Opt::O2), &[]);
            let report = analysis.report();
            assert!(report.peaks().len() <= 1, "{:#}", report.0);
            let causes = report.peaks().iter().flat_map(Report::causes);
            match causes.into_iter().any(|cause| is_path(&cause.path, slow)) {
                true => Ok(()),
                false => Err(Unfinished(format!("{:#}", report.0))),
            }
        });
    }
}

/// Fast ops of a benchmark from the literature: whatever the peaks are, paths are walks of its calls.
#[test]
fn paths_in_btree_are_walks_over_its_calls() {
    const CALLS: [(&str, &[&str]); 8] = [
        ("insert", &["insert_recursive", "grow_root"]),
        (
            "insert_recursive",
            // Compilers make calls of memmove from the loops that shift keys.
            &[
                "find_index",
                "find_child",
                "insert_recursive",
                "split",
                "memmove",
            ],
        ),
        (
            "split",
            &["new_node", "get_parent_key", "memcpy", "memmove"],
        ),
        ("grow_root", &["new_node"]),
        ("new_node", &["calloc"]),
        ("lookup", &["find_index"]),
        ("find_index", &[]),
        ("find_child", &[]),
    ];
    for_all(|engine, opt| {
        for f0 in ["insert", "lookup"] {
            let report = Task::new(engine, f0)
                .run_like_native(&program("btree", opt), &["60000"])
                .report();
            assert!(report.ops() >= 100, "{:#}", report.0);
            for cause in report.peaks().iter().flat_map(Report::causes) {
                for pair in cause.path.windows(2) {
                    let Some((_, callees)) = CALLS.iter().find(|(caller, _)| *caller == pair[0])
                    else {
                        break; // in the library
                    };
                    let callee = pair[1].as_str();
                    assert!(
                        callees.iter().any(|name| callee.contains(name)),
                        "{cause:?}"
                    );
                }
            }
        }
    });
}
