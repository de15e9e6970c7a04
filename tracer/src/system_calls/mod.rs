//! The system calls of one process, by an instance of the kernel's tracing or, where that may not be made, by perf events.

mod pairing;

use crate::perf::calls::{CallEvents, NoCallEvents};
pub use crate::tracefs::{Abandoned, remove_abandoned};
use crate::tracefs::{Refusal, SyscallTrace};
use darc_record::{Ticks, Tsc};

pub(crate) use pairing::{Event, Pairing};

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

/// Why they cannot be had.
#[derive(thiserror::Error, Debug)]
pub enum NoSystemCalls {
    /// Tracefs cannot even be read, where the numbers of tracepoints are.
    #[error(transparent)]
    Tracefs(Refusal),
    /// It can be read, and there are no perf events instead.
    #[error("system calls: {0}")]
    Events(crate::perf::Refusal),
}

/// The tracing of one process and of the threads that it makes.
#[derive(Debug)]
pub enum SystemCalls {
    /// By an instance of the kernel's tracing: buffers of its own, the clock is the cycle counter.
    Instance(SyscallTrace),
    /// By perf events.
    Events(CallEvents),
}

impl SystemCalls {
    /// Begins.
    ///
    /// # Errors
    /// When the kernel does not allow it, or cannot do it.
    pub fn begin(pid: i32) -> Result<SystemCalls, NoSystemCalls> {
        let instance = SyscallTrace::new(pid).and_then(|trace| trace.start().map(|()| trace));
        match instance {
            Ok(trace) => Ok(SystemCalls::Instance(trace)),
            Err(tracefs) => match CallEvents::begin(pid) {
                Ok(events) => Ok(SystemCalls::Events(events)),
                Err(NoCallEvents::Unknown) => Err(NoSystemCalls::Tracefs(tracefs)),
                // Nobody needs more than that.
                Err(NoCallEvents::Refused(events)) => Err(NoSystemCalls::Events(events)),
            },
        }
    }

    /// Takes what has been recorded.
    pub fn take(&mut self) -> Taken {
        match self {
            SystemCalls::Instance(trace) => trace.take(),
            SystemCalls::Events(events) => events.take(),
        }
    }

    /// Ends, and takes what has been recorded up to now.
    pub fn finish(&mut self) -> Taken {
        match self {
            SystemCalls::Instance(trace) => trace.finish(),
            SystemCalls::Events(events) => events.finish(),
        }
    }

    /// Calls in progress: number and beginning.
    #[must_use]
    pub fn open(&self) -> Vec<(u32, Tsc)> {
        match self {
            SystemCalls::Instance(trace) => trace.open(),
            SystemCalls::Events(events) => events.open(),
        }
    }
}
