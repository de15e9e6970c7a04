//! What `/proc` says about a process, and about darc.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::proc::{Stat, read_text};

use super::{Refusal, Seccomp};

/// The bit of `CAP_SYS_PTRACE` (number 19).
pub(super) const CAP_SYS_PTRACE: u64 = 1 << 19;

/// The flag of kernel threads, `PF_KTHREAD` in the kernel's include/linux/sched.h.
const PF_KTHREAD: u64 = 0x0020_0000;

/// What is known of a process.
#[derive(Debug)]
pub(super) struct Facts {
    /// The id that was asked for.
    pub asked: i32,
    /// The thread group's id.
    pub pid: i32,
    pub comm: String,
    pub kernel_thread: bool,
    /// Threads that are neither dead nor zombies.
    pub living_threads: usize,
    /// The thread group's leader is a zombie.
    pub leader_exited: bool,
    /// By SIGSTOP or its like.
    pub stopped: bool,
    pub tracer: Option<Tracer>,
    /// Real, effective, saved.
    pub uids: [u32; 3],
    /// Real, effective, saved.
    pub gids: [u32; 3],
    /// Permitted capabilities.
    pub permitted: u64,
    /// Whether its files in `/proc` belong to its user.
    pub dumpable: bool,
    pub seccomp: Seccomp,
    pub shadow_stack: bool,
    /// `false` also when that cannot be seen.
    pub other_user_namespace: bool,
    pub executable: io::Result<Executable>,
}

/// Who traces a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tracer {
    pub pid: i32,
    pub comm: String,
}

impl Tracer {
    /// The process of the thread that traces: the kernel names a thread (`TracerPid`, proc_pid_status(5)), which people
    /// cannot end.
    pub(super) fn of_thread(tid: i32) -> Self {
        let status = read_text(&format!("/proc/{tid}/status"));
        let pid = status.ok().and_then(|text| Status(text).number("Tgid"));
        let pid = pid.unwrap_or(tid);
        Self {
            pid,
            comm: comm(pid),
        }
    }
}

/// What machine a program is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Executable {
    X86_64,
    Unsupported(Unsupported),
}

/// A kind of program that darc does not measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// An i386 program.
    #[error("is a 32-bit program, which is not supported; analyse a 64-bit build")]
    I386,
    /// 32-bit pointers in 64-bit mode.
    #[error("is an x32 program, which is not supported; analyse a 64-bit build")]
    X32,
    /// Another processor's program, by its `e_machine`.
    #[error(
        "its program is not for x86-64 (ELF machine {0}), which is not supported; analyse an x86-64 build"
    )]
    Other(u16),
}

/// Darc's own rights, and the system's rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Viewer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Effective capabilities.
    pub effective: u64,
    /// Permitted capabilities.
    pub permitted: u64,
    pub seccomp: Seccomp,
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    pub yama: Option<u32>,
}

impl Viewer {
    pub(super) fn current() -> io::Result<Self> {
        let status = Status(read_text("/proc/self/status")?);
        let yama = read_text("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .and_then(|text| text.trim().parse().ok());
        Ok(Self {
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
            effective: status.mask("CapEff"),
            permitted: status.mask("CapPrm"),
            seccomp: status.seccomp(),
            yama,
        })
    }
}

impl Facts {
    /// Looks at the process that `asked` names, a thread's id being as good as a process's.
    pub(super) fn collect(asked: i32) -> Result<Self, Refusal> {
        if asked <= 0 {
            return Err(Refusal::NotAPid(asked));
        }
        if kill(Pid::from_raw(asked), None) == Err(Errno::ESRCH) {
            return Err(Refusal::NoSuchProcess(asked));
        }
        let unreadable = |pid: i32, path: String| {
            move |source: io::Error| match kill(Pid::from_raw(pid), None) {
                Err(Errno::ESRCH) => Refusal::NoSuchProcess(pid),
                _ => {
                    let remedy = "it exists but is hidden (hidepid), or /proc is of another pid namespace; run as root";
                    Refusal::Unreadable {
                        pid,
                        path,
                        source,
                        remedy,
                    }
                }
            }
        };
        let path = format!("/proc/{asked}/status");
        let pid = Status(read_text(&path).map_err(unreadable(asked, path))?)
            .number("Tgid")
            .unwrap_or(asked);

        let path = format!("/proc/{pid}/stat");
        let stat = Stat::at(&path).map_err(unreadable(pid, path))?;
        let living = living_threads(pid);
        // Of an exited leader the kernel has forgotten the program; any other thread still knows.
        let directory = match living.first() {
            Some(&tid) if stat.is_dead() => format!("/proc/{pid}/task/{tid}"),
            _ => format!("/proc/{pid}"),
        };
        let path = format!("{directory}/status");
        let status = Status(read_text(&path).map_err(unreadable(pid, path.clone()))?);
        let uids = status.ids("Uid");
        // Files of a process that is not dumpable belong to root; only the directory does not.
        let owner = fs::metadata(&path)
            .map(|metadata| metadata.uid())
            .unwrap_or(0);
        let tracer = status
            .number("TracerPid")
            .filter(|&tracer| tracer != 0)
            .map(Tracer::of_thread);
        Ok(Self {
            asked,
            pid,
            comm: stat.comm.clone(),
            kernel_thread: stat.flags & PF_KTHREAD != 0,
            living_threads: living.len(),
            leader_exited: stat.is_dead(),
            stopped: stat.state == 'T',
            tracer,
            uids,
            gids: status.ids("Gid"),
            permitted: status.mask("CapPrm"),
            dumpable: uids.get(1) == Some(&owner),
            seccomp: status.seccomp(),
            shadow_stack: status.has_shadow_stack(),
            other_user_namespace: other_user_namespace(pid),
            executable: executable_of(pid, &directory),
        })
    }
}

/// The program of a process, by the folder of one of its threads. That may have ended since it was chosen: then any other one still
/// knows.
pub(super) fn executable_of(pid: i32, directory: &str) -> io::Result<Executable> {
    let found = executable(format!("{directory}/exe"));
    let is_gone = |found: &io::Error| found.kind() == io::ErrorKind::NotFound;
    if !found.as_ref().is_err_and(is_gone) {
        return found;
    }
    let others = living_threads(pid).into_iter();
    let mut others = others.map(|tid| executable(format!("/proc/{pid}/task/{tid}/exe")));
    others.find(Result::is_ok).unwrap_or(found)
}

/// Whether the processor checks a process's return addresses.
pub(super) fn has_shadow_stack(pid: i32) -> bool {
    let status = read_text(&format!("/proc/{pid}/status"));
    status.is_ok_and(|text| Status(text).has_shadow_stack())
}

/// Whether darc and the process are in different user namespaces; `false` when that cannot be seen.
fn other_user_namespace(pid: i32) -> bool {
    match (
        fs::read_link("/proc/self/ns/user"),
        fs::read_link(format!("/proc/{pid}/ns/user")),
    ) {
        (Ok(own), Ok(other)) => own != other,
        _ => false,
    }
}

/// The text of proc_pid_status(5).
pub(super) struct Status(pub String);

impl Status {
    pub(super) fn value(&self, field: &str) -> &str {
        let values = self.0.lines().filter_map(|line| line.split_once(':'));
        values
            .filter(|(name, _)| *name == field)
            .map(|(_, value)| value.trim())
            .next()
            .unwrap_or("")
    }

