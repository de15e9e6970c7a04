//! `darc prove`: an experiment tells causes from what only looks like one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use darc_testprogs::Opt;
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::harness::{
    Analysis, Miss, Running, Target, Task, Unfinished, Verdict, Wrong, darc, execute, measured,
    run_darc,
};
use crate::offcpu::tells_more;
use crate::untouched::ProcessState;

/// What is true of a function in ops of a program.
struct Truth {
    /// The ops, by the microseconds that they work, of the counter that programs spin by, and by those that they wait.
    us: (u32, u32),
    cause: &'static str,
    /// How calls are delayed: one that waits is not to keep the processor that another thread needs.
    by: &'static str,
    answer: &'static str,
    /// Whether each run of the tests tries it.
    always: bool,
}

const fn truth(
    us: (u32, u32),
    cause: &'static str,
    by: &'static str,
    answer: &'static str,
) -> Truth {
    Truth {
        us,
        cause,
        by,
        answer,
        always: false,
    }
}

const fn always(
    us: (u32, u32),
    cause: &'static str,
    by: &'static str,
    answer: &'static str,
) -> Truth {
    Truth {
        always: true,
        ..truth(us, cause, by, answer)
    }
}

const PROVEN: &str = "proven";
const NOT_ON_PATH: &str = "not_on_path";
/// Half of the ops become longer: neither all of them nor none may be the answer.
const PARTLY: &str = "partly";

/// CPU, a loop, two causes in series, one that hides behind a point in time, and what waits for that.
const CALLS_THAT_WORK: [Truth; 6] = [
    always((45, 0), "parse", "spin", PROVEN),
    truth((410, 0), "step", "spin", PROVEN),
    always((2310, 0), "first", "spin", PROVEN),
    truth((2310, 0), "second", "spin", PROVEN),
    always((0, 6070), "encode", "spin", NOT_ON_PATH),
    truth((0, 6070), "pace", "sleep", NOT_ON_PATH),
];

/// By pointer, into a file, deep below f0 and what is on the way there, in some of the ops, a sleep.
const CALLS_OF_KINDS: [Truth; 7] = [
    truth((32, 0), "small", "spin", PROVEN),
    always((205, 0), "store", "spin", PROVEN),
    truth((1265, 0), "compile", "spin", PROVEN),
    truth((1265, 0), "route", "spin", PROVEN),
    truth((4020, 0), "encode", "spin", PARTLY),
    truth((0, 9080), "nap", "spin", PROVEN),
    truth((0, 9080), "nap", "sleep", PROVEN),
];

/// Waits for another thread, for the one that has a lock, for two at once, for a third behind a second; and bystanders.
const CALLS_ELSEWHERE: [Truth; 12] = [
    always((0, 385), "fetch", "sleep", PROVEN),
    truth((0, 385), "reply", "sleep", NOT_ON_PATH),
    always((0, 1090), "rebuild", "sleep", PROVEN),
    truth((0, 1090), "guarded", "sleep", NOT_ON_PATH),
    truth((0, 1090), "logline", "sleep", NOT_ON_PATH),
    always((0, 3110), "left", "sleep", PROVEN),
    always((0, 3110), "right", "sleep", NOT_ON_PATH),
    truth((0, 3110), "logline", "sleep", NOT_ON_PATH),
    truth((0, 8250), "relay", "sleep", PROVEN),
    truth((0, 8250), "produce", "sleep", PROVEN),
    truth((0, 8250), "encode", "spin", NOT_ON_PATH),
    truth((0, 8250), "logline", "sleep", NOT_ON_PATH),
];

/// Calls of one function on several threads, which wait for nobody and for each other.
const CALLS_TOGETHER: [Truth; 2] = [
    always((0, 3130), "part", "sleep", PROVEN),
    truth((0, 1000), "turn", "sleep", PROVEN),
];

/// Peaks are told apart that one doubling holds.
const FINE: [&str; 2] = ["--resolution", "4"];

/// Analyses the program, so that there is something to prove.
fn analysed(pid: i32, options: &[&str]) -> Analysis {
    let analysis = Task::new("jump", "serve").options(options).attach(pid);
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    analysis
}

