//! Functions and system calls in which a thread waits for something to do: time in them says nothing about
//! the program's speed, so they are named and not analysed.
//!
//! Names: POSIX.1-2024 and the Linux manual pages, sections 2 and 3.

/// Whether time in the function or system call of this name is waiting. Calls that wait only as a part of
/// doing something (`read`, `fsync`, a contended lock) are not among them.
#[must_use]
pub fn is_waiting(name: &str) -> bool {
    const NAMES: [&str; 34] = [
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
        "sleep",
        "usleep",
        "wait4",
        "waitid",
        "waitpid",
    ];
    let base = name.split('@').next().unwrap_or(name);
    let base = base.strip_prefix("__GI_").unwrap_or(base);
    let base = base.strip_prefix("__libc_").unwrap_or(base);
    NAMES.contains(&base.trim_start_matches('_'))
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
