//! The functions that threads began with: what there is to divide when nobody has named a function.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::thread;
use std::time::Duration;

use darc_process::modules::{CodeRef, Modules};
use darc_process::stacks::StackFrame;
use darc_report::words::percent;
use darc_symbols::FileAddr;
use darc_tracer::addr::TargetAddr;
use darc_tracer::maps::{self, Mapping};
use darc_tracer::threads;

use crate::session::descent::investigation::Investigation;
use crate::session::survey::stacks::Stacks;
use crate::session::survey::waiting::has_c_library;

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
    /// How many threads there are.
    pub threads: usize,
    /// The CPU time that they took while darc looked.
    pub cpu: Duration,
    /// The part of it that others took which have ended since.
    pub ended: Duration,
}

/// What the threads of a process began with.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Beginnings {
    /// The functions, those first whose threads took most CPU time.
    pub functions: Vec<Began>,
    /// What each thread began with, where that is known.
    pub of_thread: HashMap<i32, CodeRef>,
    /// Threads whose stacks could not be followed to where they began, and their CPU time.
    pub lost: (usize, Duration),
    /// The ids of these threads.
    pub lost_threads: HashSet<i32>,
    /// The CPU time of threads that have ended since, where it is not known with what they began.
    pub ended: Duration,
    /// Whether a thread was in code of no file, which the program makes while it runs.
    pub is_generated: bool,
}

impl Beginnings {
    /// The CPU time that all threads took while darc looked.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        let known: Duration = self.functions.iter().map(|began| began.cpu).sum();
        known + self.lost.1 + self.ended
    }
}

/// What the threads of a process whose ops are measured began with. It takes a second.
#[must_use]
pub fn began(pid: i32, modules: &Modules, investigation: &Investigation) -> Beginnings {
    let mut of_thread: HashMap<i32, CodeRef> = HashMap::new();
    let (before, all_before) = (cpu_times(pid), threads::cpu_time_of_all(pid));
    let mut stacks = Stacks::new(modules);
    let (makes_code, mut is_generated) = (makes_code(pid), false);
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        let is_new = |tid: i32| !of_thread.contains_key(&tid);
        let Some((stacks, _)) = stacks.read(pid, investigation, is_new) else {
            break;
        };
        for stack in &stacks {
            is_generated |= makes_code
                && (is_in_made_code(modules, stack.rip)
                    || stack.frames.iter().any(|frame| frame.called_generated));
            if let Some(function) = first(modules, &stack.frames) {
                of_thread.entry(stack.tid).or_insert(function);
            }
        }
    }
    let (after, all_after) = (cpu_times(pid), threads::cpu_time_of_all(pid));
    let took = |tid: i32| {
        let before = before.get(&tid).copied().unwrap_or_default();
        after[&tid].saturating_sub(before)
    };
    let is_chosen = |tid| {
        let threads = investigation.threads.as_ref();
        threads.is_none_or(|threads| threads.has(tid))
    };
    // Of threads that have ended nobody knows what they were called.
    let all = all_before
        .zip(all_after)
        .filter(|_| investigation.threads.is_none());
    let all = all.map(|(before, after)| after.saturating_sub(before));
    let mut ended = of_ended(all, after.keys().map(|&tid| took(tid)).sum());
    let mut groups: BTreeMap<CodeRef, Began> = BTreeMap::new();
    let mut add = |function: CodeRef, threads, cpu, ended| {
        let group = groups.entry(function).or_insert(Began {
            function,
            threads: 0,
            cpu: Duration::ZERO,
            ended: Duration::ZERO,
        });
        group.threads += threads;
        group.cpu += cpu;
        group.ended += ended;
    };
    let (mut lost, mut lost_threads) = ((0, Duration::ZERO), HashSet::new());
    for &tid in after.keys().filter(|&&tid| is_chosen(tid)) {
        match of_thread.get(&tid) {
            Some(&function) => add(function, 1, took(tid), Duration::ZERO),
            None => {
                lost = (lost.0 + 1, lost.1 + took(tid));
                lost_threads.insert(tid);
            }
        }
    }
    let seen_to_end = of_thread.iter().filter(|(tid, _)| !after.contains_key(tid));
    let functions: BTreeSet<CodeRef> = seen_to_end.map(|(_, &function)| function).collect();
    if functions.len() == 1 {
        for function in functions {
            add(function, 0, ended, ended);
        }
        ended = Duration::ZERO;
    }
    let mut functions: Vec<Began> = groups.into_values().collect();
    functions.sort_by_key(|began| std::cmp::Reverse((began.cpu, began.threads)));
    Beginnings {
        functions,
        of_thread,
        lost,
        lost_threads,
        ended,
        is_generated,
    }
}

