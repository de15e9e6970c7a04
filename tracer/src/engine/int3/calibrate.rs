//! Measures what a breakpoint costs, by instrumenting an empty function of a child process with this
//! very engine.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::{CodePart, FunctionCode};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::addr::TargetAddr;
use crate::engine::{Engine, NewTarget, ProbeCost, Sink};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::record::{FnodeId, Op, SiteId, Ticks};
use crate::sys;

use super::delivery::Delivery;
use super::{Guarding, Int3};

/// What [`calibrate`] found, in cycles.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// What a stop costs the stopped thread beyond the tracer's handling of it.
    pub delivery: Delivery,
    /// The probe's cost as shown to people.
    pub cost: ProbeCost,
}

const OPS: usize = 300;

#[inline(never)]
extern "C" fn empty() {
    black_box(());
}

#[derive(Default)]
struct Latencies(Vec<Ticks>, Vec<Ticks>);

impl Sink for Latencies {
    fn op(&mut self, op: Op) {
        if let Some(last) = self.1.last_mut() {
            *last = Ticks(op.start.0 - last.0);
        }
        self.1.push(Ticks(op.start.0));
        self.0.push(op.latency);
    }

    fn latency_only(&mut self, _: Ticks, _: u64, _: Ticks) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// Measures the engine's cost on this machine, now. Takes some tens of milliseconds.
///
/// # Errors
/// When no child can be made or traced.
pub fn calibrate() -> Result<Calibration> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let mut cores = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false));
    let (home, other) = (cores.next(), cores.next());
    let outcome = on_cores(home, other);
    // Whatever came of it, this process may use all its cores again.
    let _ = sched_setaffinity(Pid::from_raw(0), &allowed);
    outcome
}

fn on_cores(home: Option<usize>, other: Option<usize>) -> Result<Calibration> {
    pin(0, home);
    let same = Regime::of(home)?;
    let apart = match other {
        Some(other) => Regime::of(Some(other))?,
        None => same,
    };
    // What one regime varies by; and half of what they differ by, for the regime is only guessed.
    let guess = apart.low.saturating_sub(same.low).0 / 2;
    let resolution = Ticks(same.varies().0.max(apart.varies().0).max(guess));
    let dearest = if apart.low > same.low { apart } else { same };
    let cost = ProbeCost {
        inside: dearest.low,
        outside: dearest.per_call.saturating_sub(dearest.low),
        resolution,
    };
    Ok(Calibration {
        delivery: Delivery::between(same.low, apart.low),
        cost,
    })
}

/// What an empty call reads while the scheduler keeps to one arrangement.
#[derive(Clone, Copy)]
struct Regime {
    /// The cost that the machine can reach is the probe's own; what comes on top is its variation. Taking out
    /// more would turn short calls into calls that take no time at all.
    low: Ticks,
    high: Ticks,
    per_call: Ticks,
}

impl Regime {
    /// Measures with the calling process on `core`.
    fn of(core: Option<usize>) -> Result<Regime> {
        let entry = empty as extern "C" fn() as usize as u64;
        let pid = sys::fork_into(|| {
            sys::die_with_parent();
            pin(0, core);
            loop {
                empty();
            }
        })
        .map_err(|errno| Error::Os {
            operation: "make a process to calibrate with",
            source: errno.into(),
        })?;
        let outcome = measure(pid, entry);
        sys::kill_and_reap(pid);
        let mut latencies = outcome?;
        latencies.1.pop();
        Ok(Regime {
            low: quantile(&mut latencies.0, 0.1),
            // Not higher: on a busy machine the slowest tenth tells of other processes, not of the probe.
            high: quantile(&mut latencies.0, 0.75),
            per_call: quantile(&mut latencies.1, 0.5),
        })
    }

    fn varies(self) -> Ticks {
        // More than twice the cost is other processes' doing: it befalls calls without a probe as well.
        self.high
            .saturating_sub(self.low)
            .min(Ticks(self.low.0.saturating_mul(2)))
    }
}

/// Keeps a thread (zero: the caller) on one core; where that is refused it goes where it likes.
fn pin(tid: i32, core: Option<usize>) {
    let mut set = CpuSet::new();
    if core.is_some_and(|core| set.set(core).is_ok()) {
        let _ = sched_setaffinity(Pid::from_raw(tid), &set);
    }
}

fn measure(pid: i32, entry: u64) -> Result<Latencies> {
    let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
    let mut bytes = vec![0; 16];
    engine.memory.read(TargetAddr(entry), &mut bytes)?;
    let f0 = FunctionCode::new(vec![CodePart {
        start: entry,
        bytes,
    }])
    .expect("one part that is not empty");
    let refused = engine.apply(&Plan {
        f0: Some(Arc::new(f0)),
        ..Plan::default()
    })?;
    if let Some(refused) = refused.first() {
        return Err(Error::Unsuitable(format!(
            "cannot calibrate: {}",
            refused.reason
        )));
    }
    let mut latencies = Latencies::default();
    let since = Instant::now();
    while latencies.0.len() < OPS && since.elapsed() < Duration::from_secs(5) {
        if engine
            .poll(Duration::from_millis(20), &mut latencies)?
            .is_some()
        {
            break;
        }
    }
    if latencies.0.is_empty() {
        return Err(Error::Unsuitable(
            "cannot calibrate: the test process made no progress".to_owned(),
        ));
    }
    Ok(latencies)
}

fn quantile(values: &mut [Ticks], quantile: f64) -> Ticks {
    values.sort_unstable();
    let index = (values.len() as f64 * quantile) as usize;
    values.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_call_costs_something() {
        crate::child_signal::block().unwrap();
        let found = calibrate().unwrap();
        assert!(found.cost.inside > Ticks(0));
        assert!(found.cost.outside > Ticks(0), "{found:?}");
    }
}
