//! Death at any moment: of the target, and of darc.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use crate::harness::{Running, Target, Task, darc, execute, for_all, run_darc, wait_until};
use crate::report::Report;
use crate::untouched::{ProcessState, check_released, check_text, is_probed};

/// The target is killed while darc is at work, each time a little later: darc ends, with results
/// or with one line that says what happened.
#[test]
fn the_target_is_killed() {
    for_all(|engine, opt| {
        for (round, name) in ["two_peaks", "four_threads", "thread_churn", "fork_exec"]
            .iter()
            .cycle()
            .take(12)
            .enumerate()
        {
            let f0 = match *name {
                "thread_churn" => "task",
                "fork_exec" => "job",
                _ => "serve",
            };
            let target = Target::start(name, opt, &["brisk"]);
            let task = Task::new(engine, f0).options(&["--decision-ops", "1000000000"]);
            let (mut darc, _output, _folder) = task.start_attach(target.pid());
            if round % 3 > 0 {
                darc.wait_for_probes(target.pid());
            }
            // A moment, shorter than any pause.
            for _ in 0..round * 200 {
                std::thread::yield_now();
            }
            target.signal(Signal::SIGKILL);
            let finished = darc.finish();
            let code = finished.code();
            assert!([0, 3, 6, 7].contains(&code), "{name}: {finished:#?}");
            // With results, a signal is the reason; and of what is gone nothing but that is said.
            if code == 3 || (code == 6 && finished.stdout.is_empty()) {
                let line = finished.failure(code);
                let gone = ["no process ", " has already exited", " ended "];
                let is_gone = gone.iter().any(|words| line.contains(words));
                assert!(is_gone, "{name}: {line}");
            }
        }
    });
}

/// A signal ends a program that darc had attached to: that is said, and nobody is told to start it, of which darc knows nothing.
#[test]
fn a_process_that_ran_already_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out.txt");
    let target = Target::start("two_peaks", Opt::O2, &["brisk"]);
    let pid = target.pid().to_string();
    let mut command = darc(&[
        "attach",
        &pid,
        "-f",
        "serve",
        "--decision-ops",
        "1000000000",
    ]);
    let mut darc = Running::start(command.arg("-o").arg(&output));
    // Of a program that ended before its first op no next step is told.
    wait_until("ops in the status", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        darc.has_ended() || (status.code() == 0 && Report::of(&status).ops() > 200)
    });
    target.signal(Signal::SIGSEGV);
    let finished = darc.finish();
    assert_eq!(finished.code(), 6, "{finished:#?}");
    let warning = "signal 11 ended the target before the analysis was done";
    assert!(finished.stderr.contains(warning), "{finished:#?}");
    let (report, steps) = finished.stdout.split_once("\nNext\n").unwrap_or_default();
    assert!(report.contains("SIGSEGV"), "{finished:#?}");
    let starts = |line: &str| line.contains("darc run") || line.contains("runs the program");
    assert!(!steps.lines().any(starts), "{finished:#?}");
    let goes_on = |line: &str| line.contains("resume") && !line.contains("-p two_peaks");
    assert!(!finished.stdout.lines().any(goes_on), "{finished:#?}");
}

/// A program that darc started dies by a signal: darc passes it on as its own exit code.
#[test]
fn a_started_program_is_killed() {
    for_all(|engine, opt| {
        let analysis =
            Task::new(engine, "serve").run_like_native(&program("ends_in_f0", opt), &["abort"]);
        assert_eq!(analysis.darc.code(), 128 + Signal::SIGABRT as i32);
        assert_eq!(
            analysis.report().at("/target/exit_status"),
            128 + Signal::SIGABRT as i32
        );
    });
}

/// darc is killed in mid-analysis. With breakpoints in its code the target can only be saved when the
/// guardian is quicker than the next call of f0, so that f0 is a function here that is not called.
#[test]
fn darc_is_killed_with_breakpoints_set() {
    for _ in 0..10 {
        let target = Target::start("names", Opt::O2, &[]);
        let (mut darc, _output, _folder) =
            Task::new("int3", "never_called").start_attach(target.pid());
        darc.wait_for_probes(target.pid());
        darc.signal(Signal::SIGKILL);
        darc.finish();
        wait_until("the code as it was", || !is_probed(target.pid()));
        check_released(target.pid());
        check_text(target.pid());
        target.finish_like_native(&program("names", Opt::O2), &[]);
    }
}

