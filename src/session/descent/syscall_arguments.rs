//! What system calls were called with, where that says what was waited for: the file behind a descriptor, the lock
//! behind a futex, a path that the program has as a constant.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use darc_analysis::{Analysis, Callee};
use darc_process::modules::{CodeRef, Modules};
use darc_record::{FnodeId, Op, Ticks, Tsc};
use darc_report::model::ArgumentEntry;
use darc_symbols::{FileAddr, Image, demangle};
use darc_tracer::{maps, threads};

/// Which argument of a system call matters, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    /// The first one is a file descriptor.
    Descriptor,
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
/// Of a longer path the beginning is told, in bytes.
const LONGEST_PATH: u64 = 256;

/// The system calls whose arguments are asked for (their manual pages, section 2).
fn meaning(name: &str) -> Option<Meaning> {
    const DESCRIPTORS: [&str; 35] = [
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
        "sendfile",
        "sendmmsg",
        "sendmsg",
        "sendto",
        "splice",
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

/// What was seen.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    seen: HashMap<(FnodeId, u32), Seen>,
    /// By the numbers that peaks had before.
    before: HashMap<(FnodeId, u32), Seen>,
    locks: HashMap<u64, String>,
    paths: HashMap<u64, String>,
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
            let to = Tsc((from.0).saturating_add((touched.max + Ticks(2 * LEEWAY)).0));
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
                Meaning::Descriptor => descriptor(pid, called_with[0]),
                Meaning::Lock => {
                    let at = called_with[0];
                    named(&mut self.locks, at, &|| lock(pid, at, modules))
                }
                Meaning::Path(index) => {
                    let at = called_with[index];
                    named(&mut self.paths, at, &|| path(pid, at))
                }
            };
            let seen = self.seen.entry(key).or_default();
            seen.calls += 1;
            if seen.values.len() < MOST_VALUES || seen.values.contains_key(&value) {
                *seen.values.entry(value).or_default() += 1;
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

/// The path at an address. It is read some milliseconds after the call, and what the program may have written since is no
/// longer what the call was called with: so only constants are told.
fn path(pid: i32, address: u64) -> String {
    let mappings = maps::read(pid).unwrap_or_default();
    let holder = mappings.iter().find(|mapping| mapping.contains(address));
    let Some(holder) = holder.filter(|mapping| mapping.readable) else {
        return "a path that could not be read".to_owned();
    };
    if holder.writable || (holder.shared && !holder.is_file()) {
        return "a path that was made while it ran (not read)".to_owned();
    }
    let room = LONGEST_PATH.min(holder.end - address);
    let mut bytes = vec![0; room as usize];
    let read = std::fs::File::open(threads::proc_folder(pid).join("mem"))
        .and_then(|memory| memory.read_exact_at(&mut bytes, address));
    match read {
        Ok(()) => {
            let end = bytes.iter().position(|&byte| byte == 0);
            let shown = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
            match end {
                Some(_) => format!("\"{shown}\""),
                None => format!("\"{shown}…\""),
            }
        }
        Err(_) => "a path that could not be read".to_owned(),
    }
}

/// The file behind a descriptor, as it is now.
fn descriptor(pid: i32, value: u64) -> String {
    let number = value as u32 as i32;
    let link = threads::proc_folder(pid).join(format!("fd/{number}"));
    match std::fs::read_link(link) {
        Ok(file) => match socket_inode(&file) {
            Some(inode) => format!("fd {number}, {}", socket(pid, inode)),
            None => format!("fd {number}, {}", file.display()),
        },
        Err(_) => format!("fd {number}"),
    }
}

fn socket_inode(link: &Path) -> Option<&str> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')
}

/// A socket, from the tables below /proc/PID/net (proc_pid_net(5)).
fn socket(pid: i32, inode: &str) -> String {
    let folder = threads::proc_folder(pid).join("net");
    let line = |table: &str| {
        let text = std::fs::read_to_string(folder.join(table)).ok()?;
        let mut lines = text.lines().skip(1);
        let found = lines.find(|line| line.split_whitespace().any(|word| word == inode));
        found.map(str::to_owned)
    };
    for (table, protocol) in [
        ("tcp", "TCP"),
        ("tcp6", "TCP"),
        ("udp", "UDP"),
        ("udp6", "UDP"),
    ] {
        let Some(line) = line(table) else { continue };
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next().and_then(port), words.next().and_then(port));
        return match (local, remote) {
            (Some(local), Some(0)) => format!("{protocol} socket, port {local}"),
            (Some(local), Some(remote)) => {
                format!("{protocol} socket, port {local} to port {remote}")
            }
            _ => format!("{protocol} socket"),
        };
    }
    match line("unix") {
        Some(line) => match line.split_whitespace().nth(7) {
            Some(path) => format!("Unix socket {path}"),
            None => "Unix socket".to_owned(),
        },
        None => "a socket".to_owned(),
    }
}

