use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use darc_testprogs::{Opt, program};

use crate::child_signal;
use crate::engine::calibration::of_child;
use crate::engine::int3::Guarding;
use crate::engine::int3::calibrate::{empty, plan_of};
use crate::engine::int3::points::Roles;
use crate::engine::{Discard, Engine as _, Notice};
use crate::guests;
use crate::patience::{wait_for, wait_until};

use super::*;

/// Leads a thread out that has made a step to `at` in the engine's code and has not reported it: where it goes on, and whether it
/// hears of the step.
fn led_out_of(at: impl FnOnce(&mut Int3) -> Result<TargetAddr>) -> (TargetAddr, bool) {
    child_signal::block().unwrap();
    let waits = || loop {
        std::hint::spin_loop();
    };
    let entry = empty as extern "C" fn() as usize as u64;
    let measured = of_child(waits, |pid| {
        let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
        engine.apply(&plan_of(entry, &engine.memory)?)?;
        let at = at(&mut engine)?;
        assert!(threads::interrupt(pid)?);
        assert_eq!(threads::wait_stopped(pid)?, Some(Event::Stopped));
        let mut thread = observed(pid, Event::Stopped);
        // It sends itself what the processor would raise: nobody else may.
        let mut trap = [0; 128];
        trap[8..12].copy_from_slice(&libc::TRAP_TRACE.to_le_bytes());
        trap[16..24].copy_from_slice(&at.0.to_le_bytes());
        let memory = engine.memory.again()?;
        let mappings = maps::read(pid)?;
        let caller = engine.caller.expect("found as the arena was mapped");
        caller.borrow([&mut thread], &mappings, |worker| {
            worker.with_bytes(&memory, &trap, |worker, trap| {
                let (pid, signal) = (pid as u64, libc::SIGTRAP as u64);
                let number = libc::SYS_rt_tgsigqueueinfo;
                let arguments = [pid, pid, signal, trap, 0, 0];
                worker.call("rt_tgsigqueueinfo", number, arguments)
            })
        })?;
        let mut registers = thread.registers()?;
        registers.set_rip(at);
        registers.0.eflags |= 1 << 8;
        thread.set_registers(&registers)?;
        assert_eq!(thread.pending(), 0);
        let slot = registers.rsp().wrapping_sub(8);
        let calls = engine.threads.get_mut(&pid).unwrap();
        calls.enter(FrameKind::Ignored, slot, PROGRAMS.0, 0);
        let thread = engine.clean(thread)?;
        let masks = SignalMasks::of(pid).unwrap();
        assert!(!masks.is_pending(libc::SIGTRAP), "it would hear of it");
        Ok((thread.registers()?.rip(), thread.has_stepped()))
    });
    measured.unwrap()
}

/// Where the program goes on.
const PROGRAMS: TargetAddr = TargetAddr(0x1000);

/// It would find the engine's address in it.
#[test]
fn a_step_to_the_landing_pad_is_one_of_the_program() {
    let led_out = led_out_of(|engine| Ok(engine.landing));
    assert_eq!(led_out, (PROGRAMS, true));
}

/// Behind the system call the processor raises none: the program's own comes an instruction later.
#[test]
fn a_step_in_a_system_call_is_none_of_the_program() {
    let led_out = led_out_of(|engine| {
        let copies = engine.syscall_copies(PROGRAMS.offset(-2), PROGRAMS)?;
        Ok(copies.measured.offset(2))
    });
    assert_eq!(led_out, (PROGRAMS, false));
}

