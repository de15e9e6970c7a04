//! Stopping one thread of the target, to make system calls in its name, while all others run.

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

use super::{Held, World, in_a_thread, stopped};

/// So many threads are tried.
const MOST: usize = 3;
/// So long one may take to stop.
const PATIENCE: Duration = Duration::from_millis(5);
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// So long those that did not are waited for at the end: the program must not see that they were interrupted.
const LATE: Duration = Duration::from_millis(200);

/// Stops one thread of a process that `suits`, one that sleeps if there is any, does `work`, and lets it go, whatever comes
/// of it. Where none suits, all threads are stopped. Tells for how long it stood still.
///
/// # Errors
/// Those of `work`, and when the target cannot be stopped.
pub fn one<T: Send>(
    pid: i32,
    suits: impl Fn(&Stopped) -> bool + Sync,
    work: impl FnOnce(&mut World) -> Result<T> + Send,
) -> Result<(T, Duration)> {
    let mut work = Some(work);
    let alone = in_a_thread(|| {
        child_signal::block()?;
        sys::run_first();
        let mut late = Vec::new();
        for tid in candidates(pid)? {
            let since = Instant::now();
            let Some(thread) = stop(pid, tid, &mut late)? else {
                continue;
            };
            if !suits(&thread) {
                unless_gone(thread.detach())?;
                continue;
            }
            let mut world = World::of_one_of(pid, thread);
            let work = work.take().expect("done once");
            let outcome = work(&mut world);
            let released = world.release();
            let_go(pid, late);
            let pause = since.elapsed();
            tracing::debug!(target: "tracer::stop", pid, tid, ?pause, "a thread was stopped");
            let value = outcome?;
            return released.map(|_| Some((value, pause)));
        }
        let_go(pid, late);
        Ok(None)
    })?;
    match (alone, work) {
        (Some(done), _) => Ok(done),
        (None, Some(work)) => stopped(pid, work),
        (None, None) => Err(Error::ThreadGone { tid: pid }),
    }
}

/// Stops this thread of a process, does `work` with it, and lets it go, whatever comes of it. `None` where it is none of the process, waits
/// where nothing stops it, stands still already or does not stop soon. Tells for how long it stood still.
///
/// # Errors
/// Those of `work`, and when the thread cannot be stopped.
pub fn this<T: Send>(
    pid: i32,
    tid: i32,
    work: impl FnOnce(&Stopped) -> Result<T> + Send,
) -> Result<Option<(T, Duration)>> {
    in_a_thread(|| {
        child_signal::block()?;
        sys::run_first();
        if !matches!(proc::state_of_thread(pid, tid), Some('S' | 'R')) {
            return Ok(None);
        }
        let since = Instant::now();
        let mut late = Vec::new();
        let stopped = stop(pid, tid, &mut late);
        let done = stopped.map(|thread| {
            let thread = thread?;
            // Its number may have gone to another process' thread.
            let is_of_process = proc::state_of_thread(pid, tid).is_some();
            let outcome = is_of_process.then(|| work(&thread));
            let released = unless_gone(thread.detach());
            let outcome = outcome?;
            Some(released.and(outcome).map(|value| (value, since.elapsed())))
        });
        let_go(pid, late);
        done?.transpose()
    })
}

/// Threads to be tried: those that sleep first.
fn candidates(pid: i32) -> Result<Vec<i32>> {
    let (mut sleeping, mut others) = (Vec::new(), Vec::new());
    for tid in threads::list(pid)? {
        match proc::state_of_thread(pid, tid) {
            Some('S') => sleeping.push(tid),
            Some('R') => others.push(tid),
            _ => {}
        }
        if sleeping.len() == MOST {
            break;
        }
    }
    sleeping.extend(others);
    sleeping.truncate(MOST);
    Ok(sleeping)
}

/// Stops a thread; `None` when it has ended or does not stop soon, or stands still already. One that does not stop soon is
/// among the `late` ones then.
fn stop(pid: i32, tid: i32, late: &mut Vec<i32>) -> Result<Option<Stopped>> {
    match sys::seize(tid, 0).and_then(|()| sys::interrupt(tid)) {
        Ok(()) => {}
        Err(Errno::ESRCH) => return Ok(None),
        Err(Errno::EPERM) if threads::is_dead(tid) => return Ok(None),
        Err(errno) => return Err(Error::ptrace("attach to", tid, errno)),
    }
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        match sys::wait_but_for_signals(tid) {
            Ok(Some((_, status))) => return taken(pid, tid, status),
            Ok(None) => child_signal::wait(LOOK_AGAIN),
            Err(Errno::EINTR) => {}
            Err(_) => return Ok(None),
        }
    }
    late.push(tid);
    Ok(None)
}

/// Lets those go that stopped too late, as soon as they have. What else is attached goes with the end of the thread that
/// traces.
fn let_go(pid: i32, mut late: Vec<i32>) {
    let since = Instant::now();
    while !late.is_empty() && since.elapsed() < LATE {
        late.retain(|&tid| match sys::wait_but_for_signals(tid) {
            Ok(Some((_, status))) => {
                let thread = taken(pid, tid, status);
                // That it has ended is known elsewhere.
                let _ = thread.map(|thread| thread.map(Stopped::detach));
                false
            }
            Ok(None) | Err(Errno::EINTR) => true,
            Err(_) => false,
        });
        if !late.is_empty() {
            child_signal::wait(LOOK_AGAIN);
        }
    }
}

fn taken(pid: i32, tid: i32, status: i32) -> Result<Option<Stopped>> {
    let thread = match decode(status) {
        Event::Exited(_) | Event::Killed(_) => {
            if tid == pid {
                children::keep(pid, status);
            }
            return Ok(None);
        }
        Event::GroupStop(_) => {
            unless_gone(Stopped::observed(tid, 0).detach())?;
            return Ok(None);
        }
        Event::Signal(signal) => Stopped::observed(tid, signal),
        _ => Stopped::observed(tid, 0),
    };
    let hidden = unless_gone(thread.hide_interruption())?;
    Ok(hidden.map(|_| thread))
}

impl World {
    /// One thread stands still, the others run.
    fn of_one_of(pid: i32, thread: Stopped) -> World {
        let mut world = World::of_one(thread, Held::Running);
        world.pid = pid;
        world
    }
}
