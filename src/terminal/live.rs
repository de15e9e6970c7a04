//! What the analysis is doing right now, redrawn in place on a terminal.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use darc_analysis::descent::root_cause::PeakStatus;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::warning::{one_line, warning_line};
use crate::options::Verbosity;

/// Who else writes to the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Screen {
    /// Nobody: lines may be redrawn.
    Own,
    /// The target: redrawing would wipe out lines of its output, so nothing is drawn.
    SharedWithTarget,
}

/// What is being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Symbols are read and code is planned.
    Preparing,
    /// The first ops are collected.
    CollectingStartOps,
    /// The causes of the peaks are searched.
    Descending,
    /// The target is restored.
    Restoring,
}

/// The state of one peak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeakProgress {
    /// Its number, from 1.
    pub number: u32,
    /// Ops that fell into it.
    pub ops: u64,
    /// Where its analysis stands.
    pub status: PeakStatus,
    /// The longest root-cause path so far, names from f0 down.
    pub path: Vec<String>,
}

/// The state of the analysis at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Ops of f0 so far.
    pub ops: u64,
    /// Ops per second, lately.
    pub rate: f64,
    /// The peaks, once they are known.
    pub peaks: Vec<PeakProgress>,
    /// How often the instrumentation was changed.
    pub round: u32,
    /// What is being done.
    pub phase: Phase,
}

/// Draws [`Snapshot`]s on stderr. Does nothing where nobody looks, and warnings still appear then.
#[derive(Debug)]
pub struct Progress {
    verbosity: Verbosity,
    /// `None` where nothing is drawn.
    lines: Option<Lines>,
    /// Warnings that were shown.
    warned: BTreeSet<String>,
}

/// Writes whole lines above whatever progress is drawn.
#[derive(Clone, Debug)]
pub struct Printer(Option<MultiProgress>);

impl Printer {
    /// Writes them.
    pub fn print(&self, text: &str) {
        let write = || {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{text}");
        };
        match &self.0 {
            Some(progress) => progress.suspend(write),
            None => write(),
        }
    }
}

#[derive(Debug)]
struct Lines {
    all: MultiProgress,
    head: ProgressBar,
    peaks: Vec<ProgressBar>,
    /// Nothing is drawn for now.
    hidden: bool,
}

impl Progress {
    /// Ready to draw; draws only on a terminal of its own, and neither when told to be quiet nor
    /// when told to say everything (whose lines would be wiped out).
    #[must_use]
    pub fn new(verbosity: Verbosity, screen: Screen) -> Self {
        let wanted = verbosity == Verbosity::Normal && screen == Screen::Own;
        let lines = (wanted && std::io::stderr().is_terminal()).then(Lines::new);
        Self {
            verbosity,
            lines,
            warned: BTreeSet::new(),
        }
    }

    /// Whether anybody sees what [`update`](Self::update) draws.
    #[must_use]
    pub fn is_drawn(&self) -> bool {
        self.lines.is_some()
    }

    /// Draws the state. Cheap enough to be called often: at most ten times a second are drawn.
    pub fn update(&mut self, snapshot: &Snapshot) {
        let Some(lines) = &mut self.lines else { return };
        lines.head.set_message(head_line(snapshot));
        for (index, peak) in snapshot.peaks.iter().enumerate() {
            if lines.peaks.len() <= index {
                lines.peaks.push(lines.all.add(line("  {wide_msg}")));
            }
            if let Some(bar) = lines.peaks.get(index) {
                bar.set_message(peak_line(peak));
            }
        }
    }

    /// Shows a warning above the progress, as one line. Not when quiet, and none twice: a session tells what was found
    /// before it, which may have been told then.
    pub fn warn(&mut self, message: &str) {
        if self.verbosity != Verbosity::Quiet && self.warned.insert(message.to_owned()) {
            self.print(&warning_line(message));
        }
    }

    /// That the person knows of a warning.
    pub fn was_told(&mut self, message: &str) {
        self.warned.insert(message.to_owned());
    }

