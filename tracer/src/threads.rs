//! The threads of the target: listing them, seizing all of them, and what the kernel says of each.
//!
//! Source: ptrace(2) PTRACE_SEIZE, proc_pid_status(5).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::child_signal;
use crate::children;
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, decode};
use crate::proc::{Stat, read_text};
use crate::stopped::Stopped;
use crate::sys;

/// The ids of the process's threads now.
///
/// # Errors
/// When the process is gone.
pub fn list(pid: i32) -> Result<Vec<i32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|_| Error::ThreadGone { tid: pid })?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// Whether the process has this thread now.
#[must_use]
pub fn has(pid: i32, tid: i32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// The processes that a thread has made and that have not ended (proc_tid_children(5)); `None` where the kernel was built without
/// that list (`CONFIG_PROC_CHILDREN`).
pub(crate) fn children(tid: i32) -> Option<Vec<i32>> {
    let listed = match std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/children")) {
        Err(error) if error.kind() == ErrorKind::NotFound && state(tid).is_some() => return None,
        listed => listed.unwrap_or_default(),
    };
    let numbers = listed.split_ascii_whitespace();
    Some(numbers.filter_map(|number| number.parse().ok()).collect())
}

/// All processes, each with the one that made it, or that has taken it over since.
pub(crate) fn descents() -> Vec<(i32, i32)> {
    /// No more are looked at.
    const MOST: usize = 1 << 16;
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let descent = |pid| Some((pid, Stat::of(pid).ok()?.parent()?));
    pids.take(MOST).filter_map(descent).collect()
}

/// For how long a thread was ready without running, since it began; nothing where the kernel does not tell.
#[must_use]
pub fn waited(pid: i32, tid: i32) -> Option<Duration> {
    turns(pid, tid).map(|turns| turns.waited)
}

/// What the kernel's scheduler knows of a thread since it began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Turns {
    /// For how long it has run,
    pub ran: Duration,
    /// and was ready without running.
    pub waited: Duration,
    /// How often it was given a processor.
    pub count: u64,
}

/// The turns of one thread (`/proc/PID/task/TID/schedstat`); nothing where it is gone or the kernel does not tell.
#[must_use]
pub fn turns(pid: i32, tid: i32) -> Option<Turns> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    let mut field = || fields.next()?.ok();
    let (ran, waited) = (field()?, field()?);
    Some(Turns {
        ran: Duration::from_nanos(ran),
        waited: Duration::from_nanos(waited),
        count: field()?,
    })
}

/// For how long a thread has been there, to a hundredth of a second; nothing where it is gone or the kernel does not tell.
#[must_use]
pub fn age(pid: i32, tid: i32) -> Option<Duration> {
    let began = Stat::at(&format!("/proc/{pid}/task/{tid}/stat"))
        .ok()?
        .began()?;
    let rate = sysconf(SysconfVar::CLK_TCK).ok()??;
    let since_boot = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    let began = Duration::from_secs_f64(began as f64 / rate as f64);
    Some(since_boot.saturating_sub(began))
}

/// The CPU time that all threads of a process have taken since it began, also those that have ended (clock_getcpuclockid(3)); nothing
/// where the kernel does not tell.
#[must_use]
pub fn cpu_time_of_all(pid: i32) -> Option<Duration> {
    let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid)).ok()?;
    clock.now().ok().map(Duration::from)
}

/// Seizes every thread of the process, those included that are made meanwhile.
///
/// No thread is stopped by this. `options` are those of ptrace(2) and must contain
/// `PTRACE_O_TRACECLONE`, so that threads made later are traced from their first instruction.
///
/// # Errors
/// When the permission is lacking or somebody else traces the process.
pub fn seize_all(pid: i32, options: i32) -> Result<BTreeSet<i32>> {
    let mut seized = BTreeSet::new();
    while !seize_others(pid, options, &mut seized)?.is_empty() {}
    match seized.is_empty() {
        true => Err(Error::ThreadGone { tid: pid }),
        false => Ok(seized),
    }
}

