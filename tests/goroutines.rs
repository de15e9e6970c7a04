//! Go programs: goroutines whose stacks move, that go on in other threads, panic and end, under constant garbage collection and
//! profiling. Left out, loudly, where there is no Go tool chain; `DARC_TEST_GO` names one.

mod campaign;
mod with_c;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{
    Finished, Task, Unfinished, Verdict, Wrong, darc, execute, measured, not_tested,
};
use crate::offcpu::permitted;
use crate::report::Report;

/// How often it is attached and let go.
const ROUNDS: usize = 12;

/// The versions that are known, as tool chains name themselves.
const KNOWN: [&str; 8] = ["19", "21", "22", "23", "24", "25", "26", "27"];

/// The program that most tests measure; `None` where nothing can build it, or what it was built with is not known.
fn program(folder: &Path, options: &[&str]) -> Option<PathBuf> {
    built(
        folder,
        "requests",
        include_str!("programs/requests.go"),
        options,
    )
}

/// A program, from its source.
fn built(folder: &Path, name: &str, source: &str, options: &[&str]) -> Option<PathBuf> {
    built_of(folder, name, &[("main.go", source)], options)
}

/// A program, from the files that it is made of. With `DARC_TEST_GO_OPTIONS`, options of `go build`, it may have C code.
fn built_of(
    folder: &Path,
    name: &str,
    files: &[(&str, &str)],
    options: &[&str],
) -> Option<PathBuf> {
    const USES_C: (&str, &str) = ("cgo.go", "package main\n\nimport _ \"runtime/cgo\"\n");
    let Ok(more) = std::env::var("DARC_TEST_GO_OPTIONS") else {
        return built_with("0", folder, name, files, options);
    };
    let options: Vec<&str> = more.split(' ').chain(options.iter().copied()).collect();
    built_with("1", folder, name, &[files, &[USES_C]].concat(), &options)
}

/// A program, with C code ("1") or without it ("0").
fn built_with(
    cgo: &str,
    folder: &Path,
    name: &str,
    files: &[(&str, &str)],
    options: &[&str],
) -> Option<PathBuf> {
    let go = std::env::var_os("DARC_TEST_GO").unwrap_or_else(|| "go".into());
    let version = Command::new(&go).arg("version").output();
    let version = version.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    if !KNOWN
        .iter()
        .any(|known| version.contains(&format!("go1.{known}.")))
    {
        not_tested(format!(
            "{name}: there is no Go tool chain of a known version ({version:?})"
        ));
        return None;
    }
    let (program, sources) = (folder.join(name), folder.join(format!("{name}.sources")));
    std::fs::create_dir_all(&sources).expect("a folder");
    let module = format!("module {name}\n\ngo 1.19\n");
    for (file, text) in files.iter().chain(&[("go.mod", &*module)]) {
        std::fs::write(sources.join(file), text).expect("written");
    }
    let mut command = Command::new(go);
    command
        .args(["build", "-o"])
        .arg(&program)
        .args(options)
        .arg(".")
        .current_dir(sources);
    for (variable, value) in [
        ("GOTOOLCHAIN", "local"),
        ("CGO_ENABLED", cgo),
        ("GOFLAGS", ""),
    ] {
        command.env(variable, value);
    }
    // What is compiled of Go's own packages is kept for the next test.
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    command
        .env("GOCACHE", kept.join("cache"))
        .env("GOPATH", kept.join("path"));
    let made = execute(&mut command);
    assert!(made.status.success(), "{made:#?}");
    Some(program)
}

fn start(program: &Path) -> Child {
    start_with(program, &[])
}

fn start_with(program: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command
        .args(arguments)
        // A goroutine's stack would begin as large as others have become.
        .env("GODEBUG", "adaptivestackstart=0")
        .env("GOGC", "5")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("just built");
    let mut ready = [0; 6];
    let stdout = child.stdout.as_mut().expect("piped");
    stdout
        .read_exact(&mut ready)
        .expect("it says that it is ready");
    child
}

/// How Go's run-time says that something is wrong; these programs say no such thing.
const COMPLAINTS: [&str; 5] = ["unexpected", "fatal", "panic:", "runtime:", "SIG"];

