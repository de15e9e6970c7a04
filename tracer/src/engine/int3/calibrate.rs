//! Measures what a breakpoint costs, by instrumenting an empty function of a child process with this
//! very engine.
//!
//! What is taken out of latencies is the little that a call reads between the two readings of the clock
//! that its own thread takes. On a busy machine it is disturbed like everything else, so of several
//! batches the least low quantile counts, and a figure that no machine can have is not believed.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::{CodePart, FunctionCode};

use crate::addr::TargetAddr;
use crate::engine::calibration::{all_accepted, no_progress, of_child, quantile};
use crate::engine::{Counted, Engine, NewTarget, ProbeCost, Sink};
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::Plan;
use darc_record::{FnodeId, Op, SiteId, Ticks, Tsc};

use super::delivery::Delivery;
use super::{Guarding, Int3};

/// What [`calibrate`] found, in cycles.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// How late stops are noticed, to begin with.
    pub(super) delivery: Delivery,
    /// The probe's cost as shown to people.
    pub cost: ProbeCost,
    /// Why the figures are not to be trusted, if they are not.
    pub doubt: Option<String>,
}

/// After so many ops calibration has seen enough.
const OPS: usize = 400;

/// After so long it makes do with what it has.
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// Ops of which one low quantile is taken.
const BATCH: usize = 40;

/// An empty call that reads more cycles than this has been disturbed: it is a few dozen instructions.
const ABSURD: Ticks = Ticks(5_000);

#[inline(never)]
pub(super) extern "C" fn empty() {
    black_box(());
}

/// Latencies of an empty function, and when its calls began.
#[derive(Default)]
pub(super) struct Calls {
    latencies: Vec<Ticks>,
    starts: Vec<Tsc>,
}

impl Sink for Calls {
    fn op(&mut self, op: Op) {
        self.latencies.push(op.latency);
        self.starts.push(op.start);
    }

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// Measures the engine's cost on this machine, now. Takes some tens of milliseconds.
///
/// # Errors
/// When no child can be made or traced.
pub fn calibrate() -> Result<Calibration> {
    let entry = empty as extern "C" fn() as usize as u64;
    let work = || loop {
        empty();
    };
    let (calls, delivery, of_caller) = of_child(work, |pid| measure(pid, entry))?;
    let (cost, doubt) = judge(&calls, of_caller);
    Ok(Calibration {
        delivery,
        cost,
        doubt,
    })
}

/// The costs that the calls tell, and why they are not to be trusted.
fn judge(calls: &Calls, of_caller: Ticks) -> (ProbeCost, Option<String>) {
    let batches = || calls.latencies.chunks(BATCH);
    let least = |q| batches().map(|batch| quantile(batch, q)).min();
    let (low, high) = (
        least(0.1).unwrap_or_default(),
        least(0.75).unwrap_or_default(),
    );
    let periods: Vec<Ticks> = calls
        .starts
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    let doubt = (low > ABSURD).then(|| {
        format!(
            "calibration was disturbed (an empty call took {} cycles): the probes' own cost is not taken out of latencies",
            low.0
        )
    });
    let inside = match doubt {
        Some(_) => Ticks(0),
        None => low,
    };
    let cost = ProbeCost {
        inside,
        outside: quantile(&periods, 0.5).saturating_sub(low),
        resolution: high.saturating_sub(low).min(ABSURD).max(Ticks(1)),
        of_caller,
    };
    (cost, doubt)
}

fn measure(pid: i32, entry: u64) -> Result<(Calls, Delivery, Ticks)> {
    let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
    let refused = engine.apply(&plan_of(entry, &engine.memory)?)?;
    all_accepted(&refused)?;
    let mut calls = Calls::default();
    let since = Instant::now();
    let enough = |calls: &Calls| {
        calls.latencies.len() >= OPS
            || (calls.latencies.len() >= BATCH && since.elapsed() > LONG_ENOUGH)
    };
    while !enough(&calls) && since.elapsed() < Duration::from_secs(5) {
        if engine
            .poll(Duration::from_millis(20), &mut calls)?
            .is_some()
        {
            break;
        }
    }
    if calls.latencies.is_empty() {
        return Err(no_progress());
    }
    let delivery = engine.stop_times.learnt(pid).unwrap_or_default();
    // Where the machine was too busy to tell, the worst that is believed.
    let of_caller = engine.stop_times.accuracy().unwrap_or(ABSURD);
    Ok((calls, delivery, of_caller))
}

/// Measures the function that begins there.
pub fn plan_of(entry: u64, memory: &Memory) -> Result<Plan> {
    let mut bytes = vec![0; 16];
    memory.read(TargetAddr(entry), &mut bytes)?;
    let part = CodePart {
        start: entry,
        bytes,
    };
    Ok(Plan {
        f0: FunctionCode::new(vec![part]).map(Arc::new),
        ..Plan::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_call_costs_something() {
        crate::child_signal::block().unwrap();
        let found = calibrate().unwrap();
        assert!(found.cost.inside > Ticks(0), "{found:?}");
        assert!(found.cost.outside > Ticks(0), "{found:?}");
        assert_eq!(found.doubt, None);
    }

    fn calls(latency: impl Fn(u64) -> u64) -> Calls {
        Calls {
            latencies: (0..400).map(|n| Ticks(latency(n))).collect(),
            starts: (0..400).map(|n| Tsc(n * 10_000)).collect(),
        }
    }

    #[test]
    fn a_busy_machine_does_not_make_the_probe_dear() {
        // Half of the calls of most batches were interrupted.
        let disturbed = calls(|n| {
            if n > 40 && n % 2 == 0 {
                9_000_000
            } else {
                60 + n % 5
            }
        });
        let (cost, doubt) = judge(&disturbed, Ticks(300));
        assert_eq!((cost.inside, doubt), (Ticks(60), None));
        assert!(cost.resolution < Ticks(10), "{cost:?}");
        assert_eq!(cost.outside, Ticks(9_940));
    }

    #[test]
    fn an_absurd_figure_is_not_believed() {
        let (cost, doubt) = judge(&calls(|_| 9_002_324), Ticks(300));
        assert_eq!(cost.inside, Ticks(0));
        assert!(doubt.unwrap().contains("9002324"));
    }
}
