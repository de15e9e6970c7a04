//! The system calls of one process, from entry to exit, with their latencies.

use std::collections::HashSet;

use crate::system_calls::{Event, Pairing, Taken};
use crate::threads;
use darc_record::Tsc;

use super::format::Format;
use super::instance::{Buffer, Instance, Refusal};
use super::page::{self, Before};

/// The flag of clone(2) that makes a thread of the same process.
const CLONE_THREAD: i64 = libc::CLONE_THREAD as i64;
/// More events than this are not held back to be sorted: two minutes of a busy CPU.
const MOST_HELD: usize = 4 << 20;

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

    /// Ends, and takes what has been recorded up to now.
    pub fn finish(&mut self) -> Taken {
        // The instance is removed anyway.
        let _ = self.instance.write("tracing_on", "0");
        let mut taken = self.take();
        self.pairing.lose_ended(&mut taken);
        taken
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
        self.pairing.open()
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
            number: number(exit, "id").and_then(|number| u32::try_from(number).ok()),
        })
    } else if kind == new_task.id && number(new_task, "clone_flags")? & CLONE_THREAD != 0 {
        Some(Event::NewThread {
            tid: number(new_task, "pid")? as i32,
        })
    } else {
        None
    }
}
