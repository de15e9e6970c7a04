//! Sampling in the ops of one peak of f0: the probes of an analysis that never descends tell when ops were, the
//! kernel where the program was.

use std::cell::RefCell;
use std::ffi::OsString;
use std::sync::mpsc::{self, Receiver};

use darc_analysis::{Params, Peak, PeakChoice, Ticks, find_peaks};
use darc_process::claim::Claim;
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_process::{self, Ending, Interrupts as _, Level, Libraries, Limits, Process};
use darc_record::Op;
use darc_symbols::NameSpec;
use darc_tracer::engine::jump::{self, Jump};
use darc_tracer::launch;
use darc_tracer::perf::clock::Clock;
use darc_tracer::plan::Mark;
use nix::sys::signal::SigSet;

use super::Sampler;
use crate::command::shared::started;
use crate::command::shared::target::checked;
use crate::command::shared::target::{claim, tracing_failed};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{DuringPeak, Preemption, SampleOptions, SampleTarget, Verbosity};
use crate::output::Output;
use crate::sampling::during::{DuringOps, Window};
use crate::sampling::profile::During;
use crate::session::Session;
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::Investigation;
use crate::session::onlooker::{Onlooker, Seen};
use crate::terminal::live::{Progress, Screen};
use crate::terminal::warning;

/// A sampling with an f0.
pub(super) struct Conduct<'a> {
    sampler: Sampler,
    options: &'a SampleOptions,
    during: &'a DuringPeak,
    mask: &'a SigSet,
    modules: Modules,
    catalog: Catalog,
    investigation: Investigation,
    calibration: jump::Calibration,
    ops: Receiver<Op>,
    since: Moment,
}

/// Brings samples and ops together while the session runs.
struct Listener<'a> {
    sampler: &'a mut Sampler,
    ops: &'a Receiver<Op>,
    clock: Clock,
}

struct Listening<'a>(RefCell<Listener<'a>>);

impl std::fmt::Debug for Listening<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listening")
    }
}

impl Onlooker for Listening<'_> {
    fn look(&self, seen: Seen<'_>) {
        let investigation = seen.investigation;
        let listener = &mut *self.0.borrow_mut();
        listener.clock.tick();
        listener.sampler.read();
        let complete = listener.sampler.collector.complete();
        listener.settle(investigation, complete);
    }
}

impl Listener<'_> {
    fn settle(&mut self, investigation: &Investigation, complete: u64) {
        let analysis = &investigation.analysis;
        let Some(during) = &mut self.sampler.recording.during else {
            return;
        };
        for op in self.ops.try_iter() {
            let latency = analysis.noise().resolved(op.latency);
            during.op(Window {
                tid: op.tid,
                start: op.start,
                end: op.end,
                bucket: analysis.params().resolution.bucket(latency),
            });
        }
        during.settle(&self.clock, complete);
    }
}

