//! What is to be found in each target program.

/// The kind of a root cause, as darc's output names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The function itself.
    Function,
    /// A loop of the function over callees that are each fast.
    Loop,
    /// A system call.
    Syscall,
}

impl Kind {
    /// The name in the JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Function => "function",
            Kind::Loop => "loop",
            Kind::Syscall => "syscall",
        }
    }
}

/// One peak that a program's profile has, from the left.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// The root-cause path, f0 first. An element `…` stands for any number of functions.
    pub path: &'static [&'static str],
    /// What the path ends in.
    pub kind: Kind,
}

/// What is to be found in one program.
#[derive(Clone, Copy, Debug)]
pub struct GroundTruth {
    /// The program, as [`crate::program`] takes it.
    pub program: &'static str,
    /// The function whose latency is analysed.
    pub f0: &'static str,
    /// Arguments under which the program ends by itself.
    pub args: &'static [&'static str],
    /// Its peaks, from the shortest latency to the longest.
    pub peaks: &'static [Peak],
}

/// The ground truth of the program of that name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn ground_truth(program: &str) -> &'static GroundTruth {
    GROUND_TRUTHS
        .iter()
        .find(|truth| truth.program == program)
        .unwrap_or_else(|| panic!("no ground truth of a program {program}"))
}

const fn peak(kind: Kind, path: &'static [&'static str]) -> Peak {
    Peak { path, kind }
}

/// All programs whose peaks have known causes.
pub const GROUND_TRUTHS: &[GroundTruth] = &[
    GroundTruth {
        program: "two_peaks",
        f0: "serve",
        args: &[],
        peaks: &[
            peak(Kind::Function, &["serve", "lookup"]),
            peak(Kind::Function, &["serve", "rebuild", "rehash"]),
        ],
    },
    GroundTruth {
        program: "loop",
        f0: "sum_to",
        args: &[],
        peaks: &[
            peak(Kind::Function, &["sum_to"]),
            peak(Kind::Function, &["sum_to"]),
        ],
    },
    GroundTruth {
        program: "call",
        f0: "outer",
        args: &[],
        peaks: &[
            peak(Kind::Loop, &["outer"]),
            peak(Kind::Function, &["outer", "inner"]),
        ],
    },
    GroundTruth {
        program: "recursion",
        f0: "search",
        args: &[],
        peaks: &[
            peak(Kind::Function, &["search", "visit"]),
            peak(
                Kind::Function,
                &[
                    "search", "visit", "visit", "visit", "visit", "visit", "expand",
                ],
            ),
        ],
    },
];
