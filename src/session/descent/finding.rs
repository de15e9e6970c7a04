//! Finding f0 among what is loaded, whenever libraries come or go.

use darc_process::modules::{CodeRef, Module};
use darc_process::{Changes, Libraries, ProcessError, entry_points, return_address};
use darc_symbols::{LookupError, NameSpec};
use darc_tracer::engine::EngineKind;
use darc_tracer::plan::Ends;

use crate::options::Preemption;
use crate::session::Session;
use crate::session::descent::goroutines::{NOT_TOLD, STATUSES};
use crate::session::descent::timeline::Timeline;
use crate::session::survey::suspicion::Suspicion;

impl Session<'_> {
    pub(super) fn is_f0_loaded(&self) -> bool {
        let f0 = self.investigation.f0;
        f0.is_some_and(|f0| self.process.modules().locate(f0).is_some())
    }

    /// Code came or went: finds f0 among what is loaded now.
    pub(super) fn look_at_libraries(&mut self) -> Result<(), ProcessError> {
        // Calls of f0 that were seen before this met no probes of what is loaded now.
        self.suspicion = Suspicion::default();
        self.investigation.ahead.forget();
        match self.investigation.find_f0(self.process.modules()) {
            Ok(_) => {
                self.follow();
                self.check_f0()?;
                self.find_serving()?;
            }
            Err(_) if self.process.libraries() == Libraries::NotLoadedYet => {}
            Err(error) if self.may_come_later(&error) => {}
            // The poll that follows says how.
            Err(_) if self.process.is_ending() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.instrument()
    }

    /// Begins to follow the process, once f0 was found: what the kernel tells before that nobody reads.
    fn follow(&mut self) {
        if std::mem::replace(&mut self.is_followed, true) {
            return;
        }
        let (process, investigation) = (&self.process, &mut *self.investigation);
        self.timeline = match (process.engine().kind(), investigation.preemption) {
            _ if process.tells_of_goroutines() => {
                Timeline::of_goroutines(process.pid(), investigation, self.catalog)
            }
            _ if process.follows_goroutines() => {
                investigation.warn(format!("{NOT_TOLD}: {STATUSES} was not found"));
                Timeline::Unused
            }
            (_, Preemption::Counted) => Timeline::Unused,
            (EngineKind::Int3, Preemption::Apart) => {
                investigation.warn(
                    "preemption, interrupts and who ended waits are not told: to the kernel, threads that breakpoints stop look as if they waited; leave out --engine int3"
                        .to_owned(),
                );
                Timeline::Unused
            }
            (EngineKind::Jump, Preemption::Apart) => Timeline::follow(process.pid(), investigation),
        };
        if let Some(serving) = &mut self.serving {
            let analysis = &mut serving.investigation.analysis;
            self.timeline.is_followed_by(analysis);
        }
    }

    /// A library that was named and is not there may be loaded later.
    fn may_come_later(&mut self, error: &LookupError) -> bool {
        let waiting = matches!(error, LookupError::NoSuchModule { .. })
            && matches!(
                self.investigation.spec,
                NameSpec::Name {
                    module: Some(_),
                    ..
                }
            )
            && self.process.changes() != Changes::None;
        if waiting && self.process.changes() == Changes::LastAtFirst {
            self.investigation
                .warnings
                .push(format!("{error}; waiting for it to be loaded"));
        }
        waiting
    }

    /// Refuses functions that cannot be read, or not be instrumented by this engine.
    fn check_f0(&mut self) -> Result<(), ProcessError> {
        let Some(f0) = self.investigation.f0 else {
            return Ok(());
        };
        let modules = self.process.modules();
        let Some(addr) = modules.locate(f0) else {
            return self.explain_missing(f0);
        };
        self.check_builds()?;
        if self.process.is_c_of_go(addr) {
            let reason = "f0 cannot be measured: it is C code, and in Go programs functions of Go's are measured; take one that calls it";
            return Err(ProcessError::Unsuitable(reason.to_owned()));
        }
        let scanned = self.process.scan(addr).map_err(|reason| {
            ProcessError::Unsuitable(format!("f0 cannot be instrumented: {reason}"))
        })?;
        entry_points::takes_a_probe(modules, f0).map_err(|reason| {
            ProcessError::Unsuitable(format!("f0 cannot be measured: {reason}"))
        })?;
        if let Some(used) = return_address::is_used(modules, f0) {
            return Err(ProcessError::Unsuitable(format!(
                "f0 cannot be measured: {}; take a function that calls it",
                used.why
            )));
        }
        let ends = match self.process.engine().kind() {
            EngineKind::Int3 => Ok(Ends::default()),
            EngineKind::Jump => entry_points::ends_of_f0(modules, f0),
        };
        self.f0_ends = ends.map_err(|reason| {
            ProcessError::Unsuitable(format!(
                "f0 cannot be instrumented by a jump: {reason}; --engine int3 can"
            ))
        })?;
        self.decide_ops(f0, &scanned)
    }

    /// Refuses to go on in a process that has other builds of the files with the stored calls, which are elsewhere there.
    fn check_builds(&self) -> Result<(), ProcessError> {
        let modules = self.process.modules();
        let loaded = modules.loaded();
        let missing = self.investigation.stored_in.iter();
        let missing = missing.filter(|stored| !loaded.contains(stored));
        for wanted in missing.map(|&stored| modules.get(stored)) {
            let mut there = loaded.iter().map(|&id| modules.get(id));
            if let Some(other) = there.find(|module| module.path == wanted.path) {
                return Err(other_build(wanted, other));
            }
        }
        Ok(())
    }

    /// f0 is known from an earlier run, but its file is not loaded (yet).
    fn explain_missing(&mut self, f0: CodeRef) -> Result<(), ProcessError> {
        let modules = self.process.modules();
        let wanted = modules.get(f0.module);
        let same_file = |path: &str| path.rsplit('/').next() == wanted.path.rsplit('/').next();
        let loaded = modules.loaded();
        let program = loaded
            .first()
            .filter(|_| self.investigation.program == Some(f0.module));
        let other = loaded
            .iter()
            .find(|&&id| same_file(&modules.get(id).path))
            .or(program);
        if let Some(&other) = other {
            return Err(other_build(wanted, modules.get(other)));
        }
        match self.process.libraries() {
            Libraries::NotLoadedYet => Ok(()),
            Libraries::Loaded if self.process.changes() == Changes::Later => Ok(()),
            Libraries::Loaded => {
                let warning = format!("{} is not loaded; waiting for it", wanted.path);
                if !self.investigation.warnings.contains(&warning) {
                    self.investigation.warnings.push(warning);
                }
                Ok(())
            }
        }
    }
}

fn other_build(wanted: &Module, other: &Module) -> ProcessError {
    let build = |id: &Option<String>| id.clone().unwrap_or_else(|| "without build-id".to_owned());
    ProcessError::OtherBuild(format!(
        "the stored analysis is of {} ({}), the target has {} ({}); run the same build, or start a new analysis with darc run or attach",
        wanted.path,
        build(&wanted.build_id),
        other.path,
        build(&other.build_id)
    ))
}