impl<'a> Conduct<'a> {
    /// Prepares everything that needs no target.
    ///
    /// # Errors
    /// When the name makes no sense, or probes cannot be calibrated.
    pub(super) fn new(
        mut sampler: Sampler,
        during: &'a DuringPeak,
        options: &'a SampleOptions,
        mask: &'a SigSet,
    ) -> Result<Conduct<'a>, Failure> {
        let spec = NameSpec::parse(&during.f0).class(FailureKind::Usage)?;
        let (to, ops) = mpsc::channel();
        let params = Params {
            // Nothing is descended into.
            peak: PeakChoice::Nothing,
            ..Params::default()
        };
        sampler.recording.during = Some(DuringOps::default());
        Ok(Conduct {
            sampler,
            options,
            during,
            mask,
            modules: Modules::default(),
            catalog: Catalog::default(),
            investigation: Investigation {
                preemption: Preemption::Counted,
                ops_to: Some(to),
                ..Investigation::new(spec, params)
            },
            calibration: jump::calibrate(None).class(FailureKind::Target)?,
            ops,
            since: Moment::now(),
        })
    }

    /// Samples, and shows where the time of the peak's ops went. A program that was started is waited for.
    ///
    /// # Errors
    /// When the target cannot be sampled or measured, or has no such peak.
    pub(super) fn conduct(mut self, output: Option<Output>) -> Result<ExitStatus, Failure> {
        let (started, clock_error) = match &self.options.target {
            SampleTarget::Command(command) => {
                let (pid, clock_error) = self.launch(command)?;
                (Some(pid), clock_error)
            }
            SampleTarget::Pid(pid) => (None, self.attach(*pid)),
            // The command line does not allow them.
            SampleTarget::User(_) | SampleTarget::System => {
                return Err(Failure::usage(
                    "sample: --during-peak needs one process; give -p PID, or a program after --",
                ));
            }
        };
        let shown = clock_error.and_then(|error| self.show(error, output));
        match (shown, started) {
            (Err(failure), Some(pid)) => {
                started::ends_despite(failure, pid, &self.sampler.interrupts)
            }
            (Err(failure), None) => Err(failure),
            (Ok(shown), _) => match (shown, self.sampler.exit_status(started)) {
                (ExitStatus::NoOps, ExitStatus::Done) => Ok(ExitStatus::NoOps),
                (_, ended) => Ok(ended),
            },
        }
    }

    /// Starts the program and measures it: its pid, and by how much the clocks may differ.
    fn launch(&mut self, command: &[OsString]) -> Result<(i32, Result<Ticks, Failure>), Failure> {
        let thread =
            launch::launch(command, self.mask, jump::OPTIONS).class(FailureKind::Target)?;
        let pid = thread.tid();
        let prepared = claim(pid).and_then(|claim| {
            let watched = self.sampler.collector.add_thread(pid);
            watched.class(FailureKind::Target).map(|_| claim)
        });
        let _claim = prepared.inspect_err(|_| darc_process::end(pid))?;
        self.sampler.know(pid);
        let is_wanted = || self.sampler.interrupts.level() == Level::GoOn;
        let clock_error = match Jump::launched(thread, false, &is_wanted) {
            Ok(engine) => self.measure(pid, engine, Libraries::NotLoadedYet),
            Err(error) => Err(started::not_taken_over(pid, error)),
        };
        Ok((pid, clock_error))
    }

    /// Measures a process that runs; by how much the clocks may differ.
    fn attach(&mut self, pid: i32) -> Result<Ticks, Failure> {
        let warnings = &mut self.sampler.warnings;
        let pid = checked(pid, |note| warnings.push(note.to_string()))?;
        let _claim: Claim = claim(pid)?;
        self.sampler.add_only(pid)?;
        let engine = Jump::attach(pid).map_err(|error| tracing_failed(&error, pid))?;
        self.measure(pid, engine, Libraries::Loaded)
    }

    /// Shows what was found.
    fn show(&mut self, clock_error: Ticks, output: Option<Output>) -> Result<ExitStatus, Failure> {
        let warnings = self.modules.take_warnings();
        self.investigation.warnings.extend(warnings);
        self.sampler
            .warnings
            .append(&mut self.investigation.warnings);
        if self.investigation.analysis.profile().count() == 0 {
            for warning in &self.sampler.warnings {
                warning::print(warning);
            }
            warning::print(
                "no call of f0 completed while darc was watching: there are no samples to show",
            );
            return Ok(ExitStatus::NoOps);
        }
        let during = self.choose(clock_error)?;
        self.sampler.publish(self.options, Some(during), output)?;
        Ok(ExitStatus::Done)
    }

    /// Measures until something ends it; by how much the clocks may differ.
    fn measure(
        &mut self,
        pid: i32,
        mut engine: Jump,
        libraries: Libraries,
    ) -> Result<Ticks, Failure> {
        engine.set_cost(&self.calibration);
        engine.record_all();
        let interrupts = self.sampler.interrupts.clone();
        let clock = Clock::calibrate();
        self.sampler.begin(self.options.duration);
        let deadline = self.sampler.deadline;
        let listening = Listening(RefCell::new(Listener {
            sampler: &mut self.sampler,
            ops: &self.ops,
            clock,
        }));
        let limits = Limits {
            given: None,
            deadline,
            interrupts: &*interrupts,
            until: Some(Mark::End),
        };
        let mut progress = Progress::new(Verbosity::Quiet, Screen::SharedWithTarget);
        let session = Session::new(
            Process::new(pid, &mut self.modules, Box::new(engine), libraries),
            &mut self.catalog,
            &mut self.investigation,
            &mut progress,
        );
        let ending = session.seen_by(Some(&listening)).run(limits);
        let mut listener = listening.0.into_inner();
        listener.clock.tick();
        listener.sampler.read_rest();
        listener.settle(&self.investigation, u64::MAX);
        let error = listener.clock.error();
        match ending? {
            Ending::Running => Err(Failure::message(
                FailureKind::Target,
                format!(
                    "{}: was called before and does not return, so it has no ops; name a function that it calls",
                    self.during.f0
                ),
            )),
            _ => Ok(error),
        }
    }

    /// Keeps the samples of the peak.
    fn choose(&mut self, clock_error: Ticks) -> Result<During, Failure> {
        let hz = self.since.rate();
        let profile = self.investigation.analysis.profile();
        let peaks = find_peaks(profile);
        let range = |peak: &Peak| {
            let bounds = |bucket| profile.resolution().bounds(bucket);
            let from = bounds(peak.first_bucket).map_or(Ticks(0), |(from, _)| from);
            let to = bounds(peak.last_bucket).map_or(Ticks(u64::MAX), |(_, to)| to);
            (hz.nanos(from), hz.nanos(to))
        };
        let recording = &mut self.sampler.recording;
        let ops = recording.during.take().unwrap_or_default();
        let Some(peak) = peaks.iter().find(|peak| peak.number == self.during.peak) else {
            let there = peaks.iter().map(|peak| {
                let (from, to) = range(peak);
                let samples = ops.tally(|bucket| peak.contains(bucket)).samples;
                format!("{}: {from} to {to}, {samples} samples", peak.number)
            });
            let there: Vec<String> = there.collect();
            return Err(Failure::message(
                FailureKind::Name,
                format!(
                    "peak {} of {}: not among its peaks ({}); choose one of them",
                    self.during.peak,
                    self.during.f0,
                    there.join("; ")
                ),
            ));
        };
        let all = ops.tally(|_| true);
        let tally = ops.tally(|bucket| peak.contains(bucket));
        let (from, to) = range(peak);
        let during = During {
            f0: self.during.f0.clone(),
            peak: peak.number,
            peaks: peaks.len(),
            from_ns: from.0,
            to_ns: to.0,
            ops: peak.content.ops,
            all_ops: profile.count(),
            ops_unseen: profile.count().saturating_sub(ops.ops()),
            in_other_ops: all.samples - tally.samples,
            outside: ops.outside(),
            clock_error_ns: hz.nanos(clock_error).0,
            at_edges: tally.at_edges,
        };
        recording.keep(&ops, |bucket| peak.contains(bucket));
        Ok(during)
    }
}
