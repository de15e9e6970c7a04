//! Functions and system calls in which a thread waits for something to do: time in them says nothing about
//! the program's speed, so they are named and not analysed.
//!
//! Names: POSIX.1-2024 and the Linux manual pages, sections 2 and 3.

use std::collections::BTreeSet;

use darc_analysis::Callee;
use darc_analysis::totals::{Doing, Share, Totals};
use darc_process::modules::CodeRef;
use darc_record::FnodeId;
use darc_report::assemble::Names as _;

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
    let was_seen = || match totals.ftree().fnode(fnode).callee {
        Callee::Function(callee) => seen_to_wait.contains(&naming.catalog.callee_at(callee)),
        _ => false,
    };
    let mut way = totals.ftree().path(fnode).into_iter();
    if way.any(|fnode| waits(naming, totals, fnode)) {
        return Doing::Waits;
    }
    match path(naming, totals, fnode).last() {
        Some(name) if may_wait(name) || was_seen() => Doing::MayWait,
        _ => Doing::Work,
    }
}

/// Whether a thread waits in a call. A program may have a function `poll` of its own: it counts as another's only where it is
/// imported, or the program is linked statically.
fn waits(naming: Naming<'_>, totals: &Totals, fnode: FnodeId) -> bool {
    let Callee::Function(callee) = totals.ftree().fnode(fnode).callee else {
        let name = path(naming, totals, fnode).pop();
        return name.is_some_and(|name| is_waiting(&name));
    };
    let function = naming.function(callee);
    let place = naming.catalog.callee_at(callee);
    let image = naming.modules.get(place.module).image.as_ref();
    let is_import = || image.is_some_and(|image| image.plt_name(place.addr).is_some());
    let is_static = || {
        let mut loaded = naming.modules.loaded().into_iter();
        !loaded.any(|id| is_c_library(&naming.modules.get(id).path))
    };
    is_waiting(&function.name)
        && (is_c_library(&function.module)
            || function.name.starts_with("std::thread::")
            || is_import()
            || is_static())
}

fn is_c_library(module: &str) -> bool {
    let file = module.rsplit('/').next().unwrap_or_default();
    let names = ["libc.", "libc-", "libpthread", "ld-musl"];
    names.iter().any(|name| file.starts_with(name))
}

/// Whether the function or system call of this name reads from whoever sends something, sometimes.
pub fn may_wait(name: &str) -> bool {
    const NAMES: [&str; 5] = ["read", "recv", "recvfrom", "recvmmsg", "recvmsg"];
    NAMES.contains(&base(name))
}

/// A name without what the C library puts around it.
fn base(name: &str) -> &str {
    let base = name.split('@').next().unwrap_or(name);
    let base = base.strip_prefix("__GI_").unwrap_or(base);
    let base = base.strip_prefix("__libc_").unwrap_or(base);
    base.trim_start_matches('_')
}

/// Whether time in the function or system call of this name is waiting. Calls that wait only as a part of
/// doing something (`read`, `fsync`, a contended lock) are not among them.
#[must_use]
pub fn is_waiting(name: &str) -> bool {
    const NAMES: [&str; 38] = [
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
        "pause",
        "poll",
        "ppoll",
        "pselect",
        "pselect6",
        "pthread_cond_clockwait",
        "pthread_cond_timedwait",
        "pthread_cond_wait",
        "pthread_join",
        "rt_sigtimedwait",
        "select",
        "sem_timedwait",
        "sem_wait",
        "sigsuspend",
        "sigwait",
        "sigwaitinfo",
        "sigtimedwait",
        "sleep",
        "std::thread::functions::sleep",
        "std::thread::park",
        "std::thread::sleep",
        "usleep",
        "wait4",
        "waitid",
        "waitpid",
    ];
    NAMES.contains(&base(name))
}

#[cfg(test)]
mod tests {
    use crate::session::survey::waiting::is_waiting;

    #[test]
    fn waiting_is_told_from_work() {
        for name in [
            "epoll_wait",
            "__epoll_wait",
            "pthread_cond_wait@GLIBC_2.3.2",
        ] {
            assert!(is_waiting(name), "{name}");
        }
        for name in ["read", "fsync", "pthread_mutex_lock", "waiter", "selector"] {
            assert!(!is_waiting(name), "{name}");
        }
    }
}
