//! Steps through stubs instruction by instruction, and unwinds from each.

use std::collections::{BTreeSet, HashSet};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::*;
use crate::engine::jump::unwinding::{Row, Stands};
use crate::sys;

/// How far down the stack is at the program's instructions, by address.
pub type Seen = HashSet<(u64, u64)>;

/// Where a step begins.
pub struct Moment {
    pub child: Pid,
    pub pc: u64,
    stack: u64,
    /// The stack pointer with which the code began; zero until then.
    pub base: u64,
}

/// Runs the code once in a child, and calls `look` before each instruction.
pub fn step(run: extern "C" fn(&mut State), mut look: impl FnMut(Moment)) {
    let child = sys::fork_into(|| {
        let mut state = State::arbitrary(FLAGS[0]);
        let _ = ptrace::traceme();
        let _ = raise(Signal::SIGSTOP);
        run(&mut state);
        sys::exit_now(0);
    })
    .unwrap();
    let child = Pid::from_raw(child);
    let mut base = 0;
    loop {
        match waitpid(child, None).unwrap() {
            WaitStatus::Stopped(..) => {
                let registers = ptrace::getregs(child).unwrap();
                let (pc, stack) = (registers.rip, registers.rsp);
                if pc == run as *const () as u64 {
                    base = stack;
                }
                look(Moment {
                    child,
                    pc,
                    stack,
                    base,
                });
                ptrace::step(child, None).unwrap();
            }
            WaitStatus::Exited(_, 0) => return,
            other => panic!("{other:?}"),
        }
    }
}

/// What the program's own code does with the stack, in the arena.
pub fn seen(arena: &Arena, run: extern "C" fn(&mut State)) -> Seen {
    let mut seen = Seen::new();
    step(run, |moment| {
        if (arena.code..arena.code + CODE_BYTES as u64).contains(&moment.pc) {
            seen.insert((moment.pc, moment.base - moment.stack));
        }
    });
    seen
}

/// The instructions of darc's code that are run, each once.
pub fn visited(arena: &Arena, run: extern "C" fn(&mut State)) -> BTreeSet<u64> {
    let mut visited = BTreeSet::new();
    step(run, |moment| {
        if arena.row(moment.pc).is_some() {
            visited.insert(moment.pc);
        }
    });
    visited
}

/// From every instruction of darc's code an unwinder comes to an instruction of the program's, with the stack that
/// it has there. Returns how many did, and from how many nothing is known.
pub fn unwind_everywhere(
    arena: &Arena,
    run: extern "C" fn(&mut State),
    seen: &Seen,
) -> (usize, usize) {
    let (mut arrived, mut unknown) = (0, 0);
    step(run, |moment| {
        let Some(row) = arena.row(moment.pc) else {
            return;
        };
        match unwind(arena, &moment, row) {
            Some((at, stack)) => {
                let depth = moment.base - stack;
                let place = (at, depth);
                assert!(seen.contains(&place), "{:#x} to {place:#x?}", moment.pc);
                arrived += 1;
            }
            None => unknown += usize::from(row.stands == Stands::Unknown),
        }
    });
    (arrived, unknown)
}

fn unwind(arena: &Arena, moment: &Moment, mut row: Row) -> Option<(u64, u64)> {
    let mut stack = moment.stack;
    for _ in 0..16 {
        stack = stack.wrapping_add_signed(i64::from(-row.depth));
        let at = match row.stands {
            Stands::For(at) => return Some((at, stack)),
            Stands::Unknown => return None,
            Stands::Called => {
                ptrace::read(moment.child, (stack - 8) as ptrace::AddressType).unwrap() as u64
            }
        };
        // Where it is hidden it leads into a stub; an unwinder would find it put back.
        row = match arena.row(at) {
            Some(row) => row,
            None => return Some((at, stack)),
        };
    }
    panic!("an unwinder would never end");
}
