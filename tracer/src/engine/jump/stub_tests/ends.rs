//! Frames that are left without a return, and return addresses that other threads have hidden.

use super::*;

#[test]
fn a_tail_call_behind_a_frame_that_was_left_keeps_the_frame_that_it_replaces() {
    let mut arena = Arena::new();
    let end = callee(&mut arena);
    // Goes on in its caller without a return, as a `longjmp` does.
    let leaves = arena.assemble(|a| {
        a.lea(rsp, qword_ptr(rsp + 8)).unwrap();
        a.jmp(r11).unwrap();
    });
    let f0 = arena.assemble(|a| {
        let mut after = a.create_label();
        a.lea(rax, qword_ptr(rdi + 3)).unwrap();
        a.nop().unwrap();
        a.lea(r11, qword_ptr(after)).unwrap();
        a.call(leaves).unwrap();
        a.set_label(&mut after).unwrap();
        a.lea(rdi, qword_ptr(rdi + rdi)).unwrap();
        a.jmp(end).unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
    });
    let (call, jump) = (f0 + 12, f0 + 21);
    let list = arena.control + HEAP;
    set(list, arena.descriptor_at(2));
    set(list + 8, arena.descriptor_at(3));
    arena.descriptor(1, 5, list);
    compare(&mut arena, f0, |arena| {
        arena.patch_f0(f0, 5, F0End::HiddenReturn);
        let site = call_site(Kind::Call(Callee::Direct(leaves)), call + 5);
        arena.patch_site(call, 5, &site);
        let mut site = call_site(Kind::Tail(Callee::Direct(end), None), jump + 5);
        site.local = 1;
        arena.patch_site(jump, 5, &site);
    });
    // The call that was left has lasted until the next one began.
    check_ops(&arena, &[2, 3]);
}

#[test]
fn an_f0_that_is_displaced_as_a_whole_begins_and_ends() {
    let mut arena = Arena::new();
    let f0 = short(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(f0).unwrap());
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(f0, 5, F0End::PatchedReturns);
    });
    check_ops(&arena, &[]);
}

#[test]
fn an_f0_begins_behind_the_push_that_it_begins_with() {
    for end in [F0End::HiddenReturn, F0End::PatchedReturns] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        // push %rbx; sub $32,%rsp; mov %r12,(%rsp)
        begins_behind(arena, child, &p, (1, 8, 9), end);
    }
}

#[test]
fn an_f0_begins_behind_the_frame_that_it_begins_with() {
    for end in [F0End::HiddenReturn, F0End::PatchedReturns] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let f0 = arena.assemble(|a| {
            a.sub(rsp, 40).unwrap();
            a.mov(qword_ptr(rsp), r12).unwrap();
            a.lea(rdi, qword_ptr(rdi + 3)).unwrap();
            a.nop().unwrap();
            a.call(child).unwrap();
            a.adc(rax, rdi).unwrap();
            a.lea(rsp, qword_ptr(rsp + 40)).unwrap();
            a.nop().unwrap();
            a.ret().unwrap();
        });
        let (site, after) = (f0 + 13, f0 + 18);
        // sub $40,%rsp; mov %r12,(%rsp); lea 3(%rdi),%rdi
        begins_behind(arena, child, &Program { f0, site, after }, (4, 40, 12), end);
    }
}

/// Patches an f0 behind its first instruction, of so many bytes, which lowers the stack pointer by so much; so many bytes are copied.
fn begins_behind(
    mut arena: Arena,
    child: u64,
    p: &Program,
    (first, lowers, displaced): (usize, i32, usize),
    end: F0End,
) {
    let tail = arena.instructions(p.after, 10);
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0_behind(p.f0, first, lowers, displaced, end);
        let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
        arena.patch_site(p.site, 5, &site);
        if end == F0End::PatchedReturns {
            arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
        }
    });
    check_ops(&arena, &[2]);
}

