//! Functions and system calls in which a thread waits for something to do: time in them says nothing about
//! the program's speed, so they are named and not analysed.
//!
//! Names: POSIX.1-2024 and the Linux manual pages, sections 2 and 3.

use std::collections::BTreeSet;

use darc_analysis::Callee;
use darc_analysis::totals::{Doing, Share, Totals};
use darc_process::modules::{CodeRef, Modules};
use darc_process::plt::exported;
use darc_record::FnodeId;

use crate::session::catalog::Naming;
use crate::session::survey::arrivals::path;

/// What a thread does in a share of the time: by the calls on the way to it. Of a function
/// in which a thread was seen to wait (a server's own that polls, and may serve as well) it is not known.
#[must_use]
pub fn doing(
    naming: Naming<'_>,
    totals: &Totals,
    share: &Share,
    seen_to_wait: &BTreeSet<CodeRef>,
) -> Doing {
    let fnode = share.fnodes[0];
    let way = totals.ftree().path(fnode);
    if way.iter().any(|&fnode| waits(naming, totals, fnode)) {
        return Doing::Waits;
    }
    let was_seen = |fnode: FnodeId| was_seen(naming, totals, fnode, seen_to_wait);
    if was_seen(fnode) {
        return Doing::SeenToWait;
    }
    let name = path(naming, totals, fnode).pop().unwrap_or_default();
    // The lock of a queue may be held by who waits for the next entry.
    let called_there = || {
        let mut callers = way.iter().filter(|&&caller| caller != fnode);
        callers
            .any(|&caller| !totals.running().any(|running| running == caller) && was_seen(caller))
    };
    match may_wait(&name) || is_any_call(&name) || (is_lock(&name) && called_there()) {
        true => Doing::MayWait,
        false => Doing::Work,
    }
}

/// Whether a thread was seen to wait for something to do in the function of an fnode, or in what is behind its PLT stub.
fn was_seen(
    naming: Naming<'_>,
    totals: &Totals,
    fnode: FnodeId,
    seen_to_wait: &BTreeSet<CodeRef>,
) -> bool {
    let Callee::Function(callee) = totals.ftree().fnode(fnode).callee else {
        return false;
    };
    let place = naming.catalog.callee_at(callee);
    let image = naming.modules.get(place.module).image.as_ref();
    let imported = || image.and_then(|image| image.plt_name(place.addr));
    let behind = |name: String| {
        let mut behind = exported(naming.modules, &name);
        behind.any(|function| seen_to_wait.contains(&function))
    };
    !seen_to_wait.is_empty() && (seen_to_wait.contains(&place) || imported().is_some_and(behind))
}

/// Whether a thread waits in a call.
fn waits(naming: Naming<'_>, totals: &Totals, fnode: FnodeId) -> bool {
    match totals.ftree().fnode(fnode).callee {
        Callee::Function(callee) => {
            is_waiting_function(naming.modules, naming.catalog.callee_at(callee))
        }
        _ => {
            let name = path(naming, totals, fnode).pop();
            name.is_some_and(|name| is_waiting(&name))
        }
    }
}

/// Whether time in a function is waiting. A program may have a function `poll` of its own: it counts as another's only where it is
/// imported, or the program is linked statically.
pub(super) fn is_waiting_function(modules: &Modules, function: CodeRef) -> bool {
    let name = modules.name(function);
    if !is_waiting(&name) {
        return false;
    }
    let module = modules.get(function.module);
    let is_import = || {
        let image = module.image.as_ref();
        image.is_some_and(|image| image.plt_name(function.addr).is_some())
    };
    is_c_library(&module.path) || is_standard(&name) || is_import() || !has_c_library(modules)
}

/// Whether the C library is loaded as a file of its own, and not a part of the program.
pub(super) fn has_c_library(modules: &Modules) -> bool {
    let mut loaded = modules.loaded().into_iter();
    loaded.any(|id| is_c_library(&modules.get(id).path))
}

fn is_c_library(module: &str) -> bool {
    let file = module.rsplit('/').next().unwrap_or_default();
    let names = ["libc.", "libc-", "libpthread", "ld-musl"];
    names.iter().any(|name| file.starts_with(name))
}

/// Whether a function is of the standard library of C++ or Rust, which may be a part of the program.
fn is_standard(name: &str) -> bool {
    name.trim_start_matches('<').starts_with("std::")
}

/// Whether the function or system call of this name reads from whoever sends something, sometimes.
pub fn may_wait(name: &str) -> bool {
    const NAMES: [&str; 5] = ["read", "recv", "recvfrom", "recvmmsg", "recvmsg"];
    NAMES.contains(&base(name))
}

/// Whether what the function or system call of this name waits for, if it does, is told by its callers alone: a lock, or something to
/// do.
fn is_any_call(name: &str) -> bool {
    ["syscall", "futex"].contains(&base(name))
}

/// Whether the function of this name waits for a lock.
fn is_lock(name: &str) -> bool {
    let is_rust = || is_standard(name) && name.ends_with("::lock_contended");
    ["pthread_mutex_lock", "lll_lock_wait"].contains(&base(name)) || is_rust()
}

