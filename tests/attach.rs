//! `darc attach`: a running process is analysed, and left as it was found.

use std::path::Path;
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, ground_truth, program};

use crate::formats::annotated;
use crate::harness::{
    Target, Task, Unfinished, copy_program, darc, execute, for_all, measured, not_tested, run_darc,
    wait_until,
};
use crate::report::Report;
use crate::untouched::{ProcessState, is_probed};

/// Attaches to a working program, and checks that nothing of the process was changed. What is found is judged as the program's
/// ground truth; here other tests run beside it.
fn check(name: &str) {
    let truth = ground_truth(name);
    for_all(|engine, opt| {
        let target = Target::start(name, opt, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = Task::of(engine, truth).attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        let f0 = &truth.peaks[0].causes[0].path[0];
        assert!(analysis.darc.stdout.contains(f0), "{analysis:#?}");
        before.check_unchanged(target.pid());
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
        target.finish_like_native(&program(name, opt), &[]);
    });
}

/// What is found in a process that runs already.
#[test]
fn what_is_found_is_true() {
    let truth = ground_truth("two_peaks");
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("two_peaks", opt, &[]);
            let analysis = Task::of(engine, truth).attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            analysis.report().judge(truth)
        });
    });
}

macro_rules! programs {
    ($($name:ident)*) => { $(#[test] fn $name() { check(stringify!($name)); })* };
}

programs! {
    closures
    recursion
    shared_library
    tail_calls
    two_peaks
    two_peaks_no_pie
    two_peaks_static
    two_peaks_static_pie
    virtual_calls
}

/// Again and again: no mapping, file, thread or tracer is left behind.
#[test]
fn attaching_often_leaves_nothing_behind() {
    for_all(|engine, opt| {
        let target = Target::start("two_peaks", opt, &["brisk"]);
        let before = ProcessState::of(target.pid());
        for _ in 0..5 {
            let task = Task::new(engine, "serve").options(&[
                "--start-ops",
                "20",
                "--decision-ops",
                "3",
                "-d",
                "20s",
            ]);
            let analysis = task.attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            before.check_unchanged(target.pid());
        }
        target.finish_like_native(&program("two_peaks", opt), &["brisk"]);
    });
}

/// The id of a thread stands for its process, and darc says so.
#[test]
fn a_threads_id_stands_for_its_process() {
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("four_threads", opt, &[]);
            let analysis = Task::new(engine, "serve").attach(target.second_thread());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            assert!(
                analysis
                    .darc
                    .stderr
                    .contains(&format!("thread of process {}", target.pid())),
                "{analysis:#?}"
            );
            analysis.report().judge(ground_truth("four_threads"))
        })
    });
}

/// The time that was given ends the analysis; what was seen so far is reported.
#[test]
fn a_duration_ends_the_analysis() {
    for_all(|engine, opt| {
        let target = Target::start("two_peaks", opt, &[]);
        let before = ProcessState::of(target.pid());
        let task =
            Task::new(engine, "serve").options(&["--duration", "2s", "--decision-ops", "1000000"]);
        let analysis = task.attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        before.check_unchanged(target.pid());
        let report = analysis.report();
        assert_eq!(report.status(), "undecided");
        assert!(report.ops() > 0);
        target.finish_like_native(&program("two_peaks", opt), &[]);
    });
}

/// f0 is never called: that is said, with an exit code of its own.
#[test]
fn a_function_that_is_never_called() {
    for_all(|engine, opt| {
        let target = Target::start("names", opt, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = Task::new(engine, "never_called")
            .options(&["-d", "300ms"])
            .attach(target.pid());
        assert_eq!(analysis.darc.code(), 7, "{analysis:#?}");
        assert!(
            analysis.darc.stderr.contains("no call of f0 completed"),
            "{analysis:#?}"
        );
        assert_eq!(analysis.report().ops(), 0);
        before.check_unchanged(target.pid());
        target.finish_like_native(&program("names", opt), &[]);
    });
}

/// f0 is running when darc attaches, and never returns: detaching is as clean.
#[test]
fn a_function_that_is_running_already() {
    for_all(|engine, opt| {
        let target = Target::start("two_peaks", opt, &[]);
        let before = ProcessState::of(target.pid());
        let analysis = Task::new(engine, "main")
            .options(&["-d", "500ms"])
            .attach(target.pid());
        assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
        before.check_unchanged(target.pid());
        target.finish_like_native(&program("two_peaks", opt), &[]);
    });
}

/// A process has one tracer at most: the second darc names the first and touches nothing.
#[test]
fn two_at_once() {
    for_all(|engine, opt| {
        let target = Target::start("two_peaks", opt, &[]);
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let (mut first, output, folder) = task.start_attach(target.pid());
        first.wait_for_probes(target.pid());
        let second = Task::new(engine, "serve").attach(target.pid());
        let line = second.darc.failure(3);
        assert!(
            line.contains("already") && line.contains(&format!("by process {}", first.pid())),
            "{line}"
        );
        assert!(is_probed(target.pid()), "the first goes on");
        first.signal(nix::sys::signal::Signal::SIGINT);
        assert_eq!(first.finish().code(), 0);
        assert!(output.exists(), "{folder:?}");
        target.finish_like_native(&program("two_peaks", opt), &[]);
    });
}

/// The program's file may be deleted or replaced while it runs.
#[test]
fn a_deleted_program() {
    for_all(|engine, opt| {
        measured(|| {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("server");
            copy_program(program("two_peaks", opt), &path);
            let target = Target::start_at(&path, &[]);
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, "something else").expect("written");
            let analysis = Task::new(engine, "serve").attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            let judged = analysis.report().judge(ground_truth("two_peaks"));
            assert!(target.finish().status.success());
            judged
        })
    });
}

