//! Compiles every target program at -O0 and at -O2, each with debug information, into `OUT_DIR`.
//!
//! Works like a small `make`: a program is compiled again only when its command or one of its
//! sources is newer than the result, and as many compilers run at once as cargo allows jobs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

/// What compiles a program.
#[derive(Clone, Copy)]
enum Language {
    C,
    Cxx,
    Rust,
}

/// One file to be built: `output` from `source` (relative to this package), with extra arguments.
struct Target {
    language: Language,
    source: &'static str,
    output: &'static str,
    arguments: &'static [&'static str],
}

const fn c(
    output: &'static str,
    source: &'static str,
    arguments: &'static [&'static str],
) -> Target {
    Target {
        language: Language::C,
        source,
        output,
        arguments,
    }
}

const fn cxx(
    output: &'static str,
    source: &'static str,
    arguments: &'static [&'static str],
) -> Target {
    Target {
        language: Language::Cxx,
        source,
        output,
        arguments,
    }
}

const fn rust(output: &'static str, source: &'static str) -> Target {
    Target {
        language: Language::Rust,
        source,
        output,
        arguments: &[],
    }
}

const TARGETS: &[Target] = &[
    c("btree", "c/btree.c", &[]),
    c("call", "c/call.c", &[]),
    c("loop", "c/loop.c", &[]),
    c("recursion", "c/recursion.c", &[]),
    c("two_peaks", "c/two_peaks.c", &[]),
];

const LEVELS: [&str; 2] = ["O0", "O2"];

fn main() {
    for folder in ["build.rs", "c", "cxx", "rust"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut jobs = Vec::new();
    for level in LEVELS {
        fs::create_dir_all(out.join(level)).expect("OUT_DIR is writable");
        jobs.extend(
            TARGETS
                .iter()
                .map(|target| target.job(&out.join(level), level)),
        );
    }
    run_all(&jobs);
}

/// A command, what it makes and what it makes it from.
struct Job {
    command: Vec<String>,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    output: PathBuf,
    inputs: Vec<PathBuf>,
}

impl Target {
    fn job(&self, folder: &Path, level: &str) -> Job {
        let output = folder.join(self.output);
        let mut inputs = vec![PathBuf::from(self.source)];
        let mut environment = Vec::new();
        let mut command: Vec<String> = match self.language {
            Language::Rust => {
                let rustc = env::var("RUSTC").expect("cargo sets RUSTC");
                let level = format!("-Copt-level={}", &level[1..]);
                [&rustc, "--edition=2021", "-g", &level]
                    .map(String::from)
                    .to_vec()
            }
            Language::C | Language::Cxx => {
                inputs.push(PathBuf::from("c/work.h"));
                let is_cxx = matches!(self.language, Language::Cxx);
                let compiler = cc::Build::new()
                    .cpp(is_cxx)
                    .cargo_metadata(false)
                    .get_compiler();
                environment = compiler.env().to_vec();
                let standard = if is_cxx { "-std=gnu++17" } else { "-std=gnu11" };
                let path = compiler.path().to_string_lossy().into_owned();
                let level = format!("-{level}");
                [
                    &path, standard, "-Wall", "-Wextra", "-g", "-pthread", &level, "-Ic",
                ]
                .map(String::from)
                .to_vec()
            }
        };
        command.extend([
            self.source.into(),
            "-o".into(),
            output.to_string_lossy().into_owned(),
        ]);
        command.extend(self.arguments.iter().map(|argument| (*argument).to_owned()));
        Job {
            command,
            environment,
            output,
            inputs,
        }
    }
}

impl Job {
    /// Whether the result of an earlier build is still the result of this command on these inputs.
    fn is_fresh(&self) -> bool {
        let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        let Some(made) = modified(&self.output) else {
            return false;
        };
        fs::read_to_string(self.record()).is_ok_and(|command| command == self.command.join(" "))
            && self
                .inputs
                .iter()
                .all(|input| modified(input).is_some_and(|changed| changed < made))
    }

    /// The file that says by which command the result was made.
    fn record(&self) -> PathBuf {
        self.output.with_extension("command")
    }

    fn run(&self) {
        if self.is_fresh() {
            return;
        }
        let made = Command::new(&self.command[0])
            .args(&self.command[1..])
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "{}: {error} (is a C and C++ compiler installed?)",
                    self.command[0]
                )
            });
        assert!(
            made.status.success(),
            "{} failed:\n{}",
            self.command.join(" "),
            String::from_utf8_lossy(&made.stderr)
        );
        fs::write(self.record(), self.command.join(" ")).expect("OUT_DIR is writable");
    }
}

/// Runs all jobs, as many at once as cargo was told to.
fn run_all(jobs: &[Job]) {
    let workers = env::var("NUM_JOBS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(1_usize);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..workers.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    job.run();
                }
            });
        }
    });
}
