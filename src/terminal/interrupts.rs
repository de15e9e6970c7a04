//! Interrupts: the first ends the analysis, a second one makes darc restore the target and leave at once.
//!
//! A handler only counts; whoever owns the target looks at [`level`](darc_process::Interrupts::level) between two of its
//! events, or waits for [`Interrupts::fd`] beside them. Before [`Interrupts::install`] the signals
//! have their default action, which is right as long as the target was not touched.
//!
//! Signals that come together are one wish: `timeout` sends its signal twice, and a terminal that
//! closes does too. Nobody presses a key twice within a fifth of a second.
//!
//! While a report is made after that they end darc; see [`super::reporting`].
//!
//! A signal that darc was started with as ignored (nohup, a shell's background job) stays ignored.
//! Handlers do not outlive exec, so a program that darc starts has the dispositions a shell would give it.
//! Source: signal(7), sigaction(2), proc_pid_status(5) on SigIgn.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use darc_process::Level;
use darc_tracer::plan::Mark;
use nix::sys::signal::{Signal, raise};
use signal_hook::SigId;
use signal_hook::consts::{
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ,
};

use super::reporting::Reporting;

/// The signals that end the analysis. SIGXCPU is the soft limit of processor time.
const ENDING: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU];

/// Signals that follow the first within this time are the same wish.
const ONE_WISH: Duration = Duration::from_millis(200);

/// What can be asked for again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// Measure.
    On,
    /// Do not.
    Off,
}

/// The installed handlers. Dropping them makes the signals do nothing at all.
#[derive(Debug)]
pub struct Interrupts {
    signals: Arc<Signals>,
    registered: Vec<SigId>,
    /// What makes [`Interrupts::fd`] readable.
    sender: UnixStream,
    /// The analysis may begin (SIGUSR1).
    begin: Arc<AtomicBool>,
    /// It is to end (SIGUSR2).
    end: Arc<AtomicBool>,
}

/// The signals that end the analysis, as far as they have come.
#[derive(Debug)]
pub(super) struct Signals {
    /// The number of the last signal that was not yet looked at, or 0.
    last: Arc<AtomicUsize>,
    /// Readable when signals came.
    bytes: UnixStream,
    told: Mutex<Told>,
    /// Set once the signals are to have their default action again.
    finished: Arc<AtomicBool>,
}

/// What was made of them.
#[derive(Debug)]
struct Told {
    level: Level,
    /// How often somebody wanted the end.
    wishes: u32,
    /// When the first signal was seen.
    since: Option<Instant>,
    /// The last one.
    signal: i32,
}

impl Interrupts {
    /// Installs the handlers, for the whole process.
    ///
    /// # Errors
    /// When the kernel refuses a handler or there are no file descriptors left.
    pub fn install() -> io::Result<Self> {
        let ignored = ignored_signals();
        let (bytes, sender) = UnixStream::pair()?;
        bytes.set_nonblocking(true)?;
        let mut registered = Vec::new();
        let (begin, end) = (Arc::default(), Arc::default());
        for (signal, flag) in [(SIGUSR1, &begin), (SIGUSR2, &end)] {
            // What is ignored a program that is started ignores as well (execve(2)).
            if !contains(ignored, signal) {
                registered.push(signal_hook::flag::register(signal, Arc::clone(flag))?);
            }
        }
        if !contains(ignored, SIGXFSZ) {
            // A file that outgrows RLIMIT_FSIZE shall be an error of write(2), not the end.
            registered.push(signal_hook::flag::register(
                SIGXFSZ,
                Arc::new(AtomicBool::new(false)),
            )?);
        }
        let told = Told {
            level: Level::GoOn,
            wishes: 0,
            since: None,
            signal: 0,
        };
        let mut interrupts = Self {
            signals: Arc::new(Signals {
                last: Arc::default(),
                bytes,
                told: Mutex::new(told),
                finished: Arc::default(),
            }),
            registered,
            sender,
            begin,
            end,
        };
        for signal in ENDING {
            interrupts.end_by(signal, signal, ignored)?;
        }
        Ok(interrupts)
    }

    /// As [`Interrupts::install`], of a process that darc has not started: a stop by the terminal (Ctrl-Z) is an end as well. A darc
    /// that stands still could not let go what it has stopped. What darc has started the terminal stops with it.
    ///
    /// # Errors
    /// As there.
    pub fn of_a_stranger() -> io::Result<Self> {
        let mut interrupts = Interrupts::install()?;
        interrupts.end_by(SIGTSTP, SIGINT, ignored_signals())?;
        Ok(interrupts)
    }

    /// This signal ends the analysis as another does, unless darc was started with it ignored.
    fn end_by(&mut self, signal: i32, as_by: i32, ignored: u64) -> io::Result<()> {
        if contains(ignored, signal) {
            return Ok(());
        }
        let signals = &self.signals;
        // The byte comes first: whoever sees the number finds the byte.
        let byte = signal_hook::low_level::pipe::register(signal, self.sender.try_clone()?)?;
        let number = usize::try_from(as_by).unwrap_or(0);
        let last = signal_hook::flag::register_usize(signal, Arc::clone(&signals.last), number)?;
        let finished = Arc::clone(&signals.finished);
        let finished = signal_hook::flag::register_conditional_default(signal, finished)?;
        self.registered.extend([byte, last, finished]);
        Ok(())
    }

