//! How threads are stopped: those that sleep, then the others.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::child_signal;
use crate::children;
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, decode};
use crate::proc;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads;

use crate::guests;

use super::{Held, MOST_URGENT, World};

/// Threads made while the others are being stopped are traced from their first instruction.
const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE;
/// A thread that does not stop for so long and cannot run either is left alone.
const UNINTERRUPTIBLE: Duration = Duration::from_millis(5);
/// Those that were interrupted before something failed are waited for so long: the call that they were in shall not seem to have been.
const LATE: Duration = Duration::from_millis(200);
/// ... and so are all threads, when none has stopped for so long: nobody is there then to map memory.
const ALL_UNINTERRUPTIBLE: Duration = Duration::from_secs(1);
/// A thread that does not stop for so long, while others stand still, is a reason to let them go, and to try again later.
const PATIENCE: Duration = Duration::from_millis(500);
/// ... and while none does.
const PATIENCE_ALONE: Duration = Duration::from_secs(5);
/// A stop is reported by a signal; so often it is looked for without one, at first and later. Each look has the scheduler
/// choose anew who runs on this processor, which may be a thread that has yet to stop.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(500)];
/// A thread that has not stopped by then may be one that will not.
const SOON: Duration = Duration::from_millis(2);
/// A pause that took longer was not ours: the whole machine stood still, the target too.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// So many sleeping threads are woken at a time: they take the processors from those that run.
const AT_ONCE: usize = 64;
/// For so long those of one time are waited for before the next are woken.
const TURN: Duration = Duration::from_millis(2);
/// So often threads that came meanwhile are looked at before those that run are stopped.
const ROUNDS: usize = 4;

impl World {
    /// One that stands still already.
    pub(super) fn of_one(thread: Stopped, held: Held) -> World {
        let mut world = World::new(thread.tid());
        world.seized.insert(thread.tid());
        world.threads.push((thread, held));
        (world.early, world.is_complete) = (1, true);
        world
    }

    /// Stops the threads that sleep, and finds those that run.
    pub(super) fn stop_sleepers(&mut self) -> Result<()> {
        for round in 0..ROUNDS {
            let mut listed = threads::list(self.pid)?;
            if round == 0 {
                self.is_small = listed.len() <= MOST_URGENT;
            }
            listed.retain(|tid| !self.seized.contains(tid) && !self.busy.contains(tid));
            let runs = |tid: &i32| proc::state_of_thread(self.pid, *tid) == Some('R');
            let (busy, sleeping): (Vec<i32>, Vec<i32>) = listed.into_iter().partition(runs);
            let found = threads::seize_listed(sleeping, OPTIONS, &mut self.seized)?;
            let is_new = !busy.is_empty() || !found.is_empty();
            self.busy.extend(busy);
            if self.is_small {
                sys::run_first();
            }
            for part in found.chunks(AT_ONCE) {
                self.interrupt(part);
                self.await_all(TURN)?;
            }
            self.await_all(UNINTERRUPTIBLE)?;
            self.leave_uninterruptible(|_, _| true);
            self.reap()?;
            if !is_new || self.threads_are(self.seized.len() + self.busy.len()) {
                break;
            }
        }
        self.early = self.threads.len();
        Ok(())
    }

    /// Stops the threads that run: from now on nobody does.
    ///
    /// # Errors
    /// When they cannot be stopped, or have ended.
    pub fn hold(&mut self) -> Result<()> {
        if self.is_complete {
            return Ok(());
        }
        self.reap()?;
        let mut found = std::mem::take(&mut self.busy);
        if found.len() <= MOST_URGENT {
            sys::run_first();
        }
        self.since = Some(Instant::now());
        // Those that were made meanwhile stop by themselves, but for those that were hidden from us.
        found = threads::seize_listed(found, OPTIONS, &mut self.seized)?;
        loop {
            self.interrupt(&found);
            self.gather()?;
            found = match self.threads_are(self.seized.len() - self.guests.len()) {
                true => Vec::new(),
                false => threads::seize_others(self.pid, OPTIONS, &mut self.seized)?,
            };
            found.extend(self.seize_guests()?);
            if found.is_empty() {
                if self.threads.is_empty() && self.asleep.is_empty() {
                    return Err(Error::ThreadGone { tid: self.pid });
                }
                self.is_complete = true;
                return Ok(());
            }
        }
    }

