//! Goroutines: an op is the goroutine's, by its descriptor in r14, whatever becomes of the call.

use super::*;
use crate::engine::jump::stubs::{Arrival, CallReturns};

use super::landings::landing;

/// Where the number is in a descriptor.
const NUMBER: u32 = 152;
/// What f0 takes of the stack.
const FRAME: i32 = 0x128;
/// r14.
const DESCRIPTOR: usize = 13;

/// A goroutine that runs on this thread's stack.
struct Goroutine(Box<[u64; 32]>);

impl Goroutine {
    fn new(number: u64) -> Goroutine {
        let mut words = Box::new([0; 32]);
        // Any address will do that is above all frames.
        words[1] = std::ptr::from_ref(&words) as u64 + (1 << 20);
        words[NUMBER as usize / 8] = number;
        Goroutine(words)
    }

    /// Runs a program with a first argument: the registers afterwards.
    fn run(&self, arena: &mut Arena, program: u64, argument: u64) -> State {
        let run = trampoline(arena, program);
        let mut state = State::arbitrary(FLAGS[0]);
        state.registers[0] = argument;
        state.registers[DESCRIPTOR] = self.0.as_ptr() as u64;
        run(&mut state);
        state
    }
}

/// An f0, and two functions that call it.
struct Calls {
    callee: u64,
    f0: u64,
    near: u64,
    deep: u64,
}

/// How the f0 calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Directly,
    /// By an address in this register.
    By(Gpr, AsmRegister64),
}

impl Calls {
    /// The f0 calls a function that leaves it and its caller when it is called with 1.
    fn new(arena: &mut Arena, way: Way) -> Calls {
        let leaves = arena.assemble(|a| {
            let mut out = a.create_label();
            a.cmp(rax, 1).unwrap();
            a.je(out).unwrap();
            a.add(rax, 5).unwrap();
            a.ret().unwrap();
            a.set_label(&mut out).unwrap();
            a.lea(rsp, qword_ptr(rsp + 8 + FRAME + 8)).unwrap();
            a.ret().unwrap();
        });
        let f0 = arena.assemble(|a| {
            a.sub(rsp, FRAME).unwrap();
            match way {
                Way::Directly => a.call(leaves).unwrap(),
                // As long as a call.
                Way::By(_, register) => {
                    a.db(&[0x2e; 3]).unwrap();
                    a.call(register).unwrap();
                }
            }
            a.mov(rsi, qword_ptr(rsp + 8)).unwrap();
            a.add(rsp, FRAME).unwrap();
            a.ret().unwrap();
        });
        let near = arena.assemble(|a| {
            a.call(f0).unwrap();
            a.nop().unwrap();
            a.ret().unwrap();
        });
        let deep = arena.assemble(|a| {
            a.push(rbp).unwrap();
            a.sub(rsp, 0x200).unwrap();
            a.call(f0).unwrap();
            a.add(rsp, 0x200).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
        });
        arena.expand(1, 5, arena.descriptor_at(2));
        let calls = Calls {
            callee: leaves,
            f0,
            near,
            deep,
        };
        let callee = match way {
            Way::Directly => Callee::Direct(leaves),
            Way::By(gpr, _) => {
                tell_apart(arena, leaves);
                Callee::Indirect(Operand::Register(gpr))
            }
        };
        calls.patch(arena, callee);
        calls
    }

    fn patch(&self, arena: &mut Arena, callee: Callee) {
        // sub rsp (7), call (5), mov (5), add rsp (7), ret (1)
        let code = arena.instructions(self.f0, 25);
        let plain = |at: usize| Item::Plain(code[at]);
        let region = |items, at: usize| Region {
            items,
            next: code[at].next_ip(),
            arrival: Arrival::Jump,
        };
        let beginning = region(vec![plain(0)], 0);
        arena.patch(self.f0, 7, |at, around, runtime| {
            let f0 = stubs::F0 {
                end: F0End::PatchedReturns,
                ops: &Ops::default(),
                root: around.control + DESCRIPTORS + descriptor::SIZE,
                flags: Flags::Overwritten,
            };
            stubs::f0_of_goroutines(at, &beginning, f0, 0, around, runtime).unwrap()
        });
        let site = Site {
            addr: code[1].ip(),
            returns: CallReturns::ToLanding,
            ..call_site(Kind::Call(callee), code[2].ip())
        };
        arena.patch_items(code[1].ip(), 5, Arrival::Jump, vec![Item::Site(site)]);
        let land = landing(code[2].ip(), Flags::Overwritten);
        arena.patch_items(code[2].ip(), 5, Arrival::Jump, vec![land, plain(2)]);
        let end = vec![Item::End(code[3], FRAME)];
        arena.patch_items(code[3].ip(), 7, Arrival::Jump, end);
    }
}

