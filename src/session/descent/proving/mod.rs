//! A cause put to the test: its calls are made longer in some spans of time and not in others.
//!
//! Nothing is decided any more: the paths from f0 to the calls are measured as in [`super::localise`], the engine delays the
//! calls, and the ops go to [`darc_analysis::proof`].

mod effect;
mod elsewhere;
mod seen;
mod sorting;
mod trial;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use darc_analysis::proof::{self, Gain, Histograms, Limits as Bounds, Refusal, Slope};
use darc_analysis::{Callee, Ticks};
use darc_process::modules::CodeRef;
use darc_process::{Ending, Libraries, Limits, ProcessError};
use darc_record::{FnodeId, SiteId};
use darc_tracer::plan::Asynchronous;
use darc_tracer::threads;

use super::bindings::Expansion;
use super::planning;
use crate::session::Session;
use trial::{Trial, untried};

/// What may be a cause of a peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The peak, numbered from 1.
    pub peak: u32,
    /// What may make its ops as long as they are.
    pub cause: Cause,
}

/// What is put to the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// This call, and those of the same function by the same caller.
    Call(FnodeId),
    /// The calls of a function on other threads.
    Elsewhere(CodeRef),
    /// The probes on the path to this call.
    Probes(FnodeId),
}

/// What came of a test.
#[derive(Clone, PartialEq, Debug)]
pub struct Proof {
    /// What was tested.
    pub suspect: Suspect,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a test.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// What delays did.
    Tried {
        /// What each call was delayed by.
        delay: Ticks,
        /// The part of a delay that reached the ops; `None` where too few ops came.
        slope: Option<Slope>,
        /// What would be gained without the cause, where it is proven.
        gain: Vec<Gain>,
        /// The latencies of the ops that were compared.
        histograms: Option<Histograms>,
        /// All delays together.
        added: Ticks,
        /// For how long it was tried.
        time: Ticks,
    },
    /// What probes did.
    Effect {
        /// By how much they make ops longer, as a part of `unit`.
        on_ops: Option<Slope>,
        /// By how much the latencies that are told are longer, after what probes cost was taken out.
        on_latencies: Option<Slope>,
        /// What both are parts of.
        unit: Ticks,
        /// For how long it was tried.
        time: Ticks,
    },
    /// No delay could have told.
    Refused(Refusal),
    /// Its calls cannot be delayed, for people.
    NotTestable(String),
}

/// The calls of a test.
#[derive(Clone)]
struct Calls {
    /// Those that are measured.
    needed: BTreeSet<FnodeId>,
    /// Those of the cause.
    cause: Vec<FnodeId>,
    /// They are on other threads.
    elsewhere: Option<Asynchronous>,
}

