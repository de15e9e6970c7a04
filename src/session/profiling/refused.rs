//! Functions that must not be probed at their entry, whatever the person's pattern says.

use darc_process::ProcessError;
use darc_process::modules::Modules;
use darc_symbols::{Function, escape};

use crate::session::profiling::Measured;

/// Why a function is left alone.
const ENTERED_STRANGELY: &str =
    "it is not entered by a call, so there is no return address to be hidden";
const UNWINDER: &str = "it belongs to the unwinder, which reads return addresses from the stack";

/// Entered by a jump, a return or the kernel: the program's start (System V ABI for AMD64, 3.4.1), signal
/// trampolines (sigreturn(2)), lazy binding, new contexts (makecontext(3)).
const NOT_CALLED: [&str; 9] = [
    "_start",
    "__start",
    "_dl_start_user",
    "__restore_rt",
    "__restore",
    "__start_context",
    "__clone_child",
    "__unmapself",
    "__kernel_rt_sigreturn",
];
const NOT_CALLED_PREFIXES: [&str; 2] = ["_dl_runtime_resolve", "_dl_runtime_profile"];

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
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if NOT_CALLED.contains(&name) || begins(&NOT_CALLED_PREFIXES) {
        Some(ENTERED_STRANGELY)
    } else if begins(&UNWINDER_PREFIXES) {
        Some(UNWINDER)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_functions_are_not_refused() {
        for name in ["main", "malloc", "start", "uwe", "dlclose", "_dl_fixup"] {
            assert_eq!(of_name(name), None, "{name}");
        }
        for name in ["_start", "_dl_runtime_resolve_xsavec", "_Unwind_Resume"] {
            assert!(of_name(name).is_some(), "{name}");
        }
    }
}
