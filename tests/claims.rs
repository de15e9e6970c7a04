//! Who measures a process: one darc at a time, wherever it runs, and no stranger has a say in it.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use darc_testprogs::{Opt, program};
use darc_tracer::identity::Identity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Running, Target, Task, darc, execute, not_tested, run_darc, wait_until};
use crate::report::Report;
use crate::untouched::{ProcessState, is_probed};

/// An analysis with these goes on until it is told to end.
const ENDLESS: [&str; 6] = [
    "attach",
    "--f0",
    "serve",
    "--decision-ops",
    "1000000000",
    "-q",
];

/// Why something cannot be tried here; it is said where the test's output goes.
fn skip(why: &str) {
    not_tested(why);
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A stranger who has a name by which darcs know who measures a process.
struct Stranger(Target);

impl Stranger {
    fn squats(mode: &str, of: i32) -> Stranger {
        let identity = Identity::of(of).expect("it lives").to_string();
        let name = match (mode, identity.split_once('-')) {
            // Of other processes in its namespace.
            ("many", Some((namespace, _))) => format!("darc/measure/{namespace}-"),
            _ => format!("darc/measure/{identity}/stranger"),
        };
        let program = program("squats_names", Opt::O2);
        Stranger(Target::start_command(
            Command::new(program).arg(mode).arg(name),
        ))
    }
}

#[test]
fn strangers_can_take_no_claim_and_stall_nobody() {
    if !is_root() {
        return skip("a stranger is another user, whom only root can be");
    }
    let path = program("two_peaks", Opt::O2);
    let target = Target::start("two_peaks", Opt::O2, &["brisk"]);
    let pid = target.pid().to_string();
    let strangers = ["bound", "full", "says", "drip"].map(|mode| {
        let first = Stranger::squats(mode, target.pid());
        let refused = run_darc(&["status", "-p", &pid]);
        // Whose name it is that has no room for who asks cannot be known.
        let said = match mode {
            "full" => "cannot be heard",
            _ => "no darc measures it",
        };
        assert!(refused.failure(3).contains(said), "{mode}: {refused:#?}");
        let all = execute(&mut darc(&["status"]));
        assert!(!all.stdout.contains("schema"), "{mode}: {all:#?}");
        let options = ["--start-ops", "20", "--decision-ops", "3"];
        let analysis = Task::new("jump", "serve")
            .options(&options)
            .attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "{mode}: {analysis:#?}");
        let Stranger(squatter) = first;
        assert_eq!(squatter.finish().status.code(), Some(0));
        mode
    });
    assert_eq!(strangers.len(), 4);
    target.finish_like_native(&path, &["brisk"]);
}

/// Whoever has thousands of names costs who asks a moment, not one for each process and name.
#[test]
fn thousands_of_names_stall_nobody() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let _many = Stranger::squats("many", target.pid());
    let mut command = darc(&ENDLESS);
    let pid = target.pid().to_string();
    let analysis = Running::start(command.args(["-o", "/dev/null", "-p", &pid]));
    wait_until("probes", || is_probed(target.pid()));
    let begun = Instant::now();
    let all = execute(&mut darc(&["status"]));
    assert!(all.stdout.contains("Latency of serve"), "{all:#?}");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    analysis.signal(Signal::SIGINT);
    assert_eq!(analysis.finish().code(), 0);
}

/// A target in a pid namespace of its own, where it has the number 1.
struct Boxed {
    target: Target,
    /// Its number outside.
    outside: i32,
}

impl Boxed {
    /// `None` where there can be no such namespaces, which is said.
    fn start() -> Option<Boxed> {
        let unshare = |program: &str| {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc", program]);
            command
        };
        let works = unshare("true").stderr(Stdio::null()).status();
        if !works.is_ok_and(|status| status.success()) {
            skip("unshare(1) makes no pid namespace here");
            return None;
        }
        let path = program("two_peaks", Opt::O2);
        let path = path.to_str().expect("it is ours");
        let target = Target::start_command(unshare(path).arg("wait"));
        let outside = only_child(target.pid()).expect("unshare waits for it");
        Some(Boxed { target, outside })
    }

    /// darc inside, and with `apart` in a network namespace of its own.
    fn darc(&self, apart: bool, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.outside.to_string(), "--pid", "--mount"]);
        if apart {
            command.args(["unshare", "--net"]);
        }
        command.arg(env!("CARGO_BIN_EXE_darc")).args(args);
        command.stdin(Stdio::null());
        command
    }
}

