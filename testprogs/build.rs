//! Compiles every target program at -O2, and at -O0 those that tests always want so, each with debug information, into `OUT_DIR`.
//! With `DARC_TEST_ALL` that is all of them.
//!
//! Works like a small `make`: a program is compiled again only when its command or one of its
//! sources is newer than the result, and as many compilers run at once as cargo allows jobs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

/// What compiles a program.
#[derive(Clone, Copy)]
enum Language {
    C,
    Cxx,
    Rust,
    /// Not compiled: `objcopy` of a program that has been made.
    Stripped,
}

/// One file to be built: `output` from `source` (relative to this package), with extra arguments.
struct Target {
    language: Language,
    source: &'static str,
    output: &'static str,
    arguments: &'static [&'static str],
    /// Whether tests want it without optimisation, too, when not everything is tried.
    at_o0: bool,
}

impl Target {
    const fn at_o0_too(self) -> Target {
        Target {
            at_o0: true,
            ..self
        }
    }
}

const fn c(
    output: &'static str,
    source: &'static str,
    arguments: &'static [&'static str],
) -> Target {
    Target {
        language: Language::C,
        source,
        output,
        arguments,
        at_o0: false,
    }
}

const fn cxx(
    output: &'static str,
    source: &'static str,
    arguments: &'static [&'static str],
) -> Target {
    Target {
        language: Language::Cxx,
        source,
        output,
        arguments,
        at_o0: false,
    }
}

const fn rust(output: &'static str, source: &'static str) -> Target {
    Target {
        language: Language::Rust,
        source,
        output,
        arguments: &[],
        at_o0: false,
    }
}

const fn stripped(
    output: &'static str,
    source: &'static str,
    arguments: &'static [&'static str],
) -> Target {
    Target {
        language: Language::Stripped,
        source,
        output,
        arguments,
        at_o0: false,
    }
}

