//! Functions that do more with the address that they return to than return there: no probe may put another one in its place.
//!
//! A function that ends with a jump to such a one is one itself, for both have the same return address. What is jumped to is
//! looked for in the files, so that nothing of the process has to be read.

use std::collections::BTreeSet;

use darc_disasm::{CallSite, Operand, SiteKind, Target, direct_jumps, jumps_through};
use darc_symbols::{FileAddr, Image};
use darc_tracer::addr::TargetAddr;

use crate::modules::{CodeRef, ModuleId, Modules};
use crate::plt::exported;

/// What [`use_by`] says of a function.
const LOOKS_AT_CALLER: &str = "looks at its return address to know its caller";
const COUNTS_CALLS: &str =
    "knows its callers by their return addresses, and expects all registers kept";
const RETURNS_TWICE: &str = "remembers where it returns to, which a probe must not disturb";
const GROWS_STACK: &str = "goes on one byte behind its return address";

/// setjmp(3), getcontext(3), vfork(2): the address is met again when the probe may be gone.
const TWICE: [&str; 12] = [
    "setjmp",
    "_setjmp",
    "__setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "getcontext",
    "__getcontext",
    "swapcontext",
    "__swapcontext",
    "vfork",
    "__vfork",
    "savectx",
];

/// They ask `__builtin_return_address` who calls: dlopen(3), dlsym(3).
const CALLER_MATTERS: [&str; 8] = [
    "dlopen",
    "__dlopen",
    "dlmopen",
    "__dlmopen",
    "dlsym",
    "__dlsym",
    "dlvsym",
    "__dlvsym",
];

/// Profiling hooks of compilers (gcc(1) `-pg`, `-finstrument-functions`).
const HOOKS: [&str; 6] = [
    "mcount",
    "_mcount",
    "__fentry__",
    "_dl_mcount_wrapper",
    "_dl_mcount_wrapper_check",
    "__cyg_profile_func_enter",
];

/// Of libgcc, for programs built with `-fsplit-stack`.
const SPLIT_STACK: &str = "__morestack";

/// No chain of jumps has more functions.
const MOST_FUNCTIONS: usize = 64;
/// A larger function is not searched for jumps, and one without known size no further.
const MOST_BYTES: u64 = 1 << 20;
const MOST_UNKNOWN_BYTES: u64 = 4 << 10;

/// That a function does more with its return address than return there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Used {
    /// What it does, for people.
    pub why: String,
    /// Whether it is only looked at: a probe that leaves it alone does no harm.
    pub is_only_looked_at: bool,
}

/// What a function of this name does with its return address; `None` where it only returns.
#[must_use]
pub fn use_by(name: &str) -> Option<&'static str> {
    if TWICE.contains(&name) || name.ends_with("jump_fcontext") {
        Some(RETURNS_TWICE)
    } else if CALLER_MATTERS.contains(&name) {
        Some(LOOKS_AT_CALLER)
    } else if HOOKS.contains(&name) {
        Some(COUNTS_CALLS)
    } else if name.starts_with(SPLIT_STACK) {
        Some(GROWS_STACK)
    } else {
        None
    }
}

/// Why the return address of the function at `place` must not be another; `None` where it may be.
#[must_use]
pub fn is_used(modules: &Modules, place: CodeRef) -> Option<Used> {
    modules.use_of(place, || look(modules, place))
}

/// As [`is_used`], of whom nobody has asked.
fn look(modules: &Modules, place: CodeRef) -> Option<Used> {
    let mut open = vec![place];
    let mut seen = BTreeSet::new();
    let mut looked_at = None;
    while let Some(at) = open.pop() {
        let Some(image) = &modules.get(at.module).image else {
            continue;
        };
        if seen.len() == MOST_FUNCTIONS || !seen.insert(at) {
            continue;
        }
        let names = names(image, at.addr);
        let used = names.iter().find_map(|name| Some((name, use_by(name)?)));
        if let Some((name, what)) = used {
            let used = Used {
                why: match at == place {
                    true => format!("{name} {what}"),
                    false => format!("it jumps to {name}, which {what}"),
                },
                is_only_looked_at: what == LOOKS_AT_CALLER,
            };
            if !used.is_only_looked_at {
                return Some(used);
            }
            looked_at = Some(used);
            continue;
        }
        match image.jumps_to_import(at.addr) {
            Some(name) => open.extend(exported(modules, &name)),
            None => open.extend(jumped_to(modules, at.module, image, at.addr)),
        }
    }
    looked_at
}

/// As [`is_used`], of what a site calls or jumps to.
#[must_use]
pub fn is_used_at(modules: &Modules, site: &CallSite) -> Option<Used> {
    let (SiteKind::Call(target) | SiteKind::TailJump { target, .. }) = site.kind else {
        return None;
    };
    match target {
        Target::Direct(to) => is_used(modules, modules.place(TargetAddr(to))?),
        Target::Indirect(Operand::Memory(slot)) if slot.base.is_none() && slot.index.is_none() => {
            // The slot is no code, but lies in the site's file.
            let at = modules.place(TargetAddr(site.addr))?;
            let distance = (slot.displacement as u64).wrapping_sub(site.addr);
            let slot = FileAddr(at.addr.0.wrapping_add(distance));
            let name = modules.get(at.module).image.as_ref()?.got_name(slot)?;
            is_used_by_name(modules, &name)
        }
        Target::Indirect(_) => None,
    }
}

