//! Measures what the stubs cost, in a child process that does nothing but call.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::{FunctionCode, NoMemory, call_sites};

use crate::addr::TargetAddr;
use crate::engine::calibration::{Program, all_accepted, no_progress, quantile};
use crate::engine::{Counted, Engine, NewTarget, ProbeCost, Sink};
use crate::error::Result;
use crate::plan::{Edge, Goroutines, Plan, PlannedFunction};
use darc_record::{FnodeId, Op, SiteId, Ticks, Tsc};

use super::installed::Costs;
use super::{Jump, Sampling};

/// What [`calibrate`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calibration {
    /// Whether probes follow goroutines, and which.
    pub(super) goroutines: Option<Goroutines>,
    pub(super) costs: Costs,
    pub(super) cost: ProbeCost,
}

impl Calibration {
    /// The probe's cost as shown to people.
    #[must_use]
    pub fn cost(&self) -> ProbeCost {
        self.cost
    }
}

/// Calls of the empty callee in each op.
const CALLS: u64 = 16;
/// Ops to look at.
const OPS: usize = 1000;
/// When to be content with fewer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Latencies of f0, and mean latencies of its callees, since a moment.
struct Measured {
    since: Tsc,
    ops: Vec<Ticks>,
    calls: Vec<Ticks>,
}

impl Sink for Measured {
    fn op(&mut self, op: Op) {
        if op.start < self.since {
            return;
        }
        self.ops.push(op.latency);
        let (sum, count) = op.touched.iter().fold((0, 0), |(sum, count), touched| {
            (sum + touched.sum.0, count + touched.count)
        });
        self.calls.extend(sum.checked_div(count).map(Ticks));
    }

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// The functions that are called.
struct Functions {
    /// Does nothing.
    idle: FunctionCode,
    /// Makes [`CALLS`] calls of nothing.
    busy: FunctionCode,
}

/// Measures the engine's cost on this machine, now. Takes some tens of milliseconds. Where probes follow goroutines, that is another
/// calling convention.
///
/// # Errors
/// When no child can be made or traced.
pub fn calibrate(goroutines: Option<Goroutines>) -> Result<Calibration> {
    match goroutines {
        Some(goroutines) => of_goroutines(goroutines),
        None => of_threads(),
    }
}

fn of_threads() -> Result<Calibration> {
    let program = Program::new()?;
    let nothing = program.put(0, |a| a.ret())?;
    let functions = Functions {
        idle: program.put_caller(64, 0, nothing.entry())?,
        busy: program.put_caller(128, CALLS, nothing.entry())?,
    };
    let called = [&functions.idle, &functions.busy];
    program.measured_calling(512, None, &called, |pid| measure(pid, &functions, None))
}

fn of_goroutines(goroutines: Goroutines) -> Result<Calibration> {
    /// Room for a whole jump where they are made and unmade.
    const FRAME: i32 = 0x108;
    let program = Program::new()?;
    let nothing = program.put_goroutines(0, 0, (0, 0))?;
    let functions = Functions {
        idle: program.put_goroutines(64, FRAME, (0, 0))?,
        busy: program.put_goroutines(128, FRAME, (CALLS, nothing.entry()))?,
    };
    let descriptor = program.put_descriptor(1024, goroutines.number)?;
    let called = [&functions.idle, &functions.busy];
    program.measured_calling(512, Some(descriptor), &called, |pid| {
        measure(pid, &functions, Some(goroutines))
    })
}

fn measure(pid: i32, functions: &Functions, goroutines: Option<Goroutines>) -> Result<Calibration> {
    let mut engine = Jump::attach(pid)?;
    engine.sampling = Sampling::All;
    let mut measured = |f0, calls| {
        let plan = plan(f0, calls);
        run(&mut engine, &Plan { goroutines, ..plan })
    };
    let idle = measured(&functions.idle, false)?;
    let bare = measured(&functions.busy, false)?;
    let probed = measured(&functions.busy, true)?;
    engine.finish()?;
    let at = |values: &[Ticks], share| quantile(values, share).0;
    let inside_f0 = at(&idle.ops, 0.5);
    let inside = at(&probed.calls, 0.5);
    let whole = at(&probed.ops, 0.5).saturating_sub(at(&bare.ops, 0.5)) / CALLS;
    let spread = at(&probed.calls, 0.95).saturating_sub(at(&probed.calls, 0.05));
    let resolution = Ticks(spread.max(inside / 4));
    let clamp = |cycles: u64| i32::try_from(cycles).unwrap_or(i32::MAX);
    Ok(Calibration {
        goroutines,
        costs: Costs {
            inside: clamp(inside),
            outside: clamp(whole),
            inside_f0: clamp(inside_f0),
            ..Costs::default()
        },
        cost: ProbeCost {
            inside: Ticks(inside),
            outside: Ticks(whole.saturating_sub(inside)),
            resolution,
            of_caller: resolution,
        },
    })
}

fn plan(f0: &FunctionCode, calls: bool) -> Plan {
    let code = Arc::new(f0.clone());
    let mut plan = Plan {
        f0: Some(Arc::clone(&code)),
        ..Plan::default()
    };
    if calls {
        let sites = call_sites(&code, &NoMemory).sites;
        let sites: Vec<_> = (1..).map(SiteId).zip(sites).collect();
        let edge = |&(site, _): &(SiteId, _)| Edge {
            parent: FnodeId::ROOT,
            site,
            target: None,
            child: FnodeId(site.0 + 1),
        };
        plan.edges = sites.iter().map(edge).collect();
        plan.functions = vec![PlannedFunction {
            code,
            sites,
            seen_through: BTreeSet::new(),
        }];
    }
    plan
}

fn run(engine: &mut Jump, plan: &Plan) -> Result<Measured> {
    all_accepted(&engine.apply(plan)?)?;
    let mut measured = Measured {
        since: crate::tsc(),
        ops: Vec::new(),
        calls: Vec::new(),
    };
    let since = Instant::now();
    while measured.ops.len() < OPS && since.elapsed() < PATIENCE {
        if engine
            .poll(Duration::from_millis(2), &mut measured)?
            .is_some()
        {
            break;
        }
    }
    match measured.ops.is_empty() {
        true => Err(no_progress()),
        false => Ok(measured),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_call_costs_something() {
        let found = calibrate(None).unwrap();
        assert!(found.costs.inside > 0, "{found:?}");
        assert!(found.costs.outside >= found.costs.inside, "{found:?}");
        assert!(found.costs.inside_f0 > 0, "{found:?}");
    }

    #[test]
    fn an_empty_call_of_a_goroutine_costs_something() {
        let found = calibrate(Some(Goroutines {
            number: 152,
            current: 192,
            kept: -8,
            calls_c: false,
        }))
        .unwrap();
        assert!(found.costs.inside > 0, "{found:?}");
        assert!(found.costs.outside >= found.costs.inside, "{found:?}");
        assert!(found.costs.inside_f0 > 0, "{found:?}");
    }
}
