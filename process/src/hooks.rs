//! Functions of the run-time libraries at which the engine has to act: unwinders, catch handlers, the
//! dynamic linker's notification.
//!
//! Names: Itanium C++ ABI (exception handling), the GNU C library's `link.h` (`r_brk`).

use darc_symbols::{Image, ImageKind};
use darc_tracer::addr::TargetAddr;
use darc_tracer::plan::Plan;

use crate::modules::{CodeRef, ModuleId, Modules};

const UNWINDERS: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
];
const CATCHERS: [&str; 1] = ["__cxa_begin_catch"];
const FINDERS: [&str; 1] = ["_Unwind_Find_FDE"];
const LOADER: &str = "_dl_debug_state";
/// The beginnings of the names of files that copy parts of stacks away and put others in their place: greenlets and continuations.
const STACK_COPIERS: [&str; 5] = [
    "_greenlet.",
    "greenlet.",
    "libpypy",
    "libguile",
    "continuation.so",
];

/// The unwinder's functions, by the beginnings of their names: those of the C++ ABI, of libgcc and of libunwind,
const OF_UNWINDER: [&str; 9] = [
    "_Unwind_",
    "uw_frame_state",
    "uw_init_context",
    "uw_update_context",
    "uw_install_context",
    "uw_advance_context",
    "uw_identify_context",
    "unw_",
    "__unw_",
];
/// ... and by those of the names of its files, where most of its functions have no names.
const UNWINDER_FILES: [&str; 2] = ["libgcc_s", "libunwind"];

/// By these an unwinder finds the tables of the files that are loaded: one of two that every unwinder needs where a dynamic linker loads.
const FINDS_TABLES: [&str; 2] = ["dl_iterate_phdr", "_dl_find_object"];

/// Those that call a function of the program for each frame.
const CALL_BACK: [&str; 2] = ["_Unwind_Backtrace", "_Unwind_ForcedUnwind"];

/// A function of the unwinder. It reads return addresses from the stack, its own among them, and leaves functions without a
/// return: no probe stands at its entry, and it is not looked into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfUnwinder {
    /// It calls nothing of the program but what tells where an exception is caught.
    ByItself,
    /// It calls a function that the program names.
    CallingBack,
}

/// Whether a function belongs to the unwinder.
#[must_use]
pub fn of_unwinder(modules: &Modules, place: CodeRef) -> Option<OfUnwinder> {
    let module = modules.get(place.module);
    let file = module.path.rsplit('/').next().unwrap_or_default();
    let image = module.image.as_ref();
    let function = image.and_then(|image| image.function_at(place.addr));
    let is_named = |fits: &dyn Fn(&str) -> bool| function.is_some_and(|it| it.names().any(fits));
    if is_named(&|name| CALL_BACK.contains(&name)) {
        return Some(OfUnwinder::CallingBack);
    }
    let begins = |name: &str| OF_UNWINDER.iter().any(|prefix| name.starts_with(prefix));
    let is_its = UNWINDER_FILES.iter().any(|name| file.starts_with(name)) || is_named(&begins);
    is_its.then_some(OfUnwinder::ByItself)
}

/// Where the hooks are in the current process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hooks {
    unwinders: Vec<TargetAddr>,
    catchers: Vec<TargetAddr>,
    finders: Vec<TargetAddr>,
    loader: Option<TargetAddr>,
    copies_stacks: bool,
    unnamed_unwinder: Option<String>,
}

impl Hooks {
    /// Finds the hooks in the modules that are loaded now.
    #[must_use]
    pub fn find(modules: &Modules) -> Hooks {
        let mut hooks = Hooks::default();
        for (index, id) in modules.loaded().into_iter().enumerate() {
            let path = &modules.get(id).path;
            let file = path.rsplit('/').next().unwrap_or_default();
            // What catches exceptions may bring an unwinder of its own, as a program or a library that was linked with libgcc.
            let image = modules.get(id).image.as_ref();
            let catches = image.is_some_and(|image| image.has_section(".gcc_except_table"));
            let unwinds = ["libgcc_s", "libunwind", "libstdc++", "libc++abi"]
                .iter()
                .any(|name| file.starts_with(name));
            if unwinds || catches || index == 0 {
                let find = |names: &[&str], found: &mut Vec<TargetAddr>| {
                    found.extend(names.iter().filter_map(|name| locate(modules, id, name)));
                };
                find(&UNWINDERS, &mut hooks.unwinders);
                find(&CATCHERS, &mut hooks.catchers);
                find(&FINDERS, &mut hooks.finders);
            }
            if hooks.unnamed_unwinder.is_none() && image.is_some_and(has_unnamed_unwinder) {
                hooks.unnamed_unwinder = Some(path.clone());
            }
            hooks.copies_stacks |= STACK_COPIERS.iter().any(|name| file.starts_with(name));
            if file.starts_with("ld-") || file.starts_with("ld.") {
                hooks.loader = hooks.loader.or_else(|| locate(modules, id, LOADER));
            }
        }
        hooks
    }

    /// Whether a dynamic linker announces what it loads.
    #[must_use]
    pub fn announce_libraries(&self) -> bool {
        self.loader.is_some()
    }

    /// Those of a program that a dynamic linker has loaded.
    #[cfg(test)]
    pub(crate) fn with_loader() -> Hooks {
        Hooks {
            loader: Some(TargetAddr(0x1000)),
            ..Hooks::default()
        }
    }

    /// A plan of the hooks alone.
    #[must_use]
    pub fn plan(&self) -> Plan {
        Plan {
            unwinders: self.unwinders.clone(),
            catchers: self.catchers.clone(),
            finders: self.finders.clone(),
            loader: self.loader,
            copies_stacks: self.copies_stacks,
            unnamed_unwinder: self.unnamed_unwinder.clone(),
            ..Plan::default()
        }
    }
}

/// Whether a file has functions that exceptions pass, and among its own an unwinder that nothing names: it was linked with one, and then
/// stripped. What only catches all that comes needs no unwinder by name, and has it in another file.
fn has_unnamed_unwinder(image: &Image) -> bool {
    if !image.has_section(".gcc_except_table") || image.has_symbol_with("_Unwind_") {
        return false;
    }
    let is_static = image.kind() != ImageKind::SharedLibrary && image.interpreter().is_none();
    is_static || FINDS_TABLES.iter().any(|name| image.imports(name))
}

fn locate(modules: &Modules, module: ModuleId, name: &str) -> Option<TargetAddr> {
    let addr = modules.get(module).image.as_ref()?.symbol(name)?;
    modules.locate(CodeRef { module, addr })
}
