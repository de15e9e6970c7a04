//! `darc attach` of several processes: each is analysed by a darc of its own, with its part of the budget, and one report
//! tells what all of them spend time on. The results come from the files of the others, as far as these are of this user.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use darc_process::{Interrupts as _, Level};
use darc_report::Report;
use darc_report::text::together;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::shared::stored;
use crate::command::shared::style::style_of;
use crate::exit::{Classify as _, ExitStatus, Failure, FailureKind};
use crate::input::distrust;
use crate::options::{AttachAllOptions, Common, Verbosity};
use crate::output::print;
use crate::target_name::are_there;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::warning::{self, one_line};

/// How often is looked whether an analysis has ended.
const STEP: Duration = Duration::from_millis(20);
/// When those that have not left are told again: longer than two signals are one wish.
const AGAIN: Duration = Duration::from_secs(1);

/// One of the analyses.
struct Part {
    pid: i32,
    darc: Child,
    /// Shows what it says.
    shown: Option<JoinHandle<()>>,
    /// The file with the results as it was before.
    before: Option<(u64, u64, i64)>,
}

/// Does it.
///
/// # Errors
/// When darc itself failed, or not all processes could be analysed.
pub fn execute(options: &AttachAllOptions) -> Result<ExitStatus, Failure> {
    let output = &options.common.output;
    if fs::symlink_metadata(output).is_ok_and(|file| !file.is_file()) {
        return Err(Failure::usage(format!(
            "attach: {output:?} is no file, and each process has one of its own; name another with -o"
        )));
    }
    let interrupts = Interrupts::of_a_stranger().class(FailureKind::Other)?;
    let pids = with_threads(options)?;
    let count = pids.len();
    let begun: Result<Vec<Part>, Failure> =
        pids.iter().map(|&pid| begin(pid, &pids, options)).collect();
    let mut parts = begun?;
    let level = wait(&mut parts, &interrupts)?;
    let mut reports = Vec::new();
    let mut is_lost = false;
    for part in &mut parts {
        if let Some(shown) = part.shown.take() {
            let _ = shown.join();
        }
        let file = options.common.file_of(part.pid);
        let with_results = part.ended_with_results();
        if with_results.is_none() || version(&file) == part.before {
            continue;
        }
        is_lost |= with_results == Some(ExitStatus::Lost.code());
        match read(&file) {
            Ok(report) => reports.push(report),
            Err(failure) => warning::print(&failure.text()),
        }
    }
    show(&reports, &options.common);
    match level {
        Level::LeaveAtOnce(signal) => Ok(ExitStatus::LeftAtOnce(signal)),
        _ if reports.len() < count => Err(Failure::message(
            FailureKind::Target,
            format!(
                "{} of {count} processes could not be analysed; see what was said of each",
                count - reports.len()
            ),
        )),
        _ if is_lost => Ok(ExitStatus::Lost),
        _ if reports.iter().all(is_empty) => Ok(ExitStatus::NoOps),
        _ => Ok(ExitStatus::Done),
    }
}

/// The processes that have the threads that were named. The others have nothing to measure, and are left out in words.
///
/// # Errors
/// When none has them.
fn with_threads(options: &AttachAllOptions) -> Result<Vec<i32>, Failure> {
    let (mut pids, mut left_out) = (Vec::new(), Vec::new());
    for &pid in &options.pids {
        match are_there(pid, &options.common.threads) {
            Ok(()) => pids.push(pid),
            Err(failure) => left_out.push(failure),
        }
    }
    match left_out.pop() {
        Some(failure) if pids.is_empty() => return Err(failure),
        last => left_out.extend(last),
    }
    for failure in left_out {
        warning::print(&format!("left out: {}", failure.text()));
    }
    Ok(pids)
}

fn is_empty(report: &Report) -> bool {
    report.profile.ops == 0 && report.time.is_none()
}

