//! fork, vfork, posix_spawn, exec, and programs that end inside f0.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, ground_truth, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::death::blocked_in_a_measured_call;
use crate::harness::{
    Running, Target, Task, darc, execute, for_all, levels, measured, not_tested, wait_until,
};
use crate::report::Report;
use crate::untouched::{ProcessState, check_text, is_probed};

/// Children of an attached target run as if there were no darc, also those that call f0.
#[test]
fn children_run_untouched() {
    for_all(|engine, opt| {
        measured(|| {
            let target = Target::start("fork_exec", opt, &[]);
            let before = ProcessState::of(target.pid());
            let analysis = Task::new(engine, "job").attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            before.check_unchanged_but_for_memory(target.pid());
            let judged = analysis.report().judge(ground_truth("fork_exec"));
            target.finish_like_native(&program("fork_exec", opt), &[]);
            judged
        })
    });
}

/// Several processes are analysed side by side: those of one build are added up, and who has no such function is told.
#[test]
fn several_processes_at_once() {
    let target = |name| Target::start(name, Opt::O2, &[]);
    let (one, two) = (target("two_peaks"), target("two_peaks"));
    let other = target("cold_split");
    let states = [&one, &two].map(|target| ProcessState::of(target.pid()));
    let folder = tempfile::tempdir().expect("a folder");
    let attach = |targets: &[&Target]| {
        let mut attach = darc(&["attach", "--f0", "serve", "--end-with-answers"]);
        attach.args(targets.iter().map(|target| target.pid().to_string()));
        execute(attach.current_dir(folder.path()))
    };
    let analysed = attach(&[&one, &two]);
    assert_eq!(analysed.code(), 0, "{analysed:#?}");
    let mut pids = [one.pid(), two.pid()];
    pids.sort_unstable();
    let [first, second] = pids;
    let head = format!("serve in processes {first}, {second} of ");
    assert!(analysed.stdout.starts_with(&head), "{analysed:#?}");
    for pid in pids {
        assert!(
            analysed.stdout.contains(&format!("\nProcess {pid}: ")),
            "{analysed:#?}"
        );
        let file = folder.path().join(format!("out-{pid}.txt"));
        let shown = execute(&mut darc(&["report".as_ref(), file.as_os_str()]));
        assert!(shown.stdout.contains(&format!("(pid {pid})")), "{shown:#?}");
    }
    let missing = attach(&[&one, &other]);
    assert_eq!(missing.code(), 3, "{missing:#?}");
    let told = format!("darc: process {}: serve: not found", other.pid());
    assert!(missing.stderr.contains(&told), "{missing:#?}");
    assert!(
        missing.stdout.starts_with("serve in process "),
        "{missing:#?}"
    );
    // Who has no thread of that name has nothing to measure.
    let named = |name: &str| {
        let mut attach = darc(&["attach", "--f0", "serve", "--end-with-answers"]);
        attach.args(["--thread", name]);
        attach.args([&one, &other].map(|target| target.pid().to_string()));
        execute(attach.current_dir(folder.path()))
    };
    let threads = named("two_peaks");
    assert_eq!(threads.code(), 0, "{threads:#?}");
    let told = format!("process {} has no thread two_peaks", other.pid());
    assert!(threads.stderr.contains(&told), "{threads:#?}");
    assert!(named("nobody").failure(4).contains("has no thread nobody"));
    let mut nowhere = darc(&["attach", "--f0", "serve", "-o", "/dev/null"]);
    nowhere.args([&one, &two].map(|target| target.pid().to_string()));
    let nowhere = execute(&mut nowhere);
    assert!(nowhere.failure(2).contains("is no file"), "{nowhere:#?}");
    for (state, target) in states.into_iter().zip([one, two]) {
        state.check_unchanged_but_for_memory(target.pid());
        target.finish_like_native(&program("two_peaks", Opt::O2), &[]);
    }
    other.finish_like_native(&program("cold_split", Opt::O2), &[]);
}

/// One of several processes dies by a signal: the others' results stand, and the exit code says it.
#[test]
fn one_of_several_processes_is_killed() {
    let [one, two] = [(); 2].map(|()| Target::start("two_peaks", Opt::O2, &[]));
    let folder = tempfile::tempdir().expect("a folder");
    let mut attach = darc(&["attach", "--f0", "serve", "--decision-ops", "1000000000"]);
    attach.args([&one, &two].map(|target| target.pid().to_string()));
    let attach = Running::start(attach.current_dir(folder.path()));
    wait_until("probes", || {
        [&one, &two].iter().all(|target| is_probed(target.pid()))
    });
    two.signal(Signal::SIGSEGV);
    let results = folder.path().join(format!("out-{}.txt", two.pid()));
    wait_until("results of the process that died", || results.exists());
    attach.signal(Signal::SIGINT);
    let attached = attach.finish();
    assert_eq!(attached.code(), 6, "{attached:#?}");
    let peaks = format!("\nProcess {}: ", one.pid());
    assert!(attached.stdout.contains(&peaks), "{attached:#?}");
    one.finish_like_native(&program("two_peaks", Opt::O2), &[]);
}

