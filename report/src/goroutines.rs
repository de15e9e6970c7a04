//! What it means that a path ends in a function of Go's run-time in which a goroutine does not go on.

/// What goroutines wait for, by the beginnings of the names of functions above the one in which they do, and in which words.
/// The first that fits counts: those further down are what others are made of.
const WAITS: [(&str, &str); 16] = [
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
    ("poll.runtime_pollWait", POLLER),
    ("runtime.netpollblock", POLLER),
    ("runtime.semacquire", "for a semaphore of the run-time"),
];

const GARBAGE: &str = "for garbage collection, which it had to help or to begin";
const POLLER: &str = "for the network, a pipe or the like (the poller)";

/// What takes the time of a path that ends in such a function.
#[must_use]
pub fn waiting(path: &[String]) -> Option<String> {
    let (last, above) = path.split_last()?;
    match last.strip_suffix(".abi0").unwrap_or(last) {
        "runtime.gopark" => {
            let leads_there = |(function, _): &&(&str, &str)| {
                let plain =
                    |name: &String| name.strip_prefix("internal/").unwrap_or(name).to_owned();
                above.iter().any(|name| plain(name).starts_with(function))
            };
            let what = WAITS.iter().find(leads_there);
            let what = what.map_or(String::new(), |(_, what)| format!(" {what}"));
            Some(format!(
                "the goroutine waited{what}, and then for its turn to run"
            ))
        }
        "runtime.morestack" | "runtime.morestack_noctxt" => {
            Some("its stack grew, or the run-time had it let others run".to_owned())
        }
        "runtime.Gosched" => Some("the goroutine let others run (runtime.Gosched)".to_owned()),
        "runtime.systemstack" => {
            Some("the run-time worked for it on the thread's stack".to_owned())
        }
        _ => None,
    }
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
            (&["main.f", "runtime.gopark"], "the goroutine waited, and"),
            (
                &["main.f", "runtime.morestack_noctxt.abi0"],
                "its stack grew",
            ),
        ] {
            assert!(said(path).contains(words), "{path:?}: {}", said(path));
        }
        assert_eq!(said(&["main.f", "main.gopark"]), "");
    }
}
