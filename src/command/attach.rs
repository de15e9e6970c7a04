//! `darc attach`: analyse a function of a running process.

use darc_analysis::Params;
use darc_report::model::Engine;

use crate::command::analysis::{Conduct, Show, Stdout};
use crate::command::shared::started;
use crate::command::shared::target::{checked, command_line};
use crate::exit::{ExitStatus, Failure};
use crate::options::{AttachOptions, DEFAULT_F0, Trials};
use crate::session::summary;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: AttachOptions) -> Result<ExitStatus, Failure> {
    let mut notes = Vec::new();
    let pid = checked(options.pid, |note| notes.push(note.to_string()))?;
    let params = options.common.params.over(Params::default());
    let f0 = options.f0.as_deref().unwrap_or(DEFAULT_F0);
    let mut conduct = Conduct::prepare(f0, params, options.common, Stdout::Ours)?;
    conduct.chooses_f0 = options.f0.is_none();
    conduct.trials = options.prove.then(Trials::default);
    for note in notes {
        conduct.warn(note);
    }
    conduct_attach(&mut conduct, pid)
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
                    let target = summary::target(&conduct.modules, pid, command);
                    conduct.keep_results(&failure, before, target);
                }
                false => conduct.warn_of_files(),
            }
            return Err(failure);
        }
    };
    let mut target = summary::target(&conduct.modules, pid, command);
    target.exit_status = ending.shell_status();
    if target.exit_status.is_some() && !conduct.is_finished() {
        let file = conduct.output_path();
        conduct.warn(format!(
            "the target ended before the analysis; go on with: darc resume {file}"
        ));
    }
    if !conduct.saw_ops() {
        let remedy = match conduct.engine.model() {
            Engine::Jump => {
                format!("; darc sample -p {pid} tells which functions take its time, for --f0")
            }
            Engine::Int3 => {
                "; of one that runs already, --engine jump says where its time goes".to_owned()
            }
        };
        conduct.warn(format!(
            "no call of f0 completed while darc was watching{remedy}"
        ));
    }
    conduct.publish(target, started::ended(ending), Show::Report)?;
    Ok(conduct.exit_status(ending))
}
