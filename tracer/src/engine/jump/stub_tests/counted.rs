//! Functions whose calls are counted.

use super::super::layout::counts;
use super::super::stubs::Counter;
use super::*;

/// Room for so many functions.
const SLOTS: u32 = 8;

impl Arena {
    fn counting() -> Arena {
        let mut arena = Arena::new();
        arena.around.counted = (3, 5);
        arena
    }

    fn count_calls(&mut self, entry: u64, displaced: usize, end: F0End, slot: u32) {
        let region = Region {
            next: entry + displaced as u64,
            items: self.entry_items(entry, displaced, end),
            arrival: stubs::Arrival::Jump,
        };
        let offset = counts::slot(slot, SLOTS) as u32;
        self.patch(entry, displaced, |at, around, runtime| {
            stubs::counted(at, &region, end, Counter { slot, offset }, around, runtime).unwrap()
        });
    }

    fn count_return(&mut self, at: u64, len: usize) {
        let mut items = self.instructions(at, len);
        let ret = items.pop().unwrap();
        let region = Region {
            next: ret.next_ip(),
            items: items
                .into_iter()
                .map(Item::Plain)
                .chain([Item::Ret(ret)])
                .collect(),
            arrival: stubs::Arrival::Jump,
        };
        self.patch(at, len, |at, around, runtime| {
            stubs::counted_returns(at, &region, around, runtime).unwrap()
        });
    }

    fn count(&self, slot: u32, field: u64) -> u64 {
        word(self.rings + counts::slot(slot, SLOTS) + field)
    }

    fn begun(&self, slot: u32) -> u64 {
        word(self.rings + counts::BEGUN + u64::from(slot) * 8)
    }

    fn in_buckets(&self, slot: u32) -> u64 {
        (0..counts::BUCKET_COUNT)
            .map(|bucket| self.count(slot, counts::BUCKETS + 16 * bucket))
            .sum()
    }

    fn check(&self, slot: u32, calls: u64) {
        assert_eq!(self.begun(slot), calls);
        assert_eq!(self.count(slot, counts::RETURNED), calls);
        assert_eq!(self.in_buckets(slot), calls);
        assert_eq!(self.count(slot, counts::ABANDONED), 0);
        assert_eq!(self.count(slot, counts::STARTS), 0);
        assert_eq!(self.block(block::TOP), self.block(block::BASE));
        let max = self.count(slot, counts::MAX);
        let at = counts::BUCKETS + 16 * bucket(max);
        assert!(self.count(slot, at) > 0 && self.count(slot, at + 8) >= max);
    }
}

#[test]
fn calls_are_counted_and_nothing_is_disturbed() {
    for end in [F0End::HiddenReturn, F0End::PatchedReturns] {
        let mut arena = Arena::counting();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        compare(&mut arena, p.f0, |arena| {
            arena.count_calls(p.f0, 5, end, 2);
            arena.count_calls(child, 8, F0End::HiddenReturn, 5);
            if end == F0End::PatchedReturns {
                arena.count_return(p.after + 3, 7);
            }
        });
        arena.check(2, OPS);
        arena.check(5, OPS);
        assert!(arena.count(2, counts::MAX) > 0);
    }
}

