//! What `darc sample` costs the program: its CPU time, alone and sampled, in turns.

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use darc_testprogs::{Opt, program};

use crate::child;
use crate::quantile::Spread;

/// The word that makes this program run another one and write how much CPU time it used.
pub const TIMED: &str = "--timed";

const ROUNDS: usize = 21;
const RATES: [u32; 3] = [99, 999, 4999];

/// `--timed FILE PROGRAM ARG…`: runs the program and writes its CPU time, in seconds, to the file.
pub fn timed(mut arguments: impl Iterator<Item = String>) {
    let file = arguments.next().expect("a file");
    let program = arguments.next().expect("a program");
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("it is there");
    let ended = child::wait(&child, Instant::now()).expect("a child");
    // It is reaped already; the standard library does not know.
    let _ = child.wait();
    assert_eq!(ended.code, Some(0));
    std::fs::write(file, ended.cpu.to_string()).expect("written");
}

/// One run: the program's CPU time in seconds.
fn run(folder: &Path, rate: Option<u32>, arguments: &[&OsStr]) -> f64 {
    let file = folder.join("cpu");
    let own = env::current_exe().expect("this program");
    let mut command = match rate {
        None => Command::new(&own),
        Some(rate) => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_darc"));
            command.args(["sample", "--format", "json", "-o"]);
            command.arg(folder.join("samples.json"));
            command.args(["--rate", &rate.to_string(), "--"]).arg(&own);
            command
        }
    };
    let status = command.arg(TIMED).arg(&file).args(arguments).status();
    assert!(status.expect("it starts").success());
    let text = std::fs::read_to_string(&file).expect("written");
    text.parse().expect("a number")
}

/// Prints the ratios of all three of SLEEPY's benchmarks.
pub fn run_all(folder: &Path) {
    println!(
        "sampling: CPU time of the program, in % more than alone: median of {ROUNDS} rounds (quartiles)"
    );
    for (name, ops) in [("loop", "2000"), ("call", "2000"), ("btree", "6000000")] {
        let path = program(name, Opt::O2);
        let arguments = [path.as_os_str(), OsStr::new(ops)];
        let mut more: [Vec<f64>; RATES.len()] = Default::default();
        let mut alone_twice = Vec::new();
        for _ in 0..ROUNDS {
            let alone = run(folder, None, &arguments);
            for (rate, more) in RATES.into_iter().zip(&mut more) {
                more.push((run(folder, Some(rate), &arguments) / alone - 1.0) * 100.0);
            }
            alone_twice.push((run(folder, None, &arguments) / alone - 1.0) * 100.0);
        }
        print!("  {name:<6} alone again {}", quartiles(&alone_twice));
        for (rate, more) in RATES.into_iter().zip(&more) {
            print!("   {rate} Hz {}", quartiles(more));
        }
        println!();
    }
}

fn quartiles(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    let inner = Spread::of(&sorted[quarter..sorted.len() - quarter]);
    Spread::text(inner, 2, "%")
}