/// The number of the peak that has ops of so many microseconds.
fn peak_with(report: &Value, (worked, waited): (u32, u32)) -> Option<u64> {
    let resolution = report["profile"]["resolution"].as_f64().unwrap();
    let hz = report["clock"]["hz"].as_f64().unwrap();
    let cycles = f64::from(worked) * 2300.0 + f64::from(waited) * hz / 1e6;
    let bucket = (cycles.log2() * resolution).floor() as u64;
    let mut peaks = report["peaks"].as_array().unwrap().iter();
    let peak = peaks.find(|peak| {
        let of = |key: &str| peak[key].as_u64().unwrap();
        (of("first_bucket")..=of("last_bucket")).contains(&bucket)
    })?;
    peak["peak"].as_u64()
}

/// The same until each kind of ops has a peak where it belongs: on a busy machine some take longer. The third has to do.
fn analysed_whole(pid: i32, truths: &[Truth]) -> Analysis {
    let is_whole = |analysis: &Analysis| {
        let report = analysis.report().0;
        truths
            .iter()
            .all(|truth| peak_with(&report, truth.us).is_some())
    };
    let mut analysis = analysed(pid, &FINE);
    for _ in 0..2 {
        if is_whole(&analysis) {
            break;
        }
        analysis = analysed(pid, &FINE);
    }
    analysis
}

/// What an experiment says of a function of a peak.
fn proof(results: &Path, peak: u64, truth: &Truth) -> Value {
    let peak = peak.to_string();
    let arguments = ["--peak", &peak, "--cause", truth.cause, "--budget", "20%"];
    let mut command = darc(&["prove"]);
    let command = command.arg(results).args(arguments);
    let proven = execute(command.args(["--delay-by", truth.by, "--format", "json"]));
    assert_eq!(proven.code(), 0, "{proven:#?}");
    let proofs: Value = serde_json::from_str(&proven.stdout).unwrap();
    let causes = proofs["causes"].as_array().unwrap();
    // Of calls at several places one is in ops of this peak.
    let is_in = |cause: &&Value| cause["verdict"] != "not_tested";
    let cause = causes.iter().find(is_in).unwrap_or(&causes[0]);
    cause.clone()
}

/// What an experiment says of a function of a program.
fn experiment(results: &Path, report: &Value, truth: &Truth) -> Result<Value, Miss> {
    let us = truth.us;
    match peak_with(report, us) {
        Some(peak) => Ok(proof(results, peak, truth)),
        None => Err(Unfinished(format!("no peak at {us:?} µs: {report:#}"))),
    }
}

/// Whether the experiment tells what is true.
fn judge(said: &Value, truth: &Truth) -> Verdict {
    let cause = truth.cause;
    let verdict = said["verdict"].as_str().unwrap();
    match verdict {
        _ if verdict == truth.answer => Ok(()),
        "not_decided" | "not_tested" => Err(Unfinished(format!("{cause}: {said:#}"))),
        _ => Err(Wrong(format!("{cause}: {said:#}"))),
    }
}

/// The slope that is true.
fn slope(truth: &Truth) -> f64 {
    match truth.answer {
        PROVEN => 1.0,
        PARTLY => 0.5,
        _ => 0.0,
    }
}

/// The interval of the slope that was found.
fn interval(said: &Value) -> Option<(f64, f64)> {
    let bound = |at: usize| said["measured"]["interval"][at].as_f64();
    Some((bound(0)?, bound(1)?))
}

/// Whether the interval of the slope holds the true one, where there is one.
fn holds(said: &Value, truth: &Truth) -> Option<bool> {
    let (low, high) = interval(said)?;
    Some((low..=high).contains(&slope(truth)))
}

/// What longer calls do, as the interval has it: that of a cause excludes nothing, and neither that nor a bystander's misses the
/// true slope by more than its own half. One of twenty may miss it by less; many experiments tell whether it is more.
fn check_interval(said: &Value, truth: &Truth) -> Verdict {
    let Some((low, high)) = interval(said) else {
        return Ok(());
    };
    let half = (high - low) / 2.0;
    let is_near = (low - half..=high + half).contains(&slope(truth));
    let is_something = low > 0.0 || truth.answer == NOT_ON_PATH;
    match is_near && is_something {
        true => Ok(()),
        false => Err(Wrong(format!("{}: {said:#}", truth.cause))),
    }
}

