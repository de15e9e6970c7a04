//! What it means that a path ends where a goroutine does not go on, or where Go's run-time works for itself.

use super::words::Instead;

/// What time is called in which a goroutine was ready and did not run.
pub const NOT_RUNNING: &str = "(goroutine ready, not running)";

/// What goroutines wait for, by the beginnings of the names of functions above the one in which they do, and in which words.
/// The first that fits counts: those further down are what others are made of. None calls code of the program, so that no two
/// of which neither is made of the other are on a path.
const WAITS: [(&str, &str); 19] = [
    ("runtime.gcParkAssist", GARBAGE),
    ("runtime.gcAssistAlloc", GARBAGE),
    ("runtime.gcStart", GARBAGE),
    ("time.Sleep", "until a time (time.Sleep)"),
    ("runtime.selectgo", "in a select"),
    ("runtime.chanrecv", "to receive from a channel"),
    ("runtime.chansend", "to send to a channel"),
    ("sync.(*RWMutex)", "for a lock (sync.RWMutex)"),
    ("sync.(*Mutex)", "for a lock (sync.Mutex)"),
    ("sync.(*WaitGroup)", "for other goroutines (sync.WaitGroup)"),
    ("sync.(*Cond)", "for a condition (sync.Cond)"),
    ("sync.runtime_notifyListWait", "for a condition (sync.Cond)"),
    ("sync.runtime_Semacquire", "for a lock or a group of sync"),
    ("poll.(*fdMutex)", SAME_FILE),
    (
        "poll.(*FD).Close",
        "for others that use the file or connection, which it closes",
    ),
    ("poll.runtime_Semacquire", SAME_FILE),
    ("poll.runtime_pollWait", POLLER),
    ("runtime.netpollblock", POLLER),
    ("runtime.semacquire", "for a semaphore of the run-time"),
];

const GARBAGE: &str = "for garbage collection, which it had to help or to begin";
const SAME_FILE: &str = "for another goroutine that reads or writes the same file or connection";
const POLLER: &str = "for the network, a pipe or the like (the poller)";

/// What the run-time does on the thread's own stack, in the same way.
const WORKS: [(&str, &str); 11] = [
    (
        "runtime.gcAssistAlloc",
        "it helped the garbage collector to mark, as who allocates must while that works (GC assist)",
    ),
    (
        "runtime.gcStart",
        "it began a garbage collection, for which the world is stopped",
    ),
    (
        "runtime.gcMarkDone",
        "it ended the marking of a garbage collection, for which the world is stopped",
    ),
    (
        "runtime.gcMarkTermination",
        "it ended the marking of a garbage collection, for which the world is stopped",
    ),
    (
        "runtime.stopTheWorld",
        "it stopped the world: all other goroutines",
    ),
    (
        "runtime.startTheWorld",
        "it let the world go on: all other goroutines",
    ),
    (
        "runtime.deductSweepCredit",
        "it swept memory, as who allocates must after a garbage collection",
    ),
    (
        "runtime.(*mheap)",
        "the run-time took memory for it from the heap",
    ),
    (
        "runtime.(*mcache)",
        "the run-time took memory for it from the heap",
    ),
    ("runtime.newproc", "it made a goroutine"),
    ("runtime.goready", "it let another goroutine go on"),
];

/// What one of two has so much of is for the most part its doing.
const MOST: f64 = 0.6;

/// Whose doing it was that a goroutine was ready and did not run: the kernel's for this part of the time, where that is known.
#[must_use]
pub(crate) fn not_running(of_kernel: Option<f64>, instead: Instead) -> &'static str {
    let Some(of_kernel) = of_kernel else {
        return "the goroutine was ready, but did not run";
    };
    match instead {
        _ if of_kernel <= 1.0 - MOST => {
            "the goroutine was ready, but the run-time had others run, or none, as while it has stopped the world, or no thread of it was given a processor yet"
        }
        _ if of_kernel < MOST => {
            "the goroutine was ready, but now the run-time did not have it run, now the kernel did not run the thread that it was on"
        }
        Instead::Another => {
            "the goroutine was ready and had its turn, but the kernel ran another thread in place of the one that it was on"
        }
        Instead::Nothing => {
            "the goroutine was ready and had its turn, but its thread did not run, and the processor was idle (a limit of CPU time, or the hypervisor)"
        }
        Instead::Unknown => {
            "the goroutine was ready and had its turn, but the kernel did not run the thread that it was on"
        }
    }
}

/// What takes the time of a path that ends in such a function.
#[must_use]
pub fn waiting(path: &[String]) -> Option<String> {
    let (last, above) = path.split_last()?;
    match last.strip_suffix(".abi0").unwrap_or(last) {
        "runtime.gopark" => {
            let what = leading(&WAITS, above);
            let what = what.map_or(String::new(), |what| format!(" {what}"));
            Some(format!(
                "the goroutine waited{what}, and then for its turn to run"
            ))
        }
        "internal/poll.runtime_pollWait" => Some(format!(
            "the goroutine waited {POLLER}, and then for its turn to run"
        )),
        "runtime.morestack" | "runtime.morestack_noctxt" => {
            Some("its stack grew, or the run-time stopped it there".to_owned())
        }
        "runtime.Gosched" => Some("the goroutine let others run (runtime.Gosched)".to_owned()),
        "runtime.goyield" | "runtime.goschedguarded" => Some(yielding(above).to_owned()),
        "runtime.coroswitch" => Some(
            "the other side of a coroutine ran, which is a goroutine of its own (iter.Pull)"
                .to_owned(),
        ),
        "runtime.systemstack" => {
            let what = leading(&WORKS, above);
            Some(
                what.unwrap_or("the run-time worked for it on the thread's stack")
                    .to_owned(),
            )
        }
        "runtime.cgocall" => Some(
            "C code ran (cgo), or what of Go's it called, and then the goroutine waited for its turn to run"
                .to_owned(),
        ),
        last if makes_system_call(last) => {
            Some("it is in a system call, in which it may wait".to_owned())
        }
        _ => None,
    }
}

