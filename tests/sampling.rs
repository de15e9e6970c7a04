//! `darc sample`: where programs spend their time, on SLEEPY's benchmarks and on processes that come and go.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{
    Finished, Running, Target, copy_program, darc, execute, levels, measured, native, not_tested,
    run_darc, wait_until,
};

/// Whether the kernel lets this user sample; a container may forbid it.
fn permitted() -> bool {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let tried = run_darc(&["sample", "--", "/bin/true"]);
        (tried.code() == 3).then_some(tried.stderr)
    });
    REFUSED.iter().for_each(not_tested);
    REFUSED.is_none()
}

/// Samples a program of known behaviour until it ends.
fn sampled(name: &str, opt: Opt, args: &[&str]) -> (Finished, Value) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let output = folder.path().join("samples.json");
    let path = program(name, opt);
    let mut command = darc(&["sample", "--format", "json", "-o"]);
    let finished = execute(command.arg(&output).arg("--").arg(path).args(args));
    let json = fs::read(&output).unwrap_or_else(|error| panic!("{error}: {finished:#?}"));
    (finished, serde_json::from_slice(&json).expect("JSON"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn function<'a>(profile: &'a Value, name: &str) -> &'a Value {
    let functions = profile["functions"].as_array().expect("a list");
    let found = functions.iter().find(|function| function["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {profile:#}"))
}

/// What adds up must add up, at every level.
fn check_sums(profile: &Value) {
    let sum = |list: &Value, key: &str| -> u64 {
        list.as_array()
            .expect("a list")
            .iter()
            .map(|entry| number(&entry[key]))
            .sum()
    };
    let samples = number(&profile["samples"]);
    assert_eq!(
        number(&profile["user"]) + number(&profile["kernel"]),
        samples
    );
    assert_eq!(sum(&profile["processes"], "samples"), samples);
    assert_eq!(sum(&profile["programs"], "samples"), samples);
    assert_eq!(sum(&profile["functions"], "own"), samples);
    for function in profile["functions"].as_array().expect("a list") {
        assert_eq!(
            sum(&function["instructions"], "samples"),
            number(&function["own"])
        );
        assert!(number(&function["total"]) >= number(&function["own"]));
        assert!(number(&function["total"]) <= samples);
    }
    for process in profile["processes"].as_array().expect("a list") {
        assert_eq!(
            sum(&process["functions"], "own"),
            number(&process["samples"])
        );
    }
}

/// SLEEPY, section 3.2.1: a simple loop is a few instructions, all of them where the disassembly has one.
#[test]
fn a_loop_is_a_few_instructions() {
    if !permitted() {
        return;
    }
    for opt in Opt::ALL {
        let (finished, profile) = sampled("loop", opt, &[]);
        assert_eq!(finished.code(), 0, "{finished:#?}");
        assert!(finished.stdout.starts_with("checksum="), "{finished:#?}");
        check_sums(&profile);
        let function = function(&profile, "sum_to");
        let own = number(&function["own"]);
        // The loop that measures how long a turn takes is in main.
        assert!(own * 10 >= number(&profile["user"]) * 8, "{profile:#}");
        let listing = function["listing"].as_array().expect("it is hot");
        let listed: Vec<u64> = listing
            .iter()
            .filter(|line| line["kind"] == "instruction")
            .map(|line| number(&line["samples"]))
            .collect();
        let hot = listed
            .iter()
            .filter(|&&samples| samples * 50 >= own)
            .count();
        assert!((1..=8).contains(&hot), "{function:#}");
        assert!(
            listed.iter().sum::<u64>() * 100 >= own * 95,
            "off the instructions: {function:#}"
        );
        assert!(
            function["lines"][0]["file"]
                .as_str()
                .is_some_and(|file| file.ends_with("loop.c"))
        );
    }
}

/// SLEEPY, section 3.2.2: nearly all samples are in the called function, and its caller is known.
#[test]
fn samples_of_a_called_function_are_its_own() {
    if !permitted() {
        return;
    }
    let (_, profile) = sampled("call", Opt::O0, &[]);
    check_sums(&profile);
    let (inner, outer) = (function(&profile, "inner"), function(&profile, "outer"));
    let own = number(&inner["own"]);
    assert!(own * 100 >= number(&profile["user"]) * 90, "{profile:#}");
    assert!(number(&outer["own"]) * 20 < own, "{outer:#}");
    // main calls inner too, to see how fast the machine is.
    assert!(number(&outer["total"]) * 100 >= own * 80, "{outer:#}");
}