/// Ends it: all of its results were right, and its run-time found nothing strange.
fn end(mut child: Child) {
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends with its input");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success()
            && said.contains("wrong 0")
            && !COMPLAINTS.iter().any(|it| complained.contains(it)),
        "{output:?}"
    );
}

fn attach(child: &Child, more: &[&str]) -> String {
    attach_to(child, "main.handle", more)
}

/// The report on a function, which ends with the answers, but after so long at the latest.
fn answers(child: &Child, f0: &str, longest: &str) -> String {
    attach_to(child, f0, &["--end-with-answers", "-d", longest])
}

/// The report on a function, in one line.
fn attach_to(child: &Child, f0: &str, more: &[&str]) -> String {
    let finished = attached(child, f0, more);
    assert_eq!(finished.code(), 0, "{finished:#?}");
    let words: Vec<&str> = finished.stdout.split_whitespace().collect();
    words.join(" ")
}

fn attached(child: &Child, f0: &str, more: &[&str]) -> Finished {
    let pid = child.id().to_string();
    let mut command = darc(&["attach", "--f0", f0, "-o", "/dev/null", "-p", &pid]);
    execute(command.args(more))
}

#[test]
fn what_goroutines_wait_for_and_compute_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    for options in [&[][..], &["-ldflags=-s -w"]] {
        let Some(program) = program(folder.path(), options) else {
            return;
        };
        measured(|| {
            let target = start(&program);
            let report = answers(&target, "main.handle", "8s");
            end(target);
            names(
                &report,
                &[
                    "time.Sleep ← main.lookup ← main.handle",
                    "main.parse ← main.handle",
                    "the goroutine waited until a time (time.Sleep)",
                ],
            )
        });
    }
}

/// From the program's beginning on. Darc and the program end when the analysis has.
#[test]
fn goroutines_of_a_program_that_is_started_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/waits.go");
    let Some(program) = built(folder.path(), "waits", source, &[]) else {
        return;
    };
    measured(|| {
        let report = run(&program, "main.receive", &[], &[]);
        names(&report, &["chanrecv", "to receive from a channel"])
    });
}

/// The words of the report of a program that darc starts, and that ends when the report is there.
fn run(program: &Path, f0: &str, more: &[&str], arguments: &[&str]) -> String {
    let mut command = darc(&["run", "--f0", f0, "-o", "/dev/null", "-d", "8s"]);
    command.args(more).arg("--").arg(program).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("darc");
    let mut input = child.stdin.take();
    let mut report = Vec::new();
    for line in BufReader::new(child.stderr.take().expect("piped")).lines() {
        let line = line.expect("text");
        if line.starts_with("Latency of") {
            drop(input.take());
        }
        report.extend(line.split_whitespace().map(str::to_owned));
    }
    end(child);
    report.join(" ")
}

/// Whether the causes of a report have all of these words. One that has decided everything without them is wrong.
fn names(report: &str, causes: &[&str]) -> Verdict {
    // What waits is the function that lets others run: it is no unknown.
    assert!(!report.contains("whose thread did not run"), "{report}");
    let told = told_causes(report);
    let missing: Vec<_> = causes.iter().filter(|&it| !told.contains(it)).collect();
    match (missing.is_empty(), report.contains("not decided")) {
        (true, _) => Ok(()),
        (false, true) => Err(Unfinished(format!("{missing:?}: {report}"))),
        (false, false) => Err(Wrong(format!("{missing:?}: {report}"))),
    }
}

/// What a report says of the peaks that have a cause, in short and at length. What follows is what the ops of all peaks do.
fn told_causes(report: &str) -> String {
    let peaks = report.split(" What the ops of ").next().unwrap_or_default();
    let peaks = peaks.split("Peak ").skip(1);
    let decided =
        peaks.filter(|peak| peak.contains(" explains ") || peak.contains(": root cause found"));
    decided.collect()
}

/// Through calls by the address of a function or a method, too.
#[test]
fn what_a_goroutine_waits_for_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/waits.go");
    let Some(program) = built(folder.path(), "waits", source, &[]) else {
        return;
    };
    for (f0, causes) in [
        ("main.receive", ["chanrecv", "to receive from a channel"]),
        ("main.choose", ["selectgo", "in a select"]),
        ("main.guarded", ["lockSlow", "for a lock (sync.Mutex)"]),
        ("main.through", ["(*sleeper).wait", "until a time"]),
    ] {
        measured(|| {
            let target = start(&program);
            let report = answers(&target, f0, "8s");
            end(target);
            names(&report, &causes)
        });
    }
}

