//! Whether a program of the Go run-time can be measured, and what the engine must know of it.

use std::ops::Range;

use darc_disasm::{CodePart, FunctionCode, thread_local};
use darc_symbols::{GoFunction, Image};
use darc_tracer::plan::{Callees, Goroutines};

/// Where the number of a goroutine is in its descriptor, and where that of the goroutine that runs in a thread's, by version of
/// Go 1: what has been measured with each.
///
/// Source: `goid` in `type g struct` and `curg` in `type m struct`, in Go's `src/runtime/runtime2.go`.
const KNOWN: [(u32, u32, u32); 8] = [
    (19, 152, 192),
    (21, 152, 192),
    (22, 152, 192),
    (23, 160, 192),
    (24, 160, 192),
    (25, 152, 184),
    (26, 152, 184),
    (27, 152, 184),
];

/// Functions that only programs have of which nobody has found out whether they can be measured, and what these are.
const STRANGE: [(&str, &str); 4] = [
    (
        "_rt0_amd64_linux_lib",
        "a library of Go's for programs in C (-buildmode=c-archive or c-shared)",
    ),
    ("runtime.racecall", "built with -race"),
    ("runtime.msancall", "built with -msan"),
    ("runtime.asancall", "built with -asan"),
];

/// By it C code comes to Go's.
const FROM_C: &str = "crosscall2";

/// Where threads of programs without C code keep their goroutine, from the thread pointer on (`runtime.settls`).
const KEPT: i32 = -8;

/// What is known of the program that an image is.
///
/// # Errors
/// Why it cannot be measured, for people.
pub fn of(image: &Image) -> Result<Goroutines, String> {
    let version = image.go_version();
    let Some(version) = version else {
        return Err("it does not say by which version of Go".to_owned());
    };
    let mut known = KNOWN.iter();
    let Some(&(_, number, current)) = known.find(|&&(known, ..)| minor(&version) == Some(known))
    else {
        let known = KNOWN.map(|(minor, ..)| format!("1.{minor}")).join(", ");
        return Err(format!("{version} is not known, only {known} are"));
    };
    let names = STRANGE.iter().map(|&(name, _)| name);
    let names: Vec<&str> = names.chain(SYSTEM_STACK).chain([FROM_C]).collect();
    let functions = image.go_functions_named(&names);
    let has = |name: &str| functions.iter().any(|function| function.name == name);
    if let Some((_, what)) = STRANGE.iter().find(|(name, _)| has(name)) {
        return Err(format!("it is {what}, which is not known yet"));
    }
    if !SYSTEM_STACK.into_iter().any(has) {
        return Err(format!(
            "of {version}, and it has no table of its functions that can be read"
        ));
    }
    let is_linked_by_go = image.interpreter().is_none() && image.symbol(FROM_C).is_none();
    let calls_c = !is_linked_by_go || has(FROM_C);
    let switches = functions.iter().filter(|it| {
        let name = it.name.as_str();
        SYSTEM_STACK.contains(&name) && it.is_assembly
    });
    // There is one of each name, where nobody has made the table up.
    let mut switches = switches.take(SYSTEM_STACK.len());
    let found = switches.find_map(|function| kept(image, function));
    let Some(kept) = found.or((!calls_c).then_some(KEPT)) else {
        return Err(format!(
            "of {version}, linked dynamically or with C code (cgo), and where its threads keep their goroutines is not known"
        ));
    };
    Ok(Goroutines {
        number,
        current,
        kept,
        calls_c,
    })
}

/// Where a thread keeps the address of its goroutine's descriptor, from its thread pointer on, as the function reads it that begins with
/// that.
fn kept(image: &Image, function: &GoFunction) -> Option<i32> {
    /// Where it reads that, all that was before is a comparison.
    const SEARCHED: u64 = 256;
    let GoFunction { code, .. } = function;
    let len = code.end.0.checked_sub(code.start.0)?;
    let bytes = image.bytes_at(code.start, len.min(SEARCHED))?;
    let start = code.start.0;
    let code = FunctionCode::new(vec![CodePart { start, bytes }])?;
    let at = thread_local(&code)?;
    // Above the thread pointer is the C library's.
    let is_one = at < 0 && at % 8 == 0;
    is_one.then(|| i32::try_from(at).ok())?
}

/// Functions of the run-time, written in assembly, that are called as any other is. Others get what they need where the
/// compiler happens to have it, in any register.
const PLAIN: [&str; 7] = [
    "runtime.memmove",
    "runtime.memclrNoHeapPointers",
    "runtime.memequal",
    "runtime.memequal_varlen",
    "runtime.cmpstring",
    "runtime.memhash",
    "runtime.strhash",
];

