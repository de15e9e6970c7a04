//! Programs that are made up ([`darc_testprogs::synthetic`]): is what is planted in them found, and nothing else?
//!
//! `DARC_SEEDS=1..300` tries the first three hundred of them, once each, and prints how many were right, unfinished and
//! wrong, and of which seeds.

use std::ffi::OsString;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;

use darc_testprogs::{GroundTruth, includes, synthetic, truth_of};
use tempfile::TempDir;

use crate::harness::{Target, Task, Unfinished, Verdict, Wrong, execute, measured, measured_once};

/// These are tried always.
const SEEDS: RangeInclusive<u64> = 1..=3;

/// The program of a seed.
struct Synthetic {
    truth: GroundTruth,
    path: PathBuf,
    _folder: TempDir,
}

impl Synthetic {
    fn compile(seed: u64) -> Synthetic {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let text = synthetic(seed);
        let source = folder.path().join("synthetic.c");
        let path = folder.path().join("synthetic");
        fs::write(&source, &text).expect("a folder for temporary files");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O2", "-g", "-o"]).arg(&path);
        let compiled = execute(command.arg("-I").arg(includes()).arg(&source));
        assert_eq!(compiled.code(), 0, "{compiled:#?}\n{text}");
        Synthetic {
            truth: truth_of("synthetic", &text),
            path,
            _folder: folder,
        }
    }

    /// Attaches, and judges what is said.
    fn attach(&self, task: Task<'_>) -> Verdict {
        let target = Target::start_at(&self.path, &[]);
        let analysis = task.attach(target.pid());
        target.finish_like_native(&self.path, &[]);
        analysis.report().judge(&self.truth)
    }
}

#[test]
fn what_is_planted_is_found() {
    if let Ok(seeds) = std::env::var("DARC_SEEDS") {
        return try_many(&seeds);
    }
    for seed in SEEDS {
        let program = Synthetic::compile(seed);
        eprintln!("seed {seed}");
        measured(|| program.attach(Task::of("jump", &program.truth)));
    }
}

/// Tries each of many once, and says what came of it.
fn try_many(seeds: &str) {
    let number = |text: &str| text.parse::<u64>().expect("DARC_SEEDS is FIRST..LAST");
    let (first, last) = seeds.split_once("..").expect("DARC_SEEDS is FIRST..LAST");
    let (mut right, mut unfinished, mut wrong) = (0, Vec::new(), Vec::new());
    for seed in number(first)..=number(last) {
        let program = Synthetic::compile(seed);
        let task = Task::of("jump", &program.truth).looking_on();
        match measured_once(|| program.attach(task.clone())) {
            Ok(()) => right += 1,
            Err(Unfinished(why)) => {
                eprintln!("seed {seed} unfinished: {why}");
                unfinished.push(seed);
            }
            Err(Wrong(why)) => {
                eprintln!("seed {seed} wrong: {why}");
                wrong.push(seed);
            }
        }
    }
    eprintln!("{right} right, unfinished {unfinished:?}, wrong {wrong:?}");
    assert!(wrong.is_empty(), "wrong answers");
}
