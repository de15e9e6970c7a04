//! From the function at a path's end to the loop, the block and the line that take its time.
//!
//! When every path has ended, the paths are kept instrumented for a while, and the threads' program counters are sampled.
//! Samples that fell into ops of the peak, in the call on the path, and into the function's own code, say where it is.

pub mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_analysis::localise::{End, Narrowing, Part, Structure};
use darc_analysis::{CauseKind, Stop};
use darc_disasm::{Cfg, FunctionCode, Loops};
use darc_process::code::Unpatched;
use darc_process::modules::CodeRef;
use darc_process::{Ending, Event, Limits, ProcessError};
use darc_record::{FnodeId, Op, SiteId, Ticks};
use darc_tracer::addr::TargetAddr;
use darc_tracer::effort::Pace;
use darc_tracer::engine::{Counted, NewTarget, Sink};
use darc_tracer::perf::whereabouts::Whereabouts;

use crate::session::descent::investigation::Investigation;
use crate::session::{SLICE, Session};

/// As many samples of an end are enough.
const ENOUGH: u64 = 200;
/// With fewer nothing is said.
const FEWEST: u64 = 10;
/// For so long they are waited for.
const LONGEST: Duration = Duration::from_secs(3);

/// Where the time of the function at a path's end goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Narrowed {
    /// The path's end.
    pub end: End,
    /// Samples in the function's own code.
    pub own: u64,
    /// Samples in what it calls.
    pub elsewhere: u64,
    /// From outside in.
    pub steps: Vec<Step>,
    /// The instructions of the innermost part, each with its samples.
    pub instructions: BTreeMap<CodeRef, u64>,
}

/// A part of the function that most of the samples were in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What kind of part.
    pub kind: StepKind,
    /// How many of the samples.
    pub samples: u64,
    /// Its blocks, each by its first and last instruction.
    pub blocks: Vec<(CodeRef, CodeRef)>,
}

/// A kind of part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// A loop.
    Loop,
    /// A block.
    Block,
}

/// Takes the ops that are recorded meanwhile. The profile does without them: an op in which samples were taken is some
/// microseconds longer for each.
struct Watching<'a> {
    investigation: &'a Investigation,
    narrowing: &'a mut Narrowing,
}

impl Sink for Watching<'_> {
    fn op(&mut self, op: Op) {
        if let Some(peak) = self.investigation.analysis.peak_of_op(&op) {
            self.narrowing.op(&op, peak);
        }
    }

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

