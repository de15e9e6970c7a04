//! When the analysis begins and ends, as the program itself or a signal to darc says.
//!
//! DARC (SIGMETRICS 2008, section 3.7): the program tells by calls of two functions, which do nothing else, which
//! part of its run is of interest.

use std::sync::Arc;

use darc_process::modules::{CodeRef, Modules};
use darc_process::{Ending, Event, Libraries, Limits, Process, ProcessError, guarded, lookup};
use darc_symbols::NameSpec;
use darc_tracer::engine::Discard;
use darc_tracer::plan::{Mark, Marker, Plan};

use crate::session::SLICE;
use crate::session::descent::investigation::Investigation;

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
    f0: Option<CodeRef>,
    process: &Process<'_>,
) -> Result<Vec<Marker>, ProcessError> {
    let modules = process.modules();
    let places = lookup::resolve_marker(modules, spec)?;
    let markers = places.into_iter().map(|place| {
        let name = || modules.name(place);
        let scanned = modules
            .locate(place)
            .ok_or_else(|| "it is not loaded".to_owned())
            .and_then(|addr| process.scan(addr))
            .map_err(|why| ProcessError::Unsuitable(format!("{}: {why}", name())))?;
        if f0 == Some(place) && mark == Mark::End {
            return Err(ProcessError::Unsuitable(format!(
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
    process: &Process<'_>,
) -> Result<(), ProcessError> {
    if let Some(spec) = &investigation.end_at {
        let markers = planned(spec, Mark::End, investigation.f0, process)?;
        plan.markers.extend(markers);
    }
    Ok(())
}

/// Waits until the analysis is to begin. Nothing but the marker is instrumented; `waiting` is called when it is, and
/// `looks` whenever somebody may want to look. `Some` when something else ended the wait.
///
/// # Errors
/// When the marker or f0 is not there, or cannot be instrumented.
pub fn wait_for_begin(
    process: &mut Process<'_>,
    begin: &Begin,
    investigation: &mut Investigation,
    limits: Limits<'_>,
    waiting: impl FnOnce(),
    looks: impl Fn(&Modules, &Investigation),
) -> Result<Option<Ending>, ProcessError> {
    let outcome = guarded(|| wait(process, begin, investigation, limits, waiting, looks));
    process.finish(outcome)
}

fn wait(
    process: &mut Process<'_>,
    begin: &Begin,
    investigation: &mut Investigation,
    limits: Limits<'_>,
    waiting: impl FnOnce(),
    looks: impl Fn(&Modules, &Investigation),
) -> Result<Option<Ending>, ProcessError> {
    let mut waiting = Some(waiting);
    if process.refresh()? {
        instrument(process, begin, investigation)?;
    }
    loop {
        if process.libraries() == Libraries::Loaded
            && let Some(waiting) = waiting.take()
        {
            waiting();
        }
        match process.poll(limits, |engine, _| engine.poll(SLICE, &mut Discard))? {
            Event::Ended(Ending::Marked) => return Ok(None),
            Event::Ended(ending) => return Ok(Some(ending)),
            Event::CodeChanged => instrument(process, begin, investigation)?,
            Event::Nothing => {}
        }
        looks(process.modules(), investigation);
    }
}

fn instrument(
    process: &mut Process<'_>,
    begin: &Begin,
    investigation: &mut Investigation,
) -> Result<(), ProcessError> {
    let mut plan = process.hooks();
    if process.libraries() == Libraries::Loaded {
        // Who waits for long shall not learn at the end that there is no such function.
        let f0 = investigation.find_f0(process.modules())?;
        if let Begin::At(spec) = begin {
            plan.markers = planned(spec, Mark::Begin, Some(f0), process)?;
        }
    }
    let refused = process.apply(&plan)?;
    let mut markers = plan.markers.iter().map(|marker| marker.code.entry());
    match refused
        .iter()
        .find(|at| markers.any(|entry| entry == at.addr.0))
    {
        Some(refused) => Err(ProcessError::Unsuitable(format!(
            "the function that begins the analysis cannot be instrumented: {}",
            refused.reason
        ))),
        None => Ok(()),
    }
}
