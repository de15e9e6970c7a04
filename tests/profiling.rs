//! `darc profile`: many functions at once, and system calls.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use darc_testprogs::{Opt, program};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Finished, Running, Target, copy_program, darc, execute, native, run_darc};
use crate::libraries::address_in;
use crate::untouched::{ProcessState, check_released, check_text};

/// A set of profiles, checked for what must hold of any.
struct Profiles(Value);

impl Profiles {
    fn read(path: &Path, darc: &Finished) -> Profiles {
        let text = std::fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("no results: {error}; {darc:#?}"));
        let set: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(set["kind"], "profiles");
        assert_eq!(set["bytes_differing_after_detach"], 0);
        let profiles = set["profiles"].as_array().expect("a list");
        let totals = profiles
            .iter()
            .map(|entry| entry["profile"]["total"].as_u64());
        assert!(
            totals.collect::<Vec<_>>().is_sorted_by(|a, b| a >= b),
            "{set:#}"
        );
        for entry in profiles {
            let number = |value: &Value| value.as_u64().expect("a number");
            let buckets = entry["profile"]["buckets"].as_array().expect("a list");
            let sum = |key: &str| {
                buckets
                    .iter()
                    .map(|bucket| number(&bucket[key]))
                    .sum::<u64>()
            };
            let ops = number(&entry["profile"]["ops"]);
            assert_eq!(sum("ops"), ops, "{entry:#}");
            assert_eq!(
                sum("total"),
                number(&entry["profile"]["total"]),
                "{entry:#}"
            );
            let others = ["unfinished", "ended_otherwise", "missed"];
            let others: u64 = others.iter().map(|key| number(&entry[*key])).sum();
            assert_eq!(number(&entry["calls"]), ops + others, "{entry:#}");
            if let Some(segments) = entry["segments"].as_array() {
                let of = |part: &Value| part["buckets"].as_array().expect("a list").clone();
                let parts = segments.iter().flat_map(of);
                let in_segments: u64 = parts.map(|bucket| number(&bucket["ops"])).sum();
                assert_eq!(in_segments, ops, "{entry:#}");
                let begun: u64 = segments.iter().map(|part| number(&part["calls"])).sum();
                assert_eq!(begun, number(&entry["calls"]), "{entry:#}");
            }
        }
        let warnings = set["warnings"].to_string();
        assert!(!warnings.contains("checksum"), "{warnings}");
        Profiles(set)
    }

    fn entry(&self, name: &str) -> &Value {
        let all = self.0["profiles"].as_array().expect("a list");
        all.iter()
            .find(|entry| entry["function"]["name"] == name)
            .unwrap_or_else(|| panic!("no {name} in {:#}", self.0))
    }

    /// Calls that began, and calls that ended otherwise than by returning.
    fn calls(&self, name: &str) -> (u64, u64) {
        let number = |key: &str| self.entry(name)[key].as_u64().expect("a number");
        (number("calls"), number("ended_otherwise"))
    }

    fn names(&self) -> Vec<&str> {
        let all = self.0["profiles"].as_array().expect("a list");
        all.iter()
            .map(|entry| entry["function"]["name"].as_str().expect("text"))
            .collect()
    }

    /// The calls that bursts of the program `counted_calls` make.
    fn check_bursts(&self, rounds: u64) {
        for (name, per_round) in [
            ("round_trip", 1),
            ("inner", 3),
            ("by_pointer", 1),
            ("last", 1),
            ("recurse", 6),
            ("leaves", 1),
        ] {
            let (calls, otherwise) = self.calls(name);
            assert_eq!(calls, per_round * rounds, "{name}: {:#}", self.entry(name));
            assert_eq!(self.entry(name)["missed"], 0, "{name}");
            assert_eq!(
                self.entry(name)["unfinished"],
                if name == "leaves" {
                    rounds / 4 - otherwise
                } else {
                    0
                }
            );
        }
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for temporary files")
}

