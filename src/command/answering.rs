//! Answers to `darc status` from another terminal.
//!
//! The claim on the process is a socket that nobody else has; whoever connects to it gets the results so far, as
//! JSON, if it is the same user or root.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::session::claim::Claim;

/// Who reads slower than this gets a part.
const PATIENCE: Duration = Duration::from_secs(2);

/// Somebody who asks, and may know. Never waits.
pub(super) fn asker(claim: &Claim) -> Option<UnixStream> {
    std::iter::from_fn(|| claim.asked()).find(is_trusted)
}

/// The same user, or root.
fn is_trusted(asker: &UnixStream) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    getsockopt(asker, PeerCredentials).is_ok_and(|peer| peer.uid() == me || peer.uid() == 0)
}

/// Answers in a thread of its own: who asks and does not read must not stop the analysis.
pub(super) fn tell(mut asker: UnixStream, report: String) {
    let _ = std::thread::Builder::new()
        .name("status".to_owned())
        .spawn(move || {
            let _ = asker.set_write_timeout(Some(PATIENCE));
            let _ = asker.write_all(report.as_bytes());
        });
}
