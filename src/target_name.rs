//! From a program's name to the one process that runs it.

use std::path::Path;

use crate::exit::{Failure, FailureKind};

/// How many candidates a message lists.
const SHOWN: usize = 10;

/// The process whose executable (or command name, proc_pid_comm(5)) is called `name`.
///
/// # Errors
/// Class [`FailureKind::Name`] when there is none or there are several.
pub fn find(name: &str) -> Result<i32, Failure> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<i32> = pids
        .filter(|&pid| pid != own && is_called(pid, name))
        .collect();
    found.sort_unstable();
    match *found.as_slice() {
        [pid] => Ok(pid),
        [] => Err(Failure::message(
            FailureKind::Name,
            format!(
                "program {name:?}: no such process runs; start it, or name its process with -p PID"
            ),
        )),
        _ => {
            let mut pids: Vec<String> = found.iter().take(SHOWN).map(i32::to_string).collect();
            if found.len() > SHOWN {
                pids.push("…".to_owned());
            }
            let pids = pids.join(", ");
            let count = found.len();
            Err(Failure::message(
                FailureKind::Name,
                format!(
                    "program {name:?}: {count} processes run it ({pids}); choose one with -p PID"
                ),
            ))
        }
    }
}

fn is_called(pid: i32, name: &str) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
    if exe.is_ok_and(|exe| exe.file_name() == Path::new(name).file_name()) {
        return true;
    }
    std::fs::read(format!("/proc/{pid}/comm"))
        .is_ok_and(|comm| comm.strip_suffix(b"\n") == Some(name.as_bytes()))
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
}