    pub(super) fn number(&self, field: &str) -> Option<i32> {
        self.value(field).parse().ok()
    }

    /// A mask of bits; none when it is missing, so that the attach itself decides.
    pub(super) fn mask(&self, field: &str) -> u64 {
        u64::from_str_radix(self.value(field), 16).unwrap_or(0)
    }

    /// The real, effective and saved id; the overflow id where one is missing.
    pub(super) fn ids(&self, field: &str) -> [u32; 3] {
        let mut ids = self
            .value(field)
            .split_whitespace()
            .map(|id| id.parse().unwrap_or(u32::MAX));
        std::array::from_fn(|_| ids.next().unwrap_or(u32::MAX))
    }

    fn has_shadow_stack(&self) -> bool {
        let mut features = self.value("x86_Thread_features").split_whitespace();
        features.any(|feature| feature == "shstk")
    }

    pub(super) fn seccomp(&self) -> Seccomp {
        match self.value("Seccomp") {
            "1" => Seccomp::Strict,
            "2" => Seccomp::Filter,
            _ => Seccomp::Unrestricted,
        }
    }
}

/// What machine an ELF file's header names; its first 20 bytes are enough (elf(5)).
pub(super) fn machine(header: &[u8; 20]) -> Option<Executable> {
    const ELFCLASS32: u8 = 1;
    const EM_386: u16 = 3;
    const EM_X86_64: u16 = 62;
    let [0x7f, b'E', b'L', b'F', class, .., low, high] = *header else {
        return None;
    };
    let machine = u16::from_le_bytes([low, high]);
    Some(match (class, machine) {
        (ELFCLASS32, EM_X86_64) => Executable::Unsupported(Unsupported::X32),
        (_, EM_X86_64) => Executable::X86_64,
        (_, EM_386) => Executable::Unsupported(Unsupported::I386),
        (_, other) => Executable::Unsupported(Unsupported::Other(other)),
    })
}

/// Looks at a program's file. Waits for nobody.
pub(super) fn executable(path: impl AsRef<Path>) -> io::Result<Executable> {
    let not_a_file = || {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ))
    };
    // To open a device may do something; what is at the path may be another thing a moment later.
    if !fs::metadata(&path)?.is_file() {
        return not_a_file();
    }
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let mut file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return not_a_file();
    }
    let mut header = [0; 20];
    file.read_exact(&mut header)?;
    machine(&header).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an ELF file"))
}

/// The threads that are neither dead nor zombies.
fn living_threads(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let lives = |tid: &i32| {
        Stat::at(&format!("/proc/{pid}/task/{tid}/stat")).is_ok_and(|stat| !stat.is_dead())
    };
    tids.filter(lives).collect()
}

fn comm(pid: i32) -> String {
    read_text(&format!("/proc/{pid}/comm"))
        .map_or_else(|_| "?".to_owned(), |comm| comm.trim_end().to_owned())
}