/// Of some versions there is no room for a jump behind the call by which the run-time waits for the pipe: that call is named.
#[test]
fn that_a_goroutine_waits_for_a_pipe_is_told() {
    const UNMEASURED: &str = "(internal/poll.(*pollDesc).wait), which could not be measured";
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/waits.go");
    let Some(program) = built(folder.path(), "waits", source, &[]) else {
        return;
    };
    measured(|| {
        let target = start(&program);
        let report = answers(&target, "main.read", "8s");
        end(target);
        match report.contains(UNMEASURED) && report.contains("woken by the run-time") {
            true => Ok(()),
            false => names(&report, &["(*FD).Read", "a pipe or the like"]),
        }
    });
}

/// What a function does beside its own code is no reason not to say that it takes the time, nor is where a system call is made.
#[test]
fn write_barriers_and_system_calls_end_a_path_with_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/endings.go");
    let Some(program) = built(folder.path(), "endings", source, &[]) else {
        return;
    };
    for (what, causes) in [
        (
            "keep",
            ["main.store ← main.keep", "main.store takes the time itself"],
        ),
        (
            "save",
            ["Syscall6 ← syscall.RawSyscall6", "it is in a system call"],
        ),
    ] {
        measured(|| {
            let target = start_with(&program, &[what]);
            let report = answers(&target, &format!("main.{what}"), "8s");
            end(target);
            names(&report, &causes)
        });
    }
}

/// One call in eight panics: the others' peaks are not all that there is to know.
#[test]
fn how_many_calls_ended_by_a_panic_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let report = attach_to(&target, "main.parse", &["-d", "500ms"]);
    end(target);
    let words = "ended by a panic or runtime.Goexit: they are not in the profile";
    assert!(report.contains(words), "{report}");
}

/// Of a function that goes on as long as its program, and of one whose code is in the one that interfaces call.
#[test]
fn what_to_name_in_place_of_what_does_not_return_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/endings.go");
    // No debugging information says what was inlined.
    let Some(program) = built(folder.path(), "endings", source, &["-ldflags=-w"]) else {
        return;
    };
    for (what, words) in [
        ("work", "name a function that it calls: --f0 main.keep"),
        ("value.get", "name that, --f0 'main.(*value).get'"),
    ] {
        let target = start_with(&program, &[what]);
        let (pid, f0) = (target.id().to_string(), format!("main.{what}"));
        let command = ["attach", "-d", "1500ms", "-o", "/dev/null", "--f0", &f0];
        let finished = execute(darc(&command).args(["-p", &pid]));
        end(target);
        assert_eq!(finished.code(), 7, "{finished:#?}");
        let said = finished.stdout.split_whitespace().collect::<Vec<_>>();
        assert!(said.join(" ").contains(words), "{finished:#?}");
    }
}

/// A goroutine that waits in it is on no thread's stack.
#[test]
fn a_function_that_waits_as_long_as_its_program_runs_is_not_waited_for_in_silence() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/endings.go");
    let Some(program) = built(folder.path(), "endings", source, &[]) else {
        return;
    };
    let target = start_with(&program, &["serve"]);
    let pid = target.id().to_string();
    let of_main = ["attach", "-o", "/dev/null", "--f0", "main.main", "-p", &pid];
    let finished = execute(&mut darc(&of_main));
    let line = finished.failure(3);
    assert!(line.contains("has not returned for 5 s"), "{line}");
    let of_serve = [
        "attach",
        "-o",
        "/dev/null",
        "--f0",
        "main.serve",
        "-p",
        &pid,
    ];
    let mut command = darc(&of_serve);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut waits = command.spawn().expect("darc");
    let said = BufReader::new(waits.stderr.take().expect("piped")).lines();
    let mut said = said.map_while(Result::ok);
    let told = said.find(|line| line.contains("no call of main.serve returned"));
    let told = told.expect("it says so while it waits");
    assert!(told.contains("--f0 main.keep"), "{told}");
    let darc = i32::try_from(waits.id()).expect("a process id");
    kill(Pid::from_raw(darc), Signal::SIGINT).expect("ours");
    said.for_each(drop);
    waits.wait().expect("ours");
    end(target);
}

