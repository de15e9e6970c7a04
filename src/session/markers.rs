//! When the analysis begins and ends, as the program itself or a signal to darc says.
//!
//! DARC (SIGMETRICS 2008, section 3.7): the program tells by calls of two functions, which do nothing else, which
//! part of its run is of interest.

use std::sync::Arc;

use darc_record::{FnodeId, Op, SiteId, Ticks};
use darc_symbols::NameSpec;
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{Engine, NewTarget, Sink};
use darc_tracer::plan::{Mark, Marker, Plan};

use super::code::CodeCache;
use super::hooks::Hooks;
use super::investigation::Investigation;
use super::startup::Startup;
use super::{Ending, Libraries, Limits, SLICE, SessionError, check_program};

/// What the analysis waits for.
#[derive(Clone, PartialEq, Debug)]
pub enum Begin {
    /// The first call of this function, or the signal.
    At(NameSpec),
    /// The signal (SIGUSR1).
    OnSignal,
}

/// The probes of a marker: one for each file that has a copy of it.
///
/// # Errors
/// When its name fits nothing or several functions, or its code cannot be had.
fn planned(
    spec: &NameSpec,
    mark: Mark,
    investigation: &Investigation,
    code: &mut CodeCache,
    engine: &dyn Engine,
) -> Result<Vec<Marker>, SessionError> {
    let places = investigation.resolve_marker(spec)?;
    let markers = places.into_iter().map(|place| {
        let name = || investigation.naming().name(place);
        let scanned = investigation
            .modules
            .locate(place)
            .ok_or_else(|| "it is not loaded".to_owned())
            .and_then(|addr| code.scan(addr, &investigation.modules, engine))
            .map_err(|why| SessionError::Unsuitable(format!("{}: {why}", name())))?;
        if investigation.f0 == Some(place) && mark == Mark::End {
            return Err(SessionError::Unsuitable(format!(
                "{}: f0 cannot be what ends the analysis; name another function",
                name()
            )));
        }
        Ok(Marker {
            code: Arc::clone(&scanned.code),
            mark,
        })
    });
    markers.collect()
}

/// Adds to a plan what ends the analysis, where a function does.
///
/// # Errors
/// As [`planned`].
pub(super) fn add_end(
    plan: &mut Plan,
    investigation: &Investigation,
    code: &mut CodeCache,
    engine: &dyn Engine,
) -> Result<(), SessionError> {
    if let Some(spec) = &investigation.end_at {
        plan.markers
            .extend(planned(spec, Mark::End, investigation, code, engine)?);
    }
    Ok(())
}

/// Waits until the analysis is to begin. Nothing but the marker is instrumented; `waiting` is called when it is.
/// `Some` when something else ended the wait.
///
/// # Errors
/// When the marker or f0 is not there, or cannot be instrumented.
pub fn wait_for_begin(
    pid: i32,
    begin: &Begin,
    investigation: &mut Investigation,
    engine: &mut dyn Engine,
    libraries: Libraries,
    limits: Limits<'_>,
    waiting: impl FnOnce(),
) -> Result<Option<Ending>, SessionError> {
    let mut startup = Startup::of(libraries);
    let outcome = wait(
        pid,
        &mut startup,
        begin,
        investigation,
        engine,
        limits,
        waiting,
    );
    startup.judge(pid, outcome)
}

fn wait(
    pid: i32,
    startup: &mut Startup,
    begin: &Begin,
    investigation: &mut Investigation,
    engine: &mut dyn Engine,
    limits: Limits<'_>,
    waiting: impl FnOnce(),
) -> Result<Option<Ending>, SessionError> {
    let mut waiting = Some(waiting);
    let mut code = CodeCache::default();
    let mut look = |investigation: &mut Investigation,
                    engine: &mut dyn Engine,
                    startup: &mut Startup|
     -> Result<(), SessionError> {
        // The poll that follows says how it ended.
        if investigation.modules.refresh(pid).is_err() || investigation.modules.loaded().is_empty()
        {
            return Ok(());
        }
        check_program(&investigation.modules)?;
        code.clear();
        let hooks = Hooks::find(&investigation.modules);
        startup.looked(&hooks);
        let mut plan = hooks.plan();
        if startup.libraries() == Libraries::Loaded {
            // Who waits for long shall not learn at the end that there is no such function.
            investigation.find_f0()?;
            if let Begin::At(spec) = begin {
                plan.markers = planned(spec, Mark::Begin, investigation, &mut code, engine)?;
            }
        }
        apply(engine, &plan)
    };
    look(investigation, engine, startup)?;
    loop {
        if startup.libraries() == Libraries::Loaded
            && let Some(waiting) = waiting.take()
        {
            waiting();
        }
        startup.goes_on();
        if let Some(notice) = engine.poll(SLICE, &mut Nobody)? {
            let ending = Ending::of_target(notice);
            if ending.is_some() {
                return Ok(ending);
            }
            startup.noticed();
            look(investigation, engine, startup)?;
        }
        if engine.marked(Mark::Begin) > 0 || limits.interrupts.begin_asked() {
            return Ok(None);
        }
        if let Some(onlooker) = limits.onlooker {
            onlooker.look((&*investigation).into());
        }
        if let Some(ending) = limits.reached() {
            return Ok(Some(ending));
        }
    }
}

fn apply(engine: &mut dyn Engine, plan: &Plan) -> Result<(), SessionError> {
    let marks = |addr| {
        let mut markers = plan.markers.iter();
        markers.any(|marker| marker.code.entry() == addr)
    };
    match engine.apply(plan) {
        Ok(refused) => match refused.iter().find(|at| marks(at.addr.0)) {
            Some(refused) => Err(SessionError::Unsuitable(format!(
                "the function that begins the analysis cannot be instrumented: {}",
                refused.reason
            ))),
            None => Ok(()),
        },
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Nothing is measured yet.
struct Nobody;

impl Sink for Nobody {
    fn op(&mut self, _: Op) {}

    fn latency_only(&mut self, _: Ticks, _: u64, _: Ticks) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}
