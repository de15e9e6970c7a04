//! What the stubs cost.

use super::landings::landing;
use super::*;
use crate::engine::jump::stubs::{Arrival, CallReturns};
use darc_record::Chain;

/// The fewest cycles of many repetitions.
fn least(run: extern "C" fn()) -> f64 {
    let cycles = |_| {
        let since = crate::tsc().0;
        run();
        crate::tsc().0 - since
    };
    (0..200).map(cycles).min().unwrap() as f64
}

/// How many calls [`repeated`] makes.
const CALLS: u64 = 20_000;

/// A function that calls one again and again, with an argument.
fn repeated(arena: &mut Arena, f0: u64, argument: u64) -> extern "C" fn() {
    let ops = arena.assemble(|a| {
        let mut again = a.create_label();
        a.push(rbx).unwrap();
        a.mov(rbx, CALLS).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rdi, argument).unwrap();
        a.call(f0).unwrap();
        a.dec(rbx).unwrap();
        a.jne(again).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
    unsafe { std::mem::transmute::<u64, extern "C" fn()>(ops) }
}

/// Prints what one `*` of a `--value` adds to an op: `cargo test -p darc-tracer what_a_read_costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement: docs/performance.md"]
fn what_a_read_costs() {
    let words = Box::leak(Box::new([0_u64; 2]));
    let good = words.as_ptr() as u64;
    words[0] = good;
    for pointer in [good, 0x10] {
        for reads in 0..4 {
            let mut arena = Arena::new();
            let f0 = arena.assemble(|a| {
                a.lea(rax, qword_ptr(rdi + 3)).unwrap();
                a.nop().unwrap();
                a.ret().unwrap();
            });
            let run = repeated(&mut arena, f0, pointer);
            let bare = least(run);
            let ops = Ops {
                chain: (reads > 0).then(|| Chain {
                    argument: 0,
                    offsets: vec![0; reads],
                }),
                ..Ops::default()
            };
            arena.patch_ops(f0, 5, &ops);
            let probed = least(run);
            eprintln!(
                "{reads} reads from {pointer:#x}: {:.0} cycles added an op",
                (probed - bare) / CALLS as f64
            );
        }
    }
}

/// Prints cycles an op: `cargo test -p darc-tracer what_an_op_costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement: docs/performance.md"]
fn what_an_op_costs() {
    for (calls, ends) in [
        (0, F0End::PatchedReturns),
        (1, F0End::PatchedReturns),
        (3, F0End::PatchedReturns),
        (0, F0End::HiddenReturn),
        (3, F0End::HiddenReturn),
    ] {
        for returns in [CallReturns::ToStub, CallReturns::ToLanding] {
            for measured in [true, false] {
                op_cost(calls, ends, returns, measured);
            }
        }
    }
}

fn op_cost(calls: u64, ends: F0End, returns: CallReturns, measured: bool) {
    /// A call, and a five-byte instruction behind it.
    const STRIDE: u64 = 10;
    let mut arena = Arena::new();
    let child = arena.assemble(|a| {
        a.lea(rax, qword_ptr(rdi + 3)).unwrap();
        a.ret().unwrap();
    });
    let f0 = arena.assemble(|a| {
        a.push(rbx).unwrap();
        a.sub(rsp, 16).unwrap();
        for _ in 0..calls {
            a.call(child).unwrap();
            a.mov(ebx, 1).unwrap();
        }
        a.add(rsp, 16).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    let run = repeated(&mut arena, f0, 0);
    let cycles = || least(run) / CALLS as f64;
    let bare = cycles();
    let list = arena.control + HEAP + 8;
    arena.descriptor(1, 5, list);
    for local in (0..calls).filter(|_| measured) {
        set(list + 8 * local, arena.descriptor_at(2 + local));
    }
    let first = 5;
    arena.patch_entry(f0, first, ends, Flags::Overwritten);
    for local in 0..calls {
        let at = f0 + first as u64 + STRIDE * local;
        let mut site = call_site(Kind::Call(Callee::Direct(child)), at + 5);
        site.local = local as u32;
        site.flags.entering = Flags::Overwritten;
        site.flags.returning = Flags::Overwritten;
        site.addr = at;
        site.returns = returns;
        match returns {
            CallReturns::ToStub => arena.patch_site(at, 5, &site),
            CallReturns::ToLanding => {
                arena.patch_items(at, 5, Arrival::Call, vec![Item::Site(site)]);
                let plain = arena.instructions(at + 5, 5).remove(0);
                let items = vec![landing(at + 5, Flags::Overwritten), Item::Plain(plain)];
                arena.patch_items(at + 5, 5, Arrival::Jump, items);
            }
        }
    }
    let tail_at = f0 + first as u64 + STRIDE * calls;
    let tail = arena.instructions(tail_at, 6);
    if ends == F0End::PatchedReturns {
        arena.patch_region(tail_at, 6, &tail[..2], Item::Ret(tail[2]));
    }
    run();
    // Enough for all of them, so that no op passes its calls.
    set(arena.rings + ring::BUDGETS, u64::MAX >> 1);
    set(arena.rings + ring::SPENT, 0);
    let probed = cycles();
    eprintln!(
        "{calls} calls, {ends:?}, {returns:?}, {}: {bare:.1} bare, {probed:.1} probed, {} records",
        if measured { "measured" } else { "passing" },
        arena.ops().len()
    );
}
