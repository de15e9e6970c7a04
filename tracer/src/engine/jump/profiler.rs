//! Counts the calls of many functions at once: how many, how long, in which bucket, for each thread by itself.
//!
//! There is no f0 and there are no ops: every call of a chosen function counts, a recursive or nested one
//! too, and its latency includes what it calls. Nothing can be lost but calls that began below the depth of the
//! shadow stack, and those are counted. Source: OSprof (OSDI 2006), section 3.

mod calibrate;
mod counts;
mod rounds;

use std::time::Duration;

use crate::addr::TargetAddr;
use crate::engine::{Counters, Engine, EngineKind, Notice, ProbeCost, Refused, Sink};
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::Plan;
use crate::stopped::Stopped;

pub use calibrate::calibrate_counting;
pub use counts::{BucketCount, Counts};

use super::Jump;
use super::calibrate::Calibration;
use super::layout;

/// Functions that there is always room for.
const FEWEST_SLOTS: u32 = 64;
/// Bytes of code for one function: its entry, its returns.
const CODE_BYTES: u64 = 3 << 10;
/// The largest arena that is asked for.
const LARGEST_ARENA: u64 = 64 << 20;

/// The engine; see the module.
#[derive(Debug)]
pub struct Profiler {
    jump: Jump,
}

impl Profiler {
    /// Takes charge of a running process.
    ///
    /// # Errors
    /// As [`Jump::attach`].
    pub fn attach(pid: i32) -> Result<Profiler> {
        Jump::attach(pid).map(|jump| Profiler { jump })
    }

    /// Takes over a program that [`crate::launch::launch`] started with [`super::OPTIONS`].
    ///
    /// # Errors
    /// As [`Jump::launched`].
    pub fn launched(thread: Stopped, is_wanted: &dyn Fn() -> bool) -> Result<Profiler> {
        Jump::launched(thread, false, is_wanted).map(|jump| Profiler { jump })
    }

    /// Sets what counting a call costs, as calibrated; it is taken out of every latency.
    pub fn set_cost(&mut self, calibration: &Calibration) {
        self.jump.set_cost(calibration);
    }

    /// Makes room for the slots below `slots`. Has no effect once something is instrumented.
    pub fn reserve(&mut self, slots: u32) {
        let slots = slots.clamp(FEWEST_SLOTS, layout::counts::MAX_SLOTS);
        let code = (u64::from(slots) * CODE_BYTES).next_power_of_two();
        self.jump.room.slots = slots;
        self.jump.room.arena = code.clamp(1 << 20, LARGEST_ARENA);
    }

    /// For how many functions there is room.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.jump.room.slots
    }

    /// What has been counted so far of every function of which a call began, by slot.
    #[must_use]
    pub fn counts(&self) -> Vec<(u32, Counts)> {
        let (rings, used) = match (&self.jump.space, &self.jump.past) {
            (Some(space), _) => (&space.rings, space.installed.used_blocks(&self.jump.memory)),
            (None, Some(rings)) => (rings, rings.count()),
            (None, None) => return Vec::new(),
        };
        counts::read(rings, used, self.jump.room.slots)
    }

    /// How often a thread found no place to count in, because there were too many threads.
    #[must_use]
    pub fn unregistered(&self) -> u64 {
        self.jump.counters().unregistered
    }
}

impl Engine for Profiler {
    fn kind(&self) -> EngineKind {
        self.jump.kind()
    }

    fn leaves_target_untraced(&self) -> bool {
        self.jump.leaves_target_untraced()
    }

    /// Brings the instrumentation to the plan's counted functions and hooks.
    fn apply(&mut self, plan: &Plan) -> Result<Vec<Refused>> {
        if self.jump.room.slots == 0 {
            self.reserve(plan.counted.len() as u32);
        }
        self.jump.apply(plan)
    }

    /// Watches what the target does. Nothing is delivered: counts are read.
    fn poll(&mut self, wait: Duration, sink: &mut dyn Sink) -> Result<Option<Notice>> {
        self.jump.poll(wait, sink)
    }

    /// Removes every probe, checks the text, and lets go of the target. [`Profiler::counts`] is complete afterwards.
    fn finish(&mut self) -> Result<()> {
        // What it leaves is removed with the rest.
        let most = self.jump.remove_most();
        if let Err(error) = &most {
            tracing::debug!(target: "tracer", %error, "most probes are removed later");
        }
        self.jump.finish()
    }

    fn end(&self) -> Option<Notice> {
        self.jump.end()
    }

    fn counters(&self) -> Counters {
        self.jump.counters()
    }

    fn cost(&self) -> ProbeCost {
        self.jump.cost()
    }

    fn memory(&self) -> &Memory {
        self.jump.memory()
    }

    fn read_code(&self, addr: TargetAddr, buffer: &mut [u8]) -> bool {
        self.jump.read_code(addr, buffer)
    }
}
