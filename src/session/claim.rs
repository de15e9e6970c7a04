//! The claim on a process: one darc measures it at a time.
//!
//! The jump engine leaves no tracer attached that would tell a second darc of the first. A name in the
//! abstract socket namespace does: it can be bound once, and is free again when its owner dies, however.
//! Source: unix(7).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Held as long as this darc measures the process.
#[derive(Debug)]
pub struct Claim {
    _bound: UnixDatagram,
}

impl Claim {
    /// Claims a process. `None` when another darc has it.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn on(pid: i32) -> io::Result<Option<Claim>> {
        let name = format!("darc.{pid}");
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixDatagram::bind_addr(&address) {
            Ok(bound) => Ok(Some(Claim { _bound: bound })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_claimed_once_at_a_time() {
        // No process has this number.
        let first = Claim::on(i32::MAX).unwrap();
        assert!(first.is_some());
        assert!(Claim::on(i32::MAX).unwrap().is_none());
        drop(first);
        assert!(Claim::on(i32::MAX).unwrap().is_some());
    }
}