/// By the rules that hold for goroutines. Names and lines are there without debugging information.
#[test]
fn what_can_be_measured_of_a_program_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &["-ldflags=-s -w"]) else {
        return;
    };
    let finished = execute(darc(&["doctor"]).arg(&program));
    let said = &finished.stdout;
    for words in [
        "a calling convention of its own",
        "where it returns to there is no room for a jump",
        "names and lines are those of Go's own table (.gopclntab)",
    ] {
        assert!(said.contains(words), "{finished:#?}");
    }
}

/// The waits of a path of these functions: how long they took, and for how long the goroutine was ready then.
fn waits(report: &Report, path: &[&str]) -> Option<(f64, f64, String)> {
    let causes = report.peaks().iter().flat_map(|peak| {
        let causes = peak["root_causes"].as_array().expect("a list");
        causes.iter()
    });
    let names = |cause: &&Value| {
        path.iter()
            .all(|name| cause["path"].to_string().contains(name))
    };
    let cause = causes.clone().find(names)?;
    let time = |what: &str| cause["waits"][what].as_u64().expect("a time") as f64;
    let others = cause["waits"]["others"].to_string();
    Some((time("blocked"), time("runnable"), others))
}

/// One processor has all goroutines, so that one that may go on, or that computes, does not run for as long as another one does.
#[test]
fn what_is_ready_and_does_not_run_is_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/turns.go");
    let Some(program) = built(folder.path(), "turns", source, &[]) else {
        return;
    };
    // Started while this test measures: other programs do not make it wait then.
    measured(|| {
        let target = start_with(&program, &["receive"]);
        let pid = i32::try_from(target.id()).expect("a process id");
        let task = Task::new("jump", "main.receive").options(&["-d", "8s"]);
        let report = task.attach(pid).report();
        end(target);
        assert_eq!(report.0["target"]["goroutines"], true);
        let mut told = 0;
        // It waits for a millisecond to receive, and is ready for three, or the other way round to send.
        for (function, ready) in [("chanrecv1", 0.75), ("chansend1", 0.25)] {
            let Some((blocked, runnable, others)) = waits(&report, &[function, "gopark"]) else {
                continue;
            };
            told += 1;
            let share = runnable / (blocked + runnable);
            let said = format!("{function}: {share} ready, {others}");
            match (share - ready).abs() {
                _ if !others.contains("main.answer") => return Err(Wrong(said)),
                // Other programs that run make either longer.
                0.2..0.5 => return Err(Unfinished(said)),
                0.5.. => return Err(Wrong(said)),
                _ => {}
            }
        }
        match told {
            0 => Err(Unfinished(format!("{:#}", report.0))),
            _ => Ok(()),
        }
    });
    for (what, causes) in [
        (
            "compute",
            ["(goroutine ready, not running)", "the goroutine was ready"],
        ),
        (
            // It has waited some hundred times before.
            "gather",
            ["(goroutine ready, not running)", "the goroutine was ready"],
        ),
        (
            // The compiler has put the code of the call into it.
            "give",
            [
                "main.give explains",
                "most of its wait ready to run but not running",
            ],
        ),
    ] {
        let f0 = format!("main.{what}");
        measured(|| {
            let target = start_with(&program, &[what]);
            let report = answers(&target, &f0, "10s");
            end(target);
            names(&report, &causes)
        });
    }
}

/// Another process has the processor for half of the time, for 20 ms each.
#[test]
fn that_the_kernel_ran_another_thread_is_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/turns.go");
    let Some(program) = built(folder.path(), "turns", source, &[]) else {
        return;
    };
    if !permitted() {
        return;
    }
    measured(|| {
        let target = start_with(&program, &["pinned"]);
        let report = answers(&target, "main.compute", "10s");
        end(target);
        names(
            &report,
            &[
                "(goroutine ready, not running)",
                "the kernel ran another thread",
                "instead ran exe",
            ],
        )
    });
}

