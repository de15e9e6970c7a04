//! `darc doctor`: what works on this machine, and how to get the rest.

use std::fs;
use std::path::Path;

use darc_process::clock::{self, Moment};
use darc_process::coverage::{self, Share, Sites};
use darc_process::goroutines;
use darc_symbols::Image;
use darc_tracer::child_signal;
use darc_tracer::engine::int3;
use darc_tracer::perf::opening;

use super::list;
use crate::diagnosis::{self, Facts, Program};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::{DoctorOptions, ListingFormat, Subject};
use crate::output::to_stdout;

/// Looks, tries, and says what was found.
///
/// # Errors
/// When the file or process that was named cannot be read. What does not work is no failure.
pub fn execute(options: DoctorOptions) -> Result<ExitStatus, Failure> {
    let (program, sites) = match options.subject {
        Subject::Machine => (None, Vec::new()),
        Subject::File(path) => {
            let image = list::open(&path)?;
            (Some(program(&path, &image)), vec![coverage::of_file(image)])
        }
        Subject::Process(pid) => {
            let modules = list::read(pid)?;
            let sites = coverage::of_process(pid, &modules).class(FailureKind::Target)?;
            (None, sites)
        }
    };
    let facts = Facts {
        program,
        sites,
        ..machine()
    };
    let checks = diagnosis::judge(&facts);
    let text = match options.format {
        ListingFormat::Text => diagnosis::render(&checks),
        ListingFormat::Json => {
            let document = serde_json::json!({ "schema": 1, "checks": checks, "sites": sites_json(&facts.sites) });
            let json = serde_json::to_string_pretty(&document).class(FailureKind::Other)?;
            json + "\n"
        }
    };
    to_stdout(&text).class(FailureKind::File)?;
    Ok(ExitStatus::Done)
}

/// The call sites of each file, by kind.
fn sites_json(files: &[Sites]) -> Vec<serde_json::Value> {
    let share = |share: &Share| serde_json::json!({ "measured": share.measured, "all": share.all });
    let files = files.iter().map(|sites| {
        let kinds = sites.kinds.iter();
        let kinds = kinds.map(|(kind, of)| (kind.name().to_owned(), share(of)));
        serde_json::json!({
            "path": sites.path,
            "kinds": kinds.collect::<serde_json::Map<_, _>>(),
            "reasons": sites.reasons,
            "unread_functions": sites.unread,
        })
    });
    files.collect()
}

fn machine() -> Facts {
    let status = read("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(field, _)| *field == name)
            .map(|(_, value)| value.trim())
            .next()
    };
    let processors = read("/proc/cpuinfo").unwrap_or_default();
    let flags = processors.lines().filter_map(|line| line.split_once(':'));
    let flags = flags
        .filter(|(name, _)| name.trim() == "flags")
        .map(|(_, flags)| flags)
        .next();
    Facts {
        kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
        yama: number("/proc/sys/kernel/yama/ptrace_scope"),
        uid: nix::unistd::geteuid().as_raw(),
        capabilities: field("CapEff")
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or(0),
        seccomp: field("Seccomp").and_then(|mode| mode.parse().ok()),
        perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
        tracepoints: Some(opening::try_tracepoints().map_err(|error| error.to_string())),
        cpu_flags: flags
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        clock_doubt: clock::kernels_verdict()
            .err()
            .map(|doubt| doubt.to_string()),
        trial: Some(trial()),
        program: None,
        sites: Vec::new(),
    }
}

/// Traces a child process; what a measured call costs, in nanoseconds.
fn trial() -> Result<f64, String> {
    let since = Moment::now();
    child_signal::block().map_err(|error| error.to_string())?;
    let found = int3::calibrate().map_err(|error| error.to_string())?;
    let cost = found.cost.inside + found.cost.outside;
    Ok(since.rate().nanos(cost).0)
}

fn program(path: &Path, image: &Image) -> Program {
    Program {
        path: path.display().to_string(),
        functions: image.functions().len(),
        symbols: !image.is_stripped(),
        lines: image.has_lines(),
        build_id: image.build_id().map(ToString::to_string),
        go: image.is_go().then(|| goroutines::of(image).map(|_| ())),
        go_table: image.go_functions().next().is_some(),
        warnings: image.warnings(),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read(path)
        .ok()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn number(path: &str) -> Option<i64> {
    read(path)?.trim().parse().ok()
}
