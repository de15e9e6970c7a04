//! Unwinders at work in measured calls whose return addresses are hidden.

use super::interrupted::{hooked, hooked_before};
use super::stubs::Unwinding;
use super::*;

/// An op of f0, whose `ret` is patched, with one call that hides where it returns to.
fn patch(arena: &mut Arena, p: &Program, child: u64) {
    let tail = arena.instructions(p.after, 10);
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.patch_f0(p.f0, 5, F0End::PatchedReturns);
    let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
    arena.patch_site(p.site, 5, &site);
    arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
}

/// Runs f0 plainly and patched, from every set of flags, and compares.
fn run_both(arena: &mut Arena, p: &Program, child: u64) {
    let run = trampoline(arena, p.f0);
    let all = || {
        FLAGS.map(|flags| {
            let mut state = State::arbitrary(flags);
            run(&mut state);
            state
        })
    };
    let plain = all();
    patch(arena, p, child);
    assert_eq!(plain, all());
}

/// Whether all ops have said that calls of theirs may have gone unseen.
fn all_tainted(arena: &Arena) -> bool {
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    let tainted = |op: &Vec<u64>| (op[record::TAINTED as usize / 8] >> 32) as u32;
    ops.iter().all(|op| tainted(op) & block::UNSEEN != 0)
}

/// The call returned without a trace after a look at the stack, and f0 may have worked for long since.
#[test]
fn a_call_that_looked_at_the_stack_may_have_ended_at_any_time() {
    let mut arena = Arena::new();
    let unwinder = hooked(&mut arena, Unwinding::Begins);
    let child = arena.assemble(|a| {
        a.call(unwinder).unwrap();
        a.ret().unwrap();
    });
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    run_both(&mut arena, &p, child);
    assert!(all_tainted(&arena));
}

/// What `_Unwind_Backtrace` calls throws an exception and catches it: the outer one goes on reading the stack.
#[test]
fn nothing_is_hidden_again_while_an_outer_unwinder_reads_the_stack() {
    let mut arena = Arena::new();
    let thrower = hooked(&mut arena, Unwinding::Begins);
    let catcher = hooked(&mut arena, Unwinding::Arrived);
    let callback = arena.assemble(|a| {
        a.call(thrower).unwrap();
        a.call(catcher).unwrap();
        a.ret().unwrap();
    });
    let unwinder = hooked_before(&mut arena, Unwinding::Begins, |a| {
        a.call(callback).unwrap();
        // Where its caller returns to.
        a.mov(rax, qword_ptr(rsp + 8)).unwrap();
    });
    let child = arena.assemble(|a| {
        a.call(unwinder).unwrap();
        a.ret().unwrap();
    });
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    run_both(&mut arena, &p, child);
    assert!(all_tainted(&arena));
}

/// Where no other unwinder is at work return addresses are hidden again, and calls end seen.
#[test]
fn behind_a_catch_calls_end_seen() {
    let mut arena = Arena::new();
    let thrower = hooked(&mut arena, Unwinding::Begins);
    let catcher = hooked(&mut arena, Unwinding::Arrived);
    let child = arena.assemble(|a| {
        a.call(thrower).unwrap();
        a.call(catcher).unwrap();
        a.ret().unwrap();
    });
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    run_both(&mut arena, &p, child);
    assert!(!all_tainted(&arena));
    check_ops(&arena, &[2]);
}
