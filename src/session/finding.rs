//! Finding f0 among what is loaded, whenever libraries come or go.

use darc_symbols::{LookupError, NameSpec};
use darc_tracer::engine::EngineKind;
use darc_tracer::plan::Ends;
use darc_tracer::threads::SignalMasks;
use nix::sys::signal::Signal;

use super::hooks::Hooks;
use super::modules::{CodeRef, Modules};
use super::startup::Changes;
use super::suspicion::Suspicion;
use super::{Libraries, Session, SessionError, entrances, return_address};

impl Session<'_> {
    pub(super) fn is_f0_loaded(&self) -> bool {
        self.investigation
            .f0
            .is_some_and(|f0| self.investigation.modules.locate(f0).is_some())
    }

    /// Code came or went: finds f0 and the hooks among what is loaded now.
    pub(super) fn look_at_libraries(&mut self) -> Result<(), SessionError> {
        let new = match self.investigation.modules.refresh(self.pid) {
            Ok(new) => new,
            // The poll that follows says how the target ended.
            Err(_) => return Ok(()),
        };
        if self.investigation.modules.loaded().is_empty() {
            // It is just ending: there is no memory left.
            return Ok(());
        }
        if new || self.hooks == Hooks::default() {
            self.hooks = Hooks::find(&self.investigation.modules);
        }
        self.code.clear();
        // Calls of f0 that were seen before this met no probes of what is loaded now.
        self.suspicion = Suspicion::default();
        self.startup.looked(&self.hooks);
        match self.investigation.find_f0() {
            Ok(_) => {
                self.check_f0()?;
                self.find_serving()?;
            }
            Err(_) if self.startup.libraries() == Libraries::NotLoadedYet => {}
            Err(error) if self.may_come_later(&error) => {}
            // The poll that follows says how.
            Err(_) if is_ending(self.pid) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.instrument()
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
            && self.startup.changes() != Changes::None;
        if waiting && self.startup.changes() == Changes::LastAtFirst {
            self.investigation
                .warnings
                .push(format!("{error}; waiting for it to be loaded"));
        }
        waiting
    }

    /// Refuses programs in which no probe may be put, and functions that cannot be read.
    fn check_f0(&mut self) -> Result<(), SessionError> {
        check_program(&self.investigation.modules)?;
        let Some(f0) = self.investigation.f0 else {
            return Ok(());
        };
        let Some(addr) = self.investigation.modules.locate(f0) else {
            return self.explain_missing(f0);
        };
        self.code
            .scan(addr, &self.investigation.modules, self.engine.as_ref())
            .map(drop)
            .map_err(|reason| {
                SessionError::Unsuitable(format!("f0 cannot be instrumented: {reason}"))
            })?;
        if let Some(reason) = return_address::is_used(&self.investigation.modules, f0) {
            return Err(SessionError::Unsuitable(format!(
                "f0 cannot be measured: {reason}; take a function that calls it"
            )));
        }
        let ends = match self.engine.kind() {
            EngineKind::Int3 => Ok(Ends::default()),
            EngineKind::Jump => entrances::ends_of_f0(&self.investigation.modules, f0),
        };
        self.f0_ends = ends.map_err(|reason| {
            SessionError::Unsuitable(format!(
                "f0 cannot be instrumented by a jump: {reason}; --engine int3 can"
            ))
        })?;
        Ok(())
    }

    /// f0 is known from an earlier run, but its file is not loaded (yet).
    fn explain_missing(&mut self, f0: CodeRef) -> Result<(), SessionError> {
        let modules = &self.investigation.modules;
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
            let build =
                |id: &Option<String>| id.clone().unwrap_or_else(|| "without build-id".to_owned());
            let other = modules.get(other);
            return Err(SessionError::OtherBuild(format!(
                "the stored analysis is of {} ({}), the target has {} ({}); run the same build, or start a new analysis with darc run or attach",
                wanted.path,
                build(&wanted.build_id),
                other.path,
                build(&other.build_id)
            )));
        }
        match self.startup.libraries() {
            Libraries::NotLoadedYet => Ok(()),
            Libraries::Loaded if self.startup.changes() == Changes::Later => Ok(()),
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

/// Refuses programs in which no probe may be put.
pub(super) fn check_program(modules: &Modules) -> Result<(), SessionError> {
    let program = modules.loaded().first().copied();
    let image = program.and_then(|id| modules.get(id).image.as_ref());
    match image.is_some_and(darc_symbols::Image::is_go) {
        true => Err(SessionError::Unsuitable(
            "the target is a Go program: its run-time moves stacks and checks return addresses, which probes would break"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// Whether a process has lost its memory, or is about to: its files can no longer be read then.
fn is_ending(pid: i32) -> bool {
    let mapped = darc_tracer::maps::read(pid).is_ok_and(|mappings| !mappings.is_empty());
    let killed = SignalMasks::of(pid).is_none_or(|masks| masks.is_pending(Signal::SIGKILL as i32));
    !mapped || killed
}