/// `darc profile` of a program that it starts; the program must be as without darc.
fn profile(options: &[&str], path: &Path, args: &[&str]) -> Profiles {
    let native = native(path, args);
    let folder = folder();
    let output = folder.path().join("profiles.json");
    let mut command = darc(&["profile", "--format", "json", "-o"]);
    command
        .arg(&output)
        .args(options)
        .arg("--")
        .arg(path)
        .args(args);
    let darc = execute(&mut command);
    assert_eq!(darc.stdout, native.stdout, "{path:?} {options:?}");
    assert_eq!(darc.code(), native.code(), "{path:?} {options:?}");
    Profiles::read(&output, &darc)
}

/// `darc profile -p`, left running.
fn attach(pid: i32, output: &Path, options: &[&str]) -> Running {
    let mut command = darc(&["profile", "--format", "json", "-o"]);
    command
        .arg(output)
        .args(["-p", &pid.to_string()])
        .args(options);
    Running::start(command.stdin(Stdio::null()))
}

/// Every call of every function of the program is counted, whichever way it is made and ends.
#[test]
fn all_calls_are_counted() {
    for opt in Opt::ALL {
        let found = profile(&[], &program("counted_calls", opt), &["4", "4000"]);
        found.check_bursts(16_000);
        assert_eq!(found.calls("burst"), (1, 0));
        // Functions that remember where they return to are left alone, whatever they are called.
        assert!(found.names().iter().all(|name| !name.contains("setjmp")));
    }
}

/// The same of a process that runs already; threads come and go while it is measured.
#[test]
fn a_running_process_is_measured_and_let_go() {
    for opt in Opt::ALL {
        let path = program("counted_calls", opt);
        let args = ["8", "400"];
        let mut target = Target::start_at(&path, &args);
        let folder = folder();
        let output = folder.path().join("profiles.json");
        let mut darc = attach(
            target.pid(),
            &output,
            &["round_trip", "inner", "by_*", "recurse", "l*s*"],
        );
        darc.wait_for_probes(target.pid());
        for _ in 0..5 {
            target.poke();
            assert_eq!(target.line(), "done\n");
        }
        darc.signal(Signal::SIGINT);
        let darc = darc.finish();
        assert_eq!(darc.code(), 0, "{darc:#?}");
        check_released(target.pid());
        check_text(target.pid());
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid()));
        assert!(!maps.expect("it lives").contains("darc (deleted)"));
        Profiles::read(&output, &darc).check_bursts(5 * 8 * 400);
        // And again, and it ends as if nothing had been.
        let mut darc = attach(target.pid(), &output, &["inner"]);
        darc.wait_for_probes(target.pid());
        target.poke();
        assert_eq!(target.line(), "done\n");
        let native = native(&path, &args);
        let finished = target.finish();
        assert_eq!(finished.stdout, native.stdout);
        assert!(finished.status.success());
        let darc = darc.finish();
        let found = Profiles::read(&output, &darc);
        assert_eq!(found.calls("inner"), (3 * 8 * 400, 0), "{darc:#?}");
    }
}

/// What main calls, and nothing else; by way of the PLT too.
#[test]
fn the_callees_of_a_function_are_measured() {
    for opt in Opt::ALL {
        let found = profile(
            &["--callees-of", "round_trip", "--callees-of", "main"],
            &program("counted_calls", opt),
            &["1", "400"],
        );
        let names = found.names();
        assert!(
            names.contains(&"inner") && names.contains(&"recurse"),
            "{names:?}"
        );
        assert!(
            names.contains(&"atoi") || names.contains(&"strtol"),
            "{names:?}"
        );
        assert!(
            !names.contains(&"round_trip") && !names.contains(&"mix"),
            "{names:?}"
        );
        let warnings = found.0["warnings"].to_string();
        assert!(warnings.contains("through pointers"), "{warnings}");
    }
}

