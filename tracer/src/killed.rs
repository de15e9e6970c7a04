//! Kills tracers at any moment: the target goes on with right results, and what is left in it is found and removed.
//!
//! The tracer is a child process of the test. It attaches, changes the probes, measures for a moment and detaches. It is
//! killed before its n-th call of ptrace(2) or write to the target's memory, for n over all of that, and at random times; so is
//! one that clears what another has left.
//!
//! ```sh
//! cargo test -p darc-tracer --lib killed -- --ignored --nocapture
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::panic::{self, AssertUnwindSafe};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_disasm::{FunctionCode, NoMemory, call_sites, function_at};
use darc_record::{FnodeId, Op, SiteId};
use darc_testprogs::{Opt, program};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::addr::TargetAddr;
use crate::engine::jump::{self, Cleared, Jump, clear_leftovers};
use crate::engine::{Counted, Engine, NewTarget, Sink};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::plan::{Edge, Plan, PlannedFunction};
use crate::{child_signal, launch, maps, sys, threads};

/// After this time something hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// The longest random time until a kill, in microseconds: about as long as a tracer takes.
const RANDOM_WITHIN: u64 = 40_000;

pub(crate) struct Nobody;

impl Sink for Nobody {
    fn op(&mut self, _: Op) {}

    fn latency_only(&mut self, _: Counted) {}

    fn new_target(&mut self, _: FnodeId, _: SiteId, _: TargetAddr) -> NewTarget {
        NewTarget::AnyTarget
    }
}

/// Numbers that look random and are the same each time (Marsaglia, "Xorshift RNGs", 2003).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The functions that are measured.
#[derive(Clone)]
pub(crate) struct Code {
    serve: Arc<FunctionCode>,
    pub(crate) part: Arc<FunctionCode>,
}

impl Code {
    /// Reads the functions whose addresses the program's first line gives.
    fn read(pid: i32, line: &str) -> Code {
        let memory = Memory::open(pid).unwrap();
        let mut addresses = line.split_whitespace().skip(1).map(|address| {
            let digits = address.strip_prefix("0x").unwrap();
            u64::from_str_radix(digits, 16).unwrap()
        });
        let mut function = || {
            let entry = addresses.next().unwrap();
            Arc::new(function_at(entry, entry + 0x1000, &memory).unwrap())
        };
        Code {
            serve: function(),
            part: function(),
        }
    }

    /// Measures `serve`, and with `calls` the functions that it calls.
    pub(crate) fn plan(&self, calls: bool) -> Plan {
        let mut plan = Plan {
            f0: Some(Arc::clone(&self.serve)),
            ..Plan::default()
        };
        if calls {
            let sites = call_sites(&self.serve, &NoMemory).sites;
            let sites: Vec<_> = (1..).map(SiteId).zip(sites).collect();
            plan.edges = sites
                .iter()
                .map(|&(site, _)| Edge {
                    parent: FnodeId::ROOT,
                    site,
                    target: None,
                    child: FnodeId(site.0 + 1),
                })
                .collect();
            let code = Arc::clone(&self.serve);
            plan.functions = vec![PlannedFunction {
                code,
                sites,
                seen_through: BTreeSet::new(),
            }];
        }
        plan
    }
}

/// The whole work of a tracer.
fn measure(mut engine: Jump, code: &Code) -> Result<()> {
    let moment = Duration::from_millis(2);
    for calls in [false, true] {
        engine.apply(&code.plan(calls))?;
        engine.poll(moment, &mut Nobody)?;
    }
    // Another f0: the probes of the first one are removed.
    let plan = Plan {
        f0: Some(Arc::clone(&code.part)),
        ..Plan::default()
    };
    engine.apply(&plan)?;
    engine.poll(moment, &mut Nobody)?;
    engine.finish()
}

/// When a tracer is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// Before its n-th call.
    Call(u64),
    /// After so many microseconds.
    After(u64),
    Never,
}

/// Runs a tracer that does `work`, and kills it. Returns the number of its calls if it came to its end.
pub(crate) fn trace(moment: Moment, work: impl FnOnce() -> Result<()>) -> Option<u64> {
    let tracer = Tracer::start(|| {
        sys::kill_point::set(match moment {
            Moment::Call(call) => call,
            Moment::After(_) | Moment::Never => u64::MAX,
        });
        work().map(|()| sys::kill_point::done())
    });
    if let Moment::After(microseconds) = moment {
        std::thread::sleep(Duration::from_micros(microseconds));
        let _ = kill(Pid::from_raw(tracer.pid), Signal::SIGKILL);
    }
    tracer.end(moment)
}

/// A process that traces others, and tells what comes of it.
struct Tracer {
    pid: i32,
    told: File,
}

