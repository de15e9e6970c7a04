//! From a process' id or a program's name to the one process that is meant.

use std::ffi::OsStr;
use std::fs;

use crate::exit::{Failure, FailureKind};
use crate::listing::Pattern;

/// How many candidates a message lists.
const SHOWN: usize = 10;

/// How many bytes of a command line a message shows.
const SHOWN_OF_TITLE: usize = 60;

/// How a person names a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessName {
    /// By its id, greater than 0.
    Pid(i32),
    /// By the name of its program, or by a pattern with `*` and `?`.
    Program(String),
}

impl ProcessName {
    /// Digits are an id, all else is a name.
    ///
    /// # Errors
    /// When it can be neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let like_a_number = text.trim_start_matches(['+', '-']);
        let is_number =
            !like_a_number.is_empty() && like_a_number.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(pid @ 1..) if is_number && text == like_a_number => Ok(Self::Pid(pid)),
            _ if is_number => Err("not a process id, which is a whole number from 1 on".to_owned()),
            _ if text.trim().is_empty() => Err("neither a process id nor a name".to_owned()),
            _ => Ok(Self::Program(text.to_owned())),
        }
    }

    /// The process' id.
    ///
    /// # Errors
    /// Class [`FailureKind::Name`] when no process has the name or several have it.
    pub fn find(&self) -> Result<i32, Failure> {
        match self {
            Self::Pid(pid) => Ok(*pid),
            Self::Program(name) => find(name),
        }
    }
}

/// The process whose executable, command name (proc_pid_comm(5)) or title is called `name`.
///
/// # Errors
/// Class [`FailureKind::Name`] when there is none or there are several.
pub fn find(name: &str) -> Result<i32, Failure> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<i32> = pids
        .filter(|&pid| pid != own && is_called(pid, name))
        .collect();
    found.sort_unstable();
    let why = match *found.as_slice() {
        [pid] => return Ok(pid),
        [] => format!(
            "program {name:?}: no such process runs; start it, or name its process with -p PID"
        ),
        _ => {
            let mut shown: Vec<String> = found.iter().take(SHOWN).map(described).collect();
            if found.len() > SHOWN {
                shown.push("…".to_owned());
            }
            let (count, shown) = (found.len(), shown.join(", "));
            format!("program {name:?}: {count} processes run it ({shown}); choose one with -p PID")
        }
    };
    Err(Failure::message(FailureKind::Name, why))
}

/// A process for people who have to choose: its id and the beginning of its command line.
fn described(pid: &i32) -> String {
    let title = title(*pid);
    match title.char_indices().nth(SHOWN_OF_TITLE) {
        _ if title.is_empty() => pid.to_string(),
        Some((end, _)) => format!("{pid}: {}…", &title[..end]),
        None => format!("{pid}: {title}"),
    }
}

/// The command line, which some servers overwrite with a title ("nginx: worker process").
fn title(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&bytes).replace('\0', " ");
    words.trim_end().to_owned()
}

fn is_called(pid: i32, name: &str) -> bool {
    let pattern = Pattern::new(name);
    let fits = |text: &str| match pattern.is_glob() {
        true => pattern.fits(text),
        false => text == name,
    };
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let file = |path: &std::path::Path| {
        let file = path.file_name().and_then(OsStr::to_str);
        file.is_some_and(fits) || path.to_str().is_some_and(fits)
    };
    if exe.is_some_and(|path| file(&path)) {
        return true;
    }
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    fits(comm.trim_end_matches('\n')) || fits(&title(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_run_is_not_found() {
        let failure = find("no such\nprogram").unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Name);
        assert!(!failure.line().contains('\n'));
    }

    #[test]
    fn digits_are_an_id_and_all_else_is_a_name() {
        let name = |text: &str| Ok(ProcessName::Program(text.to_owned()));
        assert_eq!(ProcessName::parse("42"), Ok(ProcessName::Pid(42)));
        for text in ["redis-server", "12x", "nginx: worker*", "/usr/bin/a b"] {
            assert_eq!(ProcessName::parse(text), name(text));
        }
        for text in ["", " ", "0", "-1", "+5", "99999999999"] {
            assert!(ProcessName::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_process_is_found_by_its_title() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000.25")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        // The child may not have executed sleep yet.
        while !title(pid).contains("1000.25") {
            std::thread::yield_now();
        }
        let found = [find("sleep 1000.25"), find("sl??p 1000.2*")];
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.map(Result::ok), [Some(pid), Some(pid)]);
    }
}
