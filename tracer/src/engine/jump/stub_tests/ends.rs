//! Frames that are left without a return.

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
    // The call that was left is none of the op's.
    check_ops(&arena, &[3]);
}
