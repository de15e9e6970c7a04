//! `darc sample`: where programs spend their time, by sampling the program counter.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use darc_process::{Interrupts as _, Level};
use darc_tracer::perf::attributes::Start;
use darc_tracer::perf::{Attributes, Chains, Collector, Record, Scope, sample_cost};
use darc_tracer::{launch, threads};

use crate::command::shared::started::{ends_despite, passed_on, wait_for_exit};
use crate::command::shared::target::shown;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{SampleFormat, SampleOptions, SampleTarget};
use crate::output::{Output, to_stdout};
use crate::sampling::profile::{Circumstances, During, SampledScope};
use crate::sampling::recording::{Machine as _, Recording};
use crate::sampling::world::World;
use crate::sampling::{adding, stacks, text};
use crate::terminal::interrupts::{Interrupts, Switch};
use crate::terminal::warning;

mod during;
mod python;
mod users;

use python::Pythons;
use users::Users;

/// The longest wait between two readings of the rings.
const SLICE: Duration = Duration::from_millis(200);
/// How often new processes of a user are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How often the threads of a process are listed until none is missed.
const LISTINGS: u32 = 5;

/// Samples, and shows where the time went.
///
/// # Errors
/// When the kernel refuses, or there is nothing to sample.
pub fn execute(options: SampleOptions) -> Result<ExitStatus, Failure> {
    let mask = darc_tracer::child_signal::block().class(FailureKind::Other)?;
    let interrupts = Rc::new(Interrupts::install().class(FailureKind::Other)?);
    let output = match &options.output {
        Some(path) => Some(Output::open_keeping(path).class(FailureKind::File)?),
        None => None,
    };
    let attributes = Attributes::samples(options.rate, Chains::Recorded);
    let attributes = match options.target {
        SampleTarget::Command(_) if options.during.is_none() => attributes.start(Start::AtExec),
        _ => attributes,
    };
    // Where that cannot be measured, sampling is refused as well, or the figure is left out.
    let cost = sample_cost::measure(Chains::Recorded).unwrap_or_default();
    let mut sampler = Sampler {
        cost,
        collector: Collector::new(attributes).class(FailureKind::Target)?,
        recording: Recording::default(),
        world: World::default(),
        warnings: Vec::new(),
        interrupts,
        deadline: None,
        began: Instant::now(),
        paused: None,
        paused_for: Duration::ZERO,
        pythons: None,
    };
    if let Some(during) = &options.during {
        let sampled = during::Conduct::new(sampler, during, &options, &mask)?;
        return sampled.conduct(output);
    }
    let tells_interpreted = options.format.tells_interpreted();
    let ended = match &options.target {
        SampleTarget::Pid(pid) => {
            // A thread's id stands for its process.
            let pid = threads::process_of(*pid).unwrap_or(*pid);
            sampler.add_only(pid)?;
            sampler.pythons = tells_interpreted.then(|| Pythons::of(pid));
            sampler.begin(options.duration);
            match darc_tracer::perf::pidfd(pid) {
                Ok(process) => sampler.sample(Some(&process), |_| Ok(()))?,
                // It has ended already.
                Err(_) => sampler.read_rest(),
            }
            None
        }
        SampleTarget::System => {
            sampler.collector.add_system().class(FailureKind::Target)?;
            sampler.begin(options.duration);
            for pid in processes() {
                sampler.know(pid);
            }
            sampler.sample(None, |_| Ok(()))?;
            None
        }
        SampleTarget::User(user) => {
            let mut users = Users::of(user)?;
            users.add_new(&mut sampler)?;
            if users.is_empty() {
                let message = format!("user {user:?} has no process; name another one");
                return Err(Failure::message(FailureKind::Target, message));
            }
            sampler.begin(options.duration);
            sampler.sample(None, |sampler| users.add_new(sampler))?;
            None
        }
        SampleTarget::Command(command) => {
            let held = launch::hold(command, &mask).class(FailureKind::Target)?;
            let pid = held.pid();
            match sampler.collector.add_thread(pid) {
                Ok(_) => {}
                Err(refusal) => {
                    held.abandon();
                    return Err(Failure::new(FailureKind::Target, refusal));
                }
            }
            sampler.know(pid);
            let pid = held.release().class(FailureKind::Target)?;
            sampler.pythons = tells_interpreted.then(|| Pythons::of(pid));
            sampler.count_from_now(options.duration);
            let sampled = darc_tracer::perf::pidfd(pid)
                .class(FailureKind::Other)
                .and_then(|process| sampler.sample(Some(&process), |_| Ok(())));
            if let Err(failure) = sampled {
                return ends_despite(failure, pid, &sampler.interrupts);
            }
            Some(pid)
        }
    };
    match (sampler.publish(&options, None, output), ended) {
        (Ok(()), _) => Ok(sampler.exit_status(ended)),
        (Err(failure), Some(pid)) => ends_despite(failure, pid, &sampler.interrupts),
        (Err(failure), None) => Err(failure),
    }
}

