//! The text files of `/proc` about one process. Processes choose their names freely, so they need not be UTF-8.
//!
//! Source: proc_pid_stat(5).

use std::fs::File;
use std::io::{self, Read as _};
use std::str::FromStr;

/// Reads a file; what is no UTF-8 is replaced.
///
/// # Errors
/// When it cannot be read: `ENOENT` and `ESRCH` when the process is gone.
pub fn read_text(path: &str) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What is behind so many bytes of a command line is left out: a process may say that any memory of its is that.
const MOST_ARGUMENTS: u64 = 1 << 20;

/// The command that a process was started with, or what it has written there instead: arguments, each with a zero byte at its
/// end. Nothing of one that is gone, or may not be seen.
#[must_use]
pub fn arguments(pid: i32) -> Vec<u8> {
    let mut arguments = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        // What was read before it failed may be shown.
        let _ = file.take(MOST_ARGUMENTS).read_to_end(&mut arguments);
    }
    arguments
}

/// What one line says of a process or a thread.
#[derive(Debug)]
pub struct Stat {
    /// Its name.
    pub comm: String,
    /// `R` runs, `S` and `D` wait, `t` and `T` are stopped, `Z` and `X` have ended.
    pub state: char,
    /// `PF_…` in the kernel's include/linux/sched.h.
    pub flags: u64,
    /// Everything behind the name, from field 3 on.
    fields: Vec<String>,
}

/// The thread is on its way out, and may have no memory any more.
const PF_EXITING: u64 = 4;

impl Stat {
    /// Of a process, or of the thread that has this number (under `/proc` both are found).
    ///
    /// # Errors
    /// When it is gone, or may not be seen.
    pub fn of(tid: i32) -> io::Result<Stat> {
        Stat::at(&format!("/proc/{tid}/stat"))
    }

    /// From a file.
    ///
    /// # Errors
    /// As [`Stat::of`].
    pub fn at(path: &str) -> io::Result<Stat> {
        Stat::parse(&read_text(path)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The name ends at the last `)`: it may itself contain any character.
    #[must_use]
    pub fn parse(line: &str) -> Option<Stat> {
        let (head, tail) = line.rsplit_once(')')?;
        let (_, comm) = head.split_once('(')?;
        let fields: Vec<String> = tail.split_whitespace().map(str::to_owned).collect();
        Some(Stat {
            comm: comm.to_owned(),
            state: fields.first()?.chars().next()?,
            flags: fields.get(6)?.parse().ok()?,
            fields,
        })
    }

    /// A field by the number that the manual page gives it, from 3 on.
    #[must_use]
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.fields.get(number.checked_sub(3)?)?.parse().ok()
    }

    /// The process that made it, or that has taken it over since.
    #[must_use]
    pub fn parent(&self) -> Option<i32> {
        self.field(4)
    }

    /// When it began, in clock ticks since boot.
    #[must_use]
    pub fn began(&self) -> Option<u64> {
        self.field(22)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether it has ended, or is about to.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_dead() || self.flags & PF_EXITING != 0
    }
}

/// The one-letter state of a thread of a process, as [`Stat::state`]; `None` when it has ended. It takes some microseconds.
#[must_use]
pub fn state_of_thread(pid: i32, tid: i32) -> Option<char> {
    let mut file = std::fs::File::open(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let mut line = [0; 64];
    let len = io::Read::read(&mut file, &mut line).ok()?;
    // No name is longer than 15 bytes, and none of the fields that are read behind it has a `)`.
    let end = line[..len].iter().rposition(|&byte| byte == b')')?;
    line[..len].get(end + 2).map(|&state| char::from(state))
}

/// Whether a process has ended, or all of its threads are about to.
#[must_use]
pub fn is_ending(pid: i32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return std::fs::metadata("/proc/self").is_ok();
    };
    let mut tids = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    tids.all(|tid| {
        let stat = Stat::at(&format!("/proc/{pid}/task/{tid}/stat"));
        stat.map_or(true, |stat| stat.is_ending())
    })
}

#[cfg(test)]
mod tests {
    use crate::patience::wait_until;

    use super::*;

    #[test]
    fn of_long_arguments_the_beginning_is_read() {
        let (long, begin) = ("x".repeat(100_000), b"sh\0-c\0");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read line"]).args([&long; 12]);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        // It may not have executed the shell yet.
        wait_until(|| arguments(pid).starts_with(begin));
        assert_eq!(arguments(pid).len() as u64, MOST_ARGUMENTS);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(arguments(pid), []);
    }

    #[test]
    fn a_process_that_has_ended_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        assert!(!is_ending(pid));
        child.kill().unwrap();
        wait_until(|| is_ending(pid));
        child.wait().unwrap();
        assert!(is_ending(pid), "nothing is left of it");
    }

    #[test]
    fn a_name_cannot_forge_its_stat_line() {
        let stat = Stat::parse("7 (evil) R 1 2 3 (x\n) S 1 7 7 0 -1 2129984 0 0 0").unwrap();
        assert_eq!(
            (stat.comm.as_str(), stat.state, stat.flags),
            ("evil) R 1 2 3 (x\n", 'S', 2_129_984)
        );
        assert_eq!(stat.parent(), Some(1));
        for broken in [
            "",
            "7",
            "7 (a",
            "7 a)",
            "7 (a)",
            "7 (a) S 1 2 3 4 5",
            "7 (a) S 1 2 3 4 5 x",
            ")(",
        ] {
            assert!(Stat::parse(broken).is_none(), "{broken}");
        }
    }

    #[test]
    fn names_may_be_anything() {
        let thread = std::thread::spawn(|| {
            let name = [b')', b' ', 0xff, b'\n'];
            std::fs::write("/proc/thread-self/comm", name).unwrap();
            let stat = Stat::at("/proc/thread-self/stat").unwrap();
            let began = stat.began();
            (stat.comm, stat.state, began)
        });
        let (comm, state, began) = thread.join().unwrap();
        assert_eq!((comm.as_str(), state), (") \u{fffd}\n", 'R'));
        assert!(began.is_some());
    }
}
