//! What threads were seen to do while their time was divided: for how long they were ready without running, which is in the times of
//! whatever they did then, and for how long they ran.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use darc_tracer::threads;

use crate::session::survey::began::cpu_times;

/// Who ran for less than this all together did next to nothing.
const LITTLE: Duration = Duration::from_millis(10);

/// Where the threads of a process stood when the division began.
#[derive(Debug)]
pub(super) struct Readiness {
    pid: i32,
    since: Instant,
    waited: HashMap<i32, Duration>,
    ran: HashMap<i32, Duration>,
    all_ran: Option<Duration>,
}

impl Readiness {
    /// Begins now.
    pub(super) fn begin(pid: i32) -> Readiness {
        let threads = threads::list(pid).unwrap_or_default().into_iter();
        let waited = threads.filter_map(|tid| Some((tid, threads::waited(pid, tid)?)));
        Readiness {
            pid,
            since: Instant::now(),
            waited: waited.collect(),
            ran: cpu_times(pid),
            all_ran: threads::cpu_time_of_all(pid),
        }
    }

    /// Which part of the CPU time since then these threads took, 0 to 1, of all that was taken, also by threads that have ended.
    /// Nothing where that was next to none.
    pub(super) fn share_of_cpu(&self, tids: impl Iterator<Item = i32>) -> Option<f64> {
        let mut ran = cpu_times(self.pid);
        for (tid, time) in &mut ran {
            let before = self.ran.get(tid).copied().unwrap_or_default();
            *time = time.saturating_sub(before);
        }
        let living: Duration = ran.values().sum();
        let now = threads::cpu_time_of_all(self.pid);
        let all = now.zip(self.all_ran);
        let all = all.map_or(living, |(now, then)| now.saturating_sub(then).max(living));
        let of_these: Duration = tids.filter_map(|tid| ran.get(&tid)).sum();
        (all >= LITTLE).then(|| of_these.as_secs_f64() / all.as_secs_f64())
    }

    /// In which part of the time since then these threads were ready and did not run, 0 to 1. Of those that have come or gone
    /// meanwhile nothing is known; nothing where that is all.
    pub(super) fn share(&self, tids: impl Iterator<Item = i32>) -> Option<f64> {
        let passed = self.since.elapsed();
        let share = |tid: i32| {
            let before = self.waited.get(&tid)?;
            let now = threads::waited(self.pid, tid)?;
            let waited = now.saturating_sub(*before).min(passed);
            Some(waited.as_secs_f64() / passed.as_secs_f64())
        };
        let shares: Vec<f64> = tids.filter_map(share).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that never wait have one processor: each is ready while the other runs.
    #[test]
    fn a_thread_that_another_keeps_from_running_is_ready() {
        use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
        use nix::unistd::{Pid, gettid};

        let own = std::process::id() as i32;
        let tid = gettid().as_raw();
        if threads::waited(own, tid).is_none() {
            eprintln!("not tested: the kernel does not tell");
            return;
        }
        let cpu = sched_getcpu().unwrap();
        let spin = || {
            let mut one = CpuSet::new();
            one.set(cpu).unwrap();
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(200) {}
        };
        let readiness = Readiness::begin(own);
        std::thread::scope(|scope| {
            scope.spawn(spin);
            spin();
        });
        let share = readiness.share([tid].into_iter()).expect("it is known");
        assert!((0.1..=1.0).contains(&share), "{share}");
        assert_eq!(readiness.share([-1].into_iter()), None);
        let ran = readiness.share_of_cpu([tid].into_iter());
        let ran = ran.expect("it ran for some 100 ms");
        assert!((0.01..=1.0).contains(&ran), "{ran}");
        assert_eq!(readiness.share_of_cpu([-1].into_iter()), Some(0.0));
    }
}
