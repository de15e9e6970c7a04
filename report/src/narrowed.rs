//! Where in the function at a path's end the time goes.

use crate::escape::control;
use crate::model::{NarrowedEntry, NarrowedStep, PartKind};
use crate::words::percent;

/// A line for how it was found, and one for each part.
pub fn lines(narrowed: &NarrowedEntry) -> Vec<String> {
    let elsewhere = match narrowed.elsewhere {
        0 => String::new(),
        elsewhere => format!(", {elsewhere} more outside of it"),
    };
    let first = format!(
        "narrowed by {} samples of the program counter in its own code, in ops of this peak{elsewhere}",
        narrowed.samples
    );
    let steps = narrowed
        .steps
        .iter()
        .flat_map(|part| step(part, narrowed.samples));
    std::iter::once(first).chain(steps).collect()
}

fn step(step: &NarrowedStep, all: u64) -> Vec<String> {
    let share = percent(step.samples as f64 / all.max(1) as f64);
    let kind = match step.kind {
        PartKind::Loop => "loop",
        PartKind::Block => "block",
        PartKind::Line => "line",
    };
    let at = match (&step.file, step.line, step.last_line) {
        (Some(file), Some(first), Some(last)) if last > first => {
            format!("{}:{first} to {last}", control(file))
        }
        (Some(file), Some(line), _) => format!("{}:{line}", control(file)),
        _ => "without debug information".to_owned(),
    };
    let place = step.place.to_string();
    let first = format!("  {kind:<5} {share:>6}  {at} ({})", control(&place));
    let inlined = step.inlined_from.iter().map(|inlined| {
        let name = control(&inlined.name);
        match (&inlined.file, inlined.line) {
            (Some(file), Some(line)) => {
                format!("    in {name}, inlined at {}:{line}", control(file))
            }
            _ => format!("    in {name}, inlined"),
        }
    });
    std::iter::once(first).chain(inlined).collect()
}
