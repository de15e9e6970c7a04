//! Where a running analysis stands: told to `darc status` from another terminal, and shown when the person
//! presses return.

use darc_process::claim::Claim;
use darc_process::clock::Moment;
use darc_report::model::{Engine, Report, Survey, Target};
use darc_report::{json, text};

use crate::command::shared::answering;
use crate::session::onlooker::{Onlooker, Seen};
use crate::session::{summary, survey};
use crate::terminal::keys::Keys;
use crate::terminal::live::Printer;

/// Tells whoever asks.
#[derive(Debug)]
pub struct Standing {
    claim: Claim,
    engine: Engine,
    target: Target,
    since: Moment,
    keys: Keys,
    printer: Printer,
    style: text::Style<'static>,
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
        style: text::Style<'static>,
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

    fn report(&self, seen: Seen<'_>) -> Report {
        let Seen {
            naming,
            investigation,
            serving,
            totals,
        } = seen;
        let time = totals
            .map(|totals| survey::time_table(naming, totals, Survey::Unfinished, investigation));
        let found = time.as_ref().map(|time| summary::Found {
            time,
            functions: &[],
        });
        let rate = self.since.rate();
        summary::report(
            naming,
            investigation,
            found,
            serving,
            (self.engine, rate),
            self.target.clone(),
            None,
        )
    }
}

impl Onlooker for Standing {
    fn look(&self, seen: Seen<'_>) {
        while let Some(asker) = answering::asker(&self.claim) {
            if let Ok(report) = json::render(&self.report(seen)) {
                answering::tell(asker, report);
            }
        }
        if self.keys.pressed() {
            let report = self.report(seen);
            self.printer.print(&text::render(&report, self.style));
        }
    }
}
