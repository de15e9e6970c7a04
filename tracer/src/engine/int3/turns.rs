//! Whose stop is handled next, where several threads have stopped.
//!
//! The kernel tells of the same thread first as long as that has stopped (its list in `do_wait`, kernel/exit.c), and a quick one has
//! stopped again by the time its stop was handled. So the threads have turns: at each stop some others are asked for first.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use nix::errno::Errno;

use crate::sys::WaitStatus;

/// So many are asked for at each stop: asking takes some tenths of a microsecond.
const ASKED: usize = 4;

/// The turns of all threads, in the order of their ids.
#[derive(Default, Debug)]
pub struct Turns {
    threads: BTreeSet<i32>,
    /// Who had the last turn.
    last: i32,
}

impl Turns {
    /// These have turns as well from now on.
    pub fn join(&mut self, threads: impl IntoIterator<Item = i32>) {
        self.threads.extend(threads);
    }

    /// One that has stopped, where the kernel tells of `found` first, which has turns from then on. `look` finds the stop of another
    /// thread; who is traced no more has no turn.
    pub fn choose(
        &mut self,
        found: WaitStatus,
        look: impl Fn(i32) -> Result<Option<WaitStatus>, Errno>,
    ) -> WaitStatus {
        self.threads.insert(found.0);
        for _ in 0..ASKED.min(self.threads.len()) {
            let behind = (Excluded(self.last), Unbounded);
            let Some(&next) = self.threads.range(behind).next().or(self.threads.first()) else {
                break;
            };
            self.last = next;
            if next == found.0 {
                break;
            }
            match look(next) {
                Ok(Some(waiting)) => return waiting,
                Ok(None) => {}
                Err(_) => {
                    self.threads.remove(&next);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread;
    use std::time::Duration;

    use darc_record::{FnodeId, Op, SiteId};

    use crate::addr::TargetAddr;
    use crate::child_signal;
    use crate::engine::calibration::of_child;
    use crate::engine::int3::calibrate::{empty, plan_of};
    use crate::engine::int3::{Guarding, Int3};
    use crate::engine::{Counted, Engine as _, NewTarget, Sink};
    use crate::{sys, threads};

    use crate::patience::wait_until;

    use super::*;

    /// Those that have stopped are told as the kernel tells them: the first of a list.
    fn served(turns: &mut Turns, stopped: &[i32], times: usize) -> Vec<i32> {
        let look = |tid: i32| Ok(stopped.contains(&tid).then_some((tid, 0)));
        let mut serve = || turns.choose((stopped[0], 0), look).0;
        (0..times).map(|_| serve()).collect()
    }

    #[test]
    fn each_has_its_turn() {
        let mut turns = Turns::default();
        turns.join([5, 7, 9]);
        assert_eq!(served(&mut turns, &[9, 5, 7], 6), [5, 7, 9, 5, 7, 9]);
        assert_eq!(served(&mut turns, &[9], 2), [9, 9]);
        assert_eq!(served(&mut turns, &[3, 5], 3), [3, 5, 3], "3 has come");
        turns.join([1]);
        assert_eq!(served(&mut turns, &[3, 1, 5], 4), [5, 1, 3, 5]);
    }

    /// However many there are, asking for them takes about the same time.
    #[test]
    fn among_many_each_has_its_turn_some_time() {
        let mut turns = Turns::default();
        turns.join(1..=1000);
        let asked = 1000 / ASKED + 1;
        assert!(served(&mut turns, &[1000, 500], asked).contains(&500));
    }

    #[test]
    fn who_is_traced_no_more_is_forgotten() {
        let mut turns = Turns::default();
        turns.join([1, 2]);
        let gone = |_| Err(Errno::ECHILD);
        assert_eq!(turns.choose((2, 0), gone), (2, 0));
        assert_eq!(turns.threads, BTreeSet::from([2]));
    }

    /// How many ops each thread has done.
    #[derive(Default)]
    struct OfThreads(BTreeMap<i32, u32>);

    impl Sink for OfThreads {
        fn op(&mut self, op: Op) {
            *self.0.entry(op.tid).or_default() += 1;
        }

        fn latency_only(&mut self, _: Counted) {}

        fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
            NewTarget::AnyTarget
        }
    }

    #[test]
    fn of_three_that_have_always_stopped_again_none_waits_for_ever() {
        const OPS: u32 = 4;
        const STOPS: u32 = 3 * OPS * 2;
        child_signal::block().unwrap();
        let call = || {
            loop {
                empty();
            }
        };
        let work = || {
            thread::spawn(call);
            thread::spawn(call);
            call();
        };
        of_child(work, |pid| {
            wait_until(|| threads::list(pid).is_ok_and(|list| list.len() >= 3));
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            let all: Vec<i32> = engine.threads.keys().copied().collect();
            let entry = empty as extern "C" fn() as usize as u64;
            engine.apply(&plan_of(entry, &engine.memory)?)?;
            let mut ops = OfThreads::default();
            for _ in 0..STOPS {
                wait_until(|| {
                    let mut all = all.iter();
                    all.all(|&tid| matches!(sys::look_now(tid), Ok(Some(_))))
                });
                // One stop.
                engine.poll(Duration::ZERO, &mut ops)?;
            }
            // Before any check: the process does not end before its other threads' ends have been told.
            engine.finish()?;
            assert_eq!(ops.0, all.iter().map(|&tid| (tid, OPS)).collect());
            Ok(())
        })
        .unwrap();
    }
}
