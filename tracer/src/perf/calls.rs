//! The system calls of one process, by perf events on the two tracepoints that all system calls pass.
//!
//! Needs the tracepoints' numbers, which tracefs alone tells, but no right to write there. The kernel lets users
//! without privileges see their own processes' (`TRACE_EVENT_FL_CAP_ANY`) where `kernel.perf_event_paranoid` is 1 or less.
//! Source: perf_event_open(2); kernel/trace/trace_event_perf.c; include/trace/events/syscalls.h.

use std::collections::{HashMap, HashSet};

use super::attributes::{Attributes, Follow};
use super::clock::Clock;
use super::collector::Collector;
use super::opening::watch_threads;
use super::record::Record;
use super::refusal::{Refusal, paranoid};
use crate::system_calls::{Event, Pairing, Taken};
use crate::tracefs::{self, Format};
use darc_record::Tsc;

/// Under this setting users may record what the kernel does in their processes' name.
const LENIENT: i64 = 1;

/// Why there are none.
#[derive(Debug)]
pub enum NoCallEvents {
    /// Nobody says which numbers the tracepoints have.
    Unknown,
    /// Perf events are refused.
    Refused(Refusal),
}

/// Whether more will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    Stopped,
}

/// Follows the threads of a process.
#[derive(Debug)]
pub struct CallEvents {
    pid: i32,
    enter: Format,
    exit: Format,
    collector: Collector,
    clock: Clock,
    pairing: Pairing,
    /// The call that each thread is in.
    inside: HashMap<i32, u32>,
    state: State,
}

impl CallEvents {
    /// Begins to follow a process and the threads that it will make.
    ///
    /// # Errors
    /// When the tracepoints are not known, or the kernel refuses.
    pub fn begin(pid: i32) -> Result<CallEvents, NoCallEvents> {
        let place = tracefs::place().map_err(|_| NoCallEvents::Unknown)?;
        let format = |name: &str| {
            let file = place.join("events/raw_syscalls").join(name).join("format");
            let text = std::fs::read_to_string(file).ok();
            text.and_then(|text| Format::parse(&text))
                .ok_or(NoCallEvents::Unknown)
        };
        let (enter, exit) = (format("sys_enter")?, format("sys_exit")?);
        let events = [&enter, &exit].map(|format| Attributes::point(format.id));
        let opened =
            Collector::new(events[0].follow(Follow::Children)).and_then(|mut collector| {
                watch_threads(&mut collector, pid, &events)?;
                Ok(collector)
            });
        let collector = opened.map_err(|refusal| NoCallEvents::Refused(named(refusal)))?;
        collector.enable();
        Ok(CallEvents {
            pid,
            enter,
            exit,
            collector,
            clock: Clock::calibrate(),
            pairing: Pairing::new(pid, HashSet::new()),
            inside: HashMap::new(),
            state: State::Running,
        })
    }

    /// Ends, and takes what has been recorded up to now.
    pub fn finish(&mut self) -> Taken {
        self.collector.disable();
        self.state = State::Stopped;
        let mut taken = self.take();
        self.pairing.lose_ended(&mut taken);
        taken
    }

    /// Takes what has been recorded.
    pub fn take(&mut self) -> Taken {
        self.clock.tick();
        let drained = match self.state {
            State::Running => self.collector.read(),
            State::Stopped => self.collector.read_rest(),
        };
        let mut taken = Taken {
            losses: u64::from(drained.damaged > 0),
            ..Taken::default()
        };
        for record in drained.records {
            match record {
                Record::Point(point) if point.stamp.pid == self.pid => {
                    let tid = point.stamp.tid;
                    self.pairing.own(tid);
                    if let Some(event) = self.event(tid, &point.raw)
                        && self.is_new(event)
                    {
                        let at = self.clock.tsc(point.stamp.time);
                        self.pairing.event(at, event, &mut taken);
                    }
                }
                Record::Lost(..) => {
                    taken.losses += 1;
                    self.inside.clear();
                    self.pairing.lose(&mut taken);
                }
                _ => {}
            }
        }
        taken
    }

    fn event(&self, tid: i32, raw: &[u8]) -> Option<Event> {
        let kind = u16::from_le_bytes(raw.get(..2)?.try_into().ok()?);
        if kind == self.enter.id {
            let number = u32::try_from(self.enter.number(raw, "id")?).ok()?;
            Some(Event::Enter { tid, number })
        } else {
            (kind == self.exit.id).then(|| Event::Exit {
                tid,
                number: (self.exit.number(raw, "id")).and_then(|number| u32::try_from(number).ok()),
            })
        }
    }

    /// A thread that was made while the events were opened may have two of each, and tells everything twice.
    fn is_new(&mut self, event: Event) -> bool {
        match event {
            Event::Enter { tid, number } => self.inside.insert(tid, number) != Some(number),
            // One that executes another program is the first thread when it returns.
            Event::Exit { tid, .. } => self.inside.remove(&tid).is_some() || tid == self.pid,
            Event::NewThread { .. } => false,
        }
    }

    /// Calls in progress: number and beginning.
    #[must_use]
    pub fn open(&self) -> Vec<(u32, Tsc)> {
        self.pairing.open()
    }
}

/// What is refused to users is more than events on a process's own code.
fn named(refusal: Refusal) -> Refusal {
    match (refusal, paranoid()) {
        (Refusal::Foreign { .. } | Refusal::Paranoid { .. }, Some(level)) if level > LENIENT => {
            Refusal::Paranoid {
                level,
                what: "events on a process's system calls",
                wanted: LENIENT,
            }
        }
        (refusal, _) => refusal,
    }
}