/// A name without what the C library puts around it.
fn base(name: &str) -> &str {
    let base = name.split(['@', '.']).next().unwrap_or(name);
    let base = base.strip_prefix("__GI_").unwrap_or(base);
    let base = base.strip_prefix("__libc_").unwrap_or(base);
    let base = base.strip_suffix("_chk").unwrap_or(base);
    base.trim_start_matches('_')
}

/// Whether time in the function or system call of this name is waiting. Calls that wait only as a part of
/// doing something (`read`, `fsync`, a contended lock) are not among them.
#[must_use]
pub fn is_waiting(name: &str) -> bool {
    const NAMES: [&str; 40] = [
        "accept",
        "accept4",
        "clock_nanosleep",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "io_getevents",
        "io_pgetevents",
        "kevent",
        "mq_receive",
        "mq_timedreceive",
        "msgrcv",
        "nanosleep",
        "new_sem_wait_slow64",
        "pause",
        "poll",
        "ppoll",
        "pselect",
        "pselect6",
        "pthread_clockjoin_ex",
        "pthread_clockjoin_np",
        "pthread_cond_clockwait",
        "pthread_cond_timedwait",
        "pthread_cond_wait",
        "pthread_join",
        "pthread_timedjoin_np",
        "rt_sigtimedwait",
        "select",
        "sem_clockwait",
        "sem_timedwait",
        "sem_wait",
        "sigsuspend",
        "sigwait",
        "sigwaitinfo",
        "sigtimedwait",
        "sleep",
        "usleep",
        "wait4",
        "waitid",
        "waitpid",
    ];
    NAMES.contains(&base(name)) || (is_standard(name) && is_standard_wait(name))
}

/// Whether time in the system call of this number is waiting.
pub(super) fn is_waiting_call(number: u32) -> bool {
    // What goes on with a sleep, a `poll` or a futex with a time limit that a stop of the thread interrupted.
    const RESTARTED: &str = "restart_syscall";
    let call = syscalls::Sysno::new(number as usize);
    call.is_some_and(|call| is_waiting(call.name()) || call.name() == RESTARTED)
}

/// Whether time in the function of this name, of the standard library of C++ or Rust, is waiting. Which parts of the name come from
/// where in the library changes from version to version.
fn is_standard_wait(name: &str) -> bool {
    const CPP: [&str; 6] = [
        "::condition_variable::wait",
        "::condition_variable::__do_timed_wait",
        "::condition_variable_any::wait",
        "std::this_thread::__sleep_for",
        "std::this_thread::sleep_",
        "std::thread::join",
    ];
    const RUST: [&str; 7] = [
        "::Condvar::wait",
        "::Condvar>::wait",
        "::Thread::park",
        "::Thread>::park",
        "std::thread::park",
        "std::thread::functions::park",
        "::thread::functions::sleep",
    ];
    let receives = ["std::sync::mpmc::", "std::sync::mpsc::"];
    let receives = receives.iter().any(|module| name.contains(module)) && name.contains("::recv");
    let mut parts = CPP.iter().chain(&RUST);
    receives || name.starts_with("std::thread::sleep") || parts.any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use crate::session::survey::waiting::{is_waiting, is_waiting_call};

    #[test]
    fn calls_in_which_threads_wait_are_known_by_their_numbers() {
        let waits = [
            libc::SYS_nanosleep,
            libc::SYS_epoll_wait,
            libc::SYS_restart_syscall,
        ];
        assert!(waits.iter().all(|&call| is_waiting_call(call as u32)));
        let others = [libc::SYS_read, libc::SYS_futex, 100_000];
        assert!(!others.iter().any(|&call| is_waiting_call(call as u32)));
    }

    #[test]
    fn waiting_is_told_from_work() {
        for name in [
            "epoll_wait",
            "__epoll_wait",
            "__poll_chk",
            "pthread_cond_wait@GLIBC_2.3.2",
            "__new_sem_wait_slow64.constprop.0",
            "std::condition_variable::wait(std::unique_lock<std::mutex>&)",
            "std::__1::condition_variable::wait(std::__1::unique_lock<std::__1::mutex>&)",
            "<std::sys::sync::condvar::futex::Condvar>::wait",
            "std::sys::sync::condvar::futex::Condvar::wait_optional_timeout",
            "<std::thread::thread::Thread>::park",
            "std::thread::functions::park_timeout",
            "std::sync::mpmc::list::Channel<T>::recv",
        ] {
            assert!(is_waiting(name), "{name}");
        }
        for name in [
            "read",
            "fsync",
            "pthread_mutex_lock",
            "waiter",
            "selector",
            "std::sync::mpmc::list::Channel<T>::try_recv",
            "std::sync::mpmc::list::Channel<T>::send",
            "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
            "my::Condvar::wait",
            "syscall",
        ] {
            assert!(!is_waiting(name), "{name}");
        }
    }
}