/// What threads took that have ended, of what all took and those did that there are. That of a thread which runs is told some
/// milliseconds late.
fn of_ended(all: Option<Duration>, of_living: Duration) -> Duration {
    /// A smaller part of all is none,
    const LEAST: f64 = 0.02;
    /// ... nor is less than this.
    const LITTLE: Duration = Duration::from_millis(20);
    let all = all.unwrap_or_default();
    let ended = all.saturating_sub(of_living);
    match ended > all.mul_f64(LEAST).max(LITTLE) {
        true => ended,
        false => Duration::ZERO,
    }
}

/// Whether there is memory of no file that code can run in.
fn makes_code(pid: i32) -> bool {
    let mappings = maps::read(pid).unwrap_or_default();
    let is_made = |it: &Mapping| {
        let name = it.name.as_os_str();
        it.executable && (name.is_empty() || is_memory(name.as_encoded_bytes()))
    };
    mappings.iter().any(is_made)
}

/// Whether the name of a mapping is that of memory which several places share (`memfd_create(2)`, `mmap(2)`, `shmget(2)`): run-times
/// write code in one and run it in another.
fn is_memory(name: &[u8]) -> bool {
    const MEMORY: [&[u8]; 4] = [b"/memfd:", b"/dev/zero", b"/anon_hugepage", b"/SYSV"];
    MEMORY.iter().any(|begin| name.starts_with(begin))
}

fn is_in_made_code(modules: &Modules, addr: TargetAddr) -> bool {
    modules
        .place(addr)
        .is_none_or(|place| is_memory(modules.get(place.module).path.as_bytes()))
}

/// What threads began with, for people: `3 threads began with worker (97.0% of the CPU time), 1 with main (3.0%)`.
#[must_use]
pub fn in_words(began: &Beginnings, modules: &Modules) -> String {
    const NAMED: usize = 4;
    let all = began.cpu();
    let share = |cpu: Duration| percent(cpu.as_secs_f64() / all.as_secs_f64());
    let mut parts = Vec::new();
    for (began, index) in began.functions.iter().zip(0..NAMED) {
        let threads = match (began.threads, began.ended.is_zero()) {
            (0, _) => "threads that have ended".to_owned(),
            (1, true) if index == 0 => "1 thread".to_owned(),
            (threads, true) if index == 0 => format!("{threads} threads"),
            (threads, true) => threads.to_string(),
            (threads, false) => format!("{threads} and others that have ended"),
        };
        let subject = match index {
            0 => format!("{threads} began with"),
            _ => format!("{threads} with"),
        };
        let cpu = match all.is_zero() {
            true => String::new(),
            false => {
                let of = if index == 0 { " of the CPU time" } else { "" };
                format!(" ({}{of})", share(began.cpu))
            }
        };
        parts.push(format!("{subject} {}{cpu}", modules.name(began.function)));
    }
    let more = began.functions.len().saturating_sub(NAMED);
    if more > 0 {
        parts.push(format!("others with {more} more functions"));
    }
    if let (threads @ 1.., cpu) = began.lost
        && !cpu.is_zero()
    {
        let share = share(cpu);
        parts.push(format!("of {threads} ({share}) it could not be found out"));
    }
    if !began.ended.is_zero() {
        let share = share(began.ended);
        parts.push(format!(
            "and of threads that have ended ({share}) it is not known"
        ));
    }
    parts.join(", ")
}

/// The outermost function of a stack that does not start programs or threads; nothing where the stack was not followed to
/// what does.
pub(super) fn first(modules: &Modules, frames: &[StackFrame]) -> Option<CodeRef> {
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

/// Whether a function starts programs or threads: the C library's, which may have no name, or one of that name. A name that a program
/// may use itself is the library's only where that is a part of the program.
fn starts(modules: &Modules, function: CodeRef) -> bool {
    let module = modules.get(function.module);
    let file = module.path.rsplit('/').next().unwrap_or_default();
    let library = ["libc.", "libc-", "libpthread", "ld-"];
    let is_entry = module.image.as_ref().is_some_and(|image| {
        let place = image.function_at(image.entry());
        place.is_some_and(|entry| FileAddr(entry.addr.0) == function.addr)
    });
    if library.iter().any(|name| file.starts_with(name)) || is_entry {
        return true;
    }
    let name = modules.name(function);
    STARTERS.contains(&name.as_str()) && (name.starts_with('_') || !has_c_library(modules))
}

/// The CPU time of each thread (proc_pid_schedstat, first field).
pub(super) fn cpu_times(pid: i32) -> HashMap<i32, Duration> {
    let time = |tid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        let ns = text.split(' ').next()?.parse().ok()?;
        Some((tid, Duration::from_nanos(ns)))
    };
    let tids = threads::list(pid).unwrap_or_default();
    tids.into_iter().filter_map(time).collect()
}
