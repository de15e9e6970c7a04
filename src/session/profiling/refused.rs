//! That nothing is left of what a person's pattern names.

use darc_process::ProcessError;
use darc_process::modules::Modules;
use darc_symbols::escape;

use crate::session::profiling::Measured;

/// Why there is nothing to profile: none of what was found has a probe.
#[must_use]
pub fn nothing_is_left(modules: &Modules, measured: &Measured) -> ProcessError {
    let Some((&place, reason)) = measured.refused.iter().next() else {
        let why = match measured.warnings.is_empty() {
            true => "no function fits".to_owned(),
            false => measured.warnings.join("; "),
        };
        return ProcessError::Unsuitable(format!(
            "nothing to profile: {why}; name others, darc list shows which there are"
        ));
    };
    let image = modules.get(place.module).image.as_ref();
    let name = image.map_or_else(
        || place.addr.to_string(),
        |it| escape(&it.name_at(place.addr)),
    );
    let name = match measured.refused.len() {
        1 => name,
        all => format!("{name} and {} more", all - 1),
    };
    ProcessError::Unsuitable(format!(
        "nothing to profile: {name} cannot have a probe: {reason}; name other functions"
    ))
}
