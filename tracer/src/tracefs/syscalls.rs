//! The system calls of one process, from entry to exit, with their latencies.

use std::collections::{HashMap, HashSet};

use crate::record::{Ticks, Tsc};
use crate::threads;

use super::format::Format;
use super::instance::{Buffer, Instance, Refusal};
use super::page::{self, Before};

/// The flag of clone(2) that makes a thread of the same process.
const CLONE_THREAD: i64 = libc::CLONE_THREAD as i64;
/// exit and exit_group: nobody returns from them.
const ENDING: [u32; 2] = [libc::SYS_exit as u32, libc::SYS_exit_group as u32];
/// More events than this are not held back to be sorted: two minutes of a busy CPU.
const MOST_HELD: usize = 4 << 20;

/// A system call that returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// From entry to exit.
    pub latency: Ticks,
}

/// What happened since the last time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Taken {
    /// The numbers of calls that began.
    pub begun: Vec<u32>,
    /// Calls that returned.
    pub calls: Vec<Call>,
    /// Calls whose end will not be seen: lost with other events, or ended with their thread.
    pub lost: Vec<u32>,
    /// How often events were lost because the reader was too slow.
    pub losses: u64,
}

/// What one event says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Enter { tid: i32, number: u32 },
    Exit { tid: i32 },
    NewThread { tid: i32 },
}

/// The tracing of one process.
#[derive(Debug)]
pub struct SyscallTrace {
    // Dropped before the instance, which would be busy otherwise.
    buffers: Vec<Buffer>,
    instance: Instance,
    enter: Format,
    exit: Format,
    new_task: Format,
    pairing: Pairing,
    held: Vec<(Tsc, Event)>,
}

impl SyscallTrace {
    /// Prepares the tracing of a process and of the threads that it will make.
    ///
    /// # Errors
    /// When the kernel does not allow it, or cannot do it.
    pub fn new(pid: i32) -> Result<SyscallTrace, Refusal> {
        let instance = Instance::new()?;
        let format = |event: &str| {
            let file = format!("events/{event}/format");
            let text = instance.read(&file)?;
            Format::parse(&text).ok_or_else(|| Refusal::Missing { path: file.into() })
        };
        let (enter, exit) = (
            format("raw_syscalls/sys_enter")?,
            format("raw_syscalls/sys_exit")?,
        );
        let new_task = format("task/task_newtask")?;
        instance.write("options/event-fork", "1")?;
        // A thread that is made meanwhile is of a listed one from the second listing on.
        let mut tids: HashSet<i32> = HashSet::new();
        loop {
            let listed = threads::list(pid).unwrap_or_default();
            let new: Vec<i32> = listed.into_iter().filter(|&tid| tids.insert(tid)).collect();
            if new.is_empty() {
                break;
            }
            let new: Vec<String> = new.iter().map(ToString::to_string).collect();
            instance.append("set_event_pid", &new.join(" "))?;
        }
        for event in [
            "raw_syscalls/sys_enter",
            "raw_syscalls/sys_exit",
            "task/task_newtask",
        ] {
            instance.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(SyscallTrace {
            buffers: instance.buffers()?,
            instance,
            enter,
            exit,
            new_task,
            pairing: Pairing::new(pid, tids),
            held: Vec::new(),
        })
    }

    /// Begins.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn start(&self) -> Result<(), Refusal> {
        self.instance.write("tracing_on", "1")
    }

    /// Ends; what was recorded can still be taken.
    pub fn stop(&self) {
        // The instance is removed anyway.
        let _ = self.instance.write("tracing_on", "0");
    }

    /// Takes what has been recorded.
    pub fn take(&mut self) -> Taken {
        // Of what comes later some may be read on one CPU and not yet on another.
        let until = crate::tsc();
        let mut taken = Taken::default();
        let mut lost = false;
        for buffer in &mut self.buffers {
            while let Some(page) = buffer.next() {
                let before = page::parse(page, |time, event| {
                    let event = event_of(event, &self.enter, &self.exit, &self.new_task);
                    self.held.extend(event.map(|event| (time, event)));
                });
                if before == Before::Lost {
                    lost = true;
                    taken.losses += 1;
                }
                if self.held.len() > MOST_HELD {
                    break;
                }
            }
        }
        self.held.sort_by_key(|&(time, _)| time);
        let ready = self.held.partition_point(|&(time, _)| time <= until);
        for (time, event) in self.held.drain(..ready) {
            self.pairing.event(time, event, &mut taken);
        }
        if lost {
            self.pairing.lose(&mut taken);
        }
        taken
    }

    /// Calls in progress: number and beginning.
    #[must_use]
    pub fn open(&self) -> Vec<(u32, Tsc)> {
        self.pairing.open.values().copied().collect()
    }
}

fn event_of(event: &[u8], enter: &Format, exit: &Format, new_task: &Format) -> Option<Event> {
    let kind = u16::from_le_bytes(event.get(..2)?.try_into().ok()?);
    let number = |format: &Format, field: &str| format.number(event, field);
    if kind == enter.id {
        Some(Event::Enter {
            tid: number(enter, "common_pid")? as i32,
            number: u32::try_from(number(enter, "id")?).ok()?,
        })
    } else if kind == exit.id {
        Some(Event::Exit {
            tid: number(exit, "common_pid")? as i32,
        })
    } else if kind == new_task.id && number(new_task, "clone_flags")? & CLONE_THREAD != 0 {
        Some(Event::NewThread {
            tid: number(new_task, "pid")? as i32,
        })
    } else {
        None
    }
}

/// Puts entries and exits together. Pure but for the look whose a thread is that nobody announced.
#[derive(Debug)]
struct Pairing {
    pid: i32,
    /// Threads of the process; others that are traced are children that it forked.
    own: HashSet<i32>,
    open: HashMap<i32, (u32, Tsc)>,
}

impl Pairing {
    fn new(pid: i32, own: HashSet<i32>) -> Pairing {
        Pairing {
            pid,
            own,
            open: HashMap::new(),
        }
    }

    fn event(&mut self, time: Tsc, event: Event, taken: &mut Taken) {
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

    /// Entries may have lost their exits, and would be paired with later ones.
    fn lose(&mut self, taken: &mut Taken) {
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
