//! The CPU time of a thread of another process, to the moment: `/proc` tells it as of the last tick, and the state that
//! it tells there is that of a thread that waits for a processor, too.

use std::fs::File;
use std::io::Read as _;

use super::attributes::Attributes;
use super::clock;
use crate::sys;

/// A thread's clock, which goes on while it runs.
#[derive(Debug)]
pub struct CpuTime {
    event: File,
}

impl CpuTime {
    /// Of a thread; `None` where the kernel refuses.
    #[must_use]
    pub fn of(tid: i32) -> Option<CpuTime> {
        let event = sys::perf_event_open(&Attributes::cpu_time().bytes(0), tid, -1).ok()?;
        sys::perf_enable(&event);
        Some(CpuTime {
            event: event.into(),
        })
    }

    /// What `work` gives, if the thread ran all the while on another processor.
    pub fn while_it_ran<Found>(&self, work: impl FnOnce() -> Found) -> Option<Found> {
        let ran = self.nanos()?;
        let began = clock::now();
        let found = work();
        let passed = clock::now().saturating_sub(began);
        let ran = self.nanos()?.checked_sub(ran)?;
        // The clocks are disciplined differently.
        (ran >= passed - passed / 64).then_some(found)
    }

    fn nanos(&self) -> Option<u64> {
        let mut count = [0; 8];
        (&self.event).read_exact(&mut count).ok()?;
        Some(u64::from_le_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use nix::unistd::gettid;

    use super::*;

    #[test]
    fn who_waits_does_not_run() {
        let (says, said) = channel();
        let (let_go, goes) = channel::<()>();
        let waiter = thread::spawn(move || {
            says.send(gettid().as_raw()).unwrap();
            let _ = goes.recv();
        });
        let clock = CpuTime::of(said.recv().unwrap());
        let Some(clock) = clock else {
            return eprintln!("not tested: perf_event_open is refused here");
        };
        let pause = || thread::sleep(Duration::from_millis(1));
        assert!((0..50).any(|_| clock.while_it_ran(pause).is_none()));
        drop(let_go);
        waiter.join().unwrap();
    }

    #[test]
    fn who_computes_runs() {
        static ENOUGH: AtomicBool = AtomicBool::new(false);
        let (says, said) = channel();
        let worker = thread::spawn(move || {
            says.send(gettid().as_raw()).unwrap();
            while !ENOUGH.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let clock = CpuTime::of(said.recv().unwrap());
        // Both may share a processor for a while, also where there are others.
        let deadline = Instant::now() + Duration::from_secs(30);
        let ran = clock.map(|clock| {
            iter::repeat_with(|| clock.while_it_ran(|| ()))
                .take_while(|_| Instant::now() < deadline)
                .any(|found| found.is_some())
        });
        ENOUGH.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        let several = thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
        assert!(!several || ran != Some(false));
    }
}
