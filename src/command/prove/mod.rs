//! `darc prove`: put the causes that an analysis has found to the test.

use std::fs::Metadata;

use darc_analysis::proof::{self, Limits as Bounds, Refusal};
use darc_analysis::{Callee, CauseKind, FnodeId, Hz, Nanos, Params, Stop, Ticks};
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_process::{Ending, Level, Libraries, Limits, Process};
use darc_report::Report;
use darc_report::assemble::Names as _;
use darc_report::proof::{self as report, GainEntry, Measured, ProofEntry, Proofs, Verdict};
use darc_report::state::restore;
use darc_report::words::percent;
use darc_symbols::is_called;
use darc_tracer::engine::jump::{self, Jump};

use crate::command::shared::stored;
use crate::command::shared::target::{checked, claim, tracing_failed};
use crate::exit::{Classify as _, ExitStatus, Failure, FailureKind};
use crate::input::distrust;
use crate::options::{ListingFormat, Preemption, ProveOptions, Verbosity};
use crate::output::to_stdout;
use crate::session::Session;
use crate::session::catalog::{Catalog, Naming};
use crate::session::descent::investigation::Investigation;
use crate::session::descent::proving::{Outcome, Proof, Suspect};
use crate::terminal::interrupts::Interrupts;
use crate::terminal::live::{Progress, Screen};
use crate::terminal::warning;

