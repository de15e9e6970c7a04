//! Calls that return to the program's own return address, where a landing ends their measurement.

use nix::sys::ptrace;

use super::*;
use crate::engine::jump::stubs::{Arrival, CallReturns, Landing};

pub fn landing(addr: u64, flags: Flags) -> Item {
    Item::Landing(Landing {
        addr,
        running: None,
        flags,
    })
}

fn landing_site(callee: Callee, local: u32, addr: u64, next: u64) -> Item {
    Item::Site(Site {
        local,
        addr,
        returns: CallReturns::ToLanding,
        ..call_site(Kind::Call(callee), next)
    })
}

impl Arena {
    pub fn patch_items(&mut self, at: u64, len: usize, arrival: Arrival, items: Vec<Item>) {
        let region = Region {
            items,
            next: at + len as u64,
            arrival,
        };
        self.patch_arriving(at, len, arrival, |at, around, runtime| {
            stubs::region(at, &region, around, runtime).unwrap()
        });
    }

    /// A landing, and `len` bytes of instructions from there on.
    fn patch_landing(&mut self, at: u64, len: usize) {
        let plain = self.instructions(at, len).into_iter().map(Item::Plain);
        let items = std::iter::once(landing(at, Flags::Matter)).chain(plain);
        self.patch_items(at, len, Arrival::Jump, items.collect());
    }

    /// All of the program of [`program`]: its call is measured, and ends where it returns to.
    fn patch_program(&mut self, p: &Program, callee: Callee, arrival: Arrival) {
        let tail = self.instructions(p.after, 10);
        self.patch_f0(p.f0, 5, F0End::PatchedReturns);
        let before = self.instructions(p.site, (p.after - p.site) as usize);
        let (call, before) = before.split_last().unwrap();
        let before = before.iter().copied().map(Item::Plain);
        let site = landing_site(callee, 0, call.ip(), p.after);
        let len = (p.after - p.site) as usize;
        self.patch_items(p.site, len, arrival, before.chain([site]).collect());
        // adc rax,rbx (3); lea rsp,[rsp+32] (5); pop rbx (1); ret (1)
        let mut items = vec![landing(p.after, Flags::Matter)];
        items.extend(tail[..3].iter().copied().map(Item::Plain));
        items.push(Item::Ret(tail[3]));
        self.patch_items(p.after, 10, Arrival::Jump, items);
    }
}

/// Runs the code as a processor with a shadow stack would: each return goes back behind the call that it belongs to. How
/// many returned.
fn returns_behind_calls(run: extern "C" fn(&mut State)) -> usize {
    let (mut shadow, mut returned) = (Vec::new(), 0);
    let mut last = None;
    frames::step(run, |moment| {
        match last {
            Some((FlowControl::Call | FlowControl::IndirectCall, next)) => shadow.push(next),
            Some((FlowControl::Return, _)) if !shadow.is_empty() => {
                assert_eq!(shadow.pop(), Some(moment.pc));
                returned += 1;
            }
            _ => {}
        }
        let word = |at: u64| {
            let word = ptrace::read(moment.child, at as ptrace::AddressType);
            word.unwrap().to_le_bytes()
        };
        let code = [word(moment.pc), word(moment.pc + 8)].concat();
        let instruction = Decoder::with_ip(64, &code, moment.pc, DecoderOptions::NONE).decode();
        // Only what is called from the code on is looked at.
        let begun = moment.base != 0;
        let is_syscall = instruction.mnemonic() == iced_x86::Mnemonic::Syscall;
        let kind = instruction.flow_control();
        last = (begun && !is_syscall).then(|| (kind, instruction.next_ip()));
    });
    returned
}

#[test]
fn a_call_returns_to_its_landing() {
    for arrival in [Arrival::Call, Arrival::Jump] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        arena.expand(1, 5, arena.descriptor_at(2));
        compare(&mut arena, p.f0, |arena| {
            arena.patch_program(&p, Callee::Direct(child), arrival);
        });
        check_ops(&arena, &[2]);
    }
}

#[test]
fn the_processor_finds_each_return_behind_its_call() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.patch_program(&p, Callee::Direct(child), Arrival::Call);
    let run = trampoline(&mut arena, p.f0);
    assert!(returns_behind_calls(run) > 2);
    run(&mut State::arbitrary(FLAGS[0]));
    assert_eq!(arena.ops().len(), 1);
}

#[test]
fn a_callee_finds_the_programs_return_address() {
    for arrival in [Arrival::Call, Arrival::Jump] {
        let mut arena = Arena::new();
        let child = arena.assemble(|a| {
            a.mov(r9, qword_ptr(rsp)).unwrap();
            a.ret().unwrap();
        });
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        arena.expand(1, 5, arena.descriptor_at(2));
        arena.patch_program(&p, Callee::Direct(child), arrival);
        let run = trampoline(&mut arena, p.f0);
        let mut state = State::arbitrary(FLAGS[0]);
        run(&mut state);
        assert_eq!(state.registers[8], p.after);
        assert_eq!(arena.ops()[0][5], 1);
    }
}