/// Seizes the threads that the process has now beside those in `seized`, adds them there and returns them.
///
/// # Errors
/// As [`seize_all`].
pub fn seize_others(pid: i32, options: i32, seized: &mut BTreeSet<i32>) -> Result<Vec<i32>> {
    let mut listed = list(pid)?;
    listed.retain(|tid| !seized.contains(tid));
    seize_listed(listed, options, seized)
}

/// Seizes these threads, as far as they have not ended, adds them to `seized` and returns them.
///
/// # Errors
/// As [`seize_all`].
pub fn seize_listed(
    mut listed: Vec<i32>,
    options: i32,
    seized: &mut BTreeSet<i32>,
) -> Result<Vec<i32>> {
    let mut refused = Ok(());
    listed.retain(|&tid| match sys::seize(tid, options) {
        Ok(()) => true,
        // A thread that a seized one has just made is traced already; one that ends is no matter.
        Err(Errno::ESRCH) => false,
        Err(Errno::EPERM) if tracer_of(tid) == Some(nix::unistd::gettid().as_raw()) => true,
        Err(Errno::EPERM) if is_dead(tid) => false,
        Err(errno) => {
            refused = Err(Error::ptrace("attach to", tid, errno));
            false
        }
    });
    refused?;
    seized.extend(&listed);
    Ok(listed)
}

/// Asks a thread to stop; `false` when it has ended.
///
/// # Errors
/// When the kernel refuses for another reason.
pub fn interrupt(tid: i32) -> Result<bool> {
    let outcome = sys::interrupt(tid).map_err(|errno| Error::ptrace("interrupt", tid, errno));
    Ok(unless_gone(outcome)?.is_some())
}

/// Waits until an interrupted thread reports, its end included; `None` when it has ended without that.
///
/// A thread group's leader that has exited before the others is a zombie that reports nothing until
/// the last of them has ended, so it must not be waited for.
///
/// # Errors
/// When the thread is not traced by this thread.
pub fn wait_stopped(tid: i32) -> Result<Option<Event>> {
    wait_stopped_until(tid, None)
}

/// The same, until then at the latest. A signal that it was stopped at stays with the thread ([`sys::wait_but_for_signals`]).
///
/// # Errors
/// As [`wait_stopped`], and [`Error::Busy`] when the thread has not reported until then: it waits in the kernel, where nothing
/// interrupts it.
pub fn wait_stopped_until(tid: i32, deadline: Option<Instant>) -> Result<Option<Event>> {
    wait_until(tid, deadline, sys::wait_but_for_signals)
}

/// The same, and leaves a stop to be taken by [`sys::take_stop`]: should this process be killed before, the signal that the thread
/// was stopped at is delivered to it.
///
/// # Errors
/// As [`wait_stopped_until`].
pub(crate) fn look_stopped_until(tid: i32, deadline: Option<Instant>) -> Result<Option<Event>> {
    let found = wait_until(tid, deadline, sys::look_now)?;
    if let Some(Event::Exited(_) | Event::Killed(_)) = found {
        let _ = sys::wait_now(tid);
    }
    Ok(found)
}

fn wait_until(
    tid: i32,
    deadline: Option<Instant>,
    find: impl Fn(i32) -> std::result::Result<Option<sys::WaitStatus>, Errno>,
) -> Result<Option<Event>> {
    loop {
        match find(tid) {
            Ok(Some((_, status))) => return Ok(Some(decode(status))),
            Ok(None) if is_dead(tid) => return Ok(None),
            Ok(None) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                return Err(Error::Busy(format!(
                    "thread {tid} (state {}) does not stop",
                    state(tid).unwrap_or('?')
                )));
            }
            Ok(None) => child_signal::wait(Duration::from_millis(10)),
            Err(Errno::EINTR) => {}
            Err(Errno::ECHILD | Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(Error::ptrace("wait for", tid, errno)),
        }
    }
}