fn arena() -> (Arena, Calls) {
    let mut arena = Arena::of(Some(Goroutines { number: NUMBER }));
    let calls = Calls::new(&mut arena, Way::Directly);
    (arena, calls)
}

/// Makes calls of the callee through f0's site the child of its fnode.
fn tell_apart(arena: &Arena, callee: u64) {
    let table = arena.control + HEAP + 0x1000;
    let at = table + targets::SLOTS + (callee >> 4) % targets::COUNT * 16;
    set(at, callee);
    set(at + 8, arena.descriptor_at(2));
    arena.expand(1, 5, table);
}

/// What the program calls by an address in a register is called all the same, and measured.
#[test]
fn a_call_by_a_register_is_told_by_its_callee() {
    for (gpr, register, index) in [(Gpr::Rcx, rcx, 1), (Gpr::Rdi, rdi, 6), (Gpr::R9, r9, 8)] {
        let mut arena = Arena::of(Some(Goroutines { number: NUMBER }));
        let calls = Calls::new(&mut arena, Way::By(gpr, register));
        let goroutine = Goroutine::new(7);
        let run = trampoline(&mut arena, calls.near);
        let mut state = State::arbitrary(FLAGS[0]);
        state.registers[index] = calls.callee;
        state.registers[DESCRIPTOR] = goroutine.0.as_ptr() as u64;
        run(&mut state);
        assert_eq!(state.registers[0], State::arbitrary(0).registers[0] + 5);
        assert_eq!(state.registers[index], calls.callee);
        let ops = arena.ops();
        assert_eq!(ops.len(), 1);
        assert_eq!((ops[0][5] as u32, ops[0][FIRST_ITEM + 1]), (1, 1));
    }
}

fn ended_otherwise(arena: &Arena) -> u64 {
    word(arena.rings + ring::ENDED_OTHERWISE)
}

#[test]
fn an_op_has_the_words_that_go_passes_in_registers() {
    let (mut arena, calls) = arena();
    let goroutine = Goroutine::new(7);
    let state = goroutine.run(&mut arena, calls.near, 3);
    let before = State::arbitrary(FLAGS[0]).registers;
    for (index, register) in before.into_iter().enumerate() {
        // rsi is f0's; r12 and r13 are anybody's.
        if ![0, 5, 11, 12, DESCRIPTOR].contains(&index) {
            assert_eq!(state.registers[index], register, "{index}");
        }
    }
    assert_eq!(state.registers[0], 8);
    let [op] = &arena.ops()[..] else {
        panic!("one op");
    };
    let [_, rcx_, _, rbx_, _, rsi_, rdi_, r8_, ..] = before;
    let arguments = &op[(record::ARGUMENTS / 8) as usize..][..6];
    assert_eq!(arguments, [3, rbx_, rcx_, rdi_, rsi_, r8_]);
    // One callee, called once.
    assert_eq!((op[5] as u32, op[FIRST_ITEM + 1]), (1, 1));
    assert_eq!(ended_otherwise(&arena), 0);
}

#[test]
fn an_op_that_a_panic_ended_is_counted_and_the_next_one_measured() {
    for next in [|calls: &Calls| calls.near, |calls: &Calls| calls.deep] {
        let (mut arena, calls) = arena();
        let goroutine = Goroutine::new(7);
        goroutine.run(&mut arena, calls.near, 1);
        assert_eq!((arena.ops().len(), ended_otherwise(&arena)), (0, 0));
        goroutine.run(&mut arena, next(&calls), 3);
        assert_eq!((arena.ops().len(), ended_otherwise(&arena)), (1, 1));
        assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
    }
}

#[test]
fn an_op_whose_goroutine_ended_is_counted() {
    let (mut arena, calls) = arena();
    let mut goroutine = Goroutine::new(7);
    goroutine.run(&mut arena, calls.near, 1);
    goroutine.0[NUMBER as usize / 8] = 8;
    goroutine.run(&mut arena, calls.deep, 3);
    assert_eq!((arena.ops().len(), ended_otherwise(&arena)), (1, 1));
}

/// Another goroutine's op begins and ends between the begin and the end of one.
#[test]
fn ops_of_goroutines_are_told_apart() {
    let (mut arena, calls) = arena();
    let (one, other) = (Goroutine::new(7), Goroutine::new(8));
    one.run(&mut arena, calls.near, 1);
    other.run(&mut arena, calls.near, 3);
    let of_one = arena.block(block::TOP) - arena.block(block::BASE);
    assert_eq!(of_one, 2 * entry::SIZE);
    assert_eq!(word32(arena.control + HEADER + header::NEXT_BLOCK), 2);
    let of_other = arena.rings + ring::SIZE;
    assert!(word(of_other + ring::HEAD) > 0);
}