/// Tries what is true of a program. `DARC_PROOFS=20` tries all of it twenty times whatever the answers are, prints how many
/// were right and how many intervals held the true slope, and fails when more than one of twenty was wrong or did not.
fn tried(program: &str, truths: &[Truth]) {
    let path = darc_testprogs::program(program, Opt::O2);
    let times = std::env::var("DARC_PROOFS").ok();
    let times = times.map(|times| times.parse::<usize>().expect("DARC_PROOFS is a number"));
    if let Some(times) = times {
        return tried_often(program, truths, times);
    }
    measured(|| {
        let target = Target::start(program, Opt::O2, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = analysed(target.pid(), &FINE);
        let report = &analysis.report().0;
        for truth in truths.iter().filter(|truth| truth.always) {
            let said = experiment(&analysis.output, report, truth)?;
            judge(&said, truth)?;
            check_interval(&said, truth)?;
        }
        before.check_unchanged(target.pid());
        target.finish_like_native(&path, &[]);
        Ok(())
    });
}

fn tried_often(program: &str, truths: &[Truth], times: usize) {
    let target = Target::start(program, Opt::O2, &[]);
    let analysis = analysed_whole(target.pid(), truths);
    let report = &analysis.report().0;
    let mut wrong_often = Vec::new();
    let (mut intervals, mut all_held) = (0, 0);
    println!("{program}: of {times} runs    right  undecided  wrong  interval holds");
    for truth in truths {
        let (mut right, mut unfinished, mut wrong, mut held) = (0, 0, 0, 0);
        for _ in 0..times {
            let judged = experiment(&analysis.output, report, truth).and_then(|said| {
                let is_held = holds(&said, truth);
                held += usize::from(is_held == Some(true));
                intervals += usize::from(is_held.is_some());
                let of = &said["measured"];
                let (slope, interval) = (&of["slope"], &of["interval"]);
                let half = (&of["linear"], &of["half_slope"]);
                let delays = (&of["meant_ns"], &of["added_ns"]);
                println!(
                    "{}: {} {slope} {interval} {half:?} {delays:?} {}",
                    truth.cause, said["verdict"], said["reason"]
                );
                judge(&said, truth)
            });
            match judged {
                Ok(()) => right += 1,
                Err(Unfinished(_)) => unfinished += 1,
                Err(Wrong(why)) => {
                    wrong += 1;
                    eprintln!("{why}");
                }
            }
        }
        let Truth {
            us,
            cause,
            by,
            answer,
            ..
        } = truth;
        println!(
            "{us:>12?} µs {cause:<9} {by:<6} {answer:<12} {right:>5}  {unfinished:>9}  {wrong:>5}  {held:>14}"
        );
        all_held += held;
        if 20 * wrong > times {
            wrong_often.push(cause);
        }
    }
    println!("{program}: {all_held} of {intervals} intervals hold the true slope");
    let path = darc_testprogs::program(program, Opt::O2);
    target.finish_like_native(&path, &[]);
    assert!(wrong_often.is_empty(), "{wrong_often:?}");
    // One miss is no evidence, however few there are.
    let missed = intervals - all_held;
    assert!(missed <= 1.max(intervals / 20), "{missed} of {intervals}");
}

#[test]
fn causes_are_told_from_what_only_looks_like_one() {
    tried("proven", &CALLS_THAT_WORK);
}

#[test]
fn calls_of_every_kind_are_told_from_what_only_looks_like_one() {
    tried("proven_calls", &CALLS_OF_KINDS);
}

#[test]
fn causes_on_other_threads_are_told_from_bystanders() {
    tried("proven_elsewhere", &CALLS_ELSEWHERE);
}

#[test]
fn calls_on_several_threads_count_as_they_go_on() {
    tried("proven_together", &CALLS_TOGETHER);
}

/// One that is longer keeps all who stand behind it. What is said of such a slope is tested without a program, too.
#[test]
#[ignore = "twelve seconds: cargo test --test integration -- --ignored calls_that_queue"]
fn calls_that_queue_become_longer_by_more_than_a_delay() {
    measured(|| {
        let target = Target::start("proven_queue", Opt::O2, &[]);
        let analysis = analysed(target.pid(), &FINE);
        let queued = truth((0, 6500), "critical", "sleep", "not_decided");
        let said = experiment(&analysis.output, &analysis.report().0, &queued)?;
        let path = darc_testprogs::program("proven_queue", Opt::O2);
        target.finish_like_native(&path, &[]);
        judge(&said, &queued)?;
        match said["measured"]["interval"][0].as_f64() {
            Some(low) if low > 1.0 => Ok(()),
            _ => Err(Unfinished(format!("{said:#}"))),
        }
    });
}

/// Delays take no more of the time than they may.
fn check_budget(file: &str) -> Verdict {
    let options = ["--cause", "parse", "--peak", "1", "--budget", "1%"];
    let others = ["--time", "2s", "--format", "json"];
    let proven = run_darc(&[&["prove", file], &options[..], &others].concat());
    assert_eq!(proven.code(), 0, "{proven:#?}");
    let proofs: Value = serde_json::from_str(&proven.stdout).unwrap();
    let said = &proofs["causes"][0]["measured"];
    let of = |key: &str| said[key].as_f64();
    let measured = of("added_share").zip(of("added_ns")).zip(of("meant_ns"));
    let Some(((share, added), meant)) = measured else {
        return Err(Unfinished(format!("{proofs:#}")));
    };
    // A call may lose its processor while it is delayed: what that takes nobody has asked for.
    match share {
        _ if share <= 0.015 => Ok(()),
        _ if added > 1.2 * meant => Err(Unfinished(format!("{said:#}"))),
        _ => Err(Wrong(format!("{said:#}"))),
    }
}

/// What probes do to calls that take 40 µs, each with one that is measured: these are longer by less than 2 µs, and what is told of
/// them by no more than that. An interval that is wider says nothing of either.
fn check_effect(effect: &Value) -> Verdict {
    let bounds = |of: &str| {
        let bound = |at: usize| effect[of]["interval_ns"][at].as_f64();
        bound(0).zip(bound(1))
    };
    let (Some(ops), Some(told)) = (bounds("ops"), bounds("told")) else {
        return Err(Unfinished(format!("{effect:#}")));
    };
    if [ops, told].iter().any(|(low, high)| high - low > 1_500.0) {
        return Err(Unfinished(format!("{effect:#}")));
    }
    let is_longer = ops.1 > 0.0 && ops.0 < 2_000.0;
    let is_no_more = told.0 < ops.1 && told.0 < 1_000.0 && told.1 > -1_000.0;
    match is_longer && is_no_more {
        true => Ok(()),
        false => Err(Wrong(format!("{effect:#}"))),
    }
}

#[test]
fn what_was_found_at_the_end_of_an_analysis_is_kept_and_drawn() {
    measured(|| {
        let target = Target::start("proven", Opt::O2, &[]);
        let before = ProcessState::of(target.pid());
        let task =
            Task::new("jump", "serve").options(&["--resolution", "4", "--peak", "1", "--prove"]);
        let analysis = task.attach(target.pid());
        let file = analysis.output.to_str().unwrap();
        let proof = &analysis.report().0["proofs"][0];
        match proof["verdict"].as_str() {
            Some("proven") => {}
            Some("not_on_path" | "partly") => return Err(Wrong(format!("{proof:#}"))),
            _ => return Err(Unfinished(format!("{proof:#}"))),
        }
        let checked = run_darc(&["prove", file, "--self-check", "--peak", "1", "--time", "3s"]);
        assert_eq!(checked.code(), 0, "{checked:#?}");
        let budget = check_budget(file);
        before.check_unchanged(target.pid());
        target.finish_like_native(&darc_testprogs::program("proven", Opt::O2), &[]);
        let shown = |format| {
            let shown = run_darc(&["report", file, "--format", format]);
            assert_eq!(shown.code(), 0, "{shown:#?}");
            shown.stdout
        };
        let page = shown("html");
        assert!(page.contains("<h2 id=\"experiments\">"), "{page}");
        assert!(
            page.contains("stroke=\"var(--c2)\"") && !page.contains("<script"),
            "{page}"
        );
        assert!(shown("text").contains("\nExperiments\n"));
        let report: Value = serde_json::from_str(&shown("json")).unwrap();
        println!("{}", report["effects"][0]);
        check_effect(&report["effects"][0])?;
        budget
    });
}

/// Nobody names the one that keeps the lock: the kernel told that it ended the wait.
#[test]
fn who_ended_a_wait_is_put_to_the_test() {
    if !tells_more() {
        return;
    }
    measured(|| {
        let target = Target::start("proven_elsewhere", Opt::O2, &[]);
        let analysis = analysed(target.pid(), &FINE);
        let report = analysis.report().0;
        let Some(peak) = peak_with(&report, (0, 1090)) else {
            return Err(Unfinished(format!("no peak: {report:#}")));
        };
        let mut command = darc(&["prove", "--format", "json", "--delay-by", "sleep"]);
        let command = command.args(["--time", "4s", "--budget", "20%", "--peak"]);
        let proven = execute(command.arg(peak.to_string()).arg(&analysis.output));
        assert_eq!(proven.code(), 0, "{proven:#?}");
        let path = darc_testprogs::program("proven_elsewhere", Opt::O2);
        target.finish_like_native(&path, &[]);
        let proofs: Value = serde_json::from_str(&proven.stdout).unwrap();
        let mut causes = proofs["causes"].as_array().unwrap().iter();
        let keeper = |cause: &&Value| cause["elsewhere"] == true && cause["path"][1] == "rebuild";
        match causes.find(keeper) {
            Some(said) => judge(said, &truth((0, 1090), "rebuild", "sleep", PROVEN)),
            None => Err(Unfinished(format!("{proofs:#}"))),
        }
    });
}

#[test]
fn what_allocator_and_signal_handlers_call_is_left_alone() {
    measured(|| {
        let target = Target::start("proven_elsewhere", Opt::O2, &[]);
        let analysis = analysed(target.pid(), &FINE);
        let file = analysis.output.to_str().unwrap();
        let refused = run_darc(&["prove", file, "--cause", "nanosleep"]);
        assert_eq!(refused.code(), 0, "{refused:#?}");
        assert!(
            refused.stdout.contains("--in-allocator tries it"),
            "{refused:#?}"
        );
        let report = analysis.report().0;
        let peak = peak_with(&report, (0, 3110)).map(|peak| peak.to_string());
        let arguments = ["--cause", "noted", "--budget", "20%", "--time", "4s"];
        let handled = peak
            .map(|peak| run_darc(&[&["prove", file, "--peak", &peak], &arguments[..]].concat()));
        let path = darc_testprogs::program("proven_elsewhere", Opt::O2);
        target.finish_like_native(&path, &[]);
        let Some(handled) = handled else {
            return Err(Unfinished(format!("no peak: {report:#}")));
        };
        assert_eq!(handled.code(), 0, "{handled:#?}");
        match &handled.stdout {
            said if said.contains("its calls are made in handlers of signals") => Ok(()),
            said if said.contains("delays took") => Err(Wrong(said.clone())),
            said => Err(Unfinished(said.clone())),
        }
    });
}

/// In a static program nothing tells which functions the allocator calls.
#[test]
fn in_a_static_program_functions_on_other_threads_are_left_alone() {
    let target = Target::start("two_peaks_static", Opt::O2, &[]);
    let analysis = analysed(target.pid(), &[]);
    let file = analysis.output.to_str().unwrap();
    let refused = run_darc(&["prove", file, "--cause", "main"]);
    assert_eq!(refused.code(), 0, "{refused:#?}");
    let said = "the C library is inside of the program";
    assert!(refused.stdout.contains(said), "{refused:#?}");
    let path = darc_testprogs::program("two_peaks_static", Opt::O2);
    target.finish_like_native(&path, &[]);
}

/// One thread has no filter, so memory can be mapped; delays are of the other, which would be killed for their system calls.
#[test]
fn a_thread_whose_system_calls_are_filtered_is_not_delayed() {
    let target = Target::start("sandboxed_thread", Opt::O2, &[]);
    let analysis = analysed(target.pid(), &[]);
    let file = analysis.output.to_str().unwrap();
    for by in ["spin", "sleep"] {
        let options = ["--cause", "rebuild", "--delay-by", by, "--time", "2s"];
        let refused = run_darc(&[&["prove", file], &options[..]].concat());
        assert_eq!(refused.code(), 0, "{refused:#?}");
        assert!(
            refused.stdout.contains("not tested: thread ")
                && refused.stdout.contains("seccomp filter"),
            "{refused:#?}"
        );
    }
    let path = darc_testprogs::program("sandboxed_thread", Opt::O2);
    target.finish_like_native(&path, &[]);
}

/// What the next stretch of work took that begins from now on, in nanoseconds: processor time, or all of it.
fn unit(target: &mut Target, by: &str) -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    let now = Duration::from(now).as_nanos() as u64;
    loop {
        let line = target.line();
        let words: Vec<u64> = line
            .split(' ')
            .filter_map(|it| it.trim().parse().ok())
            .collect();
        let &[began, ended, cpu] = words.as_slice() else {
            panic!("{line}");
        };
        match (began > now, by) {
            (false, _) => {}
            (true, "spin") => return cpu,
            (true, _) => return ended - began,
        }
    }
}

