//! Measures what counting a call costs, in a child process that does nothing but call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::FunctionCode;

use crate::engine::calibration::{Program, all_accepted, no_progress};
use crate::engine::jump::calibrate::Calibration;
use crate::engine::jump::installed::Costs;
use crate::engine::{Discard, Engine as _, ProbeCost};
use crate::error::Result;
use crate::plan::{CountedFunction, Ends, Plan};
use darc_record::Ticks;

use super::{Counts, Profiler};

/// Calls of the idle function in each call of the busy one.
const CALLS: u64 = 16;
/// Calls of the busy function to look at.
const ENOUGH: u64 = 4000;
/// When to be content with fewer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The functions that are called.
struct Functions {
    /// Does nothing.
    idle: FunctionCode,
    /// Calls `idle` [`CALLS`] times.
    busy: FunctionCode,
}

/// Measures the cost on this machine, now. Takes some milliseconds.
///
/// # Errors
/// When no child can be made or traced.
pub fn calibrate_counting() -> Result<Calibration> {
    let program = Program::new()?;
    let idle = program.put_caller(0, 0, 0)?;
    let busy = program.put_caller(128, CALLS, idle.entry())?;
    let functions = Functions { idle, busy };
    program.measured_calling(512, None, &[&functions.busy], |pid| {
        measure(pid, &functions)
    })
}

fn measure(pid: i32, functions: &Functions) -> Result<Calibration> {
    let bare = run(pid, &[&functions.busy])?;
    let both = run(pid, &[&functions.busy, &functions.idle])?;
    let (Some(bare), [busy, idle]) = (bare.first(), &both[..]) else {
        return Err(no_progress());
    };
    let inside = middle(idle);
    let whole = middle(busy).saturating_sub(middle(bare)) / CALLS;
    let clamp = |cycles: u64| i32::try_from(cycles).unwrap_or(i32::MAX);
    Ok(Calibration {
        goroutines: None,
        costs: Costs {
            counted: (clamp(inside), clamp(whole)),
            ..Costs::default()
        },
        cost: ProbeCost {
            inside: Ticks(inside),
            outside: Ticks(whole.saturating_sub(inside)),
            resolution: Ticks(inside / 4),
            of_caller: Ticks(inside / 4),
        },
    })
}

fn run(pid: i32, functions: &[&FunctionCode]) -> Result<Vec<Counts>> {
    let mut profiler = Profiler::attach(pid)?;
    let counted = (0..).zip(functions).map(|(slot, code)| CountedFunction {
        code: Arc::new((*code).clone()),
        slot,
        ends: Ends::ByReturns,
    });
    let plan = Plan {
        counted: counted.collect(),
        ..Plan::default()
    };
    all_accepted(&profiler.apply(&plan)?)?;
    let since = Instant::now();
    let enough = |profiler: &Profiler| {
        let counts = profiler.counts();
        counts
            .first()
            .is_some_and(|(_, busy)| busy.returned >= ENOUGH)
    };
    while !enough(&profiler) && since.elapsed() < PATIENCE {
        if profiler
            .poll(Duration::from_millis(2), &mut Discard)?
            .is_some()
        {
            break;
        }
    }
    profiler.finish()?;
    Ok(profiler
        .counts()
        .into_iter()
        .map(|(_, counts)| counts)
        .collect())
}

/// The mean of the bucket that the median is in.
fn middle(counts: &Counts) -> u64 {
    let half = counts.in_buckets() / 2;
    let mut seen = 0;
    for bucket in &counts.buckets {
        seen += bucket.calls;
        if seen > half {
            return bucket.total.0 / bucket.calls.max(1);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_a_call_costs_something_and_loses_none() {
        let found = calibrate_counting().unwrap();
        assert!(found.costs.counted.0 > 0, "{found:?}");
        assert!(found.costs.counted.1 >= found.costs.counted.0, "{found:?}");
        println!("{found:?}");
    }
}