/// A whole library that is loaded later; and one that is unloaded and loaded again, which may be seen or
/// not, but must do no harm.
#[test]
fn libraries_that_come_and_go_are_measured() {
    for opt in Opt::ALL {
        let found = profile(&["libserve.so:*"], &program("plugin_host", opt), &["400"]);
        let (calls, _) = found.calls("library_serve");
        assert!(calls > 0 && calls <= 400, "{:#}", found.0);
        profile(
            &["libserve.so:*"],
            &program("plugin_host", opt),
            &["reload", "200"],
        );
    }
}

/// A library that is loaded later may have any number of functions, up to the limit.
#[test]
fn all_functions_of_a_large_library_are_measured() {
    let mut target = Target::start("thousands", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let folder = folder();
    let output = folder.path().join("profiles.json");
    let darc = attach(target.pid(), &output, &["libthousands.so:*"]);
    let profiles = || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        let said: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        said["profiles"].as_array().map(Vec::len)
    };
    crate::harness::wait_until("darc", || profiles().is_some());
    // The first calls may be missed; from some call on all are counted.
    crate::harness::wait_until("calls", || {
        target.poke();
        assert_eq!(target.line(), "done\n");
        profiles().is_some_and(|count| count > 0)
    });
    target.poke();
    assert_eq!(target.line(), "done\n");
    darc.signal(Signal::SIGINT);
    let darc = darc.finish();
    let found = Profiles::read(&output, &darc);
    let is_one = |name: &&&str| name.starts_with("one_");
    assert_eq!(found.names().iter().filter(is_one).count(), 1500);
    // What compilers add to each library is in no unwind table.
    let left_out = found.0["not_profiled"].as_array().into_iter().flatten();
    let is_expected = |it: &Value| {
        it["reason"]
            .as_str()
            .is_some_and(|why| why.contains("unwind table"))
    };
    assert!(left_out.clone().count() < 10, "{:#}", found.0);
    assert!(
        left_out.clone().all(is_expected),
        "{:#}",
        found.0["not_profiled"]
    );
    check_released(target.pid());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// Functions that unwinders call while they read the stack, and functions that exceptions leave.
#[test]
fn exceptions_pass_profiled_functions() {
    for opt in Opt::ALL {
        let found = profile(
            &[
                "parse",
                "libc:malloc",
                "libc:free",
                "libc:dl_iterate_phdr",
                "libstdc++:*cxa*",
            ],
            &program("exceptions", opt),
            &["300"],
        );
        let (calls, otherwise) = found.calls("parse(unsigned long)");
        assert!(calls >= 300 && otherwise >= calls / 4, "{:#}", found.0);
        profile(&["*"], &program("exceptions", opt), &["300", "brisk"]);
    }
}

/// Whatever a program does: with all of its functions profiled it ends as it does without.
#[test]
fn programs_are_as_without_darc() {
    for (name, args) in [
        ("contexts", &["300", "brisk"][..]),
        ("signal_stack", &["300", "brisk"]),
        ("signal_storm", &["300", "brisk"]),
        ("longjmp_out", &["300", "brisk"]),
        ("fork_exec", &["60", "brisk"]),
        ("thread_churn", &["300", "brisk"]),
        ("tail_calls", &["300", "brisk"]),
        ("jump_table", &["300", "brisk"]),
        ("mutual_recursion", &["300", "brisk"]),
        ("registers", &["300", "brisk"]),
        ("odd_entries", &["300", "brisk"]),
        ("virtual_calls", &["300", "brisk"]),
        ("cancellation", &["100", "brisk"]),
        ("closures", &["300", "brisk"]),
        ("two_peaks_static", &["300", "brisk"]),
        ("stack_overflow", &["20", "brisk"]),
        ("own_int3", &["60", "brisk"]),
    ] {
        for opt in Opt::ALL {
            eprintln!("{name} at -{opt:?}");
            let found = profile(&[], &program(name, opt), args);
            assert!(!found.names().is_empty(), "{name}");
        }
    }
}

/// All of the C library at once: what everything else stands on.
#[test]
fn the_whole_c_library_can_be_profiled() {
    let found = profile(
        &["libc:*"],
        &program("counted_calls", Opt::O2),
        &["4", "400"],
    );
    assert!(
        found
            .names()
            .iter()
            .any(|name| name.contains("pthread_create")),
        "{:?}",
        found.names()
    );
}

/// Segments add up to the whole, and are shown over time.
#[test]
fn intervals_make_a_picture_over_time() {
    let path = program("two_peaks", Opt::O2);
    let found = profile(&["-i", "20ms", "serve", "lookup"], &path, &["400"]);
    let segments = found.0["segments"].as_array().expect("a list").len();
    assert!(segments > 1, "{:#}", found.0);
    let folder = folder();
    let output = folder.path().join("profiles.txt");
    let mut command = darc(&["profile", "-i", "20ms", "-o"]);
    let darc = execute(
        command
            .arg(&output)
            .args(["lookup", "--"])
            .arg(&path)
            .arg("400"),
    );
    assert!(
        darc.stderr.contains("over time") && darc.stderr.contains('│'),
        "{darc:#?}"
    );
    for format in ["svg", "html", "json", "text"] {
        let shown = run_darc(&[
            "report",
            output.to_str().expect("UTF-8"),
            "--format",
            format,
        ]);
        assert_eq!(shown.code(), 0, "{shown:#?}");
        assert!(shown.stdout.contains("lookup"), "{format}: {shown:#?}");
    }
    let refused = run_darc(&[
        "report",
        output.to_str().expect("UTF-8"),
        "--format",
        "folded",
    ]);
    assert!(refused.failure(2).contains("svg or html"));
    let refused = run_darc(&["resume", output.to_str().expect("UTF-8")]);
    assert!(refused.failure(5).contains("set of profiles"));
}

/// Sets are compared pair by pair; the exit code tells of what the person asked about.
#[test]
fn sets_of_profiles_are_compared() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (file, format, args) in [
        ("a.txt", "text", ["400", "brisk"]),
        ("b.json", "json", ["400", ""]),
    ] {
        let mut command = darc(&["profile", "-q", "--format", format, "-o", &path(file), "--"]);
        let args = args.iter().filter(|arg| !arg.is_empty());
        let darc = execute(command.arg(program("two_peaks", Opt::O2)).args(args));
        assert_eq!((darc.code(), darc.stderr.as_str()), (0, ""), "{darc:#?}");
    }
    let same = run_darc(&[
        "compare",
        &path("a.txt"),
        &path("a.txt"),
        "--fail-on",
        "emd=0.1",
    ]);
    assert_eq!(same.code(), 0, "{same:#?}");
    // Work a hundred times as long is some six doublings.
    let other = run_darc(&[
        "compare",
        &path("a.txt"),
        &path("b.json"),
        "--fail-on",
        "emd=3",
    ]);
    assert_eq!(other.code(), 8, "{other:#?}");
    assert!(other.stdout.contains("lookup") && other.stdout.contains("another distribution"));
    let mut command = darc(&[
        "profile",
        "-q",
        "--resolution",
        "4",
        "-o",
        &path("c.txt"),
        "--",
    ]);
    execute(command.arg(program("two_peaks", Opt::O2)).arg("40"));
    let finer = run_darc(&["compare", &path("a.txt"), &path("c.txt")]);
    assert!(finer.failure(5).contains("resolutions differ: 1 and 4"));
}

