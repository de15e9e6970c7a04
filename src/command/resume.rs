//! `darc resume`: go on with an analysis that a file holds.

use std::ffi::OsString;

use darc_tracer::preflight;

use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::input::distrust;
use crate::options::{ResumeOptions, ResumeTarget};
use crate::report::Report;
use crate::session::investigation::Investigation;
use crate::session::serving::Serving;
use crate::state::restore;

use super::conduct::{Conduct, Stdout, shown};
use super::running::Running;
use super::{attach, run, stored};

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: ResumeOptions) -> Result<ExitStatus, Failure> {
    let (report, metadata) = stored::read(&options.file)?;
    let refuse =
        |why: String| Failure::message(FailureKind::File, format!("{:?}: {why}", options.file));
    let params = restore::params(&report).map_err(|error| refuse(error.to_string()))?;
    let params = options.common.params.over(params);
    let mut investigation =
        Investigation::resumed(&report, params).map_err(|error| refuse(error.to_string()))?;
    let running = Running::stored(&report, params, &mut investigation.modules)
        .map_err(|error| refuse(error.to_string()))?;
    let serving = Serving::stored(&report, params, &mut investigation)
        .map_err(|error| refuse(error.to_string()))?;
    match options.target {
        ResumeTarget::Pid(pid) => {
            let found = preflight::check(pid).class(FailureKind::Target)?;
            let mut conduct = Conduct::with(investigation, options.common, Stdout::Ours)?;
            conduct.running = running;
            conduct.go_on_following(serving)?;
            conduct.check = options.check;
            for note in &found.notes {
                conduct.warn(note.to_string());
            }
            attach::conduct_attach(&mut conduct, found.pid)
        }
        ResumeTarget::Command(command) => {
            let mut conduct = Conduct::with(investigation, options.common, Stdout::Targets)?;
            conduct.running = running;
            conduct.go_on_following(serving)?;
            conduct.check = options.check;
            run::conduct_runs(&mut conduct, &command, 1)
        }
        ResumeTarget::FromFile => {
            let command = recorded_command(&report).map_err(refuse)?;
            if let Some(why) = distrust(&metadata) {
                return Err(refuse(format!(
                    "{why}, so the command in it is not run; give the command after --, if that is what you want"
                )));
            }
            let mut conduct = Conduct::with(investigation, options.common, Stdout::Targets)?;
            conduct.running = running;
            conduct.go_on_following(serving)?;
            conduct.check = options.check;
            conduct.say(&format!("running {}", shown(&command).join(" ")));
            run::conduct_runs(&mut conduct, &command, 1)
        }
    }
}

fn recorded_command(report: &Report) -> Result<Vec<OsString>, String> {
    match report.target.command.is_empty() {
        true => {
            Err("no command is recorded in it; give one after --, or a process with -p".to_owned())
        }
        false => Ok(report.target.command.iter().map(OsString::from).collect()),
    }
}
