//! `darc attach`: analyse a function of a running process.

use darc_analysis::Params;
use darc_report::model::Engine;
use darc_tracer::preflight::{self, Note};

use super::conduct::{Conduct, Show, Stdout};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::AttachOptions;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: AttachOptions) -> Result<ExitStatus, Failure> {
    let mut notes = Vec::new();
    let pid = checked(options.pid, |note| notes.push(note.to_string()))?;
    let params = options.common.params.over(Params::default());
    let mut conduct = Conduct::prepare(&options.f0, params, options.common, Stdout::Ours)?;
    for note in notes {
        conduct.warn(note);
    }
    conduct_attach(&mut conduct, pid)
}

/// The process that an id stands for, if nothing speaks against measuring it. What the person should know of it
/// is told to `tell`.
///
/// # Errors
/// What speaks against it.
pub(super) fn checked(pid: i32, mut tell: impl FnMut(&Note)) -> Result<i32, Failure> {
    let found = preflight::check(pid).class(FailureKind::Target)?;
    found.notes.iter().for_each(&mut tell);
    Ok(found.pid)
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
            if conduct.evidence() != before {
                let target = conduct.investigation.modules.target(pid, command);
                conduct.keep_results(&failure, before, target);
            }
            return Err(failure);
        }
    };
    let mut target = conduct.investigation.modules.target(pid, command);
    target.exit_status = ending.shell_status();
    if target.exit_status.is_some() && !conduct.is_finished() {
        let file = conduct.output_path();
        conduct.warn(format!(
            "the target ended before the analysis; go on with: darc resume {file}"
        ));
    }
    if !conduct.saw_ops() {
        let remedy = match conduct.engine.model() {
            Engine::Jump => "",
            Engine::Int3 => "; of one that runs already, --engine jump says where its time goes",
        };
        conduct.warn(format!(
            "no call of f0 completed while darc was watching{remedy}"
        ));
    }
    conduct.publish(target, Show::Report)?;
    Ok(conduct.exit_status(ending))
}

/// The command that the process was started with.
pub(super) fn command_line(pid: i32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    match text.is_empty() {
        true => Vec::new(),
        false => text
            .split(|&byte| byte == 0)
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect(),
    }
}