impl Session<'_> {
    /// Puts causes to the test, one after the other, and lets the process go, whatever happened. Each is told as soon as it
    /// is known.
    ///
    /// # Errors
    /// Why that could not begin or go on. The target has been restored all the same.
    pub fn prove(
        self,
        limits: Limits<'_>,
        suspects: &[Suspect],
        bounds: &Bounds,
        mut tell: impl FnMut(Proof),
    ) -> Result<Ending, ProcessError> {
        self.conduct(|session| {
            if session.process.refresh()? {
                session.look_at_libraries()?;
            }
            if !session.is_f0_loaded() || session.process.libraries() == Libraries::NotLoadedYet {
                return Err(ProcessError::Unsuitable(
                    "f0 is not loaded in this process".to_owned(),
                ));
            }
            let risk = proof::risk(suspects.len());
            let mut ended = None;
            for &suspect in suspects {
                let outcome = match ended {
                    Some(ending) => untried(ending),
                    None => {
                        let (outcome, ending) = session.test(suspect, limits, bounds, risk)?;
                        ended = ending;
                        outcome
                    }
                };
                tell(Proof { suspect, outcome });
            }
            Ok(ended.unwrap_or(Ending::Finished))
        })
    }

    /// Tests one. `Some` ending when something ended the session meanwhile.
    fn test(
        &mut self,
        suspect: Suspect,
        limits: Limits<'_>,
        bounds: &Bounds,
        risk: f64,
    ) -> Result<(Outcome, Option<Ending>), ProcessError> {
        let delays = !matches!(suspect.cause, Cause::Probes(_));
        if let Some(why) = self.may_not_delay().filter(|_| delays) {
            return Ok((Outcome::NotTestable(why), None));
        }
        let calls = match suspect.cause {
            Cause::Call(fnode) | Cause::Probes(fnode) => self.measure_path_to(fnode)?,
            Cause::Elsewhere(function) => self.measure_elsewhere(function)?,
        };
        let calls = match calls {
            Ok(calls) => calls,
            Err(why) => return Ok((Outcome::NotTestable(why), None)),
        };
        let Some(latencies) = self.latencies_of(suspect.peak) else {
            let why = "there is no such peak".to_owned();
            return Ok((Outcome::NotTestable(why), None));
        };
        let mut test = Trial::new(self, calls, latencies, bounds.clock);
        if let Cause::Probes(_) = suspect.cause {
            return test.probes(limits, bounds, risk);
        }
        let outcome = test.run(limits, bounds, risk);
        // Also after a failure: the stubs look at the clock, but nobody need wait for it.
        test.end_delays()?;
        outcome
    }

    /// Why no call is delayed, if there is a reason: a thread that is delayed makes system calls that are not its own.
    fn may_not_delay(&self) -> Option<String> {
        let threads = threads::list(self.process.pid()).unwrap_or_default();
        let filtered = threads.into_iter().find(|&tid| threads::is_filtered(tid))?;
        Some(format!(
            "thread {filtered} runs under a seccomp filter, which might kill the program for the system calls that delays make"
        ))
    }

    /// Has the calls of a function measured for their own sake. Why they cannot be, where that is so.
    fn measure_elsewhere(
        &mut self,
        function: CodeRef,
    ) -> Result<Result<Calls, String>, ProcessError> {
        if self.investigation.f0 == Some(function) {
            return Ok(Err("it is f0 itself".to_owned()));
        }
        let elsewhere = match elsewhere::measured(function, &self.process) {
            Ok(elsewhere) => elsewhere,
            Err(why) => return Ok(Err(why)),
        };
        let calls = Calls {
            needed: BTreeSet::new(),
            cause: vec![elsewhere::ROOT],
            elsewhere: Some(elsewhere),
        };
        self.process.engine_mut().set_filter(&[]);
        match self.instrument_calls(&calls) {
            Ok(_) => Ok(Ok(calls)),
            Err(ProcessError::Unsuitable(why)) => Ok(Err(why)),
            Err(error) => Err(error),
        }
    }

    /// Brings the target's probes to these calls and f0.
    fn instrument_calls(&mut self, calls: &Calls) -> Result<BTreeSet<SiteId>, ProcessError> {
        let mut plan = self.plan_of(calls.needed.iter().copied());
        plan.asynchronous.clone_from(&calls.elsewhere);
        planning::apply(&plan, &mut self.process, self.investigation, self.catalog)
    }

    /// Has the calls on the path from f0 to an fnode measured. The calls of the same function at the same level are one
    /// cause. Why they cannot be measured, where that is so.
    fn measure_path_to(&mut self, fnode: FnodeId) -> Result<Result<Calls, String>, ProcessError> {
        let ftree = self.investigation.analysis.ftree();
        let path = ftree.path(fnode);
        let Some(parent) = ftree.fnode(fnode).parent else {
            return Ok(Err(
                "f0 itself takes the time: there is no call in it that could be made longer"
                    .to_owned(),
            ));
        };
        let callee = ftree.fnode(fnode).callee;
        if let Callee::Absence(_) = callee {
            return Ok(Err("it is no call, so it cannot be made longer".to_owned()));
        }
        if let Callee::Unknown | Callee::Syscall(None) = callee {
            return Ok(Err("which function it is was not seen".to_owned()));
        }
        for &at in &path[..path.len() - 1] {
            match self.investigation.expand(at, &self.process, self.catalog) {
                Ok(Expansion::Done) => {}
                Ok(Expansion::AfterFirstCall) => {
                    return Ok(Err(
                        "which function it is will be known after its first call; begin again then"
                            .to_owned(),
                    ));
                }
                Err(why) => return Ok(Err(why)),
            }
        }
        let ftree = self.investigation.analysis.ftree();
        let alike = ftree.fnode(parent).children.iter().copied();
        let mut cause: Vec<FnodeId> = alike
            .filter(|&at| ftree.fnode(at).callee == callee)
            .collect();
        let needed: BTreeSet<FnodeId> = path[1..].iter().chain(&cause).copied().collect();
        // Percentiles are of the ops of all peaks.
        self.process.engine_mut().set_filter(&[]);
        let refused = self.instrument_only(needed.iter().copied())?;
        let ftree = self.investigation.analysis.ftree();
        let can_carry = |at: FnodeId| {
            let site = ftree.fnode(at).site;
            site.is_some_and(|site| !refused.contains(&site))
        };
        cause.retain(|&at| can_carry(at));
        Ok(match path[1..].iter().all(|&at| can_carry(at)) {
            false => Err("a call on the path to it can carry no probe".to_owned()),
            true => Ok(Calls {
                needed,
                cause,
                elsewhere: None,
            }),
        })
    }

    fn latencies_of(&self, peak: u32) -> Option<RangeInclusive<Ticks>> {
        let analysis = &self.investigation.analysis;
        let peaks = analysis.peaks();
        let peak = peaks.iter().find(|at| at.number == peak)?;
        let resolution = analysis.params().resolution;
        let first = resolution.bounds(peak.first_bucket)?.0;
        Some(first..=resolution.bounds(peak.last_bucket)?.1)
    }
}
