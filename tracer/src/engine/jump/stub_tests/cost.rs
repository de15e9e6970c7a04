//! What the stubs cost.

use super::*;

/// Prints cycles an op: `cargo test -p darc-tracer what_an_op_costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_an_op_costs() {
    for (calls, ends) in [
        (0, F0End::PatchedReturns),
        (1, F0End::PatchedReturns),
        (3, F0End::PatchedReturns),
        (0, F0End::HiddenReturn),
        (3, F0End::HiddenReturn),
    ] {
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
            }
            a.add(rsp, 16).unwrap();
            a.pop(rbx).unwrap();
            a.ret().unwrap();
        });
        let ops = arena.assemble(|a| {
            let mut again = a.create_label();
            a.push(rbx).unwrap();
            a.mov(rbx, 20_000_u64).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(f0).unwrap();
            a.dec(rbx).unwrap();
            a.jne(again).unwrap();
            a.pop(rbx).unwrap();
            a.ret().unwrap();
        });
        // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
        let run = unsafe { std::mem::transmute::<u64, extern "C" fn()>(ops) };
        let least = || {
            (0..200)
                .map(|_| {
                    let since = crate::tsc().0;
                    run();
                    crate::tsc().0 - since
                })
                .min()
                .unwrap() as f64
                / 20_000.0
        };
        let bare = least();
        let list = arena.control + HEAP + 8;
        arena.descriptor(1, 5, list);
        for local in 0..calls {
            set(list + 8 * local, arena.descriptor_at(2 + local));
        }
        let first = 5;
        arena.patch_entry(f0, first, ends, Flags::Overwritten);
        for local in 0..calls {
            let at = f0 + first as u64 + 5 * local;
            let mut site = call_site(Kind::Call(Callee::Direct(child)), at + 5);
            site.local = local as u32;
            site.flags.entering = Flags::Overwritten;
            site.flags.returning = Flags::Overwritten;
            arena.patch_site(at, 5, &site);
        }
        let tail_at = f0 + first as u64 + 5 * calls;
        let tail = arena.instructions(tail_at, 6);
        if ends == F0End::PatchedReturns {
            arena.patch_region(tail_at, 6, &tail[..2], Item::Ret(tail[2]));
        }
        let probed = least();
        eprintln!(
            "{calls} calls, {ends:?}: {bare:.1} bare, {probed:.1} probed, {} records",
            arena.ops().len()
        );
    }
}
