//! The claim on a process: one darc measures it at a time.
//!
//! The jump engine leaves no tracer attached that would tell a second darc of the first. A name in the
//! abstract socket namespace does: it can be bound once, and is free again when its owner dies, however.
//! Source: unix(7).

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

/// A connection to the darc that measures a process.
///
/// # Errors
/// When there is none.
pub fn connect(pid: i32) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&address(pid)?)
}

/// The processes that are claimed in this network namespace (proc_net_unix(5): abstract names begin with `@`).
///
/// # Errors
/// When the list cannot be read.
pub fn claimed() -> io::Result<Vec<i32>> {
    let list = std::fs::read_to_string("/proc/net/unix")?;
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7));
    let mut pids: Vec<i32> = names
        .filter_map(|name| name.strip_prefix('@')?.strip_prefix(PREFIX)?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
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
}