/// Threads that were interrupted, did not stop in time, and are traced still.
static LEFT_BEHIND: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Leaves a thread that was interrupted and has not reported: it will stop some time, and is to be let go then.
pub(crate) fn leave_behind(tid: i32) {
    let mut left = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
    left.push(tid);
}

/// Lets go of those that were left behind and have stopped by now, without waiting. For the thread that traced them; the kernel
/// does it when that ends.
pub fn let_go_of_the_late() {
    let mut left = LEFT_BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|&tid| match sys::wait_now(tid) {
        Ok(None) | Err(Errno::EINTR) => true,
        Ok(Some((_, status))) => {
            match decode(status) {
                Event::Exited(_) | Event::Killed(_) => children::keep(tid, status),
                event => {
                    let pending = match event {
                        Event::Signal(signal) => signal,
                        _ => 0,
                    };
                    let thread = Stopped::observed(tid, pending);
                    // That it is gone meanwhile is noticed elsewhere.
                    let _ = thread.hide_interruption();
                    let _ = thread.detach();
                }
            }
            false
        }
        Err(_) => false,
    });
}

/// Whether the kernel filters the thread's system calls: one that it would not make itself may kill it.
#[must_use]
pub fn is_filtered(tid: i32) -> bool {
    status_field(tid, "Seccomp").is_some_and(|mode| mode != "0")
}

/// The signals of which a process ends with a core dump, unless it does something else about them (signal(7)).
pub const CORE_SIGNALS: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// Whether the thread's process is the first one of its pid namespace: of signals that others send it, those that it does not
/// handle do nothing (pid_namespaces(7)).
#[must_use]
pub fn is_of_first_process(tid: i32) -> bool {
    let own = |field| {
        status_field(tid, field).and_then(|ids| ids.split_whitespace().last().map(str::to_owned))
    };
    own("NStgid").is_some_and(|id| id == "1")
}