fn only_child(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Interrupts the darc that a command has started.
fn interrupt(command: &Running) {
    let mut pid = command.pid();
    let is_darc = |pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == "darc")
    };
    while !is_darc(pid) {
        pid = only_child(pid).expect("darc is below it");
    }
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("it runs");
}

#[test]
fn processes_of_one_number_in_two_containers_are_measured_at_once() {
    let Some(one) = Boxed::start() else { return };
    let other = Boxed::start().expect("as before");
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let analyses = [("one", &one), ("other", &other)].map(|(name, boxed)| {
        let output = folder.path().join(name);
        let mut command = boxed.darc(false, &ENDLESS);
        command.args(["-p", "1", "--format", "json", "-o"]);
        let analysis = Running::start(command.arg(&output));
        wait_until("probes", || is_probed(boxed.outside));
        (analysis, output)
    });
    for (analysis, output) in analyses {
        interrupt(&analysis);
        let ended = analysis.finish();
        assert_eq!(ended.code(), 0, "{ended:#?}");
        assert!(Report::read(&output, &ended).ops() > 0);
    }
    let path = program("two_peaks", Opt::O2);
    one.target.finish_like_native(&path, &[]);
    other.target.finish_like_native(&path, &[]);
}

#[test]
fn a_process_with_two_numbers_is_measured_once() {
    let Some(boxed) = Boxed::start() else { return };
    let outside = boxed.outside.to_string();
    let before = ProcessState::of(boxed.outside);
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    // The names by which darcs know of each other are those of one network namespace.
    for apart in [false, true] {
        if apart && !is_root() {
            skip("only root makes a network namespace here");
            continue;
        }
        let output = folder.path().join("inside");
        let mut command = boxed.darc(apart, &ENDLESS);
        command.args(["-p", "1", "--format", "json", "-o"]);
        let analysis = Running::start(command.arg(&output));
        wait_until("probes", || is_probed(boxed.outside));

        let mut refused = vec![run_darc(&["cleanup", "-p", &outside])];
        for command in ["attach", "profile", "watch"] {
            let mut second = darc(&[command, "-p", &outside]);
            let f0: &[&str] = match command {
                "attach" => &["--f0", "serve", "-o", "/dev/null"],
                _ => &["serve"],
            };
            refused.push(execute(second.args(f0)));
        }
        for refused in refused {
            let line = refused.failure(3);
            let said = match apart {
                false => "already measured by process",
                true => "another darc measures it",
            };
            // In the moment in which its probes change it has a tracer, too.
            let is_said = [said, "already traced by process"].map(|said| line.contains(said));
            assert!(is_said.contains(&true), "{refused:#?}");
        }
        assert!(is_probed(boxed.outside), "nobody has taken its probes away");

        interrupt(&analysis);
        let ended = analysis.finish();
        assert_eq!(ended.code(), 0, "{ended:#?}");
        let report = Report::read(&output, &ended);
        assert!(report.ops() > 0);
        before.check_unchanged(boxed.outside);
    }
    boxed
        .target
        .finish_like_native(&program("two_peaks", Opt::O2), &[]);
}

/// What a darc has left that was killed is anybody's to clear, from wherever.
#[test]
fn what_a_killed_darc_left_in_a_container_is_cleared_from_outside() {
    let Some(boxed) = Boxed::start() else { return };
    let before = ProcessState::of(boxed.outside);
    let mut command = boxed.darc(is_root(), &ENDLESS);
    let analysis = Running::start(command.args(["-p", "1", "-o", "/dev/null"]));
    wait_until("probes", || is_probed(boxed.outside));
    let mut pid = analysis.pid();
    while let Some(below) = only_child(pid) {
        pid = below;
    }
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    analysis.finish();
    let cleared = run_darc(&["cleanup", "-p", &boxed.outside.to_string()]);
    assert_eq!(cleared.code(), 0, "{cleared:#?}");
    assert!(cleared.stdout.contains("file's again"), "{cleared:#?}");
    before.check_unchanged_but_for_memory(boxed.outside);
    boxed
        .target
        .finish_like_native(&program("two_peaks", Opt::O2), &[]);
}
