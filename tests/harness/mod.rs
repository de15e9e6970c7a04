//! Starts targets and darc, waits for them, and takes turns with other tests.

mod analysis;
mod listening;
mod process;
mod target;
mod turns;
mod verdict;

use std::io::Write as _;

use darc_testprogs::Opt;

pub use analysis::{Analysis, Task};
pub use process::{
    Finished, Running, copy_program, darc, execute, native, run_darc, wait_until, wait_until_seen,
    write_program,
};
pub use target::Target;
pub use verdict::{
    Miss, Unfinished, Verdict, Wrong, check_behind, measured, measured_and_judged, measured_once,
    under,
};

/// Says what cannot be tried here, where a person sees it: what goes through `eprintln!` is shown of failed tests only.
pub fn not_tested(why: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "not tested: {}", why.as_ref().trim_end());
}

/// The engines that this build of darc has.
pub fn engines() -> &'static [&'static str] {
    &["jump", "int3"]
}

/// Whether everything is to be tried that takes long.
pub fn tries_all() -> bool {
    std::env::var_os("DARC_TEST_ALL").is_some()
}

/// How the programs are compiled that measurements are made of. Code that is not optimised is left to those who set
/// `DARC_TEST_ALL`: what is hard about probes is in optimised code.
pub fn levels() -> &'static [Opt] {
    match tries_all() {
        true => &Opt::ALL,
        false => &[Opt::O2],
    }
}

/// Runs a check for every engine and level, and says which one failed.
pub fn for_all(check: impl Fn(&str, Opt)) {
    for &engine in engines() {
        for &opt in levels() {
            under(format!("--engine {engine} at -{opt:?}"), || {
                check(engine, opt)
            });
        }
    }
}
