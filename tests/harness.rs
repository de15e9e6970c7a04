//! Starts targets and darc, and waits for them.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use darc_testprogs::{Opt, program};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::report::Report;
use crate::untouched::is_probed;
use crate::watchdog::{self, HANGS_AFTER, watched};

/// The engines that this build of darc has.
pub fn engines() -> &'static [&'static str] {
    &["jump", "int3"]
}

/// The turn of a test that starts targets; it lasts until the guard is dropped.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static SIGNALS: Once = Once::new();
    SIGNALS.call_once(heed_interrupts);
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processes inherit that SIGINT is ignored, from a shell that runs the tests in the background: darc would rightly go
/// on ignoring it, and the tests that interrupt it would wait in vain.
fn heed_interrupts() {
    // SAFETY: no handler is installed.
    unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }.expect("SIGINT has a default");
}

/// Between two looks at what another process does: who looks all the time takes a processor from what is measured.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for something that another process does.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > HANGS_AFTER {
            panic!("waited in vain: {what}\n{}", watchdog::report());
        }
        thread::sleep(PAUSE);
    }
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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        watchdog::started(child.id());
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Running {
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

    /// Waits until this darc has set probes in the process, or has ended without.
    pub fn wait_for_probes(&mut self, target: i32) {
        wait_until("probes", || {
            is_probed(target) || self.child.try_wait().expect("it is our child").is_some()
        });
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

/// An analysis with darc, and the folder that its results are in.
#[derive(Debug)]
pub struct Analysis {
    pub darc: Finished,
    pub output: PathBuf,
    pub folder: TempDir,
}

impl Analysis {
    /// The results; JSON was asked for.
    pub fn report(&self) -> Report {
        Report::read(&self.output, &self.darc)
    }
}

/// What to analyse, and how.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    pub engine: &'a str,
    pub f0: &'a str,
    pub options: &'a [&'a str],
}

impl<'a> Task<'a> {
    pub fn new(engine: &'a str, f0: &'a str) -> Task<'a> {
        Task {
            engine,
            f0,
            options: &[],
        }
    }

    pub fn options(self, options: &'a [&'a str]) -> Task<'a> {
        Task { options, ..self }
    }

    fn command(&self, subcommand: &str, output: &Path) -> Command {
        let mut command = darc(&[
            subcommand,
            "--f0",
            self.f0,
            "--engine",
            self.engine,
            "--format",
            "json",
        ]);
        command.arg("-o").arg(output).args(self.options);
        // Whatever else runs on the machine is no matter of the program, unless the test says so.
        if !self.options.contains(&"--preemption") {
            command.args(["--preemption", "counted"]);
        }
        command
    }

    /// `darc run`.
    pub fn run(&self, program: &Path, args: &[&str]) -> Analysis {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let output = folder.path().join("out.json");
        let mut command = self.command("run", &output);
        let darc = execute(command.arg("--").arg(program).args(args));
        Analysis {
            darc,
            output,
            folder,
        }
    }

    /// `darc run`, and the same program without darc: both must have the same output and end.
    pub fn run_like_native(&self, program: &Path, args: &[&str]) -> Analysis {
        let native = native(program, args);
        let analysis = self.run(program, args);
        assert_eq!(
            analysis.darc.stdout, native.stdout,
            "{args:?} {self:?} {:#?}",
            analysis.darc
        );
        assert_eq!(
            analysis.darc.code(),
            native.code(),
            "{args:?} {self:?} {:#?}",
            analysis.darc
        );
        analysis
    }

    /// `darc attach`, until it ends by itself.
    pub fn attach(&self, pid: i32) -> Analysis {
        let (darc, output, folder) = self.start_attach(pid);
        Analysis {
            darc: darc.finish(),
            output,
            folder,
        }
    }

    /// `darc attach`, left running.
    pub fn start_attach(&self, pid: i32) -> (Running, PathBuf, TempDir) {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let output = folder.path().join("out.json");
        let mut command = self.command("attach", &output);
        let darc = Running::start(command.arg("-p").arg(pid.to_string()).stdin(Stdio::null()));
        (darc, output, folder)
    }
}

