//! What a measured program could notice, and must not.

use darc_testprogs::{Opt, ground_truth, program};

use crate::harness::{Analysis, Target, Task, Unfinished, engines, for_all, measured, native};
use crate::untouched::ProcessState;

/// All registers, flags, vector registers and the red zone are as f0 and its caller left them.
#[test]
fn registers_are_preserved() {
    for_all(|engine, opt| {
        let path = program("registers", opt);
        let native = native::<&str>(&path, &[]);
        for f0 in ["pass_through", "call_with_pattern", "leaf"] {
            for options in [
                &["--decision-ops", "1000000000"][..],
                &["--start-ops", "20", "--decision-ops", "5"],
            ] {
                let task = Task::new(engine, f0).options(options);
                let analysis = task.run_like(&native, &path, &[]);
                assert!(
                    analysis.darc.stdout.contains("registers=ok\n"),
                    "{analysis:#?}"
                );
                assert!(analysis.report().ops() > 0, "{analysis:#?}");
            }
        }
    });
}

/// 35 threads, each blocked in another system call: attaching and detaching lets none return early.
#[test]
fn blocked_calls_stay_blocked() {
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("blocked_calls", opt, &[]);
            let before = ProcessState::of(target.pid());
            let mut judged = Ok(());
            for _ in 0..3 {
                let analysis = Task::new(engine, "serve").attach(target.pid());
                assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
                before.check_unchanged(target.pid());
                judged = judged.and(analysis.report().judge(ground_truth("blocked_calls")));
            }
            let finished = target.finish();
            assert!(finished.stdout.contains("early=0\n"), "{finished:#?}");
            judged
        })
    });
}

/// Transfers that stops cut lose no byte, move none twice, and say how many they have moved.
#[test]
fn transfers_move_each_byte_once() {
    for engine in engines() {
        let target = Target::start("transfers", Opt::O2, &[]);
        let mut ops = 0;
        for _ in 0..5 {
            let task = Task::new(engine, "serve").options(&["--start-ops", "20", "-d", "200ms"]);
            let analysis = task.attach(target.pid());
            // On a busy machine no call may complete in that time.
            assert!(
                [0, 7].contains(&analysis.darc.code()),
                "{engine} {analysis:#?}"
            );
            ops += analysis.report().ops();
        }
        assert!(ops > 0, "{engine}");
        let finished = target.finish();
        assert!(
            finished.stdout.ends_with("wrong=0 lost=0\n"),
            "{engine} {finished:#?}"
        );
    }
}