/// The process of a container is found by a part of its control group's path.
#[test]
fn a_process_of_a_control_group() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let name = format!("darc-test-{}", target.pid());
    let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"].map(Path::new);
    // Where the folder is no control group, it has no such file.
    let moved = |group: &PathBuf| {
        let processes = |_| {
            fs::OpenOptions::new()
                .write(true)
                .open(group.join("cgroup.procs"))
        };
        let added = fs::create_dir(group).and_then(processes);
        added.is_ok_and(|mut file| write!(file, "{}", target.pid()).is_ok())
    };
    let groups = hierarchies.map(|hierarchy| hierarchy.join(&name));
    let group = groups.iter().find(|group| moved(group));
    let attach = |group: &str, more: &[&str]| {
        let mut attach = darc(&["attach", "--f0", "serve", "--end-with-answers"]);
        attach
            .args(["--cgroup", group, "-o", "/dev/null"])
            .args(more);
        execute(&mut attach)
    };
    if group.is_some() {
        let found = attach(&name, &[]);
        assert_eq!(found.code(), 0, "{found:#?}");
        assert!(
            found.stdout.contains(&format!("(pid {})", target.pid())),
            "{found:#?}"
        );
        let other = attach(&name, &["sleep"]);
        assert!(other.failure(4).contains("no such process"), "{other:#?}");
    } else {
        not_tested("no control group can be made here");
    }
    let none = attach("darc-test-none", &[]);
    assert!(none.failure(4).contains("darc-test-none"), "{none:#?}");
    target.finish_like_native(&program("two_peaks", Opt::O2), &[]);
    for group in groups {
        // Of a folder that is no control group, or was never made, nothing is left either.
        let _ = fs::remove_dir(group);
    }
}

/// Many short forks while probes are set: the child's memory is put right each time.
#[test]
fn many_forks() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "job").options(&["--decision-ops", "1000000000"]);
        task.run_like_native(&program("fork_exec", opt), &["1000", "brisk"]);
    });
}

/// What a process has of the probes that has no living maker is named, and can be taken away.
#[test]
fn an_heir_without_a_maker_is_named() {
    let target = Target::start("forks_twice", Opt::O2, &[]);
    let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000"]);
    let (mut analysis, output, _folder) = task.start_attach(target.pid());
    analysis.wait_for_probes(target.pid());
    let heirs = || {
        let same = |pid: &i32| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            *pid != target.pid() && comm.is_ok_and(|comm| comm == "forks_twice\n")
        };
        let entries = fs::read_dir("/proc").expect("it is mounted").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Its maker waits for nobody but its own child.
        pids.filter(same)
            .filter(|pid| parent(*pid) != Some(target.pid()))
            .collect::<Vec<i32>>()
    };
    // What earlier runs have left ends when init comes to it.
    let before = heirs();
    let heirs = || -> Vec<i32> {
        let new = heirs().into_iter();
        new.filter(|pid| !before.contains(pid)).collect()
    };
    target.signal(Signal::SIGUSR1);
    wait_until("a grandchild whose maker has ended", || {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", target.pid()));
        heirs().len() == 1 && children.is_ok_and(|children| children.is_empty())
    });
    let heir = heirs()[0];
    analysis.signal(Signal::SIGINT);
    let ended = analysis.finish();
    let report = Report::read(&output, &ended);
    let warnings = report.0["warnings"].to_string();
    assert!(
        warnings.contains(&format!("darc cleanup -p {heir} ")),
        "{heir}: {warnings}"
    );
    let cleaned = execute(&mut darc(&["cleanup", "-p", &heir.to_string()]));
    assert!(
        cleaned.stdout.contains("all memory was given back"),
        "{cleaned:#?}"
    );
    target.finish_like_native(&program("forks_twice", Opt::O2), &[]);
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok()
}

