//! What is said of calls of a Go function that were not measured, and of one of which none was.

use darc_disasm::{SiteKind, Target};
use darc_process::Process;
use darc_tracer::addr::TargetAddr;

use crate::session::descent::goroutines::is_of_run_time;
use crate::session::descent::investigation::Investigation;
use crate::session::survey::suspicion;

/// So many functions are proposed.
const MOST_NAMES: usize = 3;
/// From this part of all calls on it matters that some were not measured.
const MANY: f64 = 0.1;
/// From this part of all calls on it is said that some did not return.
const SOME: f64 = 0.01;

/// The first elements of the paths of Go's own packages.
const STANDARD: [&str; 50] = [
    "archive",
    "bufio",
    "bytes",
    "cmp",
    "compress",
    "container",
    "context",
    "crypto",
    "database",
    "debug",
    "embed",
    "encoding",
    "errors",
    "expvar",
    "flag",
    "fmt",
    "go",
    "hash",
    "html",
    "image",
    "index",
    "internal",
    "io",
    "iter",
    "log",
    "maps",
    "math",
    "mime",
    "net",
    "os",
    "path",
    "plugin",
    "reflect",
    "regexp",
    "runtime",
    "slices",
    "sort",
    "strconv",
    "strings",
    "structs",
    "sync",
    "syscall",
    "testing",
    "text",
    "time",
    "unicode",
    "unique",
    "unsafe",
    "vendor",
    "weak",
];

/// Of calls that passed, as there was no room for their goroutines.
#[must_use]
pub fn unfollowed(passed: u64, measured: u64) -> String {
    let all = passed.saturating_add(measured) as f64;
    let so = match passed as f64 >= MANY * all {
        true => "; latencies, peaks and their shares are of some goroutines only",
        false => "",
    };
    format!(
        "{passed} calls of f0 passed unmeasured: 1,024 goroutines are followed at a time, each from its first call of f0 until it ends, fewer where memory is limited{so}"
    )
}

/// Of calls that a panic ended, where these are many.
#[must_use]
pub fn ended_otherwise(ended: u64, measured: u64) -> Option<String> {
    let all = ended.saturating_add(measured) as f64;
    (ended as f64 > SOME * all).then(|| {
        format!(
            "{ended} calls of f0 ended by a panic or runtime.Goexit: they are not in the profile, and may be the slow ones"
        )
    })
}

/// Of an f0 of which no call has returned for some seconds, and none is on a stack.
#[must_use]
pub fn uncalled(f0: &str, pid: i32) -> String {
    format!(
        "no call of {f0} has returned in the first {} s: it may not be called now, or its callers have it inlined or call a copy of it; Ctrl-C ends the wait; darc attach {pid}, without --f0, finds what is called",
        suspicion::LONG.as_secs()
    )
}

/// What to measure in place of an f0 of which no call has returned (`until` in words when); nothing where one has, or where that is not known.
#[must_use]
pub fn unreturned(
    process: &Process<'_>,
    investigation: &Investigation,
    until: &str,
) -> Option<String> {
    let f0 = investigation.f0?;
    if investigation.calls() > 0 {
        return None;
    }
    let modules = process.modules();
    let name = modules.name(f0);
    let image = modules.get(f0.module).image.as_ref()?;
    let is_there = |wrapper: &String| {
        let mut names = image.functions().iter().flat_map(|it| it.names());
        names.any(|name| name == wrapper)
    };
    if let Some(wrapper) = wrapper(&name).filter(is_there) {
        return Some(format!(
            "no call of {name} returned{until}: calls through an interface may be calls of {wrapper}, into which the compiler puts its code; name that, {}",
            option(&wrapper)?
        ));
    }
    let callees = match callees(process, investigation) {
        none if none.is_empty() => String::new(),
        some => format!(": {}", some.join(" or ")),
    };
    Some(format!(
        "no call of {name} returned{until}: where it runs or waits as long as the program does, name a function that it calls{callees}"
    ))
}

/// Whether f0 is the function that a program begins with: it is called once, and the program ends with it.
#[must_use]
pub fn is_main(process: &Process<'_>, investigation: &Investigation) -> bool {
    let f0 = investigation.f0.map(|f0| process.modules().name(f0));
    f0.is_some_and(|name| name == "main.main")
}

