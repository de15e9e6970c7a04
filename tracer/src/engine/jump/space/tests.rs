//! Code that is divided for one part of it after the other, while it runs.

use std::collections::BTreeSet;

use darc_disasm::{CodePart, NoMemory};
use darc_record::SiteId;

use crate::addr::TargetAddr;
use crate::engine::Engine as _;
use crate::memory::Memory;
use crate::plan::PlannedFunction;
use crate::remote_call::tests::call_in;
use crate::threads;

use super::super::{Jump, leftovers, world};
use super::*;

/// Where the function begins in the code below.
const FUNCTION: usize = 32;
/// nop (two bytes, which the kernel may go back by to make a system call again); call the function; jmp to the call; then the
/// function: push %rbx; call what is behind it; lea 1(%rbx),%rax; pop %rbx; ret; and a ret.
const LOOP: &[u8] = b"\x66\x90\xe8\x19\0\0\0\xeb\xf9";
const CALLEE: &[u8] = b"\x53\xe8\x0a\0\0\0\x48\x8d\x43\x01\x5b\xc3\xcc\xcc\xcc\xcc\xc3";

/// Brings such a loop into a process: where it is, and the function's code.
fn bring_code(pid: i32) -> (u64, Arc<FunctionCode>) {
    let access = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let page = call_in(pid, libc::SYS_mmap, [0, 4096, access, private, u64::MAX, 0]);
    let memory = Memory::open(pid).unwrap();
    memory.write(TargetAddr(page), LOOP).unwrap();
    let start = page + FUNCTION as u64;
    memory.write(TargetAddr(start), CALLEE).unwrap();
    let bytes = CALLEE[..12].to_vec();
    let code = FunctionCode::new(vec![CodePart { start, bytes }]).unwrap();
    // Its last bytes are filling.
    let code = code.with_filling(&memory, |end| Some(end + 4));
    (page, Arc::new(code))
}

/// Has a process run such a loop. Returns the function's code.
fn run_loop(pid: i32) -> Arc<FunctionCode> {
    let (page, code) = bring_code(pid);
    let led = world::stopped(pid, |world| {
        let thread = world.threads().next().expect("it has one");
        let mut registers = thread.registers()?;
        registers.set_rip(TargetAddr(page + 2));
        thread.set_registers(&registers)
    });
    led.unwrap();
    code
}

/// Nearly always its thread is in a stub of what it was before, or about to return to one.
#[test]
fn a_callee_becomes_f0_while_it_runs() {
    let mut target = leftovers::tests::start();
    let pid = target.id() as i32;
    let code = run_loop(pid);
    let function = Function::new(
        Arc::clone(&code),
        Part::Callee,
        Landings::Noticed,
        &NoMemory,
    );
    let call = function.sites().sites[0];
    let as_callee = Plan {
        functions: vec![PlannedFunction {
            code: Arc::clone(&code),
            sites: vec![(SiteId(0), call)],
            seen_through: BTreeSet::new(),
        }],
        ..Plan::default()
    };
    let as_f0 = Plan {
        f0: Some(code),
        ..Plan::default()
    };
    let mut engine = Jump::attach(pid).unwrap();
    for round in 0..40 {
        for plan in [&as_callee, &as_f0] {
            assert_eq!(engine.apply(plan).unwrap(), [], "round {round}");
            assert_eq!(threads::state(pid), Some('R'), "round {round}");
            let mut functions = engine.space.iter().flat_map(|space| &space.functions);
            assert!(functions.all(|(_, it)| !it.hides()));
        }
    }
    engine.finish().unwrap();
    assert_eq!(threads::state(pid), Some('R'));
    target.kill().unwrap();
    target.wait().unwrap();
}

/// Nobody runs the code: it is looked at alone.
#[test]
fn a_breakpoint_of_somebody_else_is_in_no_probe() {
    let mut target = leftovers::tests::start();
    let pid = target.id() as i32;
    let (page, code) = bring_code(pid);
    let memory = Memory::open(pid).unwrap();
    let mut engine = Jump::attach(pid).unwrap();
    let plan = Plan {
        f0: Some(Arc::clone(&code)),
        ..Plan::default()
    };
    // In what would be displaced for the entry, and for the `ret`.
    for (at, is_measured) in [(1, false), (10, true), (0, true)] {
        let at = TargetAddr(page + FUNCTION as u64 + at);
        let mut own = [0];
        memory.read(at, &mut own).unwrap();
        memory.write(at, &[0xcc]).unwrap();
        let refused = engine.apply(&plan).unwrap();
        assert_eq!(refused.is_empty(), is_measured, "{refused:?}");
        let words = |refused: &Refused| refused.reason.contains("a breakpoint of somebody else");
        assert!(refused.iter().all(words), "{refused:?}");
        let mut now = [0];
        memory.read(at, &mut now).unwrap();
        assert_eq!(now, [0xcc]);
        engine.finish().unwrap();
        memory.write(at, &own).unwrap();
    }
    drop(target.stdin.take());
    assert!(target.wait().unwrap().success());
}

/// The calls that an unwinder makes are measured like those of any function: it still puts return addresses back first.
#[test]
fn an_unwinder_whose_calls_are_measured_keeps_its_probe() {
    let mut target = leftovers::tests::start();
    let pid = target.id() as i32;
    let code = run_loop(pid);
    let entry = code.entry();
    let function = Function::new(
        Arc::clone(&code),
        Part::Callee,
        Landings::Noticed,
        &NoMemory,
    );
    let call = function.sites().sites[0];
    let mut plan = Plan {
        unwinders: vec![TargetAddr(entry)],
        functions: vec![PlannedFunction {
            code: Arc::clone(&code),
            sites: vec![(SiteId(0), call)],
            seen_through: BTreeSet::new(),
        }],
        ..Plan::default()
    };
    let mut engine = Jump::attach(pid).unwrap();
    let as_f0 = Plan {
        f0: Some(Arc::clone(&code)),
        ..Plan::default()
    };
    assert_eq!(engine.apply(&as_f0).unwrap(), []);
    for _ in 0..2 {
        assert_eq!(engine.apply(&plan).unwrap(), []);
        // A callee's entry is one of its sites, where nothing is put back.
        let space = engine.space.as_ref().unwrap();
        assert!(space.functions[&entry].plays(Part::Entered));
    }
    // Nor is it f0: its own return address would be hidden behind the others.
    plan.f0 = as_f0.f0;
    plan.functions.clear();
    let refused = engine.apply(&plan).unwrap();
    assert!(refused.iter().any(|it| it.addr == TargetAddr(entry)));
    engine.finish().unwrap();
    target.kill().unwrap();
    target.wait().unwrap();
}
