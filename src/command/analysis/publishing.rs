//! What was found goes to the person and to the file.

use darc_report::model::{Ended, Report, Target};
use darc_report::text::{self, Rows, Style};

use super::{Conduct, Stdout};
use crate::command::prove;
use crate::command::shared::style::style_of;
use crate::command::shared::{saved, started};
use crate::exit::{Classify as _, Failure, FailureKind};
use crate::options::{Trials, Verbosity};
use crate::output::{Output, print};
use crate::session::asynchronous::Serving;
use crate::session::summary;

/// Whether results are shown to the person, beside being saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    /// The report.
    Report,
    /// Nothing: it was shown before.
    Nothing,
}

impl Conduct {
    /// Writes the results to the file, and shows them unless that is not wanted.
    ///
    /// # Errors
    /// When the file cannot be written; the report was shown all the same.
    pub fn publish(&mut self, target: Target, ended: Ended, show: Show) -> Result<(), Failure> {
        self.progress.clear();
        let mut report = self.report(target, ended);
        if let Some(trials) = self.trials.take() {
            // What was found is kept, whatever becomes of the experiments.
            self.save(&report)?;
            self.prove(&mut report, &trials);
        }
        let _reporting = self.interrupts.report();
        if show == Show::Report && self.common.verbosity != Verbosity::Quiet {
            self.show(&report);
        }
        self.save(&report)?;
        if let Some(caveat) = saved::caveat(self.common.format).filter(|_| show == Show::Report) {
            self.say(&caveat);
        }
        Ok(())
    }

    fn save(&mut self, report: &Report) -> Result<(), Failure> {
        let saved = saved::contents(report, self.common.format, Style::default())?;
        // Opened again for a second version of the same results.
        let output = match self.output.take() {
            Some(output) => output,
            None => Output::open(&self.common.output).class(FailureKind::File)?,
        };
        output.write(&saved).class(FailureKind::File)
    }

    /// Puts the causes to the test in the process, which runs on. What keeps it from that is a warning.
    fn prove(&self, report: &mut Report, trials: &Trials) {
        let lives = matches!(
            report.ended,
            Some(Ended::Finished | Ended::Duration | Ended::Mark)
        );
        let Some(pid) = report.target.pid.filter(|_| lives) else {
            return;
        };
        self.say("the analysis has ended; its causes are put to the test");
        match prove::experiment(report, pid, trials, &self.interrupts) {
            Ok(Ok((mut proofs, ending))) => {
                if let Err(failure) = ending {
                    let why = failure.text();
                    let warning = format!("not all causes were put to the test: {why}");
                    proofs.warnings.push(warning);
                }
                proofs.warnings.retain(|it| !report.warnings.contains(it));
                report.warnings.append(&mut proofs.warnings);
                report.add(proofs);
            }
            Ok(Err(why)) => report
                .warnings
                .push(format!("nothing was put to the test: {why}")),
            Err(failure) => {
                let why = failure.text();
                report
                    .warnings
                    .push(format!("nothing was put to the test: {why}"));
            }
        }
    }

    /// What is known, with names.
    fn report(&mut self, target: Target, ended: Ended) -> Report {
        let _reporting = self.interrupts.report();
        let warnings = self.modules.take_warnings();
        self.investigation.warnings.extend(warnings);
        let functions: Vec<_> = self
            .running
            .iter()
            .flat_map(|running| &running.functions)
            .map(|below| (&below.arrival, &below.investigation))
            .collect();
        let unread = self.investigation.analysis.unread_values();
        let unread = (unread > 0)
            .then(|| format!("in {unread} ops of peaks what --value points to could not be read"));
        let doubts = self
            .since
            .doubts()
            .into_iter()
            .map(|doubt| doubt.to_string());
        let caveats = self.serving.as_ref().map(Serving::caveats);
        let caveats = unread
            .into_iter()
            .chain(doubts)
            .chain(caveats.into_iter().flatten());
        for caveat in caveats {
            self.investigation.warn(caveat);
        }
        let found = self.running.as_ref().map(|running| summary::Found {
            time: &running.time,
            functions: &functions,
        });
        let report = summary::report(
            self.investigation.naming(&self.modules, &self.catalog),
            &self.investigation,
            found,
            self.serving.as_ref(),
            (self.engine.model(), self.since.rate()),
            target,
            Some(ended),
        );
        match &self.earlier {
            Some(earlier) => report.after(earlier),
            None => report,
        }
    }

    fn show(&self, report: &Report) {
        let rows = match self.common.verbosity {
            Verbosity::Quiet | Verbosity::Normal => Rows::Main,
            _ => Rows::All,
        };
        let file = self.common.output.to_str();
        let file = file.filter(|_| self.common.format.is_complete());
        let laid_out = |style: Style<'static>| {
            let style = Style {
                rows,
                file,
                ..style
            };
            text::render(report, style)
        };
        // A closed pipe is no reason to fail: the file has the results.
        match self.stdout {
            Stdout::Ours => {
                let stream = std::io::stdout();
                let style = style_of(self.common.color, &stream);
                print(stream, &laid_out(style));
            }
            Stdout::Targets => {
                let stream = std::io::stderr();
                let style = style_of(self.common.color, &stream);
                print(stream, &laid_out(style));
            }
        }
    }

    /// Tells of a failure in mid-analysis. What was found since there was `before` of evidence is published.
    pub fn keep_results(&mut self, failure: &Failure, before: u64, target: Target) {
        self.warn(started::ended_early(failure));
        match self.evidence() == before {
            true => self.warn_of_files(),
            false => _ = self.keep(target, Ended::Failed, Show::Report),
        }
    }

    /// Publishes what there is, where nothing depends on it any more: whether that went well.
    pub fn keep(&mut self, target: Target, ended: Ended, show: Show) -> bool {
        let published = self.publish(target, ended, show);
        published
            .map_err(|failure| self.warn(failure.text()))
            .is_ok()
    }
}