/// As [`is_used`], of a function that is called through its slot in the global offset table.
fn is_used_by_name(modules: &Modules, name: &str) -> Option<Used> {
    match use_by(name) {
        Some(what) => Some(Used {
            why: format!("{name} {what}"),
            is_only_looked_at: what == LOOKS_AT_CALLER,
        }),
        None => {
            let used: Vec<Used> = exported(modules, name)
                .filter_map(|place| is_used(modules, place))
                .collect();
            let worst = used.iter().find(|used| !used.is_only_looked_at);
            worst.or(used.first()).cloned()
        }
    }
}

/// The names of the function that begins there, and that of the import that it does nothing but jump to.
fn names(image: &Image, addr: FileAddr) -> Vec<String> {
    let function = image.function_at(addr).filter(|it| it.addr == addr);
    let names = function.into_iter().flat_map(|it| it.names());
    let names = names.map(str::to_owned);
    names.chain(image.jumps_to_import(addr)).collect()
}

/// Where jumps lead out of the function that begins there.
fn jumped_to(modules: &Modules, module: ModuleId, image: &Image, addr: FileAddr) -> Vec<CodeRef> {
    let function = image.function_at(addr);
    let end = function.and_then(|function| function.range()).map_or_else(
        || {
            let limit = image.limit_of(addr).map_or(u64::MAX, |limit| limit.0);
            limit.min(addr.0.saturating_add(MOST_UNKNOWN_BYTES))
        },
        |range| range.end.0,
    );
    let cold = function.map_or(&[][..], |function| &function.cold_parts);
    let parts = cold.iter().map(|part| (part.start.0, part.end.0));
    let parts: Vec<(u64, u64)> = std::iter::once((addr.0, end)).chain(parts).collect();
    let mut found = Vec::new();
    for &(start, end) in &parts {
        let len = end.saturating_sub(start);
        let bytes = image.bytes_at(FileAddr(start), len.min(MOST_BYTES));
        let bytes = bytes.unwrap_or_default();
        for (_, to) in direct_jumps(&bytes, start) {
            let leaves = !parts.iter().any(|&(start, end)| (start..end).contains(&to));
            if leaves {
                let addr = FileAddr(to);
                found.push(CodeRef { module, addr });
            }
        }
        for slot in jumps_through(&bytes, start) {
            let name = image.got_name(FileAddr(slot));
            found.extend(name.iter().flat_map(|name| exported(modules, name)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembled;

    #[test]
    fn the_address_is_used_through_jumps() {
        let text = ".text\n.globl a, wraps, twice, plain, calls, swapcontext\n\
            .type a,@function\n.type wraps,@function\n.type twice,@function\n\
            .type plain,@function\n.type calls,@function\n.type swapcontext,@function\n\
            a: ret\n.size a,.-a\n\
            wraps: test %edi,%edi\nje swapcontext\nret\n.size wraps,.-wraps\n\
            twice: jmp wraps\n.size twice,.-twice\n\
            plain: jmp a\n.size plain,.-plain\n\
            calls: call swapcontext\nret\n.size calls,.-calls\n\
            swapcontext: ret\n.size swapcontext,.-swapcontext\n";
        let image = assembled::image(text, &["-static", "-Wl,-e,a"]);
        let mut modules = Modules::default();
        let module = modules.intern("/a", None, Some(image));
        let reason = |name: &str| {
            let addr = modules.get(module).image.as_ref().unwrap().symbol(name);
            let addr = addr.unwrap();
            is_used(&modules, CodeRef { module, addr }).map(|used| used.why)
        };
        for name in ["a", "plain", "calls"] {
            assert_eq!(reason(name), None, "{name}");
        }
        let direct = reason("swapcontext").unwrap();
        assert!(direct.starts_with("swapcontext remembers"), "{direct}");
        for name in ["wraps", "twice"] {
            let reason = reason(name).unwrap();
            assert!(reason.contains("jumps to swapcontext"), "{reason}");
        }
    }

    #[test]
    fn only_a_look_does_no_harm() {
        let only_looks = |name| use_by(name) == Some(LOOKS_AT_CALLER);
        assert!(only_looks("dlopen") && only_looks("dlsym"));
        for name in ["mcount", "setjmp", "__morestack", "puts"] {
            assert!(!only_looks(name), "{name}");
        }
    }

    #[test]
    fn imports_are_known_by_their_names() {
        let text = ".text\n.globl a, lazy, bound\n\
            .type a,@function\n.type lazy,@function\n.type bound,@function\n\
            a: ret\n.size a,.-a\n\
            lazy: jmp dlopen@PLT\n.size lazy,.-lazy\n\
            bound: jmp *swapcontext@GOTPCREL(%rip)\n.size bound,.-bound\n";
        let image = assembled::image(text, &["-shared", "-Wl,-e,a"]);
        let mut modules = Modules::default();
        let module = modules.intern("/a", None, Some(image));
        let reason = |name: &str| {
            let addr = modules.get(module).image.as_ref().unwrap().symbol(name);
            let addr = addr.unwrap();
            is_used(&modules, CodeRef { module, addr }).map(|used| used.why)
        };
        assert_eq!(reason("a"), None);
        assert!(reason("lazy").unwrap().contains("dlopen, which looks"));
        let bound = reason("bound").unwrap();
        assert!(bound.contains("swapcontext"), "{bound}");
    }

    #[test]
    fn ordinary_names_are_none() {
        for name in ["main", "malloc", "dlclose", "longjmp", "morestack"] {
            assert_eq!(use_by(name), None, "{name}");
        }
        for name in ["dlsym", "vfork", "jump_fcontext", "__morestack_non_split"] {
            assert!(use_by(name).is_some(), "{name}");
        }
    }
}
