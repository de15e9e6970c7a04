//! Starts targets and darc, waits for them, and takes turns with other tests.

mod analysis;
mod listening;
mod process;
mod target;
mod turns;
mod verdict;

use darc_testprogs::Opt;

pub use analysis::{Analysis, Task};
pub use process::{
    Finished, Running, copy_program, darc, execute, native, run_darc, wait_until, wait_until_seen,
    write_program,
};
pub use target::Target;
pub use turns::the_one_that_measures;
pub use verdict::{Miss, Unfinished, Verdict, Wrong, measured, measured_once, under};

/// The engines that this build of darc has.
pub fn engines() -> &'static [&'static str] {
    &["jump", "int3"]
}

/// Runs a check for every engine, and says which one failed. Code that is not optimised is left to those who set
/// `DARC_TEST_ALL`: what is hard about probes is in optimised code.
pub fn for_all(check: impl Fn(&str, Opt)) {
    let all = std::env::var_os("DARC_TEST_ALL").is_some();
    for &engine in engines() {
        for opt in Opt::ALL {
            if opt == Opt::O0 && !all {
                continue;
            }
            under(format!("--engine {engine} at -{opt:?}"), || {
                check(engine, opt)
            });
        }
    }
}
