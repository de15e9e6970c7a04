//! The claim on a process: one darc measures it at a time.
//!
//! The jump engine leaves no tracer attached that would tell a second darc of the first. A name in the
//! abstract socket namespace does: it can be bound once, and is free again when its owner dies, however.
//! Who only looks at a process takes a name of its own beside that, by which it can be asked as well.
//! Source: unix(7).

use std::collections::BTreeSet;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Held as long as this darc measures the process.
#[derive(Debug)]
pub struct Claim {
    bound: UnixListener,
}

/// What came of claiming a process.
#[derive(Debug)]
pub enum Claimed {
    /// It is ours until the claim is dropped.
    Ours(Claim),
    /// Another darc has it: its process, where that can be told.
    Taken(Option<i32>),
}

impl Claim {
    /// Claims a process.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn on(pid: i32) -> io::Result<Claimed> {
        let address = address(pid)?;
        match UnixListener::bind_addr(&address) {
            Ok(bound) => {
                bound.set_nonblocking(true)?;
                Ok(Claimed::Ours(Claim { bound }))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Ok(Claimed::Taken(owner(&address)))
            }
            Err(error) => Err(error),
        }
    }

    /// Claims nothing, but can be asked about a process: others may measure it at the same time.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn beside(pid: i32) -> io::Result<Claim> {
        // This process may look at it twice, one after the other; the numbers of ended ones come again.
        let name = format!("{PREFIX}{pid}.{}", std::process::id());
        let bound = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        bound.set_nonblocking(true)?;
        Ok(Claim { bound })
    }

    /// Somebody who wants to know where the analysis stands. Never waits.
    #[must_use]
    pub fn asked(&self) -> Option<UnixStream> {
        let (asker, _) = self.bound.accept().ok()?;
        asker.set_nonblocking(false).ok()?;
        Some(asker)
    }
}

const PREFIX: &str = "darc.";

fn address(pid: i32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))
}

/// Connections to those who measure a process or look at it; one at least.
///
/// # Errors
/// When there is none.
pub fn connect(pid: i32) -> io::Result<Vec<UnixStream>> {
    let main = UnixStream::connect_addr(&address(pid)?);
    let names = names().unwrap_or_default().into_iter();
    let beside = names.filter(|(of, name)| *of == pid && name.contains('.'));
    let beside = beside.filter_map(|(_, name)| {
        let address = SocketAddr::from_abstract_name(format!("{PREFIX}{name}")).ok()?;
        UnixStream::connect_addr(&address).ok()
    });
    let beside: Vec<UnixStream> = beside.collect();
    match (main, beside.is_empty()) {
        (Err(error), true) => Err(error),
        (main, _) => Ok(main.into_iter().chain(beside).collect()),
    }
}

/// The processes that are measured or looked at in this network namespace.
///
/// # Errors
/// When the list cannot be read.
pub fn claimed() -> io::Result<Vec<i32>> {
    let mut pids: Vec<i32> = names()?.into_iter().map(|(pid, _)| pid).collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The names that have been taken without what all begin with, and the processes they are about
/// (proc_net_unix(5): abstract names begin with `@`).
fn names() -> io::Result<BTreeSet<(i32, String)>> {
    let list = std::fs::read_to_string("/proc/net/unix")?;
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let ours = names.filter_map(|name| {
        let name = name.strip_prefix(PREFIX)?;
        let pid = name.split('.').next()?.parse().ok()?;
        Some((pid, name.to_owned()))
    });
    Ok(ours.collect())
}

/// The process that listens at an address.
fn owner(address: &SocketAddr) -> Option<i32> {
    let connection = UnixStream::connect_addr(address).ok()?;
    getsockopt(&connection, PeerCredentials)
        .ok()
        .map(|owner| owner.pid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_claimed_once_at_a_time() {
        // No process has this number.
        let first = Claim::on(i32::MAX).unwrap();
        let Claimed::Ours(claim) = &first else {
            panic!("{first:?}")
        };
        assert!(claim.asked().is_none());
        assert!(claimed().unwrap().contains(&i32::MAX));
        let _asker = connect(i32::MAX).unwrap();
        assert!(claim.asked().is_some());
        let me = std::process::id() as i32;
        assert!(matches!(Claim::on(i32::MAX).unwrap(), Claimed::Taken(Some(owner)) if owner == me));
        drop(first);
        assert!(matches!(Claim::on(i32::MAX).unwrap(), Claimed::Ours(_)));
    }

    #[test]
    fn who_only_looks_can_be_asked_and_is_in_nobodys_way() {
        let pid = i32::MAX - 1;
        let beside = Claim::beside(pid).unwrap();
        assert!(claimed().unwrap().contains(&pid));
        let askers = connect(pid).unwrap();
        assert_eq!((askers.len(), beside.asked().is_some()), (1, true));
        let Claimed::Ours(claim) = Claim::on(pid).unwrap() else {
            panic!("it is in the way");
        };
        let askers = connect(pid).unwrap();
        let asked = claim.asked().is_some() && beside.asked().is_some();
        assert_eq!((askers.len(), asked), (2, true));
    }
}
