//! The subcommands, one a file. Each takes plain options and says how it ended. `analysis` is what `run`, `attach` and `resume`
//! have in common, `shared` what others have.

mod analysis;
mod attach;
mod attach_all;
mod cleanup;
mod compare;
mod demo;
mod doctor;
mod guardian;
mod list;
mod profile;
mod prove;
mod report;
mod resume;
mod run;
mod sample;
mod shared;
mod status;
mod watch;

use shared::privilege;

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
        Invocation::AttachAll(options) => attach_all::execute(&options),
        Invocation::Resume(options) => resume::execute(options),
        Invocation::Profile(options) => profile::execute(options),
        Invocation::Watch(options) => watch::execute(options),
        Invocation::Report(options) => report::execute(options),
        Invocation::Compare(options) => compare::execute(options),
        Invocation::List(options) => list::execute(options),
        Invocation::Status(options) => status::execute(options),
        Invocation::Sample(options) => sample::execute(options),
        Invocation::Cleanup(options) => cleanup::execute(&options),
        Invocation::Doctor(options) => doctor::execute(options),
        Invocation::Prove(options) => prove::execute(options),
        Invocation::Demo(options) => demo::execute(options),
        Invocation::DemoTarget => Ok(demo::target()),
        Invocation::Guardian(options) => guardian::execute(options),
    }
}
