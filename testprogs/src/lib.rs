//! Target programs whose latency behaviour is known, and what is to be found in each.
//!
//! A program's head comment says what its peaks and their causes are; [`ground_truth()`] reads it.

mod ground_truth;
mod synthetic;

pub use ground_truth::{Cause, GroundTruth, Peak, ground_truth, ground_truths, truth_of};
pub use synthetic::synthetic;

use std::path::{Path, PathBuf};

/// The optimisation level that a target program was compiled with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opt {
    /// Not optimised: every call in the source is a call in the code.
    O0,
    /// `-O2`: tail calls, functions split into cold parts, jump tables.
    O2,
}

impl Opt {
    /// Both levels.
    pub const ALL: [Opt; 2] = [Opt::O0, Opt::O2];

    fn folder(self) -> &'static str {
        match self {
            Opt::O0 => "O0",
            Opt::O2 => "O2",
        }
    }
}

/// Where the program (or shared library, with its `.so`) of that name is.
///
/// # Panics
/// When there is no such program, or it is not compiled at that level (`at_o0_too` in build.rs).
#[must_use]
pub fn program(name: &str, opt: Opt) -> PathBuf {
    let path = Path::new(env!("OUT_DIR")).join(opt.folder()).join(name);
    assert!(
        path.is_file(),
        "no target program {name} at {}, see testprogs/build.rs",
        path.display()
    );
    path
}

/// The folder of the headers that the sources of programs include.
#[must_use]
pub fn includes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}