#[test]
fn only_blocks_that_exist_are_asked_for_a_return_address() {
    const SLOT: u64 = 0x1230;
    let mut arena = Arena::new();
    let anywhere = arena.runtime.anywhere;
    let at = arena.assemble(|a| {
        a.mov(rdx, SLOT).unwrap();
        a.call(anywhere).unwrap();
        a.ret().unwrap();
    });
    // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
    let ask = unsafe { std::mem::transmute::<u64, extern "C" fn() -> u64>(at) };
    let place = arena.place(&[0; 32]);
    let awaits = |index: u64, return_to| {
        let block = arena.control + BLOCKS + index * block::SIZE;
        let base = block + block::SHADOW + entry::SIZE;
        set(block + block::BASE, base);
        set(block + block::TOP, base + entry::SIZE);
        set(base + entry::SLOT, SLOT);
        set(base + entry::PLACE, place);
        set(base + entry::RETURN_TO, return_to);
    };
    awaits(BLOCK_COUNT, 7);
    // As many threads are just finding that there is no block for them.
    let counter = arena.control + HEADER + header::NEXT_BLOCK;
    set32(counter, BLOCK_COUNT as u32 + 1);
    assert_eq!(ask(), 0);
    awaits(BLOCK_COUNT - 1, 8);
    assert_eq!(ask(), 8);
    set32(counter, 1);
    assert_eq!(ask(), 0);
}

/// Several threads may look for the one block that was given back.
#[test]
fn who_finds_no_free_block_gets_none() {
    const KEY: u64 = 0x7f00_1230;
    let mut arena = Arena::new();
    let register = arena.runtime.register;
    let at = arena.assemble(|a| {
        a.mov(rax, KEY).unwrap();
        a.xor(edx, edx).unwrap();
        a.call(register).unwrap();
        a.mov(rax, rcx).unwrap();
        a.ret().unwrap();
    });
    // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
    let ask = unsafe { std::mem::transmute::<u64, extern "C" fn() -> u64>(at) };
    let state = |index| arena.rings + index * ring::SIZE + ring::STATE;
    (0..BLOCK_COUNT).for_each(|index| set(state(index), 1));
    set32(
        arena.control + HEADER + header::NEXT_BLOCK,
        BLOCK_COUNT as u32,
    );
    set(arena.rings + ring::FREE_BLOCKS, 1);
    assert_eq!(ask(), 0);
    assert_eq!(word(arena.rings + ring::UNREGISTERED), 1);
    set(state(1), ring::FREE);
    assert_eq!(ask(), arena.control + BLOCKS + block::SIZE);
    assert_eq!(word(arena.rings + ring::FREE_BLOCKS), 0);
}

/// What a thread has left that has ended is put back when another takes over its block.
#[test]
fn a_new_thread_drops_no_hidden_return_address() {
    const HIDDEN: u64 = 0x1230;
    let mut arena = Arena::new();
    let renew = arena.runtime.renew;
    let block = arena.control + BLOCKS;
    let at = arena.assemble(|a| {
        a.mov(rcx, block).unwrap();
        a.call(renew).unwrap();
        a.ret().unwrap();
    });
    // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
    let renew = unsafe { std::mem::transmute::<u64, extern "C" fn()>(at) };
    let place = arena.place(&[0; 32]);
    set(place + place::HIDDEN, HIDDEN);
    set32(place + place::KIND, place::F0);
    let slots = arena.place(&[0; 16]);
    set(slots, HIDDEN);
    let base = block + block::SHADOW + entry::SIZE;
    set(block + block::RING, arena.rings);
    set(block + block::BASE, base);
    set(block + block::TOP, base + 2 * entry::SIZE);
    for (index, return_to) in [(0, 7), (1, 8)] {
        let entry = base + index * entry::SIZE;
        set(entry + entry::SLOT, slots + 8 * index);
        set(entry + entry::PLACE, place);
        set(entry + entry::RETURN_TO, return_to);
    }
    renew();
    // The other slot has been used for something else since.
    assert_eq!((word(slots), word(slots + 8)), (7, 0));
    assert_eq!(arena.block(block::TOP), base);
    assert_eq!(word(arena.rings + ring::ENDED_OTHERWISE), 2);
}
