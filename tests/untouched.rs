//! What of a process must be after detaching as it was before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::wait_until_seen;

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
        let folder = live_thread(pid).expect("it lives");
        let status = fs::read_to_string(format!("{folder}/status")).expect("it lives");
        let status = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(key, _)| STATUS_LINES.contains(key))
            .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
            .collect();
        let maps = maps(&folder)
            .expect("it lives")
            .lines()
            .map(str::to_owned)
            .collect();
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

    /// As [`ProcessState::check_unchanged`], for a process that may have been in a system call below f0
    /// when darc left: what such a call returns to stays mapped, memory that nothing else leads to.
    pub fn check_unchanged_but_for_memory(&self, pid: i32) {
        check_released(pid);
        check_text(pid);
        self.check_becomes(|| {
            let mut now = ProcessState::of(pid);
            now.maps.retain(|line| {
                let is_nobodys =
                    line.trim_end().ends_with(" 00:00 0") || line.contains("/memfd:darc");
                self.maps.contains(line) || !is_nobodys
            });
            now
        });
    }

    /// Checks that nobody traces the process, that none of its threads is stopped, that its code is
    /// that of its files, and that the rest is as it was.
    pub fn check_unchanged(&self, pid: i32) {
        check_released(pid);
        check_text(pid);
        self.check_becomes(|| ProcessState::of(pid));
    }

    /// Checks that the state is this one at some moment: the process itself changes it for moments, as the C library does
    /// that blocks all signals while it makes a process.
    fn check_becomes(&self, state: impl Fn() -> ProcessState) {
        let seen = || format!("{self:#?}\n{:#?}\n", state());
        wait_until_seen("the state from before", || *self == state(), seen);
    }
}

/// The mappings of the process, through a thread that lives.
fn maps(folder: &str) -> Option<String> {
    fs::read_to_string(format!("{folder}/maps")).ok()
}

/// The folder in /proc of a thread that lives: the main thread may have ended.
fn live_thread(pid: i32) -> Option<String> {
    let mut tids: Vec<i32> = fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // The main thread first, for others may end any moment. Ids wrap around: it need not have the lowest.
    tids.sort_by_key(|&tid| (tid != pid, tid));
    tids.iter()
        .map(|tid| format!("/proc/{pid}/task/{tid}"))
        .find(|folder| !matches!(state(folder), Some('Z' | 'X') | None))
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
    assert_eq!(
        differing_text(pid),
        Some(0),
        "bytes of code that differ in process {pid}"
    );
}

/// Whether a probe is in the code of the process.
pub fn is_probed(pid: i32) -> bool {
    differing_text(pid).is_some_and(|differing| differing > 0)
}

/// How many bytes of mapped code are not those of the file; `None` for a process that is gone.
pub fn differing_text(pid: i32) -> Option<usize> {
    let folder = live_thread(pid)?;
    let memory = File::open(format!("{folder}/mem")).ok()?;
    let (mut differing, mut compared) = (0, 0);
    for line in maps(&folder)?.lines() {
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
        memory.read_exact_at(&mut mapped, number(start)).ok()?;
        // As the process sees it: it may have a root of its own.
        let path = Path::new(&folder).join("root").join(&path[1..]);
        let file = File::open(path).expect("the file is there");
        // The last page of a mapping may reach beyond the file's end.
        let read = file.read_at(&mut stored, number(offset)).expect("readable");
        differing += bytes_differing(&mapped[..read], &stored[..read]);
        compared += read;
    }
    (compared > 0).then_some(differing)
}

/// At how many places these differ. Whole pages are compared first: a test's build takes long to go through a library byte by byte.
fn bytes_differing(these: &[u8], those: &[u8]) -> usize {
    const PAGE: usize = 4096;
    let pages = these.chunks(PAGE).zip(those.chunks(PAGE));
    let differing = pages.filter(|(this, that)| this != that);
    let bytes = differing.flat_map(|(this, that)| this.iter().zip(that));
    bytes.filter(|(this, that)| this != that).count()
}