/// The terminal report of `attach` is text; a stored result can be shown again in both formats.
#[test]
fn results_can_be_shown_again() {
    measured(|| {
        let target = Target::start("two_peaks", Opt::O2, &[]);
        let analysis = Task::new("int3", "serve").attach(target.pid());
        drop(target);
        let file = analysis.output.to_str().expect("text");
        let shown = run_darc(&["report", file]);
        assert_eq!(shown.code(), 0, "{shown:#?}");
        let json = run_darc(&["report", "--format", "json", file]);
        let again: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
        assert_eq!(again, analysis.report().0);
        let costs = analysis.folder.path().join("callgrind.out");
        let mut command = darc(&["report", "--format", "callgrind", file, "-o"]);
        assert_eq!(execute(command.arg(&costs)).code(), 0);
        if !shown.stdout.contains("rehash") {
            return Err(Unfinished(format!("{shown:#?}")));
        }
        if let Some(annotated) = annotated(&costs) {
            for function in ["two_peaks.c:serve [", "two_peaks.c:rehash ["] {
                assert!(annotated.contains(function), "{annotated}");
            }
        }
        Ok(())
    });
}

/// A sleeping program that never calls anything can be left at once.
#[test]
fn a_program_that_sleeps() {
    for_all(|engine, _| {
        let mut child = Command::new("/bin/sleep")
            .arg("600")
            .spawn()
            .expect("started");
        let pid = i32::try_from(child.id()).expect("an id");
        wait_until("its sleep", || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            call.starts_with("230 ") // clock_nanosleep
        });
        let before = ProcessState::of(pid);
        let analysis = Task::new(engine, "libc.so.6:malloc")
            .options(&["-d", "300ms"])
            .attach(pid);
        assert_eq!(analysis.darc.code(), 7, "{analysis:#?}");
        before.check_unchanged(pid);
        assert!(child.try_wait().expect("ours").is_none());
        child.kill().expect("ours");
        child.wait().expect("ours");
    });
}

/// A command in a pid namespace of its own, below that of another one which waits for it.
fn in_own_pid_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork"]);
    command.arg("--mount-proc");
    command
}

/// Whether the command runs here.
fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.output().is_ok_and(|output| output.status.success())
}

/// The process that is the target's only child.
fn only_child(target: &Target) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let children = std::fs::read_to_string(children).expect("it lives");
    children.trim().parse().expect("one child")
}

/// Its threads have other numbers outside: the windows are told with the ones, stacks and CPU time with the others.
#[test]
fn what_the_threads_of_a_container_run_is_divided() {
    if !succeeds(in_own_pid_namespace().arg("true")) {
        not_tested("namespaces cannot be made here");
        return;
    }
    measured(|| {
        let path = program("four_threads", Opt::O2);
        let target = Target::start_command(in_own_pid_namespace().arg(path).arg("wait"));
        let pid = only_child(&target).to_string();
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let output = folder.path().join("out.json");
        let file = output.to_str().expect("text");
        let darc = run_darc(&[
            "attach", &pid, "-q", "-d", "2s", "--format", "json", "-o", file,
        ]);
        assert!(target.finish().status.success());
        let report = Report::read(&output, &darc);
        assert_eq!(report.at("/f0/name"), "work");
        let all = || Unfinished(format!("in {:#}", report.0));
        if report.at("/time/windows") == 0 {
            return Err(all());
        }
        let share = report.at("/time/share_of_cpu").as_f64().ok_or_else(all)?;
        assert!(share > 0.5, "{:#}", report.0);
        // For how long its threads were ready and did not run is told by those numbers, too.
        report.at("/time/not_running").as_f64().ok_or_else(all)?;
        Ok(())
    });
}

/// A process in user, pid and mount namespaces of its own, where its file has another path.
#[test]
fn a_process_in_a_container() {
    let own_namespaces = |path: &Path| {
        let folder = path.parent().expect("a folder").display().to_string();
        let mut command = in_own_pid_namespace();
        // The folder of the program is mounted elsewhere, and hidden where it is outside.
        let script =
            "mount --bind \"$1\" /mnt && mount -t tmpfs none \"$1\" && exec /mnt/two_peaks wait";
        command.args(["sh", "-c", script, "sh", &folder]);
        command
    };
    for_all(|engine, opt| {
        let path = program("two_peaks", opt);
        if !succeeds(&mut own_namespaces(&path)) {
            not_tested("namespaces cannot be made here");
            return;
        }
        measured(|| {
            let target = Target::start_command(&mut own_namespaces(&path));
            let pid = only_child(&target);
            let before = ProcessState::of(pid);
            let analysis = Task::new(engine, "serve").attach(pid);
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            before.check_unchanged(pid);
            assert!(target.finish().status.success());
            analysis.report().judge(ground_truth("two_peaks"))
        });
    });
}