/// darc is killed while a thread is blocked in a measured system call: it comes back from the call as if
/// nothing had been there.
#[test]
fn darc_is_killed_while_a_measured_call_is_blocked() {
    for opt in Opt::ALL {
        let mut target = Target::start("asks", opt, &[]);
        let task = Task::new("int3", "serve").options(&["--start-ops", "5", "--decision-ops", "5"]);
        let (darc, _output, _folder) = task.start_attach(target.pid());
        let darc = blocked_in_a_measured_call(&mut target, darc);
        darc.signal(Signal::SIGKILL);
        darc.finish();
        // The code is put back first, and where the call returns to later.
        wait_until("the end of the guardian", || !has_guardian(target.pid()));
        check_released(target.pid());
        check_text(target.pid());
        target.finish_like_native(&program("asks", opt), &[]);
    }
}

/// Whether a guardian of the process lives.
fn has_guardian(pid: i32) -> bool {
    let arguments = format!("guardian\0--pid\0{pid}\0");
    let mut processes = fs::read_dir("/proc").expect("it is mounted").flatten();
    processes.any(|process| {
        let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        line.contains(&arguments)
    })
}

/// The instruction pointer of the process's main thread, if it is blocked in read(2) (proc(5), `syscall`).
fn blocked_at(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [number, .., at] = fields[..] else {
        return None;
    };
    (number == "0" && fields.len() > 2)
        .then(|| u64::from_str_radix(at.trim_start_matches("0x"), 16).ok())?
}

/// Gives one answer after the other, until the question is asked from the copy of the instruction by which darc measures it.
pub fn blocked_in_a_measured_call(target: &mut Target, mut darc: Running) -> Running {
    darc.wait_for_probes(target.pid());
    let mut is_there = false;
    wait_until("a measured call that is blocked", || {
        is_there = is_blocked_in_unnamed_code(target.pid());
        if !is_there && blocked_at(target.pid()).is_some() {
            // Beside what breakpoints take on a busy machine a quick answer is no time.
            thread::sleep(Duration::from_millis(30));
            target.poke();
        }
        is_there || darc.has_ended()
    });
    if !is_there {
        panic!("{:#?}", darc.finish());
    }
    darc
}

/// Whether it is blocked in code that is in no file.
fn is_blocked_in_unnamed_code(pid: i32) -> bool {
    let Some(at) = blocked_at(pid) else {
        return false;
    };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
    maps.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (start, end) = fields[0].split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
        fields.len() == 5 && (number(start)..number(end)).contains(&at)
    })
}

/// Killed while jumps are in the code, short ones among them: the target goes on with right results, and what is left
/// there can be taken away.
#[test]
fn darc_is_killed_with_jumps_set() {
    let programs = [("two_peaks", "serve"), ("short_calls", "relay")];
    for opt in Opt::ALL {
        for (name, f0) in programs.into_iter().cycle().take(6) {
            let target = Target::start(name, opt, &["brisk"]);
            let before = ProcessState::of(target.pid());
            let task = Task::new("jump", f0).options(&["--decision-ops", "1000000000"]);
            let (mut darc, _output, _folder) = task.start_attach(target.pid());
            darc.wait_for_probes(target.pid());
            darc.signal(Signal::SIGKILL);
            darc.finish();
            let cleaned = run_darc(&["cleanup", "-p", &target.pid().to_string()]);
            assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
            before.check_unchanged(target.pid());
            target.finish_like_native(&program(name, opt), &["brisk"]);
        }
    }
}