    /// What the person said last, by SIGUSR1 or SIGUSR2, since this was asked; to go on where both came meanwhile.
    pub fn switched(&self) -> Option<Switch> {
        let end = self.end.swap(false, Ordering::AcqRel);
        let begin = self.begin.swap(false, Ordering::AcqRel);
        match (begin, end) {
            (true, _) => Some(Switch::On),
            (false, true) => Some(Switch::Off),
            (false, false) => None,
        }
    }

    /// Readable when a signal came that [`level`](darc_process::Interrupts::level) has not looked at.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.signals.fd()
    }

    /// The target is restored, and a report is made as long as what is returned is there.
    pub fn report(&self) -> Reporting {
        Reporting::begin(Arc::clone(&self.signals))
    }
}

impl darc_process::Interrupts for Interrupts {
    /// What darc has been told so far. Costs next to nothing as long as no signal came.
    fn level(&self) -> Level {
        self.signals.look().level
    }

    /// Whether the person said that the analysis may begin (SIGUSR1), or is to end (SIGUSR2).
    fn asked(&self, mark: Mark) -> bool {
        let flag = match mark {
            Mark::Begin => &self.begin,
            Mark::End => &self.end,
        };
        flag.load(Ordering::Acquire)
    }
}

impl Signals {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bytes.as_fd()
    }

    /// How often somebody has wanted the end.
    pub(super) fn wishes(&self) -> u32 {
        self.look().wishes
    }

    /// Does what the last signal does to a process that does not handle it.
    pub(super) fn leave(&self) {
        let signal = self.look().signal;
        self.finished.store(true, Ordering::Release);
        if let Ok(signal) = Signal::try_from(signal) {
            let _ = raise(signal);
        }
    }

    fn look(&self) -> MutexGuard<'_, Told> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let signal = self.last.swap(0, Ordering::AcqRel);
        if signal != 0 {
            let mut buffer = [0; 64];
            while let Ok(1..) = (&self.bytes).read(&mut buffer) {}
            told.take(i32::try_from(signal).unwrap_or(SIGTERM), Instant::now());
        }
        told
    }
}

impl Told {
    /// One signal, or some that came since the last look.
    fn take(&mut self, signal: i32, now: Instant) {
        self.signal = signal;
        match self.since {
            None => {
                self.since = Some(now);
                self.level = Level::End;
            }
            Some(since) if now.saturating_duration_since(since) <= ONE_WISH => return,
            Some(_) => self.level = Level::LeaveAtOnce(signal),
        }
        self.wishes += 1;
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// The mask of signals that this process ignores; none when `/proc` cannot be read.
fn ignored_signals() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_in(&status))
}

fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn contains(mask: u64, signal: i32) -> bool {
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use darc_process::Interrupts as _;

    use super::*;

    #[test]
    fn the_first_ends_and_the_second_leaves() {
        let interrupts = Interrupts::install().unwrap();
        assert_eq!(interrupts.level(), Level::GoOn);
        // As timeout(1) does.
        raise(Signal::SIGTERM).unwrap();
        raise(Signal::SIGTERM).unwrap();
        assert_eq!(interrupts.level(), Level::End);
        assert_eq!(
            interrupts.level(),
            Level::End,
            "looking again changes nothing"
        );

        let told = |after: Duration| {
            let mut told = interrupts.signals.look();
            let first = told.since.unwrap();
            told.take(SIGINT, first + after);
            told.wishes
        };
        assert_eq!(told(ONE_WISH), 1);
        assert_eq!(interrupts.level(), Level::End);
        assert_eq!(told(ONE_WISH + Duration::from_millis(1)), 2);
        assert_eq!(interrupts.level(), Level::LeaveAtOnce(SIGINT));
    }

    #[test]
    fn measuring_is_switched_off_and_on() {
        let interrupts = Interrupts::install().unwrap();
        assert_eq!(interrupts.switched(), None);
        raise(Signal::SIGUSR2).unwrap();
        assert_eq!(interrupts.switched(), Some(Switch::Off));
        raise(Signal::SIGUSR1).unwrap();
        raise(Signal::SIGUSR2).unwrap();
        assert_eq!(interrupts.switched(), Some(Switch::On));
        assert_eq!(
            (interrupts.switched(), interrupts.level()),
            (None, Level::GoOn)
        );
    }

    #[test]
    fn a_mask_is_read_as_the_kernel_writes_it() {
        assert_eq!(
            ignored_in("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"),
            1 << 12
        );
        assert_eq!(ignored_in("SigIgn:\tnonsense"), 0);
        assert!(contains(1 << 12, 13));
        assert!(!contains(1 << 12, 12));
        assert!(!contains(u64::MAX, 0) && !contains(u64::MAX, 99));
    }
}
