//! What a recording amounts to, by instruction, line, function, process instance, program and system, as it is shown.

use serde::Serialize;

use super::counts::Spot;
use super::listing::Listed;
use super::python::PythonProfile;

/// The version of the JSON document.
pub const SCHEMA: u32 = 1;

/// What a spot is called.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Named {
    /// The function, for people.
    pub function: String,
    /// The file that holds it, or a name in brackets.
    pub module: String,
    /// The instruction: link-time address in the file, or address in the kernel.
    pub address: u64,
    /// Its source file, where the debugging information tells.
    pub file: Option<String>,
    /// Its line in that, from 1 on.
    pub line: Option<u32>,
}

/// One instruction of a function's listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Its address, as in [`Named::address`].
    pub address: u64,
    /// For people, as `objdump -d` writes it.
    pub text: String,
    /// The source line it was made for.
    pub source: Option<(String, u32)>,
}

/// Names and code of spots.
pub trait Names {
    /// What a spot is called.
    fn named(&self, spot: Spot) -> Named;

    /// The instructions of the function around a spot, in order of address; empty where its code is not known.
    fn instructions(&self, spot: Spot) -> Vec<Instruction>;

    /// The text of a source line that the code at a spot was made for.
    fn source_line(&self, spot: Spot, file: &str, line: u32) -> Option<String>;
}

/// How the recording was made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Circumstances {
    /// The version of darc.
    pub darc: String,
    /// What was sampled, for people.
    pub target: String,
    /// Samples a second of a CPU's time.
    pub rate: u32,
    /// How long, in seconds.
    pub seconds: f64,
    /// What a sample takes of the time of a program that does next to nothing, in nanoseconds, on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_cost_ns: Option<f64>,
    /// The number of CPUs.
    pub cpus: usize,
    /// Whether the kernel was sampled too.
    pub scope: SampledScope,
    /// The ops that samples had to fall into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub during: Option<During>,
}

/// The ops of one peak of f0, in which alone samples counted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct During {
    /// The function whose calls are the ops.
    pub f0: String,
    /// The number of the peak.
    pub peak: u32,
    /// How many peaks there are.
    pub peaks: usize,
    /// The shortest latency of the peak, nanoseconds.
    pub from_ns: f64,
    /// The longest one.
    pub to_ns: f64,
    /// Ops in the peak.
    pub ops: u64,
    /// Ops in all.
    pub all_ops: u64,
    /// Ops of which only the latency is known, not where they were: their samples are outside.
    pub ops_unseen: u64,
    /// Samples in ops of other peaks, or of none.
    pub in_other_ops: u64,
    /// Samples in no op, or in none that was seen.
    pub outside: u64,
    /// By how much the clocks of samples and ops may differ, nanoseconds.
    pub clock_error_ns: f64,
    /// Samples of the peak that are so close to the beginning or end of their op.
    pub at_edges: u64,
}

/// What was sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampledScope {
    /// Programs and the kernel.
    UserAndKernel,
    /// Programs only, as more was not permitted.
    User,
}

/// A recording added up.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// The version of this document.
    pub schema: u32,
    /// `sample`.
    pub kind: &'static str,
    /// How it was made.
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// All samples.
    pub samples: u64,
    /// Those of programs.
    pub user: u64,
    /// Those of the kernel.
    pub kernel: u64,
    /// Records that were dropped because a ring was full.
    pub lost: u64,
    /// How often the kernel stopped sampling for a while.
    pub throttled: u64,
    /// Samples whose callers were not kept.
    pub stacks_cut: u64,
    /// All instances of a program together, the busiest first.
    pub programs: Vec<ProgramEntry>,
    /// Process instances, the busiest first.
    pub processes: Vec<ProcessEntry>,
    /// Functions of all processes together, the busiest first.
    pub functions: Vec<FunctionEntry>,
    /// Which Python functions ran, where there is a CPython.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonProfile>,
    /// What the person should know.
    pub warnings: Vec<String>,
}

/// All instances of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProgramEntry {
    /// Its name.
    pub name: String,
    /// How many instances had samples.
    pub instances: u64,
    /// Their samples.
    pub samples: u64,
}

/// One process instance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessEntry {
    /// The program's name.
    pub name: String,
    /// Which one of that name, from 1 on.
    pub instance: u32,
    /// Its process id.
    pub pid: i32,
    /// Its samples.
    pub samples: u64,
    /// Those of the program itself.
    pub user: u64,
    /// Those of the kernel in its name.
    pub kernel: u64,
    /// Its functions, the busiest first.
    pub functions: Vec<FunctionEntry>,
}

/// One function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FunctionEntry {
    /// Its name.
    pub name: String,
    /// The file that holds it, or a name in brackets.
    pub module: String,
    /// Samples in it.
    pub own: u64,
    /// Samples in it and in what it called, as far as the chains tell.
    pub total: u64,
    /// Its lines, the busiest first. Copies of inlined functions have lines of their own.
    pub lines: Vec<LineEntry>,
    /// Its instructions with samples, by address.
    pub instructions: Vec<InstructionEntry>,
    /// The code around its hot instructions; only of the busiest functions of the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listing: Vec<Listed>,
}

/// One source line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LineEntry {
    /// The file.
    pub file: String,
    /// The line.
    pub line: u32,
    /// Samples in it.
    pub samples: u64,
}

/// One instruction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct InstructionEntry {
    /// Its address in the file, or in the kernel.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// Samples of it.
    pub samples: u64,
}

pub(super) fn hexadecimal<S: serde::Serializer>(
    value: &u64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:#x}"))
}
