//! Goroutines: an op is the goroutine's, by its descriptor in r14, whatever becomes of the call.

use super::*;
use crate::engine::jump::stubs::{Arrival, CallReturns};

use super::landings::landing;

/// Where the number is in a descriptor.
const NUMBER: u32 = 152;
/// Where in a thread's descriptor that of the goroutine is that it runs.
const CURRENT: u32 = 192;
const GOROUTINES: Goroutines = Goroutines {
    number: NUMBER,
    current: CURRENT,
    kept: -8,
    calls_c: true,
};
/// What f0 takes of the stack.
const FRAME: i32 = 0x128;
/// r14.
const DESCRIPTOR: usize = 13;

/// A goroutine that runs on this thread's stack: its descriptor, and another stack for it.
struct Goroutine(Box<[u64; 32]>, Box<[u64; 4]>);

impl Goroutine {
    fn new(number: u64) -> Goroutine {
        let mut words = Box::new([0; 32]);
        // Any address will do that is above all frames.
        words[1] = std::ptr::from_ref(&words) as u64 + (1 << 20);
        words[NUMBER as usize / 8] = number;
        Goroutine(words, Box::default())
    }

    /// It stops in the op of the first block, on another stack: so many words from where the op returns, to what is there.
    fn stop_in_op(&mut self, arena: &Arena, words: i64, return_to: Option<u64>) {
        let began = arena.block(block::BASE);
        let own = word(began + entry::RETURN_TO);
        self.1[2] = return_to.unwrap_or(own);
        let lowest = self.1.as_ptr() as u64;
        self.0[0] = lowest;
        self.0[1] = (lowest + 16).wrapping_sub(word(began + entry::SLOT));
        self.0[7] = (lowest + 16).wrapping_add_signed(8 * words);
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
    /// Where the address is of what the callee does when it is called with 2.
    does: u64,
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
        let does = arena.assemble(|a| a.dq(&[0]).unwrap());
        let leaves = arena.assemble(|a| {
            let [mut out, mut other] = std::array::from_fn(|_| a.create_label());
            a.cmp(rax, 2).unwrap();
            a.jne(other).unwrap();
            a.mov(r10, does).unwrap();
            a.jmp(qword_ptr(r10)).unwrap();
            a.set_label(&mut other).unwrap();
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
            does,
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

    /// Goes on to the end of an op that has been left.
    fn to_the_end(&self, arena: &mut Arena) -> u64 {
        let end = self.f0 + 17;
        arena.assemble(|a| {
            let mut from_there = a.create_label();
            a.call(from_there).unwrap();
            a.ret().unwrap();
            a.set_label(&mut from_there).unwrap();
            a.sub(rsp, FRAME).unwrap();
            a.jmp(end).unwrap();
        })
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
    let mut arena = Arena::of(Some(GOROUTINES));
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
        let mut arena = Arena::of(Some(GOROUTINES));
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

/// Threads that C code has made have no descriptor before they come to Go's code; and their own stacks, and those of signal handlers, have
/// one without a number.
#[test]
fn what_is_on_no_goroutines_stack_passes_unmeasured() {
    let (mut arena, calls) = arena();
    let of_thread = Goroutine::new(0);
    let run = trampoline(&mut arena, calls.near);
    for descriptor in [0, of_thread.0.as_ptr() as u64] {
        let mut state = State::arbitrary(FLAGS[0]);
        state.registers[0] = 3;
        state.registers[DESCRIPTOR] = descriptor;
        run(&mut state);
        assert_eq!(state.registers[0], 8, "{descriptor:#x}");
        assert_eq!(state.registers[DESCRIPTOR], descriptor);
    }
    assert_eq!(arena.ops().len(), 0);
    assert_eq!(word32(arena.control + HEADER + header::NEXT_BLOCK), 0);
}

/// A function that can be run with registers of one's choice.
type Runs = extern "C" fn(&mut State);

/// The function by which goroutines change their status, patched as that is.
fn statuses(arena: &mut Arena) -> Runs {
    let function = arena.assemble(|a| {
        a.sub(rsp, FRAME).unwrap();
        a.add(rsp, FRAME).unwrap();
        a.ret().unwrap();
    });
    let first = arena.instructions(function, 7);
    let region = Region {
        items: vec![Item::Plain(first[0])],
        next: first[0].next_ip(),
        arrival: Arrival::Jump,
    };
    arena.patch(function, 7, |at, around, runtime| {
        stubs::statuses(at, &region, 0, around, runtime).unwrap()
    });
    trampoline(arena, function)
}

/// Two frames on the stack of a goroutine, the other one's thread, and the frames' return addresses.
struct Waker {
    _frames: Box<[u64; 8]>,
    _goroutine: Goroutine,
    _thread: Box<[u64; 32]>,
    on_its_own: Goroutine,
    base: u64,
}

impl Waker {
    fn new() -> Waker {
        let mut frames = Box::new([0; 8]);
        let lowest = frames.as_ptr() as u64;
        frames[0] = lowest + 32;
        frames[1] = 0x1111;
        // Behind it is no frame any more.
        frames[4] = lowest + 64;
        frames[5] = 0x2222;
        let mut goroutine = Goroutine::new(9);
        goroutine.0[0] = lowest;
        goroutine.0[1] = lowest + 64;
        let mut thread = Box::new([0; 32]);
        thread[GOROUTINES.thread_id().expect("known") as usize / 8] = WAKERS_THREAD;
        thread[CURRENT as usize / 8] = goroutine.0.as_ptr() as u64;
        // It works on a stack of its own, the test's, above which the frames need not be.
        let mut on_its_own = Goroutine::new(0);
        let end = std::ptr::from_ref(&on_its_own) as u64;
        on_its_own.0[1] = end;
        on_its_own.0[6] = thread.as_ptr() as u64;
        Waker {
            base: lowest,
            _frames: frames,
            _goroutine: goroutine,
            _thread: thread,
            on_its_own,
        }
    }

    /// Changes a goroutine's status.
    fn change(&self, run: Runs, of: &Goroutine, from: u64, to: u64) {
        let mut state = State::arbitrary(FLAGS[0]);
        state.registers[0] = of.0.as_ptr() as u64;
        state.registers[1] = to;
        state.registers[3] = from;
        state.registers[4] = self.base;
        state.registers[DESCRIPTOR] = self.on_its_own.0.as_ptr() as u64;
        let before = state;
        run(&mut state);
        for kept in [0, 1, 3, 4, DESCRIPTOR, 14] {
            assert_eq!(state.registers[kept], before.registers[kept], "{kept}");
        }
    }
}

/// The kernel's number of the waker's thread.
const WAKERS_THREAD: u64 = 4711;

const RUNNABLE: u64 = 1;
const RUNNING: u64 = 2;
const WAITING: u64 = 4;
const SYSCALL: u64 = 3;
const DEAD: u64 = 6;
/// ... where the goroutine is of a thread that C code has made.
const DEAD_EXTRA: u64 = 11;

/// What it has not come back from is counted, and its block is the next one's who needs one, whoever gets its descriptor.
#[test]
fn a_goroutine_that_ends_leaves_its_block() {
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let (mut goroutine, other, waker) = (Goroutine::new(7), Goroutine::new(8), Waker::new());
    goroutine.run(&mut arena, calls.near, 1);
    for of in [&goroutine, &other] {
        waker.change(function, of, RUNNING, DEAD);
        assert_eq!(ended_otherwise(&arena), 1);
        assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
    }
    let blocks = || word32(arena.control + HEADER + header::NEXT_BLOCK);
    let goes_on = |arena: &mut Arena, of: &Goroutine| {
        of.run(arena, calls.near, 3);
        let in_rings = [0, 1].map(|index| arena.ops_of(index).len());
        (
            in_rings,
            word32(arena.control + HEADER + header::NEXT_BLOCK),
        )
    };
    assert_eq!(blocks(), 1);
    assert_eq!(goes_on(&mut arena, &other), ([1, 0], 1));
    goroutine.0[NUMBER as usize / 8] = 9;
    assert_eq!(goes_on(&mut arena, &goroutine), ([1, 1], 2));
    waker.change(function, &other, RUNNING, DEAD);
    waker.change(function, &goroutine, SYSCALL, DEAD_EXTRA);
    assert_eq!(goes_on(&mut arena, &goroutine), ([2, 1], 2));
    assert_eq!(ended_otherwise(&arena), 1);
}

/// The ops of both blocks, those that are only counted as well.
fn all_ops(arena: &Arena) -> u64 {
    let counted = |index| word(arena.rings + index * ring::SIZE + ring::COUNTED);
    let ops = |index| arena.ops_of(index).len() as u64 + counted(index);
    ops(0) + ops(1)
}

/// More than the table has entries: there is room for the next one, and the search for one without a block ends.
#[test]
fn any_number_of_goroutines_are_followed_one_after_the_other() {
    const COUNT: u64 = 20_000;
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let run = trampoline(&mut arena, calls.near);
    let waker = Waker::new();
    let call = |goroutine: &Goroutine| {
        let mut state = State::arbitrary(FLAGS[0]);
        state.registers[0] = 3;
        state.registers[DESCRIPTOR] = goroutine.0.as_ptr() as u64;
        run(&mut state);
        assert_eq!(state.registers[0], 8);
    };
    let unfollowed = |arena: &Arena| word(arena.rings + ring::UNREGISTERED);
    let goroutines: Vec<_> = (1..=COUNT).map(Goroutine::new).collect();
    for goroutine in &goroutines {
        call(goroutine);
        waker.change(function, goroutine, RUNNING, DEAD);
    }
    assert_eq!((all_ops(&arena), unfollowed(&arena)), (COUNT, 0));
    // The budget is one for all.
    assert!(arena.ops().len() as u64 <= ring::BUDGET);
    assert_eq!(word32(arena.control + HEADER + header::NEXT_BLOCK), 1);
    // As many as there are blocks are followed at a time.
    for goroutine in &goroutines[..3] {
        call(goroutine);
    }
    assert_eq!((all_ops(&arena), unfollowed(&arena)), (COUNT + 2, 1));
    waker.change(function, &goroutines[0], RUNNING, DEAD);
    call(&goroutines[2]);
    assert_eq!((all_ops(&arena), unfollowed(&arena)), (COUNT + 3, 1));
}

/// Threads take blocks from one another, of which there are fewer than goroutines: a block is one's own.
#[test]
fn goroutines_on_several_threads_get_blocks_of_their_own() {
    const ROUNDS: u64 = 20_000;
    const THREADS: u64 = 4;
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let run = trampoline(&mut arena, calls.near);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let waker = Waker::new();
                let mut goroutines: Vec<_> = (0..50).map(|_| Goroutine::new(0)).collect();
                for round in 0..ROUNDS {
                    let goroutine = &mut goroutines[round as usize % 50];
                    goroutine.0[NUMBER as usize / 8] = 1 + thread + THREADS * round;
                    let mut state = State::arbitrary(FLAGS[0]);
                    state.registers[0] = 3;
                    state.registers[DESCRIPTOR] = goroutine.0.as_ptr() as u64;
                    let before = state.registers;
                    run(&mut state);
                    assert_eq!(state.registers[0], 8);
                    for kept in [1, 2, 3, 4, 6, 7, 8, 9, 10, 14] {
                        assert_eq!(state.registers[kept], before[kept], "{kept}");
                    }
                    waker.change(function, goroutine, RUNNING, DEAD);
                }
            });
        }
    });
    let unfollowed = word(arena.rings + ring::UNREGISTERED);
    assert_eq!(all_ops(&arena) + unfollowed, THREADS * ROUNDS);
    assert_eq!(ended_otherwise(&arena), 0);
}

