//! For how long a thread has been on a processor: read while it is stopped, it tells how long it ran since
//! the stop before, even when the tracer was late to notice.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::sys;
use darc_record::{Ticks, Tsc};

/// The scheduler's account of one thread (`/proc/TID/schedstat`, proc_pid_schedstat in the kernel's
/// `fs/proc/base.c`).
#[derive(Debug)]
pub struct CpuTime {
    file: File,
}

/// What the account says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Nanoseconds on a processor.
    ran: u64,
    /// Nanoseconds that it waited for one.
    waited: u64,
    /// How often it was given one.
    turns: u64,
}

impl CpuTime {
    /// Opens a thread's account; `None` when the kernel keeps none.
    #[must_use]
    pub fn open(pid: i32, tid: i32) -> Option<CpuTime> {
        let file = File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        Some(CpuTime { file })
    }

    /// Reads it.
    #[must_use]
    pub fn read(&self) -> Option<Reading> {
        let mut text = [0; 96];
        let len = self.file.read_at(&mut text, 0).ok()?;
        parse(std::str::from_utf8(&text[..len]).ok()?)
    }
}

fn parse(text: &str) -> Option<Reading> {
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    let (ran, waited, turns) = (
        fields.next()?.ok()?,
        fields.next()?.ok()?,
        fields.next()?.ok()?,
    );
    // A kernel without this accounting shows zeros.
    (turns > 0).then_some(Reading { ran, waited, turns })
}

/// One turn on a processor, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// How long it was.
    pub ran: u64,
    /// How long the thread waited for it.
    pub waited: u64,
}

impl Reading {
    /// What happened since an earlier reading, if the thread was given a processor once and kept it.
    #[must_use]
    pub fn since(self, earlier: Reading) -> Option<Turn> {
        let one = self.turns == earlier.turns.wrapping_add(1);
        Some(Turn {
            ran: self.ran.checked_sub(earlier.ran).filter(|_| one)?,
            waited: self.waited.checked_sub(earlier.waited)?,
        })
    }
}

/// How many cycles of the time stamp counter a nanosecond has.
#[derive(Clone, Copy, Debug)]
pub struct TickRate {
    instant: Instant,
    tsc: Tsc,
}

impl TickRate {
    /// Begins to measure the rate, which is known well after some milliseconds.
    #[must_use]
    pub fn begin() -> TickRate {
        // Of some pairs of readings the one with the least between them.
        let pair = || {
            let (before, instant, after) = (sys::tsc(), Instant::now(), sys::tsc());
            (
                after - before,
                TickRate {
                    instant,
                    tsc: after,
                },
            )
        };
        let pairs: [_; 5] = std::array::from_fn(|_| pair());
        let best = pairs.into_iter().min_by_key(|(apart, _)| *apart);
        best.expect("five").1
    }

    /// The cycles of so many nanoseconds.
    #[must_use]
    pub fn ticks(&self, nanos: u64) -> Ticks {
        let elapsed = self.instant.elapsed().as_nanos().max(1) as f64;
        let ticks = (sys::tsc() - self.tsc).0 as f64;
        Ticks((nanos as f64 * (ticks / elapsed)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_kept_its_processor_has_run_without_a_break() {
        let earlier = parse("1000 5 7\n").unwrap();
        let turn = Turn {
            ran: 3000,
            waited: 2,
        };
        assert_eq!(parse("4000 7 8").unwrap().since(earlier), Some(turn));
        assert_eq!(parse("4000 9 9").unwrap().since(earlier), None);
        assert_eq!(parse("900 9 8").unwrap().since(earlier), None);
    }

    #[test]
    fn what_says_nothing_is_not_believed() {
        assert_eq!(parse("0 0 0\n"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("1 2"), None);
        assert_eq!(parse("a b c"), None);
    }
}
