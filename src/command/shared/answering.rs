//! Answers to `darc status` from another terminal, and to the return key.
//!
//! Whoever connects to the socket of the claim on the process gets the results so far, as JSON, if it is the same user or
//! root.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use darc_process::claim::Claim;
use darc_report::profiles::ProfileSet;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use crate::terminal::keys::Keys;

/// Who reads slower than this gets a part.
const PATIENCE: Duration = Duration::from_secs(2);

/// Those who ask are looked at for so long at once: strangers may ask again and again, and who may know waits behind them.
const LOOKING: Duration = Duration::from_millis(1);

/// Somebody who asks, and may know. Never waits.
pub fn asker(claim: &Claim) -> Option<UnixStream> {
    first(|| claim.asked(), is_trusted)
}

fn first<T>(next: impl Fn() -> Option<T>, is_meant: impl Fn(&T) -> bool) -> Option<T> {
    let since = Instant::now();
    let is_time = || since.elapsed() < LOOKING;
    std::iter::from_fn(|| is_time().then(&next)?).find(is_meant)
}

/// The same user, or root.
fn is_trusted(asker: &UnixStream) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    getsockopt(asker, PeerCredentials).is_ok_and(|peer| peer.uid() == me || peer.uid() == 0)
}

/// Answers in a thread of its own: who asks and does not read must not stop the analysis.
pub fn tell(mut asker: UnixStream, report: String) {
    let _ = std::thread::Builder::new()
        .name("status".to_owned())
        .spawn(move || {
            let _ = asker.set_write_timeout(Some(PATIENCE));
            let _ = asker.write_all(report.as_bytes());
        });
}

/// Who is asked where a profiling stands.
#[derive(Debug)]
pub struct Answers {
    claim: Claim,
    keys: Keys,
    asker: RefCell<Option<UnixStream>>,
    pressed: Cell<bool>,
}

impl Answers {
    /// Answers who holds the other end of the claim's socket, and the person at the keys.
    pub fn new(claim: Claim, keys: Keys) -> Answers {
        Answers {
            claim,
            keys,
            asker: RefCell::new(None),
            pressed: Cell::new(false),
        }
    }

    /// Whether somebody asks now. Never waits.
    pub fn are_asked(&self) -> bool {
        let asker = asker(&self.claim);
        self.pressed.set(self.keys.pressed());
        let asked = asker.is_some() || self.pressed.get();
        *self.asker.borrow_mut() = asker;
        asked
    }

    /// Tells whoever has asked: another darc all of it, the person what `text` makes of it.
    pub fn tell(&self, set: &ProfileSet, text: impl FnOnce(&ProfileSet) -> String) {
        if let (Some(asker), Ok(json)) =
            (self.asker.borrow_mut().take(), serde_json::to_string(set))
        {
            tell(asker, json);
        }
        if self.pressed.take() {
            crate::output::print(std::io::stderr(), &text(set));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_behind_a_thousand_strangers_is_heard() {
        let last = Cell::new(0);
        let next = || {
            last.set(last.get() + 1);
            Some(last.get())
        };
        assert_eq!(first(next, |&asker| asker > 1000), Some(1001));
        assert_eq!(first(next, |_| false), None);
    }
}
