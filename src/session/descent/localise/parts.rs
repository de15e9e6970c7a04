//! Names and lines of the parts that a function was narrowed to.

use std::collections::BTreeMap;

use darc_process::modules::CodeRef;
use darc_report::model::{NarrowedEntry, NarrowedStep, PartKind};

use crate::session::catalog::{Naming, inlined};
use crate::session::descent::localise::{Narrowed, Step, StepKind};

/// What was found, with lines.
#[must_use]
pub fn entry(narrowed: &Narrowed, naming: Naming<'_>) -> NarrowedEntry {
    let steps = narrowed.steps.iter().filter_map(|step| part(step, naming));
    NarrowedEntry {
        samples: narrowed.own,
        elsewhere: narrowed.elsewhere,
        steps: steps.chain(line(&narrowed.instructions, naming)).collect(),
    }
}

/// A loop or a block. Its lines are those of the function itself: what was inlined into it stands where it was called.
fn part(step: &Step, naming: Naming<'_>) -> Option<NarrowedStep> {
    let first = step.blocks.iter().map(|&(first, _)| first).min()?;
    let ends = step.blocks.iter().flat_map(|&(first, last)| [first, last]);
    let lines: Vec<(Option<String>, u32)> = ends
        .filter_map(|at| {
            let frame = frames(at, naming).pop()?;
            Some((frame.file, frame.line?))
        })
        .filter(|(_, line)| *line > 0)
        .collect();
    let file = lines.first().and_then(|(file, _)| file.clone());
    let here = lines.iter().filter(|(at, _)| *at == file);
    let here: Vec<u32> = here.map(|&(_, line)| line).collect();
    Some(NarrowedStep {
        kind: match step.kind {
            StepKind::Loop => PartKind::Loop,
            StepKind::Block => PartKind::Block,
        },
        samples: step.samples,
        place: naming.place(first),
        file,
        line: here.iter().min().copied(),
        last_line: here.iter().max().copied(),
        inlined_from: Vec::new(),
    })
}

/// The source line with most samples among some instructions.
fn line(instructions: &BTreeMap<CodeRef, u64>, naming: Naming<'_>) -> Option<NarrowedStep> {
    let mut lines: BTreeMap<(Option<String>, u32), (u64, CodeRef)> = BTreeMap::new();
    for (&at, &count) in instructions {
        let innermost = frames(at, naming).into_iter().next();
        if let Some((file, Some(line))) = innermost.map(|frame| (frame.file, frame.line)) {
            lines.entry((file, line)).or_insert((0, at)).0 += count;
        }
    }
    let ((file, line), (samples, at)) = lines.into_iter().max_by_key(|(_, (count, _))| *count)?;
    Some(NarrowedStep {
        kind: PartKind::Line,
        samples,
        place: naming.place(at),
        file,
        line: Some(line),
        last_line: None,
        inlined_from: inlined(&frames(at, naming)),
    })
}

fn frames(at: CodeRef, naming: Naming<'_>) -> Vec<darc_symbols::Frame> {
    let image = naming.modules.get(at.module).image.as_ref();
    image.map(|image| image.frames(at.addr)).unwrap_or_default()
}
