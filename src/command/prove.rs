//! `darc prove`: put the causes that an analysis has found to the test.

use darc_analysis::proof::{self, Limits as Bounds, Refusal};
use darc_analysis::{Callee, CauseKind, FnodeId, Hz, Nanos, Params, Ticks};
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_process::{Ending, Level, Libraries, Limits, Process};
use darc_report::Report;
use darc_report::assemble::Names as _;
use darc_report::proof::{self as report, GainEntry, Measured, ProofEntry, Proofs, Verdict};
use darc_report::state::restore;
use darc_symbols::is_called;
use darc_tracer::engine::jump::{self, Jump};

use crate::command::shared::stored;
use crate::command::shared::target::{checked, claim, tracing_failed};
use crate::exit::{Classify as _, ExitStatus, Failure, FailureKind};
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
    let (stored, _) = stored::read(&options.file)?;
    let refuse =
        |why: String| Failure::message(FailureKind::File, format!("{:?}: {why}", options.file));
    let (mut modules, mut catalog) = (Modules::default(), Catalog::default());
    let params = restore::params(&stored).map_err(|error| refuse(error.to_string()))?;
    let mut investigation = restored(&stored, params, &mut modules, &mut catalog)
        .map_err(refuse)?;
    let given = options.pid.or_else(|| of_results(&stored));
    let given = given.ok_or_else(|| {
        refuse("the process that they are of does not run any more; name one with -p".to_owned())
    })?;
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
    .prove(limits, &suspects, &bounds(&options, since.rate()), |proof| {
        proofs.push(proof);
    })?;
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
fn of_results(stored: &Report) -> Option<i32> {
    let pid = stored.target.pid?;
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    (exe.as_os_str() == stored.target.exe.as_str()).then_some(pid)
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
            let Some(&fnode) = cause.path.last().filter(|_| is_call) else {
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
    let mut found: Vec<(Option<FnodeId>, FnodeId)> = Vec::new();
    for fnode in ftree.fnodes().filter(|fnode| fnode.parent.is_some()) {
        let is_it = is_called(&name_of(fnode.callee, naming), name);
        if is_it && !found.iter().any(|&(parent, _)| parent == fnode.parent) {
            found.push((fnode.parent, fnode.id));
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
    let names = ftree.path(proof.suspect.fnode).into_iter().map(|at| match at {
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
        Outcome::Tried { slope: None, .. } => ProofEntry {
            verdict: Verdict::NotDecided,
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
            "calls of this peak did not call it while darc was looking; --time looks longer"
                .to_owned()
        }
        Refusal::TooFew { expected, needed } => format!(
            "only {expected} calls of this peak with a delay can be expected within --time and --budget, and {needed} are needed"
        ),
        Refusal::Budget => {
            "it is called so often that a delay within --budget would not be seen".to_owned()
        }
    }
}
