//! What of a function is an op: windows of one that runs already, calls from certain places.

use super::*;

/// The first call that a function makes which runs already; the function.
fn call_of_running(arena: &mut Arena) -> u64 {
    let child = callee(arena);
    let p = program(arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(arena, p.f0, |arena| {
        let mut site = call_site(Kind::Call(Callee::Direct(child)), p.after);
        site.running = Some(arena.descriptor_at(1));
        arena.patch_site(p.site, 5, &site);
    });
    p.f0
}

#[test]
fn a_running_function_is_cut_into_windows() {
    let mut arena = Arena::new();
    let f0 = call_of_running(&mut arena);
    let window = arena.control + BLOCKS + block::SHADOW + entry::SIZE;
    assert_eq!(word(window + entry::SLOT), entry::WINDOW_SLOT as i64 as u64);
    assert_eq!(arena.block(block::CURRENT), arena.descriptor_at(1));
    assert!(arena.ops().is_empty(), "it is too young to end");
    let begun = word(window + entry::START) - 2 * WINDOW_CYCLES as u64;
    set(window + entry::START, begun);
    set(
        window + entry::ADJUSTED,
        word(window + entry::ADJUSTED) - 2 * WINDOW_CYCLES as u64,
    );
    let run = trampoline(&mut arena, f0);
    run(&mut State::arbitrary(FLAGS[0]));
    let [op] = &arena.ops()[..] else {
        panic!("{:?}", arena.ops())
    };
    assert_eq!((op[1], op[5] as u32), (begun, 1));
    assert_eq!(
        (op[FIRST_ITEM + 1], node_of(op[FIRST_ITEM])),
        (OPS + 1, block::NODES + 2 * node::SIZE)
    );
    assert_eq!(
        word(window + entry::START),
        op[2],
        "the next one began at once"
    );
    assert_eq!(arena.block(block::CURRENT), arena.descriptor_at(1));
    // A site of a function in which nothing is measured opens none.
    arena.descriptor(1, descriptor::NO_FUNCTION, 0);
    set(
        arena.control + BLOCKS + block::TOP,
        arena.block(block::BASE),
    );
    set(
        arena.control + BLOCKS + block::CURRENT,
        arena.descriptor_at(0),
    );
    run(&mut State::arbitrary(FLAGS[0]));
    assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
}

/// A thread may have the stack, and the thread pointer, of one that ended long ago: the time between is nobody's.
#[test]
fn a_window_of_a_thread_that_is_gone_is_no_other_threads() {
    // Here the id of a thread is what stands first behind its thread pointer.
    let mut arena = Arena::with(|around| around.tid_offset = Some(0));
    let f0 = call_of_running(&mut arena);
    let blocks = arena.control + BLOCKS;
    let window = blocks + block::SHADOW + entry::SIZE;
    let begun = word(window + entry::START);
    let long = 2 * WINDOW_CYCLES as u64;
    set(window + entry::START, begun - long);
    set(
        window + entry::ADJUSTED,
        word(window + entry::ADJUSTED) - long,
    );
    let gone = word32(blocks + block::TID) ^ 1;
    set32(blocks + block::TID, gone);
    set(arena.block(block::RING) + ring::STATE, u64::from(gone));
    let run = trampoline(&mut arena, f0);
    run(&mut State::arbitrary(FLAGS[0]));
    assert!(arena.ops().is_empty(), "{:?}", arena.ops());
    assert!(word(window + entry::START) > begun, "a window of its own");
    assert_eq!(word(window + entry::SLOT), entry::WINDOW_SLOT as i64 as u64);
    assert_eq!(arena.block(block::TOP), window + entry::SIZE);
}

#[test]
fn only_calls_from_the_named_callers_are_ops() {
    for (wanted, expected) in [(0, 0), (1, 1)] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        // The program calls its callee, which plays f0 here.
        let ops = Ops {
            callers: vec![p.after ^ 0x1000, if wanted == 1 { p.after } else { 1 }],
            ..Ops::default()
        };
        let displaced = arena.instructions(child, 8);
        let entry_code = Region {
            items: displaced[..2].iter().copied().map(Item::Plain).collect(),
            next: displaced[1].next_ip(),
            arrival: stubs::Arrival::Jump,
        };
        compare(&mut arena, p.f0, |arena| {
            arena.patch(child, 8, |at, around, runtime| {
                let f0 = stubs::F0 {
                    flags: Flags::Matter,
                    end: F0End::HiddenReturn,
                    ops: &ops,
                    root: around.control + DESCRIPTORS + descriptor::SIZE,
                };
                stubs::f0(at, &entry_code, f0, around, runtime).unwrap()
            });
        });
        assert_eq!(arena.ops().len() as u64, expected * OPS);
    }
}
