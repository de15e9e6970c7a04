use super::*;
use crate::fixture;
use crate::model::{InlinedEntry, OffCpuEntry, WaitsEntry};

#[test]
fn of_a_long_command_the_beginning_is_shown() {
    let mut process = fixture::report(1_000).target;
    process.command = vec!["mogrify".to_owned(); 500];
    let shown = target(&process);
    assert!(shown.starts_with("mogrify mogrify "), "{shown}");
    assert!(shown.chars().count() < 2 * COMMAND && shown.contains('…'));
}

#[test]
fn a_function_that_calls_itself_again_and_again_is_named_once() {
    let told = |names: &[&str]| {
        path(
            &names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let wrapped = ["main", "openat", "openat"];
    assert_eq!(told(&wrapped), "main → openat → openat");
    let deep = ["main", "descend", "descend", "descend", "serve"];
    assert_eq!(told(&deep), "main → descend (3 times) → serve");
}

#[test]
fn what_became_of_futures_is_said_as_far_as_there_were_any() {
    let none = Futures::default();
    assert_eq!(super::futures(&none), "none was polled");
    let some = Futures {
        polls: 7,
        dropped: 2,
        ..none
    };
    assert_eq!(
        super::futures(&some),
        "7 polls, 2 futures dropped while they waited, or left by a panic"
    );
    let some = Futures {
        coroutines: true,
        lost: 1,
        ..none
    };
    assert_eq!(
        super::futures(&some),
        "1 of which resumes may have gone unseen"
    );
}

#[test]
fn a_system_call_that_was_not_measured_may_take_the_time() {
    let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
    (cause.kind, cause.stop) = (Kind::Function, StopReason::SelfTime);
    cause.unmeasured = Some(crate::model::UnmeasuredEntry {
        sites: 1,
        of_sites: 2,
        callees: vec!["clone3".to_owned()],
    });
    let said = what(&cause);
    assert!(
        said.ends_with(", or its system call clone3 does, which cannot be measured apart"),
        "{said}"
    );
}

#[test]
fn an_exception_on_its_way_is_told_with_what_runs_before_it_is_caught() {
    let mut cause = fixture::report(1_000).peaks.remove(1).root_causes.remove(0);
    (cause.kind, cause.stop) = (Kind::Function, StopReason::NoCalls);
    let mut said = |last: &str| {
        cause.path = vec!["serve".to_owned(), last.to_owned()];
        what(&cause)
    };
    assert_eq!(
        said("_Unwind_RaiseException"),
        "an exception (a panic) was on its way: the time is in _Unwind_RaiseException, or in cleanups that ran before it was caught"
    );
    assert!(said("_Unwind_Find_FDE").ends_with("or in what that calls"));
    assert!(said("unwind").contains("takes the time itself"));
}

#[test]
fn who_was_ready_did_not_wait_for_the_system_call() {
    let mut peak = fixture::report(1_000).peaks.remove(1);
    peak.off_cpu = Some(OffCpuEntry {
        ops: 100,
        time: 100_000,
        ..OffCpuEntry::default()
    });
    let mut cause = peak.root_causes.remove(0);
    (cause.kind, cause.stop) = (Kind::Syscall, StopReason::SelfTime);
    (cause.share_of_time, cause.known_from) = (0.6, 20);
    let mut said = |blocked, runnable| {
        cause.waits = Some(WaitsEntry {
            count: 100,
            blocked,
            runnable,
            ..WaitsEntry::default()
        });
        in_words(&cause, &peak)
    };
    let ready = "but for most of its wait the thread was ready to run but not running";
    assert!(
        said(5_000, 50_000).contains(ready),
        "{}",
        said(5_000, 50_000)
    );
    assert!(!said(50_000, 5_000).contains(ready));
    assert!(!said(0, 0).contains(ready));
    assert!(!said(10, 500).contains(ready), "hardly a wait");
    // Of how many ops these few are is not known, but all of the peak's time was so.
    for (of_all, is_told) in [(650, false), (750, true)] {
        let mut peak = peak.clone();
        peak.off_cpu.as_mut().unwrap().runnable = of_all * 100;
        let mut cause = cause.clone();
        cause.waits = Some(WaitsEntry {
            count: 100,
            blocked: 10,
            runnable: 500,
            ..WaitsEntry::default()
        });
        assert_eq!(was_ready(&cause, &peak), is_told, "{of_all}");
    }
}

/// What is said of a thread that was ready for 100 cycles, in which these ran for so long.
fn said_of(cause: &mut RootCauseEntry, others: &[(&str, u64)]) -> String {
    let other = |&(name, time): &(&str, u64)| OtherEntry {
        name: name.to_owned(),
        time,
        ..OtherEntry::default()
    };
    cause.waits = Some(WaitsEntry {
        preempted: 100,
        others: others.iter().map(other).collect(),
        ..WaitsEntry::default()
    });
    what(cause)
}

#[test]
fn another_thread_ran_only_where_one_is_known() {
    let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
    (cause.kind, cause.stop) = (Kind::Preemption, StopReason::NoCalls);
    let mut said = |others: &[(&str, u64)]| said_of(&mut cause, others);
    let another = "the thread was ready, but another one ran";
    let unknown = "the thread was ready, but did not run";
    let idle = assemble::IDLE;
    assert_eq!(said(&[("rustc", 30), ("cc", 40), (idle, 30)]), another);
    assert_eq!(
        said(&[("rustc", 10), (idle, 80)]),
        "the thread was ready, but none ran: the processor was idle (a limit of CPU time, or the hypervisor)"
    );
    assert_eq!(said(&[]), unknown);
    assert_eq!(said(&[("rustc", 40)]), unknown);
    cause.waits = None;
    assert_eq!(what(&cause), unknown);
    // Whoever ran meanwhile.
    cause.reason = Some("a limit of CPU time struck 9 times".to_owned());
    let limited = "the thread was ready, but did not run: a limit of CPU time struck 9 times";
    assert_eq!(said_of(&mut cause, &[("rustc", 100)]), limited);
}

#[test]
fn whose_doing_it_was_that_a_goroutine_did_not_run_is_told_where_it_was_mostly_one() {
    let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
    (cause.kind, cause.stop) = (Kind::Preemption, StopReason::NoCalls);
    cause.path.push(goroutines::NOT_RUNNING.to_owned());
    let mut said = |others: &[(&str, u64)]| said_of(&mut cause, others);
    let [idle, untold] = [assemble::IDLE, assemble::UNTOLD];
    for (others, words) in [
        (&[][..], "the run-time had others run, or none"),
        (&[("rustc", 30)], "the run-time had others run, or none"),
        (&[("rustc", 30), (untold, 20)], "now the run-time"),
        (&[("rustc", 60)], "the kernel ran another thread"),
        (&[(idle, 90)], "the processor was idle"),
        (&[(untold, 100)], "the kernel did not run the thread"),
        (
            &[("rustc", 30), (idle, 30), (untold, 30)],
            "the kernel did not run the thread",
        ),
    ] {
        assert!(said(others).contains(words), "{others:?}: {}", said(others));
    }
    cause.waits = None;
    assert_eq!(what(&cause), "the goroutine was ready, but did not run");
}

#[test]
fn what_was_inlined_may_take_the_time_unless_it_is_known_that_nothing_was() {
    let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
    (cause.kind, cause.stop) = (Kind::Function, StopReason::NoCalls);
    cause.path = vec!["handle".to_owned()];
    let mut said = |inlined: Option<&[&str]>| {
        cause.inlined = inlined.map(|names| InlinedEntry {
            functions: names.len() as u64,
            names: names.iter().map(|&name| name.to_owned()).collect(),
        });
        what(&cause)
    };
    assert_eq!(
        said(Some(&[])),
        "handle takes the time itself; it makes no calls"
    );
    assert_eq!(
        said(None),
        "handle takes the time itself, or what was inlined into it does; it makes no calls"
    );
    assert_eq!(
        said(Some(&[
            "crc32", "parse", "render", "put", "get", "log", "end"
        ])),
        "handle takes the time itself, or what was inlined into it does (crc32, parse, render, put, get, 2 more; \
         --blocks after tells which); it makes no calls"
    );
}

#[test]
fn what_was_not_looked_into_is_told() {
    let report = fixture::report(1_000);
    let mut cause = report.peaks[0].root_causes[0].clone();
    let said = |cause: &RootCauseEntry| in_words(cause, &report.peaks[0]);
    assert!(!said(&cause).contains("not looked into"));
    cause.assumed = 0.08;
    let end = ", of which 8.0% at call sites that were not looked into";
    assert!(said(&cause).contains(end), "{}", said(&cause));
}

#[test]
fn shares_are_never_rounded_to_all_or_nothing() {
    let cases = [
        (0.0, "0%"),
        (0.000_01, "<0.01%"),
        (0.004, "0.40%"),
        (0.123, "12.3%"),
        (0.999_9, ">99.9%"),
        (1.0, "100%"),
    ];
    for (share, text) in cases {
        assert_eq!(percent(share), text);
    }
}
