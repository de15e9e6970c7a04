//! Noticing that f0 does not return: it runs already, and no op will ever complete.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use darc_process::modules::Modules;

use crate::session::descent::investigation::Investigation;
use crate::session::survey::calls_in_progress;

/// Without an op for so long the stacks are looked at.
const FIRST: Duration = Duration::from_millis(400);
/// A rarely called f0 is looked for less and less often, up to this time.
const SELDOM: Duration = Duration::from_secs(10);

/// Looks at the stacks now and then while no op completes.
#[derive(Debug)]
pub struct Suspicion {
    last: Instant,
    wait: Duration,
    /// The calls of f0 that were in progress at the last look: thread and stack pointer.
    seen: BTreeMap<i32, u64>,
}

impl Default for Suspicion {
    fn default() -> Suspicion {
        Suspicion {
            last: Instant::now(),
            wait: FIRST,
            seen: BTreeMap::new(),
        }
    }
}

impl Suspicion {
    /// Whether one call of f0 was in progress at two looks, and no op completed in between.
    pub fn is_confirmed(
        &mut self,
        pid: i32,
        modules: &Modules,
        investigation: &Investigation,
    ) -> bool {
        if investigation.calls() > 0 || self.last.elapsed() < self.wait {
            return false;
        }
        let now = calls_in_progress(pid, modules, investigation);
        let same = now
            .iter()
            .any(|(thread, sp)| self.seen.get(thread) == Some(sp));
        self.wait = match now.is_empty() {
            true => (self.wait * 2).min(SELDOM),
            false => FIRST,
        };
        (self.last, self.seen) = (Instant::now(), now);
        same
    }
}