    fn interrupt(&mut self, tids: &[i32]) {
        for &tid in tids {
            // One that has ended is waited for like the others: that is its report.
            let _ = sys::interrupt(tid);
            self.waiting.insert(tid);
        }
    }

    /// Whether the process has so many threads, without a list of them; `false` when the kernel does not tell.
    ///
    /// The folder of the threads has a link for each of them (`proc_task_getattr` in the kernel's fs/proc/base.c).
    fn threads_are(&self, count: usize) -> bool {
        const OF_A_FOLDER: u64 = 2;
        let tasks = self.tasks.as_ref().and_then(|tasks| tasks.metadata().ok());
        tasks.is_some_and(|tasks| tasks.nlink() == OF_A_FOLDER + count as u64)
    }

    /// Waits for those that were interrupted, but not for long. As long as none has stopped there is somebody left to wait for
    /// when the others stand still, too.
    fn await_all(&mut self, most: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            self.collect()?;
            let is_late = since.elapsed() > SOON;
            if is_late {
                self.leave_uninterruptible(|world, tid| world.may_be_long(tid));
            }
            let is_enough = since.elapsed() > most || (is_late && self.threads.is_empty());
            if self.waiting.is_empty() || is_enough {
                return Ok(());
            }
            child_signal::wait(LOOK_AGAIN[usize::from(is_late)]);
        }
    }

    /// Waits for all that were interrupted.
    fn gather(&mut self) -> Result<()> {
        let mut waited = Duration::ZERO;
        loop {
            self.collect()?;
            if self.waiting.is_empty() {
                return Ok(());
            }
            let since = Instant::now();
            child_signal::wait(LOOK_AGAIN[usize::from(waited > SOON)]);
            waited += since.elapsed().min(LONGEST_PAUSE);
            if waited < SOON {
                continue;
            }
            self.reap()?;
            let states: Vec<(i32, Option<char>)> = self
                .waiting
                .iter()
                .map(|&tid| (tid, threads::state(tid)))
                .collect();
            let (patience, most) = match self.threads.is_empty() {
                true => (ALL_UNINTERRUPTIBLE, PATIENCE_ALONE),
                false => (UNINTERRUPTIBLE, PATIENCE),
            };
            for &(tid, state) in &states {
                match state {
                    // A first thread that ends before the others reports nothing until they have ended.
                    Some('Z' | 'X') | None => drop(self.waiting.remove(&tid)),
                    // Such a thread comes back to the program only after it has stopped for us.
                    Some('D') if waited > patience || self.may_be_long(tid) => {
                        self.waiting.remove(&tid);
                        self.asleep.insert(tid);
                    }
                    _ => {}
                }
            }
            if waited > most && !self.waiting.is_empty() {
                return Err(cannot_be_stopped(self.pid, &states));
            }
        }
    }

    /// Those that cannot be stopped, and of which this holds, need not be waited for.
    fn leave_uninterruptible(&mut self, holds: impl Fn(&World, i32) -> bool) {
        if self.threads.is_empty() {
            // Only one of them can map memory.
            return;
        }
        let is_long = |tid: &i32| threads::state(*tid) == Some('D') && holds(self, *tid);
        let long: Vec<i32> = self.waiting.iter().copied().filter(is_long).collect();
        for tid in long {
            self.waiting.remove(&tid);
            self.asleep.insert(tid);
        }
    }

    /// Whether a thread waits for a guest, and others have stopped already. Alone it is waited for: only it can map memory.
    fn may_be_long(&self, tid: i32) -> bool {
        !self.threads.is_empty()
            && guests::are_awaited(self.pid, tid)
            && !guests::of(self.pid, [tid]).is_empty()
    }

    /// Seizes those who run in the target's memory while the thread that made them waits for them, which nothing can stop.
    fn seize_guests(&mut self) -> Result<Vec<i32>> {
        let asleep = self.asleep.iter().copied();
        let makers: Vec<i32> = asleep
            .filter(|&tid| guests::are_awaited(self.pid, tid))
            .collect();
        let guests = guests::of(self.pid, makers);
        let mut found = Vec::new();
        for guest in guests {
            match threads::seize_others(guest, OPTIONS, &mut self.seized) {
                Ok(threads) => found.extend(threads),
                Err(error) => drop(unless_gone(Err::<(), _>(error))?),
            }
        }
        self.guests.extend(&found);
        Ok(found)
    }

    /// Waits for those that were interrupted and have not reported, after a failure.
    pub(super) fn await_rest(&mut self) -> Result<()> {
        match self.waiting.is_empty() {
            true => Ok(()),
            false => self.await_all(LATE),
        }
    }

    /// Forgets stopped threads that were killed. A thread that calls execve(2) waits for their end, which only a tracer's
    /// wait completes (`de_thread` in the kernel's fs/exec.c), and whoever seizes it waits for it.
    fn reap(&mut self) -> Result<()> {
        let mut dead = BTreeSet::new();
        for (thread, _) in &self.threads {
            let tid = thread.tid();
            if sys::has_ended(tid)
                && let Ok(Some((_, status))) = sys::wait_now(tid)
                && let Event::Exited(_) | Event::Killed(_) = decode(status)
            {
                dead.insert((tid, status));
            }
        }
        for (tid, status) in dead {
            let index = self
                .threads
                .iter()
                .position(|(thread, _)| thread.tid() == tid);
            if let Some(index) = index {
                drop(self.threads.remove(index));
                self.early -= usize::from(index < self.early);
            }
            self.take(tid, status)?;
        }
        Ok(())
    }

    /// Takes the wait statuses that are there, and leaves to threads the signals that are about to be delivered to them.
    /// Each thread is asked for by its number: that takes as long with thousands
    /// of threads as with one.
    fn collect(&mut self) -> Result<()> {
        let asleep = self.asleep.iter();
        let tids: Vec<i32> = self.waiting.iter().chain(asleep).copied().collect();
        for tid in tids {
            loop {
                match sys::wait_but_for_signals(tid) {
                    Ok(Some((_, status))) => self.take(tid, status)?,
                    Ok(None) => {}
                    // It is no more, or has become another in execve(2).
                    Err(Errno::ECHILD | Errno::ESRCH) => {
                        self.waiting.remove(&tid);
                        self.asleep.remove(&tid);
                        self.seized.remove(&tid);
                        self.guests.remove(&tid);
                    }
                    Err(Errno::EINTR) => continue,
                    Err(errno) => return Err(Error::ptrace("wait for", tid, errno)),
                }
                break;
            }
        }
        Ok(())
    }

    pub(super) fn take(&mut self, tid: i32, status: i32) -> Result<()> {
        self.waiting.remove(&tid);
        self.asleep.remove(&tid);
        let (thread, held) = match decode(status) {
            Event::Exited(_) | Event::Killed(_) => {
                // Its id may come again.
                self.seized.remove(&tid);
                self.guests.remove(&tid);
                if tid == self.pid {
                    children::keep(tid, status);
                }
                return Ok(());
            }
            Event::Signal(signal) => (Stopped::observed(tid, signal), Held::Running),
            Event::GroupStop(_) => (Stopped::observed(tid, 0), Held::GroupStopped),
            _ => (Stopped::observed(tid, 0), Held::Running),
        };
        let is_guest = self.guests.contains(&tid);
        if is_guest && !guests::is_still(self.pid, tid) {
            // It has executed its program meanwhile, and may wait in a call of that.
            unless_gone(thread.hide_interruption())?;
            unless_gone(thread.detach())?;
            return Ok(());
        }
        if let Some(registers) = unless_gone(thread.hide_interruption())? {
            let held = match is_guest {
                true => Held::Guest,
                false if registers.are_of_kernel() => Held::OfKernel,
                false => held,
            };
            self.threads.push((thread, held));
        }
        Ok(())
    }
}

fn cannot_be_stopped(pid: i32, states: &[(i32, Option<char>)]) -> Error {
    let threads: Vec<String> = states
        .iter()
        .map(|(tid, state)| format!("{tid} (state {})", state.unwrap_or('?')))
        .collect();
    Error::Busy(format!(
        "thread {} of process {pid} does not stop; try again when it is less busy",
        threads.join(", ")
    ))
}