/// Whether this machine lets these tests trace system calls.
fn system_calls_can_be_traced() -> bool {
    let there = Path::new("/sys/kernel/tracing/events/raw_syscalls").exists();
    if !there {
        eprintln!("left out: there is no tracefs, or this is not root");
    }
    there
}

/// The instance of the kernel's tracing that this darc has.
fn instance(pid: i32) -> Option<PathBuf> {
    let entries = std::fs::read_dir("/sys/kernel/tracing/instances").ok()?;
    let is_its = |path: &PathBuf| path.to_string_lossy().contains(&format!("/darc.{pid}."));
    entries.flatten().map(|entry| entry.path()).find(is_its)
}

/// No instance of the kernel's tracing is left of this darc.
fn check_no_instance(pid: i32) {
    assert_eq!(instance(pid), None);
}

/// The system calls of a program and of a running process, of all their threads and of no other process.
#[test]
fn system_calls_are_profiled() {
    if !system_calls_can_be_traced() {
        return;
    }
    // One op in five sleeps once, on each of four threads; the period is twenty.
    let found = profile(
        &["--syscalls"],
        &program("four_threads", Opt::O2),
        &["200", "brisk"],
    );
    assert_eq!(found.0["source"], "system-calls");
    assert_eq!(found.calls("clock_nanosleep"), (4 * 40, 0), "{:#}", found.0);
    assert_eq!(found.calls("execve"), (1, 0));
    assert_eq!(found.calls("exit_group"), (1, 1));
    // What forked children do is theirs.
    let found = profile(
        &["--syscalls"],
        &program("fork_exec", Opt::O2),
        &["60", "brisk"],
    );
    assert_eq!(found.calls("execve"), (1, 0), "{:#}", found.0);
    // A thread that executes a program becomes the first one, and ends the calls of all others.
    let found = profile(
        &["--syscalls"],
        &program("exec_from_thread", Opt::O2),
        &["60", "brisk"],
    );
    assert_eq!(found.calls("execve"), (2, 0), "{:#}", found.0);
    assert_eq!(found.entry("execve")["profile"]["ops"], 2);
    for entry in found.0["profiles"].as_array().expect("a list") {
        assert_eq!(entry["unfinished"], 0, "{entry:#}");
    }
    let mut target = Target::start("counted_calls", Opt::O2, &["8", "40"]);
    let before = ProcessState::of(target.pid());
    let folder = folder();
    let output = folder.path().join("profiles.json");
    let darc = attach(target.pid(), &output, &["--syscalls", "-i", "20ms"]);
    let pid = darc.pid();
    // An instance begins with tracing on, but without events.
    crate::harness::wait_until("the tracing", || {
        let is_on = |file: &str| {
            let path = instance(pid).map(|folder| folder.join(file));
            let on = path.and_then(|path| std::fs::read_to_string(path).ok());
            on.is_some_and(|on| on.starts_with('1'))
        };
        is_on("events/task/task_newtask/enable") && is_on("tracing_on")
    });
    before.check_unchanged(target.pid());
    for _ in 0..3 {
        target.poke();
        assert_eq!(target.line(), "done\n");
    }
    let asked = [
        "status",
        "-p",
        &target.pid().to_string(),
        "--format",
        "json",
    ];
    crate::harness::wait_until("threads in the status", || {
        // It may not answer yet.
        let Ok(said) = serde_json::from_str::<Value>(&run_darc(&asked).stdout) else {
            return false;
        };
        assert_eq!(said["source"], "system-calls", "{said:#}");
        let profiles = said["profiles"].as_array().expect("a list").iter();
        let mut made = profiles.filter(|entry| entry["function"]["name"] == "clone3");
        made.any(|entry| entry["calls"] == 24)
    });
    darc.signal(Signal::SIGINT);
    let darc = darc.finish();
    assert_eq!(darc.code(), 0, "{darc:#?}");
    check_no_instance(pid);
    let found = Profiles::read(&output, &darc);
    assert_eq!(found.calls("clone3"), (24, 0), "{:#}", found.0);
    // Nobody returns from it, and nobody is in it any more.
    assert_eq!(found.calls("exit"), (24, 24));
    assert!(target.finish().status.success());
}

