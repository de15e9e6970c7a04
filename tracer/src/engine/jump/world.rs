//! Stopping the whole target for a moment, in a thread made for that.
//!
//! Threads that sleep in the kernel are stopped first, while the others run on: an interrupted thread cannot come back to the
//! program before it has stopped. Only then those that run are stopped ([`World::hold`]), and they are the first to be let
//! go ([`World::free`]): they stand still for what cannot be done otherwise, however many others sleep.
//!
//! The thread that traces ends with the stop, and its end detaches whatever is still attached, blocked
//! threads included, without another stop of theirs (ptrace(2): a tracer's exit detaches its tracees).
//!
//! Where that is permitted it has real-time priority while running threads stand still: else, on a busy machine, it waits for
//! a processor behind the very threads that it has not stopped yet. It sleeps whenever it waits for somebody.

mod one;
mod stopping;

use std::collections::BTreeSet;
use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use crate::child_signal;
use crate::effort;
use crate::error::{Error, Result, unless_gone};
use crate::stopped::Stopped;
use crate::sys;

pub use one::{one, this};

/// With more threads there is so much to do that other programs must have their turn meanwhile.
const MOST_URGENT: usize = 64;

/// What a stop is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// Stopped by us, to go on afterwards.
    Running,
    /// Was in a group stop, and stays there.
    GroupStopped,
    /// Of another process that runs in the target's memory.
    Guest,
    /// Works for the kernel, and never runs the program's code.
    OfKernel,
}

impl Held {
    /// Whether it runs the process's code, as one of its threads.
    fn is_own(self) -> bool {
        matches!(self, Held::Running | Held::GroupStopped)
    }
}

/// Where a thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumption {
    /// The instruction.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
}

impl Resumption {
    /// Where those are shown that never run the program's code ([`crate::stopped::Registers::are_of_kernel`]).
    pub const NOWHERE: Resumption = Resumption { pc: 0, sp: 0 };

    /// Of a thread that waits in the kernel (proc_pid_syscall(5)); `None` when it is gone or runs.
    pub fn of(tid: i32) -> Option<Resumption> {
        let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
        let mut last = text.split_ascii_whitespace().rev();
        let mut next = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        let pc = next()?;
        Some(Resumption { pc, sp: next()? })
    }

    /// Of a stopped thread.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of_stopped(thread: &Stopped) -> Result<Resumption> {
        let registers = thread.registers()?;
        Ok(Resumption {
            pc: registers.rip().0,
            sp: registers.rsp(),
        })
    }
}

/// A target of which no thread runs, or none of those that slept.
#[derive(Debug)]
pub struct World {
    pid: i32,
    threads: Vec<(Stopped, Held)>,
    /// How many of them were stopped before those that ran.
    early: usize,
    /// Threads that wait in the kernel and cannot be stopped there. They stop before they come back.
    asleep: BTreeSet<i32>,
    /// Threads of processes that run in the target's memory until they execute a program (vfork(2)).
    guests: BTreeSet<i32>,
    /// All that are traced.
    seized: BTreeSet<i32>,
    /// Those of them that were interrupted and have not reported.
    waiting: BTreeSet<i32>,
    /// Threads that ran when they were looked at.
    busy: Vec<i32>,
    /// The folder of the process's threads.
    tasks: Option<File>,
    /// Whether it has so few threads that all of the stop is urgent.
    is_small: bool,
    /// Whether nobody is left to be stopped.
    is_complete: bool,
    /// Since when those stand still that ran, and for how long they did.
    since: Option<Instant>,
    pause: Duration,
}

impl World {
    fn new(pid: i32) -> World {
        World {
            pid,
            threads: Vec::new(),
            early: 0,
            asleep: BTreeSet::new(),
            guests: BTreeSet::new(),
            seized: BTreeSet::new(),
            waiting: BTreeSet::new(),
            busy: Vec::new(),
            tasks: File::open(format!("/proc/{pid}/task")).ok(),
            is_small: true,
            is_complete: false,
            since: None,
            pause: Duration::ZERO,
        }
    }

    /// The stopped threads, those of guests included: they run the target's code.
    pub fn threads(&self) -> impl Iterator<Item = &Stopped> {
        self.threads.iter().map(|(thread, _)| thread)
    }

