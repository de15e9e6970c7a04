//! Kills tracers at any moment: the target goes on with right results, or has died of SIGTRAP.
//!
//! As in [`crate::killed`], but each kill has a target of its own, which may die of it, and there is a guardian. It is done before
//! the threads that are stopped go on where the tracer is killed at one of its calls; at random times it has to be quick.

use std::time::Duration;

use crate::addr::TargetAddr;
use crate::engine::Engine as _;
use crate::error::Result;
use crate::killed::{Code, Moment, Nobody, Random, Target, results, trace};
use crate::plan::Plan;

use super::{Guarding, Int3};

/// The longest random time until a kill, in microseconds: about as long as a tracer takes.
const RANDOM_WITHIN: u64 = 15_000;

/// One of a single thread each, so that nobody meets a breakpoint while the tracer waits for the guardian.
const KINDS: [&str; 3] = ["plain", "signals", "coroutines"];

/// The whole work of a tracer; nearly all the time one of the target's stops is being handled. The function that is called counts as
/// one that reads the stack: all is put back there, and its caller's callers are seen to return no more.
fn measure(pid: i32, code: &Code) -> Result<()> {
    let mut engine = Int3::attach(pid, Guarding::Copied)?;
    for calls in [false, true] {
        let unwinders = match calls {
            true => vec![TargetAddr(code.part.entry())],
            false => Vec::new(),
        };
        engine.apply(&Plan {
            unwinders,
            ..code.plan(calls)
        })?;
        engine.poll(Duration::from_millis(2), &mut Nobody)?;
    }
    engine.finish()
}

/// How targets fared whose tracers were killed.
#[derive(Default, Debug)]
struct Fates {
    survived: u64,
    died: u64,
}

impl Fates {
    /// Kills one tracer, unless it comes to its end before.
    fn kill(&mut self, kind: &str, moment: Moment) {
        let target = Target::start(kind);
        let (pid, code) = (target.pid(), target.code.clone());
        let outlived = trace(moment, || measure(pid, &code)).is_some();
        let what = format!("{kind}, killed at {moment:?}");
        match target.end(&what) {
            (status, _) if !outlived && is_trap(status) => self.died += 1,
            (status, printed) => {
                assert_eq!((status, printed), (0, results(kind)), "{what}");
                self.survived += u64::from(!outlived);
            }
        }
    }
}

/// Whether a process died of SIGTRAP.
fn is_trap(status: i32) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTRAP
}

/// Kills at `most` calls of the tracer, and at as many random times.
fn campaign(most: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for kind in KINDS {
        let target = Target::start(kind);
        let (pid, code) = (target.pid(), target.code.clone());
        let calls = trace(Moment::Never, || measure(pid, &code)).expect("it was not killed");
        assert_eq!(target.end(kind), (0, results(kind)), "{kind}");
        let (mut guarded, mut raced) = (Fates::default(), Fates::default());
        for _ in 0..most {
            guarded.kill(kind, Moment::Call(random.below(calls)));
            raced.kill(kind, Moment::After(random.below(RANDOM_WITHIN)));
        }
        eprintln!("{kind}: {calls} calls, {guarded:?}; at random times {raced:?}");
        assert!(guarded.survived > most / 6, "{kind}: {guarded:?}");
    }
}

#[test]
fn a_target_survives_its_tracer_or_dies_of_a_trap() {
    campaign(30);
}

#[test]
#[ignore = "two thousand kills take half a minute: cargo test -p darc-tracer --lib int3::killed -- --ignored"]
fn soak_two_thousand_kills() {
    campaign(400);
}
