//! `darc profile --syscalls`: of any process, with or without symbols.

use std::time::{Duration, Instant};

use darc_process::claim::Claim;
use darc_process::clock::Moment;
use darc_process::{Ending, Interrupts as _, Level};
use darc_report::model::Target;
use darc_report::profiles::ProfileSet;
use darc_tracer::launch::{self, Held};
use darc_tracer::system_calls::SystemCalls;
use darc_tracer::{perf, preflight};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Sheet, on_stderr};
use crate::command::shared::answering::Answers;
use crate::command::shared::started::{ends_despite, passed_on, wait_for_exit};
use crate::command::shared::target::{command_line, shown};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{ProfileOptions, ProfileTarget};
use crate::session::profiling::syscalls::SyscallProfiles;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::keys::Keys;
use crate::terminal::warning;

/// The longest time between two readings of the kernel's buffers.
const SLICE: Duration = Duration::from_millis(50);

/// Does it.
///
/// # Errors
/// When darc itself failed, or the kernel does not allow it.
pub fn execute(options: &ProfileOptions) -> Result<ExitStatus, Failure> {
    let mask = darc_tracer::child_signal::block().class(FailureKind::Other)?;
    let interrupts = Interrupts::install().class(FailureKind::Other)?;
    let mut sheet = Sheet::open(options)?;
    let since = Moment::now();
    let (pid, trace, child) = match &options.target {
        ProfileTarget::Pid(pid) => {
            let pid = darc_tracer::threads::process_of(*pid).unwrap_or(*pid);
            if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
                preflight::check(pid).class(FailureKind::Target)?;
            }
            // The same numbers are other calls there.
            if let Some(what) = preflight::unsupported(pid) {
                let refused = preflight::Refusal::Unsupported { pid, what };
                return Err(refused).class(FailureKind::Target);
            }
            (
                pid,
                SystemCalls::begin(pid).class(FailureKind::Target)?,
                None,
            )
        }
        ProfileTarget::Command(command) => {
            let held = launch::hold(command, &mask).and_then(Held::supported);
            let held = held.class(FailureKind::Target)?;
            match SystemCalls::begin(held.pid()).class(FailureKind::Target) {
                Ok(trace) => {
                    let pid = held.release().class(FailureKind::Target)?;
                    (pid, trace, Some(shown(command)))
                }
                Err(failure) => {
                    held.abandon();
                    return Err(failure);
                }
            }
        }
    };
    let command = child.clone().unwrap_or_else(|| command_line(pid));
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let target = Target {
        pid: Some(pid),
        command,
        exe: exe.to_string_lossy().into_owned(),
        ..Target::default()
    };
    let keys = Keys::new(child.is_none());
    let failed = |failure| match child {
        Some(_) => ends_despite(failure, pid, &interrupts),
        None => Err(failure),
    };
    let claim = match Claim::beside(pid).class(FailureKind::Other) {
        Ok(claim) => claim,
        Err(failure) => return failed(failure),
    };
    let mut watched = Watched {
        trace,
        profiles: SyscallProfiles::new(options.resolution, darc_tracer::tsc()),
        answers: Answers::new(claim, keys),
        target,
        since,
    };
    let ending = match watched.watch(pid, options, &interrupts) {
        Ok(ending) => ending,
        Err(failure) => return failed(failure),
    };
    let now = darc_tracer::tsc();
    let ended = match (&ending, &child) {
        (None, Some(_)) => wait_for_exit(pid, &interrupts),
        _ => None,
    };
    let exit_status = ended.and_then(Ending::shell_status);
    if !watched.profiles.saw_calls() {
        let warning = "no system call began while darc was watching";
        watched.profiles.warnings.push(warning.to_owned());
    }
    let doubts = since.doubts().into_iter().map(|doubt| doubt.to_string());
    watched.profiles.warnings.extend(doubts);
    let target = Target {
        exit_status,
        ..watched.target.clone()
    };
    let open = watched.trace.open();
    let set = watched.profiles.set(now, &open, target, since.rate());
    let saw_calls = watched.profiles.saw_calls();
    // The instance of the kernel's tracing goes before anything can fail.
    drop(watched);
    let reporting = interrupts.report();
    let published = sheet.publish(&set);
    drop(reporting);
    match (published, &child) {
        (Err(failure), None) => return Err(failure),
        (Err(failure), Some(_)) => warning::print(&failure.text()),
        (Ok(()), _) => {}
    }
    let ended = match (ended, ending, child) {
        // It was let run on; its exit status is still awaited.
        (None, Some(Level::End | Level::GoOn), Some(_)) => wait_for_exit(pid, &interrupts),
        (ended, ..) => ended,
    };
    Ok(match (ended.and_then(passed_on), ending) {
        (Some(passed_on), _) => passed_on,
        (_, Some(Level::LeaveAtOnce(signal))) => ExitStatus::LeftAtOnce(signal),
        _ if !saw_calls => ExitStatus::NoOps,
        _ => ExitStatus::Done,
    })
}

struct Watched {
    trace: SystemCalls,
    profiles: SyscallProfiles,
    answers: Answers,
    target: Target,
    since: Moment,
}

impl Watched {
    /// Watches until the process ends (then there is no level), the time is over, or the person wants.
    fn watch(
        &mut self,
        pid: i32,
        options: &ProfileOptions,
        interrupts: &Interrupts,
    ) -> Result<Option<Level>, Failure> {
        use std::os::fd::AsFd;
        let deadline = options.duration.map(|time| Instant::now() + time);
        let mut segment_ends = options.interval.map(|time| Instant::now() + time);
        let process = perf::pidfd(pid).ok();
        let outcome = loop {
            let next = [deadline, segment_ends].into_iter().flatten().min();
            let slice = next.map_or(SLICE, |at| {
                SLICE.min(at.saturating_duration_since(Instant::now()))
            });
            let timeout = PollTimeout::try_from(slice.max(Duration::from_millis(1)));
            let ended = match &process {
                Some(process) => {
                    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
                    matches!(
                        poll(&mut fds, timeout.unwrap_or(PollTimeout::ZERO)),
                        Ok(1..)
                    )
                }
                None => true,
            };
            self.profiles.add(&self.trace.take());
            if segment_ends.is_some_and(|at| Instant::now() >= at) {
                self.end_segment();
                segment_ends = options.interval.map(|time| Instant::now() + time);
            }
            if self.answers.are_asked() {
                self.tell(options);
            }
            if ended {
                break None;
            }
            match interrupts.level() {
                Level::GoOn => {}
                level => break Some(level),
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break Some(Level::GoOn);
            }
        };
        let rest = self.trace.finish();
        self.profiles.add(&rest);
        if self.profiles.is_divided() {
            self.end_segment();
        }
        Ok(outcome)
    }

    /// Shows what there would be if it all ended now; what is kept does not change.
    fn tell(&self, options: &ProfileOptions) {
        let (now, open) = (darc_tracer::tsc(), self.trace.open());
        let mut so_far = self.profiles.clone();
        if options.interval.is_some() {
            so_far.end_segment(now, &open);
        }
        let set = so_far.set(now, &open, self.target.clone(), self.since.rate());
        let text = |set: &ProfileSet| on_stderr(set, options.color);
        self.answers.tell(&set, text);
    }

    fn end_segment(&mut self) {
        let open = self.trace.open();
        self.profiles.end_segment(darc_tracer::tsc(), &open);
    }
}
