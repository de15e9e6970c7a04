//! `darc prove`: put the causes that an analysis has found to the test.

mod allocator;
mod entries;
mod suspects;

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use darc_analysis::proof::Limits as Bounds;
use darc_analysis::{Hz, Nanos, Params};
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_process::{Ending, Level, Libraries, Limits, Process, is_go_program};
use darc_report::Report;
use darc_report::assemble::Names as _;
use darc_report::model::{EffectEntry, ProofEntry};
use darc_report::proof::{self as report, Proofs};
use darc_report::state::restore;
use darc_report::text::Style;
use darc_tracer::engine::Engine as _;
use darc_tracer::engine::jump::{self, Delaying, Jump};

use crate::command::shared::target::{checked, claim, tracing_failed};
use crate::command::shared::{saved, stored};
use crate::exit::{Classify as _, ExitStatus, Failure, FailureKind};
use crate::input::distrust;
use crate::options::{DelayBy, Format, ListingFormat, Preemption, ProveOptions, Trials, Verbosity};
use crate::output::{Output, to_stdout};
use crate::session::Session;
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::proving::{Outcome, Proof};
use crate::target_name::{are_there, chosen_threads, stored_threads};
use crate::terminal::interrupts::Interrupts;
use crate::terminal::live::{Progress, Screen};
use crate::terminal::warning;
use suspects::Suspected;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ProveOptions) -> Result<ExitStatus, Failure> {
    let (mut stored, metadata) = stored::read(&options.file)?;
    let refuse = |why: String| refusal(&options.file, &why);
    let given = match options.pid {
        Some(pid) => pid,
        None => stored::process(&stored, &metadata).map_err(refuse)?,
    };
    let pid = checked(given, |note| warning::print(&note.to_string()))?;
    darc_tracer::child_signal::block().class(FailureKind::Other)?;
    let interrupts = Interrupts::of_a_stranger().class(FailureKind::Other)?;
    let (proofs, ending) =
        experiment(&stored, pid, &options.trials, &interrupts)?.map_err(refuse)?;
    publish(&proofs, options.format)?;
    keep(&mut stored, proofs, &options.file, &metadata);
    Ok(match ending? {
        Ending::Interrupted(Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
        _ => ExitStatus::Done,
    })
}

fn refusal(file: &Path, why: &str) -> Failure {
    Failure::message(FailureKind::File, format!("{file:?}: {why}"))
}

/// What came of experiments, and how they ended: what was known before one failed is told all the same.
pub type Experiments = (Proofs, Result<Ending, Failure>);

/// Puts the causes of an analysis to the test in a process. Why there is nothing to test, where that is so.
///
/// # Errors
/// When the process cannot be traced or measured, and nothing was tested; it runs on.
pub fn experiment(
    of: &Report,
    pid: i32,
    trials: &Trials,
    interrupts: &Interrupts,
) -> Result<Result<Experiments, String>, Failure> {
    if of.futures.is_some() {
        return Ok(Err(
            "its ops are lives (of futures or coroutines); experiments are for functions whose ops are calls"
                .to_owned(),
        ));
    }
    let (mut modules, mut catalog) = (Modules::default(), Catalog::default());
    let restored = restore::params(of)
        .map_err(|error| error.to_string())
        .and_then(|params| restored(of, params, &mut modules, &mut catalog));
    let mut investigation = match restored {
        Ok(investigation) => investigation,
        Err(why) => return Ok(Err(why)),
    };
    // Names are in the files that it has loaded.
    modules.refresh(pid).class(FailureKind::Lost)?;
    if is_go_program(&modules) {
        return Ok(Err(
            "calls of goroutines cannot be delayed yet, so nothing can be put to the test in a Go program"
                .to_owned(),
        ));
    }
    let naming = investigation.naming(&modules, &catalog);
    let suspected = match suspects::suspects(of, &investigation, naming, trials) {
        Ok(suspected) => suspected,
        Err(why) => return Ok(Err(why)),
    };
    let calibration = jump::calibrate(None).class(FailureKind::Target)?;
    let _claim = claim(pid)?;
    let since = Moment::now();
    let mut engine = Jump::attach(pid)
        .map_err(|error| tracing_failed(&error, pid))?
        .with_delays(match trials.delay_by {
            DelayBy::Spin => Delaying::Spinning,
            DelayBy::Sleep => Delaying::sleeping(since.rate()),
        });
    engine.set_cost(&calibration);
    match stored_threads(of) {
        Ok(threads) if threads.is_empty() => {}
        Ok(threads) => {
            are_there(pid, &threads)?;
            engine.choose_threads(chosen_threads(pid, threads));
        }
        Err(why) => return Ok(Err(why)),
    }
    let mut progress = Progress::new(Verbosity::Quiet, Screen::Own);
    let limits = Limits {
        given: None,
        deadline: None,
        interrupts,
        until: None,
    };
    let tested: Vec<_> = suspected
        .iter()
        .filter(|suspected| suspected.refused.is_none())
        .map(|suspected| suspected.suspect)
        .collect();
    let mut proofs = Vec::new();
    let ended = Session::new(
        Process::new(pid, &mut modules, Box::new(engine), Libraries::Loaded),
        &mut catalog,
        &mut investigation,
        &mut progress,
    )
    .prove(limits, &tested, &bounds(trials, since.rate()), |proof| {
        proofs.push(proof);
    });
    let ending = match ended {
        Err(error) if proofs.is_empty() => return Err(error.into()),
        ended => ended.map_err(Failure::from),
    };
    let failed = ending.as_ref().err().map(Failure::text);
    let naming = investigation.naming(&modules, &catalog);
    let (causes, effects) = entries(&suspected, proofs, failed, |proof| {
        entries::of(
            proof,
            &investigation,
            naming,
            (since.rate(), trials.delay_by),
        )
    });
    let proofs = Proofs {
        schema: report::SCHEMA,
        darc: env!("CARGO_PKG_VERSION").to_owned(),
        pid,
        function: naming.f0().name,
        budget: trials.budget,
        causes,
        effects,
        warnings: investigation.warnings.clone(),
    };
    Ok(Ok((proofs, ending)))
}

/// What is said of each, in the order in which they were named; `failed` is why those behind the last proof have none.
fn entries(
    suspected: &[Suspected],
    proofs: Vec<Proof>,
    failed: Option<String>,
    of: impl Fn(&Proof) -> entries::Told,
) -> (Vec<ProofEntry>, Vec<EffectEntry>) {
    let mut proofs = proofs.into_iter();
    let why = failed.unwrap_or_default();
    let untested = |suspect, why: &str| Proof {
        suspect,
        outcome: Outcome::NotTestable(why.to_owned()),
    };
    let (mut causes, mut effects) = (Vec::new(), Vec::new());
    for suspected in suspected {
        let suspect = suspected.suspect;
        let proof = match &suspected.refused {
            Some(why) => untested(suspect, why),
            None => proofs.next().unwrap_or_else(|| untested(suspect, &why)),
        };
        match of(&proof) {
            entries::Told::Cause(entry) => causes.push(entry),
            entries::Told::Effect(entry) => effects.push(entry),
        }
    }
    (causes, effects)
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

/// Adds what was found to the results in the file, where that is our own.
fn keep(stored: &mut Report, proofs: Proofs, file: &Path, metadata: &Metadata) {
    stored.add(proofs);
    let mut first = [0];
    let is_read = File::open(file).and_then(|mut file| file.read_exact(&mut first));
    let format = match is_read.is_ok() && first != *b"d" {
        true => Format::Json,
        false => Format::Text,
    };
    let written = match reason_to_leave(file, metadata) {
        Some(why) => Err(why),
        None => saved::contents(stored, format, Style::default())
            .map_err(|failure| failure.text())
            .and_then(|results| {
                let output = Output::open(file).map_err(|error| error.to_string())?;
                output.write(&results).map_err(|error| error.to_string())
            }),
    };
    if let Err(why) = written {
        warning::print(&format!("{file:?} is left as it was: {why}"));
    }
}

/// Why nothing is added to a file that was read before, if there is a reason: somebody else's file, or other results.
fn reason_to_leave(file: &Path, as_read: &Metadata) -> Option<String> {
    let version = |of: &Metadata| (of.dev(), of.ino(), of.mtime(), of.mtime_nsec(), of.len());
    let is_another = || std::fs::metadata(file).is_ok_and(|now| version(&now) != version(as_read));
    let written = || "it has been written anew meanwhile".to_owned();
    distrust(as_read).or_else(|| is_another().then(written))
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

fn bounds(trials: &Trials, clock: Hz) -> Bounds {
    let ticks = |time: std::time::Duration| clock.ticks(Nanos(time.as_nanos() as f64));
    Bounds {
        time: ticks(trials.time),
        delay: ticks(trials.delay),
        budget: trials.budget,
        clock,
    }
}

#[cfg(test)]
mod tests {
    use darc_process::modules::{CodeRef, ModuleId};
    use darc_report::model::Verdict;
    use darc_symbols::FileAddr;

    use super::*;
    use crate::session::descent::proving::{Cause, Suspect};

    #[test]
    fn what_was_known_before_an_experiment_failed_is_told() {
        let of = |peak| Suspect {
            peak,
            cause: Cause::Elsewhere(CodeRef {
                module: ModuleId(0),
                addr: FileAddr(0x1000),
            }),
        };
        let suspected = [(1, None), (2, Some("refused")), (3, None)].map(|(peak, why)| Suspected {
            suspect: of(peak),
            refused: why.map(str::to_owned),
        });
        let known = Proof {
            suspect: of(1),
            outcome: Outcome::NotTestable("known".to_owned()),
        };
        let failed = Some("it failed".to_owned());
        let (told, _) = entries(&suspected, vec![known], failed, |proof| {
            let reason = match &proof.outcome {
                Outcome::NotTestable(why) => Some(why.clone()),
                _ => None,
            };
            entries::Told::Cause(ProofEntry {
                peak: proof.suspect.peak,
                path: Vec::new(),
                elsewhere: true,
                verdict: Verdict::NotTested,
                reason,
                measured: None,
                gain: Vec::new(),
                latencies: None,
            })
        });
        let told: Vec<_> = told
            .iter()
            .map(|it| (it.peak, it.reason.as_deref()))
            .collect();
        let [known, refused, failed] = ["known", "refused", "it failed"].map(Some);
        assert_eq!(told, [(1, known), (2, refused), (3, failed)]);
    }

    #[test]
    fn results_that_came_meanwhile_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (file, new) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&file, "darc 1").unwrap();
        let as_read = std::fs::metadata(&file).unwrap();
        assert_eq!(reason_to_leave(&file, &as_read), None);
        std::fs::write(&new, "darc 2").unwrap();
        std::fs::rename(&new, &file).unwrap();
        let why = reason_to_leave(&file, &as_read).unwrap();
        assert!(why.contains("meanwhile"), "{why}");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(reason_to_leave(&file, &as_read), None);
    }
}