/// What it means that the run-time lets others run in a goroutine's place.
fn yielding(above: &[String]) -> &'static str {
    match above.iter().any(|name| name == "runtime.semrelease1") {
        true => {
            "it handed its lock to a goroutine that had waited for long, which ran in its place"
        }
        false => "the run-time let other goroutines run in its place",
    }
}

/// Whether a function is one in assembly by which Go's packages make system calls.
fn makes_system_call(name: &str) -> bool {
    const PACKAGES: [&str; 5] = [
        "runtime/internal/syscall",
        "internal/runtime/syscall",
        "internal/runtime/syscall/linux",
        "syscall",
        "golang.org/x/sys/unix",
    ];
    const FUNCTIONS: [&str; 7] = [
        "Syscall",
        "Syscall6",
        "SyscallNoError",
        "RawSyscall",
        "RawSyscall6",
        "RawSyscallNoError",
        "rawSyscallNoError",
    ];
    let parts = name.rsplit_once('.');
    parts.is_some_and(|(package, function)| {
        PACKAGES.contains(&package) && FUNCTIONS.contains(&function)
    })
}

/// The words for the first beginning of a name that leads to the end of a path.
fn leading(known: &[(&str, &'static str)], above: &[String]) -> Option<&'static str> {
    let leads_there = |(function, _): &&(&str, &str)| {
        let plain = |name: &String| name.strip_prefix("internal/").unwrap_or(name).to_owned();
        above.iter().any(|name| plain(name).starts_with(function))
    };
    known.iter().find(leads_there).map(|&(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goroutines_wait_for_is_said() {
        let said = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|&name| name.to_owned()).collect();
            waiting(&path).unwrap_or_default()
        };
        for (path, words) in [
            (
                &["main.f", "time.Sleep", "runtime.gopark"][..],
                "until a time",
            ),
            (
                &[
                    "main.f",
                    "internal/sync.(*Mutex).lockSlow",
                    "runtime.semacquire1",
                    "runtime.gopark",
                ],
                "for a lock",
            ),
            (
                &["runtime.chanrecv1", "runtime.chanrecv", "runtime.gopark"],
                "to receive from a channel",
            ),
            (
                &[
                    "internal/poll.runtime_pollWait",
                    "runtime.netpollblock",
                    "runtime.gopark",
                ],
                "for the network",
            ),
            (
                &[
                    "internal/poll.(*pollDesc).wait",
                    "internal/poll.runtime_pollWait",
                ],
                "for the network",
            ),
            (
                &[
                    "internal/poll.(*FD).Write",
                    "internal/poll.(*fdMutex).rwlock",
                    "internal/poll.runtime_Semacquire",
                    "runtime.semacquire1",
                    "runtime.gopark",
                ],
                "for another goroutine that reads or writes the same file",
            ),
            (
                &[
                    "sync.(*RWMutex).Lock",
                    "sync.(*Mutex).Lock",
                    "runtime.gopark",
                ],
                "for a lock (sync.RWMutex)",
            ),
            (&["main.f", "runtime.gopark"], "the goroutine waited, and"),
            (
                &["main.f", "main._Cfunc_f", "runtime.cgocall"],
                "C code ran (cgo)",
            ),
            (
                &["main.f", "runtime.morestack_noctxt.abi0"],
                "its stack grew",
            ),
            (
                &[
                    "runtime.mallocgc",
                    "runtime.gcAssistAlloc",
                    "runtime.systemstack.abi0",
                ],
                "GC assist",
            ),
            (
                &["runtime.gcStart", "runtime.systemstack"],
                "it began a garbage collection",
            ),
            (&["main.f", "runtime.systemstack"], "the run-time worked"),
            (
                &[
                    "syscall.Fsync",
                    "syscall.Syscall",
                    "syscall.RawSyscall6",
                    "internal/runtime/syscall.Syscall6",
                ],
                "in a system call",
            ),
            (
                &[
                    "golang.org/x/sys/unix.Fsync",
                    "golang.org/x/sys/unix.Syscall.abi0",
                ],
                "in a system call",
            ),
            (&["iter.Pull.func2", "runtime.coroswitch"], "a coroutine"),
            (
                &[
                    "sync.(*Mutex).unlockSlow",
                    "runtime.semrelease1",
                    "runtime.goyield",
                ],
                "it handed its lock",
            ),
        ] {
            assert!(said(path).contains(words), "{path:?}: {}", said(path));
        }
        for stranger in ["main.gopark", "main.Syscall6", "syscall.Fsync"] {
            assert_eq!(said(&["main.f", stranger]), "");
        }
    }
}
