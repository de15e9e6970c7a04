//! The threads that are measured, where not all are.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::threads;

/// Threads get other names, and new ones come: how long at least what is known is used.
const OFTEN: Duration = Duration::from_millis(100);
/// The same where a thread is not known.
const SOON: Duration = Duration::from_millis(5);
/// A look at many threads takes a while: no more than this part of the time goes into looks.
const LOOKS: u32 = 50;
/// For so many looks a thread stays known that has ended: what it did may be told later.
const REMEMBERED: u64 = 32;

/// Whether a thread is meant that has this id and this name (proc_pid_comm(5)).
pub type Fits = dyn Fn(i32, &str) -> bool + Send + Sync;

/// Threads of a process, chosen by their ids or names, also those that come later.
pub struct Chosen {
    pid: i32,
    fits: Box<Fits>,
    known: Mutex<Known>,
    /// Ops of threads that had ended before anybody looked at their names.
    unknown: AtomicU64,
}

/// What was found.
#[derive(Default)]
struct Known {
    /// When the last look at all threads began, and what it took.
    last: Option<(Instant, Duration)>,
    looks: u64,
    /// Whether the process has a namespace of its own for ids (pid_namespaces(7)).
    nested: bool,
    /// By a thread's id: whether it is meant, and in which look it was seen last.
    threads: HashMap<i32, (bool, u64)>,
    /// The same by the id that the process itself knows a thread by; empty where the ids are the same.
    own: HashMap<i32, (bool, u64)>,
}

impl Chosen {
    /// Those of the process of which `fits` says so.
    #[must_use]
    pub fn new(pid: i32, fits: Box<Fits>) -> Chosen {
        let chosen = Chosen {
            pid,
            fits,
            known: Mutex::default(),
            unknown: AtomicU64::new(0),
        };
        chosen.refresh();
        chosen
    }

    /// Looks at the names of all threads, if that was long ago. The process should run meanwhile.
    pub fn refresh(&self) {
        self.look(&mut self.known(), OFTEN);
    }

    /// Whether a thread is one of them.
    #[must_use]
    pub fn has(&self, tid: i32) -> bool {
        self.is_meant(&mut self.known(), tid).unwrap_or(false)
    }

    /// Whether a thread is one of them, by the id that the process itself knows it by. Nothing where its name is not known.
    #[must_use]
    pub fn has_own(&self, tid: i32) -> Option<bool> {
        let mut known = self.known();
        if !known.nested {
            return self.is_meant(&mut known, tid);
        }
        if !known.own.contains_key(&tid) {
            self.look(&mut known, SOON);
        }
        known.own.get(&tid).map(|(meant, _)| *meant)
    }

    /// Notes an op of a thread whose name is not known.
    pub fn left_out(&self) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// How many ops were of threads whose names are not known.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only what there is becomes known: any number may be asked for.
    fn is_meant(&self, known: &mut Known, tid: i32) -> Option<bool> {
        if let Some((meant, _)) = known.threads.get(&tid) {
            return Some(*meant);
        }
        let name = name(self.pid, tid)?;
        let meant = (self.fits)(tid, &name);
        known.threads.insert(tid, (meant, known.looks));
        Some(meant)
    }

    fn look(&self, known: &mut Known, at_least: Duration) {
        let is_due = known.last.is_none_or(|(began, took)| {
            let since = began.elapsed();
            since >= at_least && since >= took * LOOKS
        });
        if !is_due {
            return;
        }
        let began = Instant::now();
        known.looks += 1;
        // Of one that is gone there are none.
        let ids_of_process = ids(self.pid).len();
        if ids_of_process > 0 {
            known.nested = ids_of_process > 1;
        }
        for tid in threads::list(self.pid).unwrap_or_default() {
            let Some(name) = name(self.pid, tid) else {
                continue;
            };
            let found = ((self.fits)(tid, &name), known.looks);
            known.threads.insert(tid, found);
            let own = known.nested.then(|| ids(tid).pop()).flatten();
            known.own.extend(own.map(|own| (own, found)));
        }
        let looks = known.looks;
        let is_known = |seen: u64| looks - seen <= REMEMBERED;
        known.threads.retain(|_, (_, seen)| is_known(*seen));
        known.own.retain(|_, (_, seen)| is_known(*seen));
        known.last = Some((began, began.elapsed()));
    }
}

impl fmt::Debug for Chosen {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Chosen")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// The name of a thread (proc_pid_comm(5)), which the program gives it; nothing where it has ended.
#[must_use]
pub fn name(pid: i32, tid: i32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&bytes);
    Some(name.strip_suffix('\n').unwrap_or(&name).to_owned())
}

/// The ids of a thread, that in its own namespace last (proc_pid_status(5), NSpid).
fn ids(tid: i32) -> Vec<i32> {
    let ids = threads::status_field(tid, "NSpid").unwrap_or_default();
    ids.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn threads_are_chosen_by_name_also_those_that_come_later() {
        let pid = std::process::id() as i32;
        let chosen = Chosen::new(pid, Box::new(|_, name| name.starts_with("chosen-")));
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        assert!(!chosen.has(pid) && chosen.has_own(pid) == Some(false));
        let one = thread::Builder::new().name("chosen-1".to_owned());
        let begun = one.spawn(move || {
            let _ = say.send(nix::unistd::gettid().as_raw());
            let _ = ended.recv();
        });
        let tid = said.recv().expect("the thread runs");
        assert!(chosen.has(tid) && chosen.has_own(tid) == Some(true) && !chosen.has(pid));
        assert!(
            chosen.has_own(i32::MAX).is_none() && !chosen.known().threads.contains_key(&i32::MAX)
        );
        drop(end);
        begun.expect("a thread").join().expect("it ends");
        assert!(chosen.has(tid), "what it did before it ended is told later");
    }
}
