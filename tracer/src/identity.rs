//! Which process it is, in words that are the same for everybody: the number of a process is another one in each pid
//! namespace, and is given again.
//!
//! Source: pid_namespaces(7), namespaces(7), proc_pid_stat(5), proc_pid_status(5).

use std::fmt;
use std::fs;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::proc::Stat;
use crate::threads::status_field;

/// A process, by its number in its own pid namespace and by when it began.
///
/// In a time namespace (time_namespaces(7)) processes seem to have begun at another time: who looks from there takes it
/// for another process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// The inode of the pid namespace.
    namespace: u64,
    /// The number there.
    number: i32,
    /// Clock ticks since boot.
    began: u64,
}

impl Identity {
    /// The identity of a process that has this number here.
    ///
    /// # Errors
    /// When there is none, or this process may not know.
    pub fn of(pid: i32) -> Result<Identity> {
        let os = |source| Error::process("tell which process it is", pid, source);
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).map_err(os)?;
        let stat = Stat::of(pid).map_err(os)?;
        let gone = || Error::ThreadGone { tid: pid };
        Ok(Identity {
            namespace: inode(&namespace.to_string_lossy()).ok_or_else(gone)?,
            number: number_inside(pid).ok_or_else(gone)?,
            began: stat.began().ok_or_else(gone)?,
        })
    }

    /// The number that the process has here, if it still runs and can be seen.
    #[must_use]
    pub fn number_here(self) -> Option<i32> {
        let is_it = |pid: &i32| Identity::of(*pid).is_ok_and(|other| other == self);
        // Most processes are in this namespace or in none that is below it.
        Some(self.number).filter(is_it).or_else(|| {
            let entries = fs::read_dir("/proc").ok()?;
            let mut pids =
                entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
            pids.find(is_it)
        })
    }
}

/// A thread's number in its own pid namespace.
#[must_use]
pub fn number_inside(tid: i32) -> Option<i32> {
    numbers(tid)?.pop()
}

/// A thread's numbers, from the pid namespace of `/proc` to its own.
#[must_use]
pub fn numbers(tid: i32) -> Option<Vec<i32>> {
    let numbers = status_field(tid, "NSpid")?;
    let numbers = numbers.split_whitespace();
    numbers.map(|number| number.parse().ok()).collect()
}

/// The inode in what a link below `/proc/PID/ns` reads.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.namespace, self.number, self.began)
    }
}

/// It is not what an identity is written as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoIdentity;

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> std::result::Result<Identity, NoIdentity> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(NoIdentity);
        let identity = Identity {
            namespace: next()?.parse().map_err(|_| NoIdentity)?,
            number: next()?.parse().map_err(|_| NoIdentity)?,
            began: next()?.parse().map_err(|_| NoIdentity)?,
        };
        match parts.next() {
            None => Ok(identity),
            Some(_) => Err(NoIdentity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_what_is_written() {
        let own = Identity::of(std::process::id() as i32).unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        assert_eq!(own.number_here(), Some(std::process::id() as i32));
        for text in [
            "",
            "1-2",
            "1-2-3-4",
            "a-2-3",
            "1--3",
            "1-2-99999999999999999999",
        ] {
            assert_eq!(text.parse::<Identity>(), Err(NoIdentity), "{text}");
        }
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let of = Identity::of(pid).ok();
        child.wait().unwrap();
        assert!(Identity::of(pid).unwrap_err().is_gone());
        assert_eq!(of.and_then(Identity::number_here), None);
    }
}
