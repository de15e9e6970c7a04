//! Names from debuginfod servers: their own client fetches debug files into its cache, where they are looked for like others.
//!
//! Only before a process is measured: nothing of it waits for a network. Source: debuginfod-find(1).

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use darc_process::modules::Modules;
use darc_process::{Interrupts as _, Level};
use darc_symbols::BuildId;
use darc_tracer::children;

use crate::terminal::interrupts::Interrupts;

/// What fetches.
const CLIENT: &str = "debuginfod-find";
/// What is waited for all files together.
const LONGEST: Duration = Duration::from_secs(60);
/// How often is looked whether a file is there.
const STEP: Duration = Duration::from_millis(20);

/// Fetches the names that loaded files lack, where the environment names servers (`DEBUGINFOD_URLS`), and tells what it asks
/// for. Why not all was asked for, for people.
pub fn fetch(modules: &Modules, interrupts: &Interrupts, tell: impl Fn(&str)) -> Option<String> {
    let servers = std::env::var("DEBUGINFOD_URLS").unwrap_or_default();
    if servers.trim().is_empty() {
        return None;
    }
    let deadline = Instant::now() + LONGEST;
    for (path, id) in nameless(modules) {
        tell(&format!("asking debuginfod for the symbols of {path}"));
        let fetched = client(&id).and_then(|child| wait(child, deadline, interrupts));
        match fetched {
            Ok(true) => {}
            Ok(false) if interrupts.level() != Level::GoOn => return None,
            Ok(false) => {
                return Some(format!(
                    "not all symbols were fetched in {LONGEST:?}; --no-debuginfod asks for none"
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Some(format!(
                    "DEBUGINFOD_URLS names servers with symbols, but {CLIENT} is not installed (Debian: apt install debuginfod; Fedora: dnf install elfutils-debuginfod-client)"
                ));
            }
            Err(error) => return Some(format!("{CLIENT}: {error}")),
        }
    }
    None
}

/// The files without names, the program itself first; the kernel's own code is no file.
fn nameless(modules: &Modules) -> Vec<(String, BuildId)> {
    let loaded = modules.loaded().into_iter().map(|id| modules.get(id));
    loaded
        .filter(|module| module.path.starts_with('/'))
        .filter_map(|module| {
            let build_id = module.image.as_ref()?.lacks_names()?;
            Some((module.path.clone(), build_id.clone()))
        })
        .collect()
}

fn client(id: &BuildId) -> io::Result<Child> {
    let mut client = Command::new(CLIENT);
    client
        .args(["debuginfo", &id.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // A killed darc leaves nobody behind who goes on fetching.
    children::die_with_us(&mut client);
    client.spawn()
}

/// Waits for a client: whether it has ended by itself. That a server has no such file is no error.
fn wait(mut client: Child, deadline: Instant, interrupts: &Interrupts) -> io::Result<bool> {
    while client.try_wait()?.is_none() {
        if Instant::now() >= deadline || interrupts.level() != Level::GoOn {
            client.kill()?;
            client.wait()?;
            return Ok(false);
        }
        std::thread::sleep(STEP);
    }
    Ok(true)
}
