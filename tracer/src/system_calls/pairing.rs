//! Entries and exits of system calls, put together.

use std::collections::{HashMap, HashSet};

use super::{Call, Taken};
#[cfg(test)]
use crate::record::Ticks;
use crate::record::Tsc;
use crate::threads;

/// exit and exit_group: nobody returns from them.
const ENDING: [u32; 2] = [libc::SYS_exit as u32, libc::SYS_exit_group as u32];
/// What one event says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A call begins.
    Enter {
        tid: i32,
        number: u32,
    },
    Exit {
        tid: i32,
    },
    NewThread {
        tid: i32,
    },
}

/// Puts entries and exits together. Pure but for the look whose a thread is that nobody announced.
#[derive(Debug)]
pub(crate) struct Pairing {
    pid: i32,
    /// Threads of the process; others that are traced are children that it forked.
    own: HashSet<i32>,
    open: HashMap<i32, (u32, Tsc)>,
}

impl Pairing {
    pub(crate) fn new(pid: i32, own: HashSet<i32>) -> Pairing {
        Pairing {
            pid,
            own,
            open: HashMap::new(),
        }
    }

    pub(crate) fn event(&mut self, time: Tsc, event: Event, taken: &mut Taken) {
        match event {
            // Its maker may be a child process; then it is not asked for by this process's folder.
            Event::NewThread { tid } => {
                self.open.remove(&tid);
                if self.own.contains(&tid) || threads::process_of(tid).is_none_or(|p| p == self.pid)
                {
                    self.own.insert(tid);
                }
            }
            Event::Enter { tid, number } if self.own.contains(&tid) => {
                taken.begun.push(number);
                if ENDING.contains(&number) {
                    self.open.remove(&tid);
                } else if let Some((number, _)) = self.open.insert(tid, (number, time)) {
                    taken.lost.push(number);
                }
            }
            Event::Exit { tid } => {
                // Without an entry it began before the tracing, or is of a child process.
                if let Some((number, start)) = self.open.remove(&tid) {
                    let latency = time - start;
                    taken.calls.push(Call { number, latency });
                }
            }
            Event::Enter { .. } => {}
        }
    }

    /// A thread is known to be the process's.
    pub(crate) fn own(&mut self, tid: i32) {
        self.own.insert(tid);
    }

    /// Calls in progress: number and beginning.
    pub(crate) fn open(&self) -> Vec<(u32, Tsc)> {
        self.open.values().copied().collect()
    }

    /// Entries may have lost their exits, and would be paired with later ones.
    pub(crate) fn lose(&mut self, taken: &mut Taken) {
        let lost = self.open.drain().map(|(_, (number, _))| number);
        taken.lost.extend(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairing() -> Pairing {
        // No thread has this number, so that nothing is asked of the kernel.
        Pairing::new(i32::MAX, HashSet::from([5, 6]))
    }

    #[test]
    fn calls_are_paired_by_thread() {
        let (mut pairing, mut taken) = (pairing(), Taken::default());
        let mut event = |time, event| pairing.event(Tsc(time), event, &mut taken);
        // It began before the tracing.
        event(1, Event::Exit { tid: 5 });
        event(2, Event::Enter { tid: 5, number: 0 });
        event(
            3,
            Event::Enter {
                tid: 6,
                number: 202,
            },
        );
        event(9, Event::Exit { tid: 5 });
        event(13, Event::Exit { tid: 6 });
        // A child process.
        event(14, Event::Enter { tid: 7, number: 59 });
        event(15, Event::Enter { tid: 6, number: 0 });
        event(16, Event::Enter { tid: 5, number: 60 });
        let call = |number, latency| Call {
            number,
            latency: Ticks(latency),
        };
        assert_eq!(taken.calls, [call(0, 7), call(202, 10)]);
        assert_eq!(taken.begun, [0, 202, 0, 60]);
        assert_eq!(pairing.open.len(), 1);
    }

    #[test]
    fn what_was_lost_makes_no_latency() {
        let (mut pairing, mut taken) = (pairing(), Taken::default());
        pairing.event(Tsc(2), Event::Enter { tid: 5, number: 0 }, &mut taken);
        pairing.lose(&mut taken);
        pairing.event(Tsc(90), Event::Exit { tid: 5 }, &mut taken);
        assert_eq!((taken.calls.len(), taken.lost), (0, vec![0]));
    }
}
