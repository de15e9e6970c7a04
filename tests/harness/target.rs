//! Target programs that work while darc comes and goes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use darc_testprogs::{Opt, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Finished, wait_until};
use super::turns::{self, Turn};
use crate::watchdog::{self, watched};

/// A target that works until its standard input is closed, and has said "ready".
pub struct Target {
    _turn: Arc<Turn>,
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
        let turn = turns::of_this_test();
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
            _turn: turn,
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