/// A process that waits for a child which runs on in its memory until their input ends.
fn of_guest() -> (Child, i32, BufReader<ChildStdout>) {
    let mut target = Command::new(program("vfork_alone", Opt::O2));
    let target = target.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = target.spawn().unwrap();
    let pid = target.id() as i32;
    let mut output = BufReader::new(target.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    sys::send_to_thread(pid, pid, libc::SIGUSR1).unwrap();
    let guest = wait_for(|| match guests::of(pid, [pid])[..] {
        [guest] => Some(guest),
        _ => None,
    });
    (target, guest, output)
}

/// Killed while it waits for its child, which runs on in its memory.
#[test]
fn a_guest_that_outlives_the_process_meets_no_breakpoint() {
    child_signal::block().unwrap();
    let (mut target, guest, mut output) = of_guest();
    let pid = target.id() as i32;
    // Who waits for a child closes its input otherwise.
    let input = target.stdin.take().unwrap();
    let mut engine = Int3::attach(pid, Guarding::Unguarded).unwrap();
    assert!(engine.borrowers.contains(&guest));
    let mappings = maps::read(pid).unwrap();
    let code = mappings.iter().find(|mapping| mapping.executable).unwrap();
    let at = TargetAddr(code.start);
    let memory = Memory::open(guest).unwrap();
    let bytes = memory.read_word(at).unwrap();
    let (points, ledger) = (&mut engine.points, &mut engine.ledger);
    let armed = points.arm(&memory, ledger, at, &[], Roles::default());
    armed.unwrap();
    assert_ne!(memory.read_word(at).unwrap(), bytes);
    target.kill().unwrap();
    wait_until(|| {
        engine.poll(BETWEEN, &mut Discard).unwrap();
        engine.end().is_some()
    });
    engine.finish().unwrap();
    // Its end has been taken by whoever traced it.
    target.wait().unwrap_err();
    assert_eq!(memory.read_word(at).unwrap(), bytes);
    let tracer = threads::status_field(guest, "TracerPid");
    assert_eq!(tracer.as_deref(), Some("0"));
    // With its input ends the guest, too.
    drop(input);
    assert_eq!(output.read_line(&mut String::new()).unwrap(), 0);
}

/// Once the breakpoints are out for a guest, an exception of a thread that runs on would meet what is hidden.
#[test]
fn nothing_is_hidden_when_guests_are_let_go() {
    child_signal::block().unwrap();
    let (mut target, guest, mut output) = of_guest();
    let pid = target.id() as i32;
    let mut engine = Int3::attach(pid, Guarding::Unguarded).unwrap();
    let mappings = maps::read(pid).unwrap();
    let code = mappings.iter().find(|mapping| mapping.executable).unwrap();
    // Not the guest's own stack.
    let stack = mappings.iter().find(|mapping| mapping.writable).unwrap();
    let (unwinder, slot) = (TargetAddr(code.start), TargetAddr(stack.end - 8));
    let memory = Memory::open(pid).unwrap();
    let words = || [unwinder, slot].map(|at| memory.read_word(at).unwrap());
    let own = words();
    let roles = Roles {
        unwinder: true,
        ..Roles::default()
    };
    let (points, ledger) = (&mut engine.points, &mut engine.ledger);
    points.arm(&memory, ledger, unwinder, &[], roles).unwrap();
    engine.landing = TargetAddr(0x2000);
    let debt = engine.hide(slot.0, own[1]).unwrap();
    let calls = engine.threads.get_mut(&pid).unwrap();
    calls.enter(FrameKind::Ignored, slot.0, own[1], 0);
    let frame = &mut calls.frames_mut()[0];
    (frame.hidden, frame.ledger) = (true, debt);
    assert!((0..2).all(|at| words()[at] != own[at]));
    engine.let_borrowers_go().unwrap();
    assert_eq!(words(), own);
    let tracer = threads::status_field(guest, "TracerPid");
    assert_eq!(tracer.as_deref(), Some("0"));
    drop(target.stdin.take());
    while engine.end().is_none() {
        engine.poll(BETWEEN, &mut Discard).unwrap();
    }
    engine.finish().unwrap();
    assert_eq!(engine.end(), Some(Notice::Exited(0)));
    // Its end has been taken by whoever traced it.
    target.wait().unwrap_err();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "child=5\n");
}

/// What was to be put back is gone, though the new program has something of its own there.
#[test]
fn a_process_that_has_executed_another_program_is_clean() {
    child_signal::block().unwrap();
    let mut target = Command::new("setarch");
    let script = "echo ready; read x; exec sh -c 'read y'";
    let target = target.args(["-R", "sh", "-c", script]);
    let mut target = target
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = target.id() as i32;
    let mut output = BufReader::new(target.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let mut engine = Int3::attach(pid, Guarding::Unguarded).unwrap();
    let mappings = maps::read(pid).unwrap();
    let code = mappings.iter().find(|mapping| mapping.executable).unwrap();
    // What begins the shell has run.
    let plan = plan_of(code.start, &engine.memory).unwrap();
    assert_eq!(engine.apply(&plan).unwrap(), []);
    let mut input = target.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    wait_until(
        || matches!(sys::look_now(pid), Ok(Some((_, status))) if decode(status) == Event::Exec),
    );
    assert!(engine.is_lost());
    assert!(
        Memory::open(pid)
            .unwrap()
            .has_mapped(TargetAddr(code.start))
    );
    engine.finish().unwrap();
    drop(input);
    // Its `read` finds no line.
    assert_eq!(target.wait().unwrap().code(), Some(1));
}
