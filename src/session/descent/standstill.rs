//! A descent that stands still: when to ask whether its peaks became too rare to be waited for.

use std::time::{Duration, Instant};

use darc_analysis::{Analysis, Profile};

/// So long without a step of the descent, while the function is called.
const LONGEST: Duration = Duration::from_secs(3);

/// When the descent went on last.
#[derive(Debug)]
pub struct Standstill {
    steps: u64,
    since: Instant,
    then: Option<Profile>,
}

impl Default for Standstill {
    fn default() -> Standstill {
        Standstill {
            steps: 0,
            since: Instant::now(),
            then: None,
        }
    }
}

impl Standstill {
    /// Looks whether the descent goes on. Where it does not, peaks that hardly an op comes of are not waited for.
    pub fn look(&mut self, analysis: &mut Analysis) {
        let steps = analysis.steps();
        match &self.then {
            Some(then) if self.steps == steps => {
                if self.since.elapsed() >= LONGEST {
                    analysis.stall_rare(&analysis.profile().since(then));
                }
            }
            _ => {
                *self = Standstill {
                    steps,
                    since: Instant::now(),
                    then: Some(analysis.profile().clone()),
                };
            }
        }
    }
}
