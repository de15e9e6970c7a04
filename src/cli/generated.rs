//! What the command line's definition is turned into: shell completions and manual pages. Commands that
//! darc keeps to itself are not in them.

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::arguments::Cli;
use crate::exit::{Failure, FailureKind};

/// The completion script for a shell.
pub(super) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(), "darc", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The manual page of darc, or of one of its commands, in roff.
pub(super) fn manual(command: Option<&str>) -> Result<String, Failure> {
    let mut darc = visible();
    darc.build();
    let page = match command {
        None => darc,
        Some(name) => {
            let known: Vec<String> = darc
                .get_subcommands()
                .map(|known| known.get_name().to_owned())
                .filter(|name| name != "help")
                .collect();
            let found = darc
                .get_subcommands()
                .find(|known| known.get_name() == name)
                .cloned();
            found.ok_or_else(|| {
                let known = known.join(", ");
                Failure::usage(format!(
                    "man: there is no command {name:?}; the commands are {known}"
                ))
            })?
        }
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut roff)
        .map_err(|error| Failure::new(FailureKind::Other, error))?;
    Ok(String::from_utf8_lossy(&roff).into_owned())
}

/// The command line without what is hidden.
fn visible() -> Command {
    let mut full = Cli::command();
    let mut darc = Command::new("darc")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true);
    if let Some(about) = full.get_about() {
        darc = darc.about(about.clone());
    }
    if let Some(about) = full.get_long_about() {
        darc = darc.long_about(about.clone());
    }
    if let Some(help) = full.get_after_help() {
        darc = darc.after_help(help.clone());
    }
    let commands = full
        .get_subcommands_mut()
        .filter(|command| !command.is_hide_set());
    darc.subcommands(commands.map(|command| command.clone()))
}