/// SLEEPY, section 3.3: by function; find_index takes the most, the outer insert next to nothing.
#[test]
fn a_tree_by_function() {
    if !permitted() {
        return;
    }
    let (_, profile) = sampled("btree", Opt::O0, &["1000000"]);
    check_sums(&profile);
    let user = number(&profile["user"]);
    assert_eq!(profile["functions"][0]["name"], "find_index", "{profile:#}");
    let insert = number(&function(&profile, "insert")["own"]);
    assert!(insert * 20 < user, "{profile:#}");
    let root = function(&profile, "main");
    assert!(
        number(&root["total"]) * 100 >= user * 90,
        "frame pointers lead to main: {root:#}"
    );
}

/// Instances of one program are kept apart, and the exit status of the command is passed on.
#[test]
fn instances_of_a_program_are_kept_apart() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let output = folder.path().join("samples.json");
    let path = program("loop", Opt::O2);
    let script = format!("{0} 200; {0} 200; exit 3", path.display());
    let mut command = darc(&["sample", "--format", "json", "-o"]);
    let finished = execute(command.arg(&output).args(["--", "sh", "-c", &script]));
    assert_eq!(finished.code(), 3, "{finished:#?}");
    let profile: Value =
        serde_json::from_slice(&fs::read(&output).expect("written")).expect("JSON");
    check_sums(&profile);
    let instances: Vec<&Value> = profile["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|process| process["name"] == "loop")
        .collect();
    let mut numbers: Vec<u64> = instances
        .iter()
        .map(|one| number(&one["instance"]))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2], "{profile:#}");
    assert_ne!(instances[0]["pid"], instances[1]["pid"]);
}

#[test]
fn the_commands_end_is_passed_on() {
    if !permitted() {
        return;
    }
    let killed = run_darc(&["sample", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.code(), 128 + 15, "{killed:#?}");
    let missing = run_darc(&["sample", "--", "/no/such/program"]);
    assert!(missing.failure(3).contains("/no/such/program"));
    let written = run_darc(&["sample", "--", "echo", "hello"]);
    assert_eq!(
        written.stdout, "hello\n",
        "stdout is the program's: {written:#?}"
    );
}

/// Processor time that a process has used, in ticks (proc_pid_stat(5), field 14).
fn used(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let after_name = stat.rsplit(')').next().expect("a name");
    after_name
        .split_whitespace()
        .nth(11)
        .expect("utime")
        .parse()
        .expect("a number")
}

/// Waits until darc has events open, and the target has run since for a while.
fn wait_until_sampled(darc: &Running, target: i32) {
    let fds = format!("/proc/{}/fd", darc.pid());
    let maps = format!("/proc/{}/maps", darc.pid());
    let is_event = |path: &Path| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("perf_event"))
    };
    wait_until("perf events", || {
        let links = fs::read_dir(&fds).expect("darc runs").flatten();
        let events = links.filter(|link| is_event(&link.path())).count();
        let maps = fs::read_to_string(&maps).expect("darc runs");
        let rings = maps
            .lines()
            .filter(|line| line.contains("perf_event"))
            .count();
        rings > 0 && events >= 2 * rings
    });
    let before = used(target);
    wait_until("the target's work", || used(target) > before + 20);
}

