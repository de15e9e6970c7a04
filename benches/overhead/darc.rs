//! The tool under test, attached to a running target.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{fs, io};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::child::{self, Ended};

/// More ops than any run has: the analysis never has enough of them to decide, and so never ends.
const NEVER: &str = "1000000000000000";

/// A started darc.
pub struct Darc {
    child: Child,
    began: Instant,
    results: PathBuf,
    messages: PathBuf,
}

/// A darc that has ended.
pub struct Done {
    /// How.
    pub ended: Ended,
    /// Its results.
    pub results: Value,
}

/// A darc command, not yet started.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_darc"));
    command.args(arguments);
    command
}

/// An analysis of `f0` that measures its calls until it is stopped.
pub fn endless(pid: u32, f0: &str, engine: &str, folder: &Path) -> io::Result<Darc> {
    let arguments = ["--decision-ops", NEVER];
    start(
        &["attach", "--f0", f0, "--engine", engine],
        &arguments,
        pid,
        folder,
        "endless.json",
    )
}

/// The same with the calls of `depth` functions below one another: found first, measured then.
pub fn endless_below(
    pid: u32,
    f0: &str,
    engine: &str,
    depth: usize,
    folder: &Path,
) -> io::Result<Darc> {
    let depth = depth.to_string();
    until_found(
        pid,
        f0,
        engine,
        &["--max-depth", &depth, "-d", "3s"],
        folder,
    )?;
    let file = folder.join("found.json");
    let file = file
        .to_str()
        .ok_or_else(|| io::Error::other("the folder has a strange name"))?;
    let arguments = ["--decision-ops", NEVER, "--max-depth", "32"];
    start(
        &["resume", file, "--engine", engine],
        &arguments,
        pid,
        folder,
        "endless.json",
    )
}

/// An analysis from its start to the root causes.
pub fn until_found(
    pid: u32,
    f0: &str,
    engine: &str,
    arguments: &[&str],
    folder: &Path,
) -> io::Result<Done> {
    let words = ["attach", "--f0", f0, "--engine", engine];
    start(&words, arguments, pid, folder, "found.json")?.end()
}

fn start(
    words: &[&str],
    arguments: &[&str],
    pid: u32,
    folder: &Path,
    results: &str,
) -> io::Result<Darc> {
    let results = folder.join(results);
    let messages = folder.join("messages");
    let mut command = command(words);
    command
        .args(arguments)
        .args(["--format", "json", "-p", &pid.to_string(), "-o"])
        .arg(&results);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&messages)?);
    let began = Instant::now();
    Ok(Darc {
        child: command.spawn()?,
        began,
        results,
        messages,
    })
}

impl Darc {
    /// Interrupts it, and waits for its results.
    pub fn stop(self) -> io::Result<Done> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        kill(Pid::from_raw(pid), Signal::SIGINT)?;
        self.end()
    }

    /// Waits until it ends by itself.
    pub fn end(self) -> io::Result<Done> {
        let ended = child::wait(&self.child, self.began)?;
        let said = fs::read_to_string(&self.messages).unwrap_or_default();
        if ended.code != Some(0) {
            return Err(io::Error::other(format!(
                "exit code {:?}: {}",
                ended.code,
                said.trim()
            )));
        }
        let results = serde_json::from_str(&fs::read_to_string(&self.results)?)?;
        Ok(Done { ended, results })
    }
}