/// The port of an address such as `0100007F:1F90`.
fn port(address: &str) -> Option<u16> {
    u16::from_str_radix(address.rsplit(':').next()?, 16).ok()
}

/// The variable at an address, or what memory it is in.
fn lock(pid: i32, address: u64, modules: &Modules) -> String {
    for id in modules.loaded() {
        let start = CodeRef {
            module: id,
            addr: FileAddr(0),
        };
        let (Some(image), Some(bias)) = (modules.get(id).image.as_ref(), modules.locate(start))
        else {
            continue;
        };
        let at = FileAddr(address.wrapping_sub(bias.0));
        if !is_within(image, at) {
            continue;
        }
        let path = &modules.get(id).path;
        let file = path.rsplit('/').next().unwrap_or(path);
        return match image.data_at(at) {
            Some((name, 0)) => format!("{} in {file}", demangle(&name)),
            Some((name, inside)) => format!("{}+{inside:#x} in {file}", demangle(&name)),
            None => format!("{file}+{:#x}", at.0),
        };
    }
    let mappings = maps::read(pid).unwrap_or_default();
    let holder = mappings
        .iter()
        .find(|mapping| (mapping.start..mapping.end).contains(&address));
    let memory = match holder.map(|mapping| mapping.name.to_string_lossy()) {
        Some(name) if name == "[heap]" => "the heap".to_owned(),
        Some(name) if name == "[stack]" => "the main thread's stack".to_owned(),
        // What the kernel calls memory of no file that is shared (mm/shmem.c, shmem_zero_setup).
        Some(name) if name == "/dev/zero (deleted)" => {
            "memory shared with other processes".to_owned()
        }
        Some(name) if !name.is_empty() => name.into_owned(),
        _ => "memory without a name".to_owned(),
    };
    format!("{address:#x} in {memory}")
}

fn is_within(image: &Image, at: FileAddr) -> bool {
    image.segments().iter().any(|segment| {
        let inside = at.0.checked_sub(segment.addr.0);
        inside.is_some_and(|inside| inside < segment.mem_size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets_are_read() {
        assert_eq!(port("0100007F:1F90"), Some(8080));
        assert_eq!(port("00000000000000000000000001000000:0016"), Some(22));
        assert_eq!(port("rubbish"), None);
        assert_eq!(socket_inode(Path::new("socket:[12]")), Some("12"));
        assert_eq!(socket_inode(Path::new("/dev/null")), None);
    }

    #[test]
    fn descriptors_and_locks_are_named() {
        use std::os::fd::AsRawFd;
        let own = std::process::id() as i32;
        let file = std::fs::File::open("/dev/zero").unwrap();
        let number = file.as_raw_fd();
        let named = descriptor(own, number as u64);
        assert_eq!(named, format!("fd {number}, /dev/zero"));
        assert_eq!(descriptor(own, u64::from(u32::MAX)), "fd -1");
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let named = descriptor(own, one.as_raw_fd() as u64);
        assert!(named.ends_with("Unix socket"), "{named}");
        static LOCK: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let mut modules = Modules::default();
        modules.refresh(own).unwrap();
        let named = lock(own, std::ptr::from_ref(&LOCK).addr() as u64, &modules);
        assert!(named.contains("LOCK"), "{named}");
        let here = 0_u32;
        let named = lock(own, std::ptr::from_ref(&here).addr() as u64, &modules);
        assert!(named.starts_with("0x"), "{named}");
    }

    #[test]
    fn paths_are_told_that_cannot_have_changed() {
        let own = std::process::id() as i32;
        let at = |text: &std::ffi::CStr| text.as_ptr().addr() as u64;
        assert_eq!(path(own, at(c"/etc/host name")), "\"/etc/host name\"");
        static LONG: [u8; 2 * LONGEST_PATH as usize] = [b'a'; 2 * LONGEST_PATH as usize];
        let named = path(own, LONG.as_ptr().addr() as u64);
        assert_eq!(named, format!("\"{}…\"", "a".repeat(LONGEST_PATH as usize)));
        let made = std::ffi::CString::new("/etc/hosts").unwrap();
        assert!(path(own, at(&made)).contains("not read"));
        assert!(path(own, 16).contains("could not be read"));
    }

    #[test]
    fn only_calls_that_say_something_are_asked_for() {
        let of = |number| telling(Callee::Syscall(Some(number)));
        assert_eq!(of(202), Some("futex"));
        assert_eq!(of(0), Some("read"));
        assert_eq!(of(4), Some("stat"));
        assert_eq!(of(35), None, "nanosleep");
        assert_eq!(telling(Callee::Unknown), None);
    }
}
