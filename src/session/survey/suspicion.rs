//! Noticing that f0 does not return: it runs already, and no op will ever complete.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use darc_process::modules::Modules;

use crate::session::descent::investigation::Investigation;
use crate::session::survey::{InProgress, calls_in_progress};

/// Without an op for so long the stacks are looked at.
const FIRST: Duration = Duration::from_millis(400);
/// A rarely called f0 is looked for less and less often, up to this time.
const SELDOM: Duration = Duration::from_secs(10);
/// A call that is in progress for so long does not return. The next call of a loop has the same stack pointer.
pub const LONG: Duration = Duration::from_secs(5);

/// Looks at the stacks now and then while no op completes.
#[derive(Debug)]
pub struct Suspicion {
    began: Instant,
    last: Instant,
    wait: Duration,
    /// The calls of f0 that were in progress at the last look, by thread, and when they were seen first.
    seen: BTreeMap<i32, (InProgress, Instant)>,
}

impl Default for Suspicion {
    fn default() -> Suspicion {
        Suspicion {
            began: Instant::now(),
            last: Instant::now(),
            wait: FIRST,
            seen: BTreeMap::new(),
        }
    }
}

impl Suspicion {
    /// Whether no call of f0 has returned for long. A goroutine that waits in one is on no thread's stack.
    #[must_use]
    pub fn is_due(&self, investigation: &Investigation) -> bool {
        investigation.calls() == 0 && self.began.elapsed() >= LONG
    }

    /// Whether no call of f0 has returned for long, and none is on a stack as far as stacks are read.
    #[must_use]
    pub fn is_uncalled(&self, investigation: &Investigation) -> bool {
        self.is_due(investigation) && self.seen.is_empty()
    }

    /// Whether one call of f0 is in progress for long, and no op completed meanwhile. What a thread began with is not called a second time;
    /// a goroutine is no thread.
    pub fn is_confirmed(
        &mut self,
        pid: i32,
        modules: &Modules,
        investigation: &Investigation,
        of_goroutines: bool,
    ) -> bool {
        if investigation.calls() > 0 || self.last.elapsed() < self.wait {
            return false;
        }
        let now = Instant::now();
        let calls = calls_in_progress(pid, modules, investigation).into_iter();
        let seen: BTreeMap<i32, (InProgress, Instant)> = calls
            .map(|(thread, call)| match self.seen.get(&thread) {
                // The stack cannot be followed to its end at every moment.
                Some(&(known, since)) if known.sp == call.sp => {
                    let is_beginning = known.is_beginning || call.is_beginning;
                    let sp = call.sp;
                    (thread, (InProgress { sp, is_beginning }, since))
                }
                _ => (thread, (call, now)),
            })
            .collect();
        self.wait = match seen.is_empty() {
            true => (self.wait * 2).min(SELDOM),
            false => FIRST,
        };
        (self.last, self.seen) = (now, seen);
        let mut seen = self.seen.values();
        seen.any(|&(call, since)| now - since >= least(call, of_goroutines))
    }
}

/// For how long a call is in progress that does not return.
fn least(call: InProgress, of_goroutines: bool) -> Duration {
    match call.is_beginning && !of_goroutines {
        true => FIRST,
        false => LONG,
    }
}

#[cfg(test)]
mod tests {
    use darc_analysis::Params;
    use darc_symbols::NameSpec;

    use super::*;

    #[test]
    fn a_function_is_called_on_a_stack_too() {
        let spec = NameSpec::Name {
            module: None,
            name: "serve".to_owned(),
        };
        let investigation = Investigation::new(spec, Params::default());
        let mut suspicion = Suspicion::default();
        assert!(!suspicion.is_uncalled(&investigation), "it may be soon");
        suspicion.began -= LONG;
        assert!(suspicion.is_uncalled(&investigation));
        let call = InProgress {
            sp: 0,
            is_beginning: false,
        };
        suspicion.seen.insert(1, (call, Instant::now()));
        assert!(!suspicion.is_uncalled(&investigation));
    }

    /// A goroutine may be begun with f0 for each request.
    #[test]
    fn what_goroutines_begin_with_may_return() {
        let call = |is_beginning| InProgress {
            sp: 0,
            is_beginning,
        };
        assert_eq!(least(call(true), false), FIRST);
        assert_eq!(least(call(true), true), LONG);
        assert_eq!(least(call(false), false), LONG);
    }
}
