//! Where a running analysis stands: told to `darc status` from another terminal, and shown when the person
//! presses return.
//!
//! The claim on the process is a socket that nobody else has; whoever connects to it gets the results so far, as
//! JSON, if it is the same user or root.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::analysis::totals::Totals;
use crate::report::json;
use crate::report::model::{Engine, Report, Target};
use crate::report::text;
use crate::session::claim::Claim;
use crate::session::clock::Moment;
use crate::session::investigation::Investigation;
use crate::session::onlooker::Onlooker;
use crate::session::{summary, survey};
use crate::terminal::keys::Keys;
use crate::terminal::live::Printer;

/// Who reads slower than this gets a part.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tells whoever asks.
#[derive(Debug)]
pub struct Standing {
    claim: Claim,
    engine: Engine,
    target: Target,
    since: Moment,
    keys: Keys,
    printer: Printer,
    style: text::Style,
}

impl Standing {
    /// Answers for the process of the claim.
    #[must_use]
    pub fn new(
        claim: Claim,
        engine: Engine,
        target: Target,
        since: Moment,
        keys: Keys,
        printer: Printer,
        style: text::Style,
    ) -> Standing {
        Standing {
            claim,
            engine,
            target,
            since,
            keys,
            printer,
            style,
        }
    }

    fn report(&self, investigation: &Investigation, totals: Option<&Totals>) -> Report {
        let time = totals.map(|totals| survey::time_table(investigation, totals));
        let found = time.as_ref().map(|time| summary::Found {
            time,
            functions: &[],
        });
        let rate = self.since.rate();
        summary::report(investigation, found, self.engine, self.target.clone(), rate)
    }
}

impl Onlooker for Standing {
    fn look(&self, investigation: &Investigation, totals: Option<&Totals>) {
        while let Some(asker) = self.claim.asked() {
            if !is_trusted(&asker) {
                continue;
            }
            if let Ok(report) = json::render(&self.report(investigation, totals)) {
                tell(asker, report);
            }
        }
        if self.keys.pressed() {
            let report = self.report(investigation, totals);
            self.printer.print(&text::render(&report, self.style));
        }
    }
}

/// The same user, or root.
fn is_trusted(asker: &UnixStream) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    getsockopt(asker, PeerCredentials).is_ok_and(|peer| peer.uid() == me || peer.uid() == 0)
}

/// In a thread of its own: who asks and does not read must not stop the analysis.
fn tell(mut asker: UnixStream, report: String) {
    let _ = std::thread::Builder::new()
        .name("status".to_owned())
        .spawn(move || {
            let _ = asker.set_write_timeout(Some(PATIENCE));
            let _ = asker.write_all(report.as_bytes());
        });
}
