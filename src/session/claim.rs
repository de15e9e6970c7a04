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
    _bound: UnixListener,
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
        let name = format!("darc.{pid}");
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixListener::bind_addr(&address) {
            Ok(bound) => Ok(Claimed::Ours(Claim { _bound: bound })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Ok(Claimed::Taken(owner(&address)))
            }
            Err(error) => Err(error),
        }
    }
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
        assert!(matches!(first, Claimed::Ours(_)));
        let me = std::process::id() as i32;
        assert!(matches!(Claim::on(i32::MAX).unwrap(), Claimed::Taken(Some(owner)) if owner == me));
        drop(first);
        assert!(matches!(Claim::on(i32::MAX).unwrap(), Claimed::Ours(_)));
    }
}
