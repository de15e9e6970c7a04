//! What the person is shown while a session runs.

use std::time::{Duration, Instant};

use darc_analysis::PeakStatus;
use darc_report::assemble::Names as _;

use crate::session::catalog::Naming;
use crate::session::descent::investigation::Investigation;
use crate::terminal::live::{PeakProgress, Phase, Progress, Snapshot};

/// More often than this nobody can read it.
const EVERY: Duration = Duration::from_millis(100);

/// Looks at an investigation now and then and shows where it stands.
pub struct Watch<'a> {
    progress: &'a mut Progress,
    last: Instant,
    ops_then: u64,
    round: u32,
    warned: usize,
}

impl<'a> Watch<'a> {
    /// Shows that the session is being prepared.
    pub fn new(progress: &'a mut Progress) -> Watch<'a> {
        progress.come_back();
        progress.update(&Snapshot {
            ops: 0,
            rate: 0.0,
            peaks: Vec::new(),
            round: 0,
            phase: Phase::Preparing,
        });
        Watch {
            progress,
            last: Instant::now(),
            ops_then: 0,
            round: 0,
            warned: 0,
        }
    }

    /// The instrumentation was changed.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// Shows nothing but new warnings while a question waits for its answer.
    pub fn leave_screen_to_question(&mut self) {
        self.progress.make_room();
    }

    /// The question was answered.
    pub fn question_is_settled(&mut self) {
        self.progress.come_back();
    }

    /// Tells the person something that the report need not repeat.
    pub fn tell(&mut self, text: &str) {
        self.progress.warn(text);
    }

    /// Shows that the target is being restored.
    pub fn restoring(&mut self, investigation: &Investigation) {
        self.progress.update(&Snapshot {
            ops: investigation.analysis.profile().count(),
            rate: 0.0,
            peaks: Vec::new(),
            round: self.round,
            phase: Phase::Restoring,
        });
    }

    /// Shows new warnings at once, and the state when it is time.
    pub fn look(&mut self, investigation: &Investigation, naming: Naming<'_>) {
        for warning in investigation.warnings.iter().skip(self.warned) {
            self.progress.warn(warning);
        }
        self.warned = investigation.warnings.len();
        let passed = self.last.elapsed();
        if passed < EVERY || !self.progress.is_drawn() {
            return;
        }
        let ops = investigation.analysis.profile().count();
        let rate = (ops.saturating_sub(self.ops_then)) as f64 / passed.as_secs_f64();
        (self.last, self.ops_then) = (Instant::now(), ops);
        let peaks: Vec<PeakProgress> = investigation
            .analysis
            .peaks()
            .into_iter()
            .map(|peak| PeakProgress {
                number: peak.number,
                ops: peak.content.ops,
                status: investigation.analysis.peak_status(peak.number),
                path: longest_path(investigation, naming, peak.number),
            })
            .collect();
        let phase = match peaks
            .iter()
            .any(|peak| peak.status != PeakStatus::NotAnalysed)
        {
            true => Phase::Descending,
            false => Phase::CollectingStartOps,
        };
        self.progress.update(&Snapshot {
            ops,
            rate,
            peaks,
            round: self.round,
            phase,
        });
    }
}

fn longest_path(investigation: &Investigation, naming: Naming<'_>, peak: u32) -> Vec<String> {
    let causes = investigation.analysis.root_causes(peak);
    let Some(longest) = causes.into_iter().max_by_key(|cause| cause.path.len()) else {
        return Vec::new();
    };
    let ftree = investigation.analysis.ftree();
    naming.path(ftree, &longest.path)
}
