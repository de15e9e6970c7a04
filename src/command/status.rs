//! `darc status`: where an analysis, a profiling or a watch stands that another darc conducts.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use darc_process::claim::{self, Answerer, Answerers};
use darc_report as report;
use darc_report::state::{self, Stored};

use crate::command::shared::style::style_of;
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::StatusOptions;
use crate::output::to_stdout;
use crate::terminal::warning;

/// Whoever has not been told everything after so long is told that: a darc may be busy, or be restoring its target.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the darc that measures the process, or every one that there is.
///
/// # Errors
/// When no darc measures, or it does not answer.
pub fn execute(options: StatusOptions) -> Result<ExitStatus, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let Answerers { heard, unheard } =
        claim::answerers(options.pid).map_err(|error| match options.pid {
            Some(pid) if error.is_gone() => refuse(pid, "there is no such process"),
            Some(pid) => refuse(pid, &error.to_string()),
            None => Failure::new(FailureKind::Other, error),
        })?;
    let asked: Vec<i32> = heard.iter().map(|answerer| answerer.pid).collect();
    let mut failed = None;
    let mut shown = Vec::new();
    for answerer in heard {
        let pid = answerer.pid;
        match answer(answerer, deadline, &options) {
            Ok(()) => shown.push(pid),
            // One that is just ending, or another user's, does not keep the others from being shown.
            Err(failure) if options.pid.is_none() => warning::print(&failure.text()),
            Err(failure) => failed = Some(failure),
        }
    }
    let unheard = unheard.into_iter().filter(|pid| !shown.contains(pid));
    let unheard: Vec<i32> = unheard.collect();
    if !shown.is_empty() && !unheard.is_empty() {
        warning::print(&cannot_be_heard(&unheard));
    }
    match (options.pid, failed) {
        _ if !shown.is_empty() => Ok(ExitStatus::Done),
        (Some(_), Some(failure)) => Err(failure),
        _ if !unheard.is_empty() => Err(Failure::message(
            FailureKind::Target,
            cannot_be_heard(&unheard),
        )),
        (Some(pid), None) => Err(refuse(
            pid,
            "no darc measures it; darc status alone lists all",
        )),
        (None, _) if asked.is_empty() => Err(Failure::message(
            FailureKind::Target,
            "status: no darc measures a process here; start one with darc attach or darc run",
        )),
        (None, _) => Err(Failure::message(
            FailureKind::Target,
            "status: no darc has answered; ask as the user who runs it, or as root",
        )),
    }
}

/// What is said of processes with names whose owners hear nobody more.
fn cannot_be_heard(pids: &[i32]) -> String {
    const MOST: usize = 5;
    let named: Vec<String> = pids.iter().take(MOST).map(i32::to_string).collect();
    let more = match pids.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let processes = match pids {
        [_] => "process",
        _ => "processes",
    };
    format!(
        "{processes} {}{more}: somebody who says to measure it, or to look at it, cannot be heard, for too many others ask; try again",
        named.join(", ")
    )
}

fn refuse(pid: i32, why: &str) -> Failure {
    Failure::message(FailureKind::Target, format!("process {pid}: {why}"))
}

/// Reads to the end, or to the deadline, however little comes at a time.
fn read_until(mut stream: UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 1 << 16];
    stream.set_nonblocking(false)?;
    while bytes.len() <= state::MAX_SIZE {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn answer(
    Answerer { pid, stream }: Answerer,
    deadline: Instant,
    options: &StatusOptions,
) -> Result<(), Failure> {
    let bytes = read_until(stream, deadline).map_err(|error| {
        refuse(
            pid,
            &format!("the darc that measures it does not answer: {error}"),
        )
    })?;
    if bytes.is_empty() {
        return Err(refuse(
            pid,
            "the darc that measures it says nothing: it belongs to another user, or is just ending",
        ));
    }
    let stored = state::read_stored(&bytes).map_err(|error| {
        refuse(
            pid,
            &format!("what the darc that measures it says: {error}"),
        )
    })?;
    let stdout = std::io::stdout();
    let style = style_of(options.color, &stdout);
    let shown = match stored {
        Stored::Report(report) => {
            report::render(&report, options.format, style).class(FailureKind::Other)?
        }
        Stored::Profiles(set) => super::profile::render(&set, options.format, style)?.into_bytes(),
    };
    to_stdout(&shown).class(FailureKind::File)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn there_is_one_deadline_for_all_of_an_answer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let drip = std::thread::spawn(move || {
            while theirs.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(100);
        let error = read_until(ours, deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drip.join().unwrap();
    }

    #[test]
    fn an_answer_is_read_to_its_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let long = vec![7; 300_000];
        let said = long.clone();
        let writer = std::thread::spawn(move || theirs.write_all(&said));
        assert_eq!(read_until(ours, Instant::now() + PATIENCE).unwrap(), long);
        writer.join().unwrap().unwrap();
    }
}
