//! The subcommands, one a file. Each takes plain options and says how it ended.

mod answering;
mod attach;
mod checking;
mod cleanup;
mod compare;
mod conduct;
mod demo;
mod doctor;
mod engines;
mod following;
mod guardian;
mod list;
mod privilege;
mod profile;
mod report;
mod resume;
mod run;
mod running;
mod sample;
mod saved;
mod standing;
mod started;
mod status;
mod stored;
mod style;
mod syscalls;
mod watch;

use crate::exit::{ExitStatus, Failure};
use crate::options::{Invocation, Verbosity};
use crate::terminal::warning;

/// Does what was asked for.
///
/// # Errors
/// When darc itself failed; how a target ended is no failure.
pub fn execute(invocation: Invocation) -> Result<ExitStatus, Failure> {
    if invocation.verbosity() != Verbosity::Quiet
        && let Some(note) = privilege::note(&invocation)
    {
        warning::print(&note);
    }
    match invocation {
        Invocation::Run(options) => run::execute(options),
        Invocation::Attach(options) => attach::execute(options),
        Invocation::Resume(options) => resume::execute(options),
        Invocation::Profile(options) => profile::execute(options),
        Invocation::Watch(options) => watch::execute(options),
        Invocation::Report(options) => report::execute(options),
        Invocation::Compare(options) => compare::execute(options),
        Invocation::List(options) => list::execute(options),
        Invocation::Status(options) => status::execute(options),
        Invocation::Sample(options) => sample::execute(options),
        Invocation::Cleanup(pid) => cleanup::execute(pid),
        Invocation::Doctor(options) => doctor::execute(options),
        Invocation::Demo(options) => demo::execute(options),
        Invocation::DemoTarget => Ok(demo::target()),
        Invocation::Guardian(options) => guardian::execute(options),
    }
}
