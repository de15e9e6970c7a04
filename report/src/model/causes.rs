//! Root causes: paths, why they end, and what their last function was narrowed to.

use serde::{Deserialize, Serialize};

use super::{ArgumentEntry, WaitsEntry};
use crate::place::Place;

/// What takes the time at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The function's own code.
    Function,
    /// The function's many calls: each of them is short, or nothing below them takes much of their time.
    Loop,
    /// A system call.
    Syscall,
    /// The thread did not run.
    Preemption,
    /// An interrupt ran.
    Interrupt,
    /// Deferred work of interrupts ran.
    SoftInterrupt,
    /// A page was brought in.
    PageFault,
    /// The handler of a signal ran.
    Signal,
    /// The future that f0 polls waited.
    Await,
}

/// Why a path ends.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The function itself takes the time.
    #[serde(rename = "self")]
    SelfTime,
    /// It makes no calls.
    NoCalls,
    /// The function itself takes the time, or what it calls at sites that could not be measured.
    PartlyMeasured,
    /// The time is spread: neither the function itself nor any single call that it makes has much of it.
    Spread,
    /// The function calls itself, directly or through others: that recursion takes the time, at all of its depths.
    Recursion,
    /// The path may not become longer.
    MaxDepth,
    /// Its calls cannot be measured.
    NotInstrumentable,
    /// It does not end yet.
    StillDescending,
    /// Next to no ops of the peak come any more, or it is not called in them.
    TooRare,
}

/// A root-cause path.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RootCauseEntry {
    /// The functions' names, f0 first.
    #[serde(default)]
    pub path: Vec<String>,
    /// What takes the time.
    pub kind: Kind,
    /// In how many ops it was a main contributor: half of the largest one or more.
    pub maxcount: u64,
    /// The part of the ops in which it was one, 0 to 1.
    #[serde(default)]
    pub share_of_ops: f64,
    /// The part of the time of the peak's ops that it explains, 0 to 1.
    #[serde(default)]
    pub share_of_time: f64,
    /// The part of it in calls of the path's functions from other sites, which were not looked into: they are taken to go where
    /// the others go.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub assumed: f64,
    /// The ops that this is known from: those that it was called in.
    #[serde(default)]
    pub known_from: u64,
    /// The calls of the last function that could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<UnmeasuredEntry>,
    /// Why the path ends.
    pub stop: StopReason,
    /// Why the calls of the last function cannot be measured; of preemption what kept the thread from running, where that was no
    /// other thread for the most part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The path again, with places.
    #[serde(default)]
    pub frames: Vec<Frame>,
    /// What the system call at the end of the path was called with, where that was seen; the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<ArgumentEntry>,
    /// How the thread waited at the end of the path, where the kernel told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitsEntry>,
    /// Of a function that takes the time itself: the part of that time in which it waited for something, 0 to 1, where that
    /// is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<f64>,
    /// Of a loop: the part of what it explains that is in its calls, 0 to 1, where that is known. The rest is the function's own
    /// code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_calls: Option<f64>,
    /// Of a function that takes the time itself: what was inlined into it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inlined: Option<InlinedEntry>,
    /// Where in the last function the time goes, where that was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<NarrowedEntry>,
}

fn is_nothing(share: &f64) -> bool {
    *share <= 0.0
}

/// Calls of a function that could not be measured.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnmeasuredEntry {
    /// How many call sites,
    pub sites: u64,
    /// of so many that it has.
    pub of_sites: u64,
    /// What is called there, as far as that is known.
    #[serde(default)]
    pub callees: Vec<String>,
}

/// What was inlined into a function by its own calls.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InlinedEntry {
    /// How many functions: 0 where it is known that nothing was inlined.
    pub functions: u64,
    /// Their names, those with most of the code first.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Where in a function the time goes, by samples of the program counter in ops of the peak.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NarrowedEntry {
    /// Samples in the function's own code.
    pub samples: u64,
    /// Samples in what it calls, or what interrupted it.
    pub elsewhere: u64,
    /// From the outermost loop to the line.
    #[serde(default)]
    pub steps: Vec<NarrowedStep>,
}

/// A part of a function.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NarrowedStep {
    /// What kind of part.
    pub kind: PartKind,
    /// How many of the samples were in it.
    pub samples: u64,
    /// Its first instruction, by address.
    pub place: Place,
    /// The source file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The first line of the function that it is made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<u32>,
    /// The inlined functions that a line stands in, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined_from: Vec<InlinedFrame>,
}

/// A kind of part.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    /// A loop.
    Loop,
    /// A block: entered at its beginning, left at its end.
    Block,
    /// A source line.
    #[default]
    Line,
}

/// One function on a root-cause path and the call that led to it.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Frame {
    /// The function's name.
    pub name: String,
    /// The part of the time of the peak's ops that passed in it and below it, 0 to 1.
    #[serde(default)]
    pub share_of_time: f64,
    /// Its module's path; absent for system calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Its entry in the module, in bytes from the link-time base; absent for system calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// What tells it from other functions of its name on the peak's paths: its source line, or its place; absent where there are
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub which: Option<String>,
    /// Where it was called; absent for f0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<Place>,
    /// The source file of the call; for f0 of its definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The inlined functions that the call stands in, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined_from: Vec<InlinedFrame>,
}

impl Frame {
    /// Whether both are of one function.
    pub(crate) fn is_of(&self, other: &Frame) -> bool {
        (&self.name, &self.module, self.offset) == (&other.name, &other.module, other.offset)
    }
}

/// A function that the compiler copied into its caller.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InlinedFrame {
    /// Its name.
    pub name: String,
    /// The source file of the place where it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}