/// Where failed checks of the compiler's lead, by the beginnings of their names. They never return, and read any register.
const CHECKS: [&str; 3] = [
    "runtime.panicIndex",
    "runtime.panicSlice",
    "runtime.panicBounds",
];

/// What notes the pointers that a function writes while the collector marks.
const WRITE_BARRIERS: &str = "runtime.gcWriteBarrier";

/// Functions below which are other goroutines, or the run-time on stacks of its own.
const OPAQUE: [&str; 10] = [
    "runtime.gopark",
    // All that it does is to wait, by a call behind which there is no room for a jump.
    "internal/poll.runtime_pollWait",
    "runtime.Gosched",
    "runtime.goschedguarded",
    "runtime.goyield",
    "runtime.coroswitch",
    "runtime.morestack",
    "runtime.morestack_noctxt",
    "runtime.systemstack",
    // C code runs, and what of Go's it calls.
    "runtime.cgocall",
];

/// Functions in assembly that make a system call, or go on in the function that does.
const SYSTEM_CALLS: [&str; 10] = [
    "runtime/internal/syscall.Syscall6",
    "internal/runtime/syscall.Syscall6",
    "internal/runtime/syscall/linux.Syscall6",
    "syscall.rawSyscallNoError",
    "golang.org/x/sys/unix.Syscall",
    "golang.org/x/sys/unix.Syscall6",
    "golang.org/x/sys/unix.SyscallNoError",
    "golang.org/x/sys/unix.RawSyscall",
    "golang.org/x/sys/unix.RawSyscall6",
    "golang.org/x/sys/unix.RawSyscallNoError",
];

/// By it a goroutine stops and goes on: it waits, is ready, runs.
const STATUSES: &str = "runtime.casgstatus";

/// It compares the goroutine that calls it with the thread's.
const SYSTEM_STACK: [&str; 2] = ["runtime.systemstack", "runtime.systemstack.abi0"];

/// Other functions that never return, as the compiler knows: behind a call of one there is code that is reached otherwise, in
/// which all registers may be in use.
const UNRETURNING: [&str; 6] = [
    "runtime.fatal",
    "runtime.fatalthrow",
    "runtime.fatalpanic",
    "runtime.block",
    "runtime.Goexit",
    "runtime.gopanic",
];
/// ... and how the names of more of them begin.
const UNRETURNING_PREFIXES: [&str; 4] = [
    "runtime.goPanic",
    "runtime.panic",
    "runtime.throw",
    "runtime.goexit",
];
/// It returns in the child first, which has its parent's memory (vfork(2)).
const RETURNS_TWICE: &str = "syscall.rawVforkSyscall";
/// What handles signals, by the beginnings of names: not on a goroutine's stack, whatever is said to be the goroutine. The last two are
/// where C code has made the handler's stack.
const SIGNALS: [&str; 4] = [
    "runtime.sig",
    "runtime.(*sigctxt)",
    "runtime.adjustSignalStack",
    "runtime.restoreGsignalStack",
];

/// What is known of a program's functions, by where they are.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// For the engine.
    pub callees: Callees,
    /// The entries of all functions of Go's, in order.
    functions: Vec<u64>,
    /// Code that is a part of whoever calls it, in order: it copies or clears some words, notes a pointer that was written, says
    /// that a check has failed, or runs another goroutine.
    own: Vec<Range<u64>>,
    /// Entries of functions that are not looked into, in order.
    opaque: Vec<u64>,
    /// The entry of the function by which all that stops or goes on changes its status,
    statuses: Option<u64>,
    /// and of the one by which a thread changes over to its own stack.
    system_stack: Option<u64>,
}

impl Known {
    /// Of functions at their run-time addresses.
    pub fn of(functions: impl IntoIterator<Item = (GoFunction, Range<u64>)>) -> Known {
        let mut known = Known::default();
        for (function, code) in functions {
            let GoFunction {
                name, is_assembly, ..
            } = function;
            if function.is_c {
                continue;
            }
            known.functions.push(code.start);
            let is_one_of = |names: &[&str]| names.iter().any(|it| name.starts_with(it));
            let is_system_call = is_assembly && SYSTEM_CALLS.contains(&name.as_str());
            if OPAQUE.contains(&name.as_str()) || is_system_call {
                known.opaque.push(code.start);
            }
            if name == STATUSES {
                known.statuses = Some(code.start);
            }
            if SYSTEM_STACK.contains(&name.as_str()) {
                known.system_stack = Some(code.start);
            }
            let is_small = is_assembly && (is_one_of(&CHECKS) || name.starts_with(WRITE_BARRIERS))
                || name.starts_with("runtime.duff");
            if is_small || name == "runtime.mcall" {
                known.own.push(code);
                continue;
            }
            let callees = &mut known.callees;
            let ends = UNRETURNING.contains(&name.as_str()) || is_one_of(&UNRETURNING_PREFIXES);
            if ends && !is_assembly {
                callees.unreturning.push(code.start);
            }
            if is_one_of(&SIGNALS) {
                continue;
            }
            if !is_assembly {
                callees.compiled.push(code.start);
            } else if name == RETURNS_TWICE {
                known.own.push(code);
            } else if !name.starts_with("runtime.") || PLAIN.contains(&name.as_str()) {
                callees.ordinary.push(code.start);
            }
        }
        let callees = &mut known.callees;
        for entries in [
            &mut known.functions,
            &mut callees.compiled,
            &mut callees.ordinary,
            &mut callees.unreturning,
        ] {
            entries.sort_unstable();
        }
        known.own.sort_unstable_by_key(|code| code.start);
        known.opaque.sort_unstable();
        known
    }

