//! Everything that can be said against a process before it is touched.
//!
//! Reads `/proc` and sends the null signal; attaches to nothing, stops nothing. `facts` collects,
//! and `judge` decides without looking at the system, so that every case is a test.
//! Go programs are recognised by their symbols, which is not done here.
//!
//! Source: ptrace(2) "Ptrace access mode checking", proc_pid_stat(5), proc_pid_status(5),
//! capabilities(7), the kernel's Documentation/admin-guide/LSM/Yama.rst and Documentation/arch/x86/shstk.rst.

mod facts;

use std::io;
use std::path::Path;

use facts::{CAP_SYS_PTRACE, Executable, Facts, Tracer, Viewer};

pub use facts::Unsupported;

/// A process that nothing speaks against, as far as can be seen from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preflight {
    /// The process: the thread group's id, even if the id of another of its threads was asked for.
    pub pid: i32,
    /// How many threads it has.
    pub threads: usize,
    /// Which system calls it may make.
    pub seccomp: Seccomp,
    /// What the person should know.
    pub notes: Vec<Note>,
}

/// How system calls of a process are restricted (seccomp(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seccomp {
    /// Not at all.
    Unrestricted,
    /// To read, write, exit and sigreturn.
    Strict,
    /// By a filter whose rules cannot be seen.
    Filter,
}

/// Something about a process that is no reason to refuse it.
#[derive(Clone, PartialEq, Eq, thiserror::Error, Debug)]
pub enum Note {
    /// The id belongs to a thread.
    #[error("{tid} is a thread of process {pid}; the whole process is analysed")]
    ThreadOf {
        /// The id that was given.
        tid: i32,
        /// Its process.
        pid: i32,
    },
    /// The thread that began in `main` has ended, others go on.
    #[error("the main thread of process {pid} has ended; the other threads are analysed")]
    LeaderExited {
        /// The process.
        pid: i32,
    },
    /// Nothing will be measured for now.
    #[error("process {pid} is stopped; nothing is measured until it gets SIGCONT")]
    Stopped {
        /// The process.
        pid: i32,
    },
}

/// Why a process cannot be analysed. The text is `<what>: <why>; <what to do>`.
#[derive(thiserror::Error, Debug)]
pub enum Refusal {
    /// Process ids begin at 1.
    #[error("{0}: not a process id; ids are whole numbers from 1 on")]
    NotAPid(i32),
    /// There is nothing of that id.
    #[error(
        "no process {0}: it does not exist, or not in this pid namespace; look it up with ps or pgrep"
    )]
    NoSuchProcess(i32),
    /// It would have to stop itself.
    #[error("process {0}: is darc itself; name the process to analyse")]
    Itself(i32),
    /// There is nothing to instrument in it.
    #[error(
        "process {pid} ({comm}): is a kernel thread and has no user code; name an ordinary process"
    )]
    KernelThread {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// It is a zombie, or about to become one.
    #[error(
        "process {pid} ({comm}): has already exited; name a running process, or start it with `darc run`"
    )]
    Exited {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// A process has one tracer at most.
    #[error("process {pid}: is already traced by process {tracer} ({comm}); end that one first")]
    AlreadyTraced {
        /// The process.
        pid: i32,
        /// Who traces it.
        tracer: i32,
        /// The tracer's name.
        comm: String,
    },
    /// It belongs to somebody else.
    #[error(
        "process {pid}: is owned by uid {owner}, darc runs as uid {uid}; run as that user or root"
    )]
    OtherUser {
        /// The process.
        pid: i32,
        /// Its user, or the first of its user ids that differs.
        owner: u32,
        /// darc's user.
        uid: u32,
    },
    /// Same user, another group: a set-group-ID program.
    #[error(
        "process {pid}: runs with gid {group} (set-group-ID), darc with gid {gid}; run as root"
    )]
    OtherGroup {
        /// The process.
        pid: i32,
        /// The first of its group ids that differs.
        group: u32,
        /// darc's group.
        gid: u32,
    },
    /// The superuser without the capability, as in containers.
    #[error(
        "process {pid}: is owned by uid {owner}, and uid 0 lacks CAP_SYS_PTRACE here; start the container with that capability, or run as uid {owner}"
    )]
    MissingCapability {
        /// The process.
        pid: i32,
        /// Its user.
        owner: u32,
    },
    /// `PR_SET_DUMPABLE`, or a program that changed its user or cannot be read.
    #[error(
        "process {pid}: protects itself (not dumpable: it changed its user, its file is unreadable, or it asked for that); run as root, or with CAP_SYS_PTRACE"
    )]
    NotDumpable {
        /// The process.
        pid: i32,
    },
    /// Who traces must not be less privileged.
    #[error(
        "process {pid}: has capabilities that darc lacks ({missing:#x}); run as root, or with CAP_SYS_PTRACE"
    )]
    MorePrivileged {
        /// The process.
        pid: i32,
        /// The capability bits.
        missing: u64,
    },
    /// `kernel.yama.ptrace_scope` is 2.
    #[error(
        "process {pid}: the system lets administrators trace only (kernel.yama.ptrace_scope is 2); run as root, or with CAP_SYS_PTRACE"
    )]
    YamaAdmin {
        /// The process.
        pid: i32,
    },
    /// `kernel.yama.ptrace_scope` is 3.
    #[error(
        "process {pid}: the system lets nobody trace (kernel.yama.ptrace_scope is 3 and stays so until a reboot); analyse it on another machine"
    )]
    YamaNobody {
        /// The process.
        pid: i32,
    },
    /// A program for another processor, or another mode of this one.
    #[error("process {pid}: {what}")]
    Unsupported {
        /// The process.
        pid: i32,
        /// Which.
        what: Unsupported,
    },
    /// Return addresses are checked by the processor.
    #[error(
        "process {pid}: runs with a hardware shadow stack, which is not supported yet; start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
    )]
    ShadowStack {
        /// The process.
        pid: i32,
    },
    /// Nothing on the process itself says why.
    #[error("process {pid}: may not be traced: {why}")]
    Forbidden {
        /// The process.
        pid: i32,
        /// The likeliest reason, and what to do.
        why: &'static str,
    },
    /// `/proc` is no window on processes here.
    #[error("/proc: is not mounted or shows no processes; mount it (mount -t proc proc /proc)")]
    NoProc,
    /// The process exists but cannot be looked at.
    #[error("process {pid}: cannot read {path} ({source}); {remedy}")]
    Unreadable {
        /// The process.
        pid: i32,
        /// What could not be read.
        path: String,
        /// What the kernel said.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
}

