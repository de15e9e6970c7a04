//! Why the kernel grants no events, and which knob changes that.
//!
//! Source: perf_event_open(2), "ERRORS" and `/proc/sys/kernel/perf_event_paranoid`; capabilities(7).

use nix::errno::Errno;

/// Why there are no events.
#[derive(Clone, PartialEq, Eq, thiserror::Error, Debug)]
pub enum Refusal {
    /// The administrator's setting forbids it.
    #[error(
        "kernel.perf_event_paranoid is {level}, which does not allow {what}; run as root or with CAP_PERFMON, or: sudo sysctl kernel.perf_event_paranoid={wanted}"
    )]
    Paranoid {
        /// The setting.
        level: i64,
        /// What was asked for.
        what: &'static str,
        /// The setting under which it is allowed.
        wanted: i64,
    },
    /// The process belongs to somebody else, or protects itself.
    #[error(
        "the kernel does not let this user look at process {pid}; run as its user, or as root (CAP_PERFMON)"
    )]
    Foreign {
        /// The process.
        pid: i32,
    },
    /// A filter of the sandbox or container, or a kernel without perf events.
    #[error(
        "there are no perf events here ({source}): the kernel lacks CONFIG_PERF_EVENTS, or the container's seccomp profile forbids perf_event_open"
    )]
    Missing {
        /// What the kernel said.
        source: Errno,
    },
    /// One descriptor a thread and CPU is needed.
    #[error("out of file descriptors: raise the limit with ulimit -n")]
    Descriptors,
    /// Locked memory for the rings.
    #[error(
        "no memory for the kernel's ring (mmap: {source}); raise kernel.perf_event_mlock_kb, or run with CAP_IPC_LOCK"
    )]
    Memory {
        /// What the kernel said.
        source: Errno,
    },
    /// Anything else.
    #[error("perf_event_open failed: {source}")]
    Os {
        /// What the kernel said.
        source: Errno,
    },
}

/// Whom events were asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// One thread of a process, its own code only.
    Thread(i32),
    /// Everything on a CPU.
    Cpu,
}

impl Refusal {
    /// Sorts what the kernel said. `paranoid` is the setting, where it can be read.
    #[must_use]
    pub fn of(source: Errno, asked: Asked, paranoid: Option<i64>) -> Refusal {
        let (what, wanted) = match asked {
            Asked::Thread(_) => ("events on a process", 2),
            Asked::Cpu => ("events on the whole system", 0),
        };
        match (source, paranoid, asked) {
            (Errno::EACCES | Errno::EPERM, Some(level), _) if level > wanted => Refusal::Paranoid {
                level,
                what,
                wanted,
            },
            (Errno::EACCES, _, Asked::Thread(pid)) => Refusal::Foreign { pid },
            (Errno::EPERM | Errno::ENOSYS | Errno::ENOENT | Errno::EOPNOTSUPP, _, _) => {
                Refusal::Missing { source }
            }
            (Errno::EMFILE | Errno::ENFILE, _, _) => Refusal::Descriptors,
            _ => Refusal::Os { source },
        }
    }
}

/// `kernel.perf_event_paranoid`.
#[must_use]
pub fn paranoid() -> Option<i64> {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knob_is_named() {
        let refusal = Refusal::of(Errno::EACCES, Asked::Thread(5), Some(3));
        assert!(
            refusal.to_string().contains("perf_event_paranoid=2"),
            "{refusal}"
        );
        let refusal = Refusal::of(Errno::EACCES, Asked::Cpu, Some(2));
        assert!(
            refusal.to_string().contains("perf_event_paranoid=0"),
            "{refusal}"
        );
        assert_eq!(
            Refusal::of(Errno::EACCES, Asked::Thread(5), Some(2)),
            Refusal::Foreign { pid: 5 }
        );
        let sandbox = Refusal::of(Errno::EPERM, Asked::Thread(5), Some(2));
        assert!(sandbox.to_string().contains("seccomp"), "{sandbox}");
        assert_eq!(
            Refusal::of(Errno::EMFILE, Asked::Cpu, Some(-1)),
            Refusal::Descriptors
        );
    }
}
