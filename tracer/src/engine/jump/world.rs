//! Stopping the whole target for a moment, in a thread made for that.
//!
//! The thread that traces ends with the stop, and its end detaches whatever is still attached, blocked
//! threads included, without another stop of theirs (ptrace(2): a tracer's exit detaches its tracees).
//!
//! Where that is permitted it has real-time priority while the target stands still: else, on a busy machine, it waits for a
//! processor behind the very threads that it has not stopped yet. It sleeps whenever it waits for somebody.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::child_signal;
use crate::children;
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, decode};
use crate::stopped::Stopped;
use crate::sys;
use crate::threads::{self, SignalMasks};

use super::guests;

/// Threads made while the others are being stopped are traced from their first instruction.
const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE;
/// A thread that does not stop for so long and cannot run either is left alone.
const UNINTERRUPTIBLE: Duration = Duration::from_millis(50);
/// ... and so are all threads, when none has stopped for so long: nobody is there then to map memory.
const ALL_UNINTERRUPTIBLE: Duration = Duration::from_secs(1);
/// A thread that does not stop for so long is a reason to give up.
const PATIENCE: Duration = Duration::from_secs(5);
/// A stop is reported by a signal; so often it is looked for without one, at first and later. Each look has the scheduler
/// choose anew who runs on this processor, which may be a thread that has yet to stop.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(500)];
/// A thread that has not stopped by then may be one that will not.
const SOON: Duration = Duration::from_millis(2);
/// With more threads there is so much to do that other programs must have their turn meanwhile.
const MOST_URGENT: usize = 64;
/// A pause that took longer was not ours: the whole machine stood still, the target too.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What a stop is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// Stopped by us, to go on afterwards.
    Running,
    /// Was in a group stop, and stays there.
    GroupStopped,
    /// Of another process that runs in the target's memory.
    Guest,
}

/// Where a thread that waits in the kernel goes on (proc_pid_syscall(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumption {
    /// The instruction.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
}

impl Resumption {
    /// `None` when the thread is gone or runs.
    pub fn of(tid: i32) -> Option<Resumption> {
        let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
        let mut last = text.split_ascii_whitespace().rev();
        let mut next = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        let pc = next()?;
        Some(Resumption { pc, sp: next()? })
    }
}

/// A target of which no thread runs.
#[derive(Debug)]
pub struct World {
    threads: Vec<(Stopped, Held)>,
    /// Threads that wait in the kernel and cannot be stopped there. They stop before they come back.
    asleep: BTreeSet<i32>,
    /// Threads of processes that run in the target's memory until they execute a program (vfork(2)).
    guests: BTreeSet<i32>,
}

impl World {
    /// The stopped threads, those of guests included: they run the target's code.
    pub fn threads(&self) -> impl Iterator<Item = &Stopped> {
        self.threads.iter().map(|(thread, _)| thread)
    }