/// The least of nine of them: other work makes some longer, a delay all.
fn least(target: &mut Target, by: &str) -> u64 {
    (0..9).map(|_| unit(target, by)).min().unwrap()
}

/// Has calls delayed, kills darc while they are, and looks whether that goes on. Four of these calls are in a stretch of work,
/// which delays make longer by more than `percent`.
fn killed_while_delaying(
    target: &mut Target,
    results: &Path,
    (by, cause, percent): (&str, &str, u64),
) -> Verdict {
    let before = least(target, by);
    let is_longer = |took: u64, than: u64| 100 * took > (100 + percent) * than;
    let mut command = darc(&[
        "prove",
        "--cause",
        cause,
        "--delay-by",
        by,
        "--budget",
        "50%",
    ]);
    let mut proving = Running::start(command.args(["--time", "4s"]).arg(results));
    proving.wait_for_probes(target.pid());
    let seen = (0..100).any(|_| is_longer(unit(target, by), before));
    proving.signal(Signal::SIGKILL);
    proving.finish();
    // The span that was begun takes 0.15 s at most.
    let rest: Vec<u64> = (0..9).map(|_| unit(target, by)).collect();
    let later = least(target, by);
    let cleaned = run_darc(&["cleanup", "-p", &target.pid().to_string()]);
    assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
    let clean = least(target, by);
    let told = format!("{by}: {before} ns, then {rest:?}, then {later}, and clean {clean}");
    match (is_longer(later, before), is_longer(later, clean)) {
        (false, _) if seen => Ok(()),
        // It went on until the probes were gone.
        (true, true) => Err(Wrong(told)),
        _ => Err(Unfinished(told)),
    }
}

