//! Which process it is, in words that are the same for everybody: the number of a process is another one in each pid
//! namespace, and is given again.
//!
//! Source: pid_namespaces(7), namespaces(7), proc_pid_stat(5), proc_pid_status(5).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;
use std::time::Instant;

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
        let namespace = namespace_of(pid).map_err(os)?;
        let stat = Stat::of(pid).map_err(os)?;
        let gone = || Error::ThreadGone { tid: pid };
        Ok(Identity {
            namespace,
            number: number_inside(pid).ok_or_else(gone)?,
            began: stat.began().ok_or_else(gone)?,
        })
    }
}

/// The numbers that processes have here, of those that run and can be seen: `/proc` is passed through once, and not at all
/// where each has the number that it has in its own namespace. Those that are not found by the deadline are missing.
#[must_use]
pub fn numbers_here(of: BTreeSet<Identity>, deadline: Instant) -> BTreeMap<Identity, i32> {
    let mut found = BTreeMap::new();
    let mut left = of;
    let in_time = || Instant::now() < deadline;
    // Most processes are in this namespace or in none that is below it.
    for process in left.clone().into_iter().take_while(|_| in_time()) {
        if Identity::of(process.number).is_ok_and(|other| other == process) {
            left.remove(&process);
            found.insert(process, process.number);
        }
    }
    if left.is_empty() {
        return found;
    }
    let namespaces: BTreeSet<u64> = left.iter().map(|process| process.namespace).collect();
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for pid in pids.take_while(|_: &i32| in_time()) {
        if !namespace_of(pid).is_ok_and(|namespace| namespaces.contains(&namespace)) {
            continue;
        }
        if let Some(process) = Identity::of(pid)
            .ok()
            .and_then(|process| left.take(&process))
        {
            found.insert(process, pid);
        }
    }
    found
}

/// The inode of a process's pid namespace.
fn namespace_of(pid: i32) -> io::Result<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid"))?;
    let inode = link
        .to_str()
        .and_then(|link| link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
    inode.ok_or_else(|| io::ErrorKind::InvalidData.into())
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
    use std::time::Duration;

    use super::*;

    fn number_here(process: Identity) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        numbers_here(BTreeSet::from([process]), deadline).remove(&process)
    }

    #[test]
    fn a_process_is_known_by_what_is_written() {
        let own = Identity::of(std::process::id() as i32).unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        assert_eq!(number_here(own), Some(std::process::id() as i32));
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
    fn nothing_is_looked_for_after_the_deadline() {
        let own = Identity::of(std::process::id() as i32).unwrap();
        let found = numbers_here(BTreeSet::from([own]), Instant::now());
        assert_eq!(found, BTreeMap::new());
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let of = Identity::of(pid).ok();
        child.wait().unwrap();
        assert!(Identity::of(pid).unwrap_err().is_gone());
        assert_eq!(of.and_then(number_here), None);
    }
}