/// What a killed darc has left in the kernel is removed, whatever process is meant; not that of one that runs.
#[test]
fn tracing_of_a_killed_darc_is_removed() {
    if !system_calls_can_be_traced() {
        return;
    }
    let target = Target::start("counted_calls", Opt::O2, &["8", "40"]);
    let folder = folder();
    let output = folder.path().join("profiles.json");
    let begin = || {
        let darc = attach(target.pid(), &output, &["--syscalls"]);
        let pid = darc.pid();
        crate::harness::wait_until("the tracing", || instance(pid).is_some());
        darc
    };
    // Another darc may be the one that removes it.
    let cleanup = |arguments: &[&str], left: &Path| {
        let cleaned = run_darc(&[&["cleanup"], arguments].concat());
        let line = format!("{}: tracing of a killed darc, removed", left.display());
        assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
        cleaned.stdout.contains(&line)
    };
    let pid = target.pid().to_string();
    for arguments in [&["-p", &pid][..], &[]] {
        let darc = begin();
        let killed = instance(darc.pid()).expect("it is there");
        assert!(!cleanup(&[], &killed), "it runs");
        assert!(killed.exists());
        darc.signal(Signal::SIGKILL);
        darc.finish();
        cleanup(arguments, &killed);
        assert!(!killed.exists());
    }
    let nothing = run_darc(&["cleanup"]);
    assert_eq!(nothing.code(), 0, "{nothing:#?}");
}

