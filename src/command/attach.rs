//! `darc attach`: analyse a function of a running process.

use darc_analysis::Params;
use darc_analysis::lives::Fates;
use darc_process::Ending;
use darc_report::model::{Engine, Target};
use darc_tracer::effort::BUDGET;
use nix::sys::signal::Signal;

use crate::command::analysis::{Conduct, Show, Stdout};
use crate::command::shared::started;
use crate::command::shared::target::{checked, command_line, unless_gone};
use crate::exit::{Classify as _, ExitStatus, Failure, FailureKind};
use crate::options::{AttachOptions, Common, DEFAULT_F0, EngineChoice, Part, Trials};

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(mut options: AttachOptions) -> Result<ExitStatus, Failure> {
    if let Some(part) = options.part {
        take_part(part, &mut options.common)?;
    }
    let mut notes = Vec::new();
    let pid = checked(options.pid, |note| notes.push(note.to_string()))?;
    let params = options.common.params.over(Params::default());
    let f0 = options.f0.as_deref().unwrap_or(DEFAULT_F0);
    let mut conduct = Conduct::prepare(f0, params, options.common, Stdout::Ours, Some(pid))
        .map_err(|failure| unless_gone(failure, pid))?;
    conduct.chooses_f0 = options.f0.is_none();
    conduct.trials = options.prove.then(Trials::default);
    for note in notes {
        conduct.warn(note);
    }
    conduct_attach(&mut conduct, pid)
}

/// Ends when the darc ends that analyses several processes by this one and others, and takes its part of the budget.
fn take_part(part: Part, common: &mut Common) -> Result<(), Failure> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).class(FailureKind::Other)?;
    // It may have ended before.
    if std::os::unix::process::parent_id() != part.parent {
        return Err(Failure::message(
            FailureKind::Other,
            "the darc that began this analysis has ended",
        ));
    }
    // The first one asks for the names that all lack.
    common.debuginfod &= part.is_first;
    if common.engine == EngineChoice::Jump {
        let budget = common.budget.unwrap_or(BUDGET);
        common.budget = Some(budget / f64::from(part.of.get()));
    }
    Ok(())
}

/// That darc has not started it.
fn attached(target: Target) -> Target {
    Target {
        attached: true,
        ..target
    }
}

/// Attaches, analyses, reports.
///
/// # Errors
/// When darc itself failed.
pub fn conduct_attach(conduct: &mut Conduct, pid: i32) -> Result<ExitStatus, Failure> {
    let command = command_line(pid);
    let before = conduct.evidence();
    let ending = match conduct.attach(pid) {
        Ok(ending) => ending,
        Err(failure) => {
            match conduct.evidence() != before {
                true => {
                    let target = attached(conduct.target(pid, command));
                    conduct.keep_results(&failure, before, target);
                }
                false => conduct.warn_of_files(),
            }
            return Err(unless_gone(failure, pid));
        }
    };
    let mut target = attached(conduct.target(pid, command));
    target.exit_status = ending.shell_status();
    let has_ended = ending.is_targets();
    if has_ended && !conduct.is_finished() {
        let going_on = conduct.going_on(&target);
        let how = match ending {
            Ending::Killed(signal) => format!("signal {signal} ended the target"),
            _ => "the target ended".to_owned(),
        };
        conduct.warn(format!("{how} before the analysis was done{going_on}"));
    }
    if !conduct.saw_ops() {
        let remedy = match conduct.engine.model() {
            // Nothing can be learnt from it any more.
            _ if has_ended => String::new(),
            Engine::Jump => {
                format!("; darc sample -p {pid} tells which functions take its time, for --f0")
            }
            Engine::Int3 => {
                "; of one that runs already, --engine jump says where its time goes".to_owned()
            }
        };
        conduct.warn(match conduct.investigation.fates() {
            Some(fates) if fates.polls > 0 => no_life(&fates),
            _ => format!("no call of f0 completed while darc was watching{remedy}"),
        });
    }
    conduct.publish(target, started::ended(ending), Show::Report)?;
    Ok(conduct.exit_status(ending))
}

/// Why no life is an op, of all that was polled or resumed.
fn no_life(fates: &Fates) -> String {
    let why = match fates {
        Fates { lost: 1.., .. } => {
            "those that were seen to begin cannot be put together: calls of f0 may have gone unseen, or were within calls of f0 for others"
        }
        Fates { under_way: 1.., .. } => {
            "those that began did not end while darc was watching; give it more time (-d)"
        }
        Fates { dropped: 1.., .. } => "those that began were dropped before their end",
        _ => "all of them had begun before, or where that is not seen",
    };
    let polls = fates.polls;
    format!(
        "no life of what f0 polls or resumes was seen from its begin to its end, in {polls} calls of f0: {why}"
    )
}
