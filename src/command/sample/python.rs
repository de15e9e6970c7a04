//! Looking at the Python functions of the process that is sampled, at regular times beside the samples.

use std::time::{Duration, Instant};

use darc_process::python::Python;

use crate::sampling::python::PythonLooks;

/// What lies between two looks: nothing that programs like to do at regular times.
const BETWEEN: Duration = Duration::from_micros(10_700);
/// What lies between the first two searches for an interpreter: a program may come to have one. Twice as much each time, up to a
/// limit.
const BETWEEN_SEARCHES: Duration = Duration::from_millis(100);
const MOST_BETWEEN_SEARCHES: Duration = Duration::from_secs(3);

/// The looks at one process.
pub(super) struct Pythons {
    pid: i32,
    python: Option<Python>,
    due: Instant,
    /// Until the next search, when this one finds nothing.
    patience: Duration,
    pub(super) looks: PythonLooks,
}

impl Pythons {
    /// Of a process; none was taken yet.
    pub(super) fn of(pid: i32) -> Pythons {
        Pythons {
            pid,
            python: None,
            due: Instant::now(),
            patience: BETWEEN_SEARCHES,
            looks: PythonLooks::default(),
        }
    }

    /// Until the next look.
    pub(super) fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Looks, when it is time to.
    pub(super) fn look(&mut self) {
        if self.left() > Duration::ZERO {
            return;
        }
        // A program that executes another one has another memory.
        self.python = self.python.take().filter(Python::is_there);
        let between = match &self.python {
            Some(python) => {
                self.looks.add(python.look());
                BETWEEN
            }
            None => {
                self.python = Python::of(self.pid);
                let between = self.patience;
                self.patience = (between * 2).min(MOST_BETWEEN_SEARCHES);
                between
            }
        };
        self.due = Instant::now() + between;
    }
}