/// A cause with a smaller part of its peak's time is not worth an experiment.
const LEAST: f64 = 0.1;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ProveOptions) -> Result<ExitStatus, Failure> {
    let (stored, metadata) = stored::read(&options.file)?;
    let refuse =
        |why: String| Failure::message(FailureKind::File, format!("{:?}: {why}", options.file));
    let (mut modules, mut catalog) = (Modules::default(), Catalog::default());
    let params = restore::params(&stored).map_err(|error| refuse(error.to_string()))?;
    let mut investigation =
        restored(&stored, params, &mut modules, &mut catalog).map_err(refuse)?;
    let given = match options.pid {
        Some(pid) => pid,
        None => of_results(&stored, &metadata).map_err(refuse)?,
    };
    let pid = checked(given, |note| warning::print(&note.to_string()))?;
    // Names are in the files that it has loaded.
    modules.refresh(pid).class(FailureKind::Lost)?;
    let naming = investigation.naming(&modules, &catalog);
    let suspects = suspects(&investigation, naming, &options).map_err(refuse)?;
    darc_tracer::child_signal::block().class(FailureKind::Other)?;
    let interrupts = Interrupts::install().class(FailureKind::Other)?;
    let calibration = jump::calibrate().class(FailureKind::Target)?;
    let _claim = claim(pid)?;
    let since = Moment::now();
    let mut engine = Jump::attach(pid)
        .map_err(|error| tracing_failed(&error, pid))?
        .with_delays();
    engine.set_cost(&calibration);
    let mut progress = Progress::new(Verbosity::Quiet, Screen::Own);
    let limits = Limits {
        deadline: None,
        interrupts: &interrupts,
        until: None,
    };
    let mut proofs = Vec::new();
    let ending = Session::new(
        Process::new(pid, &mut modules, Box::new(engine), Libraries::Loaded),
        &mut catalog,
        &mut investigation,
        &mut progress,
    )
    .prove(
        limits,
        &suspects,
        &bounds(&options, since.rate()),
        |proof| {
            proofs.push(proof);
        },
    )?;
    let naming = investigation.naming(&modules, &catalog);
    let entries = proofs
        .iter()
        .map(|proof| entry(proof, &investigation, naming, since.rate()));
    let proofs = Proofs {
        schema: report::SCHEMA,
        darc: env!("CARGO_PKG_VERSION").to_owned(),
        pid,
        function: naming.f0().name,
        budget: options.budget,
        causes: entries.collect(),
        warnings: investigation.warnings.clone(),
    };
    publish(&proofs, options.format)?;
    Ok(match ending {
        Ending::Interrupted(Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
        _ => ExitStatus::Done,
    })
}

fn publish(proofs: &Proofs, format: ListingFormat) -> Result<(), Failure> {
    let text = match format {
        ListingFormat::Text => report::text(proofs),
        ListingFormat::Json => {
            serde_json::to_string_pretty(proofs).class(FailureKind::Other)? + "\n"
        }
    };
    to_stdout(&text).class(FailureKind::File)
}

/// The stored analysis. Only functions that are called have calls that can be made longer.
fn restored(
    stored: &Report,
    params: Params,
    modules: &mut Modules,
    catalog: &mut Catalog,
) -> Result<Investigation, String> {
    if stored.time.is_some() {
        return Err(format!(
            "{} runs all the time, so its ops are no calls; analyse a function that is called, with --f0",
            stored.f0.name
        ));
    }
    let restored = Investigation::resumed(stored, params, modules, catalog);
    let mut investigation = restored.map_err(|error| error.to_string())?;
    investigation.preemption = Preemption::Counted;
    Ok(investigation)
}

/// The process that the results are of, if it still runs the same program.
fn of_results(stored: &Report, file: &Metadata) -> Result<i32, String> {
    if let Some(why) = distrust(file) {
        return Err(format!(
            "{why}, so the process in it is not taken; name it with -p, if that is what you want"
        ));
    }
    let pid = stored
        .target
        .pid
        .ok_or("it names no process; name one with -p")?;
    let gone = format!("process {pid} is not any more what they are of; name one with -p");
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| gone.clone())?;
    let is_it = exe.as_os_str() == stored.target.exe.as_str() && began_before(pid, file);
    is_it.then_some(pid).ok_or(gone)
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

fn bounds(options: &ProveOptions, clock: Hz) -> Bounds {
    let ticks = |time: std::time::Duration| clock.ticks(Nanos(time.as_nanos() as f64));
    Bounds {
        time: ticks(options.time),
        delay: ticks(options.delay),
        budget: options.budget,
        clock,
    }
}

/// What is tested: the causes that were found, or all calls of a function that somebody has named.
fn suspects(
    investigation: &Investigation,
    naming: Naming<'_>,
    options: &ProveOptions,
) -> Result<Vec<Suspect>, String> {
    let analysis = &investigation.analysis;
    let peaks = analysis.peaks().into_iter().map(|peak| peak.number);
    let peaks: Vec<u32> = peaks
        .filter(|&peak| options.peak.is_none_or(|wanted| wanted == peak))
        .collect();
    if peaks.is_empty() {
        return Err("there is no such peak".to_owned());
    }
    if let Some(name) = &options.cause {
        return named(investigation, naming, name, &peaks);
    }
    let mut suspects = Vec::new();
    for peak in peaks {
        for cause in analysis.root_causes(peak) {
            let is_call = matches!(
                cause.kind,
                CauseKind::Function | CauseKind::Loop | CauseKind::Syscall
            );
            // What is not known to be a cause needs no proof.
            let has_ended = !matches!(cause.stop, Stop::StillDescending | Stop::Spread);
            let Some(&fnode) = cause.path.last().filter(|_| is_call && has_ended) else {
                continue;
            };
            let suspect = Suspect { peak, fnode };
            if cause.share >= LEAST && !suspects.contains(&suspect) {
                suspects.push(suspect);
            }
        }
    }
    match suspects.is_empty() {
        true => Err(
            "no cause was found that is a call; --cause FUNC tests a function of the results"
                .to_owned(),
        ),
        false => Ok(suspects),
    }
}

/// The calls of a function, one for each caller: all of a caller's calls of it are tested together.
fn named(
    investigation: &Investigation,
    naming: Naming<'_>,
    name: &str,
    peaks: &[u32],
) -> Result<Vec<Suspect>, String> {
    let ftree = investigation.analysis.ftree();
    let mut found: Vec<((Option<FnodeId>, Callee), FnodeId)> = Vec::new();
    for fnode in ftree.fnodes().filter(|fnode| fnode.parent.is_some()) {
        let is_it = is_called(&name_of(fnode.callee, naming), name);
        let call = (fnode.parent, fnode.callee);
        if is_it && !found.iter().any(|&(known, _)| known == call) {
            found.push((call, fnode.id));
        }
    }
    let tests = peaks
        .iter()
        .flat_map(|&peak| found.iter().map(move |&(_, fnode)| Suspect { peak, fnode }));
    match found.is_empty() {
        true => Err(format!(
            "{name:?}: no function of that name was called by what the analysis looked into; darc report lists them"
        )),
        false => Ok(tests.collect()),
    }
}

fn name_of(callee: Callee, naming: Naming<'_>) -> String {
    match callee {
        Callee::Function(callee) => naming.function(callee).name,
        Callee::Syscall(number) => naming.syscall(number),
        Callee::Unknown => "(unknown)".to_owned(),
        Callee::Absence(absence) => naming.absence(absence),
    }
}

fn entry(
    proof: &Proof,
    investigation: &Investigation,
    naming: Naming<'_>,
    clock: Hz,
) -> ProofEntry {
    let ftree = investigation.analysis.ftree();
    let names = ftree
        .path(proof.suspect.fnode)
        .into_iter()
        .map(|at| match at {
            FnodeId::ROOT => naming.f0().name,
            at => name_of(ftree.fnode(at).callee, naming),
        });
    let entry = ProofEntry {
        peak: proof.suspect.peak,
        path: names.collect(),
        verdict: Verdict::NotTested,
        reason: None,
        measured: None,
        gain: Vec::new(),
    };
    let ns = |ticks: Ticks| clock.nanos(ticks).0;
    match &proof.outcome {
        Outcome::NotTestable(why) => ProofEntry {
            reason: Some(why.clone()),
            ..entry
        },
        Outcome::Refused(refusal) => ProofEntry {
            reason: Some(in_words(refusal)),
            ..entry
        },
        Outcome::Tried {
            slope: None,
            added,
            time,
            ..
        } => ProofEntry {
            verdict: Verdict::NotDecided,
            reason: Some(format!(
                "too few of these calls came in {}, or those of another peak cannot be told from them; delays took {} of the time",
                clock.nanos(*time),
                percent(added.0 as f64 / time.0.max(1) as f64)
            )),
            ..entry
        },
        Outcome::Tried {
            delay,
            slope: Some(slope),
            gain,
            added,
            time,
        } => ProofEntry {
            verdict: verdict(slope.verdict()),
            measured: Some(Measured {
                delay_ns: ns(*delay),
                added_ns: ns(slope.added),
                slope: slope.at,
                interval: [slope.low, slope.high],
                ops_without: slope.without,
                ops_with: slope.with,
                added_share: added.0 as f64 / time.0.max(1) as f64,
                time_ns: ns(*time),
            }),
            gain: gain
                .iter()
                .map(|gain| GainEntry {
                    percentile: (gain.part * 1e4).round() / 1e2,
                    now_ns: ns(gain.now),
                    without_ns: ns(gain.without),
                })
                .collect(),
            ..entry
        },
    }
}

fn verdict(verdict: proof::Verdict) -> Verdict {
    match verdict {
        proof::Verdict::Proven => Verdict::Proven,
        proof::Verdict::Partly => Verdict::Partly,
        proof::Verdict::NotOnPath => Verdict::NotOnPath,
        proof::Verdict::NotDecided => Verdict::NotDecided,
    }
}

fn in_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NotCalled => {
            "no call of it was seen in calls of this peak; --time looks longer".to_owned()
        }
        Refusal::TooFew { expected, needed } => format!(
            "only {expected} calls of this peak with a delay can be expected within --time and --budget, and {needed} are needed"
        ),
        Refusal::TooShort => {
            "its calls are so short, or so many, that a delay in proportion would be shorter than can be made"
                .to_owned()
        }
        Refusal::TooLong => {
            "these calls are so long that there are too few spans of time to compare; --time and --budget allow more"
                .to_owned()
        }
        Refusal::Budget => {
            "it is called so often that a delay within --budget would not be seen".to_owned()
        }
    }
}