/// One field of `/proc/TID/status`.
#[must_use]
pub fn status_field(tid: i32, field: &str) -> Option<String> {
    let text = read_text(&format!("/proc/{tid}/status")).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// The thread group (process) that a thread belongs to.
#[must_use]
pub fn process_of(tid: i32) -> Option<i32> {
    status_field(tid, "Tgid")?.parse().ok()
}

fn tracer_of(tid: i32) -> Option<i32> {
    status_field(tid, "TracerPid")?.parse().ok()
}

/// Whether the thread has ended, even if its end has not been reported yet.
pub(crate) fn is_dead(tid: i32) -> bool {
    status_field(tid, "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// Where `/proc` shows what belongs to a process as a whole: under its own id, or, when its first thread has
/// ended before the others (proc(5): its `root`, `exe` and `mem` are gone then), under that of another thread.
#[must_use]
pub fn proc_folder(pid: i32) -> PathBuf {
    match living(pid) {
        Some(tid) if tid != pid => PathBuf::from(format!("/proc/{pid}/task/{tid}")),
        _ => PathBuf::from(format!("/proc/{pid}")),
    }
}

/// A thread of a process that has not ended, and so has what belongs to the process: its first one, where that lives.
pub(crate) fn living(pid: i32) -> Option<i32> {
    if !is_dead(pid) {
        return Some(pid);
    }
    let others = list(pid).unwrap_or_default();
    others.into_iter().find(|&tid| tid != pid && !is_dead(tid))
}

/// The one-letter state of a thread: `R` runs, `S` and `D` wait, `t` is stopped by its tracer.
#[must_use]
pub fn state(tid: i32) -> Option<char> {
    status_field(tid, "State")?.chars().next()
}

/// What a process does with its signals, as bit masks (bit `n - 1` for signal `n`).
#[derive(Clone, Copy, Debug, Default)]
pub struct SignalMasks {
    /// Pending for the thread or the process.
    pub pending: u64,
    /// Blocked by the thread.
    pub blocked: u64,
    /// Ignored by the process.
    pub ignored: u64,
    /// Caught by a handler of the process.
    pub caught: u64,
}

impl SignalMasks {
    /// Reads the masks of a thread; `None` when it has ended.
    #[must_use]
    pub fn of(tid: i32) -> Option<SignalMasks> {
        let text = read_text(&format!("/proc/{tid}/status")).ok()?;
        let mask = |field: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(field))?;
            u64::from_str_radix(value.trim(), 16).ok()
        };
        Some(SignalMasks {
            pending: mask("SigPnd:")? | mask("ShdPnd:")?,
            blocked: mask("SigBlk:")?,
            ignored: mask("SigIgn:")?,
            caught: mask("SigCgt:")?,
        })
    }

    fn has(mask: u64, signal: i32) -> bool {
        (1..=64).contains(&signal) && mask & (1 << (signal - 1)) != 0
    }

    /// Whether the signal waits to be delivered.
    #[must_use]
    pub fn is_pending(&self, signal: i32) -> bool {
        Self::has(self.pending, signal)
    }

    /// Whether the signal is pending, and the thread does not block it.
    #[must_use]
    pub fn is_due(&self, signal: i32) -> bool {
        self.is_pending(signal) && !Self::has(self.blocked, signal)
    }

    /// Whether the process has a handler for the signal.
    #[must_use]
    pub fn catches(&self, signal: i32) -> bool {
        Self::has(self.caught, signal)
    }

    /// Whether the process would never learn of the signal when nobody traces it.
    #[must_use]
    pub fn discards(&self, signal: i32) -> bool {
        let by_default = matches!(signal, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH);
        Self::has(self.ignored, signal) || (by_default && !Self::has(self.caught, signal))
    }

    /// Whether delivering the signal, one of [`CORE_SIGNALS`], ends the process with a core dump.
    #[must_use]
    pub fn dumps_core(&self, signal: i32) -> bool {
        CORE_SIGNALS.contains(&signal)
            && !Self::has(self.caught, signal)
            && !Self::has(self.ignored, signal)
    }

    /// Whether the thread blocks every signal that can be blocked, those that C libraries keep for themselves included.
    #[must_use]
    pub fn blocks_all(&self) -> bool {
        let unblockable = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        self.blocked | unblockable == u64::MAX
    }

    /// Whether a handler is about to run, so that a system call rightly ends with `EINTR`.
    #[must_use]
    pub fn handler_due(&self) -> bool {
        self.pending & !self.blocked & self.caught != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_told_from_caught_ones() {
        let masks = SignalMasks {
            ignored: 1 << (libc::SIGUSR1 - 1),
            caught: 1 << (libc::SIGCHLD - 1),
            ..SignalMasks::default()
        };
        assert!(masks.discards(libc::SIGUSR1));
        assert!(masks.discards(libc::SIGWINCH));
        assert!(masks.catches(libc::SIGCHLD) && !masks.catches(libc::SIGUSR1));
        assert!(!masks.discards(libc::SIGCHLD));
        assert!(!masks.discards(libc::SIGTERM));
        assert!(masks.dumps_core(libc::SIGSEGV));
    }

    /// A thread takes its CPU time with it where threads are listed.
    #[test]
    fn the_cpu_time_of_ended_threads_stays_that_of_the_process() {
        let own = std::process::id().cast_signed();
        let known = turns(own, own).map(|turns| (turns.waited, turns.count > 0));
        assert_eq!(known.map(|(_, has_run)| has_run), Some(true));
        assert!(known.map(|(waited, _)| waited) <= waited(own, own));
        assert_eq!(turns(own, 0), None);
        let before = cpu_time_of_all(own).expect("it runs");
        let spin = || {
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(60) {}
        };
        std::thread::spawn(spin).join().expect("it ends");
        let took = cpu_time_of_all(own).expect("it runs") - before;
        assert!(took >= Duration::from_millis(5), "{took:?}");
    }
}
