//! The functions that threads began with: what there is to divide when nobody has named a function.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::thread;
use std::time::Duration;

use darc_process::modules::{CodeRef, Modules};
use darc_process::stacks::{StackFrame, Unwinder};
use darc_report::words::percent;
use darc_symbols::FileAddr;
use darc_tracer::{stacks, threads};

/// So often the stacks are looked at: one that cannot be followed to its end, as through compiled code, may be at another time.
const LOOKS: u32 = 4;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// What starts programs and threads, in libraries and in programs that are linked statically.
const STARTERS: [&str; 12] = [
    "_start",
    "_start_c",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "start_thread",
    "start",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
];

/// A function that threads began with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Began {
    /// The function.
    pub function: CodeRef,
    /// How many threads.
    pub threads: usize,
    /// The CPU time that they took while darc looked.
    pub cpu: Duration,
}

/// The functions that the threads of a process began with, those that took most CPU time first. It takes a second.
#[must_use]
pub fn began(pid: i32, modules: &Modules) -> Vec<Began> {
    let mut of_thread: HashMap<i32, CodeRef> = HashMap::new();
    let before = cpu_times(pid);
    let mut unwinder = Unwinder::new(modules);
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        let Ok((stacks, _)) = stacks::snapshot(pid) else {
            break;
        };
        for stack in &stacks {
            if !of_thread.contains_key(&stack.tid)
                && let Some(function) = first(modules, &unwinder.frames(modules, stack))
            {
                of_thread.insert(stack.tid, function);
            }
        }
    }
    let after = cpu_times(pid);
    let mut groups: BTreeMap<CodeRef, Began> = BTreeMap::new();
    for (tid, function) in of_thread {
        let [from, to] = [&before, &after].map(|times| times.get(&tid).copied());
        let cpu = to
            .unwrap_or_default()
            .saturating_sub(from.unwrap_or_default());
        let group = groups.entry(function).or_insert(Began {
            function,
            threads: 0,
            cpu: Duration::ZERO,
        });
        group.threads += 1;
        group.cpu += cpu;
    }
    let mut groups: Vec<Began> = groups.into_values().collect();
    groups.sort_by_key(|began| std::cmp::Reverse((began.cpu, began.threads)));
    groups
}

/// What threads began with, for people: `3 threads began with worker (97.0% of the CPU time), 1 with main (3.0%)`.
#[must_use]
pub fn in_words(began: &[Began], modules: &Modules) -> String {
    const NAMED: usize = 4;
    let all: Duration = began.iter().map(|began| began.cpu).sum();
    let mut parts = Vec::new();
    for (began, index) in began.iter().zip(0..NAMED) {
        let subject = match (index, began.threads) {
            (0, 1) => "1 thread began with".to_owned(),
            (0, threads) => format!("{threads} threads began with"),
            (_, threads) => format!("{threads} with"),
        };
        let cpu = match all.is_zero() {
            true => String::new(),
            false => {
                let share = percent(began.cpu.as_secs_f64() / all.as_secs_f64());
                let of = if index == 0 { " of the CPU time" } else { "" };
                format!(" ({share}{of})")
            }
        };
        parts.push(format!("{subject} {}{cpu}", modules.name(began.function)));
    }
    let more = began.len().saturating_sub(NAMED);
    if more > 0 {
        parts.push(format!("others with {more} more functions"));
    }
    parts.join(", ")
}

/// The outermost function of a stack that does not start programs or threads; nothing where the stack was not followed to
/// what does.
fn first(modules: &Modules, frames: &[StackFrame]) -> Option<CodeRef> {
    let starters = frames.iter().rev();
    let starters = starters
        .take_while(|frame| starts(modules, frame.function))
        .count();
    let rest = frames.len().checked_sub(starters)?;
    match starters {
        0 => None,
        _ => Some(frames[..rest].last()?.function),
    }
}

/// Whether a function starts programs or threads: the C library's, which may have no name, or one of that name.
fn starts(modules: &Modules, function: CodeRef) -> bool {
    let module = modules.get(function.module);
    let file = module.path.rsplit('/').next().unwrap_or_default();
    let library = ["libc.", "libc-", "libpthread", "ld-"];
    let is_entry = module.image.as_ref().is_some_and(|image| {
        let place = image.function_at(image.entry());
        place.is_some_and(|entry| FileAddr(entry.addr.0) == function.addr)
    });
    library.iter().any(|name| file.starts_with(name))
        || is_entry
        || STARTERS.contains(&modules.name(function).as_str())
}

/// The CPU time of each thread (proc_pid_schedstat, first field).
fn cpu_times(pid: i32) -> HashMap<i32, Duration> {
    let time = |tid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        let ns = text.split(' ').next()?.parse().ok()?;
        Some((tid, Duration::from_nanos(ns)))
    };
    let tids = threads::list(pid).unwrap_or_default();
    tids.into_iter().filter_map(time).collect()
}
