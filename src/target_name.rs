//! From a process' id or a program's name to the one process that is meant.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::{fmt, fs};

use darc_report::Report;
use darc_report::escape::control;
use darc_tracer::chosen::{self, Chosen};
use darc_tracer::{proc, threads};

use crate::exit::{Failure, FailureKind};
use crate::listing::Pattern;

/// How many candidates a message lists.
const SHOWN: usize = 10;

/// How many bytes of a command line a message shows.
const SHOWN_OF_TITLE: usize = 60;

/// More processes that have started each other are not looked at.
const MOST_ANCESTORS: usize = 64;

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

    /// The ids of all processes that are meant; not empty.
    ///
    /// # Errors
    /// Class [`FailureKind::Name`] when no process has the name.
    pub fn find_all(&self) -> Result<Vec<i32>, Failure> {
        match self {
            Self::Pid(pid) => Ok(vec![*pid]),
            Self::Program(name) => match called(name) {
                none if none.is_empty() => Err(missing(name)),
                found => Ok(found),
            },
        }
    }
}

/// How a person names threads of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ThreadName {
    /// One by its id, greater than 0.
    Id(i32),
    /// Those of this name (proc_pid_comm(5)), or whose names fit a pattern with `*` and `?`.
    Name(Pattern),
}

/// A thread's name has no more bytes (prctl(2), PR_SET_NAME).
const LONGEST_NAME: usize = 15;

impl ThreadName {
    /// Digits are an id, all else is a name.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(tid @ 1..) => Ok(Self::Id(tid)),
            Ok(_) => Err("not a thread's id, which is a whole number from 1 on".to_owned()),
            Err(_) if text.trim().is_empty() => Err("neither a thread's id nor a name".to_owned()),
            Err(_) if text.contains('*') && text.replace('*', "").len() > LONGEST_NAME => {
                Err("no thread has so long a name: 15 bytes are the most".to_owned())
            }
            Err(_) => Ok(Self::Name(Pattern::new(text))),
        }
    }

    /// Whether it is an id.
    #[must_use]
    pub fn is_id(&self) -> bool {
        matches!(self, Self::Id(_))
    }

    /// Whether a thread with this id and name is meant.
    #[must_use]
    pub fn fits(&self, tid: i32, name: &str) -> bool {
        match self {
            Self::Id(id) => *id == tid,
            Self::Name(pattern) if pattern.is_glob() => pattern.fits(name),
            Self::Name(wanted) => {
                let wanted = wanted.as_str().as_bytes();
                String::from_utf8_lossy(&wanted[..wanted.len().min(LONGEST_NAME)]) == name
            }
        }
    }
}

/// The threads of a process that are named, from now on.
#[must_use]
pub fn chosen_threads(pid: i32, names: Vec<ThreadName>) -> Arc<Chosen> {
    let fits = move |tid, name: &str| names.iter().any(|wanted| wanted.fits(tid, name));
    Arc::new(Chosen::new(pid, Box::new(fits)))
}

/// The threads of a process that are named, or all where none is, but for some.
#[must_use]
pub fn threads_without(pid: i32, names: Vec<ThreadName>, others: HashSet<i32>) -> Arc<Chosen> {
    let is_named = move |tid, name: &str| {
        names.is_empty() || names.iter().any(|wanted| wanted.fits(tid, name))
    };
    let fits = move |tid, name: &str| !others.contains(&tid) && is_named(tid, name);
    Arc::new(Chosen::new(pid, Box::new(fits)))
}

/// Refuses a name that no thread has.
///
/// # Errors
/// Class [`FailureKind::Name`], with the threads that there are.
pub fn are_there(pid: i32, names: &[ThreadName]) -> Result<(), Failure> {
    let tids = threads::list(pid).unwrap_or_default();
    let named = tids
        .iter()
        .filter_map(|&tid| Some((tid, chosen::name(pid, tid)?)));
    let there: Vec<(i32, String)> = named.collect();
    let is_there = |wanted: &ThreadName| there.iter().any(|(tid, name)| wanted.fits(*tid, name));
    let Some(missing) = names.iter().find(|wanted| !is_there(wanted)) else {
        return Ok(());
    };
    let listed = there.iter().take(SHOWN);
    let mut listed: Vec<String> = listed
        .map(|(tid, name)| format!("{tid} {}", control(name)))
        .collect();
    if there.len() > SHOWN {
        listed.push(format!("{} more", there.len() - SHOWN));
    }
    Err(Failure::message(
        FailureKind::Name,
        format!(
            "process {pid} has no thread {}; it has {}",
            control(&missing.to_string()),
            listed.join(", ")
        ),
    ))
}

/// The names of threads in results.
///
/// # Errors
/// When something there is none.
pub fn stored_threads(report: &Report) -> Result<Vec<ThreadName>, String> {
    let names = report.target.threads.iter();
    names.map(|name| ThreadName::parse(name)).collect()
}

impl fmt::Display for ThreadName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(tid) => tid.fmt(to),
            Self::Name(name) => name.as_str().fmt(to),
        }
    }
}