#[test]
fn an_unmeasured_call_passes_its_landing() {
    for arrival in [Arrival::Call, Arrival::Jump] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        compare(&mut arena, p.f0, |arena| {
            arena.patch_program(&p, Callee::Direct(child), arrival);
        });
        check_ops(&arena, &[]);
    }
}

#[test]
fn an_indirect_call_returns_to_its_landing() {
    let on_stack = Operand::Memory(MemoryOperand {
        segment: Segment::None,
        base: Some(Gpr::Rsp),
        index: None,
        displacement: 0,
    });
    for (operand, arrival) in [
        (Operand::Register(Gpr::Rax), Arrival::Call),
        (Operand::Register(Gpr::R11), Arrival::Jump),
        (on_stack, Arrival::Call),
        (on_stack, Arrival::Jump),
    ] {
        let mut arena = Arena::new();
        let child = match operand {
            Operand::Register(_) => callee(&mut arena),
            Operand::Memory(_) => arena.assemble(|a| {
                a.lea(r10, qword_ptr(rdi + rsi)).unwrap();
                a.add(rax, rcx).unwrap();
                a.ret_1(8).unwrap();
            }),
        };
        let emit = |a: &mut CodeAssembler| {
            a.mov(rax, child).unwrap();
            // What is displaced may leave something where the return address was pushed.
            a.push(rax).unwrap();
            match operand {
                Operand::Register(register) => {
                    a.pop(r11).unwrap();
                    match register {
                        Gpr::Rax => a.call(rax).unwrap(),
                        _ => a.call(r11).unwrap(),
                    }
                }
                // The callee takes it off again.
                Operand::Memory(_) => a.call(qword_ptr(rsp)).unwrap(),
            }
        };
        let mut a = CodeAssembler::new(64).unwrap();
        emit(&mut a);
        let len = a.assemble(child).unwrap().len() as u64;
        let p = program(&mut arena, len, emit);
        let table = arena.control + HEAP + 4096;
        arena.expand(1, 5, table);
        compare(&mut arena, p.f0, |arena| {
            arena.patch_program(&p, Callee::Indirect(operand), arrival);
        });
        let mut records = arena.ops();
        let announced = records.remove(0);
        assert_eq!(announced[0] >> 32, u64::from(record::TARGET));
        assert_eq!(records.len() as u64, OPS);
        set(announced[4], arena.descriptor_at(3));
        let run = trampoline(&mut arena, p.f0);
        run(&mut State::arbitrary(FLAGS[0]));
        let last = arena.ops().pop().unwrap();
        assert_eq!(node_of(last[FIRST_ITEM]), block::NODES + 3 * node::SIZE);
    }
}

/// f0 with two calls in a row, and what comes behind them.
fn two_calls(arena: &mut Arena, first: u64, second: u64) -> Program {
    program(arena, 10, |a| {
        a.call(first).unwrap();
        a.call(second).unwrap();
    })
}

fn patch_two_calls(arena: &mut Arena, p: &Program, first: u64, second: u64) {
    let list = arena.control + HEAP + 4096;
    set(list, arena.descriptor_at(2));
    set(list + 8, arena.descriptor_at(3));
    arena.descriptor(1, 5, list);
    let between = p.site + 5;
    let [first, second] = [first, second].map(Callee::Direct);
    let site = landing_site(first, 0, p.site, between);
    arena.patch_items(p.site, 5, Arrival::Call, vec![site]);
    let site = landing_site(second, 1, between, p.after);
    let items = vec![landing(between, Flags::Matter), site];
    arena.patch_items(between, 5, Arrival::Call, items);
    arena.patch_landing(p.after, 8);
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
}

#[test]
fn a_landing_may_be_the_next_call() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = two_calls(&mut arena, child, child);
    compare(&mut arena, p.f0, |arena| {
        patch_two_calls(arena, &p, child, child);
    });
    check_ops(&arena, &[2, 3]);
}