/// A goroutine that has come back from a panic waits outside of its op.
#[test]
fn an_op_that_a_panic_ended_is_given_up_when_its_goroutine_stops() {
    for (words, return_to, is_left) in
        [(-1, None, false), (1, None, true), (-1, Some(0x1234), true)]
    {
        for to in [WAITING, RUNNABLE] {
            let (mut arena, calls) = arena();
            let function = statuses(&mut arena);
            let (mut goroutine, waker) = (Goroutine::new(7), Waker::new());
            goroutine.run(&mut arena, calls.near, 1);
            goroutine.stop_in_op(&arena, words, return_to);
            waker.change(function, &goroutine, RUNNING, to);
            assert_eq!(ended_otherwise(&arena), u64::from(is_left));
            waker.change(function, &goroutine, WAITING, RUNNABLE);
            waker.change(function, &goroutine, RUNNABLE, RUNNING);
            assert_eq!(arena.ops().len(), usize::from(!is_left));
        }
    }
}

/// One whose own thread changes its status on its own stack may have an old stack pointer in its descriptor.
#[test]
fn an_op_whose_goroutine_works_for_the_collector_goes_on() {
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let mut goroutine = Goroutine::new(7);
    goroutine.run(&mut arena, calls.near, 1);
    let mut state = State::arbitrary(FLAGS[0]);
    state.registers[0] = goroutine.0.as_ptr() as u64;
    (state.registers[1], state.registers[3]) = (WAITING, RUNNING);
    state.registers[DESCRIPTOR] = state.registers[0];
    // Its stack is this thread's.
    let began = arena.block(block::BASE);
    let above = [word(began + entry::RETURN_TO), 0];
    let at = above.as_ptr() as u64;
    goroutine.0[0] = at - (1 << 20);
    goroutine.0[1] = at.wrapping_sub(word(began + entry::SLOT));
    // And this is from its last system call.
    goroutine.0[7] = at + 8;
    function(&mut state);
    assert_eq!(ended_otherwise(&arena), 0);
    assert_ne!(above[0], 0);
}

