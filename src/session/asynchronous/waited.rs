//! How long requests had waited that calls serve, of as few calls as can be: one of them becomes the example of its peak.

use std::collections::HashMap;

use darc_analysis::Analysis;
use darc_record::{Op, Ticks, Tsc};

/// When there are more, those are forgotten that are no example.
const MANY: usize = 4096;

/// By the thread and the beginning of the call.
#[derive(Default, Debug)]
pub(super) struct Waited(HashMap<(i32, Tsc), Ticks>);

impl Waited {
    /// The analysis will take this call soon. Of earlier ones those that are no example by now hardly become one any more; where
    /// one does, how long it had waited is not told.
    pub(super) fn note(&mut self, op: &Op, waited: Ticks, analysis: &Analysis) {
        if self.0.len() >= MANY {
            let peaks = analysis.peaks();
            let examples = peaks.iter().filter_map(|it| analysis.example(it.number));
            let examples: Vec<_> = examples.map(|op| (op.tid, op.start)).collect();
            self.0.retain(|call, _| examples.contains(call));
        }
        self.0.insert((op.tid, op.start), waited);
    }

    /// What is known of a call.
    pub(super) fn of(&self, op: &Op) -> Option<Ticks> {
        self.0.get(&(op.tid, op.start)).copied()
    }
}