/// Calls with a timeout end neither early nor with an error, and those that the kernel goes on with end when they should. Others
/// begin anew, and `rem` of an interrupted sleep is written: docs/limits.md.
#[test]
fn timed_calls_end_in_time() {
    for engine in engines() {
        measured(|| {
            let target = Target::start("timed_calls", Opt::O2, &[]);
            let analysis = Task::new(engine, "serve").attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{engine} {analysis:#?}");
            let finished = target.finish();
            let counts = finished.stdout.lines().last().unwrap_or_default();
            assert!(counts.starts_with("early=0 "), "{engine} {counts}");
            assert!(!counts.ends_with(" written=0"), "{engine} {counts}");
            // Something else may keep a thread from running.
            match counts.contains(" late=0 ") {
                true => Ok(()),
                false => Err(Unfinished(counts.to_owned())),
            }
        });
    }
}

/// Functions whose first bytes are odd, each as f0: measured, or refused with a reason; never broken.
#[test]
fn odd_entries() {
    const ENTRIES: [&str; 14] = [
        "nothing",
        "nothing_alias",
        "two_bytes",
        "sizeless",
        "countdown",
        "countdown_inside",
        "early_call",
        "early_relative",
        "early_jrcxz",
        "early_syscall",
        "variadic",
        "marked",
        "entered_inside",
        "short_call",
    ];
    each_is_measured_or_refused("odd_entries", &ENTRIES, |engine, f0, analysis| {
        if analysis.darc.code() == 3 {
            let line = analysis.darc.failure(3);
            assert!(
                f0 != "entered_inside" || line.contains("--engine int3"),
                "{line}"
            );
            return;
        }
        assert!((engine, f0) != ("jump", "entered_inside"), "{analysis:#?}");
        if (engine, f0) == ("jump", "short_call") {
            let skipped = &analysis.report().0["probes"]["skipped"][0]["reason"];
            let reason = skipped.as_str().unwrap_or_default();
            assert!(reason.contains("leads between"), "{analysis:#?}");
        }
        // On a machine that has no time for it, what int3 sees of a second is an answer, and the end.
        let least = if engine == "int3" { 20 } else { 2000 / 20 };
        assert!(analysis.report().ops() >= least, "{f0}: {analysis:#?}");
    });
}

/// Functions with jumps that lead elsewhere than they seem to.
#[test]
fn odd_jumps() {
    const FUNCTIONS: [&str; 4] = ["threaded", "kept_label", "left_at_label", "past_prediction"];
    each_is_measured_or_refused("odd_jumps", &FUNCTIONS, |engine, f0, analysis| {
        // Where the few bytes of a jump lead is up to where the kernel put the program, and may be taken.
        let is_short = (engine, f0) == ("jump", "past_prediction");
        if is_short && analysis.darc.code() == 3 {
            let line = analysis.darc.failure(3);
            assert!(
                line.contains("no memory can be had") && line.contains("--engine int3"),
                "{line}"
            );
            return;
        }
        assert!(analysis.report().ops() >= 100, "{f0}: {analysis:#?}");
    });
}

/// Functions that take their arguments off the stack as they return: a return address that is hidden is not found.
#[test]
fn arguments_taken_off_the_stack() {
    const FUNCTIONS: [&str; 5] = [
        "op",
        "takes_argument",
        "passes_argument",
        "call_with_argument",
        "hands_on",
    ];
    let path = program("odd_jumps", Opt::O2);
    let native = native(&path, &["2000"]);
    let refused = Task::new("int3", "takes_argument").run(&path, &["2000"]);
    let line = refused.darc.failure(3);
    assert!(line.contains("off the stack"), "{line}");
    for f0 in FUNCTIONS {
        let analysis = Task::new("jump", f0)
            .options(&["--decision-ops", "50"])
            .run(&path, &["2000"]);
        if f0 == "passes_argument" {
            let line = analysis.darc.failure(3);
            assert!(line.contains("off the stack"), "{line}");
            continue;
        }
        assert_eq!(analysis.darc.stdout, native.stdout, "{f0}: {analysis:#?}");
        assert_eq!(analysis.darc.code(), native.code(), "{f0}: {analysis:#?}");
        // Of this one nothing tells that it leaves for one that does.
        let ops = analysis.report().ops();
        let expected = if f0 == "hands_on" {
            0..=0
        } else {
            100..=u64::MAX
        };
        assert!(expected.contains(&ops), "{f0}: {analysis:#?}");
    }
}

/// Each of some functions as f0: the program does what it does natively, or it is refused with a reason and has not run.
fn each_is_measured_or_refused(
    name: &str,
    functions: &[&str],
    check: impl Fn(&str, &str, &Analysis),
) {
    for_all(|engine, opt| {
        let path = program(name, opt);
        let native = native(&path, &["2000"]);
        for f0 in functions {
            let analysis = Task::new(engine, f0)
                .options(&["--decision-ops", "50"])
                .run(&path, &["2000"]);
            check(engine, f0, &analysis);
            if analysis.darc.code() == 3 {
                let line = analysis.darc.failure(3);
                assert!(line.contains("cannot be instrumented"), "{line}");
                assert_eq!(analysis.darc.stdout, "", "it has not run");
                continue;
            }
            assert_eq!(analysis.darc.stdout, native.stdout, "{f0}: {analysis:#?}");
            assert_eq!(analysis.darc.code(), native.code(), "{f0}: {analysis:#?}");
        }
    });
}

/// A program that may make no system calls but its own, found running: nothing can be mapped in its
/// name, so it is refused untouched. (Started by darc it is measured: see the ground truth.)
#[test]
fn a_sandboxed_program() {
    for_all(|engine, opt| {
        let target = Target::start("sandboxed", opt, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = Task::new(engine, "serve").attach(target.pid());
        let line = analysis.darc.failure(3);
        assert!(line.contains("seccomp"), "{line}");
        before.check_unchanged(target.pid());
        target.finish_like_native(&program("sandboxed", opt), &[]);
    });
}

/// The same goes for a program that handles system calls itself: the kernel would have it die of those that it did not make.
#[test]
fn a_program_that_handles_its_system_calls() {
    for_all(|engine, opt| {
        let path = program("dispatches_calls", opt);
        if native(&path, &["1"]).code() == 77 {
            eprintln!("left out: the kernel does not know that");
            return;
        }
        let target = Target::start_at(&path, &[]);
        let analysis = Task::new(engine, "serve").attach(target.pid());
        let line = analysis.darc.failure(3);
        assert!(line.contains("handles system calls itself"), "{line}");
        let finished = target.finish();
        assert!(finished.stdout.contains("dispatched=yes"), "{finished:?}");
        assert!(finished.status.success(), "{finished:?}");
    });
}

/// The report of an analysis never mixes with what the program writes.
#[test]
fn stdout_is_the_programs() {
    for_all(|engine, opt| {
        let path = program("two_peaks", opt);
        let native = native(&path, &["100"]);
        let task = Task::new(engine, "serve");
        let quiet = task.clone().options(&["-q"]);
        let quiet = quiet.run_like(&native, &path, &["100"]);
        assert_eq!(quiet.darc.stderr, "", "{quiet:#?}");
        let shown = task.run_like(&native, &path, &["100"]);
        assert!(shown.darc.stderr.contains("serve"), "{shown:#?}");
    });
}

/// All memory locked; no room to map anything; the code of f0 shared with a file; no room near the code.
/// Each is measured or refused in words, and nothing of the program is changed.
#[test]
fn odd_mappings() {
    for_all(|engine, opt| {
        let path = program("odd_mappings", opt);
        for (mode, refusal) in [
            ("locked", None),
            ("future", None),
            ("limited", Some("raise its limits")),
            ("shared", Some("mapped shared")),
            ("crowded", Some("memory")),
        ] {
            let native = native(&path, &["200", mode]);
            if native.code() == 77 {
                eprintln!("left out: the system does not allow {mode}");
                continue;
            }
            let target = Target::start_at(&path, &[mode]);
            let before = ProcessState::of(target.pid());
            let analysis = Task::new(engine, "serve")
                .options(&["-d", "500ms"])
                .attach(target.pid());
            match refusal {
                Some(words) => {
                    let line = analysis.darc.failure(3);
                    assert!(line.contains(words), "{mode}: {line}");
                }
                // On a busy machine no call may complete in that time.
                None => assert!(
                    [0, 7].contains(&analysis.darc.code()),
                    "{mode}: {analysis:#?}"
                ),
            }
            assert_eq!(ProcessState::of(target.pid()), before, "{mode}");
            let finished = target.finish();
            assert_eq!(finished.stdout, native.stdout, "{mode}");
            assert_eq!(finished.status, native.status, "{mode}");
        }
    });
}

/// What the program may still map, and where its heap grows, is left to it: each op takes memory, and gets it.
#[test]
fn memory_is_left_to_the_program() {
    for_all(|engine, opt| {
        let path = program("odd_mappings", opt);
        for mode in ["nearly", "grows"] {
            let target = Target::start_at(&path, &[mode]);
            let before = ProcessState::of(target.pid());
            let analysis = Task::new(engine, "serve")
                .options(&["-d", "100ms"])
                .attach(target.pid());
            // On a busy machine no call may complete in that time.
            assert!(
                [0, 7].contains(&analysis.darc.code()),
                "{mode}: {analysis:#?}"
            );
            before.check_unchanged(target.pid());
            let finished = target.finish();
            assert!(finished.status.success(), "{mode}: {finished:?}");
            assert!(
                !finished.stdout.contains("no memory"),
                "{mode}: {finished:?}"
            );
        }
    });
}

/// The program overwrites f0 again and again, also while probes are put in: the version that it wrote last
/// runs, and nothing older is written over it.
#[test]
fn a_program_that_writes_its_own_code() {
    for_all(|engine, opt| {
        let path = program("rewrites_itself", opt);
        let stay = ["--decision-ops", "1000000000", "-d", "200ms"];
        let task = Task::new(engine, "serve").options(&stay);
        let native = native(&path, &["20000"]);
        // How many ops are seen before the program overwrites the probe is a matter of luck.
        measured(|| {
            let analysis = task.run_like(&native, &path, &["20000"]);
            match analysis.report().ops() {
                0 => Err(Unfinished(format!("{analysis:#?}"))),
                _ => Ok(()),
            }
        });
        let target = Target::start_at(&path, &[]);
        for _ in 0..5 {
            let analysis = task.attach(target.pid());
            let code = analysis.darc.code();
            assert!([0, 3, 7].contains(&code), "{analysis:#?}");
            if code == 3 {
                let line = analysis.darc.failure(3);
                assert!(line.contains("since it was read"), "{line}");
            }
        }
        let finished = target.finish();
        assert_eq!(finished.stdout, "wrong=0\n", "{finished:#?}");
        assert!(finished.status.success(), "{finished:#?}");
    });
}

/// Nobody puts another return address before a function that does more with it than return there.
#[test]
fn functions_that_use_their_return_address() {
    for_all(|engine, opt| {
        for (name, ops) in [
            ("looks_at_caller", "400"),
            ("looks_at_caller_no_plt", "400"),
            ("split_stack", "2000"),
        ] {
            let task = Task::new(engine, "serve").options(&["--decision-ops", "100"]);
            let analysis = task.run_like_native(&program(name, opt), &[ops]);
            let report = analysis.report();
            assert!(report.ops() > 0, "{name}: {analysis:#?}");
            let skipped = report.0["probes"]["skipped"].to_string();
            if name != "split_stack" {
                assert_eq!(
                    engine == "jump",
                    !skipped.contains("dlsym"),
                    "{analysis:#?}"
                );
            }
        }
        let analysis = Task::new(engine, "find").run(&program("looks_at_caller", opt), &["20"]);
        match opt {
            Opt::O2 => {
                let line = analysis.darc.failure(3);
                assert!(line.contains("dlsym, which looks at"), "{line}");
            }
            Opt::O0 => assert!(analysis.report().ops() > 0, "{analysis:#?}"),
        }
    });
}
