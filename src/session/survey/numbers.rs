//! The numbers of threads: a window is told with the one by which the program itself knows its thread, and `/proc` and the stacks
//! have those of darc's own pid namespace (pid_namespaces(7)).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use darc_tracer::{identity, threads};

/// Threads that are not known are looked for no sooner than so long after the last look, however many there are.
const SOON: Duration = Duration::from_millis(20);

/// From the numbers that the threads of a process have in their own pid namespace to those that they have here.
#[derive(Debug)]
pub(super) struct Numbers {
    pid: i32,
    /// Whether the two are not the same.
    differ: bool,
    here: HashMap<i32, i32>,
    last: Option<Instant>,
}

impl Numbers {
    /// Those of a process.
    pub(super) fn of(pid: i32) -> Numbers {
        Numbers {
            pid,
            differ: identity::numbers(pid).is_some_and(|numbers| numbers.len() > 1),
            here: HashMap::new(),
            last: None,
        }
    }

    /// A thread's number here. One that was never seen has a number that no other thread has.
    pub(super) fn here(&mut self, own: i32) -> i32 {
        if !self.differ {
            return own;
        }
        if !self.here.contains_key(&own) {
            self.look();
        }
        self.here.get(&own).copied().unwrap_or(-own)
    }

    fn look(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() < SOON) {
            return;
        }
        let threads = threads::list(self.pid).unwrap_or_default().into_iter();
        let pairs = threads.filter_map(|tid| Some((identity::number_inside(tid)?, tid)));
        self.here.extend(pairs);
        self.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_never_seen_is_no_other_thread() {
        let pid = std::process::id().cast_signed();
        let mut numbers = Numbers::of(pid);
        numbers.differ = true;
        let own = identity::number_inside(pid).expect("it runs");
        assert_eq!(numbers.here(own), pid);
        assert_eq!(numbers.here(i32::MAX), -i32::MAX);
        numbers.differ = false;
        assert_eq!(numbers.here(77), 77);
    }
}
