//! The records that the kernel writes into a ring, as values.
//!
//! Source: perf_event_open(2), "MMAP layout", and `enum perf_event_type` of the kernel's header.

use crate::maps::FileId;

pub use super::point::{Point, UserStack};

/// When and where a record was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Stamp {
    /// Nanoseconds of `CLOCK_MONOTONIC_RAW`.
    pub time: u64,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The CPU.
    pub cpu: u32,
}

/// What ran when a sample was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// The program.
    User,
    /// The kernel, in the thread's name or in an interrupt.
    Kernel,
    /// Something beyond this machine: a guest, or the hypervisor.
    Elsewhere,
}

/// How a thread left its CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Left {
    /// It could have gone on (the kernel's PREEMPT bit).
    Preempted,
    /// As that, but by its own doing: sched_yield(2).
    Yielded,
    /// It waits for something, or has ended.
    Blocked,
}

/// Why a thread has a new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// It executed a program: what was mapped before is gone.
    Exec,
    /// It asked for the name.
    Asked,
}

/// Where a program was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When, where, who.
    pub stamp: Stamp,
    /// Whose code.
    pub mode: Mode,
    /// The instruction.
    pub ip: u64,
    /// The kernel's part of the chain, the innermost first; empty without chains.
    pub kernel: Vec<u64>,
    /// The program's part of the chain, the innermost first; its first is `ip` for [`Mode::User`]. Empty without chains.
    pub user: Vec<u64>,
}

/// An executable file that was mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// When, by whom.
    pub stamp: Stamp,
    /// The process.
    pub pid: i32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The file; its inode is 0 when that is not told.
    pub file: FileId,
    /// Whose code.
    pub mode: Mode,
    /// The file's path in the process's own root, or a name in brackets.
    pub name: Vec<u8>,
}

/// A thread that began or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// When.
    pub stamp: Stamp,
    /// Its process.
    pub pid: i32,
    /// The process that made it.
    pub parent: i32,
    /// The thread.
    pub tid: i32,
    /// The thread that made it.
    pub maker: i32,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A sample.
    Sample(Sample),
    /// A tracepoint.
    Point(Point),
    /// A thread left its CPU.
    Out {
        /// When, which thread.
        stamp: Stamp,
        /// How.
        left: Left,
        /// The thread that got the CPU, 0 for none; known to events on whole CPUs only.
        next: Option<i32>,
    },
    /// A thread got a CPU.
    In(Stamp),
    /// A thread was named.
    Named {
        /// When, by whom.
        stamp: Stamp,
        /// Its process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// The name, 15 bytes at most.
        name: Vec<u8>,
        /// Why.
        naming: Naming,
    },
    /// A file with code was mapped.
    Mapped(Mapped),
    /// A thread, or a process with its first thread, was made.
    Forked(Task),
    /// A thread ended.
    Exited(Task),
    /// The ring was full, and this many records were dropped.
    Lost(Stamp, u64),
    /// The kernel stopped sampling for a while, as it cost too much.
    Throttled(Stamp),
    /// Of a kind that nobody asked for.
    Other(u32),
}

impl Record {
    /// Where it was made, if that is told.
    #[must_use]
    pub fn cpu(&self) -> Option<u32> {
        match self {
            Record::Sample(sample) => Some(sample.stamp.cpu),
            Record::Point(point) => Some(point.stamp.cpu),
            Record::Mapped(mapped) => Some(mapped.stamp.cpu),
            Record::Forked(task) | Record::Exited(task) => Some(task.stamp.cpu),
            Record::Out { stamp, .. }
            | Record::In(stamp)
            | Record::Named { stamp, .. }
            | Record::Lost(stamp, _)
            | Record::Throttled(stamp) => Some(stamp.cpu),
            Record::Other(_) => None,
        }
    }

    /// When it was made; zero for kinds nobody asked for.
    #[must_use]
    pub fn time(&self) -> u64 {
        match self {
            Record::Sample(sample) => sample.stamp.time,
            Record::Point(point) => point.stamp.time,
            Record::Mapped(mapped) => mapped.stamp.time,
            Record::Forked(task) | Record::Exited(task) => task.stamp.time,
            Record::Out { stamp, .. }
            | Record::In(stamp)
            | Record::Named { stamp, .. }
            | Record::Lost(stamp, _)
            | Record::Throttled(stamp) => stamp.time,
            Record::Other(_) => 0,
        }
    }
}
