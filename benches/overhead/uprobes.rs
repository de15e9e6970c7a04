//! The kernel's probes on the same functions: entry and return, counted by perf.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const GROUP: &str = "darc_bench";

/// Probes that are active.
pub struct Uprobes(Child);

impl Uprobes {
    /// Probes functions of a program in a running process.
    ///
    /// # Errors
    /// In words, when there is no perf, no permission or no such function.
    pub fn attach(pid: u32, program: &Path, functions: &[&str]) -> Result<Uprobes, String> {
        remove();
        for (index, function) in functions.iter().enumerate() {
            for (kind, suffix) in [("entry", ""), ("end", "%return")] {
                let probe = format!("{GROUP}:{kind}{index}={function}{suffix}");
                perf(&[
                    "probe",
                    "-q",
                    "-x",
                    &program.to_string_lossy(),
                    "--add",
                    &probe,
                ])?;
            }
        }
        let child = Command::new("perf")
            .args(["stat", "-e", &format!("{GROUP}:*"), "-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.map(Uprobes).map_err(|error| format!("perf: {error}"))
    }
}

impl Drop for Uprobes {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // It may have ended already.
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let _ = self.0.wait();
        remove();
    }
}

fn perf(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("perf")
        .args(arguments)
        .output()
        .map_err(|error| format!("perf: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!(
        "perf {}: {}",
        arguments[0],
        said.lines().next().unwrap_or("failed")
    ))
}

/// Takes all probes of the benches away; there may be none.
fn remove() {
    let _ = perf(&["probe", "-q", "-d", &format!("{GROUP}:*")]);
}
