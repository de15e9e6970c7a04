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
    /// Options of darc that the analysis needs.
    pub options: &'static [&'static str],
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

/// A program that needs neither arguments nor options.
const fn plain(program: &'static str, f0: &'static str, peaks: &'static [Peak]) -> GroundTruth {
    GroundTruth {
        program,
        f0,
        args: &[],
        options: &[],
        peaks,
    }
}

/// The peaks of all programs that look something up in most ops and rebuild it in some.
const LOOKUP_AND_REBUILD: &[Peak] = &[
    peak(Kind::Function, &["serve", "lookup"]),
    peak(Kind::Function, &["serve", "rebuild"]),
];

const TWO_PEAKS: &[Peak] = &[
    peak(Kind::Function, &["serve", "lookup"]),
    peak(Kind::Function, &["serve", "rebuild", "rehash"]),
];

const LIBRARY: &[Peak] = &[
    peak(Kind::Function, &["library_serve", "library_lookup"]),
    peak(
        Kind::Function,
        &["library_serve", "library_rebuild", "library_rehash"],
    ),
];

/// All programs whose peaks have known causes.
pub const GROUND_TRUTHS: &[GroundTruth] = &[
    plain("two_peaks", "serve", TWO_PEAKS),
    plain("two_peaks_no_pie", "serve", TWO_PEAKS),
    plain("two_peaks_static", "serve", TWO_PEAKS),
    plain("two_peaks_static_pie", "serve", TWO_PEAKS),
    plain("two_peaks_dwarf4", "serve", TWO_PEAKS),
    plain("two_peaks_debuglink", "serve", TWO_PEAKS),
    plain(
        "loop",
        "sum_to",
        &[
            peak(Kind::Function, &["sum_to"]),
            peak(Kind::Function, &["sum_to"]),
        ],
    ),
    plain(
        "call",
        "outer",
        &[
            peak(Kind::Loop, &["outer"]),
            peak(Kind::Function, &["outer", "inner"]),
        ],
    ),
    plain(
        "recursion",
        "search",
        &[
            peak(Kind::Function, &["search", "visit"]),
            peak(
                Kind::Function,
                &[
                    "search", "visit", "visit", "visit", "visit", "visit", "expand",
                ],
            ),
        ],
    ),
    plain(
        "mutual_recursion",
        "evaluate",
        &[
            peak(Kind::Function, &["evaluate", "expression"]),
            peak(
                Kind::Function,
                &[
                    "evaluate",
                    "expression",
                    "term",
                    "expression",
                    "term",
                    "reduce",
                ],
            ),
        ],
    ),
    plain(
        "recursion_through_f0",
        "walk",
        &[
            peak(Kind::Function, &["walk", "leaf"]),
            peak(
                Kind::Function,
                &["walk", "descend", "walk", "descend", "walk", "leaf"],
            ),
        ],
    ),
    GroundTruth {
        program: "deep_path",
        f0: "level00",
        args: &[],
        options: &["--max-depth", "24"],
        peaks: &[
            peak(Kind::Function, &["level00", "quick"]),
            peak(
                Kind::Function,
                &[
                    "level00", "level01", "level02", "level03", "level04", "level05", "level06",
                    "level07", "level08", "level09", "level10", "level11", "level12", "level13",
                    "level14", "level15", "level16", "level17", "level18", "level19", "level20",
                ],
            ),
        ],
    },
    plain(
        "loop_over_fast",
        "scan",
        &[peak(Kind::Loop, &["scan"]), peak(Kind::Loop, &["scan"])],
    ),
    plain(
        "slow_callee_in_loop",
        "batch",
        &[
            peak(Kind::Loop, &["batch"]),
            peak(Kind::Function, &["batch", "handle", "repair"]),
        ],
    ),
    plain(
        "function_pointers",
        "dispatch",
        &[
            peak(Kind::Function, &["dispatch", "invoke", "handle_read"]),
            peak(
                Kind::Function,
                &["dispatch", "invoke", "handle_write", "commit"],
            ),
        ],
    ),
    plain(
        "virtual_calls",
        "render",
        &[
            peak(Kind::Function, &["render", "Circle::draw"]),
            peak(
                Kind::Function,
                &["render", "Polygon::draw", "Polygon::triangulate"],
            ),
        ],
    ),
    plain(
        "tail_calls",
        "request",
        &[
            peak(Kind::Function, &["request", "choose", "quick"]),
            peak(Kind::Function, &["request", "choose", "thorough", "grind"]),
        ],
    ),
    plain(
        "tail_f0",
        "relay",
        &[
            peak(Kind::Function, &["relay", "light"]),
            peak(Kind::Function, &["relay", "heavy"]),
        ],
    ),
    plain(
        "call_path_filter",
        "exchange",
        &[
            peak(Kind::Function, &["exchange", "receive", "transfer"]),
            peak(Kind::Function, &["exchange", "send", "transfer"]),
        ],
    ),
    plain(
        "cold_split",
        "handle_request",
        &[
            peak(Kind::Function, &["handle_request", "answer"]),
            peak(Kind::Function, &["handle_request", "recover"]),
        ],
    ),
    plain(
        "jump_table",
        "interpret",
        &[
            peak(Kind::Function, &["interpret", "execute"]),
            peak(Kind::Function, &["interpret", "collect_garbage"]),
        ],
    ),
    plain(
        "four_threads",
        "serve",
        &[
            peak(Kind::Function, &["serve", "compute"]),
            peak(
                Kind::Syscall,
                &["serve", "wait_for_disk", "…", "clock_nanosleep"],
            ),
        ],
    ),
    plain(
        "thread_churn",
        "task",
        &[
            peak(Kind::Function, &["task", "compute"]),
            peak(Kind::Function, &["task", "archive"]),
        ],
    ),
    plain("shared_library", "library_serve", LIBRARY),
    plain("plugin_host", "libserve.so:library_serve", LIBRARY),
    plain("signals", "serve", LOOKUP_AND_REBUILD),
    plain("dead_leader", "serve", LOOKUP_AND_REBUILD),
    plain("closes_fds", "serve", LOOKUP_AND_REBUILD),
    plain("sandboxed", "serve", LOOKUP_AND_REBUILD),
    plain("blocked_calls", "serve", LOOKUP_AND_REBUILD),
    plain(
        "fork_exec",
        "job",
        &[
            peak(Kind::Function, &["job", "compute"]),
            peak(Kind::Syscall, &["job", "run_child", "…", "wait4"]),
        ],
    ),
    plain(
        "mutex_contention",
        "update",
        &[
            peak(Kind::Function, &["update", "compute"]),
            peak(Kind::Syscall, &["update", "lock_table", "…", "futex"]),
        ],
    ),
    plain(
        "cached_and_slow_read",
        "fetch",
        &[
            peak(Kind::Syscall, &["fetch", "read_cached", "…", "pread64"]),
            peak(Kind::Syscall, &["fetch", "read_device", "…", "read"]),
        ],
    ),
    plain(
        "longjmp_out",
        "transact",
        &[
            peak(Kind::Function, &["transact", "prepare"]),
            peak(Kind::Function, &["transact", "commit"]),
        ],
    ),
    plain(
        "exceptions",
        "parse",
        &[
            peak(Kind::Function, &["parse", "scan"]),
            peak(Kind::Function, &["parse", "expand"]),
        ],
    ),
    plain(
        "cancellation",
        "serve",
        &[peak(Kind::Function, &["serve", "compute"])],
    ),
    plain(
        "closures",
        "closures::serve",
        &[
            peak(Kind::Function, &["serve", "handle", "apply", "…", "light"]),
            peak(Kind::Function, &["serve", "handle", "rebuild"]),
        ],
    ),
];