/// Killed, and attached again: the next darc begins with taking away what the first left.
#[test]
fn darc_is_killed_and_started_again() {
    for opt in Opt::ALL {
        let target = Target::start("two_peaks", opt, &[]);
        let before = ProcessState::of(target.pid());
        let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000"]);
        let (mut darc, _output, _folder) = task.start_attach(target.pid());
        darc.wait_for_probes(target.pid());
        darc.signal(Signal::SIGKILL);
        darc.finish();
        let analysis = Task::new("jump", "serve").attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        before.check_unchanged(target.pid());
        target.finish_like_native(&program("two_peaks", opt), &[]);
    }
}

/// The pipe that darc writes its report to is closed: the target is restored all the same.
#[test]
fn nobody_reads_the_report() {
    for_all(|engine, opt| {
        let target = Target::start("two_peaks", opt, &[]);
        let before = ProcessState::of(target.pid());
        let folder = tempfile::tempdir().expect("a folder");
        let mut command =
            crate::harness::darc(&["attach", "--f0", "serve", "--engine", engine, "-o"]);
        command
            .arg(folder.path().join("out.txt"))
            .args(["-p", &target.pid().to_string()]);
        let mut child = command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("started");
        drop(child.stdout.take());
        child.wait().expect("ours");
        before.check_unchanged(target.pid());
        assert!(folder.path().join("out.txt").exists());
        target.finish_like_native(&program("two_peaks", opt), &[]);
    });
}

/// The pipe that darc writes its log to is closed: the target is restored, and the results are there.
#[test]
fn nobody_reads_the_log() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let before = ProcessState::of(target.pid());
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out.txt");
    let (pid, opt) = (target.pid().to_string(), Opt::O2);
    let mut command = crate::harness::darc(&["attach", "-vv", "--f0", "serve", "-p", &pid, "-o"]);
    let mut child = command
        .arg(&output)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stderr.take());
    let status = child.wait().expect("ours");
    assert_eq!(status.code(), Some(0));
    before.check_unchanged(target.pid());
    assert!(output.exists());
    target.finish_like_native(&program("two_peaks", opt), &[]);
}

/// A started program goes on when darc is told to end early.
#[test]
fn a_started_program_runs_on() {
    for_all(|engine, opt| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = crate::harness::darc(&[
            "run",
            "--f0",
            "serve",
            "--engine",
            engine,
            "--decision-ops",
            "1000000000",
            "-o",
        ]);
        command
            .arg(folder.path().join("out.txt"))
            .arg("--")
            .arg(program("two_peaks", opt));
        let darc = Running::start(command.stdin(std::process::Stdio::null()));
        let child_of = || {
            let path = format!("/proc/{0}/task/{0}/children", darc.pid());
            let children = std::fs::read_to_string(path).unwrap_or_default();
            children.split_ascii_whitespace().find_map(|child| {
                let exe = std::fs::read_link(format!("/proc/{child}/exe")).ok()?;
                exe.ends_with("two_peaks")
                    .then(|| child.parse::<i32>().ok())?
            })
        };
        wait_until("the program", || child_of().is_some_and(is_probed));
        darc.signal(Signal::SIGINT);
        let finished = darc.finish();
        let native = crate::harness::native::<&str>(&program("two_peaks", opt), &[]);
        assert_eq!(finished.stdout, native.stdout, "{finished:#?}");
        assert_eq!(finished.code(), 0, "{finished:#?}");
    });
}

/// Under `int3` a program that crashes gets its code back first: the core dump shows the program's own.
#[test]
fn a_core_dump_shows_the_programs_code() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.trim().starts_with("core") {
        eprintln!("left out: core dumps do not go to the current folder here");
        return;
    }
    let ends = [("segv", Signal::SIGSEGV), ("quit", Signal::SIGQUIT)];
    for (opt, (end, signal)) in Opt::ALL
        .into_iter()
        .flat_map(|opt| ends.map(|end| (opt, end)))
    {
        let path = program("ends_in_f0", opt);
        let folder = tempfile::tempdir().expect("a folder");
        let darc = env!("CARGO_BIN_EXE_darc");
        let script = format!(
            "ulimit -c unlimited; exec {darc} run --engine int3 --f0 serve --decision-ops 1000000000 -q -o out.txt -- {} {end}",
            path.display()
        );
        let mut command = Command::new("sh");
        let finished = execute(command.args(["-c", &script]).current_dir(folder.path()));
        assert_eq!(finished.code(), 128 + signal as i32, "{finished:#?}");
        let mut files = fs::read_dir(folder.path()).expect("ours");
        let core = files.find_map(|file| {
            let path = file.ok()?.path();
            path.file_name()?
                .to_str()?
                .starts_with("core")
                .then_some(path)
        });
        let core = core.unwrap_or_else(|| panic!("{end}: no core dump; {finished:#?}"));
        let core = fs::read(core).expect("readable");
        let own = code_of("serve", &path);
        let is_there = core.windows(own.len()).any(|bytes| bytes == own);
        assert!(is_there, "{end}: {}", closest_to(&own, &core));
    }
}

