//! Calls of every kind, and ends of f0: nothing is disturbed, and all is measured.

use super::*;

#[test]
fn a_direct_call_is_measured_and_nothing_is_disturbed() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(child)), p.after),
        );
    });
    check_ops(&arena, &[2]);
}

#[test]
fn a_displaced_function_has_its_own_address() {
    let mut arena = Arena::new();
    let f0 = arena.assemble(|a| {
        let mut own = a.create_label();
        a.set_label(&mut own).unwrap();
        a.lea(r10, qword_ptr(own)).unwrap();
        a.mov(r11, r10).unwrap();
        a.ret().unwrap();
    });
    compare(&mut arena, f0, |arena| {
        arena.patch_f0(f0, 7, F0End::HiddenReturn);
    });
}

#[test]
fn flags_that_nobody_looks_at_are_not_missed() {
    for end in [F0End::HiddenReturn, F0End::PatchedReturns] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        let tail = arena.instructions(p.after, 10);
        arena.expand(1, 5, arena.descriptor_at(2));
        compare(&mut arena, p.f0, |arena| {
            arena.patch_entry(p.f0, 5, end, Flags::Overwritten);
            let mut site = call_site(Kind::Call(Callee::Direct(child)), p.after);
            site.flags.entering = Flags::Overwritten;
            arena.patch_site(p.site, 5, &site);
            if end == F0End::PatchedReturns {
                arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
            }
        });
        check_ops(&arena, &[2]);
    }
}

#[test]
fn a_call_outside_of_the_tree_passes_with_its_own_return_address() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(child)), p.after),
        );
    });
    check_ops(&arena, &[]);
}

#[test]
fn an_indirect_call_is_told_apart_by_its_callee() {
    let operands = [
        Operand::Register(Gpr::Rax),
        Operand::Register(Gpr::R11),
        Operand::Memory(MemoryOperand {
            segment: Segment::None,
            base: Some(Gpr::Rsp),
            index: None,
            displacement: 8,
        }),
    ];
    for operand in operands {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let load = |a: &mut CodeAssembler| {
            a.mov(rax, child).unwrap();
            a.mov(r11, rax).unwrap();
            a.mov(qword_ptr(rsp + 8), rax).unwrap();
            a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        };
        let call = |a: &mut CodeAssembler| match operand {
            Operand::Register(Gpr::Rax) => a.call(rax).unwrap(),
            Operand::Register(_) => a.call(r11).unwrap(),
            Operand::Memory(_) => a.call(qword_ptr(rsp + 8)).unwrap(),
        };
        let whole = |a: &mut CodeAssembler| {
            load(a);
            call(a);
        };
        let len = |emit: &dyn Fn(&mut CodeAssembler)| {
            let mut a = CodeAssembler::new(64).unwrap();
            emit(&mut a);
            a.assemble(child).unwrap().len() as u64
        };
        let loads = len(&load);
        let p = program(&mut arena, len(&whole), whole);
        let before = arena.instructions(p.site, loads as usize);
        let table = arena.control + HEAP + 4096;
        arena.expand(1, 5, table);
        compare(&mut arena, p.f0, |arena| {
            arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
            let site = call_site(Kind::Call(Callee::Indirect(operand)), p.after);
            arena.patch_region(
                p.site,
                (p.after - p.site) as usize,
                &before,
                Item::Site(site),
            );
        });
        // The first op announced the callee; nobody answered.
        let mut records = arena.ops();
        let announced = records.remove(0);
        assert_eq!(announced[0] >> 32, u64::from(record::TARGET));
        assert_eq!(
            (announced[1], announced[3]),
            (arena.descriptor_at(1), child)
        );
        assert_eq!(records.len() as u64, OPS);
        assert!(records.iter().all(|op| op[5] as u32 == 0));
        // With an answer it has an fnode of its own.
        set(announced[4], arena.descriptor_at(3));
        let run = trampoline(&mut arena, p.f0);
        run(&mut State::arbitrary(0x202));
        let last = arena.ops().pop().unwrap();
        assert_eq!(node_of(last[FIRST_ITEM]), block::NODES + 3 * node::SIZE);
    }
}

#[test]
fn a_tail_call_and_the_call_it_replaces_are_both_measured() {
    let mut arena = Arena::new();
    let end = callee(&mut arena);
    let middle = arena.assemble(|a| {
        a.lea(rdi, qword_ptr(rdi + rdi)).unwrap();
        a.jmp(end).unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
    });
    let jump = middle + 4;
    let p = program(&mut arena, 5, |a| a.call(middle).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.expand(2, 6, arena.descriptor_at(3));
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(middle)), p.after),
        );
        let mut site = call_site(Kind::Tail(Callee::Direct(end), None), jump + 5);
        site.function = 6;
        arena.patch_site(jump, 5, &site);
    });
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    for op in ops {
        assert_eq!(node_of(op[FIRST_ITEM]), block::NODES + 3 * node::SIZE);
        assert_eq!(node_of(op[FIRST_ITEM + 5]), block::NODES + 2 * node::SIZE);
        assert!(op[FIRST_ITEM + 3] < op[FIRST_ITEM + 8]);
    }
}

#[test]
fn patched_returns_end_an_op_without_a_hidden_return_address() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    let tail = arena.instructions(p.after, 10);
    // adc rax,rbx (3); lea rsp,[rsp+32] (5); pop rbx (1); ret (1)
    assert_eq!(
        tail.iter().map(|i| i.len()).collect::<Vec<_>>(),
        [3, 5, 1, 1]
    );
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::PatchedReturns);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(child)), p.after),
        );
        arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
    });
    check_ops(&arena, &[2]);
}

#[test]
fn a_system_call_is_measured_and_the_red_zone_kept() {
    let mut arena = Arena::new();
    let f0 = arena.assemble(|a| {
        a.push(rbx).unwrap();
        a.mov(rbx, rax).unwrap();
        a.nop().unwrap();
        a.mov(qword_ptr(rsp - 8), r12).unwrap();
        a.mov(qword_ptr(rsp - 128), r13).unwrap();
        a.cmp(r12, r13).unwrap();
        a.mov(eax, libc::SYS_getpid as i32).unwrap();
        a.syscall().unwrap();
        // The instruction changes r11 and rcx; these depend on the flags and on where it is.
        a.mov(r8, qword_ptr(rsp - 8)).unwrap();
        a.mov(r9, qword_ptr(rsp - 128)).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    let code = arena.instructions(f0, 48);
    let at = code
        .iter()
        .position(|i| i.mnemonic() == iced_x86::Mnemonic::Syscall)
        .unwrap();
    let (load, call) = (code[at - 1], code[at]);
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, f0, |arena| {
        arena.patch_f0(f0, 5, F0End::HiddenReturn);
        let site = call_site(Kind::Syscall { by_number: false }, call.next_ip());
        arena.patch_region(load.ip(), load.len(), &[load], Item::Site(site));
    });
    check_ops(&arena, &[2]);
}
