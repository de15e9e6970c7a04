//! What every engine offers: keep a plan instrumented, deliver what was measured, put everything back.

use std::sync::Arc;
use std::time::Duration;

use crate::addr::TargetAddr;
use crate::children::End;
use crate::chosen::Chosen;
use crate::effort::{Pace, Price, Spent};
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::{Callees, Goroutines, Mark, Plan};
use crate::stacks::Stack;
use darc_record::{Enqueued, FnodeId, Op, SiteId, Ticks, Tsc};

mod calibration;
pub mod int3;
pub mod jump;

/// Receives what an engine measured.
pub trait Sink {
    /// One completed op with everything its fnodes did.
    fn op(&mut self, op: Op);

    /// Ops of which only the latency is known: those that ran while the instrumentation changed, and
    /// those that the peak filter kept out.
    fn latency_only(&mut self, counted: Counted);

    /// A whole op that ended when some thread could write no more ops of such latencies: it tells what it did itself, but those that
    /// come this way are not a sample of all ops.
    fn chosen_by_room(&mut self, op: Op) {
        self.op(op);
    }

    /// One op of which only the latency, its thread and its time are known, and what its calls were delayed by ([`DELAYS`]);
    /// counts as in [`Sink::latency_only`].
    fn partly(&mut self, op: Op) {
        self.latency_only(Counted::of(&op));
    }

    /// A request was handed over inside an op of f0; see [`Asynchronous`](crate::plan::Asynchronous).
    fn enqueued(&mut self, _enqueued: Enqueued) {}

    /// A goroutine did not run for a while, in an op that is delivered later or never.
    fn absence(&mut self, _absence: Absence) {}

    /// A completed call of the function that serves requests. What is [`Served::Partly`] known ran while the
    /// instrumentation changed.
    fn served(&mut self, _served: Served) {}

    /// An indirect site called `target` for the first time in `parent`; the answer holds from now on.
    fn new_target(&mut self, parent: FnodeId, site: SiteId, target: TargetAddr) -> NewTarget;
}

/// Ops that were only counted, alike in latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// How many they are, alike to an eighth of an octave.
    pub ops: u64,
    /// Their latencies together.
    pub total: Ticks,
    /// Whether calls may have been measured in them, of which what they take was taken out.
    pub with_calls: bool,
}

impl Counted {
    /// An op as if it had only been counted.
    #[must_use]
    pub fn of(op: &Op) -> Counted {
        Counted {
            ops: 1,
            total: op.latency,
            with_calls: true,
        }
    }
}

/// Takes nothing: for measurements whose results are read from the engine, and while nothing is measured.
#[derive(Clone, Copy, Debug)]
pub struct Discard;

impl Sink for Discard {
    fn op(&mut self, _: Op) {}

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// A call of the function that serves requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Served {
    /// With everything that its fnodes did.
    Whole(Op),
    /// Of which only the latency is known.
    Partly(Op),
}

/// What becomes of calls of a target that is seen for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewTarget {
    /// They have an fnode of their own.
    Fnode(FnodeId),
    /// They belong to the edge without a target.
    AnyTarget,
    /// They must not be measured: the callee remembers its return address (`setjmp` and its like).
    Unmeasured,
}

/// What happened to the target as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Libraries were loaded or unloaded.
    LibrariesChanged,
    /// Probes were taken out, for an end that did not come or with a library that was loaded again since, and may be put in again: the plan
    /// is to be applied anew.
    ProbesTakenOut,
    /// The process replaced its program; nothing is instrumented any more.
    Exec,
    /// The process exited with this status.
    Exited(i32),
    /// The process was killed by this signal.
    Killed(i32),
    /// The process ended, and nobody tells how: its parent has taken the status.
    Ended,
}

impl Notice {
    /// Of a process that has ended.
    fn of_end(end: Option<End>) -> Notice {
        match end {
            Some(End::Killed(signal)) => Notice::Killed(signal),
            Some(End::Exited(status)) => Notice::Exited(status),
            None => Notice::Ended,
        }
    }
}

/// A site or function that could not be instrumented, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The address of the site, or of the function's entry.
    pub addr: TargetAddr,
    /// Why, for people.
    pub reason: String,
}

/// What an engine did and met so far.
#[derive(Clone, Default, Debug)]
pub struct Counters {
    /// Records delivered to the sink.
    pub records: u64,
    /// Records lost because the target was faster than the reader; their ops are in the profile.
    pub dropped: u64,
    /// Ops that are in the profile only, because enough like them had been recorded.
    pub sampled: u64,
    /// Calls that passed unmeasured because more threads came than there was room for.
    pub unregistered: u64,
    /// Ops that did not end by returning: unwound, jumped out of, ended with their thread, or under way when all probes were taken out.
    pub ended_otherwise: u64,
    /// How often a thread was seen on another stack than that of the op in progress.
    pub switched_stacks: u64,
    /// Times in which a goroutine was ready all along and did not run in an op, which are not told of ([`Sink::absence`]).
    pub untold_absences: u64,
    /// What measuring took of the machine, where an account is kept of that.
    pub spent: Spent,
    /// For how long the target was stopped each time.
    pub pauses: Vec<Duration>,
    /// Bytes of the target's text that differed from the original after the last restore.
    pub bytes_differing: u64,
}

/// Why a return address is not hidden in a function.
const TAKES_ARGUMENTS: &str = "it takes its arguments off the stack as it returns";

