//! The files in which a process says what the code is called that it makes while it runs.
//!
//! `/tmp/perf-PID.map` is looked for in the process's own file system, under its number in its own pid namespace; a jitdump
//! is one that the process has mapped. The first may be anybody's: `/tmp` is everybody's folder. It is read only when it
//! is a file of the process's own user, or of root, that this user may read, and no link. How much is read of all
//! files is bounded. Source: perf's rules, tools/perf/util/map.c and jitdump.c.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use darc_symbols::JitSymbols;
use darc_tracer::identity::number_inside;
use darc_tracer::maps::{self, Mapping};
use darc_tracer::threads;
use darc_tracer::users::User;

use crate::target_files;

/// Bytes that may still be read of such files, of all processes and times together.
static LEFT_TO_READ: AtomicU64 = AtomicU64::new(8 << 30);
/// More jitdumps of one process are not opened: each part of a run-time has one at most.
const MOST_DUMPS: usize = 16;

/// The files of one process, open: they can be read when it has ended.
#[derive(Debug, Default)]
pub struct JitFiles {
    maps: Vec<File>,
    dumps: Vec<File>,
}

impl JitFiles {
    /// Opens what a process has written so far, and what it will go on writing to.
    #[must_use]
    pub fn open(pid: i32) -> JitFiles {
        let mappings = maps::read(pid).unwrap_or_default();
        JitFiles {
            maps: perf_map(pid).into_iter().collect(),
            dumps: mappings
                .iter()
                .filter(|it| is_dump(it))
                .filter_map(|it| dump(pid, it))
                .take(MOST_DUMPS)
                .collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.maps.is_empty() && self.dumps.is_empty()
    }

    /// Bytes of all files.
    fn length(&self) -> u64 {
        let files = self.maps.iter().chain(&self.dumps);
        files
            .filter_map(|file| Some(file.metadata().ok()?.len()))
            .sum()
    }

    /// Reads them from their beginnings. What cannot be read is left out, with a warning.
    #[must_use]
    pub fn read(&self) -> (JitSymbols, Vec<String>) {
        self.read_within(&LEFT_TO_READ)
    }

    fn read_within(&self, left: &AtomicU64) -> (JitSymbols, Vec<String>) {
        let mut symbols = JitSymbols::default();
        let mut warnings = Vec::new();
        for file in &self.maps {
            if let Err(error) = within(left, file, |part| symbols.add_perf_map(part)) {
                warnings.push(format!("perf map of the process: {error}; read in part"));
            }
        }
        for file in &self.dumps {
            if let Err(error) = within(left, file, |part| symbols.add_dump(part)) {
                warnings.push(format!("jitdump of the process: {error}; read in part"));
            }
        }
        if left.load(Ordering::Relaxed) == 0 {
            warnings.push(
                "perf maps and jitdumps are read no further, for they are too large together: some code has no names"
                    .to_owned(),
            );
        }
        if symbols.was_cut() {
            warnings.push(format!(
                "the process has named more code than can be kept: only the first {} functions have names",
                symbols.len()
            ));
        }
        (symbols, warnings)
    }
}

/// Reads a file from its beginning, as far as that many bytes are left.
fn within(
    left: &AtomicU64,
    mut file: &File,
    read: impl FnOnce(&mut dyn Read) -> io::Result<()>,
) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let most = left.load(Ordering::Relaxed);
    let mut part = file.take(most);
    let outcome = read(&mut part);
    let used = most - part.limit();
    let taken = |left: u64| Some(left.saturating_sub(used));
    let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
    outcome
}

/// Files are read at most so often: they grow while they are read.
const MOST_READS: u32 = 16;

/// What one process calls the code that it makes, as far as somebody has asked.
#[derive(Debug, Default)]
pub struct MadeCode {
    pid: i32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: JitFiles,
    symbols: JitSymbols,
    warnings: Vec<String>,
    /// Bytes of the files when they were read last.
    length: u64,
    reads: u32,
}

impl MadeCode {
    /// That of a process; nothing is read yet.
    #[must_use]
    pub fn of(pid: i32) -> MadeCode {
        MadeCode {
            pid,
            state: Mutex::default(),
        }
    }

    /// Whether it is that of this process.
    #[must_use]
    pub fn is_of(&self, pid: i32) -> bool {
        self.pid == pid
    }

    /// The name of the function at an address; `name+0x12` inside of it.
    #[must_use]
    pub fn name_at(&self, addr: u64) -> Option<String> {
        let mut state = self.state();
        if state.symbols.at(addr).is_none() {
            state.read_again(self.pid);
        }
        let function = state.symbols.at(addr)?;
        Some(match addr - function.start {
            0 => function.name.to_owned(),
            inside => format!("{}+{inside:#x}", function.name),
        })
    }