/// The processes that run.
fn processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

struct Sampler {
    /// What a sample takes of a program's time on this machine.
    cost: Option<Duration>,
    collector: Collector,
    recording: Recording,
    world: World,
    warnings: Vec<String>,
    interrupts: Rc<Interrupts>,
    deadline: Option<Instant>,
    began: Instant,
    /// Since when sampling is switched off.
    paused: Option<Instant>,
    /// For how long it was.
    paused_for: Duration,
    /// Of the one process that was asked for.
    pythons: Option<Pythons>,
}

impl Sampler {
    /// Watches all threads of the process that was asked for.
    fn add_only(&mut self, pid: i32) -> Result<(), Failure> {
        if self.add_process(pid)? {
            return Ok(());
        }
        let message = format!("process {pid}: no such process; check the number");
        Err(Failure::message(FailureKind::Target, message))
    }

    /// Watches all threads of a process. `false` when it has ended.
    fn add_process(&mut self, pid: i32) -> Result<bool, Failure> {
        let mark = self.collector.mark();
        for attempt in 1.. {
            // A thread that is made meanwhile has an event if its maker had one by then, and nobody can tell.
            // So all begins anew until no thread was made.
            let Ok(before) = threads::list(pid) else {
                return Ok(false);
            };
            let before: HashSet<i32> = before.into_iter().collect();
            let mut watched = 0;
            for &tid in &before {
                match self.collector.add_thread(tid) {
                    Ok(true) => watched += 1,
                    Ok(false) => {}
                    Err(refusal) => return Err(Failure::new(FailureKind::Target, refusal)),
                }
            }
            let Ok(after) = threads::list(pid) else {
                return Ok(false);
            };
            if watched == 0 {
                return Ok(false);
            }
            if after.iter().all(|tid| before.contains(tid)) {
                break;
            }
            if attempt == LISTINGS {
                self.warnings.push(format!(
                    "process {pid} makes threads all the time: some that were made while sampling began may be missing"
                ));
                break;
            }
            self.collector.take_back(mark);
        }
        self.know(pid);
        Ok(true)
    }

    fn know(&mut self, pid: i32) {
        if let Some(seen) = self.world.process(pid) {
            self.recording.processes.found(pid, seen);
        }
    }

    fn begin(&mut self, duration: Option<Duration>) {
        self.collector.enable();
        self.count_from_now(duration);
    }

    fn count_from_now(&mut self, duration: Option<Duration>) {
        self.began = Instant::now();
        self.deadline = duration.map(|duration| self.began + duration);
    }

