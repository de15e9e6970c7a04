//! Which peak is to be analysed, asked of the person while the target runs on (`--ask`).

use std::io::{Stderr, Stdin, stderr, stdin};

use darc_analysis::{Peak, PeakChoice, Resolution};

use crate::session::descent::investigation::Investigation;
use crate::session::descent::progress::Watch;
use crate::terminal::prompt::{Answer, PeakLine, Prompt, can_ask};

/// The question, at most once.
#[derive(Debug, Default)]
pub enum Question {
    /// Nothing was asked yet.
    #[default]
    Unasked,
    /// Waiting for an answer.
    Asked(Prompt<Stdin, Stderr>),
    /// There is nothing to ask any more.
    Settled,
}

impl Question {
    /// Asks when there are peaks to choose from, looks for an answer, and passes it on.
    pub fn consider(&mut self, investigation: &mut Investigation, watch: &mut Watch<'_>) {
        let answer = match self {
            Question::Settled => return,
            Question::Asked(prompt) => prompt.poll(),
            Question::Unasked => {
                let peaks = investigation.analysis.peaks();
                if investigation.analysis.params().peak != PeakChoice::Later {
                    *self = Question::Settled;
                } else if !peaks.is_empty() && can_ask() {
                    let lines: Vec<PeakLine> = peaks
                        .iter()
                        .map(|peak| line(peak, investigation.analysis.params().resolution))
                        .collect();
                    watch.leave_screen_to_question();
                    *self = Question::Asked(Prompt::show(&lines, stdin(), stderr()));
                } else if !peaks.is_empty() {
                    let said = "there is no terminal to ask at; all peaks are analysed";
                    investigation.warnings.push(said.to_owned());
                    self.settle(investigation, PeakChoice::All);
                }
                return;
            }
        };
        match answer {
            Answer::Pending => return,
            Answer::Chosen(choice) => self.settle(investigation, choice),
            Answer::Default => self.settle(investigation, PeakChoice::All),
        }
        watch.question_is_settled();
    }

    fn settle(&mut self, investigation: &mut Investigation, choice: PeakChoice) {
        investigation.analysis.choose(choice);
        *self = Question::Settled;
    }
}

fn line(peak: &Peak, resolution: Resolution) -> PeakLine {
    let shortest = resolution
        .bounds(peak.first_bucket)
        .map_or(0, |(low, _)| low.0);
    let longest = resolution
        .bounds(peak.last_bucket)
        .map_or(0, |(_, high)| high.0);
    PeakLine {
        number: peak.number,
        description: format!("{shortest} to {longest} cycles, {} ops", peak.content.ops),
    }
}
