//! How much more a process may map: what darc takes of that, its own next allocation does not get.
//!
//! Source: getrlimit(2) (`RLIMIT_AS`, `RLIMIT_DATA`, `RLIMIT_MEMLOCK`), proc_pid_status(5), proc_meminfo(5), and the kernel's
//! mm/overcommit-accounting.rst. What counts against which limit is in its `may_expand_vm`, `mlock_future_ok` and
//! `accountable_mapping`.

use std::ops::Add;

use procfs::process::{Limit, LimitValue, Process};
use procfs::{Current as _, Meminfo};

use crate::error::{Error, Result};
use crate::threads;

/// Memory as the limits count it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// Address space.
    pub all: u64,
    /// What of it is private and can be written.
    pub data: u64,
    /// What the machine promises: that, and shared memory as it comes to be used.
    pub promised: u64,
}

impl Amount {
    /// Code, or what else is private and cannot be written.
    #[must_use]
    pub fn of_code(bytes: u64) -> Amount {
        Amount {
            all: bytes,
            ..Amount::default()
        }
    }
}

impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount {
            all: self.all.saturating_add(other.all),
            data: self.data.saturating_add(other.data),
            promised: self.promised.saturating_add(other.promised),
        }
    }
}

/// What is left of one limit.
#[derive(Clone, Copy, Debug)]
struct Left {
    bytes: u64,
    what: &'static str,
    /// How it is raised.
    raise: &'static str,
    /// What counts against it.
    counted: fn(Amount) -> u64,
}

impl Left {
    /// What may be taken beside `ours`, which is taken already: together half of what there was.
    fn for_us(&self, ours: Amount) -> u64 {
        let ours = (self.counted)(ours);
        (self.bytes.saturating_add(ours) / 2).saturating_sub(ours)
    }

    fn forbids(&self, ours: Amount, more: Amount) -> bool {
        let more = (self.counted)(more);
        more > 0 && more > self.for_us(ours)
    }
}

/// What is left to a process, as far as limits are known.
fn left(pid: i32) -> Vec<Left> {
    let limits = Process::new(pid).and_then(|process| process.limits());
    let of_process = |limit: Limit, field, what, raise, counted| {
        let LimitValue::Value(limit) = limit.soft_limit else {
            return None;
        };
        let used = kibibytes(pid, field)?.saturating_mul(1024);
        let bytes = limit.saturating_sub(used);
        Some(Left {
            bytes,
            what,
            raise,
            counted,
        })
    };
    let mut all = Vec::from_iter(of_machine());
    if let Ok(limits) = limits {
        let (space, data) = (limits.max_address_space, limits.max_data_size);
        all.extend(of_process(
            space,
            "VmSize",
            "RLIMIT_AS",
            "prlimit --as",
            |amount| amount.all,
        ));
        all.extend(of_process(
            data,
            "VmData",
            "RLIMIT_DATA",
            "prlimit --data",
            |amount| amount.data,
        ));
        if locks_memory(pid) && !may_lock_all(pid) {
            let locked = limits.max_locked_memory;
            let counted = |amount: Amount| amount.all;
            all.extend(of_process(
                locked,
                "VmLck",
                "RLIMIT_MEMLOCK",
                "prlimit --memlock",
                counted,
            ));
        }
    }
    all
}

/// Whether the machine promises no more memory than it has (proc_sys_vm(5), overcommit_memory): pages of shared memory that were not
/// promised cannot be had later.
#[must_use]
pub fn promises_no_more_than_there_is() -> bool {
    /// `OVERCOMMIT_NEVER` in the kernel's include/uapi/linux/mman.h.
    const NEVER: &str = "2";
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    mode.is_ok_and(|mode| mode.trim() == NEVER)
}

/// What the machine may still promise, where it promises no more than it has.
fn of_machine() -> Option<Left> {
    if !promises_no_more_than_there_is() {
        return None;
    }
    let memory = Meminfo::current().ok()?;
    Some(Left {
        bytes: memory.commit_limit?.saturating_sub(memory.committed_as),
        what: "vm.overcommit_memory=2",
        raise: "sysctl vm.overcommit_ratio",
        counted: |amount| amount.promised,
    })
}

/// A size in the status of a process, in KiB; through a thread that lives, should its first one have ended.
fn kibibytes(pid: i32, field: &str) -> Option<u64> {
    field_of(pid, field)?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()
}

fn field_of(pid: i32, field: &str) -> Option<String> {
    let of = |tid| threads::status_field(tid, field);
    of(pid).or_else(|| threads::list(pid).ok()?.into_iter().find_map(of))
}

/// Whether most of the memory of a process is locked, so that new memory probably is, too (`MCL_FUTURE`). Where it has asked for
/// that alone, nothing shows it before it maps something.
#[must_use]
pub fn locks_memory(pid: i32) -> bool {
    match (kibibytes(pid, "VmLck"), kibibytes(pid, "VmSize")) {
        (Some(locked), Some(all)) => locked > all / 2,
        _ => false,
    }
}

/// How much memory of a process is locked, bytes.
#[must_use]
pub fn locked(pid: i32) -> u64 {
    kibibytes(pid, "VmLck").unwrap_or(0).saturating_mul(1024)
}

/// Whether a process may lock as much memory as it likes. In a user namespace of its own no capability lets it.
fn may_lock_all(pid: i32) -> bool {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let capabilities = field_of(pid, "CapEff");
    let capabilities = capabilities.and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    let users = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
    let is_outermost = users.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    is_outermost && capabilities.is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

/// How much more code may be mapped in a process in which `ours` is mapped; nothing where no limit is known.
#[must_use]
pub fn for_code(pid: i32, ours: Amount) -> Option<u64> {
    let left = left(pid).into_iter();
    let of_code = left.filter(|left| (left.counted)(Amount::of_code(1)) > 0);
    of_code.map(|left| left.for_us(ours)).min()
}

/// Whether a process in which nothing is mapped yet may map so much and has as much left afterwards.
#[must_use]
pub fn allow(pid: i32, amount: Amount) -> bool {
    !left(pid)
        .iter()
        .any(|left| left.forbids(Amount::default(), amount))
}

/// Refuses to map `more` in a process that would have less left for itself than that and `ours`, which is mapped already.
///
/// # Errors
/// Which limit it is.
pub fn check(pid: i32, ours: Amount, more: Amount) -> Result<()> {
    match left(pid).into_iter().find(|left| left.forbids(ours, more)) {
        Some(left) => Err(Error::Unsuitable(format!(
            "process {pid} may map {} KiB more memory ({}), and the probes take up to {} KiB; raise its limits ({})",
            left.bytes >> 10,
            left.what,
            (left.counted)(more) >> 10,
            left.raise
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many pieces it is taken in.
    #[test]
    fn half_at_most_is_taken() {
        let mut left = Left {
            bytes: 1000,
            what: "a limit",
            raise: "",
            counted: |amount| amount.all,
        };
        let mut ours = Amount::default();
        let piece = Amount::of_code(150);
        while !left.forbids(ours, piece) {
            ours = ours + piece;
            left.bytes -= piece.all;
        }
        assert_eq!(ours.all, 450);
        // What does not count is never too much.
        left.counted = |amount| amount.data;
        assert!(!left.forbids(ours, piece));
    }
}