const PROGRAMS: &[Target] = &[
    // Intel's control-flow enforcement makes functions begin with `endbr64`, as distributions' do.
    c("bench_calls", "c/bench_calls.c", &["-fcf-protection"]),
    c("bench_latency", "c/bench_latency.c", &["-fcf-protection"]),
    c("bench_stops", "c/bench_stops.c", &["-fcf-protection"]),
    c("abandoned_stacks", "c/abandoned_stacks.c", &[]),
    c("becomes_another", "c/becomes_another.c", &[]),
    c("inlined_copies", "c/inlined_copies.c", &[]),
    c("go_like", "c/go_like.c", &[]),
    c("odd_mappings", "c/odd_mappings.c", &[]),
    c("odd_threads", "c/odd_threads.c", &[]),
    c("kernel_workers", "c/kernel_workers.c", &[]),
    c("dispatches_calls", "c/dispatches_calls.c", &[]),
    c("wide_registers", "c/wide_registers.c", &[]),
    c("rewrites_itself", "c/rewrites_itself.c", &[]),
    c("robust_locks", "c/robust_locks.c", &[]),
    // The unwinder is there from the start, not only when it is needed first.
    c("unwinds", "c/unwinds.c", &["-Wl,--no-as-needed", "-lgcc_s"]),
    c(
        "interrupted",
        "c/interrupted.c",
        &["-Wl,--no-as-needed", "-lgcc_s"],
    )
    .at_o0_too(),
    c("asks", "c/asks.c", &[]).at_o0_too(),
    c("asks_by_socket", "c/asks_by_socket.c", &[]),
    c("blocked_calls", "c/blocked_calls.c", &[]),
    c("btree", "c/btree.c", &[]).at_o0_too(),
    c("argument_value", "c/argument_value.c", &[]),
    c("event_loop", "c/event_loop.c", &[]),
    c("event_loop_jumped_to", "c/event_loop.c", &["-DMAIN_JUMPS"]),
    c("marks", "c/marks.c", &[]).at_o0_too(),
    c("cached_and_slow_read", "c/cached_and_slow_read.c", &[]),
    c("call", "c/call.c", &[]).at_o0_too(),
    c("called_often", "c/called_often.c", &[]),
    c("call_path_filter", "c/call_path_filter.c", &[]),
    c("closes_fds", "c/closes_fds.c", &[]),
    c("cold_jumps_back", "c/cold_jumps_back.c", &[]),
    c("cold_split", "c/cold_split.c", &[]),
    c("contexts", "c/contexts.c", &[]).at_o0_too(),
    c("counted_calls", "c/counted_calls.c", &[]).at_o0_too(),
    c("crashing_child", "c/crashing_child.c", &[]).at_o0_too(),
    // The child has nowhere to keep a canary.
    c(
        "no_thread_pointer",
        "c/no_thread_pointer.c",
        &["-fno-stack-protector"],
    ),
    c("dead_leader", "c/dead_leader.c", &[]),
    c("equal_callees", "c/equal_callees.c", &[]),
    c("deep_and_seldom", "c/deep_and_seldom.c", &[]),
    c("deep_path", "c/deep_path.c", &[]),
    c("deep_stack", "c/deep_stack.c", &[]),
    c("ends_in_f0", "c/ends_in_f0.c", &[]).at_o0_too(),
    c("exec_from_thread", "c/exec_from_thread.c", &[]),
    c("fork_exec", "c/fork_exec.c", &[]).at_o0_too(),
    c("flusher", "c/flusher.c", &[]),
    c("forks_twice", "c/forks_twice.c", &[]),
    c("forwarders", "c/forwarders.c", &[]),
    c("four_threads", "c/four_threads.c", &[]),
    c("hot_beside", "c/hot_beside.c", &[]),
    c("loads_again", "c/loads_again.c", &["-ldl"]),
    c("made_code", "c/made_code.c", &[]),
    c("named_threads", "c/named_threads.c", &[]),
    c("thread_roles", "c/thread_roles.c", &[]),
    c("shared_evaluation", "c/shared_evaluation.c", &[]),
    c("function_pointers", "c/function_pointers.c", &[]),
    c("held_signals", "c/held_signals.c", &[]),
    c("ignored_signals", "c/ignored_signals.c", &[]),
    c("handed_over", "c/handed_over.c", &[]),
    c("inherited_state", "c/inherited_state.c", &[]),
    c("in_runs", "c/in_runs.c", &[]),
    c("in_turn", "c/in_turn.c", &[]),
    c("longer_in_hump", "c/longer_in_hump.c", &[]),
    c("interrupted_inside", "c/interrupted_inside.c", &[]),
    c("is_stopped", "c/is_stopped.c", &[]),
    c("jump_table", "c/jump_table.c", &[]).at_o0_too(),
    c("comes_back", "c/comes_back.c", &[]),
    c("computed_jumps", "c/computed_jumps.c", &[]),
    c("jumps_out", "c/jumps_out.c", &[]),
    c("kinds", "c/kinds.c", &["-ldl"]),
    c("longjmp_out", "c/longjmp_out.c", &[]).at_o0_too(),
    c("looks_at_caller", "c/looks_at_caller.c", &["-ldl"]),
    c("opens_libraries", "c/opens_libraries.c", &["-ldl"]),
    c(
        "looks_at_caller_no_plt",
        "c/looks_at_caller.c",
        &["-ldl", "-fno-plt"],
    ),
    c("loop", "c/loop.c", &[]).at_o0_too(),
    c("page_faults", "c/page_faults.c", &[]),
    c("waits_for_page", "c/waits_for_page.c", &[]),
    c("write_barrier", "c/write_barrier.c", &[]),
    c("signal_handler", "c/signal_handler.c", &[]),
    c("paper_reads", "c/paper_reads.c", &[]),
    c("phases", "c/phases.c", &[]),
    c("preempted", "c/preempted.c", &[]),
    c("slow_consumer", "c/slow_consumer.c", &[]),
    c("long_calls", "c/long_calls.c", &[]),
    c("long_calls_beside", "c/long_calls_beside.c", &[]),
    c("long_calls_in_loop", "c/long_calls_in_loop.c", &[]),
    c("loop_over_fast", "c/loop_over_fast.c", &[]),
    c("many_calls", "c/many_calls.c", &[]),
    c("many_sites", "c/many_sites.c", &[]),
    c("mutex_contention", "c/mutex_contention.c", &[]),
    c("mutual_recursion", "c/mutual_recursion.c", &[]).at_o0_too(),
    c("no_clock", "c/no_clock.c", &[]).at_o0_too(),
    c("odd_entries", "c/odd_entries.c", &[]).at_o0_too(),
    c("odd_jumps", "c/odd_jumps.c", &[]),
    c("own_lock", "c/own_lock.c", &[]),
    c("own_int3", "c/own_int3.c", &[]).at_o0_too(),
    c("proven", "c/proven.c", &[]),
    c("proven_calls", "c/proven_calls.c", &[]),
    c("proven_elsewhere", "c/proven_elsewhere.c", &[]),
    c("proven_queue", "c/proven_queue.c", &[]),
    c("proven_together", "c/proven_together.c", &[]),
    c("halves", "c/halves.c", &[]),
    c("recursion", "c/recursion.c", &[]),
    c("recursion_through_f0", "c/recursion_through_f0.c", &[]),
    c("registers", "c/registers.c", &[]).at_o0_too(),
    c("sandboxed", "c/sandboxed.c", &[]),
    c("sandboxed_thread", "c/sandboxed.c", &["-DTHREAD"]),
    c("some_misses", "c/some_misses.c", &[]),
    c("seldom", "c/seldom.c", &[]),
    c("shared_log", "c/shared_log.c", &[]),
    c("short_calls", "c/short_calls.c", &[]).at_o0_too(),
    c("short_misses", "c/short_misses.c", &[]),
    c("short_threads", "c/short_threads.c", &[]),
    c("signal_stack", "c/signal_stack.c", &[]).at_o0_too(),
    c("signal_switches", "c/signal_switches.c", &[]),
    c("signal_storm", "c/signal_storm.c", &[]).at_o0_too(),
    c("signals", "c/signals.c", &[]),
    c("slow_callee_in_loop", "c/slow_callee_in_loop.c", &[]),
    c("split_stack", "c/split_stack.c", &["-fsplit-stack"]),
    c("stack_overflow", "c/stack_overflow.c", &[]).at_o0_too(),
    c("squats_names", "c/squats_names.c", &[]),
    c("swaps_descriptors", "c/swaps_descriptors.c", &[]),
    c("timed_calls", "c/timed_calls.c", &[]),
    c("transfers", "c/transfers.c", &[]),
    c("tail_calls", "c/tail_calls.c", &[]).at_o0_too(),
    c("steps_itself", "c/steps_itself.c", &["-fcf-protection"]).at_o0_too(),
    c(
        "steps_itself_without_endbr",
        "c/steps_itself.c",
        &["-fcf-protection=none"],
    )
    .at_o0_too(),
    c("tail_f0", "c/tail_f0.c", &[]),
    c("thread_churn", "c/thread_churn.c", &[]).at_o0_too(),
    c("three_loops", "c/three_loops.c", &[]).at_o0_too(),
    c("two_peaks", "c/two_peaks.c", &[]).at_o0_too(),
    c("restarts", "c/restarts.c", &[]),
    c("vfork_alone", "c/vfork_alone.c", &[]),
    c("vfork_always", "c/vfork_always.c", &[]),
    c("vfork_waits", "c/vfork_waits.c", &[]),
    c("vfork_without_leader", "c/vfork_waits.c", &["-DLEAVES"]),
    c("plugin_host", "c/plugin_host.c", &["-ldl"]).at_o0_too(),
    c("thousands", "c/thousands.c", &["-ldl"]),
    c(
        "sqlite_inserts",
        "c/sqlite_inserts.c",
        &["-lsqlite3", "-lm", "-ldl"],
    ),
    c("backs_off", "c/backs_off.c", &[]),
    c("backtracking", "c/backtracking.c", &[]),
    c("bucket_border", "c/bucket_border.c", &[]),
    c("cache_misses", "c/cache_misses.c", &[]),
    c("late_loads", "c/late_loads.c", &[]),
    c("clock_loop", "c/clock_loop.c", &[]),
    c("correlated_callees", "c/correlated_callees.c", &[]),
    c("denormals", "c/denormals.c", &[]),
    c("drift", "c/drift.c", &[]),
    c("flank", "c/flank.c", &[]),
    c("lru_eviction", "c/lru_eviction.c", &[]),
    c("one_bad_call", "c/one_bad_call.c", &[]),
    c("overlapping_humps", "c/overlapping_humps.c", &[]),
    c("own_and_two", "c/own_and_two.c", &[]),
    c("pareto_tail", "c/pareto_tail.c", &[]),
    c("rehash", "c/rehash.c", &[]),
    c("rwlock_writer", "c/rwlock_writer.c", &[]),
    c("short_callees", "c/short_callees.c", &[]),
    c("slow_producer", "c/slow_producer.c", &[]),
    c("spawned", "c/spawned.c", &[]),
    c("spin_waits", "c/spin_waits.c", &[]),
    c("wide_tree", "c/wide_tree.c", &[]),
    c("yields_to_holder", "c/yields_to_holder.c", &[]),
    c("two_alike", "c/two_alike.c", &[]),
    c("file_lock", "c/file_lock.c", &[]),
    c("full_pipe", "c/full_pipe.c", &[]),
    c("group_commit", "c/group_commit.c", &[]),
    c("lost_answer", "c/lost_answer.c", &[]),
    c("reconnects", "c/reconnects.c", &[]),
    c("flushes_buffer", "c/flushes_buffer.c", &[]),
    c("unmaps_blocks", "c/unmaps_blocks.c", &[]),
    c("column_sums", "c/column_sums.c", &[]),
    c("duplicate_keys", "c/duplicate_keys.c", &[]),
    c("finds_end_again", "c/finds_end_again.c", &[]),
    c("hash_chains", "c/hash_chains.c", &[]),
    c("sorted_input", "c/sorted_input.c", &[]),
    c("garbage_collection", "c/garbage_collection.c", &[]),
    // One program in all forms that an executable can have.
    c(
        "two_peaks_no_pie",
        "c/two_peaks.c",
        &["-no-pie", "-fno-pie"],
    ),
    c(
        "two_peaks_static",
        "c/two_peaks.c",
        &["-static", "-no-pie", "-fno-pie"],
    )
    .at_o0_too(),
    c(
        "two_peaks_static_pie",
        "c/two_peaks.c",
        &["-static-pie", "-fPIE"],
    ),
    c("two_peaks_dwarf4", "c/two_peaks.c", &["-gdwarf-4"]),
    cxx("cancellation", "cxx/cancellation.cpp", &[]).at_o0_too(),
    cxx("catches", "cxx/catches.cpp", &[]),
    cxx(
        "caught_everywhere",
        "cxx/caught_everywhere.cpp",
        &["-fno-partial-inlining"],
    ),
    cxx("dispatches_results", "cxx/dispatches_results.cpp", &[]),
    cxx("exceptions", "cxx/exceptions.cpp", &[]).at_o0_too(),
    cxx("throws_below_static", "cxx/throws_below.cpp", &["-static"]),
    cxx(
        "throws_below_own",
        "cxx/throws_below.cpp",
        &["-static-libgcc", "-static-libstdc++"],
    ),
    cxx("mostly_throws", "cxx/mostly_throws.cpp", &[]),
    cxx("resumed", "cxx/resumed.cpp", &["-std=gnu++20"]),
    cxx("coroutines", "cxx/coroutines.cpp", &["-std=gnu++20"]).at_o0_too(),
    cxx(
        "coroutines_without_debug",
        "cxx/coroutines.cpp",
        &["-std=gnu++20", "-g0"],
    ),
    cxx("names", "cxx/names.cpp", &["cxx/names_other.cpp"]).at_o0_too(),
    cxx("pool_waits", "cxx/pool_waits.cpp", &[]),
    cxx("pool_future", "cxx/pool_future.cpp", &[]),
    cxx("virtual_calls", "cxx/virtual_calls.cpp", &[]).at_o0_too(),
    cxx("virtual_forwarders", "cxx/virtual_forwarders.cpp", &[]),
    cxx("visits_variant", "cxx/visits_variant.cpp", &[]),
    cxx("drops_tree", "cxx/drops_tree.cpp", &[]),
    cxx("first_use", "cxx/first_use.cpp", &[]),
    cxx("subscribers", "cxx/subscribers.cpp", &[]),
    rust("asks_by_channel", "rust/asks_by_channel.rs"),
    rust("boxed_forwarders", "rust/boxed_forwarders.rs"),
    rust("futures", "rust/futures.rs"),
    rust("closures", "rust/closures.rs").at_o0_too(),
    rust("panics", "rust/panics.rs"),
    rust("panics_in_turn", "rust/panics_in_turn.rs"),
    rust("busy_map", "rust/busy_map.rs"),
    rust("shared_receiver", "rust/shared_receiver.rs"),
    rust("full_channel", "rust/full_channel.rs"),
    c("libhidden.so", "c/libhidden.c", &["-shared", "-fPIC", "-s"]),
    c("libserve.so", "c/libserve.c", &["-shared", "-fPIC"]).at_o0_too(),
    c(
        "libends.so",
        "c/libends.c",
        &["-shared", "-fPIC", "-Wl,-Bsymbolic"],
    ),
    c("_greenlet.so", "c/greenlet.c", &["-shared", "-fPIC"]),
    c("libthousands.so", "c/libthousands.c", &["-shared", "-fPIC"]),
    c("libshadowed.so", "c/libshadowed.c", &["-shared", "-fPIC"]),
    cxx(
        "libthrows.so",
        "cxx/libthrows.cpp",
        &["-shared", "-fPIC", "-static-libgcc", "-static-libstdc++"],
    ),
];