/// Where tracefs can be read only, perf events tell the same.
#[test]
fn system_calls_are_profiled_without_an_instance() {
    let read_only = "mount --bind /sys/kernel/tracing /sys/kernel/tracing \
         && mount -o remount,bind,ro /sys/kernel/tracing && ";
    let script = |rest: &str| {
        let mut command = std::process::Command::new("unshare");
        let script = format!("{read_only}{rest}");
        command.args(["--mount", "/bin/sh", "-c", &script, "sh"]);
        command
    };
    if !system_calls_can_be_traced() || execute(&mut script("true")).code() != 0 {
        eprintln!("left out: tracefs cannot be mounted read-only here");
        return;
    }
    let folder = folder();
    let output = folder.path().join("profiles.json");
    let mut command = script("exec \"$@\"");
    command.arg(env!("CARGO_BIN_EXE_darc"));
    command.args(["profile", "--syscalls", "-q", "--format", "json", "-o"]);
    command.arg(&output).arg("--");
    let darc = execute(command.arg(program("four_threads", Opt::O2)).arg("200"));
    assert_eq!(darc.code(), 0, "{darc:#?}");
    let found = Profiles::read(&output, &darc);
    assert_eq!(found.calls("clock_nanosleep"), (4 * 40, 0), "{:#}", found.0);
    assert_eq!(found.calls("execve"), (1, 0));
    assert_eq!(found.calls("exit_group"), (1, 1));
}

/// Who may not trace is told what to do, and nothing is left behind.
#[test]
fn system_calls_need_permission() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("left out: only root can be somebody else");
        return;
    }
    // The binary may lie where only root looks.
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let copy = folder.path().join("darc");
    copy_program(env!("CARGO_BIN_EXE_darc"), &copy);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode.clone()).expect("ours");
    std::fs::set_permissions(&copy, mode).expect("ours");
    let mut command = std::process::Command::new(&copy);
    command.args(["profile", "--syscalls", "--", "/bin/true"]);
    let refused = execute(command.uid(NOBODY).current_dir("/"));
    let line = refused.failure(3);
    assert!(
        line.contains("permission denied") || line.contains("not mounted"),
        "{line}"
    );
    assert!(line.contains("mount"), "{line}");
}

/// Without symbols a function's unlikely part looks like a stranger that jumps into it: all calls are counted all the same.
#[test]
fn functions_whose_unlikely_part_has_no_name_are_measured() {
    let address = address_in("cold_jumps_back", "handle_request", Opt::O2);
    let path = program("cold_jumps_back_stripped", Opt::O2);
    let found = profile(&[&address], &path, &["200"]);
    let entry = found.entry(&format!("cold_jumps_back_stripped+{address}"));
    assert_eq!(entry["calls"], 200, "{entry:#}");
    // One call in five goes through that part, and takes 2.5 ms more: the latencies are those of both ways.
    let buckets = entry["profile"]["buckets"].as_array().expect("a list");
    let of = |entry: &&Value| entry["bucket"].as_u64().is_some_and(|bucket| bucket >= 22);
    let slow: u64 = buckets
        .iter()
        .filter(of)
        .filter_map(|it| it["ops"].as_u64())
        .sum();
    assert!(slow >= 40, "{entry:#}");
}