/// A child of clone(2) that has no thread pointer passes the probes on its way, those of counted calls too.
#[test]
fn a_child_without_a_thread_pointer() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "job").options(&["--start-ops", "20"]);
        let analysis = task.run_like_native(&program("no_thread_pointer", opt), &["400"]);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
    });
    let target = Target::start("no_thread_pointer", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let functions = ["job", "make*", "in_child"];
    let mut profile = darc(&["profile", "-p", &pid, "-d", "1s"]);
    let counted = execute(profile.args(functions));
    assert_eq!(counted.code(), 0, "{counted:#?}");
    target.finish_like_native(&program("no_thread_pointer", Opt::O2), &[]);
}

/// exec by another thread than the leader while three threads are in f0.
#[test]
fn exec_from_a_thread() {
    for_all(|engine, opt| {
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let analysis = task.run_like_native(&program("exec_from_thread", opt), &[]);
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
    });
}

#[test]
fn exec_from_a_thread_of_an_attached_program() {
    for_all(|engine, opt| {
        let target = Target::start("exec_from_thread", opt, &[]);
        let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
        let (mut darc, output, folder) = task.start_attach(target.pid());
        darc.wait_for_probes(target.pid());
        target.finish_like_native(&program("exec_from_thread", opt), &[]);
        let finished = darc.finish();
        assert!([0, 7].contains(&finished.code()), "{finished:#?}");
        assert!(output.exists(), "{folder:?}");
    });
}

/// f0 never returns because the program ends in it: same end, and what was seen is reported.
#[test]
fn programs_that_end_inside_f0() {
    for_all(|engine, opt| {
        for (end, code) in [
            ("exit", 7),
            ("_exit", 8),
            ("abort", 134),
            ("execve", 0),
            ("segv", 139),
            ("group", 9),
        ] {
            let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
            let analysis = task.run_like_native(&program("ends_in_f0", opt), &[end]);
            assert_eq!(analysis.darc.code(), code, "{end}: {analysis:#?}");
            assert!(analysis.report().ops() >= 100, "{end}: {analysis:#?}");
        }
    });
}

/// What a program inherits from darc is what it inherits from a shell.
#[test]
fn a_started_program_inherits_what_darc_inherited() {
    for_all(|engine, opt| {
        let analysis =
            Task::new(engine, "serve").run_like_native(&program("inherited_state", opt), &["20"]);
        assert!(analysis.darc.stdout.contains("umask="), "{analysis:#?}");
    });
}

/// What darc was started to ignore the program ignores as well, also the signals that darc itself would heed.
#[test]
fn a_started_program_ignores_what_darc_was_started_to_ignore() {
    for_all(|engine, opt| {
        let program = program("inherited_state", opt);
        let ignoring = |command: &[&str]| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' HUP INT USR1 USR2 XFSZ; exec \"$@\"", "sh"]);
            let finished = execute(shell.args(command).arg(&program).arg("20"));
            let signals = finished.stdout.lines();
            let signals = signals.filter(|line| line.starts_with("signal "));
            signals.map(str::to_owned).collect::<Vec<_>>()
        };
        let options = [
            "run",
            "-q",
            "--f0",
            "serve",
            "-o",
            "/dev/null",
            "--engine",
            engine,
            "--",
        ];
        let darc = [&[env!("CARGO_BIN_EXE_darc")], &options[..]].concat();
        let signals = ignoring(&darc);
        assert!(signals.len() >= 5, "{signals:?}");
        assert_eq!(signals, ignoring(&[]));
    });
}

/// A child that is made while a signal handler interrupts a measured system call returns to the call, with nobody there.
#[test]
fn a_child_returns_to_a_system_call() {
    for &opt in levels() {
        let mut target = Target::start("asks", opt, &[]);
        let options = ["--start-ops", "5", "--decision-ops", "5"];
        let task = Task::new("int3", "serve").options(&options);
        let (darc, _output, _folder) = task.start_attach(target.pid());
        let darc = blocked_in_a_measured_call(&mut target, darc);
        target.signal(Signal::SIGUSR1);
        // The child's.
        target.poke();
        assert_eq!(target.line(), "signal 10: child=0\n");
        darc.signal(Signal::SIGINT);
        darc.finish();
        check_text(target.pid());
        assert!(target.finish().status.success());
    }
}

/// A thread that waits for its vfork(2) child cannot be stopped: attaching and leaving goes on without it.
#[test]
fn a_thread_that_waits_for_its_vfork_child() {
    for_all(|engine, opt| {
        let target = Target::start("vfork_waits", opt, &[]);
        wait_until("a child", || {
            let tasks =
                std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("it lives");
            let mut tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
            tasks.any(|task| {
                let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
                stat.contains(") D ")
            })
        });
        let options = ["--start-ops", "20", "--decision-ops", "5", "-d", "20s"];
        let analysis = Task::new(engine, "serve")
            .options(&options)
            .attach(target.pid());
        assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
        assert!(analysis.report().ops() > 0, "{analysis:#?}");
        check_text(target.pid());
        target.finish_like_native(&program("vfork_waits", opt), &[]);
    });
}

