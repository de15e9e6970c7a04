//! `darc run`: start a program and analyse a function of it.

use darc_analysis::Params;
use darc_process::{Ending, Interrupts as _, Level};
use darc_report::model::{Ended, Target};
use darc_tracer::proc::is_ending;

use crate::command::analysis::{Conduct, Show, Stdout, following};
use crate::command::shared::started::{self, wait_for_exit};
use crate::command::shared::target::shown;
use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::options::RunOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: RunOptions) -> Result<ExitStatus, Failure> {
    let params = options.common.params.over(Params::default());
    let mut conduct = Conduct::prepare(&options.f0, params, options.common, Stdout::Targets, None)?;
    conduct_runs(&mut conduct, &options.command, options.repeat.get())
}

/// Runs the program until every path has ended, at most `times` times.
///
/// # Errors
/// When darc itself failed.
pub fn conduct_runs(
    conduct: &mut Conduct,
    command: &[std::ffi::OsString],
    times: u32,
) -> Result<ExitStatus, Failure> {
    let mut last = ExitStatus::Done;
    for _ in 0..times {
        let (status, go_on) = one_run(conduct, command)?;
        last = status;
        if go_on == GoOn::No || conduct.is_finished() {
            break;
        }
    }
    Ok(last)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GoOn {
    Yes,
    No,
}

fn one_run(
    conduct: &mut Conduct,
    command: &[std::ffi::OsString],
) -> Result<(ExitStatus, GoOn), Failure> {
    let (pid, outcome) = conduct.launch(command)?;
    let mut target = conduct.target(pid, shown(command));
    let ending = match outcome {
        Ok(ending) => Some(ending),
        Err(failure) if !started::had_begun(&failure) => {
            conduct.warn_of_files();
            let _ = wait_for_exit(pid, &conduct.interrupts);
            return Err(failure);
        }
        // It ended while nobody watched it.
        Err(failure) if failure.kind() == FailureKind::Lost && is_ending(pid) => {
            wait_for_exit(pid, &conduct.interrupts)
        }
        Err(failure) => {
            conduct.warn(started::ended_early(&failure));
            None
        }
    };
    let how = ending.map_or(Ended::Failed, started::ended);
    if let Some(status) = ending.and_then(started::passed_on) {
        target.exit_status = ending.and_then(Ending::shell_status);
        explain_early_end(conduct, &target);
        conduct.keep(target, how, Show::Report);
        return Ok((status, GoOn::Yes));
    }
    if ending == Some(Ending::Exec) && !conduct.saw_ops() {
        say_what_it_became(conduct, pid);
    }
    // The answer is here: nobody shall have to wait for the program's end to see it.
    let is_kept = conduct.keep(target.clone(), how, Show::Report);
    if let Some(Ending::Interrupted(Level::LeaveAtOnce(signal))) = ending {
        return Ok((ExitStatus::LeftAtOnce(signal), GoOn::No));
    }
    let ended = wait_for_exit(pid, &conduct.interrupts);
    target.exit_status = ended.and_then(Ending::shell_status);
    if is_kept && target.exit_status.is_some() {
        conduct.keep(target, how, Show::Nothing);
    }
    let passed_on = match ending {
        Some(Ending::Changed) => None,
        _ => ended.and_then(started::passed_on),
    };
    let status = passed_on.unwrap_or_else(|| match (ending, conduct.interrupts.level()) {
        (Some(ending), _) => conduct.exit_status(ending),
        (None, Level::LeaveAtOnce(signal)) => ExitStatus::LeftAtOnce(signal),
        (None, _) => ExitStatus::Done,
    });
    Ok((status, GoOn::No))
}

/// A wrapper or a script has made place for the program that is meant: says how that one is measured.
fn say_what_it_became(conduct: &mut Conduct, pid: i32) {
    let Ok(program) = std::fs::read_link(format!("/proc/{pid}/exe")) else {
        return;
    };
    conduct.warn(format!(
        "it is {} now: darc run -- with that program and the same arguments measures it from its beginning, darc attach -p {pid} from now on",
        program.display()
    ));
}

/// The program ended before the analysis did: says what can be done about it.
fn explain_early_end(conduct: &mut Conduct, target: &Target) {
    if conduct.is_finished() {
        return;
    }
    let polls = conduct.investigation.polls();
    let warning = match conduct.saw_ops() {
        true => format!(
            "the program ended before the analysis{}",
            conduct.going_on(target)
        ),
        false if polls.is_some_and(|polls| polls > 0) => {
            "no life of what f0 polls or resumes was seen from its begin to its end, so there is no profile"
                .to_owned()
        }
        false if following::names_main(&conduct.investigation.spec) => format!(
            "the program ended before a part of {} could be measured; give it more to do, or name a function that it calls often with --f0",
            conduct.investigation.spec
        ),
        false => match conduct.investigation.counters.ended_otherwise {
            0 => format!(
                "f0 was never called and left{} before the program ended, so there is no profile",
                match conduct.common.threads.is_empty() {
                    true => "",
                    false => " by a thread that --thread names",
                }
            ),
            calls => format!(
                "{calls} calls of f0 began and none ended by returning (exceptions, longjmp, another stack), so there is no profile"
            ),
        },
    };
    conduct.warn(warning);
}