/// Options that name functions that f0 calls, the program's own.
#[must_use]
pub fn callees(process: &Process<'_>, investigation: &Investigation) -> Vec<String> {
    let modules = process.modules();
    let entry = investigation.f0.and_then(|f0| modules.locate(f0));
    let scanned = entry.and_then(|entry| process.scan(entry).ok());
    let sites = scanned.iter().flat_map(|scanned| &scanned.sites);
    let targets = sites.filter_map(|site| match site.kind {
        SiteKind::Call(Target::Direct(to)) => Some(TargetAddr(to)),
        _ => None,
    });
    let others = targets.filter(|&to| Some(to) != entry);
    let names = others.filter_map(|to| Some(modules.name(modules.place(to)?)));
    let f0 = investigation.f0.map(|f0| modules.name(f0));
    proposed(&f0.unwrap_or_default(), names.collect())
}

/// Options that name some of these functions: those of f0's own package first, then others of the program's, in their order.
fn proposed(f0: &str, mut names: Vec<String>) -> Vec<String> {
    let is_own = |name: &str| package(name) == package(f0);
    names.retain(|name| {
        let is_made = name.starts_with("type:") || name.starts_with("go:");
        !is_of_run_time(name) && !is_made && (is_own(name) || !is_of_standard_library(name))
    });
    names.sort_by_key(|name| !is_own(name));
    let mut options: Vec<String> = Vec::new();
    for option in names.iter().filter_map(|name| option(name)) {
        if !options.contains(&option) && options.len() < MOST_NAMES {
            options.push(option);
        }
    }
    options
}

/// The package of a function, by its name: `example.org/a/b` of `example.org/a/b.(*T).Get`.
fn package(name: &str) -> &str {
    // Type arguments have packages, too.
    let plain = name.split('[').next().unwrap_or_default();
    let last = plain.rfind('/').map_or(0, |at| at + 1);
    let end = plain[last..].find('.').map_or(plain.len(), |at| last + at);
    &plain[..end]
}

/// Whether a function is of a package that comes with Go: no other has these names, and those of others have a dot in the first
/// element of their path mostly.
fn is_of_standard_library(name: &str) -> bool {
    let first = package(name).split('/').next().unwrap_or_default();
    STANDARD.contains(&first)
}

/// `--f0` with a name, for a shell.
fn option(name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/".contains(c);
    match name.chars().all(is_plain) {
        true => Some(format!("--f0 {name}")),
        false if name.contains('\'') => None,
        false => Some(format!("--f0 '{name}'")),
    }
}

/// The method that the compiler makes of one of a value, `main.T.Get`, for a pointer to it: `main.(*T).Get`.
fn wrapper(name: &str) -> Option<String> {
    let last = name.rfind('/').map_or(0, |at| at + 1);
    let mut parts = name[last..].split('.');
    let (package, receiver, method) = (parts.next()?, parts.next()?, parts.next()?);
    let is_method = parts.next().is_none() && !receiver.starts_with('(');
    is_method.then(|| format!("{}{package}.(*{receiver}).{method}", &name[..last]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_calls_are_missing_is_weighed() {
        assert!(unfollowed(10, 90).contains("some goroutines only"));
        assert!(!unfollowed(10, 900).contains("some goroutines only"));
        assert_eq!(ended_otherwise(1, 99), None);
        assert!(ended_otherwise(2, 98).is_some_and(|said| said.contains("may be the slow ones")));
        assert_eq!(ended_otherwise(0, 0), None);
    }

    #[test]
    fn functions_of_the_program_are_proposed() {
        let names =
            |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let called = names(&[
            "strings.Split",
            "example.org/x/y.(*T[go.shape.int]).Do",
            "net/http.(*Server).Serve",
            "type:.eq.main.T",
            "runtime.gopark",
            "main.parse",
            "own/part.F[example.org/a.B]",
        ]);
        let (parse, other) = (
            "--f0 main.parse",
            "--f0 'example.org/x/y.(*T[go.shape.int]).Do'",
        );
        let generic = "--f0 'own/part.F[example.org/a.B]'";
        assert_eq!(
            proposed("main.work", called.clone()),
            [parse, other, generic]
        );
        let of_http = proposed("net/http.(*Server).ListenAndServe", called);
        assert_eq!(of_http[0], "--f0 'net/http.(*Server).Serve'");
    }

    #[test]
    fn methods_of_values_have_wrappers() {
        assert_eq!(wrapper("main.T.Get").as_deref(), Some("main.(*T).Get"));
        assert_eq!(
            wrapper("example.org/a.b/c.T.Get").as_deref(),
            Some("example.org/a.b/c.(*T).Get")
        );
        for other in ["main.f", "main.(*T).Get", "main.f.func1.2", ""] {
            assert_eq!(wrapper(other), None, "{other}");
        }
        assert_eq!(option("main.f").as_deref(), Some("--f0 main.f"));
        assert_eq!(option("main.(*T).f").as_deref(), Some("--f0 'main.(*T).f'"));
        assert_eq!(option("main.'f"), None);
    }
}
