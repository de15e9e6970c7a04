//! Which ops are written in full, which are only counted, and which are not at all.

use super::*;

#[test]
fn ops_outside_of_the_filter_are_only_counted() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.filter(&[(u64::MAX - 1, u64::MAX, ring::BUDGETS)]);
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn)
    });
    assert!(arena.ops().is_empty());
    assert_eq!(word(arena.rings + ring::SAMPLED), 0);
    check_histogram(&arena, OPS);
}

#[test]
fn when_a_budget_is_used_up_ops_are_only_counted() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    // The first range never fits; the second has the second budget.
    let budget = ring::BUDGETS + 8;
    arena.filter(&[(u64::MAX, u64::MAX, ring::BUDGETS), (0, u64::MAX, budget)]);
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let run = trampoline(&mut arena, p.f0);
    for _ in 0..ring::BUDGET + 5 {
        run(&mut State::arbitrary(0x202));
    }
    assert_eq!(arena.ops().len() as u64, ring::BUDGET);
    assert_eq!(word(arena.rings + ring::SAMPLED), 5);
    check_histogram(&arena, 5);
    set(arena.rings + budget, 2);
    for _ in 0..3 {
        run(&mut State::arbitrary(0x202));
    }
    assert_eq!(arena.ops().len() as u64, ring::BUDGET + 2);
    assert_eq!(word(arena.rings + ring::SAMPLED), 6);
    check_histogram(&arena, 6);
}

#[test]
fn when_all_budgets_are_used_up_calls_are_not_measured() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    // A range that never fits must not keep the other one's ops from passing: it has no budget either.
    let other = ring::BUDGETS + 8;
    arena.filter(&[(u64::MAX, u64::MAX, other), (0, u64::MAX, ring::BUDGETS)]);
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
        arena.patch_site(p.site, 5, &site);
        set(arena.rings + other, 1);
    });
    let run = trampoline(&mut arena, p.f0);
    let recorded = arena.ops().len();
    set(arena.rings + ring::BUDGETS, 1);
    run(&mut State::arbitrary(0x202));
    assert_eq!(word(arena.rings + ring::SPENT), 0, "one range has a budget");
    set(arena.rings + other, 0);
    set(arena.rings + ring::BUDGETS, 1);
    run(&mut State::arbitrary(0x202));
    assert_eq!(word(arena.rings + ring::SPENT), 1);
    let ops = arena.ops();
    assert_eq!(ops.len(), recorded + 2);
    let epoch = arena.block(block::EPOCH);
    // Budgets that come in the middle of an op whose calls passed change nothing for it.
    set(arena.rings + ring::BUDGETS, 5);
    run(&mut State::arbitrary(0x202));
    assert_eq!(arena.ops().len(), recorded + 2);
    assert_eq!(arena.block(block::EPOCH), epoch + 1);
    assert_eq!(
        arena.block(block::TOUCHED) as u32,
        0,
        "no call was credited"
    );
    set(arena.rings + ring::SPENT, 0);
    run(&mut State::arbitrary(0x202));
    assert_eq!(arena.ops().len(), recorded + 3);
    assert_eq!(arena.block(block::TOUCHED) as u32, 1);
}

#[test]
fn a_full_ring_drops_records_and_says_so() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let run = trampoline(&mut arena, p.f0);
    let room = ring::DATA_BYTES / record::HEAD;
    for _ in 0..room + 3 {
        run(&mut State::arbitrary(0x202));
        set(arena.rings + ring::SPENT, 0);
        set(arena.rings + ring::BUDGETS, 1);
    }
    assert_eq!(arena.ops().len() as u64, room);
    assert_eq!(word(arena.rings + ring::DROPPED), 3);
    check_histogram(&arena, 3);
}

#[test]
fn a_forked_child_writes_nothing() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let run = trampoline(&mut arena, p.f0);
    run(&mut State::arbitrary(0x202));
    set32(arena.control + LIVE, 0);
    run(&mut State::arbitrary(0x202));
    assert_eq!(arena.ops().len(), 1);
}
