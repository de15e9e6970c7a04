//! `darc run`: start a program and analyse a function of it.

use darc_analysis::Params;

use super::conduct::{Conduct, Show, Stdout, shown};
use super::started::{self, wait_after, wait_for_exit};
use crate::exit::{ExitStatus, Failure};
use crate::options::RunOptions;
use crate::session::Ending;
use crate::terminal::interrupts::Level;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: RunOptions) -> Result<ExitStatus, Failure> {
    let params = options.common.params.over(Params::default());
    let mut conduct = Conduct::prepare(&options.f0, params, options.common, Stdout::Targets)?;
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
    let before = conduct.evidence();
    let (pid, outcome) = conduct.launch(command)?;
    let modules = &conduct.investigation.modules;
    let mut target = modules.target(pid, shown(command));
    let mut ending = match outcome {
        Ok(ending) => ending,
        Err(failure) => {
            if started::had_begun(&failure) {
                conduct.keep_results(&failure, before, target);
            }
            let _ = wait_for_exit(pid, &conduct.interrupts);
            return Err(failure);
        }
    };
    let changed = ending == Ending::Changed;
    let mut show = Show::Report;
    let go_on = match ending.shell_status() {
        Some(_) => GoOn::Yes,
        None => GoOn::No,
    };
    if go_on == GoOn::No {
        // The answer is here: nobody shall have to wait for the program's end to see it.
        conduct
            .publish(target.clone(), Show::Report)
            .map_err(|failure| wait_after(failure, pid, &conduct.interrupts))?;
        show = Show::Nothing;
        if let Ending::Interrupted(Level::LeaveAtOnce(signal)) = ending {
            return Ok((ExitStatus::LeftAtOnce(signal), GoOn::No));
        }
        match wait_for_exit(pid, &conduct.interrupts) {
            Some(ended) => ending = ended,
            None => return Ok((conduct.exit_status(ending), GoOn::No)),
        }
    }
    target.exit_status = ending.shell_status();
    let status = match changed {
        true => ExitStatus::Differs,
        false => ending
            .exit_status()
            .unwrap_or_else(|| conduct.exit_status(ending)),
    };
    if show == Show::Report {
        explain_early_end(conduct);
    }
    conduct.publish(target, show)?;
    Ok((status, go_on))
}

/// The program ended before the analysis did: says what can be done about it.
fn explain_early_end(conduct: &mut Conduct) {
    if conduct.is_finished() {
        return;
    }
    let file = conduct.output_path();
    let warning = match conduct.saw_ops() {
        true => format!("the program ended before the analysis; go on with: darc resume {file}"),
        false => match conduct.investigation.counters.ended_otherwise {
            0 => "f0 was never called and left before the program ended, so there is no profile"
                .to_owned(),
            calls => format!(
                "{calls} calls of f0 began and none ended by returning (exceptions, longjmp, another stack), so there is no profile"
            ),
        },
    };
    conduct.warn(warning);
}
