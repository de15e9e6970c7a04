//! Stopping the whole target for a moment, in a thread made for that.
//!
//! The thread that traces ends with the stop, and its end detaches whatever is still attached, blocked
//! threads included, without another stop of theirs (ptrace(2): a tracer's exit detaches its tracees).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, decode};
use crate::stopped::Stopped;
use crate::sys;
use crate::threads::{self, SignalMasks};

/// Threads made while the others are being stopped are traced from their first instruction.
const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE;
/// A thread that does not stop for so long and cannot run either is left alone.
const UNINTERRUPTIBLE: Duration = Duration::from_millis(50);
/// A thread that does not stop for so long is a reason to give up.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before asking again whether a thread has stopped, at first and later.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];
/// After this it is later.
const SOON: Duration = Duration::from_millis(2);
/// A pause that took longer was not ours: the whole machine stood still, the target too.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What a stop is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// Stopped by us, to go on afterwards.
    Running,
    /// Was in a group stop, and stays there.
    GroupStopped,
}

/// A target of which no thread runs.
#[derive(Debug)]
pub struct World {
    threads: Vec<(Stopped, Held)>,
    /// Threads that wait in the kernel and cannot be stopped there. They stop before they come back.
    asleep: BTreeSet<i32>,
}

impl World {
    /// The stopped threads.
    pub fn threads(&self) -> impl Iterator<Item = &Stopped> {
        self.threads.iter().map(|(thread, _)| thread)
    }

    /// Where the threads that wait in the kernel will go on, as far as that is known (proc_pid_syscall(5)).
    pub fn resumption_points(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.asleep.iter().filter_map(|&tid| {
            let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
            let pc = text.split_ascii_whitespace().next_back()?;
            let pc = u64::from_str_radix(pc.strip_prefix("0x")?, 16).ok()?;
            Some((tid, pc))
        })
    }

    /// A thread that can make system calls in the target's name.
    ///
    /// # Errors
    /// When there is none: all threads are in a group stop or in the kernel for long.
    pub fn worker(&mut self) -> Result<&mut Stopped> {
        self.threads
            .iter_mut()
            .find(|(_, held)| *held == Held::Running)
            .map(|(thread, _)| thread)
            .ok_or_else(|| {
                Error::Unsuitable(
                    "no thread of the target can be used to map memory: it is stopped; send it SIGCONT"
                        .to_owned(),
                )
            })
    }

    fn stop(pid: i32) -> Result<World> {
        let me = nix::unistd::gettid().as_raw();
        let mut waiting = BTreeSet::new();
        let mut world = World {
            threads: Vec::new(),
            asleep: BTreeSet::new(),
        };
        let mut waited = Duration::ZERO;
        loop {
            let listed = threads::list(pid)?;
            let mut found_new = false;
            for &tid in &listed {
                if waiting.contains(&tid)
                    || world.asleep.contains(&tid)
                    || world.threads().any(|thread| thread.tid() == tid)
                {
                    continue;
                }
                match sys::seize(tid, OPTIONS) {
                    Ok(()) => {
                        found_new = true;
                        let _ = sys::interrupt(tid);
                        waiting.insert(tid);
                    }
                    Err(Errno::ESRCH) => {}
                    Err(Errno::EPERM) if tracer_is(tid, me) => {
                        found_new = true;
                        waiting.insert(tid);
                    }
                    Err(Errno::EPERM) if threads::state(tid).is_none_or(|s| "ZX".contains(s)) => {}
                    Err(errno) => return Err(Error::ptrace("attach to", tid, errno)),
                }
            }
            waiting.retain(|tid| listed.contains(tid));
            let quiet = world.collect(pid, &mut waiting)?;
            if waiting.is_empty() && !found_new {
                return match world.threads.is_empty() {
                    true => Err(Error::ThreadGone { tid: pid }),
                    false => Ok(world),
                };
            }
            if !quiet {
                continue;
            }
            let since = Instant::now();
            std::thread::sleep(PAUSES[usize::from(waited > SOON)]);
            waited += since.elapsed().min(LONGEST_PAUSE);
            if waited < SOON {
                continue;
            }
            let states: Vec<(i32, Option<char>)> = waiting
                .iter()
                .map(|&tid| (tid, threads::state(tid)))
                .collect();
            for &(tid, state) in &states {
                match state {
                    // A first thread that ends before the others reports nothing until they have ended.
                    Some('Z' | 'X') | None => drop(waiting.remove(&tid)),
                    // Such a thread comes back to the program only after it has stopped for us.
                    Some('D') if waited > UNINTERRUPTIBLE => {
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

    /// Takes all wait statuses that are there. True when there was none.
    fn collect(&mut self, pid: i32, waiting: &mut BTreeSet<i32>) -> Result<bool> {
        let mut quiet = true;
        loop {
            let (tid, status) = match sys::wait_any() {
                Ok(Some(found)) => found,
                Ok(None) | Err(Errno::ECHILD) => return Ok(quiet),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(Error::ptrace("wait for", pid, errno)),
            };
            quiet = false;
            waiting.remove(&tid);
            self.asleep.remove(&tid);
            let (thread, held) = match decode(status) {
                Event::Exited(_) | Event::Killed(_) => continue,
                Event::Signal(signal) => (Stopped::observed(tid, signal), Held::Running),
                Event::GroupStop(_) => (Stopped::observed(tid, 0), Held::GroupStopped),
                _ => (Stopped::observed(tid, 0), Held::Running),
            };
            if threads::process_of(tid) != Some(pid) {
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

fn tracer_is(tid: i32, me: i32) -> bool {
    threads::status_field(tid, "TracerPid").is_some_and(|pid| pid == me.to_string())
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
        let since = Instant::now();
        let mut world = World::stop(pid)?;
        let outcome = work(&mut world);
        let released = world.release();
        let value = outcome?;
        released.map(|()| (value, since.elapsed()))
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
    };
    let outcome = work(&mut world);
    let (thread, _) = world.threads.pop().expect("put there above");
    (thread, outcome)
}
