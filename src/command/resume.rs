//! `darc resume`: go on with an analysis that a file holds.

use std::ffi::OsString;

use darc_report::Report;
use darc_report::state::restore;
use darc_symbols::{NameSpec, is_called};

use super::conduct::{Conduct, Stdout, shown};
use super::running::Running;
use super::{attach, run, stored};
use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::input::distrust;
use crate::options::{ResumeOptions, ResumeTarget};
use crate::session::investigation::Investigation;
use crate::session::serving::Serving;

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
    let another = options.f0.and_then(|f0| another_f0(&f0, &report.f0.name));
    let mut notes: Vec<String> = another.into_iter().collect();
    let subject = match options.target {
        ResumeTarget::Pid(pid) => {
            Subject::Process(attach::checked(pid, |note| notes.push(note.to_string()))?)
        }
        ResumeTarget::Command(command) => Subject::Given(command),
        ResumeTarget::FromFile => {
            let command = recorded_command(&report).map_err(refuse)?;
            if let Some(why) = distrust(&metadata) {
                return Err(refuse(format!(
                    "{why}, so the command in it is not run; give the command after --, if that is what you want"
                )));
            }
            Subject::Recorded(command)
        }
    };
    let stdout = match subject {
        Subject::Process(_) => Stdout::Ours,
        Subject::Given(_) | Subject::Recorded(_) => Stdout::Targets,
    };
    let mut conduct = Conduct::with(investigation, options.common, stdout)?;
    conduct.running = running;
    conduct.go_on_following(serving)?;
    conduct.check = options.check;
    for note in notes {
        conduct.warn(note);
    }
    match subject {
        Subject::Process(pid) => attach::conduct_attach(&mut conduct, pid),
        Subject::Given(command) => run::conduct_runs(&mut conduct, &command, 1),
        Subject::Recorded(command) => {
            conduct.say(&format!("running {}", shown(&command).join(" ")));
            run::conduct_runs(&mut conduct, &command, 1)
        }
    }
}

/// What is said when the configuration names another f0 than the results have.
fn another_f0(configured: &str, stored: &str) -> Option<String> {
    let Ok(NameSpec::Name { name, .. }) = NameSpec::parse(configured) else {
        return None; // an address or a line: nobody can tell before the file is read
    };
    let is_same = name.contains(['*', '?', '[']) || is_called(stored, &name);
    (!is_same).then(|| {
        format!(
            "the configuration's f0, {configured}, is not analysed: the results are of {stored}; \
             begin anew with darc attach or darc run"
        )
    })
}

/// What the analysis goes on in.
enum Subject {
    /// A process that runs.
    Process(i32),
    /// A program that is named on the command line, or in the configuration.
    Given(Vec<OsString>),
    /// The program that the file names.
    Recorded(Vec<OsString>),
}

fn recorded_command(report: &Report) -> Result<Vec<OsString>, String> {
    match report.target.command.is_empty() {
        true => {
            Err("no command is recorded in it; give one after --, or a process with -p".to_owned())
        }
        false => Ok(report.target.command.iter().map(OsString::from).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_f0_is_spoken_of() {
        for (configured, stored) in [
            ("serve", "serve"),
            ("serve", "ns::serve(int)"),
            ("lib:serve", "serve"),
            ("serve*", "serve_all"),
            ("serve.c:12", "anything"),
            ("0x1000", "anything"),
        ] {
            assert_eq!(another_f0(configured, stored), None, "{configured}");
        }
        let words = another_f0("serve", "ns::other(int)").unwrap();
        assert!(words.contains("ns::other(int)"), "{words}");
    }
}
