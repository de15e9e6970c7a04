//! Every program of known behaviour, at both optimisation levels: peaks and root-cause paths.

use darc_testprogs::{GROUND_TRUTHS, ground_truth, program};

use crate::harness::{Task, for_all, measured, native, turn};
use crate::report::{Report, is_path};

/// Runs the program under darc, compares what it does with a native run, and the results with the truth.
/// The output does not depend on the number of ops, so that one period is enough natively.
fn check(name: &str) {
    let _turn = turn();
    let truth = ground_truth(name);
    for_all(|engine, opt| {
        let task = Task::new(engine, truth.f0).options(truth.options);
        let native = native(&program(name, opt), &["20"]);
        measured(|| {
            let analysis = task.run(&program(name, opt), truth.args);
            assert_eq!(analysis.darc.stdout, native.stdout, "{analysis:#?}");
            assert_eq!(analysis.darc.code(), native.code(), "{analysis:#?}");
            let report = analysis.report();
            assert_eq!(report.at("/engine"), engine);
            assert_eq!(report.at("/target/exit_status"), analysis.darc.code());
            report.judge(truth)
        });
    });
}

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
            for truth in GROUND_TRUTHS {
                assert!(tested.contains(&truth.program), "{} is not tested", truth.program);
            }
        }
    };
}

programs! {
    blocked_calls
    cached_and_slow_read
    call
    call_path_filter
    cancellation
    closes_fds
    closures
    cold_split
    dead_leader
    deep_path
    exceptions
    fork_exec
    four_threads
    function_pointers
    jump_table
    longjmp_out
    r#loop
    loop_over_fast
    mutex_contention
    mutual_recursion
    plugin_host
    recursion
    recursion_through_f0
    sandboxed
    shared_library
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
}

/// A path that may not become long enough ends at the maximum depth, and says so.
#[test]
fn a_path_ends_at_the_maximum_depth() {
    let _turn = turn();
    for_all(|engine, opt| {
        let task = Task::new(engine, "level00").options(&["--max-depth", "8"]);
        let report = task
            .run_like_native(&program("deep_path", opt), &[])
            .report();
        assert_eq!(report.status(), "max-depth-reached", "{:#}", report.0);
        let slow = report
            .peaks()
            .iter()
            .find(|peak| peak["status"] == "max-depth-reached");
        let causes = Report::causes(slow.expect("a peak that is not at its end"));
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert_eq!(causes[0].stop, "max-depth");
        let names = [
            "level00", "level01", "level02", "level03", "level04", "level05", "level06", "level07",
        ];
        assert!(is_path(&causes[0].path, &names), "{causes:?}");
    });
}

/// One peak is analysed, the other is shown and left alone.
#[test]
fn one_peak_is_chosen() {
    let _turn = turn();
    let truth = ground_truth("two_peaks");
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--peak", "2"]);
        let report = task
            .run_like_native(&program("two_peaks", opt), &[])
            .report();
        assert_eq!(report.status(), "root-cause-found");
        let peak = |number| {
            report
                .peaks()
                .iter()
                .find(|peak| peak["peak"] == number)
                .expect("numbered")
        };
        assert_eq!(peak(1)["status"], "not-analysed");
        assert!(Report::causes(peak(1)).is_empty());
        assert!(is_path(
            &Report::causes(peak(2))[0].path,
            truth.peaks[1].path
        ));
    });
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
    let _turn = turn();
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