/// Wishes that cannot be met are told in one line, and nothing of the program has run.
#[test]
fn bad_wishes_are_refused() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let before = ProcessState::of(target.pid());
    let pid = target.pid().to_string();
    let path = program("two_peaks", Opt::O2).display().to_string();
    for (args, code, part) in [
        (&["profile"][..], 2, "nothing to profile"),
        (
            &["profile", "-p", &pid, "no_such_function"],
            4,
            "no_such_function",
        ),
        (
            &["profile", "no_such_function", "--", &path, "20"],
            4,
            "no_such_function",
        ),
        (
            &["profile", "-p", &pid, "--resolution", "16"],
            2,
            "between 1 and 8",
        ),
        (
            &["profile", "-p", &pid, "--syscalls", "serve"],
            2,
            "--syscalls",
        ),
        (
            &["profile", "-p", &pid, "-o", "/no/such/folder/x"],
            5,
            "/no/such/folder",
        ),
        (&["profile", "-p", &pid, "--format", "folded"], 2, "folded"),
        (&["profile", "-p", "999999999"], 3, "no process"),
        (
            &["profile", "--callees-of", "rehash", "--", &path, "20"],
            3,
            "rehash calls no function",
        ),
        (&["profile", "-p", &pid, "vfork"], 3, "cannot have a probe"),
    ] {
        let refused = run_darc(args);
        assert!(
            refused.failure(code).contains(part),
            "{args:?}: {refused:#?}"
        );
        assert_eq!(refused.stdout, "", "{args:?}");
    }
    before.check_unchanged(target.pid());
    let unseen = run_darc(&["profile", "-p", &pid, "-d", "50ms", "main"]);
    assert_eq!(unseen.code(), 7, "{unseen:#?}");
    assert!(unseen.stdout.contains("no call of these functions began"));
    // It may be loaded, but nobody waits longer than was asked for.
    let waiting = run_darc(&["profile", "-p", &pid, "-d", "50ms", "no_such_library:*"]);
    assert_eq!(waiting.code(), 7, "{waiting:#?}");
    assert!(waiting.stdout.contains("waiting for it to be loaded"));
}

/// Nobody has to wait for a report that nobody reads: a signal ends darc, which has let go of the target before.
#[test]
fn a_report_that_nobody_reads_is_not_waited_for() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    let size = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("a small one");
    let full = vec![0; usize::try_from(size).expect("a length")];
    assert_eq!(nix::unistd::write(&writer, &full), Ok(full.len()));
    let mut command = darc(&["profile", "-p", &target.pid().to_string(), "-d", "200ms"]);
    command.args(["serve", "lookup"]);
    let mut child = command.stdout(writer).spawn().expect("darc starts");
    drop(command);
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let call = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    crate::harness::wait_until("the report", || call().starts_with("1 0x1 "));
    check_released(target.pid());
    check_text(target.pid());
    kill(pid, Signal::SIGINT).expect("our child");
    crate::harness::wait_until("its end", || child.try_wait().expect("our child").is_some());
    let status = child.wait().expect("our child");
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "{status:?}");
    drop(reader);
    assert!(target.finish().status.success());
}

/// What cannot be written is shown; what cannot be shown either is an error.
#[test]
fn profiles_that_cannot_be_written_are_shown() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let args = ["profile", "-p", &pid, "-d", "1s", "lookup"];
    let unwritten = execute(darc(&args).args(["-q", "-o", "/dev/full"]));
    assert!(unwritten.failure(5).contains("/dev/full"));
    assert!(unwritten.stdout.contains("lookup"), "{unwritten:#?}");
    let full = std::fs::File::options().write(true).open("/dev/full");
    let status = darc(&args).stdout(full.expect("Linux has it")).status();
    assert_eq!(status.expect("started").code(), Some(5));
}