impl Session<'_> {
    /// Narrows the functions at the paths' ends. `Some` when something ended the session meanwhile.
    ///
    /// # Errors
    /// When the target can no longer be traced for another reason than its end.
    pub(super) fn narrow(&mut self, limits: Limits<'_>) -> Result<Option<Ending>, ProcessError> {
        let ends = ends(self.investigation);
        if ends.is_empty() {
            return Ok(None);
        }
        let mut threads = match Whereabouts::follow(self.process.pid()) {
            Ok(threads) => threads,
            Err(refusal) => {
                let warning =
                    format!("functions are not narrowed down to loops and lines: {refusal}");
                self.investigation.warnings.push(warning);
                return Ok(None);
            }
        };
        let ftree = self.investigation.analysis.ftree();
        self.kept = ends
            .iter()
            .flat_map(|end| ftree.path(end.fnode))
            .filter(|&fnode| fnode != FnodeId::ROOT)
            .collect();
        let latencies = latencies(self.investigation, &ends);
        self.process.engine_mut().set_filter(&latencies);
        self.process.engine_mut().set_pace(Pace::InBatches);
        self.instrument()?;
        let mut narrowing = Narrowing::new(ends);
        let began = Instant::now();
        let ending = loop {
            let event = self.process.poll(limits, |engine, _| {
                let mut sink = Watching {
                    investigation: self.investigation,
                    narrowing: &mut narrowing,
                };
                engine.poll(SLICE, &mut sink)
            })?;
            for seen in threads.read() {
                narrowing.sample(seen.tid, seen.at, seen.ip.0);
            }
            narrowing.settle(threads.complete());
            let over = began.elapsed() >= LONGEST || narrowing.fewest() >= ENOUGH;
            match event {
                Event::Ended(ending) => break Some(ending),
                Event::CodeChanged => self.look_at_libraries()?,
                Event::Nothing => {}
            }
            if over {
                break None;
            }
        };
        self.kept.clear();
        let found = (0..narrowing.ends().len())
            .filter_map(|index| self.narrowed(narrowing.ends()[index], narrowing.found(index)))
            .collect();
        self.investigation.narrowed = found;
        Ok(ending)
    }

    fn narrowed(&self, end: End, seen: &BTreeMap<u64, u64>) -> Option<Narrowed> {
        let sources = (self.investigation).sources(&self.process, self.catalog)?;
        let fnode = self.investigation.analysis.ftree().fnode(end.fnode);
        let code: Arc<FunctionCode> = Arc::clone(&sources.scan(fnode).ok()?.code);
        let cfg = Cfg::build(&code, &Unpatched(self.process.engine()));
        let loops = Loops::new(&cfg);
        let structure = Structure {
            innermost: (0..cfg.blocks().len())
                .map(|block| loops.innermost(block))
                .collect(),
            parents: loops.all().iter().map(|it| it.parent).collect(),
        };
        let mut by_block: BTreeMap<usize, u64> = BTreeMap::new();
        let mut elsewhere = 0;
        for (&addr, &count) in seen {
            match cfg.block_of(addr) {
                Some(block) => *by_block.entry(block).or_default() += count,
                None => elsewhere += count,
            }
        }
        let own: u64 = by_block.values().sum();
        if own < FEWEST {
            return None;
        }
        let place = |addr: u64| self.process.modules().place(TargetAddr(addr));
        let blocks_of = |part: Part| match part {
            Part::Loop(index) => loops.all()[index].blocks.clone(),
            Part::Block(block) => vec![block],
        };
        let extent = |block: usize| {
            let block = &cfg.blocks()[block];
            let last = block.instructions.clone().next_back();
            let last = last.map_or(block.start, |index| cfg.instructions()[index].ip());
            Some((place(block.start)?, place(last)?))
        };
        let found = structure.descend(&by_block);
        let innermost = found.last().map(|&(part, _)| blocks_of(part));
        let instructions = seen
            .iter()
            .filter(|(addr, _)| {
                let block = cfg.block_of(**addr);
                block.is_some_and(|at| innermost.as_ref().is_none_or(|all| all.contains(&at)))
            })
            .filter_map(|(&addr, &count)| Some((place(addr)?, count)))
            .collect();
        let steps = found
            .iter()
            .map(|&(part, samples)| Step {
                kind: match part {
                    Part::Loop(_) => StepKind::Loop,
                    Part::Block(_) => StepKind::Block,
                },
                samples,
                blocks: blocks_of(part).into_iter().filter_map(extent).collect(),
            })
            .collect();
        Some(Narrowed {
            end,
            own,
            elsewhere,
            steps,
            instructions,
        })
    }
}

/// The paths that end at a function's own code.
fn ends(investigation: &Investigation) -> Vec<End> {
    let analysis = &investigation.analysis;
    let of_peak = |peak: u32| {
        let causes = analysis.root_causes(peak).into_iter();
        causes.filter_map(move |cause| {
            let own = matches!(cause.kind, CauseKind::Function | CauseKind::Loop)
                && matches!(cause.stop, Stop::SelfTime | Stop::NoCalls | Stop::MaxDepth);
            let fnode = *cause.path.last()?;
            own.then_some(End { peak, fnode })
        })
    };
    let peaks = analysis.peaks();
    peaks.iter().flat_map(|peak| of_peak(peak.number)).collect()
}

/// The latencies of the peaks that have such paths.
fn latencies(investigation: &Investigation, ends: &[End]) -> Vec<std::ops::RangeInclusive<Ticks>> {
    let analysis = &investigation.analysis;
    let resolution = analysis.params().resolution;
    analysis
        .peaks()
        .iter()
        .filter(|peak| ends.iter().any(|end| end.peak == peak.number))
        .filter_map(|peak| {
            let first = resolution.bounds(peak.first_bucket)?.0;
            let last = resolution.bounds(peak.last_bucket)?.1;
            Some(first..=last)
        })
        .collect()
}
