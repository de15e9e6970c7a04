//! What other tools do to a program while darc measures it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use crate::harness::{Running, Target, copy_program, darc, not_tested, wait_until};
use crate::report::Report;
use crate::untouched::{ProcessState, differing_text};

const TRACING: &str = "/sys/kernel/tracing";

/// A breakpoint that the kernel puts into all processes that run a file, as bpftrace(8) and perf-probe(1) have it do.
struct Uprobe {
    name: String,
}

impl Uprobe {
    /// `None` where the kernel lets nobody have one.
    fn new(file: &Path, offset: u64) -> Option<Uprobe> {
        let name = format!("darc_test_{}/at_{offset:x}", std::process::id());
        let event = format!("p:{name} {}:{offset:#x}\n", file.display());
        let events = fs::OpenOptions::new()
            .append(true)
            .open(format!("{TRACING}/uprobe_events"));
        std::io::Write::write_all(&mut events.ok()?, event.as_bytes()).ok()?;
        Some(Uprobe { name })
    }

    fn enable(&self, is_on: bool) {
        let enable = format!("{TRACING}/events/{}/enable", self.name);
        fs::write(enable, if is_on { "1" } else { "0" }).expect("it is ours");
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        self.enable(false);
        let events = fs::OpenOptions::new()
            .append(true)
            .open(format!("{TRACING}/uprobe_events"));
        let gone = format!("-:{}\n", self.name);
        let _ = std::io::Write::write_all(&mut events.expect("it is ours"), gone.as_bytes());
    }
}

/// Where a symbol is in a program's file, which is mapped as it is.
fn offset_of(file: &Path, symbol: &str) -> u64 {
    let listed = Command::new("nm").arg(file).output().expect("nm(1)");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let mut lines = listed.lines().map(|line| line.split(' '));
    let line = lines.find(|line| line.clone().next_back() == Some(symbol));
    let address = line.and_then(|mut line| line.next());
    u64::from_str_radix(address.expect("a symbol"), 16).expect("an address")
}

/// Where the file's first byte is in a process.
fn base_of(pid: i32, file: &Path) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let file = file.to_str().expect("it is ours");
    let first = maps.lines().find(|line| line.ends_with(file));
    let start = first.and_then(|line| line.split('-').next());
    u64::from_str_radix(start.expect("its file"), 16).expect("an address")
}

fn has_page_of_probes(pid: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    maps.contains("[uprobes]")
}

/// Somebody counts the calls of the very function that darc measures, from before darc comes or for some time while it measures, and
/// at its first byte or behind that: both see the calls, and the program is as without them.
#[test]
fn somebody_else_counts_calls_of_f0() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("two_peaks");
    copy_program(program("two_peaks", Opt::O0), &path);
    let offset = offset_of(&path, "serve");
    // push %rbp; mov %rsp,%rbp; sub $N,%rsp
    let (Some(probe), Some(behind)) = (Uprobe::new(&path, offset), Uprobe::new(&path, offset + 1))
    else {
        return not_tested("uprobes beside darc: not root, or no tracefs at /sys/kernel/tracing");
    };
    let target = Target::start_at(&path, &["brisk"]);
    let pid = target.pid();
    // The kernel keeps a page in the program for instructions that it runs elsewhere, from the first one on.
    behind.enable(true);
    wait_until("the kernel's page", || has_page_of_probes(pid));
    let before = ProcessState::of(pid);
    let out = folder.path().join("out.txt");
    let mut command = darc(&[
        "attach",
        "--f0",
        "serve",
        "--decision-ops",
        "1000000000",
        "-q",
    ]);
    command
        .args(["--format", "json", "-p", &pid.to_string(), "-o"])
        .arg(&out);
    let refused = Running::start(&mut command).finish();
    assert_ne!(refused.code(), 0, "{refused:#?}");
    let words = "a breakpoint of somebody else is in it";
    assert!(refused.stderr.contains(words), "{refused:#?}");
    behind.enable(false);
    probe.enable(true);
    let analysis = Running::start(&mut command);
    // Beside the other tool's byte.
    wait_until("probes", || differing_text(pid).is_some_and(|it| it > 1));
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("it is ours");
    let at = base_of(pid, &path) + offset;
    let first = || {
        let mut byte = [0];
        memory.read_exact_at(&mut byte, at).expect("it lives");
        byte[0]
    };
    const PUSH_RBP: u8 = 0x55;
    const INT3: u8 = 0xcc;
    assert_eq!(first(), INT3);
    probe.enable(false);
    assert_eq!(first(), PUSH_RBP, "darc begins behind it");
    let hits = || {
        let profile = fs::read_to_string(format!("{TRACING}/uprobe_profile")).expect("it is there");
        let file = path.to_str().expect("it is ours");
        let name = format!(" at_{offset:x} ");
        let mut lines = profile.lines();
        let mine = lines.find(|line| line.contains(file) && line.contains(&name));
        let count = mine.and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        count.unwrap_or(0)
    };
    probe.enable(true);
    wait_until("calls that the other tool sees", || hits() > 200);
    probe.enable(false);
    assert_eq!(first(), PUSH_RBP);
    analysis.signal(Signal::SIGINT);
    let finished = analysis.finish();
    assert_eq!(finished.code(), 0, "{finished:#?}");
    assert!(Report::read(&out, &finished).ops() > 200);
    before.check_unchanged(pid);
    target.finish_like_native(&path, &["brisk"]);
}
