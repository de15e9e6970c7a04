//! Calls that never return: exceptions, longjmp, cancelled threads, left stacks; many of each.

use darc_testprogs::{Opt, program};

use crate::harness::{Target, Task, darc, engines, execute, for_all, native};
use crate::untouched::{check_released, check_text};

/// Coroutines that all have the same stack, each a copy of its part while it does not run (greenlets): nothing of ours is in the copies.
#[test]
fn copied_stacks() {
    for_all(|engine, opt| {
        let target = Target::start("copied_stacks", opt, &[]);
        let options = ["--start-ops", "50", "--decision-ops", "20", "-d", "1s"];
        let task = Task::new(engine, "serve").options(&options);
        let analysis = task.attach(target.pid());
        if engine == "int3" {
            let line = analysis.darc.failure(3);
            assert!(line.contains("may copy its stacks"), "{line}");
        } else {
            // On a busy machine no call may complete in that time.
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
            let warnings = analysis.report().at("/warnings").to_string();
            assert!(warnings.contains("may copy its stacks"), "{warnings}");
        }
        target.finish_like_native(&program("copied_stacks", opt), &[]);
    });
}

/// Runs the program under darc with many fast ops, all probes staying in place, then attaches twice
/// in mid-work. What it computes must be the same.
fn check(name: &str, f0: &str, ops: &str) {
    for_all(|engine, opt| {
        let (path, args) = (program(name, opt), [ops, "brisk"]);
        let native = native(&path, &args);
        let stay = ["--decision-ops", "1000000000"];
        let task = Task::new(engine, f0).options(&stay);
        let analysis = task.run_like(&native, &path, &args);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
        // As the analysis goes: sites of callees come and go while the stack is unwound.
        Task::new(engine, f0).run_like(&native, &path, &args);
        let target = Target::start(name, opt, &["brisk"]);
        for _ in 0..2 {
            let task = Task::new(engine, f0).options(&["-d", "500ms"]);
            let analysis = task.attach(target.pid());
            // On a busy machine no call may complete in that time.
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
            check_released(target.pid());
            check_text(target.pid());
        }
        target.finish_like_native(&path, &["brisk"]);
    });
}

macro_rules! programs {
    ($($test:ident: $name:literal $f0:literal $ops:literal)*) => {
        $(#[test] fn $test() { check($name, $f0, $ops); })*
    };
}

programs! {
    exceptions: "exceptions" "parse" "10000"
    exceptions_through_the_frame_above: "exceptions" "frame1" "5000"
    rust_panics: "closures" "closures::serve" "10000"
    longjmp: "longjmp_out" "transact" "10000"
    cancelled_threads: "cancellation" "serve" "3000"
    switched_stacks: "contexts" "serve" "5000"
    switched_stacks_seen_from_the_callee: "contexts" "part" "2000"
    signal_stacks: "signal_stack" "serve" "5000"
    signal_handlers_that_switch_contexts: "signal_switches" "serve" "5000"
}

/// The library has an unwinder of its own: where it begins has a probe, too.
#[test]
fn exceptions_in_a_library_with_its_own_unwinder() {
    let path = program("throws_in_library", Opt::O2);
    let native = native(&path, &["5000", "brisk"]);
    for engine in engines() {
        let stay = ["--decision-ops", "1000000000"];
        let task = Task::new(engine, "library_throws").options(&stay);
        let analysis = task.run_like(&native, &path, &["5000", "brisk"]);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
    }
}

/// Nobody knows where the unwinder begins: nothing is hidden from it.
#[test]
fn exceptions_by_an_unwinder_without_names() {
    for name in ["throws_below_static_stripped", "throws_below_own_stripped"] {
        let path = program(name, Opt::O2);
        let task = |engine| Task::new(engine, "serve").options(&["-d", "1s"]);
        let analysis = task("jump").run_like_native(&path, &["4000"]);
        let report = analysis.report();
        assert!(report.ops() > 0, "{analysis:#?}");
        let warnings = report.at("/warnings").to_string();
        assert!(warnings.contains("an unwinder without names"), "{warnings}");
        let target = Target::start(name, Opt::O2, &[]);
        let analysis = task("int3").attach(target.pid());
        let line = analysis.darc.failure(3);
        assert!(line.contains("an unwinder without names"), "{line}");
        target.finish_like_native(&path, &[]);
    }
}

/// What runs on another stack in the middle of an op is not told apart, and the report says so.
#[test]
fn switched_stacks_are_warned_of() {
    let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000"]);
    for name in ["contexts", "signal_switches"] {
        let analysis = task.run_like_native(&program(name, Opt::O2), &["3000", "brisk"]);
        let warnings = analysis.report().at("/warnings").to_string();
        assert!(warnings.contains("switches stacks"), "{name}: {warnings}");
    }
}

/// Ten thousand frames of f0, and stacks that overflow: SIGSEGV arrives as ever.
#[test]
fn deep_recursion_and_overflow() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "sink").options(&["--decision-ops", "1000000000"]);
        task.run_like_native(&program("stack_overflow", opt), &["40"]);
    });
}

/// A profiler inside the program walks the stack at any moment: it sees what it sees without darc.
#[test]
fn the_program_walks_its_own_stack() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&program("unwinds", opt), &["800"]);
        let stdout = &analysis.darc.stdout;
        assert!(stdout.contains("cut=0 walked=1\n"), "{analysis:#?}");
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
    });
}

/// The same where most of the time passes in darc's own code, which is found in the program's functions too.
#[test]
fn the_program_walks_its_stack_from_inside_of_a_probe() {
    for opt in Opt::ALL {
        let interrupted = program("interrupted", opt);
        let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&interrupted, &["3000"]);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
        let walks = ["checksum", "cut=0 walked=1\n"];
        let results = tempfile::tempdir().expect("a folder");
        let results = results.path().join("set");
        let mut command = darc(&["profile", "-q", "-o"]);
        command.arg(results).arg("--").arg(interrupted).arg("3000");
        let profiled = execute(&mut command);
        for said in [&analysis.darc.stdout, &profiled.stdout] {
            assert!(walks.iter().all(|line| said.contains(line)), "{said}");
        }
    }
}

/// Ops whose stack is unmapped in their middle never return: they are counted as such and not timed.
#[test]
fn stacks_that_are_freed_in_an_op() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&program("abandoned_stacks", opt), &["400"]);
        let report = analysis.report();
        let otherwise = report.at("/probes/ended_otherwise").as_u64();
        assert!(otherwise >= Some(399), "{:#}", report.0);
        assert!(report.ops() <= 400, "{:#}", report.0);
    });
}
