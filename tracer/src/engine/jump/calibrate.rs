//! Measures what the stubs cost, in a child process that does nothing but call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::{CodePart, FunctionCode, NoMemory, call_sites};
use iced_x86::code_asm::*;

use crate::addr::TargetAddr;
use crate::engine::{Engine, NewTarget, ProbeCost, Sink};
use crate::error::{Error, Result};
use crate::plan::{Edge, Plan, PlannedFunction};
use crate::record::{FnodeId, Op, SiteId, Ticks};
use crate::sys;

use super::installed::Costs;
use super::{Jump, Sampling};

/// What [`calibrate`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calibration {
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
const OPS: usize = 4000;
/// When to be content with fewer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Latencies of f0, and mean latencies of its callees.
#[derive(Default)]
struct Measured {
    ops: Vec<u64>,
    calls: Vec<u64>,
}

impl Sink for Measured {
    fn op(&mut self, op: Op) {
        self.ops.push(op.latency.0);
        let (sum, count) = op.touched.iter().fold((0, 0), |(sum, count), touched| {
            (sum + touched.sum.0, count + touched.count)
        });
        self.calls.extend(sum.checked_div(count));
    }

    fn latency_only(&mut self, _: Ticks, _: u64, _: Ticks) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// A program: a loop that calls `idle` (which does nothing) and `busy` (which makes [`CALLS`] calls of nothing).
struct Program {
    page: sys::CodePage,
    idle: FunctionCode,
    busy: FunctionCode,
    main: u64,
}

impl Program {
    fn new() -> Result<Program> {
        let failed =
            |error: iced_x86::IcedError| Error::Unsuitable(format!("cannot calibrate: {error}"));
        let page = sys::CodePage::new().map_err(|errno| Error::Os {
            operation: "map memory to calibrate with",
            source: errno.into(),
        })?;
        let (nothing, idle, busy, main) = (
            page.start(),
            page.start() + 64,
            page.start() + 128,
            page.start() + 512,
        );
        let piece = |at: u64,
                     emit: &dyn Fn(
            &mut CodeAssembler,
        ) -> std::result::Result<(), iced_x86::IcedError>| {
            let mut a = CodeAssembler::new(64)?;
            emit(&mut a)?;
            Ok(CodePart {
                start: at,
                bytes: a.assemble(at)?,
            })
        };
        let pieces = || {
            let prologue = |a: &mut CodeAssembler| {
                a.push(rbx)?;
                a.sub(rsp, 16)
            };
            let epilogue = |a: &mut CodeAssembler| {
                a.add(rsp, 16)?;
                a.pop(rbx)?;
                a.ret()
            };
            Ok([
                piece(nothing, &|a| a.ret())?,
                piece(idle, &|a| {
                    prologue(a)?;
                    epilogue(a)
                })?,
                piece(busy, &|a| {
                    prologue(a)?;
                    for _ in 0..CALLS {
                        a.call(nothing)?;
                    }
                    epilogue(a)
                })?,
                piece(main, &|a| {
                    let mut again = a.create_label();
                    a.set_label(&mut again)?;
                    a.call(idle)?;
                    a.call(busy)?;
                    a.jmp(again)
                })?,
            ])
        };
        let pieces = pieces().map_err(failed)?;
        for piece in &pieces {
            page.write(piece.start, &piece.bytes);
        }
        let [_, idle, busy, _] = pieces;
        let function = |part| FunctionCode::new(vec![part]).expect("one part that is not empty");
        Ok(Program {
            page,
            idle: function(idle),
            busy: function(busy),
            main,
        })
    }
}

/// Measures the engine's cost on this machine, now. Takes some tens of milliseconds.
///
/// # Errors
/// When no child can be made or traced.
pub fn calibrate() -> Result<Calibration> {
    let program = Program::new()?;
    let pid = sys::fork_into(|| {
        sys::die_with_parent();
        program.page.run(program.main);
    })
    .map_err(|errno| Error::Os {
        operation: "make a process to calibrate with",
        source: errno.into(),
    })?;
    let outcome = measure(pid, &program);
    sys::kill_and_reap(pid);
    outcome
}

fn measure(pid: i32, program: &Program) -> Result<Calibration> {
    let idle = run(pid, plan(&program.idle, false))?;
    let bare = run(pid, plan(&program.busy, false))?;
    let probed = run(pid, plan(&program.busy, true))?;
    let inside_f0 = quantile(&idle.ops, 0.5);
    let inside = quantile(&probed.calls, 0.5);
    let whole = quantile(&probed.ops, 0.5).saturating_sub(quantile(&bare.ops, 0.5)) / CALLS;
    let spread = quantile(&probed.calls, 0.95).saturating_sub(quantile(&probed.calls, 0.05));
    let resolution = Ticks(spread.max(inside / 4));
    let clamp = |cycles: u64| i32::try_from(cycles).unwrap_or(i32::MAX);
    Ok(Calibration {
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
        plan.functions = vec![PlannedFunction { code, sites }];
    }
    plan
}

fn run(pid: i32, plan: Plan) -> Result<Measured> {
    let mut engine = Jump::attach(pid)?;
    engine.sampling = Sampling::All;
    if let Some(refused) = engine.apply(&plan)?.first() {
        return Err(Error::Unsuitable(format!(
            "cannot calibrate: {}",
            refused.reason
        )));
    }
    let mut measured = Measured::default();
    let since = Instant::now();
    while measured.ops.len() < OPS && since.elapsed() < PATIENCE {
        if engine
            .poll(Duration::from_millis(2), &mut measured)?
            .is_some()
        {
            break;
        }
    }
    engine.finish()?;
    match measured.ops.is_empty() {
        true => Err(Error::Unsuitable(
            "cannot calibrate: the test process made no progress".to_owned(),
        )),
        false => Ok(measured),
    }
}

fn quantile(values: &[u64], share: f64) -> u64 {
    let mut values = values.to_vec();
    let index = (values.len() as f64 * share) as usize;
    match values.len() {
        0 => 0,
        len => *values.select_nth_unstable(index.min(len - 1)).1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_call_costs_something() {
        let found = calibrate().unwrap();
        assert!(found.costs.inside > 0, "{found:?}");
        assert!(found.costs.outside >= found.costs.inside, "{found:?}");
        assert!(found.costs.inside_f0 > 0, "{found:?}");
    }
}