/// What is taken out for the core dump of a child that runs in the program's memory is put in again when that has ended.
#[test]
fn a_child_in_the_programs_memory_crashes() {
    for opt in Opt::ALL {
        let analysis = Task::new("int3", "serve")
            .options(&["--decision-ops", "1000000000"])
            .run_like_native(&program("crashing_child", opt), &[]);
        let ops = analysis.report().ops();
        assert!(ops > 40, "{ops}, of which four were before: {analysis:#?}");
    }
}

/// Says what of a core dump looks most like some code.
fn closest_to(own: &[u8], core: &[u8]) -> String {
    let differing = |bytes: &[u8]| bytes.iter().zip(own).filter(|(a, b)| a != b).count();
    let closest = core.windows(own.len()).min_by_key(|bytes| differing(bytes));
    format!(
        "{own:02x?} is not in {} bytes; {closest:02x?} is",
        core.len()
    )
}

/// The bytes of a function in a program's file, of which symbol and segment tell where they are.
fn code_of(name: &str, path: &Path) -> Vec<u8> {
    let tool = |command: &str, arguments: &[&str]| {
        let output = Command::new(command).args(arguments).arg(path).output();
        String::from_utf8(output.expect("it comes with the compiler").stdout).expect("text")
    };
    let symbols = tool("nm", &["--print-size"]);
    let mut fields = symbols
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.last() == Some(&name))
        .expect("the symbol is there")
        .into_iter()
        .map(|field| u64::from_str_radix(field, 16));
    let mut number = || fields.next().expect("a field").expect("hexadecimal");
    let (addr, size) = (number(), number());
    let sections = tool("readelf", &["--sections", "--wide"]);
    let text = sections.lines().find(|line| line.contains(" .text "));
    let fields: Vec<&str> = text.expect("code").split_whitespace().collect();
    let at = fields
        .iter()
        .position(|&field| field == "PROGBITS")
        .expect("its kind");
    let number = |index: usize| u64::from_str_radix(fields[index], 16).expect("hexadecimal");
    let start = (addr - number(at + 1) + number(at + 2)) as usize;
    fs::read(path).expect("the program")[start..][..size as usize].to_vec()
}

/// What a killed darc did not put in place is named, wherever its results were to go.
#[test]
fn results_that_were_not_put_in_place_are_named() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let partial = folder.path().join(".darc-a1b2c3.partial");
    std::fs::write(&partial, "results").expect("it is ours");
    let target = Target::start("two_peaks", Opt::O2, &["brisk"]);
    let pid = target.pid().to_string();
    let cleanup = |output: &[&str]| {
        let cleaned = run_darc(&[&["cleanup", "-p", &pid], output].concat());
        assert_eq!(cleaned.code(), 0, "{cleaned:#?}");
        cleaned.stdout.contains(&partial.display().to_string())
    };
    let output = folder.path().join("out.txt");
    assert!(cleanup(&["-o", output.to_str().expect("text")]));
    assert!(!cleanup(&[]));
    target.finish_like_native(&program("two_peaks", Opt::O2), &["brisk"]);
    // The target has ended, as it often has when somebody comes to clean up.
    let output = output.to_str().expect("text");
    let refused = run_darc(&["cleanup", "-p", &pid, "-o", output]);
    assert_ne!(refused.code(), 0, "{refused:#?}");
    let named = refused.stdout.contains(&partial.display().to_string());
    assert!(named, "{refused:#?}");
}
