//! Functions that must not be probed at their entry, whatever the person's pattern says.

use darc_process::ProcessError;
use darc_process::modules::Modules;
use darc_symbols::{Function, escape};

use crate::session::profiling::Measured;

/// Why a function is left alone.
const UNWINDER: &str = "it belongs to the unwinder, which reads return addresses from the stack";

const UNWINDER_PREFIXES: [&str; 4] = ["_Unwind_", "uw_", "unw_", "__unw_"];
const UNWINDER_FILES: [&str; 2] = ["libgcc_s", "libunwind"];

/// Why a function of a file is left alone; `None` when nothing speaks against it.
#[must_use]
pub fn reason(file: &str, function: &Function) -> Option<&'static str> {
    if UNWINDER_FILES.iter().any(|name| file.starts_with(name)) {
        return Some(UNWINDER);
    }
    function.names().find_map(of_name)
}

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

fn of_name(name: &str) -> Option<&'static str> {
    let mut prefixes = UNWINDER_PREFIXES.iter();
    prefixes
        .any(|prefix| name.starts_with(prefix))
        .then_some(UNWINDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_functions_are_not_refused() {
        for name in ["main", "malloc", "start", "uwe", "dlclose", "_dl_fixup"] {
            assert_eq!(of_name(name), None, "{name}");
        }
        assert_eq!(of_name("_Unwind_Resume"), Some(UNWINDER));
    }
}
