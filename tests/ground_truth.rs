//! Every program of known behaviour, at both optimisation levels: peaks and root-cause paths.

use darc_testprogs::{Opt, ground_truth, ground_truths, program};

use crate::harness::{Task, Unfinished, Wrong, for_all, tries_all};
use crate::report::{Report, is_path};

/// Runs the program under darc, and compares what it does with a native run, and the results with the truth.
fn check(name: &str) {
    let truth = ground_truth(name);
    for_all(|engine, opt| {
        if engine == "int3" && !is_for_breakpoints(name) {
            return;
        }
        let (task, program) = (Task::of(engine, truth), program(name, opt));
        match LATER.contains(&name) || DEAF.contains(&name) {
            true => task.results_are_in_the_end(&program, |report| report.judge(truth)),
            false => task.answers_are(&program, |report| report.judge(truth)),
        }
    });
}

/// Whether the program is measured by breakpoints: a fifth of all, or where everything is to be tried all that they can tell of.
fn is_for_breakpoints(name: &str) -> bool {
    let tells = ![&LEFT[..], &LATER, &SHORT]
        .iter()
        .any(|list| list.contains(&name));
    tells && (tries_all() || FIFTH.contains(&name))
}

/// Where calls are left without a return inside of ops: `int3` gives them up, which docs/limits.md says.
const LEFT: [&str; 5] = [
    "catches",
    "caught_everywhere",
    "jumps_out",
    "panics",
    "panics_in_turn",
];

/// What is seen only after the first answers, with which `int3` ends: these run for as long as they do by themselves.
const LATER: [&str; 4] = ["deep_and_seldom", "in_runs", "phases", "seldom"];

/// What does not hear when its standard input is closed, and so runs for as long as it does by itself.
const DEAF: [&str; 3] = ["closes_fds", "plugin_host", "sandboxed"];

/// Ops that are shorter than a breakpoint takes, which `int3` says, and a thousand calls in an op that are.
const SHORT: [&str; 2] = ["short_callees", "wide_tree"];

/// The programs that breakpoints are tried on whenever tests run: some of each kind.
const FIFTH: [&str; 19] = [
    "cached_and_slow_read",
    "call_path_filter",
    "computed_jumps",
    "exceptions",
    "fork_exec",
    "four_threads",
    "in_turn",
    "lazily_bound",
    "longjmp_out",
    "mutex_contention",
    "plugin_host",
    "recursion",
    "shared_library",
    "short_calls",
    "slow_callee_in_loop",
    "stripped_library",
    "tail_calls",
    "two_peaks",
    "virtual_calls",
];

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
    asks_by_channel
    backs_off
    backtracking
    blocked_calls
    boxed_forwarders
    bucket_border
    busy_map
    cache_misses
    cached_and_slow_read
    call
    call_path_filter
    called_often
    cancellation
    catches
    caught_everywhere
    clock_loop
    closes_fds
    closures
    cold_split
    column_sums
    computed_jumps
    correlated_callees
    dead_leader
    deep_and_seldom
    deep_path
    denormals
    dispatches_results
    drift
    drops_tree
    duplicate_keys
    equal_callees
    exceptions
    file_lock
    finds_end_again
    first_use
    flank
    flushes_buffer
    fork_exec
    forwarders
    four_threads
    full_channel
    full_pipe
    function_pointers
    garbage_collection
    group_commit
    halves
    hash_chains
    in_runs
    in_turn
    jump_table
    jumps_out
    late_loads
    lazily_bound
    lazily_bound_shadowed
    long_calls_in_loop
    longer_in_hump
    longjmp_out
    r#loop
    loop_over_fast
    lost_answer
    lru_eviction
    many_sites
    mostly_throws
    mutex_contention
    mutual_recursion
    named_threads
    one_bad_call
    overlapping_humps
    own_and_two
    own_lock
    panics
    panics_in_turn
    pareto_tail
    phases
    plugin_host
    pool_future
    reconnects
    recursion
    recursion_through_f0
    rehash
    resumed
    rwlock_writer
    sandboxed
    seldom
    shared_library
    short_callees
    short_calls
    short_misses
    signals
    slow_callee_in_loop
    slow_producer
    some_misses
    sorted_input
    spawned
    spin_waits
    stripped_library
    subscribers
    tail_calls
    tail_f0
    thread_churn
    two_alike
    two_peaks
    two_peaks_debuglink
    two_peaks_dwarf4
    two_peaks_no_pie
    two_peaks_static
    two_peaks_static_pie
    unmaps_blocks
    virtual_calls
    virtual_forwarders
    visits_variant
    wide_tree
    yields_to_holder
}

/// A path that may not become long enough ends at the maximum depth, and says so.
#[test]
fn a_path_ends_at_the_maximum_depth() {
    let names = [
        "level00", "level01", "level02", "level03", "level04", "level05", "level06", "level07",
    ];
    let truth = ground_truth("deep_path");
    for_all(|engine, opt| {
        let task = Task::new(engine, "level00").options(&["--max-depth", "8"]);
        task.answers_are(&program("deep_path", opt), |report| {
            report.says_nothing_wrong(truth)?;
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
        let task = Task::new(engine, "serve").options(&["--peak", "2"]);
        task.answers_are(&program("two_peaks", opt), |report| {
            report.says_nothing_wrong(truth)?;
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
        let task = Task::new("jump", "serve").options(&range);
        task.results_are_in_the_end(&program("two_peaks", Opt::O2), |report| {
            report.says_nothing_wrong(truth)?;
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
