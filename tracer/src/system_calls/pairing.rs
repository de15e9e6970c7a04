//! Entries and exits of system calls, put together.

use std::collections::{HashMap, HashSet};

use super::{Call, Taken};
use crate::threads;
#[cfg(test)]
use darc_record::Ticks;
use darc_record::Tsc;

/// exit and exit_group: nobody returns from them.
const ENDING: [u32; 2] = [libc::SYS_exit as u32, libc::SYS_exit_group as u32];
/// Whoever returns from them is the process's first thread, whichever thread called: all others are gone (execve(2)).
const EXEC: [u32; 2] = [libc::SYS_execve as u32, libc::SYS_execveat as u32];

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
        /// Of the call, where the kernel still knows it.
        number: Option<u32>,
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
                self.lose_of(tid, taken);
                if self.own.contains(&tid) || threads::process_of(tid).is_none_or(|p| p == self.pid)
                {
                    self.own.insert(tid);
                }
            }
            Event::Enter { tid, number } if self.own.contains(&tid) => {
                taken.begun.push(number);
                self.lose_of(tid, taken);
                if ENDING.contains(&number) {
                    taken.lost.push(number);
                } else {
                    self.open.insert(tid, (number, time));
                }
            }
            Event::Exit { tid, number } => {
                let caller = self.caller(tid, number);
                // Without an entry it began before the tracing, or is of a child process.
                if let Some((number, start)) = self.open.remove(&caller) {
                    let latency = time - start;
                    taken.calls.push(Call { number, latency });
                }
                if caller != tid {
                    self.lose(taken);
                }
            }
            Event::Enter { .. } => {}
        }
    }

    /// By which id the thread called that now returns: one that executes another program becomes the first thread.
    fn caller(&self, tid: i32, number: Option<u32>) -> i32 {
        let is_exec = |number: u32| EXEC.contains(&number);
        if tid != self.pid || !number.is_some_and(is_exec) {
            return tid;
        }
        match self.open.get(&tid) {
            Some(&(open, _)) if is_exec(open) => tid,
            _ => {
                let mut open = self.open.iter();
                let caller = open.find(|(_, (open, _))| is_exec(*open));
                caller.map_or(tid, |(&caller, _)| caller)
            }
        }
    }

    /// A thread does something else: the end of the call that it was in will not be seen.
    fn lose_of(&mut self, tid: i32, taken: &mut Taken) {
        let lost = self.open.remove(&tid);
        taken.lost.extend(lost.map(|(number, _)| number));
    }

    /// The calls of threads that have ended, of a process that has not, will not end any more.
    pub(crate) fn lose_ended(&mut self, taken: &mut Taken) {
        let Some(alive) = self.alive() else { return };
        let ended = self.open.extract_if(|tid, _| !alive.contains(tid));
        taken.lost.extend(ended.map(|(_, (number, _))| number));
    }

    /// The threads of the process now; none when it has ended.
    fn alive(&self) -> Option<HashSet<i32>> {
        let alive: HashSet<i32> = threads::list(self.pid).ok()?.into_iter().collect();
        (!alive.is_empty()).then_some(alive)
    }

    /// A thread is known to be the process's.
    pub(crate) fn own(&mut self, tid: i32) {
        self.own.insert(tid);
    }

    /// Calls in progress: number and beginning.
    pub(crate) fn open(&self) -> Vec<(u32, Tsc)> {
        let alive = self.alive();
        let is_open = |tid: &i32| alive.as_ref().is_none_or(|alive| alive.contains(tid));
        let open = self.open.iter().filter(|(tid, _)| is_open(tid));
        open.map(|(_, &call)| call).collect()
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

    fn exit(tid: i32, number: u32) -> Event {
        Event::Exit {
            tid,
            number: Some(number),
        }
    }

    #[test]
    fn calls_are_paired_by_thread() {
        let (mut pairing, mut taken) = (pairing(), Taken::default());
        let mut event = |time, event| pairing.event(Tsc(time), event, &mut taken);
        // It began before the tracing.
        event(1, exit(5, 1));
        event(2, Event::Enter { tid: 5, number: 0 });
        event(
            3,
            Event::Enter {
                tid: 6,
                number: 202,
            },
        );
        event(9, exit(5, 0));
        event(13, exit(6, 202));
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
        assert_eq!(taken.lost, [60], "nobody returns from exit");
        assert_eq!(pairing.open.len(), 1);
    }

    #[test]
    fn a_new_thread_with_the_id_of_another_has_ended_its_call() {
        let (mut pairing, mut taken) = (pairing(), Taken::default());
        pairing.event(Tsc(2), Event::Enter { tid: 5, number: 0 }, &mut taken);
        pairing.event(Tsc(3), Event::NewThread { tid: 5 }, &mut taken);
        assert_eq!((taken.lost, pairing.open.len()), (vec![0], 0));
    }

    #[test]
    fn a_thread_that_executes_a_program_becomes_the_first_one() {
        let first = i32::MAX;
        let mut pairing = Pairing::new(first, HashSet::from([first, 5, 6]));
        let mut taken = Taken::default();
        let enter = |tid, number| Event::Enter { tid, number };
        for (time, event) in [
            (1, enter(first, 202)),
            (2, enter(6, 0)),
            (3, enter(5, 59)),
            // It cannot, and tries again.
            (7, exit(5, 59)),
            (8, enter(5, 59)),
            (20, exit(first, 59)),
        ] {
            pairing.event(Tsc(time), event, &mut taken);
        }
        let latencies: Vec<_> = taken.calls.iter().map(|call| call.latency.0).collect();
        assert_eq!(latencies, [4, 12]);
        assert!(taken.calls.iter().all(|call| call.number == 59));
        taken.lost.sort_unstable();
        assert_eq!((taken.lost, pairing.open.len()), (vec![0, 202], 0));
    }

    #[test]
    fn calls_of_threads_that_are_no_more_are_not_in_progress() {
        let me = i32::try_from(std::process::id()).unwrap();
        let no_thread = i32::MAX;
        let mut pairing = Pairing::new(me, HashSet::from([me, no_thread]));
        let mut taken = Taken::default();
        for (tid, number) in [(me, 0), (no_thread, 202)] {
            pairing.event(Tsc(1), Event::Enter { tid, number }, &mut taken);
        }
        assert_eq!(pairing.open(), [(0, Tsc(1))]);
        pairing.lose_ended(&mut taken);
        assert_eq!((taken.lost, pairing.open.len()), (vec![202], 1));
    }

    #[test]
    fn what_was_lost_makes_no_latency() {
        let (mut pairing, mut taken) = (pairing(), Taken::default());
        pairing.event(Tsc(2), Event::Enter { tid: 5, number: 0 }, &mut taken);
        pairing.lose(&mut taken);
        pairing.event(Tsc(90), exit(5, 0), &mut taken);
        assert_eq!((taken.calls.len(), taken.lost), (0, vec![0]));
    }
}
