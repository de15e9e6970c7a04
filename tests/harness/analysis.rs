//! Analyses with darc: what is asked, and what came of it.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use darc_testprogs::GroundTruth;
use tempfile::TempDir;

use super::process::{Finished, Running, darc, execute, native, wait_until};
use super::verdict::{Verdict, measured_and_judged};
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
        self.run_like(&native(program, args), program, args)
    }

    /// The same, of a program that has run without darc: before a measurement, so that others need not wait for that.
    pub fn run_like(&self, native: &Finished, program: &Path, args: &[&str]) -> Analysis {
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

    /// Measures a program until darc has its answers, compares what the program does with a native run, and has the results
    /// judged. The output does not depend on the number of ops, so that one period is enough natively.
    pub fn answers_are(&self, program: &Path, judge: impl Fn(&Report) -> Verdict) {
        self.results_are(program, || self.run_until_answered(program, &[]), judge);
    }

    /// As [`Task::answers_are`], of a program that ends by itself.
    pub fn results_are_in_the_end(&self, program: &Path, judge: impl Fn(&Report) -> Verdict) {
        self.results_are(program, || self.run(program, &[]), judge);
    }

    fn results_are(
        &self,
        program: &Path,
        measure: impl Fn() -> Analysis,
        judge: impl Fn(&Report) -> Verdict,
    ) {
        let native = native(program, &["20"]);
        measured_and_judged(measure, |analysis| {
            assert_eq!(analysis.darc.stdout, native.stdout, "{analysis:#?}");
            assert_eq!(analysis.darc.code(), native.code(), "{analysis:#?}");
            let report = analysis.report();
            assert_eq!(report.at("/engine"), self.engine);
            assert_eq!(report.at("/target/exit_status"), analysis.darc.code());
            judge(&report)
        });
    }

    /// `darc run` of a program that works until its standard input is closed, which it is when darc has its first answers: the
    /// analysis is the one that users get, of a program of that length.
    pub fn run_until_answered(&self, program: &Path, args: &[&str]) -> Analysis {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let output = folder.path().join("out.json");
        let log = folder.path().join("darc.log");
        let mut command = self.command("run", &output);
        command.arg("--log").arg(&log).arg("--").arg(program);
        command.arg("wait").args(args).stdin(Stdio::piped());
        let mut darc = Running::start(&mut command);
        let (began, read) = (Instant::now(), Cell::new(0));
        wait_until("darc's answers", || {
            is_answered(&log, &read) || began.elapsed() > UNANSWERED || darc.has_ended()
        });
        let mut darc = darc.finish();
        let rest = darc.stdout.strip_prefix("ready\n").map(str::to_owned);
        darc.stdout = rest.unwrap_or(darc.stdout);
        Analysis {
            darc,
            output,
            folder,
        }
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

/// For so long answers are waited for.
const UNANSWERED: Duration = Duration::from_secs(30);

/// Whether the part of the log behind what was `read` says that there are answers, or that there will be no others.
fn is_answered(log: &Path, read: &Cell<u64>) -> bool {
    let Ok(mut file) = File::open(log) else {
        return false;
    };
    let mut new = String::new();
    let sought = file.seek(SeekFrom::Start(read.get()));
    if sought.and_then(|_| file.read_to_string(&mut new)).is_err() {
        return false;
    }
    // The last line may be a part of one.
    let whole = new.rfind('\n').map_or(0, |end| end + 1);
    read.set(read.get() + whole as u64);
    let said = ["descent: answered", "descent: the analysis ended"];
    said.iter().any(|event| new[..whole].contains(event))
}