    /// The entries of the functions that a person means, with their names.
    #[must_use]
    pub fn find(&self, typed: &str) -> Vec<(u64, String)> {
        let mut state = self.state();
        state.read_again(self.pid);
        let found = state.symbols.find(typed).into_iter();
        found.map(|it| (it.start, it.name.to_owned())).collect()
    }

    /// What could not be read.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.state().warnings.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reads what the process has written since.
    fn read_again(&mut self, pid: i32) {
        if pid == 0 || self.reads >= MOST_READS {
            return;
        }
        // They may be there by now. When the process has ended, those that were found stay open.
        let files = JitFiles::open(pid);
        if !files.is_empty() {
            self.files = files;
        }
        let length = self.files.length();
        if length != self.length {
            self.reads += 1;
            self.length = length;
            let (symbols, warnings) = self.files.read();
            self.warnings = warnings;
            // What cannot be read to its end any more has fewer names than are known.
            if LEFT_TO_READ.load(Ordering::Relaxed) > 0 || self.reads == 1 {
                self.symbols = symbols;
            }
        }
    }
}

fn perf_map(pid: i32) -> Option<File> {
    let number = number_inside(pid)?;
    let folder = target_files::root_of(pid).folder(Path::new("/tmp"));
    let name = format!("perf-{number}.map");
    let open = || folder.open_itself(&name);
    let file = User::of(pid)?.acting(open).ok()?.ok()?;
    let data = file.metadata().ok()?;
    let owners = threads::status_field(pid, "Uid")?;
    let is_own = owners
        .split_whitespace()
        .any(|uid| uid.parse() == Ok(data.uid()));
    (is_own || data.uid() == 0).then_some(file)
}

/// A process maps its jitdump as code, so that profilers come to know of it.
fn is_dump(mapping: &Mapping) -> bool {
    let name = mapping.name.file_name().and_then(|name| name.to_str());
    let is_dump = |name: &str| name.starts_with("jit-") && name.ends_with(".dump");
    mapping.is_file() && mapping.executable && name.is_some_and(is_dump)
}

fn dump(pid: i32, mapping: &Mapping) -> Option<File> {
    let range = mapping.start..mapping.end;
    let root = target_files::root_of(pid);
    target_files::mapped(pid, &root, (&mapping.name, mapping.file), range).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Removed with the test.
    struct Removed(String);

    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn what_is_read_is_bounded_in_all() {
        let map = |text: &str| {
            let file = tempfile::tempfile().unwrap();
            std::fs::write(format!("/proc/self/fd/{}", file.as_raw_fd()), text).unwrap();
            file
        };
        let files = JitFiles {
            maps: vec![map("1000 10 one\n2000 10 two\n"), map("3000 10 three\n")],
            dumps: Vec::new(),
        };
        let read = |most| {
            let left = AtomicU64::new(most);
            let (symbols, warnings) = files.read_within(&left);
            (symbols.len(), warnings.len(), left.into_inner())
        };
        assert_eq!(read(100), (3, 0, 62));
        assert_eq!(read(30), (2, 1, 0));
        assert_eq!(read(12), (1, 1, 0));
    }

    #[test]
    fn only_a_file_of_the_process_is_read() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let path = Removed(format!("/tmp/perf-{pid}.map"));
        let names = || {
            let (symbols, _) = JitFiles::open(pid).read();
            let names: Vec<String> = symbols.iter().map(|it| it.name.to_owned()).collect();
            names
        };
        assert_eq!(names(), Vec::<String>::new());
        std::fs::write(&path.0, "1000 10 one\n").unwrap();
        assert_eq!(names(), ["one"]);
        std::fs::remove_file(&path.0).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("file");
        std::fs::write(&elsewhere, "1000 10 secret\n").unwrap();
        symlink(&elsewhere, &path.0).unwrap();
        assert_eq!(names(), Vec::<String>::new(), "a link");
        std::fs::remove_file(&path.0).unwrap();
        nix::unistd::mkfifo(path.0.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(names(), Vec::<String>::new(), "a pipe");
        if nix::unistd::geteuid().is_root() {
            std::fs::remove_file(&path.0).unwrap();
            std::fs::write(&path.0, "1000 10 stranger\n").unwrap();
            std::os::unix::fs::chown(&path.0, Some(65534), None).unwrap();
            assert_eq!(names(), Vec::<String>::new(), "another user's");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
