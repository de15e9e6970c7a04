//! The subcommands, one a file. Each takes plain options and says how it ended.

pub mod answering;
mod attach;
mod checking;
pub mod cleanup;
pub mod compare;
mod conduct;
pub mod demo;
pub mod doctor;
mod engines;
mod following;
pub mod guardian;
pub mod list;
mod privilege;
pub mod profile;
pub mod report;
pub mod resume;
pub mod run;
pub mod running;
pub mod sample;
mod saved;
mod standing;
mod started;
pub mod status;
mod stored;
mod syscalls;
pub mod watch;

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
