//! Calls that may be made while the C library's allocator holds a lock: they are not delayed unless that is asked for.

use darc_analysis::FnodeId;
use darc_process::modules::{CodeRef, Modules};
use darc_report::assemble::Names as _;
use darc_symbols::is_called;

use super::entries::name_of;
use crate::session::catalog::Naming;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::proving::Cause;

/// The C library's allocator, and what stops it. Inside of these it may hold a lock.
const ALLOCATOR: [&str; 23] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "cfree",
    "malloc_trim",
    "mallinfo",
    "mallinfo2",
    "malloc_info",
    "malloc_stats",
    "mallopt",
    "fork",
    "__fork",
    "__libc_fork",
    "__libc_malloc",
    "__libc_free",
    "__libc_realloc",
];
/// What the allocator calls while it holds a lock, as the C library calls it elsewhere too.
const CALLED_BY_ALLOCATOR: [&str; 10] = [
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "brk",
    "sbrk",
    "int_malloc",
    "int_free",
    "sysmalloc",
];
/// How the files of the C library and its loader are called.
const C_LIBRARY: [&str; 5] = ["libc.so", "libc-", "libpthread", "ld-linux", "ld-musl"];

/// Why a delay might keep a lock that all threads need, if it might.
pub fn refused(cause: Cause, investigation: &Investigation, naming: Naming<'_>) -> Option<String> {
    let why = match cause {
        Cause::Probes(_) => None,
        Cause::Call(fnode) => why_not_below(fnode, investigation, naming),
        Cause::Elsewhere(function) => match () {
            () if is_of_c_library(function, naming.modules) => Some(
                "it is a function of the C library, whose allocator may call it with a lock that all threads need"
                    .to_owned(),
            ),
            () if !has_c_library(naming.modules) => Some(
                "the C library is inside of the program, and its allocator may call it with a lock that all threads need"
                    .to_owned(),
            ),
            () => None,
        },
    };
    why.map(|why| format!("{why}; --in-allocator tries it all the same"))
}

/// Why calls on the path to one may be made while the allocator holds a lock.
fn why_not_below(
    fnode: FnodeId,
    investigation: &Investigation,
    naming: Naming<'_>,
) -> Option<String> {
    let ftree = investigation.analysis.ftree();
    let modules = naming.modules;
    let f0 = naming.f0().name;
    let path = ftree.path(fnode);
    let callers = path.iter().rev().skip(1).filter(|&&at| at != FnodeId::ROOT);
    let names = callers.map(|&at| name_of(ftree.fnode(at).callee, naming));
    let inside = names.chain([f0.clone()]).find(|name| is_of_allocator(name));
    if let Some(inside) = inside {
        return Some(format!(
            "it is called inside {inside}, where the allocator may hold a lock that all threads need"
        ));
    }
    if let Some(of) = investigation.f0
        && (is_of_c_library(of, modules) || is_called_by_allocator(&f0))
    {
        return Some(format!(
            "the allocator may call {f0} with a lock that all threads need"
        ));
    }
    (!has_c_library(modules) && is_stripped(modules)).then(|| {
        "the C library is inside of the program, in which nothing names the allocator: whether it holds a lock that all threads need is not known"
            .to_owned()
    })
}

fn is_of_allocator(name: &str) -> bool {
    ALLOCATOR.iter().any(|it| is_called(name, it))
}

/// Whether the allocator calls a function of that name: the C library has some of them under several.
fn is_called_by_allocator(name: &str) -> bool {
    let name = name.trim_start_matches('_').trim_end_matches("64");
    CALLED_BY_ALLOCATOR.contains(&name)
}

/// Whether a function is in one of the C library's own files.
pub fn is_of_c_library(function: CodeRef, modules: &Modules) -> bool {
    is_c_library(&modules.get(function.module).path)
}

fn is_c_library(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    C_LIBRARY.iter().any(|name| file.starts_with(name))
}

/// Whether the C library is a file of its own. In a static program it is not, and which functions are of it nothing tells.
fn has_c_library(modules: &Modules) -> bool {
    let mut loaded = modules.loaded().into_iter();
    loaded.any(|id| is_c_library(&modules.get(id).path))
}

/// Whether nothing names the functions of the program.
fn is_stripped(modules: &Modules) -> bool {
    let program = modules.loaded().first().copied();
    let image = program.and_then(|id| modules.get(id).image.as_ref());
    image.is_none_or(|image| image.is_stripped())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_allocator_calls_is_known_by_any_of_its_names() {
        for name in ["mmap", "__mmap64", "brk", "__sbrk", "_int_malloc"] {
            assert!(is_called_by_allocator(name), "{name}");
        }
        for name in ["mmap_file", "serve", "fdatasync", "embrk"] {
            assert!(!is_called_by_allocator(name), "{name}");
        }
    }

    #[test]
    fn the_c_library_is_known_by_its_file() {
        for path in [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/ld-musl-x86_64.so.1",
            "/lib64/libpthread-2.31.so",
        ] {
            assert!(is_c_library(path), "{path}");
        }
        for path in ["/usr/bin/libcat", "/usr/lib/libcrypto.so.3", "/srv/app", ""] {
            assert!(!is_c_library(path), "{path}");
        }
    }

    #[test]
    fn the_allocator_is_known_by_its_names() {
        for name in ["malloc", "free", "__libc_malloc", "malloc_info", "fork"] {
            assert!(is_of_allocator(name), "{name}");
        }
        for name in [
            "my_malloc",
            "vfork",
            "malloc_of_pool",
            "operator new(unsigned long)",
            "parse",
        ] {
            assert!(!is_of_allocator(name), "{name}");
        }
    }
}