impl Tracer {
    fn start(work: impl FnOnce() -> Result<u64>) -> Tracer {
        let (told, tell) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let tracer = sys::fork_into(|| {
            child_signal::block().unwrap();
            let outcome = work();
            let _ = match &outcome {
                Ok(number) => nix::unistd::write(&tell, &number.to_le_bytes()),
                Err(error) => nix::unistd::write(&tell, format!("{error:?}").as_bytes()),
            };
            sys::exit_now(outcome.is_err().into());
        });
        Tracer {
            pid: tracer.unwrap(),
            told: told.into(),
        }
    }

    /// Waits for its end. What its work came to; `None` when it was killed.
    fn end(mut self, what: impl std::fmt::Debug) -> Option<u64> {
        let status = ended(self.pid, &what);
        let (mut number, mut error) = ([0; 8], String::new());
        if status == 0 {
            self.told.read_exact(&mut number).unwrap();
            return Some(u64::from_le_bytes(number));
        }
        if !libc::WIFSIGNALED(status) {
            self.told.read_to_string(&mut error).unwrap();
            panic!("{what:?}: the tracer failed: {status:#x}: {error}");
        }
        None
    }
}

/// Waits for the end of a child.
pub(crate) fn ended(pid: i32, what: impl std::fmt::Debug) -> i32 {
    let since = Instant::now();
    loop {
        if let Some(status) = sys::reap(pid) {
            return status;
        }
        assert!(since.elapsed() < HANGS_AFTER, "{what:?}: {pid} hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A program of a kind, which works until it is told to end.
pub(crate) struct Target {
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) code: Code,
    maps: Vec<String>,
}

impl Target {
    pub(crate) fn start(kind: &str) -> Target {
        let mut child = Command::new(program("kinds", Opt::O2))
            .arg(kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut ready) = (String::new(), String::new());
        stdout.read_line(&mut line).unwrap();
        stdout.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let pid = child.id() as i32;
        Target {
            code: Code::read(pid, &line),
            maps: stable_maps(pid),
            child,
            stdout,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Checks that it lives, and waits until no thread is stopped or traced.
    fn check_free(&mut self, what: &str) {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{what}: the target has ended: {status}");
            }
            let tids = threads::list(self.pid()).unwrap_or_default();
            let held = tids.iter().any(|&tid| {
                let tracer = threads::status_field(tid, "TracerPid");
                tracer.is_some_and(|tracer| tracer != "0")
                    || matches!(threads::state(tid), Some('t' | 'T'))
            });
            if !held {
                return;
            }
            assert!(since.elapsed() < HANGS_AFTER, "{what}: a thread is held");
            std::thread::yield_now();
        }
    }

    /// Removes what a tracer left, and checks that all is gone.
    fn clean(&mut self, what: &str) -> Cleared {
        let pid = self.pid();
        let cleared = clear_leftovers(pid).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.check_free(what);
        assert_eq!(differing_text(pid), 0, "{what}: bytes of code differ");
        let open = jump::left_descriptors(pid);
        assert!(open.is_empty(), "{what}: descriptors {open:?}");
        if cleared != Cleared::Patches {
            let now = stable_maps(pid);
            let new: Vec<&String> = now
                .iter()
                .filter(|line| !self.maps.contains(line))
                .collect();
            assert!(new.is_empty(), "{what}: {cleared:?}, and left {new:#?}");
        }
        cleared
    }

    /// As [`Target::clean`], until the memory is given back, too: a call in it may have to return first.
    fn clean_at_last(&mut self, what: &str) {
        let since = Instant::now();
        while self.clean(what) == Cleared::Patches {
            assert!(since.elapsed() < HANGS_AFTER, "{what}: memory stays mapped");
        }
    }

    /// Ends it, and compares its results with those of a run without any tracer.
    fn finish(self, kind: &str) {
        assert_eq!(self.end(kind), (0, results(kind)), "{kind}");
    }

    /// Ends it: its wait status, and what it printed since it was ready.
    pub(crate) fn end(mut self, what: &str) -> (i32, String) {
        drop(self.child.stdin.take());
        let status = ended(self.pid(), what);
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (status, rest)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// What the program prints at its end.
pub(crate) fn results(kind: &str) -> String {
    let run = Command::new(program("kinds", Opt::O2))
        .args([kind, "20"])
        .output();
    let text = String::from_utf8(run.unwrap().stdout).unwrap();
    format!("{}\n", text.lines().last().unwrap())
}

/// The mappings that could be a tracer's: shared ones, code without a file, and large ones. The program itself maps and
/// unmaps others all the time.
fn stable_maps(pid: i32) -> Vec<String> {
    const LARGE: u64 = 16 << 20;
    let mappings = maps::read(pid).unwrap();
    let suspect = |m: &&maps::Mapping| {
        let nameless =
            m.file.inode == 0 && !m.name.as_os_str().as_encoded_bytes().starts_with(b"[");
        let is_data = nameless && m.writable && m.end - m.start >= LARGE;
        m.shared || is_data || (nameless && m.executable)
    };
    let shown = |m: &maps::Mapping| format!("{:x}-{:x} {}", m.start, m.end, m.name.display());
    mappings.iter().filter(suspect).map(shown).collect()
}

/// How many bytes of mapped code are not those of the file.
fn differing_text(pid: i32) -> usize {
    let memory = Memory::open(pid).unwrap();
    let mappings = maps::read(pid).unwrap();
    let code = mappings.iter().filter(|m| m.executable && m.is_file());
    code.map(|m| {
        let len = (m.end - m.start) as usize;
        let (mut mapped, mut stored) = (vec![0; len], vec![0; len]);
        if memory.read(TargetAddr(m.start), &mut mapped).is_err() {
            // A library that has just gone.
            return 0;
        }
        let read = fs::File::open(&m.name).and_then(|file| file.read_at(&mut stored, m.offset));
        let read = read.unwrap_or(0);
        (0..read).filter(|&at| mapped[at] != stored[at]).count()
    })
    .sum()
}

/// The kinds of programs.
const KINDS: [&str; 4] = ["threads", "processes", "coroutines", "libraries"];
/// One more. What a killed tracer has mapped stays there for long, and each next one tries for half a second to unmap it.
const SIGNALS: &str = "signals";

/// What was tried.
#[derive(Default, Debug)]
struct Tried {
    kills: u64,
    cleaned: u64,
    calls: u64,
}

/// Kills tracers of one target: `most` at calls spread over all that one makes, and as many at random times.
fn kill_tracers_of(kind: &str, most: u64) -> Tried {
    let mut target = Target::start(kind);
    let (pid, code) = (target.pid(), target.code.clone());
    let work = || measure(Jump::attach(pid)?, &code);
    let calls = trace(Moment::Never, work).expect("it was not killed");
    let mut tried = Tried {
        calls,
        ..Tried::default()
    };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..2 * most {
        let moment = match round % 2 {
            0 => Moment::Call(round / 2 * calls / most),
            _ => Moment::After(random.below(RANDOM_WITHIN)),
        };
        let what = format!("{kind}, killed at {moment:?} of {calls} calls");
        tried.kills += u64::from(trace(moment, work).is_none());
        target.check_free(&what);
        // Otherwise the next tracer finds what is left.
        if random.below(2) == 0 {
            tried.cleaned += u64::from(target.clean(&what) != Cleared::Nothing);
        }
    }
    match kind {
        SIGNALS => drop(target.clean(kind)),
        _ => target.clean_at_last(kind),
    }
    target.finish(kind);
    tried
}

/// Kills, at calls spread over all that one makes, tracers that clear what a killed one has left.
fn kill_cleaners_of(kind: &str, most: u64) -> Tried {
    let mut target = Target::start(kind);
    let (pid, code) = (target.pid(), target.code.clone());
    let measure = || measure(Jump::attach(pid)?, &code);
    let clear = || clear_leftovers(pid).map(drop);
    let all = trace(Moment::Never, measure).expect("it was not killed");
    // With the probes of functions and their callees in place.
    let leave = || while trace(Moment::Call(all / 2), measure).is_some() {};
    leave();
    let calls = trace(Moment::Never, clear).expect("it was not killed");
    let mut tried = Tried {
        calls,
        ..Tried::default()
    };
    for round in 0..most {
        leave();
        let moment = Moment::Call(round * calls / most);
        let what = format!("{kind}, cleared and killed at {moment:?} of {calls} calls");
        tried.kills += u64::from(trace(moment, clear).is_none());
        target.check_free(&what);
        tried.cleaned += u64::from(target.clean(&what) != Cleared::Nothing);
    }
    match kind {
        SIGNALS => drop(target.clean(kind)),
        _ => target.clean_at_last(kind),
    }
    target.finish(kind);
    tried
}

/// Kills tracers that start the program themselves.
fn kill_starters(most: u64) -> Tried {
    let expected = results("processes");
    let command = program("kinds", Opt::O2);
    let arguments = [command.as_os_str(), "processes".as_ref(), "20".as_ref()];
    let arguments = arguments.map(|argument| argument.to_owned());
    let mut tried = Tried::default();
    let start = |moment| {
        // No program of another test keeps it.
        let (printed, stdout) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let (count, to) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        // The keeper adopts the program when its tracer is killed, and learns how it ended.
        let keeper = sys::fork_into(|| {
            nix::sys::prctl::set_child_subreaper(true).unwrap();
            nix::unistd::dup2_stdout(&stdout).unwrap();
            let done = trace(moment, || {
                let thread = launch::launch(&arguments, &SigSet::empty(), jump::OPTIONS)?;
                let mut engine = Jump::launched(thread, false, &|| true)?;
                while engine.poll(HANGS_AFTER, &mut Nobody)?.is_none() {}
                Ok(())
            });
            let _ = nix::unistd::write(&to, &done.unwrap_or(0).to_le_bytes());
            while let Ok((_, status)) = sys::wait_for(-1) {
                // 127 is a process that has not executed its program.
                let right =
                    libc::WIFEXITED(status) && [0, 127].contains(&libc::WEXITSTATUS(status));
                if !right {
                    sys::exit_now(9);
                }
            }
            sys::exit_now(0);
        });
        drop((stdout, to));
        let status = ended(keeper.unwrap(), moment);
        let (mut text, mut calls) = (String::new(), [0; 8]);
        File::from(printed).read_to_string(&mut text).unwrap();
        File::from(count).read_exact(&mut calls).unwrap();
        assert_eq!(
            status, 0,
            "{moment:?}: a started program has not ended well"
        );
        assert!(
            text.is_empty() || text.ends_with(&expected),
            "{moment:?}: {text}"
        );
        u64::from_le_bytes(calls)
    };
    tried.calls = start(Moment::Never);
    for round in 0..most {
        start(Moment::Call(round * tried.calls / most));
        tried.kills += 1;
    }
    tried
}

fn kill_all_tracers_of(kind: &str, most: u64) {
    let tried = kill_tracers_of(kind, most);
    eprintln!("{kind}: {tried:?}");
    assert!(tried.kills > most / 2, "{kind}: {tried:?}");
}

fn kill_all_cleaners_of(kind: &str, most: u64) {
    let tried = kill_cleaners_of(kind, most);
    eprintln!("{kind}, cleared: {tried:?}");
    assert!(tried.kills > most / 2, "{kind}: {tried:?}");
}

fn kill_all_starters(most: u64) {
    let tried = kill_starters(most);
    eprintln!("started programs: {tried:?}");
}

/// So many kills of each sort: some two hundred in all, and three hundred where everything is to be tried.
fn most() -> u64 {
    let tries_all = std::env::var_os("DARC_TEST_ALL").is_some();
    if tries_all { 25 } else { 15 }
}

#[test]
fn a_target_survives_its_tracer() {
    for kind in KINDS {
        kill_all_tracers_of(kind, most());
    }
    kill_all_starters(most());
}

#[test]
fn a_target_full_of_signals_survives_its_tracer() {
    kill_all_tracers_of(SIGNALS, most());
}

/// A tracer that panics, at any call of a change of probes, restores the code and lets go.
#[test]
fn a_tracer_that_panics_lets_go() {
    const MOST: u64 = 10_000;
    let mut target = Target::start("threads");
    let (pid, code) = (target.pid(), target.code.clone());
    let attempt = |call| -> Result<bool> {
        let mut engine = Jump::attach(pid)?;
        engine.apply(&code.plan(false))?;
        sys::kill_point::panic_at(call);
        let change = panic::catch_unwind(AssertUnwindSafe(|| engine.apply(&code.plan(true))));
        sys::kill_point::set(u64::MAX);
        engine.finish()?;
        match change {
            Ok(Err(busy @ Error::Busy(_))) => Err(busy),
            change => Ok(change.is_err()),
        }
    };
    // As who measures does: where no thread can be had at the moment, it is asked again.
    let has_panicked = |call| {
        let mut attempts = (0..100).map(|_| attempt(call));
        let busy = |outcome: &Result<bool>| matches!(outcome, Err(Error::Busy(_)));
        attempts.find(|outcome| !busy(outcome)).unwrap_or(Ok(false))
    };
    let panicked = (0..MOST).take_while(|call| {
        let what = format!("panicked at call {call}");
        let tracer = Tracer::start(|| {
            panic::set_hook(Box::new(|_| {}));
            has_panicked(*call).map(u64::from)
        });
        let panicked = tracer.end(&what).expect("it was not killed");
        target.check_free(&what);
        assert_eq!(differing_text(pid), 0, "{what}: bytes of code differ");
        // What the call had mapped and could not make known.
        target.clean(&what);
        panicked != 0
    });
    assert!(panicked.count() > 10);
    target.finish("threads");
}

#[test]
fn a_target_survives_who_clears() {
    for kind in ["threads", SIGNALS] {
        kill_all_cleaners_of(kind, most());
    }
}

#[test]
#[ignore = "three thousand kills take some ten minutes: cargo test -p darc-tracer --lib killed -- --ignored"]
fn soak_thousands_of_kills() {
    const MOST: u64 = 300;
    for kind in KINDS.into_iter().chain([SIGNALS]) {
        kill_all_tracers_of(kind, MOST);
    }
    for kind in ["threads", SIGNALS] {
        kill_all_cleaners_of(kind, MOST);
    }
    kill_all_starters(MOST);
}