/// What is made from the programs: linked against the library, or stripped.
const DERIVED: &[Target] = &[
    c(
        "shared_library",
        "c/shared_library.c",
        &["-lserve", "-Wl,-rpath,$ORIGIN"],
    ),
    c(
        "stripped_library",
        "c/stripped_library.c",
        &["-lhidden", "-Wl,-rpath,$ORIGIN"],
    ),
    c(
        "lazily_bound",
        "c/lazily_bound.c",
        &["-lserve", "-Wl,-rpath,$ORIGIN", "-Wl,-z,lazy"],
    ),
    // Which of two functions the name means is known only when it has been called.
    c(
        "lazily_bound_shadowed",
        "c/lazily_bound.c",
        &[
            "-Wl,--no-as-needed",
            "-lserve",
            "-lshadowed",
            "-Wl,-rpath,$ORIGIN",
            "-Wl,-z,lazy",
        ],
    ),
    c(
        "throws_in_library",
        "c/throws_in_library.c",
        &["-lthrows", "-Wl,-rpath,$ORIGIN"],
    ),
    c(
        "copied_stacks",
        "c/copied_stacks.c",
        &["-l:_greenlet.so", "-Wl,-rpath,$ORIGIN"],
    ),
    c(
        "ends_in_library",
        "c/ends_in_library.c",
        &["-lends", "-Wl,-rpath,$ORIGIN"],
    ),
    stripped("two_peaks_stripped", "two_peaks", &["--strip-all"]).at_o0_too(),
    // But for the functions that the test is about.
    stripped(
        "throws_below_static_stripped",
        "throws_below_static",
        &["--strip-all", "-Kserve", "-Kattempt", "-Khop", "-Klast"],
    ),
    stripped(
        "throws_below_own_stripped",
        "throws_below_own",
        &["--strip-all", "-Kserve", "-Kattempt", "-Khop", "-Klast"],
    ),
    stripped("futures_without_debug", "futures", &["--strip-debug"]),
    stripped(
        "cold_jumps_back_stripped",
        "cold_jumps_back",
        &["--strip-all"],
    ),
    // The twin beside it is the debug file that its link names.
    stripped(
        "two_peaks_debuglink",
        "two_peaks",
        &["--strip-all", "--add-gnu-debuglink=two_peaks"],
    ),
];