/// Most of the calls are of goroutines that have got the descriptors of those for which there was no room.
#[test]
fn goroutines_behind_a_crowd_are_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = include_str!("programs/crowd.go");
    let Some(program) = built(folder.path(), "crowd", source, &[]) else {
        return;
    };
    let target = start(&program);
    let report = attach_to(&target, "main.step", &["-d", "4s"]);
    end(target);
    let number = |text: Option<&str>| text.and_then(|it| it.parse::<u64>().ok());
    let passed = report.split_once(" calls of f0 passed");
    let passed = passed.and_then(|(before, _)| before.rsplit(' ').next());
    let passed = number(passed).unwrap_or_else(|| panic!("there was no crowd: {report}"));
    let measured = report.split_once(" ops ").map(|(_, rest)| rest);
    let measured = measured.and_then(|it| it.split(',').next());
    let measured = number(measured).expect("a number");
    assert!(passed < measured, "{passed}, {measured} measured");
}

#[test]
fn goroutines_survive_that_probes_come_and_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let maps = format!("/proc/{}/maps", target.id());
    let (mut kept, mut seen) = (0, 0);
    for round in 0..ROUNDS {
        let duration = if round % 2 == 0 { "100ms" } else { "400ms" };
        let finished = attached(&target, "main.handle", &["-d", duration]);
        // Who waits for a processor for so long sees no call.
        assert!(matches!(finished.code(), 0 | 7), "{finished:#?}");
        seen += usize::from(finished.code() == 0);
        let maps = std::fs::read_to_string(&maps).expect("it lives");
        kept += usize::from(maps.contains("darc (deleted)"));
    }
    // A thread that another one keeps from running may be in a probe for as long as it is waited for.
    assert!(kept < ROUNDS / 2, "memory was kept {kept} times");
    assert_ne!(seen, 0, "no call was seen");
    end(target);
}

#[test]
fn goroutines_survive_a_darc_that_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let pid = target.id().to_string();
    for round in 0..ROUNDS as u64 {
        let mut command = darc(&[
            "attach",
            "--f0",
            "main.handle",
            "-o",
            "/dev/null",
            "-p",
            &pid,
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut killed = command.spawn().expect("darc");
        // Anywhere in it.
        std::thread::sleep(std::time::Duration::from_millis(60 + 40 * round));
        killed.kill().expect("ours");
        killed.wait().expect("ours");
    }
    attach(&target, &["-d", "300ms"]);
    end(target);
}

/// What is not known to be safe is refused by name.
#[test]
fn what_of_go_is_not_known_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else {
        return;
    };
    let target = start(&program);
    let pid = target.id().to_string();
    for (options, reason) in [
        (
            &["--f0", "main.handle", "--engine", "int3"][..],
            "darc attach and darc run with --f0",
        ),
        (&["--f0", "runtime.memmove"], "written in assembly"),
        (&["--f0", "main.handle", "--value", "arg1"], "--value"),
    ] {
        let mut command = darc(&["attach", "-d", "1s", "-o", "/dev/null", "-p", &pid]);
        let finished = execute(command.args(options));
        let line = finished.failure(3);
        assert!(line.contains(reason), "{options:?}: {line}");
    }
    let finished = execute(&mut darc(&["attach", "-o", "/dev/null", "-p", &pid]));
    let line = finished.failure(4);
    assert!(line.contains("darc sample -p"), "{line}");
    let report = attach(&target, &["-d", "300ms", "--blocks", "after"]);
    assert!(report.contains("--blocks is set aside"), "{report}");
    end(target);
    // Without the table nobody knows which of its functions are called as others are.
    let (section, other) = (b".gopclntab\0", b".gopclntax\0");
    let mut bytes = std::fs::read(&program).expect("read");
    let at = bytes.windows(section.len()).position(|it| it == section);
    bytes[at.expect("its name")..][..other.len()].copy_from_slice(other);
    let without = folder.path().join("without");
    std::fs::copy(&program, &without).expect("copied");
    std::fs::write(&without, bytes).expect("written");
    let target = start(&without);
    let finished = attached(&target, "main.handle", &["-d", "1s"]);
    let line = finished.failure(3);
    assert!(line.contains("no table of its functions"), "{line}");
    end(target);
}
