//! Again and again: many attaches to one busy process, and a darc that is killed at any moment.
//!
//! Each test has a short form, which runs with the others, and a long one:
//!
//! ```sh
//! cargo test --test integration -- --ignored --nocapture soak
//! ```

use std::fs;
use std::thread;
use std::time::Duration;

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use crate::harness::{Target, Task, run_darc, wait_until};
use crate::untouched::{ProcessState, check_released, check_text, process_state};

const PROGRAM: &str = "four_threads";
const ARGUMENTS: &[&str] = &["brisk"];

/// Numbers that look random and are the same each time (Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The resident memory of a process that is not of files, in KiB: what a leak would add to.
fn anonymous_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .expect("Linux 4.5 or later");
    let number = line.trim().split(' ').next().expect("a number");
    number.parse().expect("a number")
}

/// How many lines `/proc/PID/maps` has, files and threads there are.
fn counts(pid: i32) -> [usize; 3] {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let entries = |folder| {
        fs::read_dir(format!("/proc/{pid}/{folder}"))
            .expect("it is ours")
            .count()
    };
    [maps.lines().count(), entries("fd"), entries("task")]
}

/// What may be left of mappings when a thread was in a stub at the last moment: two of data and an arena
/// for each module, which the next attach takes away.
const LEFT: usize = 6;

/// Checks that nothing has grown since `before` was taken.
fn check_growth(pid: i32, before: ([usize; 3], u64), round: usize) {
    /// Pages of code that became copies, and the stacks of the threads.
    const SOME_KIB: u64 = 512;
    let ([maps, files, tasks], kib) = before;
    let [maps_now, files_now, tasks_now] = counts(pid);
    assert!(
        maps_now <= maps + LEFT && files_now == files && tasks_now == tasks,
        "round {round}: {maps} mappings, {files} files, {tasks} threads before; now {maps_now}, {files_now}, {tasks_now}"
    );
    let kib_now = anonymous_kib(pid);
    assert!(
        kib_now <= kib + SOME_KIB,
        "round {round}: {kib} KiB before, {kib_now} KiB now"
    );
}

/// Starts the target, and waits until all of its threads are there.
fn start() -> Target {
    const THREADS: usize = 5;
    let target = Target::start(PROGRAM, Opt::O2, ARGUMENTS);
    wait_until("the threads, and the main thread waiting for them", || {
        counts(target.pid())[2] == THREADS && process_state(target.pid()) == Some('S')
    });
    target
}

/// Attaches, finds something, detaches.
fn attach_again_and_again(rounds: usize) {
    let target = start();
    let state = ProcessState::of(target.pid());
    let mut before = None;
    let mut left_behind = 0;
    for round in 0..rounds {
        let options = ["--start-ops", "20", "--decision-ops", "3", "-d", "20s"];
        let task = Task::new("jump", "serve").options(&options);
        let analysis = task.attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "round {round}: {analysis:#?}");
        assert!(analysis.report().ops() > 0, "round {round}: {analysis:#?}");
        assert_eq!(
            analysis.report().at("/probes/bytes_differing_after_detach"),
            0
        );
        check_released(target.pid());
        check_text(target.pid());
        left_behind += usize::from(state != ProcessState::of(target.pid()));
        // The first rounds touch what later ones touch again.
        match before {
            Some(before) => check_growth(target.pid(), before, round),
            None if round == 2 => {
                before = Some((counts(target.pid()), anonymous_kib(target.pid())))
            }
            None => {}
        }
    }
    let cleaned = run_darc(&["cleanup", "-p", &target.pid().to_string()]);
    assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
    state.check_unchanged(target.pid());
    eprintln!(
        "{rounds} attaches: memory was left behind {left_behind} times, and taken away later"
    );
    target.finish_like_native(&program(PROGRAM, Opt::O2), ARGUMENTS);
}

/// Kills darc at a random moment, each time the same target; what it left is cleared by `darc cleanup` or
/// by the next attach.
fn kill_again_and_again(rounds: usize) {
    let target = start();
    let state = ProcessState::of(target.pid());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut found_probes = 0;
    for round in 0..rounds {
        let options = ["--start-ops", "20", "--decision-ops", "40"];
        let task = Task::new("jump", "serve").options(&options);
        let (darc, _output, _folder) = task.start_attach(target.pid());
        // Not to wait for something: any moment will do.
        thread::sleep(Duration::from_micros(random.below(400_000)));
        darc.signal(Signal::SIGKILL);
        darc.finish();
        found_probes += usize::from(crate::untouched::is_probed(target.pid()));
        if random.below(2) == 0 {
            let cleaned = run_darc(&["cleanup", "-p", &target.pid().to_string()]);
            assert_eq!(cleaned.code(), 0, "round {round}: {cleaned:#?}");
            check_released(target.pid());
            check_text(target.pid());
        }
    }
    let analysis = Task::new("jump", "serve").attach(target.pid());
    assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
    let cleaned = run_darc(&["cleanup", "-p", &target.pid().to_string()]);
    assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
    state.check_unchanged(target.pid());
    eprintln!("{rounds} kills, {found_probes} of them with probes in place");
    target.finish_like_native(&program(PROGRAM, Opt::O2), ARGUMENTS);
}

#[test]
fn four_attaches() {
    attach_again_and_again(4);
}

#[test]
#[ignore = "takes some minutes: docs/performance.md"]
fn soak_a_thousand_attaches() {
    attach_again_and_again(1000);
}

#[test]
fn eight_kills() {
    kill_again_and_again(8);
}

#[test]
#[ignore = "takes some minutes: docs/performance.md"]
fn soak_a_hundred_kills() {
    kill_again_and_again(100);
}