#[test]
fn a_function_that_is_displaced_as_a_whole_is_counted() {
    let mut arena = Arena::counting();
    let child = short(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    compare(&mut arena, p.f0, |arena| {
        arena.count_calls(child, 5, F0End::PatchedReturns, 2);
    });
    arena.check(2, OPS);
}

#[test]
fn a_call_that_is_left_without_a_return_is_counted_as_that() {
    let mut arena = Arena::counting();
    // The callee takes its return address off every second time, and goes on behind its call by itself.
    let turn = arena.control + HEAP;
    let landing = arena.control + HEAP + 8;
    let child = arena.assemble(|a| {
        let mut away = a.create_label();
        a.mov(r11, turn).unwrap();
        a.xor(dword_ptr(r11), 1).unwrap();
        a.jne(away).unwrap();
        a.ret().unwrap();
        a.set_label(&mut away).unwrap();
        a.lea(rsp, qword_ptr(rsp + 8)).unwrap();
        a.jmp(qword_ptr(r11 + 8)).unwrap();
    });
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    set(landing, p.after);
    compare(&mut arena, p.f0, |arena| {
        arena.count_calls(child, 10, F0End::HiddenReturn, 1);
    });
    assert_eq!(arena.begun(1), OPS);
    assert_eq!(arena.count(1, counts::RETURNED), OPS / 2);
    assert_eq!(arena.in_buckets(1), OPS / 2);
    // The last one that was left is noticed by a call from above.
    let run = trampoline(&mut arena, p.f0);
    run(&mut State::arbitrary(FLAGS[0]));
    run(&mut State::arbitrary(FLAGS[0]));
    run(&mut State::arbitrary(FLAGS[0]));
    assert!(arena.count(1, counts::ABANDONED) >= OPS / 2);
}

#[test]
fn a_tail_call_ends_with_the_call_that_it_replaces() {
    let mut arena = Arena::counting();
    let last = callee(&mut arena);
    let first = arena.assemble(|a| {
        a.lea(r10, qword_ptr(rdi + 1)).unwrap();
        a.inc(rsi).unwrap();
        a.jmp(last).unwrap();
    });
    let p = program(&mut arena, 5, |a| a.call(first).unwrap());
    compare(&mut arena, p.f0, |arena| {
        arena.count_calls(first, 7, F0End::HiddenReturn, 0);
        arena.count_calls(last, 8, F0End::HiddenReturn, 7);
    });
    arena.check(0, OPS);
    arena.check(7, OPS);
}

#[test]
fn recursion_below_the_shadow_stack_is_counted_as_missed() {
    let mut arena = Arena::counting();
    let depth = 300;
    let at = arena.next();
    arena.assemble(|a| {
        let mut end = a.create_label();
        let mut entry = a.create_label();
        a.set_label(&mut entry).unwrap();
        a.sub(rsp, 24).unwrap();
        a.dec(rdi).unwrap();
        a.js(end).unwrap();
        a.call(entry).unwrap();
        a.set_label(&mut end).unwrap();
        a.add(rsp, 24).unwrap();
        a.ret().unwrap();
    });
    let p = program(&mut arena, 12, |a| {
        a.mov(rdi, depth - 1).unwrap();
        a.call(at).unwrap();
    });
    compare(&mut arena, p.f0, |arena| {
        arena.count_calls(at, 7, F0End::HiddenReturn, 3);
    });
    let calls = depth * OPS;
    let missed = arena.count(3, counts::MISSED);
    assert_eq!(arena.begun(3), calls);
    assert!(missed > 0 && missed.is_multiple_of(OPS));
    assert_eq!(arena.count(3, counts::RETURNED), calls - missed);
    assert_eq!(arena.in_buckets(3), calls - missed);
}

#[test]
fn a_forked_child_counts_nothing() {
    let mut arena = Arena::counting();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    compare(&mut arena, p.f0, |arena| {
        arena.count_calls(child, 8, F0End::HiddenReturn, 4);
        set32(arena.control + LIVE, 0);
    });
    assert_eq!(arena.begun(4), 0);
    assert_eq!(arena.in_buckets(4), 0);
}

#[test]
fn calls_are_counted_at_their_sites() {
    for parent in [None, Some(2), Some(3)] {
        let mut arena = Arena::counting();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        compare(&mut arena, p.f0, |arena| {
            // The function itself is counted too, in slot 2.
            arena.count_calls(p.f0, 5, F0End::HiddenReturn, 2);
            let mut site = call_site(Kind::Call(Callee::Direct(child)), p.after);
            let (slot, offset) = (5, counts::slot(5, SLOTS) as u32);
            site.counted = Some(stubs::CountedSite {
                counter: Counter { slot, offset },
                parent,
            });
            arena.patch_site(p.site, 5, &site);
        });
        arena.check(2, OPS);
        match parent {
            // Its calls are counted in another slot than the one that is asked for.
            Some(3) => assert_eq!(arena.begun(5), 0),
            _ => arena.check(5, OPS),
        }
    }
}

#[test]
fn calls_by_pointer_are_counted_at_their_sites() {
    let mut arena = Arena::counting();
    let child = callee(&mut arena);
    // call *rbx, six bytes with what loads it.
    let p = program(&mut arena, 12, |a| {
        a.mov(r12, child).unwrap();
        a.call(r12).unwrap();
    });
    let loads = arena.instructions(p.site, 10);
    assert_eq!(loads.len(), 1);
    compare(&mut arena, p.f0, |arena| {
        let operand = darc_disasm::Operand::Register(darc_disasm::Gpr::R12);
        let next = arena.instructions(p.site, 13)[1].next_ip();
        let mut site = call_site(Kind::Call(Callee::Indirect(operand)), next);
        let (slot, offset) = (1, counts::slot(1, SLOTS) as u32);
        site.counted = Some(stubs::CountedSite {
            counter: Counter { slot, offset },
            parent: None,
        });
        arena.patch_region(p.site, (next - p.site) as usize, &loads, Item::Site(site));
    });
    arena.check(1, OPS);
}
