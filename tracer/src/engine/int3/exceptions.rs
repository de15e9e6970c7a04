//! Exceptions that are thrown while the tracer comes late to any of its calls: each is caught.

use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::addr::TargetAddr;
use crate::error::Result;
use crate::killed::{Moment, Nobody, ended, trace};
use crate::plan::Plan;
use crate::stopped::Stopped;
use crate::sys::{self, SharedWords};

use super::calibrate::plan_of;
use super::calls::ThreadCalls;
use super::{Engine as _, Guarding, Int3};

/// How long a call of f0 works before it throws, in cycles: long enough for a tracer to go on with something else.
const WORK: u64 = 10_000_000;

/// How often this process has thrown.
static THROWN: AtomicU64 = AtomicU64::new(0);

/// Works, and never returns.
#[inline(never)]
extern "C-unwind" fn throws() {
    let began = sys::tsc();
    while (sys::tsc() - began).0 < WORK {
        std::hint::spin_loop();
    }
    THROWN.fetch_add(1, Ordering::Relaxed);
    panic::resume_unwind(Box::new(()));
}

/// How a tracer ends its measuring.
type End = fn(&mut Int3, i32) -> Result<()>;

/// What a target and its tracer share, by byte offset: whether the target is to end, and how often it has thrown while its tracer
/// ended.
const IS_OVER: usize = 0;
const MET: usize = 8;

/// Measures a process, and ends that in the middle of a call of f0, late at one of the tracer's calls from then on.
fn measure(pid: i32, end: End, late_at: u64, shared: &SharedWords) -> Result<()> {
    let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
    let entry = throws as extern "C-unwind" fn() as usize as u64;
    engine.apply(&Plan {
        unwinders: vec![TargetAddr(sys::unwinder())],
        ..plan_of(entry, &engine.memory)?
    })?;
    while !engine.threads.values().any(ThreadCalls::in_op) {
        engine.poll(Duration::ZERO, &mut Nobody)?;
    }
    let memory = engine.memory.again()?;
    let thrown = || memory.read_word(TargetAddr(THROWN.as_ptr() as u64));
    let before = thrown()?;
    sys::kill_point::late_at(late_at, pid);
    end(&mut engine, pid)?;
    shared.store(MET, thrown()? - before);
    Ok(())
}

/// How a process ends that throws until its tracer has let go of it, how many calls that has made, and how many exceptions were
/// thrown meanwhile.
fn thrown(end: End, late_at: u64) -> (i32, u64, u64) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(sys::PAGE as u64).unwrap();
    let shared = || sys::SharedWords::map(&file, sys::PAGE).unwrap();
    let parent = std::process::id().cast_signed();
    let target = sys::fork_into(|| {
        sys::die_with_parent(parent);
        let shared = shared();
        while shared.load(IS_OVER) == 0 {
            drop(panic::catch_unwind(|| throws()));
        }
        sys::exit_now(0);
    });
    let target = target.unwrap();
    // No child inherits a mapping.
    let calls = trace(Moment::Never, || measure(target, end, late_at, &shared()));
    let shared = shared();
    shared.store(IS_OVER, 1);
    let status = ended(target, late_at);
    (status, calls.expect("it was not killed"), shared.load(MET))
}

/// At some of its calls the target runs, and throws.
fn check(end: End) {
    let (status, calls, _) = thrown(end, u64::MAX);
    assert_eq!(status, 0);
    let mut met = 0;
    for call in 0..calls {
        let (status, _, thrown) = thrown(end, call);
        assert_eq!(status, 0, "late at call {call} of {calls}");
        met += u64::from(thrown > 0);
    }
    eprintln!("exceptions at {met} of {calls} calls");
    assert!(met > 0, "none at {calls} calls");
}

#[test]
fn a_tracer_lets_go() {
    check(|engine, _| engine.finish());
}

/// Another process in the target's memory may be the one that ends with it.
#[test]
fn a_core_is_about_to_be_dumped() {
    check(|engine, pid| {
        engine.clean_for_core(&Stopped::observed(pid, libc::SIGABRT))?;
        engine.finish()
    });
}