#[test]
fn delays_end_although_darc_was_killed() {
    let path = darc_testprogs::program("proven", Opt::O2);
    let native = execute(Command::new(&path).arg("20"));
    measured(|| {
        let mut target = Target::start_command(Command::new(&path).arg("timed"));
        let analysis = analysed(target.pid(), &[]);
        // What waits for a point in time works when it spins. What sleeps takes longer if it does not wait anyway.
        for how in [("spin", "pace", 10), ("sleep", "first", 3)] {
            killed_while_delaying(&mut target, &analysis.output, how)?;
        }
        let finished = target.finish();
        assert_eq!(finished.code(), 0);
        assert!(finished.stdout.ends_with(&native.stdout), "{finished:#?}");
        Ok(())
    });
}

#[test]
fn what_cannot_be_tested_is_refused_in_one_line() {
    let target = Target::start("proven", Opt::O2, &[]);
    let analysis = analysed(target.pid(), &[]);
    let file = analysis.output.to_str().unwrap();
    for (options, said) in [
        (
            vec!["--cause", "no_such_function"],
            "no function of that name",
        ),
        (vec!["--peak", "99"], "no such peak"),
        (vec!["--budget", "0%"], "percentage"),
        (vec!["-p", "1", "--cause", "parse"], "darc: "),
    ] {
        let mut arguments = vec!["prove", file];
        arguments.extend(options);
        let refused = run_darc(&arguments);
        assert_ne!(refused.code(), 0, "{refused:#?}");
        assert!(refused.stderr.contains(said), "{refused:#?}");
    }
    let of_go = Target::start("go_like", Opt::O2, &[]);
    let refused = run_darc(&["prove", file, "-p", &of_go.pid().to_string()]);
    assert!(
        refused.stderr.contains("goroutines cannot be delayed yet"),
        "{refused:#?}"
    );
    of_go.finish_like_native(&darc_testprogs::program("go_like", Opt::O2), &[]);
    let path = darc_testprogs::program("proven", Opt::O2);
    target.finish_like_native(&path, &[]);
    let gone = run_darc(&["prove", file]);
    assert!(
        gone.stderr.contains("no longer runs; name one with -p"),
        "{gone:#?}"
    );
}
