//! Analyses with darc: what is asked, and what came of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use darc_testprogs::GroundTruth;
use tempfile::TempDir;

use super::process::{Finished, Running, darc, execute, native};
use crate::report::Report;

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
#[derive(Clone, Debug)]
pub struct Task<'a> {
    engine: &'a str,
    f0: &'a str,
    options: Vec<&'a str>,
    looks_on: bool,
}

impl<'a> Task<'a> {
    pub fn new(engine: &'a str, f0: &'a str) -> Task<'a> {
        Task {
            engine,
            f0,
            options: Vec::new(),
            looks_on: false,
        }
    }

    /// Looks for others when the first answers are there, as users do. Most tests of a process that runs do not need that.
    pub fn looking_on(self) -> Task<'a> {
        Task {
            looks_on: true,
            ..self
        }
    }

    /// What its ground truth says is to be analysed of a program.
    pub fn of(engine: &'a str, truth: &'a GroundTruth) -> Task<'a> {
        Task {
            engine,
            f0: &truth.f0,
            options: truth.options.iter().map(String::as_str).collect(),
            looks_on: false,
        }
    }

    pub fn options(self, options: &[&'a str]) -> Task<'a> {
        Task {
            options: options.to_vec(),
            ..self
        }
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
        command.arg("-o").arg(output).args(&self.options);
        if subcommand == "attach" && !self.looks_on {
            command.arg("--end-with-answers");
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