    /// Those of them that [`World::hold`] has stopped: whatever was done with the others before is done.
    pub fn late_threads(&self) -> impl Iterator<Item = &Stopped> {
        self.threads
            .iter()
            .skip(self.early)
            .map(|(thread, _)| thread)
    }

    /// The stopped threads of the process itself, as far as they run its code.
    pub fn own_threads(&self) -> impl Iterator<Item = &Stopped> {
        let own = self.threads.iter().filter(|(_, held)| held.is_own());
        own.map(|(thread, _)| thread)
    }

    /// Those of the process itself that [`World::hold`] has stopped.
    pub fn late_own_threads(&self) -> impl Iterator<Item = &Stopped> {
        let late = self.threads.iter().skip(self.early);
        late.filter(|(_, held)| held.is_own())
            .map(|(thread, _)| thread)
    }

    /// How many threads the process has, as far as they are known.
    pub fn count(&self) -> usize {
        self.seized.len() + self.busy.len() - self.guests.len()
    }

    /// The threads that wait in the kernel, and where they will go on, as far as that is known.
    pub fn sleepers(&self) -> impl Iterator<Item = (i32, Option<Resumption>)> + '_ {
        let asleep = self.asleep.iter();
        asleep.map(|&tid| (tid, Resumption::of(tid)))
    }

    /// The threads that can make system calls in the target's name.
    ///
    /// # Errors
    /// When there is none: all threads are in a group stop or in the kernel for long.
    pub fn workers(&mut self) -> Result<impl Iterator<Item = &mut Stopped>> {
        let running = |held: Held| held == Held::Running;
        if !self.threads.iter().any(|&(_, held)| running(held)) {
            let what = "no thread of the target can be used to map memory";
            return Err(match self.asleep.is_empty() {
                true => Error::Unsuitable(format!("{what}: it is stopped; send it SIGCONT")),
                false => Error::Busy(format!(
                    "{what}: all wait in the kernel, where they cannot be stopped; try again"
                )),
            });
        }
        let threads = self.threads.iter_mut();
        Ok(threads
            .filter(move |(_, held)| running(*held))
            .map(|(thread, _)| thread))
    }

    /// Lets those go that ran; the others stand still until the end of the stop.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn free(&mut self) -> Result<()> {
        let Some(since) = self.since.take() else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for (thread, _) in self.threads.drain(self.early.min(self.threads.len())..) {
            // A group stop outlives its tracer.
            outcome = outcome.and(unless_gone(thread.detach()).map(drop));
        }
        self.pause = since.elapsed();
        if !self.is_small {
            sys::run_as_others();
        }
        outcome
    }

    fn release(mut self) -> Result<Duration> {
        let mut outcome = self.free();
        // After a failure some may have been interrupted and not be seen yet: the program must not see why.
        outcome = outcome.and(self.await_rest());
        for (thread, _) in self.threads.drain(..) {
            outcome = outcome.and(unless_gone(thread.detach()).map(drop));
        }
        outcome.map(|()| self.pause)
    }
}

/// Stops the threads that sleep, does `work`, which stops the others ([`World::hold`]), and lets all go, whatever comes of
/// it. Tells for how long those stood still that ran.
///
/// # Errors
/// Those of `work`, and when the target cannot be stopped.
pub fn stopped_in_turn<T: Send>(
    pid: i32,
    work: impl FnOnce(&mut World) -> Result<T> + Send,
) -> Result<(T, Duration)> {
    in_a_thread(|| {
        child_signal::block()?;
        let began = Instant::now();
        let mut world = World::new(pid);
        let slept = world.stop_sleepers();
        let early = began.elapsed();
        let outcome = slept.and_then(|()| work(&mut world));
        let (threads, busy) = (world.threads.len(), world.late_threads().count());
        let worked = began.elapsed();
        let released = world.release();
        tracing::debug!(
            target: "tracer::stop",
            pid,
            threads,
            busy,
            ?early,
            ?worked,
            all = ?began.elapsed(),
            pause = ?released.as_ref().ok(),
            "the target was stopped"
        );
        let value = outcome?;
        released.map(|pause| (value, pause))
    })
}