    /// The stopped threads of the process itself.
    pub fn own_threads(&self) -> impl Iterator<Item = &Stopped> {
        let own = self.threads.iter().filter(|(_, held)| *held != Held::Guest);
        own.map(|(thread, _)| thread)
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
            let why = match self.asleep.is_empty() {
                true => "it is stopped; send it SIGCONT",
                false => "all wait in the kernel, where they cannot be stopped; try again",
            };
            return Err(Error::Unsuitable(format!(
                "no thread of the target can be used to map memory: {why}"
            )));
        }
        let threads = self.threads.iter_mut();
        Ok(threads
            .filter(move |(_, held)| running(*held))
            .map(|(thread, _)| thread))
    }

    /// Stops the threads, which are all traced. `seized` are those that were listed.
    fn stop(pid: i32, mut seized: BTreeSet<i32>) -> Result<World> {
        let mut world = World {
            threads: Vec::with_capacity(seized.len()),
            asleep: BTreeSet::new(),
            guests: BTreeSet::new(),
        };
        for &tid in &seized {
            // One that has ended is waited for like the others: that is its report.
            let _ = sys::interrupt(tid);
        }
        let mut waiting = seized.clone();
        let mut waited = Duration::ZERO;
        loop {
            world.collect(pid, &mut seized, &mut waiting)?;
            if waiting.is_empty() {
                // Those that were made meanwhile stop by themselves, but for those that were hidden from us.
                let mut others = threads::seize_others(pid, OPTIONS, &mut seized)?;
                others.extend(world.seize_guests(pid, &mut seized)?);
                if others.is_empty() {
                    return match world.threads.is_empty() && world.asleep.is_empty() {
                        true => Err(Error::ThreadGone { tid: pid }),
                        false => Ok(world),
                    };
                }
                for tid in others {
                    if world.threads().all(|thread| thread.tid() != tid) {
                        let _ = sys::interrupt(tid);
                        waiting.insert(tid);
                    }
                }
                continue;
            }
            let since = Instant::now();
            child_signal::wait(LOOK_AGAIN[usize::from(waited > SOON)]);
            waited += since.elapsed().min(LONGEST_PAUSE);
            if waited < SOON {
                continue;
            }
            let states: Vec<(i32, Option<char>)> = waiting
                .iter()
                .map(|&tid| (tid, threads::state(tid)))
                .collect();
            let patience = match world.threads.is_empty() {
                true => ALL_UNINTERRUPTIBLE,
                false => UNINTERRUPTIBLE,
            };
            for &(tid, state) in &states {
                match state {
                    // A first thread that ends before the others reports nothing until they have ended.
                    Some('Z' | 'X') | None => drop(waiting.remove(&tid)),
                    // Such a thread comes back to the program only after it has stopped for us.
                    Some('D') if waited > patience || world.may_be_long(pid, tid) => {
                        waiting.remove(&tid);
                        world.asleep.insert(tid);
                    }
                    _ => {}
                }
            }
            if waited > PATIENCE {
                return Err(cannot_be_stopped(pid, &states));
            }
        }
    }

    /// Whether a thread waits for a guest, and others have stopped already. Alone it is waited for: only it can map memory.
    fn may_be_long(&self, pid: i32, tid: i32) -> bool {
        !self.threads.is_empty() && !guests::of(pid, [tid]).is_empty()
    }

    /// Seizes those who run in the target's memory while the thread that made them waits for them, which nothing can stop.
    fn seize_guests(&mut self, pid: i32, seized: &mut BTreeSet<i32>) -> Result<Vec<i32>> {
        let guests = guests::of(pid, self.asleep.iter().copied());
        let mut found = Vec::new();
        for guest in guests {
            match threads::seize_others(guest, OPTIONS, seized) {
                Ok(threads) => found.extend(threads),
                Err(error) => drop(unless_gone(Err::<(), _>(error))?),
            }
        }
        self.guests.extend(&found);
        Ok(found)
    }

    /// Takes all wait statuses that are there.
    fn collect(
        &mut self,
        pid: i32,
        seized: &mut BTreeSet<i32>,
        waiting: &mut BTreeSet<i32>,
    ) -> Result<()> {
        loop {
            let (tid, status) = match sys::wait_any() {
                Ok(Some(found)) => found,
                Ok(None) | Err(Errno::ECHILD) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(Error::ptrace("wait for", pid, errno)),
            };
            waiting.remove(&tid);
            self.asleep.remove(&tid);
            let (thread, held) = match decode(status) {
                Event::Exited(_) | Event::Killed(_) => {
                    // Its id may come again.
                    seized.remove(&tid);
                    if tid == pid {
                        children::keep(pid, status);
                    }
                    continue;
                }
                Event::Signal(signal) => (Stopped::observed(tid, signal), Held::Running),
                Event::GroupStop(_) => (Stopped::observed(tid, 0), Held::GroupStopped),
                _ => (Stopped::observed(tid, 0), Held::Running),
            };
            let is_guest = self.guests.contains(&tid);
            if is_guest && sys::shares_memory(pid, tid) != Some(true) {
                // It has executed its program meanwhile.
                unless_gone(thread.detach())?;
                continue;
            }
            let held = if is_guest { Held::Guest } else { held };
            if !seized.contains(&tid) && threads::process_of(tid) != Some(pid) {
                // A process that one of the threads has just made.
                unless_gone(thread.detach())?;
                continue;
            }
            if let Some(thread) = unless_gone(hide_stop(thread))? {
                self.threads.push((thread, held));
            }
        }
    }

    fn release(self) -> Result<()> {
        for (thread, _) in self.threads {
            // A group stop outlives its tracer.
            unless_gone(thread.detach())?;
        }
        Ok(())
    }
}

