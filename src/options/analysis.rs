//! What analyses are told, and the experiments after them.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::{Common, EngineChoice, ListingFormat};

/// `darc run`: start a program and analyse a function of it.
#[derive(Clone, PartialEq, Debug)]
pub struct RunOptions {
    /// The program and its arguments; never empty.
    pub command: Vec<OsString>,
    /// How often the program is run.
    pub repeat: NonZeroU32,
    /// The function, as the person named it.
    pub f0: String,
    /// What all analyses have.
    pub common: Common,
}

/// `darc attach`: analyse a function of a running process.
#[derive(Clone, PartialEq, Debug)]
pub struct AttachOptions {
    /// The process, greater than 0.
    pub pid: i32,
    /// The function, as the person named it; none for what the threads began with.
    pub f0: Option<String>,
    /// Whether the causes are put to the test at the end.
    pub prove: bool,
    /// That other processes are analysed meanwhile.
    pub part: Option<Part>,
    /// What all analyses have.
    pub common: Common,
}

/// A darc that another one has started, to analyse one of several processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The process, greater than 0.
    pub pid: i32,
    /// How many there are.
    pub of: NonZeroU32,
    /// The other darc.
    pub parent: u32,
    /// Whether it is the first of them.
    pub is_first: bool,
}

/// `darc attach`: analyse a function of several running processes.
#[derive(Clone, PartialEq, Debug)]
pub struct AttachAllOptions {
    /// The processes, each greater than 0; two at least.
    pub pids: Vec<i32>,
    /// What all analyses have. The results of each process have a file of their own: [`Common::file_of`].
    pub common: Common,
}

/// `darc resume`: go on with an analysis that a file holds.
#[derive(Clone, PartialEq, Debug)]
pub struct ResumeOptions {
    /// The file with the earlier results.
    pub file: PathBuf,
    /// What is analysed.
    pub target: ResumeTarget,
    /// The function that the configuration names; the one in the results is analysed.
    pub f0: Option<String>,
    /// The engine, where one was named; that of the results otherwise.
    pub engine: Option<EngineChoice>,
    /// Whether a fresh profile is compared with the stored one first.
    pub check: Option<ProfileCheck>,
    /// What all analyses have.
    pub common: Common,
}

/// What a profile that differs from the stored one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileCheck {
    /// A warning.
    Warn,
    /// A reason not to go on.
    Strict,
}

/// The target of a resumed analysis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResumeTarget {
    /// The command that the file records.
    FromFile,
    /// A running process.
    Pid(i32),
    /// This program with these arguments; never empty.
    Command(Vec<OsString>),
}

/// `darc prove`: put the causes that were found to the test.
#[derive(Clone, PartialEq, Debug)]
pub struct ProveOptions {
    /// The results with the causes.
    pub file: PathBuf,
    /// The process; none for that of the results.
    pub pid: Option<i32>,
    /// What is tried, and how.
    pub trials: Trials,
    /// The format of the answer.
    pub format: ListingFormat,
}

/// How causes are put to the test.
#[derive(Clone, PartialEq, Debug)]
pub struct Trials {
    /// The peak whose causes are tested; none for all.
    pub peak: Option<u32>,
    /// Functions that are tested instead of the causes that were found.
    pub causes: Vec<String>,
    /// Whether darc's own probes are tested in their place.
    pub self_check: bool,
    /// For so long each is tried at most.
    pub time: Duration,
    /// The longest delay of a call.
    pub delay: Duration,
    /// The part of the time that delays may take, 0 to 1.
    pub budget: f64,
    /// What a thread does meanwhile.
    pub delay_by: DelayBy,
    /// Whether calls are delayed where the C library's allocator may hold a lock.
    pub in_allocator: bool,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials {
            peak: None,
            causes: Vec::new(),
            self_check: false,
            time: Duration::from_secs(10),
            delay: Duration::from_millis(10),
            budget: 0.02,
            delay_by: DelayBy::Spin,
            in_allocator: false,
        }
    }
}

/// What a thread does while its call is delayed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DelayBy {
    /// It works.
    #[default]
    Spin,
    /// It sleeps.
    Sleep,
}

/// `darc demo`: analyse a program that comes with darc.
#[derive(Clone, PartialEq, Debug)]
pub struct DemoOptions {
    /// What all analyses have.
    pub common: Common,
}