/// Whether `pid` can be analysed, as far as can be seen without touching it. An attach can still be
/// refused; then ask [`explain_eperm`].
///
/// # Errors
/// The first reason against it.
pub fn check(pid: i32) -> Result<Preflight, Refusal> {
    let viewer = Viewer::current().map_err(|_| Refusal::NoProc)?;
    let facts = Facts::collect(pid)?;
    judge(&facts, &viewer)
}

/// Why the program that a process has just executed cannot be analysed, if so: the kernel runs programs that darc does
/// not measure.
#[must_use]
pub fn unsupported(pid: i32) -> Option<Unsupported> {
    unsupported_file(format!("/proc/{pid}/exe"))
}

/// Why the program in a file cannot be analysed, if so.
pub(crate) fn unsupported_file(path: impl AsRef<Path>) -> Option<Unsupported> {
    match facts::executable(path) {
        Ok(Executable::Unsupported(what)) => Some(what),
        _ => None,
    }
}

/// Why the kernel answered EPERM to an attach, on one line that begins with the process.
#[must_use]
pub fn explain_eperm(pid: i32) -> String {
    let Ok(viewer) = Viewer::current() else {
        return Refusal::NoProc.to_string();
    };
    let facts = match Facts::collect(pid) {
        Ok(facts) => facts,
        Err(refusal) => return refusal.to_string(),
    };
    match judge(&facts, &viewer) {
        Err(refusal) => refusal.to_string(),
        Ok(_) => Refusal::Forbidden {
            pid: facts.pid,
            why: hidden_reason(&facts, &viewer),
        }
        .to_string(),
    }
}

/// The reasons for EPERM that do not show on the process itself, and what to do.
fn hidden_reason(facts: &Facts, viewer: &Viewer) -> &'static str {
    if !viewer.can_trace_all() && viewer.yama == Some(1) {
        "the system lets a process trace its own children only (kernel.yama.ptrace_scope is 1); \
         start the program with `darc run`, or run as root or with CAP_SYS_PTRACE"
    } else if !viewer.can_trace_all() && viewer.uid == 0 {
        "CAP_SYS_PTRACE is missing, as in a container by default; start the container with that capability"
    } else if facts.other_user_namespace {
        "it lives in another user namespace, where darc has no rights; run darc outside of the container, as root"
    } else if viewer.seccomp != Seccomp::Unrestricted {
        "darc itself runs under a seccomp filter, which may forbid ptrace (containers do); allow ptrace there"
    } else {
        "another user namespace or a security module (SELinux, AppArmor, …) forbids it; \
         run darc outside of the container, or ask the audit log which rule"
    }
}

