//! What of a process must be after detaching as it was before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The lines of `/proc/PID/status` that a tracer could change.
const STATUS_LINES: [&str; 12] = [
    "Umask",
    "PPid",
    "NSpgid",
    "NSsid",
    "TracerPid",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "Seccomp",
    "CapEff",
];

/// A process at one moment, without what changes by itself.
#[derive(PartialEq, Eq, Debug)]
pub struct ProcessState {
    status: BTreeMap<String, String>,
    maps: Vec<String>,
    files: Vec<String>,
}

impl ProcessState {
    pub fn of(pid: i32) -> ProcessState {
        let folder = live_thread(pid);
        let status = fs::read_to_string(format!("{folder}/status")).expect("it lives");
        let status = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(key, _)| STATUS_LINES.contains(key))
            .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
            .collect();
        let maps = maps(&folder).lines().map(str::to_owned).collect();
        let mut files: Vec<String> = fs::read_dir(format!("{folder}/fd"))
            .expect("it is ours")
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let file = fs::read_link(&path).ok()?;
                Some(format!(
                    "{} {}",
                    path.file_name()?.display(),
                    file.display()
                ))
            })
            .collect();
        files.sort();
        ProcessState {
            status,
            maps,
            files,
        }
    }

    /// Checks that nobody traces the process, that none of its threads is stopped, that its code is
    /// that of its files, and that the rest is as it was.
    pub fn check_unchanged(&self, pid: i32) {
        check_released(pid);
        check_text(pid);
        assert_eq!(*self, ProcessState::of(pid));
    }
}

/// The maps file: empty for a thread that has ended, which the others are not.
fn maps(folder: &str) -> String {
    fs::read_to_string(format!("{folder}/maps")).expect("it lives")
}

/// The folder in /proc of a thread that lives: the main thread may have ended.
fn live_thread(pid: i32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let mut tids: Vec<i32> = tasks
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    tids.sort_unstable();
    tids.iter()
        .map(|tid| format!("/proc/{pid}/task/{tid}"))
        .find(|folder| !matches!(state(folder), Some('Z' | 'X') | None))
        .expect("one thread lives")
}

/// The state of the thread whose folder this is, as one letter.
fn state(folder: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The state of the process's main thread.
pub fn process_state(pid: i32) -> Option<char> {
    state(&format!("/proc/{pid}"))
}

/// The tracer of the process, 0 for none.
pub fn tracer_of(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

/// Nobody traces any thread, and none is stopped.
pub fn check_released(pid: i32) {
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives") {
        let folder = task.expect("readable").path().display().to_string();
        let Ok(status) = fs::read_to_string(format!("{folder}/status")) else {
            continue;
        };
        assert!(status.contains("TracerPid:\t0\n"), "{status}");
        assert!(!matches!(state(&folder), Some('t' | 'T')), "{status}");
    }
}

/// Every byte of mapped code is that of the file.
pub fn check_text(pid: i32) {
    let folder = live_thread(pid);
    let memory = File::open(format!("{folder}/mem")).expect("it is ours");
    let mut compared = 0;
    for line in maps(&folder).lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, permissions, offset, _, _, path] = fields[..] else {
            continue;
        };
        if !permissions.contains('x') || !path.starts_with('/') {
            continue;
        }
        let (start, end) = range.split_once('-').expect("a range");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let length = usize::try_from(number(end) - number(start)).expect("fits");
        let (mut mapped, mut stored) = (vec![0; length], vec![0; length]);
        memory
            .read_exact_at(&mut mapped, number(start))
            .expect("mapped");
        let file = File::open(Path::new(path)).expect("the file is there");
        // The last page of a mapping may reach beyond the file's end.
        let read = file.read_at(&mut stored, number(offset)).expect("readable");
        let differing = (0..read)
            .filter(|&index| mapped[index] != stored[index])
            .count();
        assert_eq!(differing, 0, "bytes of {path} differ in process {pid}");
        compared += read;
    }
    assert!(compared > 0, "there is code to compare");
}
