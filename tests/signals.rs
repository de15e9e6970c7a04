//! Signals of the target, to the target, and to darc.

use darc_testprogs::{Opt, ground_truth, program};
use nix::sys::signal::Signal;

use crate::harness::{Target, Task, for_all, measured, wait_until};
use crate::untouched::{ProcessState, check_text, process_state};

/// None of 8,000 queued signals is lost, and their order holds.
#[test]
fn queued_signals_arrive_in_order() {
    for_all(|engine, opt| {
        let analysis =
            Task::new(engine, "serve").run_like_native(&program("signal_storm", opt), &[]);
        assert!(analysis.report().ops() > 0);
    });
}

#[test]
fn queued_signals_arrive_while_darc_comes_and_goes() {
    for_all(|engine, opt| {
        let target = Target::start("signal_storm", opt, &[]);
        for _ in 0..3 {
            let analysis = Task::new(engine, "serve")
                .options(&["-d", "300ms"])
                .attach(target.pid());
            // On a busy machine no call may complete in that time.
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
        }
        crate::untouched::check_released(target.pid());
        check_text(target.pid());
        target.finish_like_native(&program("signal_storm", opt), &[]);
    });
}

/// Signals that are ignored do not end a blocked call of a traced program either.
#[test]
fn ignored_signals_end_no_call() {
    for_all(|engine, opt| {
        let analysis = Task::new(engine, "serve")
            .options(&["--decision-ops", "1000000000"])
            .run_like_native(&program("ignored_signals", opt), &[]);
        assert!(analysis.darc.stdout.contains("early=0\n"), "{analysis:#?}");
    });
}

/// A signal that a blocked call holds back does not end it, whenever darc comes and goes.
#[test]
fn held_signals_end_no_call() {
    for_all(|engine, opt| {
        let target = Target::start("held_signals", opt, &[]);
        for _ in 0..3 {
            let task = Task::new(engine, "serve").options(&["-d", "200ms"]);
            let analysis = task.attach(target.pid());
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
        }
        target.finish_like_native(&program("held_signals", opt), &[]);
    });
}

/// The target's own breakpoints are its own.
#[test]
fn the_programs_own_traps() {
    for_all(|engine, opt| {
        Task::new(engine, "serve").run_like_native(&program("own_int3", opt), &[]);
    });
}

/// What a program hears that steps through itself by the trap flag is what it hears without breakpoints.
#[test]
fn a_program_that_steps_through_itself() {
    for name in ["steps_itself", "steps_itself_without_endbr"] {
        for (f0, opt) in [("serve", Opt::O0), ("serve", Opt::O2), ("by_jump", Opt::O2)] {
            let analysis = Task::new("int3", f0)
                .options(&["--start-ops", "40", "--decision-ops", "1000000000"])
                .run_like_native(&program(name, opt), &[]);
            let report = analysis.report();
            let sites = report.at("/probes/sites").as_u64();
            assert!(sites.is_some_and(|sites| sites > 0), "{analysis:#?}");
            // In its handler it would lose that.
            let warnings = report.at("/warnings").to_string();
            let warned = warnings.matches("catches SIGTRAP").count();
            assert_eq!(warned, 1, "{analysis:#?}");
        }
    }
    for opt in Opt::ALL {
        let target = Target::start("steps_itself", opt, &[]);
        for _ in 0..4 {
            let task = Task::new("int3", "serve").options(&["--start-ops", "20", "-d", "200ms"]);
            let analysis = task.attach(target.pid());
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
        }
        check_text(target.pid());
        target.finish_like_native(&program("steps_itself", opt), &[]);
    }
}

/// A program may forbid itself to read the clock; the fault that our reading raises is not its own.
#[test]
fn a_program_that_may_not_read_the_clock() {
    for opt in Opt::ALL {
        let analysis = Task::new("int3", "serve")
            .options(&["--decision-ops", "1000000000"])
            .run_like_native(&program("no_clock", opt), &[]);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
    }
}

#[test]
fn a_trap_that_is_not_handled_ends_the_program() {
    for_all(|engine, opt| {
        let analysis =
            Task::new(engine, "serve").run_like_native(&program("own_int3", opt), &["die"]);
        assert_eq!(
            analysis.darc.code(),
            128 + Signal::SIGTRAP as i32,
            "{analysis:#?}"
        );
    });
}

