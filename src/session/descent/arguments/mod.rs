//! What system calls were called with, where that says what was waited for: the file behind a descriptor, the lock
//! behind a futex, a path that the program has as a constant. Of page faults: what memory they are of.

mod naming;
mod sockets;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use darc_analysis::off_cpu::{Interval, touching};
use darc_analysis::{Absence, Analysis, Callee};
use darc_process::modules::Modules;
use darc_record::{FnodeId, Op, Ticks, Tsc};
use darc_report::model::ArgumentEntry;
use darc_tracer::maps::{self, Mapping};

use naming::{descriptor, lock, memory, path};
use sockets::Sockets;

/// Which argument of a system call matters, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    /// The first one is a file descriptor.
    Descriptor,
    /// Those with these indices are file descriptors: what is moved comes from the first one.
    Transfer([usize; 2]),
    /// The first one is the address of a lock.
    Lock,
    /// The one with this index is the address of a path.
    Path(usize),
}

/// Calls of one fnode that are looked at for each peak: enough to say which value is common.
const ENOUGH: u64 = 200;
/// Different values that are kept of them,
const MOST_VALUES: usize = 64;
/// and shown.
const SHOWN: usize = 3;
/// Addresses whose names are remembered.
const MOST_NAMES: usize = 4096;
/// Page faults that are looked at as system calls are: each is looked up in all that is mapped then.
const ENOUGH_FAULTS: u64 = 50;

/// The system calls whose arguments are asked for (their manual pages, section 2).
fn meaning(name: &str) -> Option<Meaning> {
    const DESCRIPTORS: [&str; 33] = [
        "accept",
        "accept4",
        "connect",
        "epoll_pwait",
        "epoll_wait",
        "fallocate",
        "fdatasync",
        "flock",
        "fstat",
        "fsync",
        "ftruncate",
        "getdents64",
        "io_uring_enter",
        "ioctl",
        "pread64",
        "preadv",
        "preadv2",
        "pwrite64",
        "pwritev",
        "pwritev2",
        "read",
        "readahead",
        "readv",
        "recvfrom",
        "recvmmsg",
        "recvmsg",
        "sendmmsg",
        "sendmsg",
        "sendto",
        "sync_file_range",
        "syncfs",
        "write",
        "writev",
    ];
    const PATHS: [&str; 20] = [
        "access", "chdir", "chmod", "chown", "creat", "execve", "lchown", "link", "lstat", "mkdir",
        "mknod", "open", "readlink", "rename", "rmdir", "stat", "statfs", "symlink", "truncate",
        "unlink",
    ];
    const PATHS_AT: [&str; 14] = [
        "execveat",
        "faccessat",
        "faccessat2",
        "fchmodat",
        "fchownat",
        "linkat",
        "mkdirat",
        "newfstatat",
        "openat",
        "openat2",
        "readlinkat",
        "renameat2",
        "statx",
        "unlinkat",
    ];
    match name {
        "futex" | "futex_wait" => Some(Meaning::Lock),
        "sendfile" => Some(Meaning::Transfer([1, 0])),
        "tee" => Some(Meaning::Transfer([0, 1])),
        "copy_file_range" | "splice" => Some(Meaning::Transfer([0, 2])),
        name if PATHS.contains(&name) => Some(Meaning::Path(0)),
        name if PATHS_AT.contains(&name) => Some(Meaning::Path(1)),
        name if DESCRIPTORS.contains(&name) => Some(Meaning::Descriptor),
        _ => None,
    }
}

fn name(number: u32) -> Option<&'static str> {
    Some(syscalls::Sysno::new(number as usize)?.name())
}

/// The name of a system call whose arguments say something.
#[must_use]
pub fn telling(callee: Callee) -> Option<&'static str> {
    let Callee::Syscall(Some(number)) = callee else {
        return None;
    };
    name(number).filter(|name| meaning(name).is_some())
}

/// The values of one fnode in one peak.
#[derive(Clone, Default, Debug)]
struct Seen {
    calls: u64,
    values: BTreeMap<String, u64>,
}

impl Seen {
    fn add(&mut self, value: String) {
        self.calls += 1;
        if self.values.len() < MOST_VALUES || self.values.contains_key(&value) {
            *self.values.entry(value).or_default() += 1;
        }
    }
}

/// What a process had mapped at a time: with many mappings they take long to read.
#[derive(Clone, Debug)]
struct Mapped {
    at: Instant,
    mappings: Vec<Mapping>,
}

impl Mapped {
    fn of(pid: i32) -> Mapped {
        Mapped {
            at: Instant::now(),
            mappings: maps::read(pid).unwrap_or_default(),
        }
    }

    /// Whether it tells of an address still.
    fn is_of(&self, address: u64) -> bool {
        const LATELY: Duration = Duration::from_millis(20);
        let is_there = |mapping: &Mapping| mapping.contains(address);
        self.at.elapsed() < LATELY && self.mappings.iter().any(is_there)
    }
}

/// What was seen.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    seen: HashMap<(FnodeId, u32), Seen>,
    /// By the numbers that peaks had before.
    before: HashMap<(FnodeId, u32), Seen>,
    /// What was mapped lately.
    mapped: Option<Mapped>,
    locks: HashMap<u64, String>,
    paths: HashMap<u64, String>,
    sockets: Sockets,
}

