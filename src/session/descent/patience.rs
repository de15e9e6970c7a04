//! For how long is waited for peaks of which hardly an op comes.

use std::time::{Duration, Instant};

use darc_analysis::{Analysis, Profile};

/// So long without a step of the descent, while the function is called.
const LONGEST: Duration = Duration::from_secs(3);
/// So many times the ops of a decision must have been counted meanwhile: of a peak with a hundredth of them some come.
const DECISIONS: u64 = 25;

/// When the descent went on last.
#[derive(Debug)]
pub struct Patience {
    steps: u64,
    since: Instant,
    then: Option<Profile>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            steps: 0,
            since: Instant::now(),
            then: None,
        }
    }
}

impl Patience {
    /// Looks whether the descent goes on, and gives up peaks that nobody would wait for when it does not.
    pub fn look(&mut self, analysis: &mut Analysis) {
        let steps = analysis.steps();
        match &self.then {
            Some(then) if self.steps == steps => {
                if self.since.elapsed() < LONGEST {
                    return;
                }
                let lately = analysis.profile().since(then);
                let enough = DECISIONS.saturating_mul(analysis.params().decision_ops);
                if lately.count() >= enough {
                    analysis.give_up_rare(&lately);
                }
            }
            _ => {
                *self = Patience {
                    steps,
                    since: Instant::now(),
                    then: Some(analysis.profile().clone()),
                };
            }
        }
    }
}