/// SIGSTOP and SIGCONT during the analysis: stopped is stopped, and then it goes on.
#[test]
fn a_program_is_stopped_and_continued() {
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("two_peaks", opt, &[]);
            let before = ProcessState::of(target.pid());
            let (mut darc, output, folder) = Task::new(engine, "serve").start_attach(target.pid());
            darc.wait_for_probes(target.pid());
            target.signal(Signal::SIGSTOP);
            wait_until("the stop", || {
                matches!(process_state(target.pid()), Some('t' | 'T'))
            });
            target.signal(Signal::SIGCONT);
            let finished = darc.finish();
            assert_eq!(finished.code(), 0, "{finished:#?}");
            before.check_unchanged(target.pid());
            let judged =
                crate::report::Report::read(&output, &finished).judge(ground_truth("two_peaks"));
            drop(folder);
            target.finish_like_native(&program("two_peaks", opt), &[]);
            judged
        })
    });
}

/// What was stopped before stays stopped while darc looks at it and after.
#[test]
fn a_stopped_program_stays_stopped() {
    for_all(|engine, opt| {
        let target = Target::start("two_peaks", opt, &[]);
        target.signal(Signal::SIGSTOP);
        wait_until("the stop", || process_state(target.pid()) == Some('T'));
        let before = ProcessState::of(target.pid());
        let analysis = Task::new(engine, "serve")
            .options(&["-d", "300ms"])
            .attach(target.pid());
        // Nothing can be mapped in the name of a stopped thread: an engine that needs that refuses.
        assert!([3, 7].contains(&analysis.darc.code()), "{analysis:#?}");
        assert!(analysis.darc.stderr.contains("SIGCONT"), "{analysis:#?}");
        // Who is let go stops anew, as soon as it gets a processor.
        wait_until("it is stopped as before", || {
            process_state(target.pid()) == Some('T')
        });
        assert_eq!(before, ProcessState::of(target.pid()));
        check_text(target.pid());
        target.signal(Signal::SIGCONT);
        target.finish_like_native(&program("two_peaks", opt), &[]);
    });
}

/// A signal that ends darc's analysis: the target is restored, the results are written.
#[test]
fn darc_is_interrupted() {
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGTSTP,
    ] {
        for_all(|engine, opt| {
            let target = Target::start("two_peaks", opt, &[]);
            let before = ProcessState::of(target.pid());
            let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
            let (mut darc, output, _folder) = task.start_attach(target.pid());
            darc.wait_for_probes(target.pid());
            darc.signal(signal);
            let finished = darc.finish();
            assert!([0, 7].contains(&finished.code()), "{signal}: {finished:#?}");
            before.check_unchanged(target.pid());
            let report = crate::report::Report::read(&output, &finished);
            assert_eq!(report.status(), "undecided");
            target.finish_like_native(&program("two_peaks", opt), &[]);
        });
    }
}

/// A handler returns to an instruction in the middle of what a probe has displaced meanwhile. Another one has interrupted it, on another
/// stack, and its own is in shared memory.
#[test]
fn a_handler_returns_into_the_middle_of_a_probe() {
    for_all(|engine, opt| {
        for arguments in [&[][..], &["shared"]] {
            let target = Target::start("interrupted_inside", opt, arguments);
            let task = Task::new(engine, "serve").options(&["-d", "500ms"]);
            let analysis = task.attach(target.pid());
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
            let native = Target::start("interrupted_inside", opt, arguments).finish();
            let finished = target.finish();
            // A breakpoint is at f0's first byte alone.
            let led_on = if engine == "jump" { "led on\n" } else { "" };
            assert_eq!(finished.stdout, [led_on, &native.stdout].concat());
            assert_eq!(finished.status, native.status);
        }
    });
}

/// The jump engine's probes read the clock in the program's own name: such a program is refused untouched.
#[test]
fn a_running_program_that_may_not_read_the_clock() {
    for opt in Opt::ALL {
        let target = Target::start("no_clock", opt, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = Task::new("jump", "serve").attach(target.pid());
        let line = analysis.darc.failure(3);
        assert!(line.contains("--engine int3"), "{line}");
        before.check_unchanged(target.pid());
        target.finish_like_native(&program("no_clock", opt), &[]);
    }
}
