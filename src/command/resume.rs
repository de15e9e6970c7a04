//! `darc resume`: go on with an analysis that a file holds.

use std::ffi::OsString;

use darc_analysis::Params;
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_report::Report;
use darc_report::difference::clocks_differ;
use darc_report::model::{Engine, Status, StopReason};
use darc_report::state::{StateError, restore};
use darc_symbols::{NameSpec, is_called};

use super::{attach, run};
use crate::command::analysis::running::Running;
use crate::command::analysis::{Conduct, Stdout, is_finished};
use crate::command::shared::stored as file;
use crate::command::shared::target::checked;
use crate::command::shared::target::shown;
use crate::exit::{ExitStatus, Failure, FailureKind};
use crate::input::distrust;
use crate::options::{Blocks, EngineChoice, ResumeOptions, ResumeTarget, Verbosity};
use crate::output::print;
use crate::session::asynchronous::Serving;
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::Investigation;
use crate::target_name::stored_threads;
use crate::terminal::warning::one_line;

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(mut options: ResumeOptions) -> Result<ExitStatus, Failure> {
    if options.common.range.is_some() {
        return Err(Failure::usage(
            "the ops of interest are named when an analysis begins; give --slower-than, --above or --between to darc attach or darc run",
        ));
    }
    let (report, metadata) = file::read(&options.file)?;
    let refuse =
        |why: String| Failure::message(FailureKind::File, format!("{:?}: {why}", options.file));
    if report.futures.is_some() {
        return Err(refuse(
            "its ops are lives (of futures or coroutines), of which none can be gone on with; start a new analysis with darc run or attach"
                .to_owned(),
        ));
    }
    let threads = stored_threads(&report).map_err(&refuse)?;
    if !options.common.threads.is_empty() && options.common.threads != threads {
        return Err(Failure::usage(
            "the threads are named when an analysis begins; give --thread to darc attach or darc run",
        ));
    }
    options.common.threads = threads;
    options.common.engine = options.engine.unwrap_or(match report.engine {
        Engine::Int3 => EngineChoice::Int3,
        Engine::Jump => EngineChoice::Jump,
    });
    let params = restore::params(&report).map_err(|error| refuse(error.to_string()))?;
    let params = options.common.params.over(params);
    let (mut modules, mut catalog) = (Modules::default(), Catalog::default());
    let (investigation, running, serving) = stored(&report, params, &mut modules, &mut catalog)
        .map_err(|error| refuse(error.to_string()))?;
    let is_open = !is_finished(&investigation, running.as_ref(), serving.as_ref());
    // Requests are counted as long as they are followed.
    let asks_more =
        options.check.is_some() || options.common.blocks != Blocks::Left || serving.is_some();
    if !is_open && !asks_more {
        say_that_nothing_is_open(&options, &report);
        return Ok(ExitStatus::Done);
    }
    let here = Moment::now().rate().get();
    if let Some(why) = another_clock(report.clock.hz, here) {
        return Err(refuse(why));
    }
    let another = options.f0.and_then(|f0| another_f0(&f0, &report.f0.name));
    let mut notes: Vec<String> = another.into_iter().collect();
    let subject = match options.target {
        ResumeTarget::Pid(pid) => {
            Subject::Process(checked(pid, |note| notes.push(note.to_string()))?)
        }
        ResumeTarget::Command(command) => Subject::Given(command),
        // It was no program of darc's to run.
        ResumeTarget::FromFile if report.target.attached => {
            let pid = file::process(&report, &metadata).map_err(|why| {
                refuse(format!(
                    "{why}, or give the command of a program to run after --"
                ))
            })?;
            Subject::Process(checked(pid, |note| notes.push(note.to_string()))?)
        }
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
    let mut conduct = Conduct::with(investigation, options.common, stdout, None)?;
    (conduct.modules, conduct.catalog) = (modules, catalog);
    conduct.running = running;
    conduct.earlier = Some(report);
    conduct.go_on_following(serving)?;
    conduct.check = options.check;
    for note in notes {
        conduct.warn(note);
    }
    match subject {
        Subject::Process(pid) => {
            conduct.say(&format!("going on in process {pid}"));
            attach::conduct_attach(&mut conduct, pid)
        }
        Subject::Given(command) => run::conduct_runs(&mut conduct, &command, 1),
        Subject::Recorded(command) => {
            conduct.say(&format!("running {}", shown(&command).join(" ")));
            run::conduct_runs(&mut conduct, &command, 1)
        }
    }
}

/// Every path has ended: there is nothing for which a program would have to run.
fn say_that_nothing_is_open(options: &ResumeOptions, report: &Report) {
    if options.common.verbosity == Verbosity::Quiet {
        return;
    }
    let below = report.focus.iter().flat_map(|focus| &focus.peaks);
    let has = |status| {
        let mut peaks = report.peaks.iter().chain(below.clone());
        peaks.any(|peak| peak.status == status)
    };
    let mut more = String::new();
    let peaks = report.peaks.iter().chain(below.clone());
    let mut causes = peaks.flat_map(|peak| &peak.root_causes);
    if causes.any(|cause| cause.stop == StopReason::MaxDepth) {
        more += "; a larger --max-depth goes on where a path became too long";
    }
    if has(Status::Undecided) {
        more += "; of what is not decided every path has ended, and more calls would tell no more: darc attach or darc run begins anew";
    }
    if has(Status::NotAnalysed) {
        more += "; --peak all goes on with the peaks that were left alone";
    }
    let file = &options.file;
    let line =
        format!("nothing is open in {file:?}, and nothing was run; darc report shows it{more}");
    print(std::io::stderr(), &format!("darc: {}\n", one_line(&line)));
}

/// The analyses that are stored: of f0, of the functions below it, and of the one that serves its requests.
fn stored(
    report: &Report,
    params: Params,
    modules: &mut Modules,
    catalog: &mut Catalog,
) -> Result<(Investigation, Option<Running>, Option<Serving>), StateError> {
    let investigation = Investigation::resumed(report, params, modules, catalog)?;
    let running = Running::stored(report, params, modules, catalog)?;
    let serving = Serving::stored(report, params, modules, catalog)?;
    Ok((investigation, running, serving))
}

/// Why ops of this machine do not count together with those in a file: both are counted by their cycles.
fn another_clock(stored: u64, here: u64) -> Option<String> {
    clocks_differ(stored, here).map(|differ| {
        format!(
            "it is of another machine: {differ}; go on there, or start a new analysis with darc run or attach"
        )
    })
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
    fn ops_of_two_clocks_do_not_count_together() {
        assert_eq!(another_clock(2_500_000_000, 2_501_000_000), None);
        let words = another_clock(2_000_000_000, 2_900_000_000).unwrap();
        assert!(words.contains("2.00 and 2.90 GHz"), "{words}");
    }

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