/// An op that waits is told of, with who let it go on; one that is ready at once, too.
#[test]
fn what_keeps_a_goroutine_from_running_is_told() {
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let (mut goroutine, stranger, waker) = (Goroutine::new(7), Goroutine::new(8), Waker::new());
    goroutine.run(&mut arena, calls.near, 1);
    goroutine.stop_in_op(&arena, -1, None);
    for of in [&goroutine, &stranger] {
        for (from, to) in [
            (RUNNING, WAITING),
            (WAITING, RUNNABLE),
            (RUNNABLE, RUNNING),
            (RUNNING, RUNNABLE),
            (RUNNABLE, RUNNING),
            // By name alone.
            (RUNNING, WAITING),
            (WAITING, RUNNING),
        ] {
            waker.change(function, of, from, to);
        }
    }
    let [waited, let_run] = &arena.ops()[..] else {
        panic!("two: {:?}", arena.ops());
    };
    for record in [waited, let_run] {
        assert_eq!(record[0], record::HEAD | u64::from(record::ABSENCE) << 32);
        let [left, back, ready] = [1, 2, 3].map(|at: usize| record[at]);
        assert!(left <= ready && ready <= back, "{record:?}");
    }
    // It went on where its waker runs.
    for record in [waited, let_run] {
        assert_eq!(record[record::THREAD as usize / 8], WAKERS_THREAD);
    }
    let noted = 2 << 32;
    assert_eq!(
        arena.block(block::FIELD),
        noted,
        "of no thread that is known, and twice"
    );
    // Behind the address that it returns to itself.
    assert_eq!(waited[8..11], [0x1111, 0x2222, 0]);
    assert!(waited[1] < waited[3]);
    assert_eq!(let_run[1], let_run[3]);
    assert_eq!(let_run[8..11], [0x1111, 0x2222, 0]);
}