impl Arguments {
    /// Looks at the longest call of each system call in an op. `find` knows what a call was called with.
    pub fn take(
        &mut self,
        op: &Op,
        analysis: &Analysis,
        modules: &Modules,
        pid: i32,
        find: impl Fn(u32, Tsc, Tsc) -> Option<[u64; 6]>,
    ) {
        /// The two clocks may differ by so much, in cycles.
        const LEEWAY: u64 = 1_000;
        let Some(peak) = analysis.peak_of_op(op) else {
            return;
        };
        for touched in &op.touched {
            let callee = analysis
                .ftree()
                .get(touched.fnode)
                .map(|fnode| fnode.callee);
            let Some(Callee::Syscall(Some(number))) = callee else {
                continue;
            };
            let Some(meaning) = name(number).and_then(meaning) else {
                continue;
            };
            let key = (touched.fnode, peak);
            if self.seen.get(&key).is_some_and(|seen| seen.calls >= ENOUGH) {
                continue;
            }
            let from = Tsc(touched.max_start.0.saturating_sub(LEEWAY));
            let to = touched
                .max_start
                .0
                .saturating_add(touched.max.0.max(LEEWAY));
            let to = Tsc(to);
            let Some(called_with) = find(number, from, to) else {
                continue;
            };
            let named = |names: &mut HashMap<u64, String>, at, name: &dyn Fn() -> String| {
                let known = names.get(&at).cloned().unwrap_or_else(name);
                if names.len() < MOST_NAMES {
                    names.insert(at, known.clone());
                }
                known
            };
            let value = match meaning {
                Meaning::Descriptor => descriptor(pid, called_with[0], &mut self.sockets),
                Meaning::Transfer(ends) => {
                    let [from, to] =
                        ends.map(|end| descriptor(pid, called_with[end], &mut self.sockets));
                    format!("{from} to {to}")
                }
                Meaning::Lock => {
                    let at = called_with[0];
                    named(&mut self.locks, at, &|| lock(pid, at, modules))
                }
                Meaning::Path(index) => {
                    let at = called_with[index];
                    named(&mut self.paths, at, &|| path(pid, at))
                }
            };
            self.seen.entry(key).or_default().add(value);
        }
    }

    /// Looks at the longest page fault of each function in an op; each comes with the address that was touched.
    pub fn take_faults(
        &mut self,
        op: &Op,
        analysis: &Analysis,
        modules: &Modules,
        pid: i32,
        faults: &[(Interval, u64)],
    ) {
        let (Some(peak), false) = (analysis.peak_of_op(op), faults.is_empty()) else {
            return;
        };
        let ftree = analysis.ftree();
        let mut longest: BTreeMap<FnodeId, (Ticks, u64)> = BTreeMap::new();
        for (fault, address) in faults {
            let function = touching(ftree, op, fault);
            // It has a place once there is one.
            let Some(place) = ftree.known_absence(function, Absence::PageFault) else {
                continue;
            };
            let known = longest.entry(place).or_default();
            *known = (*known).max((fault.to - fault.from, *address));
        }
        for (place, (_, address)) in longest {
            let seen = self.seen.entry((place, peak)).or_default();
            if seen.calls < ENOUGH_FAULTS {
                let known = self.mapped.take_if(|known| known.is_of(address));
                let mapped = self.mapped.insert(known.unwrap_or_else(|| Mapped::of(pid)));
                seen.add(memory(&mapped.mappings, address, modules));
            }
        }
    }

    /// Peaks have other numbers: that of peak `n` is at index `n - 1`, none where it is no peak any more.
    pub fn renumber_peaks(&mut self, now: &[Option<u32>]) {
        let number = |peak: u32| now.get((peak as usize).checked_sub(1)?).copied().flatten();
        self.before = std::mem::take(&mut self.seen);
        let seen = self.before.clone().into_iter();
        self.seen = seen
            .filter_map(|((fnode, peak), seen)| Some(((fnode, number(peak)?), seen)))
            .collect();
    }

    /// Peaks have the numbers of before again.
    pub fn take_back(&mut self) {
        self.seen = std::mem::take(&mut self.before);
    }

    /// What an fnode's calls were called with in the ops of a peak, the most frequent first.
    #[must_use]
    pub fn entries(&self, fnode: FnodeId, peak: u32) -> Vec<ArgumentEntry> {
        let Some(seen) = self.seen.get(&(fnode, peak)) else {
            return Vec::new();
        };
        let mut values: Vec<(&String, &u64)> = seen.values.iter().collect();
        values.sort_by_key(|&(value, &count)| (std::cmp::Reverse(count), value));
        values
            .into_iter()
            .take(SHOWN)
            .map(|(value, &count)| ArgumentEntry {
                value: value.clone(),
                count,
                of: seen.calls,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_say_something_are_asked_for() {
        let of = |number| telling(Callee::Syscall(Some(number)));
        assert_eq!(of(202), Some("futex"));
        assert_eq!(of(0), Some("read"));
        assert_eq!(of(4), Some("stat"));
        assert_eq!(of(35), None, "nanosleep");
        assert_eq!(of(40), Some("sendfile"));
        assert_eq!(meaning("sendfile"), Some(Meaning::Transfer([1, 0])));
        assert_eq!(meaning("splice"), Some(Meaning::Transfer([0, 2])));
        assert_eq!(telling(Callee::Unknown), None);
    }
}