/// The only thread waits for its vfork child when darc ends: its code is put back all the same.
#[test]
fn a_program_that_waits_in_the_kernel_when_darc_ends() {
    for_all(|engine, opt| {
        let target = Target::start("vfork_alone", opt, &[]);
        let stay = ["--decision-ops", "1000000000"];
        let task = Task::new(engine, "serve").options(&stay);
        let (mut darc, output, _folder) = task.start_attach(target.pid());
        darc.wait_for_probes(target.pid());
        target.signal(Signal::SIGUSR1);
        wait_until("a wait in the kernel", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", target.pid()));
            stat.expect("it lives").contains(") D ")
        });
        darc.signal(Signal::SIGINT);
        let darc = darc.finish();
        let report = Report::read(&output, &darc);
        assert_eq!(report.at("/probes/bytes_differing_after_detach"), 0);
        check_text(target.pid());
        let finished = target.finish();
        assert_eq!(finished.stdout, "child=5\n", "{finished:#?}");
        assert!(finished.status.success(), "{finished:#?}");
    });
}

/// The same of a program that darc has started: the thread stops for darc only when darc has let go of it, and goes on.
#[test]
fn a_started_program_that_waits_in_the_kernel_when_darc_ends() {
    for_all(|engine, opt| {
        let folder = tempfile::tempdir().expect("a folder");
        let options = "run -f serve --decision-ops 1000000000 -q --engine";
        let options: Vec<&str> = options.split(' ').chain([engine, "-o"]).collect();
        let mut command = darc(&options);
        command.arg(folder.path().join("out.txt")).arg("--");
        command.arg(program("vfork_alone", opt));
        let darc = Running::start(command.stdin(Stdio::piped()));
        let path = format!("/proc/{0}/task/{0}/children", darc.pid());
        let started = || {
            let children = fs::read_to_string(&path).unwrap_or_default();
            let mut children = children.split(' ').filter_map(|child| child.parse().ok());
            children.find(|child: &i32| {
                let exe = fs::read_link(format!("/proc/{child}/exe"));
                exe.is_ok_and(|exe| exe.ends_with("vfork_alone")) && is_probed(*child)
            })
        };
        wait_until("the program", || started().is_some());
        let pid = started().expect("it lives");
        wait_until("its handler", || {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            let status = status.expect("it lives");
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16);
            caught.expect("a number") & 1 << (Signal::SIGUSR1 as u32 - 1) != 0
        });
        kill(Pid::from_raw(pid), Signal::SIGUSR1).expect("it lives");
        wait_until("a wait in the kernel", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.expect("it lives").contains(") D ")
        });
        darc.signal(Signal::SIGINT);
        wait_until("the end of the probes", || !is_probed(pid));
        // Its child ends with the standard input.
        let finished = darc.finish();
        assert_eq!(finished.stdout, "ready\nchild=5\n", "{finished:#?}");
        assert_eq!(finished.code(), 0, "{finished:#?}");
    });
}

/// Whenever darc comes, the only thread may be about to wait for a child that darc holds.
#[test]
fn attaching_to_a_program_that_makes_vfork_children_all_the_time() {
    for_all(|engine, opt| {
        let target = Target::start("vfork_always", opt, &[]);
        let task = Task::new(engine, "serve").options(&["-d", "20ms", "--start-ops", "1000000"]);
        for _ in 0..10 {
            let analysis = task.attach(target.pid());
            assert!([0, 7].contains(&analysis.darc.code()), "{analysis:#?}");
        }
        check_text(target.pid());
        target.finish_like_native(&program("vfork_always", opt), &[]);
    });
}

/// exec of the program itself, of a script, and of a file without a name: the new program runs as ever, and
/// the report says that measuring ended there, or that the program has ended.
#[test]
fn a_program_that_becomes_another() {
    for_all(|engine, opt| {
        for mode in ["itself", "script", "memfd"] {
            let task = Task::new(engine, "serve").options(&["--decision-ops", "1000000000"]);
            let analysis = task.run_like_native(&program("becomes_another", opt), &[mode]);
            let report = analysis.report();
            assert_eq!(report.ops(), 200, "{mode}: {:#}", report.0);
            assert_eq!(report.status(), "undecided", "{mode}");
            let warnings = report.at("/warnings").to_string();
            assert!(warnings.contains("program"), "{mode}: {warnings}");
        }
    });
}