    /// Samples until the process has ended, the time is up, or the person has had enough.
    fn sample(
        &mut self,
        process: Option<&OwnedFd>,
        mut look: impl FnMut(&mut Sampler) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut looked = Instant::now();
        loop {
            let now = Instant::now();
            let left = self
                .deadline
                .map_or(SLICE, |deadline| deadline.saturating_duration_since(now));
            let interrupts = self.interrupts.fd();
            let others: Vec<BorrowedFd<'_>> = process
                .map(AsFd::as_fd)
                .into_iter()
                .chain([interrupts])
                .collect();
            // What is left of a millisecond would be no time to wait at all.
            let round_up = |left: Duration| left + Duration::from_millis(1);
            let looks = self.pythons.as_ref().filter(|_| self.paused.is_none());
            let until_look = looks.map_or(SLICE, |it| round_up(it.left()));
            self.collector
                .wait(&others, left.min(until_look).min(SLICE));
            self.read();
            if let Some(pythons) = &mut self.pythons
                && self.paused.is_none()
            {
                pythons.look();
            }
            let over = self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline);
            if over || self.interrupts.level() != Level::GoOn || process.is_some_and(has_ended) {
                break;
            }
            if looked.elapsed() >= LOOK_AGAIN {
                look(self)?;
                looked = Instant::now();
                // What it has found meanwhile samples already.
                if self.paused.is_some() {
                    self.collector.disable();
                }
            }
            self.switch();
        }
        self.read_rest();
        Ok(())
    }

    /// Stops or goes on, when the person said so.
    fn switch(&mut self) {
        match (self.interrupts.switched(), self.paused) {
            (Some(Switch::Off), None) => {
                self.collector.disable();
                self.paused = Some(Instant::now());
            }
            (Some(Switch::On), Some(since)) => {
                self.paused_for += since.elapsed();
                self.paused = None;
                self.collector.enable();
            }
            _ => {}
        }
    }

    /// For how long it sampled.
    fn sampled(&self) -> Duration {
        let paused = self.paused.map_or(Duration::ZERO, |since| since.elapsed());
        self.began
            .elapsed()
            .saturating_sub(self.paused_for + paused)
    }

    /// Takes what has come.
    fn read(&mut self) {
        let drained = self.collector.read();
        self.recording.tally.damaged += drained.damaged as u64;
        self.take(drained.records);
    }

    /// Stops sampling, and takes everything.
    fn read_rest(&mut self) {
        self.collector.disable();
        let drained = self.collector.read_rest();
        self.recording.tally.damaged += drained.damaged as u64;
        self.take(drained.records);
    }

    /// How darc ends; a program that was started is waited for.
    fn exit_status(&self, started: Option<i32>) -> ExitStatus {
        match (started, self.interrupts.level()) {
            (Some(_), Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
            (Some(pid), _) => {
                let ended = wait_for_exit(pid, &self.interrupts);
                let passed_on = ended.and_then(passed_on);
                passed_on.unwrap_or(match self.interrupts.level() {
                    Level::LeaveAtOnce(signal) => ExitStatus::LeftAtOnce(signal),
                    _ => ExitStatus::Done,
                })
            }
            (None, _) => ExitStatus::Done,
        }
    }

    fn take(&mut self, records: Vec<Record>) {
        for record in records {
            self.recording.take(record, &mut self.world);
        }
    }

    /// Shows the result, or writes it to the file.
    fn publish(
        &mut self,
        options: &SampleOptions,
        during: Option<During>,
        output: Option<Output>,
    ) -> Result<(), Failure> {
        let seconds = self.sampled().as_secs_f64();
        let scope = match self.collector.scope() {
            Scope::UserAndKernel => SampledScope::UserAndKernel,
            Scope::User => SampledScope::User,
        };
        self.caveats(scope);
        let rendered = match options.format {
            SampleFormat::Folded => stacks::folded(&self.recording, &self.world).into_bytes(),
            SampleFormat::Speedscope => {
                stacks::speedscope(&self.recording, &self.world, options.rate).into_bytes()
            }
            SampleFormat::Pprof => stacks::pprof(&self.recording, &self.world, options.rate),
            SampleFormat::Text | SampleFormat::Json => {
                let circumstances = Circumstances {
                    darc: env!("CARGO_PKG_VERSION").to_owned(),
                    target: target_name(&options.target),
                    rate: options.rate,
                    seconds,
                    sample_cost_ns: self.cost.map(|cost| cost.as_nanos() as f64),
                    cpus: self.collector.cpus(),
                    scope,
                    during,
                };
                let mut profile = adding::profile(
                    &self.recording,
                    &self.world,
                    circumstances,
                    self.warnings.clone(),
                );
                // Files were read for their names just now.
                profile.warnings.extend(self.world.warnings());
                profile.python = self.pythons.as_ref().and_then(|it| it.looks.profile());
                let text = match options.format {
                    SampleFormat::Json => {
                        serde_json::to_string_pretty(&profile).class(FailureKind::Other)? + "\n"
                    }
                    _ => text::render(&profile),
                };
                text.into_bytes()
            }
        };
        for message in self.warnings.iter().chain(&self.world.warnings()) {
            warning::print(message);
        }
        // Nobody shall have to wait until all is written.
        let _reporting = self.interrupts.report();
        match output {
            Some(output) => output.write(&rendered).class(FailureKind::File),
            None if matches!(options.target, SampleTarget::Command(_)) => {
                // A closed stderr is no reason to fail: the program's own status is to be passed on.
                let _ = std::io::stderr().write_all(&rendered);
                Ok(())
            }
            None => to_stdout(&rendered).class(FailureKind::File),
        }
    }

    fn caveats(&mut self, scope: SampledScope) {
        let tally = self.recording.tally;
        if tally.user + tally.kernel == 0 {
            self.warnings.push(
                "no samples: nothing ran, or not long enough; sample longer, or at a higher --rate"
                    .to_owned(),
            );
        }
        match scope {
            SampledScope::User => self.warnings.push(
                "time in the kernel is not seen; for that: sudo sysctl kernel.perf_event_paranoid=1, or run with CAP_PERFMON".to_owned(),
            ),
            SampledScope::UserAndKernel if tally.kernel > 0 && !self.world.names_the_kernel() => {
                self.warnings.push(
                    "names of kernel functions are kept secret; for them: sudo sysctl kernel.kptr_restrict=0, or run as root".to_owned(),
                );
            }
            SampledScope::UserAndKernel => {}
        }
    }
}

fn target_name(target: &SampleTarget) -> String {
    let command = |command: &[OsString]| shown(command).join(" ");
    match target {
        SampleTarget::Pid(pid) => format!("process {pid} and what it started"),
        SampleTarget::User(user) => format!("the processes of user {user}"),
        SampleTarget::System => "the whole system".to_owned(),
        SampleTarget::Command(arguments) => command(arguments),
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