fn cannot_be_stopped(pid: i32, states: &[(i32, Option<char>)]) -> Error {
    let threads: Vec<String> = states
        .iter()
        .map(|(tid, state)| format!("{tid} (state {})", state.unwrap_or('?')))
        .collect();
    Error::Unsuitable(format!(
        "thread {} of process {pid} does not stop; try again when it is less busy",
        threads.join(", ")
    ))
}

/// Makes a system call that our stop, or a signal that the program ignores, cut short start again.
fn hide_stop(mut thread: Stopped) -> Result<Stopped> {
    let mut registers = thread.registers()?;
    if !registers.hide_interruption() {
        return Ok(thread);
    }
    let Some(masks) = SignalMasks::of(thread.tid()) else {
        return Ok(thread);
    };
    let hidden = match thread.pending() {
        0 => !masks.handler_due(),
        signal if masks.discards(signal) => {
            thread.suppress_signal();
            true
        }
        _ => false,
    };
    if hidden {
        thread.set_registers(&registers)?;
    }
    Ok(thread)
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
    let round = || {
        child_signal::block()?;
        // A seized thread stands still already when it makes another, or gets a signal.
        let urgent = threads::list(pid)?.len() <= MOST_URGENT && sys::run_first();
        let seized = threads::seize_all(pid, OPTIONS)?;
        let since = Instant::now();
        let mut world = World::stop(pid, seized)?;
        let stopped = since.elapsed();
        let outcome = work(&mut world);
        let worked = since.elapsed();
        let released = world.release();
        let pause = since.elapsed();
        tracing::debug!(
            target: "tracer::stop",
            pid,
            urgent,
            ?stopped,
            ?worked,
            ?pause,
            "the target was stopped"
        );
        let value = outcome?;
        released.map(|()| (value, pause))
    };
    std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new()
            .name("stop".to_owned())
            .spawn_scoped(scope, round)
            .map_err(|source| Error::Os {
                operation: "start a thread",
                source,
            })?;
        tracer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does `work` in a program that was started stopped and has one thread.
///
/// # Errors
/// Those of `work`.
pub fn parked<T>(
    thread: Stopped,
    work: impl FnOnce(&mut World) -> Result<T>,
) -> (Stopped, Result<T>) {
    let mut world = World {
        threads: vec![(thread, Held::Running)],
        asleep: BTreeSet::new(),
        guests: BTreeSet::new(),
    };
    let outcome = work(&mut world);
    let (thread, _) = world.threads.pop().expect("put there above");
    (thread, outcome)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use darc_testprogs::{Opt, program};

    use crate::proc::Stat;

    use super::*;

    /// The scheduling policy of a thread (proc_pid_stat(5), field 41); zero is that of most.
    fn policy(thread: &str) -> String {
        let stat = Stat::at(&format!("/proc/{thread}/stat")).unwrap();
        stat.field(41).unwrap()
    }

    /// A child of vfork(2) runs the target's code while its maker waits.
    #[test]
    fn a_vfork_child_stands_still_too() {
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