/// Nobody asks outside of ops, and of an op with very many the first are enough.
#[test]
fn absences_are_told_in_ops_alone_and_so_many() {
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let (mut goroutine, waker) = (Goroutine::new(7), Waker::new());
    goroutine.run(&mut arena, calls.near, 3);
    assert_eq!(arena.ops().len(), 1);
    let wait = |goroutine: &Goroutine| {
        waker.change(function, goroutine, RUNNING, RUNNABLE);
        waker.change(function, goroutine, RUNNABLE, RUNNING);
    };
    wait(&goroutine);
    assert_eq!(arena.ops().len(), 1);
    goroutine.run(&mut arena, calls.near, 1);
    goroutine.stop_in_op(&arena, -1, None);
    for _ in 0..block::MOST_ABSENCES + 3 {
        wait(&goroutine);
    }
    assert_eq!(arena.ops().len(), 1 + block::MOST_ABSENCES as usize);
    assert_eq!(word(arena.rings + ring::UNTOLD), 3);
    assert!(arena.block(block::UNTOLD_READY) > 0);
}

/// What a goroutine waits for is told by its calls, too: many waits leave room for what nothing else tells.
#[test]
fn waits_do_not_use_up_the_records_of_what_is_ready() {
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let (mut goroutine, waker) = (Goroutine::new(7), Waker::new());
    goroutine.run(&mut arena, calls.near, 1);
    goroutine.stop_in_op(&arena, -1, None);
    for _ in 0..block::MOST_ABSENCES + 3 {
        for (from, to) in [(RUNNING, WAITING), (WAITING, RUNNABLE), (RUNNABLE, RUNNING)] {
            waker.change(function, &goroutine, from, to);
        }
    }
    assert_eq!(arena.ops().len(), block::MOST_ABSENCES as usize);
    waker.change(function, &goroutine, RUNNING, RUNNABLE);
    waker.change(function, &goroutine, RUNNABLE, RUNNING);
    assert_eq!(arena.ops().len(), 1 + block::MOST_ABSENCES as usize);
    assert_eq!(word(arena.rings + ring::UNTOLD), 0);
    assert_eq!(arena.block(block::UNTOLD_READY), 0);
}

