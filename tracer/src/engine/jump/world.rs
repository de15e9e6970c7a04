//! Stopping the whole target for a moment, in a thread made for that.
//!
//! The thread that traces ends with the stop, and its end detaches whatever is still attached, blocked
//! threads included, without another stop of theirs (ptrace(2): a tracer's exit detaches its tracees).

use std::collections::BTreeMap;
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
/// How long to wait before asking again whether a thread has stopped.
const PAUSE: Duration = Duration::from_micros(20);

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
}

impl World {
    /// The stopped threads.
    pub fn threads(&self) -> impl Iterator<Item = &Stopped> {
        self.threads.iter().map(|(thread, _)| thread)
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
        let mut waiting = BTreeMap::new();
        let mut world = World {
            threads: Vec::new(),
        };
        let since = Instant::now();
        loop {
            let listed = threads::list(pid)?;
            let mut found_new = false;
            for &tid in &listed {
                if waiting.contains_key(&tid) || world.threads().any(|thread| thread.tid() == tid) {
                    continue;
                }
                match sys::seize(tid, OPTIONS) {
                    Ok(()) => {
                        found_new = true;
                        let _ = sys::interrupt(tid);
                        waiting.insert(tid, ());
                    }
                    Err(Errno::ESRCH) => {}
                    Err(Errno::EPERM) if tracer_is(tid, me) => {
                        found_new = true;
                        waiting.insert(tid, ());
                    }
                    Err(Errno::EPERM) if threads::state(tid).is_none_or(|s| "ZX".contains(s)) => {}
                    Err(errno) => return Err(Error::ptrace("attach to", tid, errno)),
                }
            }
            waiting.retain(|tid, ()| listed.contains(tid));
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
            if since.elapsed() > UNINTERRUPTIBLE {
                // Such a thread comes back to the program only after it has stopped for us.
                waiting.retain(|&tid, ()| threads::state(tid) != Some('D'));
            }
            if since.elapsed() > PATIENCE {
                return Err(Error::Unsuitable(format!(
                    "{} threads of process {pid} cannot be stopped",
                    waiting.len()
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes all wait statuses that are there. True when there was none.
    fn collect(&mut self, pid: i32, waiting: &mut BTreeMap<i32, ()>) -> Result<bool> {
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
    };
    let outcome = work(&mut world);
    let (thread, _) = world.threads.pop().expect("put there above");
    (thread, outcome)
}