/// Refuses a process that has turned its shadow stack on since it was started.
pub(crate) fn check_shadow_stack(pid: i32) -> crate::Result<()> {
    match facts::has_shadow_stack(pid) {
        true => Err(crate::Error::Unsuitable(
            Refusal::ShadowStack { pid }.to_string(),
        )),
        false => Ok(()),
    }
}

fn judge(facts: &Facts, viewer: &Viewer) -> Result<Preflight, Refusal> {
    let pid = facts.pid;
    if pid == viewer.pid {
        return Err(Refusal::Itself(pid));
    }
    if facts.kernel_thread {
        return Err(Refusal::KernelThread {
            pid,
            comm: facts.comm.clone(),
        });
    }
    if facts.living_threads == 0 {
        return Err(Refusal::Exited {
            pid,
            comm: facts.comm.clone(),
        });
    }
    if let Some(Tracer { pid: tracer, comm }) = &facts.tracer {
        return Err(Refusal::AlreadyTraced {
            pid,
            tracer: *tracer,
            comm: comm.clone(),
        });
    }
    judge_permission(facts, viewer)?;
    match &facts.executable {
        Ok(Executable::X86_64) => {}
        Ok(Executable::Unsupported(what)) => return Err(Refusal::Unsupported { pid, what: *what }),
        // Reading it needs the same rights as an attach, so there will be none of that either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Refusal::Forbidden {
                pid,
                why: hidden_reason(facts, viewer),
            });
        }
        // Its memory is gone: it has ended since its threads were counted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Refusal::Exited {
                pid,
                comm: facts.comm.clone(),
            });
        }
        Err(error) => {
            return Err(Refusal::Unreadable {
                pid,
                path: format!("/proc/{pid}/exe"),
                source: error
                    .raw_os_error()
                    .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error),
                remedy: "it has no program that could be analysed",
            });
        }
    }
    if facts.shadow_stack {
        return Err(Refusal::ShadowStack { pid });
    }
    let mut notes = Vec::new();
    if facts.asked != pid {
        notes.push(Note::ThreadOf {
            tid: facts.asked,
            pid,
        });
    }
    if facts.leader_exited {
        notes.push(Note::LeaderExited { pid });
    }
    if facts.stopped {
        notes.push(Note::Stopped { pid });
    }
    Ok(Preflight {
        pid,
        threads: facts.living_threads,
        seccomp: facts.seccomp,
        notes,
    })
}

/// The kernel's `__ptrace_may_access` with `PTRACE_MODE_ATTACH_REALCREDS`, then Yama; what they
/// decide by things that cannot be seen from here is left to the attach itself.
fn judge_permission(facts: &Facts, viewer: &Viewer) -> Result<(), Refusal> {
    let pid = facts.pid;
    if viewer.yama == Some(3) {
        return Err(Refusal::YamaNobody { pid });
    }
    if viewer.can_trace_all() {
        return Ok(());
    }
    if let Some(&owner) = facts.uids.iter().find(|&&uid| uid != viewer.uid) {
        return Err(match viewer.uid {
            0 => Refusal::MissingCapability { pid, owner },
            uid => Refusal::OtherUser { pid, owner, uid },
        });
    }
    if let Some(&group) = facts.gids.iter().find(|&&gid| gid != viewer.gid) {
        return Err(Refusal::OtherGroup {
            pid,
            group,
            gid: viewer.gid,
        });
    }
    if !facts.dumpable {
        return Err(Refusal::NotDumpable { pid });
    }
    let missing = facts.permitted & !viewer.permitted;
    if missing != 0 {
        return Err(Refusal::MorePrivileged { pid, missing });
    }
    if viewer.yama == Some(2) {
        return Err(Refusal::YamaAdmin { pid });
    }
    Ok(())
}

impl Viewer {
    fn can_trace_all(&self) -> bool {
        self.effective & CAP_SYS_PTRACE != 0
    }
}

#[cfg(test)]
mod tests;
