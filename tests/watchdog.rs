//! What hangs is described before it is ended: where each of its threads is, in the program and in the kernel.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take before it counts as hanging. Nothing passes or fails by being quicker.
pub const HANGS_AFTER: Duration = Duration::from_secs(180);

thread_local! {
    /// The processes that this test has started.
    static STARTED: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// Remembers a child of this test.
pub fn started(pid: u32) {
    STARTED.with_borrow_mut(|started| started.push(pid.cast_signed()));
}

/// Does what may wait for other processes. When it hangs, all processes of this test are described and ended, and the test
/// fails.
pub fn watched<T>(what: &str, work: impl FnOnce() -> T) -> T {
    watched_for(HANGS_AFTER, what, work)
}

fn watched_for<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let started = STARTED.with_borrow(Vec::clone);
    let (done, waits) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let hangs = waits.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        hangs.then(|| {
            let processes = family(&started);
            let report = describe(&processes);
            for pid in processes {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            report
        })
    });
    let outcome = work();
    drop(done);
    if let Some(report) = watchdog.join().expect("it only looks") {
        panic!("waited in vain: {what}\n{report}");
    }
    outcome
}

/// What the processes of this test do.
pub fn report() -> String {
    describe(&family(&STARTED.with_borrow(Vec::clone)))
}

/// Those of the processes that are still children of this one, and all of their descendants.
fn family(started: &[i32]) -> BTreeSet<i32> {
    let me = std::process::id().cast_signed();
    let own = started.iter().copied();
    let mut open: Vec<i32> = own.filter(|&pid| parent(pid) == Some(me)).collect();
    let mut found = BTreeSet::new();
    while let Some(pid) = open.pop() {
        if found.insert(pid) {
            let children = tasks(pid).into_iter().flat_map(|task| {
                let listed = fs::read_to_string(format!("{task}/children"));
                numbers(&listed.unwrap_or_default())
            });
            open.extend(children);
        }
    }
    found
}

fn numbers(text: &str) -> Vec<i32> {
    let words = text.split_ascii_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// The folders of a process's threads in /proc.
fn tasks(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .map(|task| task.path().display().to_string())
        .collect()
}

fn describe(processes: &BTreeSet<i32>) -> String {
    let mut report = String::new();
    for &pid in processes {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let _ = writeln!(report, "process {pid}: {command}");
        for task in tasks(pid) {
            let file =
                |name: &str| fs::read_to_string(format!("{task}/{name}")).unwrap_or_default();
            let status = file("status");
            let fields = ["Name", "State", "TracerPid", "SigPnd", "ShdPnd", "SigBlk"];
            let shown = status
                .lines()
                .filter(|line| fields.iter().any(|field| line.starts_with(field)))
                .map(|line| line.replace('\t', " "))
                .collect::<Vec<_>>()
                .join(", ");
            let _ = writeln!(report, "  {task}: {shown}");
            let _ = writeln!(
                report,
                "    in {}; {}",
                file("wchan"),
                file("syscall").trim()
            );
            for frame in file("stack").lines() {
                let _ = writeln!(report, "    {frame}");
            }
        }
        report += &backtraces(pid);
    }
    report
}

/// The stacks of a process, where there is a debugger that may attach to it.
fn backtraces(pid: i32) -> String {
    let mut gdb = Command::new("timeout");
    gdb.args(["60", "gdb", "-nx", "-batch", "-p", &pid.to_string()]);
    gdb.args(["-ex", "thread apply all backtrace 40"]);
    match gdb.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let begin = text.find("\nThread ").unwrap_or(text.len());
            text[begin..].to_owned()
        }
        Err(_) => String::new(),
    }
}

#[test]
fn what_hangs_is_described_and_ended() {
    let outcome = std::panic::catch_unwind(|| {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        started(child.id());
        watched_for(Duration::from_millis(50), "the end of sleep", || {
            child.wait().expect("it is ours")
        })
    });
    let panic = outcome.expect_err("it hung");
    let report = panic.downcast_ref::<String>().expect("formatted");
    for part in ["waited in vain: the end of sleep", "sleep 1000", "State: S"] {
        assert!(report.contains(part), "{report}");
    }
}