/// The cost that a probe adds to what it measures.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProbeCost {
    /// What an empty call reads before compensation.
    pub inside: Ticks,
    /// What one measured call takes beside that; taken out of the caller's latency.
    pub outside: Ticks,
    /// How much the cost itself varies: a latency below this cannot be told from none.
    pub resolution: Ticks,
    /// By how much a caller's own time may be wrong for each measured call that it makes, as far as known now.
    pub of_caller: Ticks,
}

/// A time in which a goroutine did not run, in an op of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Absence {
    /// The goroutine, as in [`Op::tid`].
    pub tid: i32,
    /// When it stopped,
    pub left: Tsc,
    /// could go on, which is at once where it did not wait for anything,
    pub ready: Tsc,
    /// and did.
    pub back: Tsc,
    /// On which thread it did, zero where that is not known.
    pub thread: i32,
    /// Return addresses on the stack of who let it go on, the innermost first; none where it did not wait.
    pub waker: Vec<TargetAddr>,
}

/// An op that has begun and not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// The thread, as in [`Op::tid`].
    pub tid: i32,
    /// When it began, as far as can be told: the target's memory says so.
    pub at: Tsc,
}

/// No fnode: what the calls of an op were delayed by ([`Engine::delay`]), where an op tells what it touched.
pub const DELAYS: FnodeId = FnodeId(0);

/// What an engine puts into the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// Breakpoints: each hit stops the thread until the tracer lets it go on.
    Int3,
    /// Jumps to stubs, which measure without stopping anything.
    Jump,
}

impl EngineKind {
    /// Its name as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Int3 => "int3",
            EngineKind::Jump => "jump",
        }
    }
}

/// Keeps the planned probes in the target and reports what they measure.
pub trait Engine {
    /// What it puts into the target.
    fn kind(&self) -> EngineKind;

    /// Whether nobody traces the target while it is measured, so that it can be stopped for a look.
    fn leaves_target_untraced(&self) -> bool {
        false
    }

    /// The ops in progress, where that is known at any moment.
    fn ops_in_progress(&self) -> Vec<Begun> {
        Vec::new()
    }

    /// Stops the thread of an op in progress, if it still is, and copies its stack, as it were without the engine. Tells for how long the
    /// thread stood still. `None` where stacks cannot be looked at.
    ///
    /// # Errors
    /// When the thread cannot be stopped or read.
    fn stack_of(&self, _op: Begun) -> Result<Option<(Stack, Duration)>> {
        Ok(None)
    }

    /// How often the program has called a marker.
    fn marked(&self, _mark: Mark) -> u64 {
        0
    }

    /// Brings the target's instrumentation to exactly this plan. Returns what was refused.
    ///
    /// # Errors
    /// When the target cannot be instrumented at all. The end of the target is no error here: it is
    /// a [`Notice`] of the next poll.
    fn apply(&mut self, plan: &Plan) -> Result<Vec<Refused>>;

    /// Says, before the first plan, that all plans will be of goroutines: what probes cost is found out anew if what is known is of
    /// others.
    ///
    /// # Errors
    /// When their cost cannot be measured.
    fn follow(&mut self, _goroutines: Goroutines, _callees: Callees) -> Result<()> {
        Ok(())
    }

    /// Tells which latencies of f0 are of interest; ops outside may be delivered as latency only.
    fn set_filter(&mut self, _latencies: &[std::ops::RangeInclusive<Ticks>]) {}

    /// Has only the ops of these threads measured and told.
    fn choose_threads(&mut self, _threads: Arc<Chosen>) {}

    /// How much is measured from now on. One that every op is wanted of ([`jump::Jump::record_all`]) does not rest.
    fn set_pace(&mut self, _pace: Pace) {}

    /// Whether it measures less when it is told to.
    fn rests(&self) -> bool {
        false
    }

    /// What was measured since the last time took of the target, about.
    fn take_price(&mut self) -> Price {
        Price::default()
    }

    /// Handles what the target does and delivers what was measured, for at most about `wait`.
    ///
    /// # Errors
    /// When the target can no longer be traced for another reason than its end.
    fn poll(&mut self, wait: Duration, sink: &mut dyn Sink) -> Result<Option<Notice>>;

    /// Makes each call of an fnode of the plan longer by so many cycles, until the time stamp counter reads `until`. What that
    /// really took, longer where a thread lost its processor meanwhile, an op tells as what it touched of [`DELAYS`]. The
    /// stub itself looks at the clock, so a tracer that is killed leaves no delay behind. Does nothing in an engine that
    /// was not made for it ([`jump::Jump::with_delays`]).
    ///
    /// # Errors
    /// When the target cannot be written to for another reason than its end.
    fn delay(&mut self, _fnode: FnodeId, _by: Ticks, _until: Tsc) -> Result<()> {
        Ok(())
    }

    /// Removes every probe, checks the text, and lets go of the target.
    ///
    /// # Errors
    /// When something could not be put back.
    fn finish(&mut self) -> Result<()>;

    /// How the process ended, if the engine has seen that: [`Notice::Exited`], [`Notice::Killed`] or [`Notice::Ended`].
    fn end(&self) -> Option<Notice>;

    /// What was done and met so far.
    fn counters(&self) -> Counters;

    /// The calibrated cost of a probe.
    fn cost(&self) -> ProbeCost;

    /// The target's memory, patches included.
    fn memory(&self) -> &Memory;

    /// Reads the program's own code: the memory without the engine's patches. False when it is not mapped.
    fn read_code(&self, addr: TargetAddr, buffer: &mut [u8]) -> bool;

    /// Where in the program's own code a thread is that is at `pc` in a system call: measured ones are made from copies.
    fn own_code(&self, pc: TargetAddr) -> TargetAddr {
        pc
    }
}