/// A target that works until its standard input is closed, and has said "ready".
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Target {
    /// Starts a target program: `NAME wait ARGS…`.
    pub fn start(name: &str, opt: Opt, args: &[&str]) -> Target {
        Target::start_at(&program(name, opt), args)
    }

    /// Starts the target program that is at `path`.
    pub fn start_at(path: &Path, args: &[&str]) -> Target {
        Target::start_command(Command::new(path).arg("wait").args(args))
    }

    /// Starts a command that says "ready".
    pub fn start_command(command: &mut Command) -> Target {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        watchdog::started(child.id());
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            let read = watched("a line", || stdout.read_line(&mut line).expect("text"));
            assert_ne!(read, 0, "{command:?}: ended early");
        }
        Target {
            child,
            stdin,
            stdout,
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("it is our child");
    }

    /// The id of a thread beside its main thread, once there is one.
    pub fn second_thread(&self) -> i32 {
        let mut tid = 0;
        wait_until("a second thread", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it lives");
            let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
            tid = tids.max().unwrap_or(0);
            tid > self.pid()
        });
        tid
    }

    /// Gives it a byte of input.
    pub fn poke(&mut self) {
        self.poke_with(b'x');
    }

    /// Gives it this byte of input.
    pub fn poke_with(&mut self, byte: u8) {
        use std::io::Write;
        let stdin = self.stdin.as_mut().expect("open");
        stdin.write_all(&[byte]).expect("it reads");
    }

    /// Waits for the next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        watched("a line", || self.stdout.read_line(&mut line).expect("text"));
        line
    }

    /// Closes its input and waits for its end; what it wrote after "ready".
    pub fn finish(mut self) -> Finished {
        drop(self.stdin.take());
        let mut stdout = String::new();
        let status = watched("the end of a target", || {
            self.stdout.read_to_string(&mut stdout).expect("text");
            self.child.wait().expect("it is our child")
        });
        Finished {
            status,
            stdout,
            stderr: String::new(),
        }
    }

    /// Ends it, and compares output and exit status with those of a run that darc never saw.
    pub fn finish_like_native(self, path: &Path, args: &[&str]) -> Finished {
        let native = Target::start_at(path, args).finish();
        let finished = self.finish();
        assert_eq!(finished.stdout, native.stdout, "{}", path.display());
        assert_eq!(finished.status, native.status, "{}", path.display());
        finished
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures until the truth is found, three times at most: other work on the machine moves latencies.
/// Whatever must hold on any machine is to be asserted by `measure` itself.
pub fn measured(measure: impl Fn() -> Result<(), String>) {
    const ATTEMPTS: u32 = 3;
    for attempt in 1.. {
        match measure() {
            Ok(()) => return,
            Err(why) if attempt == ATTEMPTS => panic!("{ATTEMPTS} times in a row: {why}"),
            Err(why) => eprintln!("attempt {attempt}: {why}"),
        }
    }
}

/// Runs a check for every engine and both optimisation levels, and says which one failed. Breakpoints in code that is not
/// optimised are left to those who set `DARC_TEST_ALL`: what is hard about breakpoints is in optimised code.
pub fn for_all(check: impl Fn(&str, Opt)) {
    let all = std::env::var_os("DARC_TEST_ALL").is_some();
    for &engine in engines() {
        for opt in Opt::ALL {
            if (engine, opt) == ("int3", Opt::O0) && !all {
                continue;
            }
            let label = Label(engine, opt);
            check(engine, opt);
            drop(label);
        }
    }
}

/// Speaks when a panic passes by.
struct Label<'a>(&'a str, Opt);

impl Drop for Label<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("this was with --engine {} at -{:?}", self.0, self.1);
        }
    }
}