#[test]
fn a_call_that_is_left_has_lasted_until_the_next_landing_further_out() {
    let mut arena = Arena::new();
    // inner leaves to where middle's call returns to.
    let inner = arena.assemble(|a| {
        a.lea(rsp, qword_ptr(rsp + 16)).unwrap();
        a.ret().unwrap();
    });
    let middle = arena.assemble(|a| {
        a.push(rbx).unwrap();
        a.call(inner).unwrap();
        a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        a.nop().unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    let p = program(&mut arena, 5, |a| a.call(middle).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.expand(2, 6, arena.descriptor_at(3));
    arena.patch_program(&p, Callee::Direct(middle), Arrival::Call);
    let Item::Site(mut site) = landing_site(Callee::Direct(inner), 0, middle + 1, middle + 6)
    else {
        unreachable!()
    };
    site.function = 6;
    arena.patch_items(middle + 1, 5, Arrival::Call, vec![Item::Site(site)]);
    arena.patch_landing(middle + 6, 5);
    let run = trampoline(&mut arena, p.f0);
    for _ in 0..OPS {
        run(&mut State::arbitrary(FLAGS[0]));
    }
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    for op in ops {
        // inner's call, then middle's, which lasted longer.
        assert_eq!(op[5] as u32, 2);
        let (inner, middle) = (&op[FIRST_ITEM..][..5], &op[FIRST_ITEM + 5..][..5]);
        let node_and_count = |item: &[u64]| (node_of(item[0]), item[1]);
        assert_eq!(node_and_count(inner), (block::NODES + 3 * node::SIZE, 1));
        assert_eq!(node_and_count(middle), (block::NODES + 2 * node::SIZE, 1));
        assert!(0 < inner[3] && inner[4] > middle[4], "{op:?}");
    }
    assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
}

#[test]
fn a_branch_to_a_landing_ends_nothing_and_keeps_the_red_zone() {
    let mut arena = Arena::new();
    let f0 = arena.assemble(|a| {
        let mut landing = a.create_label();
        a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        a.nop().unwrap();
        a.mov(qword_ptr(rsp - 8), r12).unwrap();
        a.mov(qword_ptr(rsp - 128), r13).unwrap();
        a.cmp(r12, r13).unwrap();
        a.jne(landing).unwrap();
        a.nop().unwrap();
        a.set_label(&mut landing).unwrap();
        a.mov(r8, qword_ptr(rsp - 8)).unwrap();
        a.mov(r9, qword_ptr(rsp - 128)).unwrap();
        a.ret().unwrap();
    });
    let code = arena.instructions(f0, 64);
    let loads = |i: &&Instruction| i.op0_register() == iced_x86::Register::R8;
    let landing = code.iter().find(loads).unwrap().ip();
    compare(&mut arena, f0, |arena| {
        arena.patch_f0(f0, 5, F0End::HiddenReturn);
        arena.patch_landing(landing, 5);
    });
    check_ops(&arena, &[]);
}

#[test]
fn a_recursive_call_is_no_op_of_its_own() {
    let mut arena = Arena::new();
    // Calls itself once, with another argument.
    let f0 = arena.assemble(|a| {
        let (mut own, mut out) = (a.create_label(), a.create_label());
        a.set_label(&mut own).unwrap();
        a.push(rbx).unwrap();
        a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        a.xor(edi, edi).unwrap();
        a.xor(rsi, rdi).unwrap();
        a.cmp(r12, 0).unwrap();
        a.mov(r12d, 0).unwrap();
        a.je(out).unwrap();
        a.call(own).unwrap();
        a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        a.nop().unwrap();
        a.set_label(&mut out).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    let code = arena.instructions(f0, 64);
    let call = *code
        .iter()
        .find(|i| i.flow_control() == FlowControl::Call)
        .unwrap();
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, f0, |arena| {
        let first = code[0].len() + code[1].len();
        arena.patch_f0(f0, first, F0End::HiddenReturn);
        let site = landing_site(Callee::Direct(f0), 0, call.ip(), call.next_ip());
        arena.patch_items(call.ip(), 5, Arrival::Call, vec![site]);
        arena.patch_landing(call.next_ip(), 5);
    });
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    assert!(ops.iter().all(|op| op[5] == 1), "{ops:?}");
}

/// A call returns while a frame on another stack is awaited: what the op in progress calls is not all seen.
#[test]
fn a_landing_on_another_stack_is_noticed() {
    const OTHER_STACK: u64 = 0x7fff_ffff_f000;
    let mut arena = Arena::new();
    let known = short(&mut arena);
    arena.patch_f0(known, 5, F0End::PatchedReturns);
    let known = trampoline(&mut arena, known);
    known(&mut State::arbitrary(FLAGS[0]));
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.patch_landing(p.after, 10);
    let run = trampoline(&mut arena, p.f0);
    let noticed = |arena: &Arena| {
        let tainted = word32(arena.control + BLOCKS + block::TAINTED) & block::UNSEEN;
        (word(arena.rings + ring::SWITCHED), tainted)
    };
    run(&mut State::arbitrary(FLAGS[0]));
    assert_eq!(noticed(&arena), (0, 0));
    let top = arena.block(block::TOP);
    set(top + entry::SLOT, OTHER_STACK);
    set(arena.control + BLOCKS + block::TOP, top + entry::SIZE);
    run(&mut State::arbitrary(FLAGS[0]));
    assert_eq!(noticed(&arena), (1, block::UNSEEN));
    // Of the same stack.
    let near = std::ptr::from_ref(&top) as u64 + (64 << 10);
    set(top + entry::SLOT, near);
    run(&mut State::arbitrary(FLAGS[0]));
    assert_eq!(noticed(&arena).0, 1);
}