    /// Writes whole lines above the progress.
    pub fn print(&self, text: &str) {
        self.pause(|| {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }

    /// Writes above the progress too, for somebody who does not have it.
    #[must_use]
    pub fn printer(&self) -> Printer {
        Printer(self.lines.as_ref().map(|lines| lines.all.clone()))
    }

    /// Takes the progress off the screen while `work` writes there.
    pub fn pause<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.lines {
            Some(lines) => lines.all.suspend(work),
            None => work(),
        }
    }

    /// Leaves the screen to a question, until [`come_back`](Self::come_back): a line that is redrawn would wipe it out.
    pub fn make_room(&mut self) {
        if let Some(lines) = &mut self.lines
            && !lines.hidden
        {
            lines.hidden = true;
            let _ = lines.all.clear();
            lines.all.set_draw_target(ProgressDrawTarget::hidden());
        }
    }

    /// Draws again.
    pub fn come_back(&mut self) {
        if let Some(lines) = &mut self.lines
            && lines.hidden
        {
            lines.hidden = false;
            lines.all.set_draw_target(on_screen());
        }
    }

    /// Takes the progress off the screen for good.
    pub fn clear(&mut self) {
        if let Some(lines) = self.lines.take() {
            let _ = lines.all.clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Lines {
    fn new() -> Self {
        let all = MultiProgress::with_draw_target(on_screen());
        let head = all.add(line("{spinner} {wide_msg}"));
        head.enable_steady_tick(Duration::from_millis(100));
        Self {
            all,
            head,
            peaks: Vec::new(),
            hidden: false,
        }
    }
}

fn on_screen() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

fn line(template: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

fn head_line(snapshot: &Snapshot) -> String {
    let Snapshot {
        ops, rate, round, ..
    } = snapshot;
    match snapshot.phase {
        Phase::Preparing => "reading symbols".to_owned(),
        Phase::CollectingStartOps => format!("looking for peaks: {ops} ops, {rate:.0} ops/s"),
        Phase::Descending => format!("searching causes, round {round}: {ops} ops, {rate:.0} ops/s"),
        Phase::Restoring => format!("restoring the target: {ops} ops"),
    }
}

fn peak_line(peak: &PeakProgress) -> String {
    let status = match peak.status {
        PeakStatus::NotAnalysed => "not analysed",
        PeakStatus::InProgress => "in progress",
        PeakStatus::MaxDepthReached => "maximum depth reached",
        PeakStatus::Undecided => "not decided",
        PeakStatus::Spread => "no single cause",
        PeakStatus::RootCauseFound => "root cause found",
    };
    let path = one_line(&peak.path.join(" → "));
    format!("peak {}: {} ops, {status}: {path}", peak.number, peak.ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let path = vec!["serve".to_owned(), "evil\x1b]0;\u{7}".to_owned()];
        let peak = PeakProgress {
            number: 2,
            ops: 41,
            status: PeakStatus::InProgress,
            path,
        };
        Snapshot {
            ops: 1234,
            rate: 99.6,
            peaks: vec![peak],
            round: 3,
            phase: Phase::Descending,
        }
    }

    #[test]
    fn lines_say_what_goes_on_and_names_cannot_drive_the_terminal() {
        let snapshot = snapshot();
        assert_eq!(
            head_line(&snapshot),
            "searching causes, round 3: 1234 ops, 100 ops/s"
        );
        assert_eq!(
            peak_line(&snapshot.peaks[0]),
            "peak 2: 41 ops, in progress: serve → evil\\x1b]0;\\x07"
        );
    }

    #[test]
    fn nothing_is_drawn_over_the_target_or_when_quiet() {
        for (verbosity, screen) in [
            (Verbosity::Quiet, Screen::Own),
            (Verbosity::Normal, Screen::SharedWithTarget),
        ] {
            let mut progress = Progress::new(verbosity, screen);
            progress.update(&snapshot());
            assert!(progress.lines.is_none());
        }
    }
}