/// A running process with several threads, and darc that samples it.
fn sampled_threads() -> (Target, Running) {
    let target = Target::start("four_threads", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let sampling = Running::start(&mut darc(&["sample", "--format", "json", "-p", &pid]));
    wait_until_sampled(&sampling, target.pid());
    (target, sampling)
}

/// A running process with several threads; Ctrl-C ends the sampling, not the process.
#[test]
fn a_running_process_until_interrupted() {
    if !permitted() {
        return;
    }
    let (target, sampling) = sampled_threads();
    sampling.signal(Signal::SIGINT);
    let finished = sampling.finish();
    assert_eq!(finished.code(), 0, "{finished:#?}");
    let profile: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    check_sums(&profile);
    assert_eq!(
        profile["processes"].as_array().map(Vec::len),
        Some(1),
        "{profile:#}"
    );
    assert_eq!(profile["processes"][0]["pid"], target.pid());
    assert!(number(&profile["samples"]) > 0);
    target.finish_like_native(&program("four_threads", Opt::O2), &[]);
}

/// What runs while sampling is switched off has no samples.
#[test]
fn switched_off_and_on() {
    if !permitted() {
        return;
    }
    let (target, sampling) = sampled_threads();
    let works = |ticks| {
        let before = used(target.pid());
        wait_until("the target's work", || used(target.pid()) > before + ticks);
    };
    sampling.signal(Signal::SIGUSR2);
    works(200);
    sampling.signal(Signal::SIGUSR1);
    works(50);
    sampling.signal(Signal::SIGINT);
    let finished = sampling.finish();
    let profile: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    check_sums(&profile);
    // 999 samples a second, of which 100 are ticks.
    let samples = number(&profile["samples"]);
    let all = 10 * used(target.pid());
    assert!(samples > 0 && samples < all - 1000, "{samples} of {all}");
    target.finish_like_native(&program("four_threads", Opt::O2), &[]);
}

/// Sampling ends when the process does.
#[test]
fn a_running_process_until_its_end() {
    if !permitted() {
        return;
    }
    let target = Target::start("loop", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let sampling = Running::start(&mut darc(&["sample", "--format", "folded", "-p", &pid]));
    wait_until_sampled(&sampling, target.pid());
    target.finish();
    let finished = sampling.finish();
    assert_eq!(finished.code(), 0, "{finished:#?}");
    let line = finished.stdout.lines().find(|line| line.contains("sum_to"));
    assert!(
        line.is_some_and(|line| line.starts_with("loop #1;")),
        "{finished:#?}"
    );
}

/// The whole system, and a user's processes: a target that runs is among them.
#[test]
fn the_system_and_a_user() {
    if !permitted() {
        return;
    }
    let uid = nix::unistd::Uid::current().to_string();
    for what in [&["-a"][..], &["-u", &uid]] {
        let target = Target::start("loop", Opt::O2, &[]);
        let sampling = Running::start(darc(&["sample", "--format", "json"]).args(what));
        wait_until_sampled(&sampling, target.pid());
        sampling.signal(Signal::SIGINT);
        let finished = sampling.finish();
        if finished.code() == 3 {
            assert!(
                finished.stderr.contains("perf_event_paranoid"),
                "{finished:#?}"
            );
            continue;
        }
        let profile: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        check_sums(&profile);
        let processes = profile["processes"].as_array().expect("a list");
        assert!(
            processes.iter().any(|one| one["pid"] == target.pid()),
            "{what:?}: {profile:#}"
        );
    }
}

#[test]
fn what_cannot_be_sampled() {
    for (line, code) in [
        (&["sample"][..], 2),
        (&["sample", "-p", "0"], 2),
        (&["sample", "-a", "-p", "1"], 2),
        (&["sample", "--rate", "0", "-a"], 2),
        (&["sample", "--rate", "50001", "-a"], 2),
        (&["sample", "--format", "magic", "-a"], 2),
        (&["sample", "-u", "no such user"], 4),
        (&["sample", "-p", "4194304"], 3),
        (&["sample", "-o", "/no/such/folder/x", "--", "/bin/true"], 5),
    ] {
        let finished = run_darc(line);
        let message = finished.failure(code);
        assert!(
            message.contains("; ") || message.contains("-"),
            "what to do: {message}"
        );
    }
}

/// A user without privileges: what is refused is named, and what is allowed works.
#[test]
fn without_privileges() {
    use std::os::unix::process::CommandExt;
    if !permitted() || !nix::unistd::Uid::current().is_root() {
        return;
    }
    // Where another user can execute them.
    let folder = tempfile::Builder::new()
        .tempdir_in("/tmp")
        .expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("it is ours");
    let copy = folder.path().join("darc");
    copy_program(env!("CARGO_BIN_EXE_darc"), &copy);
    let prog = folder.path().join("loop");
    copy_program(program("loop", Opt::O2), &prog);
    const NOBODY: u32 = 65534;
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        execute(
            command
                .args(arguments)
                .uid(NOBODY)
                .gid(NOBODY)
                .current_dir("/"),
        )
    };
    let own = as_nobody(&[
        "sample",
        "--format",
        "folded",
        "--",
        prog.to_str().expect("text"),
        "100",
    ]);
    if own.code() == 0 {
        assert!(own.stderr.contains("sum_to"), "{own:#?}");
    } else {
        assert!(own.failure(3).contains("perf_event_paranoid"));
    }
    let target = Target::start("loop", Opt::O2, &[]);
    let foreign = as_nobody(&["sample", "-p", &target.pid().to_string()]);
    let message = foreign.failure(3);
    assert!(
        message.contains("root") && message.contains("CAP_PERFMON"),
        "{message}"
    );
}

/// Slow ops rebuild and fast ones do not, so samples of the fast peak are never there; f0's callees that no peak runs
/// longer than the other are in both.
#[test]
fn samples_in_the_ops_of_one_peak() {
    if !permitted() {
        return;
    }
    for &opt in levels() {
        let samples = |peak: &str, hot: &str| {
            let folder = tempfile::tempdir().expect("a folder for temporary files");
            let output = folder.path().join("samples.json");
            let target = Target::start("two_peaks", opt, &["2000"]);
            let pid = target.pid().to_string();
            let finished = execute(
                darc(&["sample", "-p", &pid, "--f0", "serve", "--during-peak", peak])
                    .args(["--format", "json", "-d", "3s", "-o"])
                    .arg(&output),
            );
            assert_eq!(finished.code(), 0, "{finished:#?}");
            target.finish_like_native(&program("two_peaks", opt), &["2000"]);
            let json = fs::read(&output).expect("it was written");
            let profile: Value = serde_json::from_slice(&json).expect("JSON");
            check_sums(&profile);
            let ops = &profile["during"];
            assert_eq!(ops["f0"], "serve");
            assert!(number(&ops["ops"]) < number(&ops["all_ops"]), "{profile:#}");
            assert!(number(&ops["in_other_ops"]) > 0, "{profile:#}");
            let own = number(&function(&profile, hot)["own"]);
            assert!(own * 2 > number(&profile["user"]), "{profile:#}");
            profile
        };
        // Beside others the ops that these keep from running may be a peak, too.
        let during = |peak: &str, hot: &str| {
            let profile = RefCell::new(Value::Null);
            measured(|| {
                *profile.borrow_mut() = samples(peak, hot);
                Ok(())
            });
            profile.into_inner()
        };
        during("2", "rehash");
        let fast = during("1", "lookup");
        let functions = fast["functions"].as_array().expect("a list");
        let strange = functions
            .iter()
            .find(|function| function["name"] == "rehash");
        let strange = strange.map_or(0, |function| number(&function["total"]));
        assert!(strange <= number(&fast["during"]["at_edges"]), "{fast:#}");
    }
}

/// What cannot be is said in one line, and the program runs as ever.
#[test]
fn peaks_that_are_not_there() {
    if !permitted() {
        return;
    }
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let tried = |f0: &str, peak: &str, code: i32| {
        let command = [
            "sample",
            "-p",
            &pid,
            "-d",
            "700ms",
            "--f0",
            f0,
            "--during-peak",
            peak,
        ];
        let finished = run_darc(&command);
        finished.failure(code).to_owned()
    };
    let line = tried("serve", "9", 4);
    assert!(line.contains("not among its peaks (1: "), "{line}");
    let line = tried("no_such_function", "1", 4);
    assert!(line.contains("no_such_function: not found"), "{line}");
    let line = tried("serve", "0", 2);
    assert!(line.contains("--during-peak"), "{line}");
    run_darc(&["sample", "-a", "--f0", "serve", "--during-peak", "1"]).failure(2);
    run_darc(&["sample", "-p", &pid, "--during-peak", "1"]).failure(2);
    target.finish_like_native(&program("two_peaks", Opt::O2), &[]);
}

/// A program that darc has started is waited for, whatever became of the samples.
#[test]
fn a_started_program_is_waited_for() {
    if !permitted() {
        return;
    }
    let path = program("two_peaks", Opt::O2);
    let as_ever = native(&path, &["2000"]).stdout;
    let sample = |arguments: &[&str]| {
        let command = ["sample", "-d", "300ms"];
        let mut command = darc(&command);
        execute(command.args(arguments).arg("--").arg(&path).arg("2000"))
    };
    let finished = sample(&["--f0", "serve", "--during-peak", "9"]);
    // A busy machine may let the program sleep for as long as darc looks.
    let said = ["not among its peaks", "no call of f0 completed"];
    assert!(
        said.iter().any(|said| finished.stderr.contains(said)),
        "{finished:#?}"
    );
    assert_eq!((finished.code(), &finished.stdout), (0, &as_ever));
    let finished = sample(&["-o", "/dev/full"]);
    assert!(finished.stderr.contains("/dev/full"), "{finished:#?}");
    assert_eq!((finished.code(), &finished.stdout), (0, &as_ever));
}

/// What the person should know stands in the document too, and what a sample costs.
#[test]
fn a_document_warns() {
    if !permitted() {
        return;
    }
    let mut command = Command::new("sleep");
    let mut sleeper = command.arg("100").spawn().expect("it starts");
    let pid = sleeper.id().to_string();
    let finished = run_darc(&["sample", "--format", "json", "-d", "100ms", "-p", &pid]);
    sleeper.kill().expect("it is our child");
    sleeper.wait().expect("it is our child");
    assert_eq!(finished.code(), 0, "{finished:#?}");
    let profile: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(profile["samples"], 0);
    let warnings = profile["warnings"].as_array().expect("a list");
    let told = |warning: &Value| {
        let text = warning.as_str().expect("text");
        text.starts_with("no samples") && finished.stderr.contains(text)
    };
    assert!(warnings.iter().any(told), "{profile:#}");
    // A machine that is too busy measures no cost.
    let cost = &profile["sample_cost_ns"];
    assert!(cost.is_null() || cost.as_f64() > Some(0.0), "{cost}");
}