/// Of an op of some seconds beside others that always run all turns are told.
#[test]
fn a_hundred_turns_of_an_op_are_told() {
    let (mut arena, calls) = arena();
    let function = statuses(&mut arena);
    let (mut goroutine, waker) = (Goroutine::new(7), Waker::new());
    goroutine.run(&mut arena, calls.near, 1);
    goroutine.stop_in_op(&arena, -1, None);
    for _ in 0..100 {
        waker.change(function, &goroutine, RUNNING, RUNNABLE);
        waker.change(function, &goroutine, RUNNABLE, RUNNING);
    }
    assert_eq!(arena.ops().len(), 100);
    assert_eq!(arena.block(block::UNTOLD_READY), 0);
}

/// An op of which a third is not told decides nothing; its latency counts.
#[test]
fn an_op_that_was_ready_for_long_unseen_decides_nothing() {
    const UNSEEN: u64 = block::UNSEEN as u64;
    const LONG: u64 = 1 << 40;
    for (untold, tainted) in [(0, 0), (LONG / 4, 0), (LONG / 2, UNSEEN)] {
        let (mut arena, calls) = arena();
        let goroutine = Goroutine::new(7);
        let on = calls.to_the_end(&mut arena);
        goroutine.run(&mut arena, calls.near, 1);
        let began = arena.block(block::BASE) + entry::START;
        set(began, word(began) - LONG);
        set(arena.control + BLOCKS + block::UNTOLD_READY, untold);
        goroutine.run(&mut arena, on, 0);
        let [op] = &arena.ops()[..] else {
            panic!("one op: {:?}", arena.ops());
        };
        assert_eq!(op[5] >> 32, tainted, "{untold}");
        // It is of one op alone.
        goroutine.run(&mut arena, calls.near, 3);
        assert_eq!(arena.ops()[1][5] >> 32, 0);
    }
}

/// A call of f0 within one has no begin that is known: it says nothing of what is untold in the op around it.
#[test]
fn a_nested_call_leaves_the_op_around_it_as_it_is() {
    const LONG: u64 = 1 << 40;
    let (mut arena, calls) = arena();
    arena.expand(2, 6, arena.descriptor_at(3));
    let goroutine = Goroutine::new(7);
    goroutine.run(&mut arena, calls.near, 3);
    let began = arena.block(block::BASE) + entry::START;
    // What was there last has left its begin in the entry of the nested call.
    let nested = arena.block(block::BASE) + 2 * entry::SIZE;
    set(nested + entry::START, word(began));
    let untold = arena.control + BLOCKS + block::UNTOLD_READY;
    let nests = arena.assemble(|a| {
        a.sub(rsp, 0x208).unwrap();
        a.mov(r10, began).unwrap();
        a.mov(r11, LONG).unwrap();
        a.sub(qword_ptr(r10), r11).unwrap();
        a.mov(r10, untold).unwrap();
        a.shr(r11, 3).unwrap();
        a.mov(qword_ptr(r10), r11).unwrap();
        a.mov(eax, 3).unwrap();
        a.call(calls.f0).unwrap();
        a.add(rsp, 0x208).unwrap();
        a.ret().unwrap();
    });
    set(calls.does, nests);
    goroutine.run(&mut arena, calls.near, 2);
    let [_, op] = &arena.ops()[..] else {
        panic!("two ops: {:?}", arena.ops());
    };
    assert!(op[2] - op[1] >= LONG, "{op:?}");
    assert_eq!(op[5] >> 32, 0);
}