/// Stops all threads, does `work`, and lets them go, whatever comes of it. Tells for how long they
/// were stopped.
///
/// # Errors
/// Those of `work`, and when the target cannot be stopped.
pub fn stopped<T: Send>(
    pid: i32,
    work: impl FnOnce(&mut World) -> Result<T> + Send,
) -> Result<(T, Duration)> {
    stopped_in_turn(pid, |world| {
        world.hold()?;
        work(world)
    })
}

/// Runs what traces: its end lets go of all that it has not let go. What it uses of a processor is on this thread's account.
fn in_a_thread<T: Send>(round: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new()
            .name("stop".to_owned())
            .spawn_scoped(scope, || (round(), effort::of_this_thread()))
            .map_err(|source| Error::Os {
                operation: "start a thread",
                source,
            })?;
        let (outcome, used) = tracer
            .join()
            .unwrap_or_else(|panic| panic::resume_unwind(panic));
        effort::note(used);
        outcome
    })
}

/// Does `work` in a program that was started stopped and has one thread, which stays stopped if it panics, too.
pub fn parked<T>(
    thread: Stopped,
    work: impl FnOnce(&mut World) -> T,
) -> (Stopped, std::thread::Result<T>) {
    let mut world = World::of_one(thread, Held::Running);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| work(&mut world)));
    let (thread, _) = world.threads.pop().expect("put there, and never let go");
    (thread, outcome)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use darc_testprogs::{Opt, program};

    use crate::guests;
    use crate::proc::Stat;
    use crate::threads;

    use crate::patience::wait_until;

    use super::*;

    /// The scheduling policy of a thread (proc_pid_stat(5), field 41); zero is that of most.
    fn policy(thread: &str) -> String {
        let stat = Stat::at(&format!("/proc/{thread}/stat")).unwrap();
        stat.field(41).unwrap()
    }

    /// A child of vfork(2) runs the target's code while its maker waits.
    #[test]
    fn a_vfork_child_stands_still_too() {
        vfork_children_stand_still();
    }

    #[test]
    fn a_vfork_child_is_known_where_the_kernel_does_not_tell() {
        let refused = std::thread::spawn(|| {
            sys::refuse_kcmp();
            let own = std::process::id() as i32;
            assert_eq!(sys::shares_memory(own, own), None);
            vfork_children_stand_still();
        });
        refused.join().unwrap();
    }

    fn vfork_children_stand_still() {
        let mut target = Command::new(program("vfork_waits", Opt::O2));
        let piped = target.arg("1000000").stdout(Stdio::null());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        let mut seen = 0;
        while seen < 3 {
            let found = stopped(pid, |world| {
                let found = guests::of(pid, threads::list(pid)?);
                let mut states = found.iter().map(|&guest| threads::state(guest));
                assert!(states.all(|state| matches!(state, Some('t'))), "{found:?}");
                assert_eq!(world.guests.is_empty(), found.is_empty());
                Ok(found.len())
            });
            seen += found.unwrap().0;
        }
        target.kill().unwrap();
        target.wait().unwrap();
    }

    /// A guest that runs another program by now waits on as if nothing had happened.
    #[test]
    fn a_guest_that_is_none_any_more_is_not_interrupted() {
        let child = sys::fork_into(|| {
            let _ = child_signal::block();
            // Not started again by the kernel (signal(7)).
            child_signal::wait(Duration::from_secs(1000));
            sys::exit_now(7);
        });
        let guest = child.unwrap();
        let await_call = || {
            // SYS_rt_sigtimedwait.
            let waits = |call: String| call.starts_with("128 ");
            let path = format!("/proc/{guest}/syscall");
            wait_until(|| {
                assert!(!threads::is_dead(guest), "the call was interrupted");
                std::fs::read_to_string(&path).is_ok_and(waits)
            });
        };
        await_call();
        sys::seize(guest, 0).unwrap();
        sys::interrupt(guest).unwrap();
        let (_, status) = sys::wait_for(guest).unwrap();
        let mut world = World::new(std::process::id() as i32);
        world.guests.insert(guest);
        world.take(guest, status).unwrap();
        assert!(world.threads.is_empty());
        wait_until(|| threads::state(guest) != Some('R'));
        await_call();
        sys::send_to_thread(guest, guest, libc::SIGCHLD).unwrap();
        assert_eq!(sys::wait_for(guest).unwrap().1, 7 << 8);
    }

    /// One that stops its thread is delivered to it, whatever becomes of the tracer.
    #[test]
    fn a_tracer_that_ends_takes_no_signal_with_it() {
        let mut target = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = target.id() as i32;
        let tracer = sys::fork_into(|| {
            let _ = child_signal::block();
            sys::seize(pid, 0).unwrap();
            sys::send_to_thread(pid, pid, libc::SIGUSR1).unwrap();
            wait_until(|| threads::state(pid) == Some('t'));
            let mut world = World::new(pid);
            world.stop_sleepers().unwrap();
            sys::exit_now(world.threads[0].0.pending());
        });
        let (_, status) = sys::wait_for(tracer.unwrap()).unwrap();
        assert_eq!(status, libc::SIGUSR1 << 8, "it was held");
        wait_until(|| threads::is_dead(pid) || threads::state(pid) == Some('S'));
        target.kill().unwrap();
        assert_eq!(target.wait().unwrap().signal(), Some(libc::SIGUSR1));
    }

    /// Those that sleep stand still while the others run, and the others are let go first.
    #[test]
    fn threads_that_run_stand_still_last() {
        let (ended, end) = nix::unistd::pipe().unwrap();
        let (told, tell) = nix::unistd::pipe().unwrap();
        let own = std::process::id() as i32;
        let child = sys::fork_into(|| {
            sys::die_with_parent(own);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| nix::unistd::read(&ended, &mut [0]));
                }
                let _ = nix::unistd::write(&tell, &[1]);
                loop {
                    std::hint::spin_loop();
                }
            });
        });
        let pid = child.unwrap();
        nix::unistd::read(&told, &mut [0]).unwrap();
        // All three asleep in read(2), whose number is 0, and the first one at work. One that is on its way into the call and has
        // lost its processor shows the call, too.
        let are_settled = || {
            let tids = threads::list(pid).unwrap().into_iter();
            let tids = tids.filter(|&tid| threads::state(tid) == Some('S'));
            let calls =
                tids.filter_map(|tid| std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok());
            calls.filter(|call| call.starts_with("0 ")).count() == 3
                && threads::state(pid) == Some('R')
        };
        let is_held = || threads::state(pid) == Some('t');
        // Where the machine has no room, one that sleeps may take longer to stop than it is waited for, and is late as well.
        let mut rounds = (0..100).map(|_| {
            wait_until(are_settled);
            let seen = stopped_in_turn(pid, |world| {
                let early = (world.threads().count(), is_held());
                world.hold()?;
                let all = (world.threads().count(), is_held());
                let late: Vec<i32> = world.late_threads().map(Stopped::tid).collect();
                world.free()?;
                let after = (world.threads().count(), is_held());
                Ok((early, all, late, after))
            });
            let ((early, all, late, after), pause) = seen.unwrap();
            assert_eq!((early.1, all, after), (false, (4, true), early));
            assert_eq!(early.0 + late.len(), 4);
            assert!(late.contains(&pid) && !pause.is_zero());
            early.0
        });
        assert!(rounds.any(|early| early == 3), "they are stopped early");
        wait_until(are_settled);
        let alone = one(
            pid,
            |_| true,
            |world| {
                world.hold()?;
                Ok(world.threads().map(Stopped::tid).collect::<Vec<_>>())
            },
        );
        let (alone, _) = alone.unwrap();
        assert!(alone.len() == 1 && alone[0] != pid, "{alone:?}");
        drop(end);
        sys::kill_and_reap(pid);
    }

    #[test]
    fn a_stop_leaves_no_priority_behind() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let before = policy("thread-self");
        let (count, _) = stopped(pid, |world| {
            let stopped: Vec<_> = world.threads().map(|t| threads::state(t.tid())).collect();
            assert_eq!(stopped, [Some('t')]);
            Ok(stopped.len())
        })
        .unwrap();
        assert_eq!(count, 1);
        assert_eq!(policy("thread-self"), before);
        assert_eq!(policy(&pid.to_string()), before);
        assert_ne!(threads::state(pid), Some('t'));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
