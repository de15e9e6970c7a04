//! Which engine measures: the one place where engines are told apart.

use std::sync::Arc;

use darc_process::{Interrupts, Level};
use darc_report::model;
use darc_tracer::Result;
use darc_tracer::chosen::Chosen;
use darc_tracer::engine::Engine;
use darc_tracer::engine::int3::{self, Guarding, Int3};
use darc_tracer::engine::jump::{self, Jump};
use darc_tracer::plan::Goroutines;
use darc_tracer::stopped::Stopped;

use crate::options::EngineChoice;

fn for_threads(mut engine: Box<dyn Engine>, threads: Option<&Arc<Chosen>>) -> Box<dyn Engine> {
    if let Some(threads) = threads {
        engine.choose_threads(Arc::clone(threads));
    }
    engine
}

/// An engine of the person's choice, calibrated on this machine.
#[derive(Clone, Debug)]
pub enum Calibrated {
    /// Breakpoints.
    Int3(Box<int3::Calibration>),
    /// Stubs in the target.
    Jump(jump::Calibration),
}

impl Calibrated {
    /// Measures what the engine's probes cost now, in a program whose goroutines they follow if it is one of Go.
    ///
    /// # Errors
    /// When no process can be made or traced for that.
    pub fn now(choice: EngineChoice, goroutines: Option<Goroutines>) -> Result<Calibrated> {
        match choice {
            EngineChoice::Int3 => int3::calibrate().map(|found| Calibrated::Int3(Box::new(found))),
            EngineChoice::Jump => jump::calibrate(goroutines).map(Calibrated::Jump),
        }
    }

    /// The ptrace options under which a program is to be started.
    #[must_use]
    pub fn options(&self) -> i32 {
        match self {
            Calibrated::Int3(_) => int3::OPTIONS,
            Calibrated::Jump(_) => jump::OPTIONS,
        }
    }

    /// Takes charge of a running process, for the ops of these threads if not of all.
    ///
    /// # Errors
    /// When it cannot be traced.
    pub fn attach(&self, pid: i32, threads: Option<&Arc<Chosen>>) -> Result<Box<dyn Engine>> {
        let engine: Box<dyn Engine> = match self {
            Calibrated::Int3(calibration) => {
                let mut engine = Int3::attach(pid, Guarding::Guarded)?;
                engine.set_cost(calibration);
                Box::new(engine)
            }
            Calibrated::Jump(calibration) => {
                let mut engine = Jump::attach(pid)?;
                engine.set_cost(calibration);
                Box::new(engine)
            }
        };
        Ok(for_threads(engine, threads))
    }

    /// Takes over a program that was just started with [`Calibrated::options`], of Go (`is_go`) or not, as long as nobody wants the
    /// end.
    ///
    /// # Errors
    /// When it cannot be traced, or the end is wanted before it has begun.
    pub fn launched(
        &self,
        thread: Stopped,
        is_go: bool,
        interrupts: &dyn Interrupts,
        threads: Option<&Arc<Chosen>>,
    ) -> Result<Box<dyn Engine>> {
        let engine: Box<dyn Engine> = match self {
            Calibrated::Int3(calibration) => {
                let mut engine = Int3::launched(thread, Guarding::Guarded)?;
                engine.set_cost(calibration);
                Box::new(engine)
            }
            Calibrated::Jump(calibration) => {
                let is_wanted = || interrupts.level() == Level::GoOn;
                let mut engine = Jump::launched(thread, is_go, &is_wanted)?;
                engine.set_cost(calibration);
                Box::new(engine)
            }
        };
        Ok(for_threads(engine, threads))
    }

    /// Why what was measured of the probes' cost is not to be trusted, if it is not.
    #[must_use]
    pub fn doubt(&self) -> Option<&str> {
        match self {
            Calibrated::Int3(calibration) => calibration.doubt.as_deref(),
            Calibrated::Jump(_) => None,
        }
    }

    /// The engine as reports name it.
    #[must_use]
    pub fn model(&self) -> model::Engine {
        match self {
            Calibrated::Int3(_) => model::Engine::Int3,
            Calibrated::Jump(_) => model::Engine::Jump,
        }
    }
}