impl Part {
    /// Its exit code, where it ended as one does that has written results; how it ended otherwise is said.
    fn ended_with_results(&mut self) -> Option<u8> {
        let ended = self.darc.try_wait().ok().flatten();
        if let Some(signal) = ended.and_then(|status| status.signal()) {
            let pid = self.pid;
            warning::print(&format!(
                "process {pid}: its darc was ended by signal {signal}; darc cleanup -p {pid} takes away what may be left"
            ));
        }
        let code = ended.and_then(|status| status.code());
        let code = u8::try_from(code?).ok()?;
        let good = [ExitStatus::Done, ExitStatus::NoOps, ExitStatus::Lost].map(ExitStatus::code);
        // Interrupted twice it has saved what there was.
        (code > 128 || good.contains(&code)).then_some(code)
    }
}

/// The results in a file of this user.
fn read(file: &Path) -> Result<Report, Failure> {
    let (report, metadata) = stored::read(file)?;
    match distrust(&metadata) {
        None => Ok(report),
        Some(why) => Err(Failure::message(
            FailureKind::File,
            format!("{file:?}: {why}; name a file in a folder of your own with -o"),
        )),
    }
}

/// Starts a darc with what this one was started with, for one of the processes. Signals of the terminal are passed on by this one.
fn begin(pid: i32, pids: &[i32], options: &AttachAllOptions) -> Result<Part, Failure> {
    let is_first = pids.first() == Some(&pid);
    let part = format!("{pid},{},{},{is_first}", pids.len(), std::process::id());
    let common = &options.common;
    let before = version(&common.file_of(pid));
    // Behind the subcommand: what follows may end with names of processes.
    let mut arguments = std::env::args_os().skip(1);
    let mut darc = Command::new("/proc/self/exe")
        .args(arguments.next())
        .args(["--part", &part])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .class(FailureKind::Other)?;
    let stderr = darc.stderr.take();
    Ok(Part {
        pid,
        darc,
        shown: stderr.map(|stderr| thread::spawn(move || pass_on(pid, stderr))),
        before,
    })
}

/// Shows what a darc says, and of which process.
fn pass_on(pid: i32, stderr: impl Read) {
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_prefix("darc: ").unwrap_or(&line);
        eprintln!("darc: process {pid}: {}", one_line(line));
    }
}

/// Waits until all have ended: how urgently the person wanted that.
fn wait(parts: &mut [Part], interrupts: &Interrupts) -> Result<Level, Failure> {
    let mut told: Option<(Level, Instant)> = None;
    loop {
        let mut goes_on = false;
        for part in &mut *parts {
            goes_on |= part.darc.try_wait().class(FailureKind::Other)?.is_none();
        }
        let level = interrupts.level();
        if !goes_on {
            return Ok(level);
        }
        // One that is busy may take two wishes for one: that to leave at once is told again.
        let is_new = told.is_none_or(|(last, _)| last != level) && level != Level::GoOn;
        let is_urgent = matches!(level, Level::LeaveAtOnce(_));
        if is_new || told.is_some_and(|(_, at)| is_urgent && at.elapsed() > AGAIN) {
            told = Some((level, Instant::now()));
            for part in &mut *parts {
                // Not one that has ended: its number may be another's. SIGINT may be ignored.
                if part.darc.try_wait().class(FailureKind::Other)?.is_none() {
                    let _ = kill(Pid::from_raw(part.darc.id().cast_signed()), Signal::SIGTERM);
                }
            }
        }
        thread::sleep(STEP);
    }
}

/// Which version of a file there is.
fn version(file: &Path) -> Option<(u64, u64, i64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.mtime_nsec()))
}

fn show(reports: &[Report], common: &Common) {
    if common.verbosity == Verbosity::Quiet || reports.is_empty() {
        return;
    }
    let stdout = std::io::stdout();
    let style = style_of(common.color, &stdout);
    let pids = reports.iter().filter_map(|report| report.target.pid);
    let files: Vec<String> = pids
        .map(|pid| common.file_of(pid).display().to_string())
        .collect();
    let mut shown = together::render(reports, style);
    shown.push_str(&format!(
        "\nThe whole results, for darc report: {}\n",
        files.join(", ")
    ));
    let largest = reports.iter().max_by_key(|report| report.profile.total);
    if let Some(pid) = largest.and_then(|report| report.target.pid) {
        let file = common.file_of(pid);
        shown.push_str(&format!(
            "\nNext\n  darc report {}  # process {pid} alone, with its calls\n",
            file.display()
        ));
    }
    print(stdout, &shown);
}