const LEVELS: [&str; 2] = ["O0", "O2"];

fn main() {
    for folder in ["build.rs", "c", "cxx", "rust"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folders = LEVELS.map(|level| out.join(level));
    for folder in &folders {
        fs::create_dir_all(folder).expect("OUT_DIR is writable");
    }
    if only_lints() {
        return;
    }
    let toolchain = Toolchain::detect();
    let tries_all = tries_all();
    for stage in [PROGRAMS, DERIVED] {
        let mut jobs = Vec::new();
        for (level, folder) in LEVELS.iter().zip(&folders) {
            let (wanted, others): (Vec<_>, Vec<_>) = stage
                .iter()
                .partition(|target| *level != "O0" || target.at_o0 || tries_all);
            jobs.extend(wanted.iter().map(|it| toolchain.job(it, folder, level)));
            // A test that wants one of these fails here, too, where it was made before.
            for target in others {
                let _ = fs::remove_file(folder.join(target.output));
            }
        }
        run_all(&jobs);
    }
}

/// Whether everything is to be tried that takes long.
fn tries_all() -> bool {
    const VARIABLE: &str = "DARC_TEST_ALL";
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    env::var_os(VARIABLE).is_some()
}

/// Whether this is for clippy, which has a folder of its own: it looks at no program.
fn only_lints() -> bool {
    const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
    println!("cargo::rerun-if-env-changed={WRAPPER}");
    env::var(WRAPPER).is_ok_and(|wrapper| wrapper.contains("clippy-driver"))
}

/// The compilers, and where the bundled SQLite is.
struct Toolchain {
    c: PathBuf,
    cxx: PathBuf,
    rustc: String,
    sqlite_include: String,
    sqlite_library: String,
}

/// A command, what it makes and what it makes it from.
struct Job {
    command: Vec<String>,
    output: PathBuf,
    inputs: Vec<PathBuf>,
}

impl Toolchain {
    fn detect() -> Toolchain {
        let compiler = |is_cxx| {
            let tool = cc::Build::new()
                .cpp(is_cxx)
                .cargo_metadata(false)
                .get_compiler();
            tool.path().to_owned()
        };
        let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
        Toolchain {
            c: compiler(false),
            cxx: compiler(true),
            rustc: variable("RUSTC"),
            sqlite_include: variable("DEP_SQLITE3_INCLUDE"),
            sqlite_library: variable("DEP_SQLITE3_LIB_DIR"),
        }
    }

    fn job(&self, target: &Target, folder: &Path, level: &str) -> Job {
        let output = folder.join(target.output);
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let folder = folder.to_string_lossy().into_owned();
        let made = output.to_string_lossy().into_owned();
        let level_argument = format!("-{level}");
        let mut inputs = vec![PathBuf::from(target.source)];
        let mut command = match target.language {
            Language::Rust => {
                inputs.push(PathBuf::from("rust/work.rs"));
                let level_argument = format!("-Copt-level={}", &level[1..]);
                words(&[
                    &self.rustc,
                    "--edition=2021",
                    "-g",
                    &level_argument,
                    target.source,
                    "-o",
                    &made,
                ])
            }
            Language::C | Language::Cxx => {
                inputs.extend(
                    ["c/work.h", "c/helper.h", "c/walks.h", "c/circle.h"].map(PathBuf::from),
                );
                let (compiler, standard) = match target.language {
                    Language::Cxx => (&self.cxx, "-std=gnu++17"),
                    _ => (&self.c, "-std=gnu11"),
                };
                let compiler = compiler.to_string_lossy();
                let mut command =
                    words(&[&compiler, standard, "-Wall", "-Wextra", "-g", "-pthread"]);
                command.extend(words(&[&level_argument, "-Ic", "-I", &self.sqlite_include]));
                command.extend(words(&["-L", &self.sqlite_library, "-L", &folder]));
                command.extend(words(&[target.source, "-o", &made]));
                command
            }
            Language::Stripped => {
                let original = Path::new(&folder).join(target.source);
                inputs = vec![original.clone()];
                words(&["objcopy", &original.to_string_lossy(), &made])
            }
        };
        inputs.extend(
            target
                .arguments
                .iter()
                .map(PathBuf::from)
                .filter(|path| path.is_file()),
        );
        match target.language {
            Language::Stripped => drop(command.splice(1..1, words(target.arguments))),
            _ => command.extend(words(target.arguments)),
        }
        Job {
            command,
            output,
            inputs,
        }
    }
}

impl Job {
    /// Whether the result of an earlier build is still the result of this command on these inputs.
    fn is_fresh(&self) -> bool {
        let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        let Some(made) = modified(&self.output) else {
            return false;
        };
        fs::read_to_string(self.record()).is_ok_and(|command| command == self.command.join(" "))
            && self
                .inputs
                .iter()
                .all(|input| modified(input).is_some_and(|changed| changed < made))
    }

    /// The file that says by which command the result was made.
    fn record(&self) -> PathBuf {
        self.output.with_extension("command")
    }

    fn run(&self) {
        if self.is_fresh() {
            return;
        }
        // A debug link is looked for in the current folder.
        let mut command = Command::new(&self.command[0]);
        if self.command[0] == "objcopy" {
            command.current_dir(self.output.parent().expect("lies in OUT_DIR"));
        }
        let made = command
            .args(&self.command[1..])
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "{}: {error} (is a C and C++ compiler installed?)",
                    self.command[0]
                )
            });
        let messages = String::from_utf8_lossy(&made.stderr);
        assert!(
            made.status.success(),
            "{} failed:\n{messages}",
            self.command.join(" ")
        );
        for line in messages.lines().filter(|line| line.contains("warning:")) {
            println!("cargo::warning={line}");
        }
        fs::write(self.record(), self.command.join(" ")).expect("OUT_DIR is writable");
    }
}

/// Runs all jobs, as many at once as cargo was told to.
fn run_all(jobs: &[Job]) {
    let workers = env::var("NUM_JOBS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(1_usize);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..workers.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    job.run();
                }
            });
        }
    });
}
