//! Measures what counting a call costs, in a child process that does nothing but call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::{CodePart, FunctionCode};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::engine::ProbeCost;
use crate::engine::jump::calibrate::Calibration;
use crate::engine::jump::installed::Costs;
use crate::error::{Error, Result};
use crate::plan::{CountedFunction, Ends, Plan};
use crate::record::Ticks;
use crate::sys;

use super::{Counts, Profiler};

/// Calls of the idle function in each call of the busy one.
const CALLS: u64 = 16;
/// Calls of the busy function to look at.
const ENOUGH: u64 = 4000;
/// When to be content with fewer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A program: a loop that calls `busy`, which calls `idle` [`CALLS`] times, which does nothing.
struct Program {
    page: sys::CodePage,
    idle: FunctionCode,
    busy: FunctionCode,
    main: u64,
}

impl Program {
    fn new() -> Result<Program> {
        let failed = |error: IcedError| Error::Unsuitable(format!("cannot calibrate: {error}"));
        let page = sys::CodePage::new().map_err(|errno| Error::Os {
            operation: "map memory to calibrate with",
            source: errno.into(),
        })?;
        let (idle, busy, main) = (page.start(), page.start() + 128, page.start() + 512);
        type Emit<'a> = &'a dyn Fn(&mut CodeAssembler) -> std::result::Result<(), IcedError>;
        let piece = |at: u64, calls: u64, emit: Emit<'_>| {
            let mut a = CodeAssembler::new(64)?;
            a.push(rbx)?;
            a.sub(rsp, 16)?;
            for _ in 0..calls {
                a.call(idle)?;
            }
            emit(&mut a)?;
            let bytes = a.assemble(at)?;
            Ok(CodePart { start: at, bytes })
        };
        let end = |a: &mut CodeAssembler| {
            a.add(rsp, 16)?;
            a.pop(rbx)?;
            a.ret()
        };
        let forever = |a: &mut CodeAssembler| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.call(busy)?;
            a.jmp(again)
        };
        let pieces = || {
            Ok([
                piece(idle, 0, &end)?,
                piece(busy, CALLS, &end)?,
                piece(main, 0, &forever)?,
            ])
        };
        let pieces = pieces().map_err(failed)?;
        for piece in &pieces {
            page.write(piece.start, &piece.bytes);
        }
        let [idle, busy, _] = pieces;
        let function = |part| FunctionCode::new(vec![part]).expect("one part that is not empty");
        Ok(Program {
            page,
            idle: function(idle),
            busy: function(busy),
            main,
        })
    }
}

/// Measures the cost on this machine, now. Takes some milliseconds.
///
/// # Errors
/// When no child can be made or traced.
pub fn calibrate_counting() -> Result<Calibration> {
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
    let bare = run(pid, &[&program.busy])?;
    let both = run(pid, &[&program.busy, &program.idle])?;
    let (Some(bare), [busy, idle]) = (bare.first(), &both[..]) else {
        return Err(Error::Unsuitable(
            "cannot calibrate: the test process made no progress".to_owned(),
        ));
    };
    let inside = middle(idle);
    let whole = middle(busy).saturating_sub(middle(bare)) / CALLS;
    let clamp = |cycles: u64| i32::try_from(cycles).unwrap_or(i32::MAX);
    Ok(Calibration {
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
    if let Some(refused) = profiler.apply(&plan)?.first() {
        return Err(Error::Unsuitable(format!(
            "cannot calibrate: {}",
            refused.reason
        )));
    }
    let since = Instant::now();
    let enough = |profiler: &Profiler| {
        let counts = profiler.counts();
        counts
            .first()
            .is_some_and(|(_, busy)| busy.returned >= ENOUGH)
    };
    while !enough(&profiler) && since.elapsed() < PATIENCE {
        if profiler.poll(Duration::from_millis(2))?.is_some() {
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
