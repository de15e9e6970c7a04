//! Whether f0's latencies are still distributed as they were stored: asked before a resumed analysis goes on.
//!
//! DARC (SIGMETRICS 2008, section 3.7); the distance is that of OSprof (OSDI 2006, section 3.2).

use darc_analysis::profile::compare::{Comparison, EMD_THRESHOLD};
use darc_analysis::{Params, PeakChoice};
use darc_process::{Ending, Libraries, Limits, Process};
use darc_report::assemble;
use darc_tracer::engine::Engine;
use darc_tracer::plan::Mark;

use crate::command::analysis::{Conduct, onlooker};
use crate::exit::{Classify, Failure, FailureKind};
use crate::options::{Preemption, ProfileCheck};
use crate::session::Session;
use crate::session::descent::investigation::Investigation;

/// With so many ops a distribution is known well enough, however many were stored.
const ENOUGH: u64 = 1_000;

impl Conduct {
    /// Collects a fresh profile and compares it with the stored one. `Some` when the analysis must not go on,
    /// or something else ended it.
    ///
    /// # Errors
    /// When f0 cannot be measured.
    pub(super) fn check_profile(
        &mut self,
        pid: i32,
        engine: Box<dyn Engine>,
        libraries: Libraries,
        check: ProfileCheck,
    ) -> Result<Option<Ending>, Failure> {
        let stored = self.investigation.analysis.profile().clone();
        let params = *self.investigation.analysis.params();
        let enough = stored
            .count()
            .clamp(params.start_ops, ENOUGH.max(params.start_ops));
        let mut fresh = Investigation {
            f0: self.investigation.f0,
            program: self.investigation.program,
            // It is about latencies only.
            preemption: Preemption::Counted,
            ..Investigation::new(
                self.investigation.spec.clone(),
                Params {
                    // Nothing is descended into.
                    peak: PeakChoice::Nothing,
                    ..params
                },
            )
        };
        let limits = Limits {
            given: Some(&self.given),
            deadline: None,
            interrupts: &self.interrupts,
            until: Some(Mark::End),
        };
        let process = Process::new(pid, &mut self.modules, engine, libraries);
        let outcome = Session::new(process, &mut self.catalog, &mut fresh, &mut self.progress)
            .with_enough(enough)
            .seen_by(onlooker(self.standing.as_ref()))
            .run(limits);
        let counters = std::mem::take(&mut fresh.counters);
        self.investigation.add_counters(counters);
        for warning in std::mem::take(&mut fresh.warnings) {
            self.investigation.warn(warning);
        }
        let ending = outcome.map_err(Failure::from)?;
        let profile = fresh.analysis.profile();
        if profile.count() < params.start_ops.min(stored.count()) {
            let ops = profile.count();
            self.warn(format!(
                "the profile could not be checked: {ops} ops are too few to compare"
            ));
            return Ok((ending != Ending::Finished).then_some(ending));
        }
        let comparison = Comparison::of(&stored, profile).class(FailureKind::File)?;
        // Of few new ops beside many stored ones the rest tells little.
        if comparison.emd >= EMD_THRESHOLD {
            let words = assemble::comparison(&comparison);
            let moved = match words.peaks.is_empty() {
                true => String::new(),
                false => format!(": {}", words.peaks.join(", ")),
            };
            self.warn(format!(
                "f0's latencies are no longer distributed as stored (Earth Mover's Distance {:.3}){moved}",
                comparison.emd
            ));
            if check == ProfileCheck::Strict {
                return Ok(Some(Ending::Changed));
            }
        }
        Ok((ending != Ending::Finished).then_some(ending))
    }
}
