//! Processes that a test starts: they hold its turn, their output is collected, and they end with the test.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::turns::{self, Turn};
use crate::untouched::is_probed;
use crate::watchdog::{self, HANGS_AFTER, watched};

/// Between two looks at what another process does: who looks all the time takes a processor from what is measured.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for something that another process does.
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_until_seen(what, is_so, String::new);
}

/// As [`wait_until`]; where it waits in vain, it says what there was to see.
pub fn wait_until_seen(what: &str, mut is_so: impl FnMut() -> bool, seen: impl Fn() -> String) {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > HANGS_AFTER {
            panic!("waited in vain: {what}\n{}{}", seen(), watchdog::report());
        }
        thread::sleep(PAUSE);
    }
}

/// Copies a program, by cp(1). A file that this process had open for writing could not be executed (`ETXTBSY`, execve(2)) while a
/// process that another test started at that moment still has it open, too: until its own execve(2).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").arg(from).arg(to).status();
    let copied = copied.expect("there is cp(1)");
    assert!(copied.success(), "{from:?} to {to:?}");
}

/// Writes a program that anybody may execute, as [`copy_program`] does.
pub fn write_program(content: impl AsRef<[u8]>, to: &Path) {
    let draft = to.with_extension("draft");
    fs::write(&draft, content).expect("there is room");
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("it is ours");
    copy_program(&draft, to);
    fs::remove_file(&draft).expect("it is ours");
}

/// A process that has ended, and what it wrote.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// The exit code, or 128 + the signal.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .or_else(|| self.status.signal().map(|signal| 128 + signal))
            .expect("it has ended")
    }

    /// The one line of the failure that darc reports, checked for its form and its exit code.
    pub fn failure(&self, code: i32) -> &str {
        let lines: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| !line.starts_with("darc: warning:"))
            .collect();
        assert_eq!(self.code(), code, "{self:#?}");
        assert_eq!(lines.len(), 1, "one line: {self:#?}");
        assert!(lines[0].starts_with("darc: "), "{self:#?}");
        lines[0]
    }
}

/// A process that runs, its output being collected.
pub struct Running {
    _turn: Arc<Turn>,
    child: Child,
    stdout: Option<Receiver<String>>,
    stderr: Option<Receiver<String>>,
}

/// Collects what comes in a thread of its own, so that no pipe fills up.
fn collect(stream: Option<impl Read + Send + 'static>) -> Option<Receiver<String>> {
    let mut stream = stream?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    Some(receiver)
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let turn = turns::of_this_test();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // What darc starts has its priority: above this thread's, two threads of a program that never wait would keep this one
        // from running for good.
        let is_darc = command.get_program() == env!("CARGO_BIN_EXE_darc");
        let starts_others = command.get_args().next() == Some(OsStr::new("run"));
        let child = match is_darc && !starts_others {
            true => turns::before_targets(&turn, || command.spawn()),
            false => command.spawn(),
        };
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        watchdog::started(child.id());
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Running {
            _turn: turn,
            child,
            stdout,
            stderr,
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("it is our child");
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Waits until this darc has set probes in the process, or has ended without.
    pub fn wait_for_probes(&mut self, target: i32) {
        wait_until("probes", || is_probed(target) || self.has_ended());
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        drop(self.child.stdin.take());
        let status = watched("its end", || self.child.wait().expect("it is our child"));
        let rest = |stream: Option<Receiver<String>>, what: &str| {
            stream.map_or_else(String::new, |stream| {
                stream
                    .recv_timeout(HANGS_AFTER)
                    .unwrap_or_else(|_| panic!("its {what} is still open after its end"))
            })
        };
        Finished {
            status,
            stdout: rest(self.stdout.take(), "stdout"),
            stderr: rest(self.stderr.take(), "stderr"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end, with an empty standard input.
pub fn execute(command: &mut Command) -> Finished {
    Running::start(command.stdin(Stdio::null())).finish()
}

/// Runs a program as it is.
pub fn native<Argument: AsRef<OsStr>>(program: &Path, args: &[Argument]) -> Finished {
    execute(Command::new(program).args(args))
}

/// The command `darc`.
pub fn darc<Argument: AsRef<OsStr>>(args: &[Argument]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_darc"));
    command.args(args);
    command
}

/// Runs `darc` to its end.
pub fn run_darc<Argument: AsRef<OsStr>>(args: &[Argument]) -> Finished {
    execute(&mut darc(args))
}
