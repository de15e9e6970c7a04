//! Stored results, read from the file that the person named.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use darc_report::Report;
use darc_report::state::{self, StateError, Stored};

use crate::exit::{Failure, FailureKind};
use crate::input::{distrust, read_bounded};

/// The analysis in `path`, and what the kernel says about the file.
///
/// # Errors
/// Class [`FailureKind::File`]: it cannot be read, is no result, or is damaged.
pub fn read(path: &Path) -> Result<(Report, Metadata), Failure> {
    match read_any(path)? {
        (Stored::Report(report), metadata) => Ok((*report, metadata)),
        (Stored::Profiles(_), _) => Err(refuse(path, &StateError::Profiles)),
    }
}

/// The results in `path`, of whichever kind, and what the kernel says about the file.
///
/// # Errors
/// As [`read`].
pub fn read_any(path: &Path) -> Result<(Stored, Metadata), Failure> {
    let (bytes, metadata) = read_bounded(path, state::MAX_SIZE)
        .map_err(|error| Failure::message(FailureKind::File, format!("{path:?}: {error}")))?;
    let stored = state::read_stored(&bytes).map_err(|error| refuse(path, &error))?;
    Ok((stored, metadata))
}

fn refuse(path: &Path, error: &StateError) -> Failure {
    let advice = match error {
        StateError::Profiles => "darc compare and darc report take it",
        _ => "name a file that darc wrote with -o",
    };
    Failure::message(FailureKind::File, format!("{path:?}: {error}; {advice}"))
}

/// The process that the results are of, if it still runs the same program.
///
/// # Errors
/// Why it is none: it has ended, or somebody else may have written the file.
pub fn process(stored: &Report, file: &Metadata) -> Result<i32, String> {
    if let Some(why) = distrust(file) {
        return Err(format!(
            "{why}, so the process in it is not taken; name it with -p, if that is what you want"
        ));
    }
    let pid = stored
        .target
        .pid
        .ok_or("it names no process; name one with -p")?;
    let gone = format!("the process of these results ({pid}) no longer runs; name one with -p");
    let is_it = runs(pid, Path::new(&stored.target.exe)) && began_before(pid, file);
    is_it.then_some(pid).ok_or(gone)
}

/// Whether a process runs a program of that path, which may be a link to its file: results name a program as it was started.
fn runs(pid: i32, program: &Path) -> bool {
    let running = format!("/proc/{pid}/exe");
    let file = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino()));
    let is_named = std::fs::read_link(&running).is_ok_and(|exe| exe == program);
    let leads_there =
        || matches!((file(running.as_ref()), file(program)), (Ok(a), Ok(b)) if a == b);
    is_named || program.is_absolute() && leads_there()
}

/// Whether a process began before a file was written: a later one has been given the number of one that has ended.
fn began_before(pid: i32, file: &Metadata) -> bool {
    let age = || {
        let process = procfs::process::Process::new(pid).ok()?;
        let began = process.stat().ok()?.starttime / procfs::ticks_per_second();
        let up = <procfs::Uptime as procfs::Current>::current().ok()?.uptime;
        Some(up - began as f64)
    };
    let written = file.modified().ok().and_then(|at| at.elapsed().ok());
    // The clock of processes' beginnings is that coarse.
    matches!((age(), written), (Some(age), Some(written)) if age + 1.0 >= written.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_what_a_link_to_its_program_is_called() {
        let own = std::process::id() as i32;
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let link = std::env::temp_dir().join(format!("darc-link-{own}"));
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let found = [program, link.clone(), "/bin/sh".into()].map(|path| runs(own, &path));
        std::fs::remove_file(link).unwrap();
        assert_eq!(found, [true, true, false]);
    }
}
