//! What of f0 is not measured although it is f0's code: clones that the optimizer made, copies in other functions.

use darc_process::modules::Modules;
use darc_symbols::{Function, original};

use crate::session::descent::investigation::Investigation;

/// In a file with more functions the debug information is not searched for copies: that takes seconds.
const MOST_FUNCTIONS: usize = 50_000;
/// More clones are not listed by name.
const MOST_NAMES: usize = 4;

/// Warns when calls of f0 may have gone to clones of it, or were replaced by copies.
pub fn warn(investigation: &mut Investigation, modules: &Modules) {
    let Some(f0) = investigation.f0 else { return };
    let name = modules.name(f0);
    let Some(image) = &modules.get(f0.module).image else {
        return;
    };
    let raw = image.function_at(f0.addr).and_then(Function::raw_name);
    let original = raw.map_or_else(|| name.clone(), original);
    let mut warnings = Vec::new();
    let clones: Vec<String> = image
        .clones(f0.addr)
        .iter()
        .filter_map(|clone| clone.raw_name().map(str::to_owned))
        .collect();
    if !clones.is_empty() {
        let shown = clones[..clones.len().min(MOST_NAMES)].join(", ");
        warnings.push(format!(
            "calls of {name} may go to {} that the optimizer made of it, which are not measured: {shown}; name one as f0 to see its calls",
            count(clones.len(), "clone")
        ));
    }
    if raw.is_some_and(|raw| raw.contains(".part.")) {
        warnings.push(format!(
            "{name} is a part of {original}, whose beginning was inlined where it is called: calls that end there are not measured"
        ));
    }
    if image.functions().len() <= MOST_FUNCTIONS {
        let copies = image.inlined_into(&original);
        if let Some(first) = copies.first() {
            let place = match (&first.file, first.line) {
                (Some(file), Some(line)) => format!(" ({file}:{line})"),
                _ => String::new(),
            };
            warnings.push(format!(
                "{original} was also inlined at {}, first into {}{place}; there is no call to measure there",
                count(copies.len(), "place"),
                first.caller
            ));
        }
    }
    for warning in warnings {
        investigation.warn(warning);
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