/// The processes of a control group (cgroups(7)), by a part of its path: the id of a container or pod, the name of a service. Those
/// that have one of the names, where any are given; not empty.
///
/// # Errors
/// Class [`FailureKind::Name`] when there is none.
pub fn find_in_group(group: &str, names: &[ProcessName]) -> Result<Vec<i32>, Failure> {
    let fits = |pid: i32| {
        names.is_empty()
            || names.iter().any(|name| match name {
                ProcessName::Pid(named) => *named == pid,
                ProcessName::Program(name) => is_called(pid, name),
            })
    };
    let found = processes(|pid| is_in_group(pid, group) && fits(pid));
    match found.is_empty() {
        true => Err(Failure::message(
            FailureKind::Name,
            format!(
                "control group {group:?}: no such process is in it; look for its name in /proc/PID/cgroup"
            ),
        )),
        false => Ok(found),
    }
}

/// Of several processes one has to be chosen: which there are, and how one is named.
#[must_use]
pub fn choose(what: &str, found: &[i32]) -> Failure {
    let busiest = busiest(found);
    let mut shown: Vec<String> = found.iter().take(SHOWN).map(described).collect();
    if found.len() > SHOWN {
        shown.push("…".to_owned());
    }
    let (count, shown) = (found.len(), shown.join(", "));
    Failure::message(
        FailureKind::Name,
        format!(
            "{what}: {count} processes ({shown}); choose one, as -p {busiest}, which had most CPU time so far; darc attach --all takes all of them"
        ),
    )
}

/// The process whose executable, command name (proc_pid_comm(5)) or title is called `name`.
///
/// # Errors
/// Class [`FailureKind::Name`] when there is none or there are several.
pub fn find(name: &str) -> Result<i32, Failure> {
    match *called(name).as_slice() {
        [pid] => Ok(pid),
        [] => Err(missing(name)),
        ref found => Err(choose(&format!("program {name:?}"), found)),
    }
}

fn missing(name: &str) -> Failure {
    Failure::message(
        FailureKind::Name,
        format!(
            "program {name:?}: no such process runs; start it, or name its process with -p PID"
        ),
    )
}

/// The processes whose executable, command name or title is called `name`, by their numbers.
fn called(name: &str) -> Vec<i32> {
    processes(|pid| is_called(pid, name))
}

/// The other processes that are as asked for, by their numbers.
fn processes(is_meant: impl Fn(i32) -> bool) -> Vec<i32> {
    let own = own_line();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<i32> = pids
        .filter(|&pid| !own.contains(&pid) && is_meant(pid))
        .collect();
    found.sort_unstable();
    found
}

/// This process, and those that have started it (a shell, sudo): what was typed is in their titles, too.
fn own_line() -> Vec<i32> {
    let parent = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name in parentheses, which may have any: state and parent (proc_pid_stat(5)).
        let rest = &text[text.rfind(')')? + 1..];
        rest.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let line = std::iter::successors(Some(own), |&pid| parent(pid).filter(|&pid| pid > 0));
    line.take(MOST_ANCESTORS).collect()
}

/// Whether a process is in a group whose path has this part, in one of its hierarchies.
fn is_in_group(pid: i32, group: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    has_group(&text, group)
}

/// As [`is_in_group`], of what `/proc/PID/cgroup` says: `ID:CONTROLLERS:PATH`, a hierarchy a line.
fn has_group(text: &str, group: &str) -> bool {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().any(|path| path.contains(group))
}

/// The process that has had most CPU time.
fn busiest(pids: &[i32]) -> i32 {
    let time = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let busiest = pids.iter().max_by_key(|&&pid| time(pid));
    busiest.copied().unwrap_or_default()
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
    let arguments = proc::arguments(pid);
    let words = String::from_utf8_lossy(&arguments).replace('\0', " ");
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
    fn threads_are_named_by_ids_names_and_patterns() {
        let fits = |text: &str, name: &str| ThreadName::parse(text).map(|it| it.fits(7, name));
        for (text, name) in [
            ("7", "any"),
            ("io", "io"),
            ("io*", "io-12"),
            // The kernel keeps fifteen bytes of a name.
            ("connection-handler", "connection-hand"),
        ] {
            assert_eq!(fits(text, name), Ok(true), "{text}");
        }
        for (text, name) in [("8", "7"), ("io", "io-12"), ("", "io"), ("io?", "io")] {
            assert_ne!(fits(text, name), Ok(true), "{text}");
        }
        for text in ["0", "-1", " "] {
            assert!(ThreadName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_container_is_found_by_its_id() {
        let text = "12:cpu,cpuacct:/docker/3f9a1b\n0::/kubepods.slice/pod7_a:b.slice/cri-containerd-77ce.scope\n";
        for group in ["3f9a", "pod7_a", "cri-containerd-77ce", "a:b"] {
            assert!(has_group(text, group), "{group}");
        }
        for group in ["cpu", "12", "3f9b"] {
            assert!(!has_group(text, group), "{group}");
        }
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