    /// Whether a function is certainly none of Go's: it is C code.
    #[must_use]
    pub fn is_c(&self, entry: u64) -> bool {
        !self.functions.is_empty() && self.functions.binary_search(&entry).is_err()
    }

    /// Whether a function is not looked into.
    #[must_use]
    pub fn is_opaque(&self, entry: u64) -> bool {
        self.opaque.binary_search(&entry).is_ok()
    }

    /// Where the function begins by which a goroutine stops and goes on.
    #[must_use]
    pub fn statuses(&self) -> Option<u64> {
        self.statuses
    }

    /// Where the function begins by which a thread changes over to its own stack.
    #[must_use]
    pub fn system_stack(&self) -> Option<u64> {
        self.system_stack
    }

    /// Whether what is called there is a part of whoever calls it.
    #[must_use]
    pub fn is_of_caller(&self, addr: u64) -> bool {
        let behind = self.own.partition_point(|code| code.start <= addr);
        let code = behind.checked_sub(1).map(|at| &self.own[at]);
        code.is_some_and(|code| code.contains(&addr))
    }
}

/// `go1.19.8` → 19. Release candidates and changed tool chains count as unknown.
fn minor(version: &str) -> Option<u32> {
    let rest = version.strip_prefix("go1.")?;
    let (minor, patch) = rest.split_once('.').unwrap_or((rest, "0"));
    patch.parse::<u32>().ok()?;
    minor.parse().ok()
}

#[cfg(test)]
mod tests {
    use darc_symbols::FileAddr;

    use super::*;

    #[test]
    fn functions_are_told_apart_by_how_they_are_called() {
        let functions = [
            ("runtime.gcWriteBarrier1", true),
            ("runtime.memmove", true),
            ("internal/bytealg.Count", true),
            ("main.leaf", false),
            ("runtime.gopanic", false),
            ("runtime.duffzero", true),
            ("runtime.panicIndex", true),
            ("runtime.mcall", true),
            ("runtime.gopark", false),
            ("runtime.sigtrampgo", false),
            ("runtime.block", false),
            ("runtime.blockevent", false),
            ("internal/runtime/syscall/linux.Syscall6", true),
            ("main.Syscall6", true),
            ("runtime.coroswitch", false),
            ("runtime.goyield", false),
            ("x_cgo_init", false),
            ("runtime.restoreGsignalStack", false),
        ];
        let function = |(at, (name, is_assembly)): (u64, (&str, bool))| {
            let code = 16 * at..16 * at + 16;
            let function = GoFunction {
                name: name.to_owned(),
                code: FileAddr(code.start)..FileAddr(code.end),
                is_assembly,
                is_c: name == "x_cgo_init",
            };
            (function, code)
        };
        let known = Known::of((0..).zip(functions).map(function));
        assert_eq!(known.callees.ordinary, [16, 32, 192, 208]);
        assert_eq!(known.callees.compiled, [48, 64, 128, 160, 176, 224, 240]);
        assert_eq!(known.callees.unreturning, [64, 160]);
        let own = [0, 79, 80, 95, 111, 127, 128].map(|addr| known.is_of_caller(addr));
        assert_eq!(own, [true, false, true, true, true, true, false]);
        assert_eq!(
            [16, 240, 248, 256, 272].map(|entry| known.is_c(entry)),
            [false, false, true, true, false]
        );
        let opaque = [48, 128, 192, 208, 224, 240].map(|entry| known.is_opaque(entry));
        assert_eq!(opaque, [false, true, true, false, true, true]);
    }

    #[test]
    fn versions_are_read() {
        for (version, expected) in [
            ("go1.19.8", Some(19)),
            ("go1.27", Some(27)),
            ("go1.27rc1", None),
            ("go1.24.1 X:nocoverageredesign", None),
            ("devel go1.27-abc", None),
        ] {
            assert_eq!(minor(version), expected, "{version}");
        }
    }
}
